"""A worker in a few lines: starts runs, claims steps, commits under its lease."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import psycopg

from runs import operations
from tests.cast import House, client


class Worker:
    """Holds one lease of one run at a time. `call` answers the response, whatever its status; the rest insist on success."""

    def __init__(self, house: House, *, key: str = "agent") -> None:
        self.http = client(house.keys[key])
        self.queue = uuid.uuid4().hex
        self.run = ""
        self.lease, self.epoch, self.head = "", 0, 0

    def start(self, *steps: str, **extra: Any) -> str:
        """A run whose steps follow one another, on a queue of its own."""
        plan = [
            {"name": name, "queue": self.queue, "depends_on": list(steps[max(0, i - 1) : i])}
            for i, name in enumerate(steps)
        ]
        body = {"workflow": "test", "workflow_version": "1", "steps": plan, **extra}
        answer = self.http.post("/runs", json=body, headers={"Idempotency-Key": self.queue})
        assert answer.status_code == 201, answer.text
        self.run = answer.json()["id"]
        return self.run

    def claim(self, *, seconds: float = 600) -> dict[str, Any]:
        answer = self.http.post("/work/claim", json={"worker": "w", "queues": [self.queue], "lease_seconds": seconds})
        assert answer.status_code == 200, answer.text
        work: dict[str, Any] = answer.json()
        self.lease, self.epoch, self.head = work["lease"], work["epoch"], work["run"]["head"]
        return work

    def call(self, *, key: str | None = None, **parts: Any) -> httpx.Response:
        headers = {"Idempotency-Key": key or uuid.uuid4().hex}
        return self.http.post(f"/runs/{self.run}/commit", json=parts, headers=headers)

    def commit(self, *, key: str | None = None, **parts: Any) -> dict[str, Any]:
        """A commit under the held lease; changes of the state are built on the newest head."""
        held = {"lease": self.lease, "epoch": self.epoch}
        if "checkpoint" in parts or "new_steps" in parts:
            held["head"] = self.head
        answer = self.call(key=key, **{**held, **parts})
        assert answer.status_code == 200, answer.text
        done: dict[str, Any] = answer.json()
        self.head = done["head"]
        return done

    def ask(self, tool: str | None = "pay", *, key: str | None = None, **extra: Any) -> httpx.Response:
        """A reservation under the held lease, whatever its status."""
        body = {"lease": self.lease, "epoch": self.epoch, "tool": tool, "input": {"invoice": "INV-1"}, **extra}
        body = {name: value for name, value in body.items() if value is not None}
        headers = {"Idempotency-Key": key or uuid.uuid4().hex}
        return self.http.post(f"/runs/{self.run}/effects", json=body, headers=headers)

    def reserve(self, tool: str | None = "pay", *, key: str | None = None, **extra: Any) -> dict[str, Any]:
        answer = self.ask(tool, key=key, **extra)
        assert answer.status_code == 200, answer.text
        decided: dict[str, Any] = answer.json()
        return decided

    def close(self, effect: str, outcome: str = "succeeded", *, key: str | None = None, **extra: Any) -> httpx.Response:
        """The outcome of an effect, whatever the status."""
        body = {"lease": self.lease, "epoch": self.epoch, "outcome": outcome, **extra}
        headers = {"Idempotency-Key": key or uuid.uuid4().hex}
        return self.http.post(f"/runs/{self.run}/effects/{effect}/outcome", json=body, headers=headers)

    def reconcile(self, effect: str, result: str, **extra: Any) -> httpx.Response:
        body = {"lease": self.lease, "epoch": self.epoch, "result": result, **extra}
        return self.http.post(f"/effects/{effect}/reconcile", json=body)

    def wait(self, **wait: Any) -> dict[str, Any]:
        """Ends the attempt by waiting; `timer`, `signal` or `child`."""
        return self.commit(step={"outcome": "waiting", "wait": wait})

    def signal(
        self, name: str = "answer", *, key: str | None = None, run: str | None = None, **extra: Any
    ) -> httpx.Response:
        """A signal to the run (or another one), whatever the status."""
        headers = {"Idempotency-Key": key or uuid.uuid4().hex}
        return self.http.post(f"/runs/{run or self.run}/signals", json={"name": name, **extra}, headers=headers)

    def status(self) -> tuple[str, str | None]:
        """What the run is doing, and what it waits for."""
        run = self.get("")["run"]
        return run["status"], run["waiting_for"]

    def step(self, name: str) -> dict[str, Any]:
        (found,) = [step for step in self.get("")["steps"] if step["name"] == name]
        return dict(found)

    def idle(self) -> bool:
        """Whether there is nothing to claim."""
        answer = self.http.post("/work/claim", json={"worker": "w", "queues": [self.queue]})
        return answer.status_code == 204

    def effects(self) -> list[dict[str, Any]]:
        answer = self.http.get("/effects", params={"run_id": self.run})
        assert answer.status_code == 200, answer.text
        items: list[dict[str, Any]] = answer.json()["items"]
        return items

    def lose(self) -> None:
        """The lease runs out, as if the worker had died, and the sweep finds it."""
        expire(self.lease)
        operations.sweep()

    def types(self) -> list[str]:
        """The types of the run's events, in order."""
        return [event["type"] for event in self.get("/events?limit=1000")["items"]]

    def get(self, path: str) -> Any:
        answer = self.http.get(f"/runs/{self.run}{path}")
        assert answer.status_code == 200, answer.text
        return answer.json()


@contextmanager
def tamperer() -> Iterator[psycopg.Connection[Any]]:
    """Whoever holds the disks: the superuser in this worker's database, with triggers off."""
    url = os.environ["SMRITI_TEST_ADMIN_URL"].rpartition("/")[0] + "/" + os.environ["DATABASE_URL"].rpartition("/")[2]
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("set session_replication_role = replica")
        yield connection


def expire(lease: str) -> None:
    with tamperer() as database:
        database.execute(
            "update runs_attempt set expires_at = clock_timestamp() - interval '1 second' where id = %s", [lease]
        )


def pass_time(run: str) -> None:
    """Time passes until whatever the steps of a run wait for is due, and the sweep has been."""
    with tamperer() as database:
        database.execute(
            "update runs_step set due_at = clock_timestamp() where run_id = %s and status = 'waiting' and due_at is not null",
            [run],
        )
    operations.sweep()


def settle(effect: str) -> None:
    """Time passes, until "not found" is a proof."""
    with tamperer() as database:
        database.execute("update runs_effect set settle_at = clock_timestamp() where id = %s", [effect])


def register(house: House, name: str = "pay", version: str = "1", **definition: Any) -> None:
    """A tool that pays an invoice, with anything else that a test needs of it."""
    body = {"side_effect": "irreversible", "business_key": "{invoice}", **definition}
    answer = client(house.keys["admin"]).put(f"/tools/{name}/versions/{version}", json=body)
    assert answer.is_success, answer.text
