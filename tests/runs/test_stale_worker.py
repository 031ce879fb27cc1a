"""A worker that is suspended past its lease wakes up to a world that went on: it is refused, changes nothing, and what it knows is
kept for whoever finds out what became of its effect. The worker is a real process (tests/chaos/agent.py), and so is the bank.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from runs import operations
from tests.acceptance.live import wait_for
from tests.cast import House
from tests.chaos.agent import POINTS
from tests.runs.driver import Worker
from tests.runs.test_effect_races import register
from tests.servers import ROOT

Json = dict[str, Any]
PAYMENT = {"invoice_id": "INV-7", "amount": "4125.00", "currency": "INR"}
LEASE_SECONDS = 2


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def start(*module: str, environment: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", *module]
    path = {"PYTHONPATH": f"{ROOT}:{ROOT / 'platform'}"}
    return subprocess.Popen(command, cwd=ROOT, env=os.environ | path | (environment or {}), start_new_session=True)


def answers(url: str) -> bool:
    with suppress(httpx.TransportError):
        return httpx.get(url).status_code == 200
    return False


def stop(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.fixture(scope="module")
def web() -> Iterator[str]:
    port = free_port()
    granian = ["granian", "--interface", "wsgi", "--host", "127.0.0.1", "--port", str(port), "--log-level", "error"]
    process = start(*granian, "--workers", "1", "--blocking-threads", "4", "config.wsgi:application")
    wait_for(lambda: answers(f"http://127.0.0.1:{port}/healthz"))
    yield f"http://127.0.0.1:{port}"
    stop(process)


class Scene:
    """A run with one payment, a bank without faults, and a worker that will stop itself at a point of its work."""

    def __init__(self, house: House, web: str, folder: Path, point: str) -> None:
        self.folder, self.point = folder, point
        for name in ("points/taken", "journals", *(f"points/{name}" for name in POINTS)):
            (folder / name).mkdir(parents=True)
        (folder / "points" / point / "1.stop").touch()
        register(house, execute_seconds=2, reconcile={"hint": "ask the bank", "settle_seconds": 0.5})
        self.successor = Worker(house)
        payments = {"pay": [{"tool": "pay_invoice", **PAYMENT}]}
        self.run = self.successor.start("pay", input={"steps": payments})
        self.bank = f"http://127.0.0.1:{(port := free_port())}"
        bank = ["tests.chaos.bank", "--port", str(port), "--folder", str(folder / "bank"), "--faults", "0"]
        agent = ["tests.chaos.agent", "--base-url", web, "--bank", self.bank, "--queue", self.successor.queue]
        agent += ["--name", "sleeper", "--folder", str(folder / "journals"), "--lease-seconds", str(LEASE_SECONDS)]
        environment = {"SMRITI_API_KEY": house.keys["agent"], "CHAOS_POINTS": str(folder / "points")}
        self.processes = [start(*bank), start(*agent, "--execute-seconds", "2", environment=environment)]

    def __enter__(self) -> "Scene":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            stop(process)

    def sleeper(self) -> int:
        """The process that stopped itself."""
        taken = self.folder / "points" / "taken"
        wait_for(lambda: any(taken.iterdir()))
        return int(next(taken.iterdir()).name.rpartition(".")[2])

    def lines(self, kind: str) -> list[Json]:
        journal = self.folder / "journals" / "sleeper-1.journal"
        lines = [json.loads(line) for line in journal.read_bytes().split(b"\n")[:-1]]
        return [line for line in lines if line["kind"] == kind]

    def decision(self) -> Json:
        """What the sleeper was told when it reserved."""
        (line,) = [line for line in self.lines("ack") if "decision" in line["answer"]]
        found: Json = line["answer"]
        return found

    def take_over(self) -> None:
        """Wait until the lease is over, and claim the step."""

        def lost() -> bool:
            operations.sweep()
            return "lease_lost" in [event["type"] for event in self.successor.get("/events")["items"]]

        wait_for(lost)
        work = self.successor.claim()
        assert (work["epoch"], work["resumed"]) == (2, True)

    def reserve(self) -> Json:
        """As the sleeper did, under the same key: a new worker derives it from the same work."""
        held = {"lease": self.successor.lease, "epoch": self.successor.epoch}
        body = {**held, "tool": "pay_invoice", "input": PAYMENT}
        key = {"Idempotency-Key": "pay:INV-7:1"}
        answer = self.successor.http.post(f"/runs/{self.run}/effects", json=body, headers=key)
        assert answer.status_code == 200, answer.text
        found: Json = answer.json()
        return found

    def world(self) -> Json:
        """Everything that a write could change, but for the log."""
        run = self.successor.get("")
        effects = self.successor.http.get(f"/effects?run_id={self.run}").json()["items"]
        return {"run": {**run["run"], "last_seq": 0, "updated_at": ""}, "steps": run["steps"], "effects": effects}

    def executions(self) -> int:
        file = self.folder / "bank" / "executed.jsonl"
        return len(file.read_bytes().splitlines()) if file.exists() else 0


@pytest.mark.parametrize("point", ["after_reserve", "before_call", "after_call", "before_outcome"])
def test_a_worker_that_slept_past_its_lease_changes_nothing(house: House, web: str, tmp_path: Path, point: str) -> None:
    with Scene(house, web, tmp_path / "scene", point) as scene:
        pid = scene.sleeper()
        called = point in ("after_call", "before_outcome")
        assert scene.executions() == called
        told = scene.decision()
        assert told["decision"] == "execute"

        scene.take_over()
        decision = scene.reserve()
        assert (decision["decision"], decision["reason"]) == ("reconcile", "outcome_unknown")
        assert (decision["effect"], decision["key"]) == (told["effect"], told["key"])

        # Until its deadline it may call: that is what settle_at counts from.
        wait_for(lambda: datetime.fromisoformat(told["deadline"]) < datetime.now(UTC))
        before, events = scene.world(), len(scene.successor.get("/events")["items"])
        os.kill(pid, signal.SIGCONT)
        wait_for(lambda: bool(scene.lines("refused")))
        (refused,) = scene.lines("refused")
        assert refused["answer"]["code"] == "stale_epoch"
        assert refused["answer"]["current_epoch"] == 2
        assert scene.executions() == called, "it called the bank after its time was over"
        after = scene.world()
        assert after["run"] == before["run"]
        assert after["steps"] == before["steps"]
        assert [e["status"] for e in after["effects"]] == [e["status"] for e in before["effects"]] == ["unknown"]
        added = scene.successor.get("/events")["items"][events:]
        assert [event["type"] for event in added] == ["effect_evidence"]
        assert added[0]["labels"]["effect"] == told["effect"]

        again = scene.reserve()
        assert again["decision"] == "reconcile"
        assert again["evidence"], "what the sleeper knew is told to whoever reconciles"
