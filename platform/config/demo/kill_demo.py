"""Shows that a run survives `kill -9`: a worker dies in the middle of its work, and another goes on.

Everything it prints was read from the API or computed from the files; it fails when the run's report differs
from the one that an undisturbed loop over the same files comes to.
"""

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from typing import Final

from config.demo import agent, reconcile
from config.demo.agent import Client
from config.demo.reconcile import Json

LEASE_SECONDS: Final = 3
PAUSE: Final = 0.08  # seconds between commits, so that there is a middle to kill in
PATIENCE: Final = 60

Process = subprocess.Popen[bytes]


class Failed(Exception):
    """The demo did not go as it must."""


def main(base_url: str, key: str) -> int:
    """Run it; the exit code."""
    workers: list[Process] = []
    try:
        with Client(base_url, key) as client:
            show(client, base_url, key, workers)
    except Failed as failure:
        print(f"FAILED: {failure}", flush=True)
        return 1
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    return 0


def show(client: Client, base_url: str, key: str, workers: list[Process]) -> None:
    run = client.call("POST", "/runs", agent.PLAN, idempotency_key=f"kill-demo:{uuid.uuid4()}")["id"]
    print(f"Run {run}: {' -> '.join(step['name'] for step in agent.PLAN['steps'])}", flush=True)
    total = len(reconcile.read_books(agent.DATA).invoices)

    workers.append(start("worker-1", run, base_url, key))
    wait_until(lambda: invoices_done(client, run) > total // 3, workers[0])
    workers[0].kill()
    workers[0].wait()
    done = invoices_done(client, run)
    print(f"worker-1 (process {workers[0].pid}) killed with SIGKILL after {done} of {total} invoices", flush=True)

    workers.append(start("worker-2", run, base_url, key))
    print(
        f"worker-2 (process {workers[1].pid}) waits for the lease of worker-1, {LEASE_SECONDS} s, to run out",
        flush=True,
    )
    wait_until(lambda: read(client, run)["status"] not in agent.OPEN, workers[1])
    check(client, run)


def check(client: Client, run: str) -> None:
    """Raise Failed unless the run completed, by two workers, with the right report and a sound chain."""
    if (status := read(client, run)["status"]) != "completed":
        raise Failed(f"the run ended as {status}")

    events = all_events(client, run)
    matching = [event for event in events if event["step"] == "match_payments"]
    claims = [event["seq"] for event in matching if event["type"] == "step_leased"]
    if len(claims) < 2:
        raise Failed("worker-1 was done before it was killed")
    chunks = [event["seq"] for event in matching if event["type"] == "tool_succeeded"]
    kept = [seq for seq in chunks if seq < claims[-1]]
    print(
        f"match_payments was resumed behind event {kept[-1]}: {len(kept)} chunks of worker-1 were kept, "
        f"worker-2 did the other {len(chunks) - len(kept)}"
    )

    report = client.call("GET", f"/runs/{run}/checkpoints/latest")["state"]["report"]
    expected = reconcile.undisturbed(agent.DATA)
    if report != expected:
        different = [name for name in expected if report.get(name) != expected[name]]
        raise Failed(f"the report differs from that of an undisturbed run in {', '.join(different)}")
    print("The report is that of an undisturbed run over the same files")

    verified = client.call("GET", f"/runs/{run}/verify")
    if not verified["ok"] or [event["seq"] for event in events] != list(range(1, len(events) + 1)):
        raise Failed(f"the chain does not verify: {verified}")
    print(f"The chain verifies: {len(events)} events without a gap", flush=True)


def start(name: str, run: str, base_url: str, key: str) -> Process:
    command = [sys.executable, "-m", "config.demo.agent", "--base-url", base_url, "--worker", name, "--run", run]
    command += ["--lease-seconds", str(LEASE_SECONDS), "--pause", str(PAUSE)]
    # The key goes by environment: every user of the machine can read a command line.
    return subprocess.Popen(command, env={**os.environ, "SMRITI_API_KEY": key})  # noqa: S603 - our own program


def wait_until(condition: Callable[[], bool], worker: Process) -> None:
    """Raises Failed when the worker gives up before, or nothing happens for too long."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if worker.poll() not in (None, 0):
            raise Failed(f"a worker ended with code {worker.returncode}")
        if time.monotonic() > deadline:
            raise Failed(f"the run did not go on for {PATIENCE} s")
        time.sleep(0.05)


def invoices_done(client: Client, run: str) -> int:
    """How many invoices the latest checkpoint counts."""
    if read(client, run)["head"] == 0:
        return 0
    return int(client.call("GET", f"/runs/{run}/checkpoints/latest")["state"]["facts"]["invoices_done"])


def read(client: Client, run: str) -> Json:
    found: Json = client.call("GET", f"/runs/{run}")["run"]
    return found


def all_events(client: Client, run: str) -> list[Json]:
    events: list[Json] = []
    while page := client.call("GET", f"/runs/{run}/events?after={len(events)}&limit=500")["items"]:
        events += page
    return events
