"""Taking work, keeping it, losing it, and waiting for it."""

import os
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psycopg
import pytest

from privacy import keys
from runs import operations, tasks
from tests.cast import House, client
from tests.runs.driver import Worker, tamperer
from tests.servers import ROOT


def start(house: House, steps: list[dict[str, Any]]) -> str:
    body = {"workflow": "t", "workflow_version": "1", "steps": steps}
    answer = client(house.keys["agent"]).post("/runs", json=body, headers={"Idempotency-Key": uuid.uuid4().hex})
    assert answer.status_code == 201, answer.text
    run: str = answer.json()["id"]
    return run


def claim(house: House, *queues: str, **extra: Any) -> Any:
    body = {"worker": "w", "queues": list(queues), **extra}
    answer = client(house.keys["agent"]).post("/work/claim", json=body)
    assert answer.status_code in (200, 204), answer.text
    return answer.json() if answer.status_code == 200 else None


class TestWithoutTheVault:
    @pytest.fixture
    def vault_down(self, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
        """The vault is out of reach from now on; the cache of keys forgets those that are named."""

        def load(tenant: uuid.UUID, key_id: uuid.UUID) -> keys.DataKey:
            raise psycopg.OperationalError("connection refused")

        def down(*forgotten: tuple[uuid.UUID, uuid.UUID]) -> None:
            for tenant, key in forgotten:
                keys.forget(tenant=tenant, key_id=key)
            monkeypatch.setattr(keys, "_load", load)

        return down

    def test_nothing_is_leased(self, house: House, vault_down: Callable[..., None]) -> None:
        worker = Worker(house)
        worker.start("a")
        vault_down((house.id, house.id))
        for _ in range(3):
            assert worker.http.post("/work/claim", json={"worker": "w", "queues": [worker.queue]}).status_code == 503
        with tamperer() as database:
            last = "select last_seq from runs_run where id = %s"
            assert database.execute(last, [worker.run]).fetchone() == (1,)

    @pytest.mark.parametrize("key", [None, "mine"])
    def test_a_lease_without_its_input_costs_no_attempt(
        self, house: House, vault_down: Callable[..., None], monkeypatch: pytest.MonkeyPatch, key: str | None
    ) -> None:
        worker = Worker(house)
        worker.start("a", subject="asha")
        with tamperer() as database:
            found = database.execute("select data_key_id from runs_run where id = %s", [worker.run]).fetchone()
        assert found is not None
        request: dict[str, Any] = {
            "json": {"worker": "w", "queues": [worker.queue]},
            "headers": {"Idempotency-Key": key} if key else {},
        }
        vault_down((house.id, found[0]))
        assert worker.http.post("/work/claim", **request).status_code == 503
        monkeypatch.undo()
        work = worker.http.post("/work/claim", **request).json()
        assert (work["step"]["attempt"], work["epoch"]) == (1, 1 if key else 2)
        released = [] if key else ["lease_released", "step_leased"]
        assert worker.types() == ["run_created", "run_started", "step_leased", *released]
        assert worker.get("/verify")["ok"]


class TestOrder:
    def test_priority_comes_first_then_age(self, house: House) -> None:
        for name, priority in (("low", -1), ("old", 0), ("new", 0), ("high", 5)):
            start(house, [{"name": name, "queue": "q", "priority": priority}])
        assert [claim(house, "q")["step"]["name"] for _ in range(4)] == ["high", "old", "new", "low"]

    def test_only_the_queues_asked_for_are_served(self, house: House) -> None:
        start(house, [{"name": "a", "queue": "one"}])
        assert claim(house, "two") is None
        assert claim(house, "two", "one")["step"]["name"] == "a"

    def test_a_claim_can_be_for_one_run(self, house: House) -> None:
        start(house, [{"name": "a", "queue": "q"}])
        wanted = start(house, [{"name": "b", "queue": "q"}])
        assert claim(house, "q", run_id=wanted)["run"]["id"] == wanted
        assert claim(house, "q", run_id=wanted) is None

    def test_a_step_waits_for_those_before_it(self, house: House) -> None:
        worker = Worker(house)
        worker.start("a", "b")
        worker.claim()
        assert claim(house, worker.queue) is None
        worker.commit(step={"outcome": "succeeded"})
        assert worker.claim()["step"]["name"] == "b"

    def test_sixteen_claimers_of_ten_steps_get_each_once(self, house: House) -> None:
        for i in range(10):
            start(house, [{"name": f"s{i}", "queue": "q"}])
        with ThreadPoolExecutor(16) as threads:
            found = [work for work in threads.map(lambda _: claim(house, "q"), range(16)) if work]
        while work := claim(house, "q"):  # a run that another claimer was just locking is skipped, not lost
            found.append(work)
        assert sorted(work["step"]["name"] for work in found) == sorted(f"s{i}" for i in range(10))

    def test_another_tenants_work_is_never_given(self, house: House, other_house: House) -> None:
        start(house, [{"name": "a", "queue": "q"}])
        assert claim(other_house, "q") is None


class TestLease:
    def test_a_heartbeat_extends_and_never_shortens(self, house: House) -> None:
        worker = Worker(house)
        worker.start("a")
        first = worker.claim(seconds=600)["expires_at"]
        url = f"/work/{worker.lease}/heartbeat"
        kept = worker.http.post(url, json={"epoch": 1, "lease_seconds": 1}).json()["expires_at"]
        longer = worker.http.post(url, json={"epoch": 1, "lease_seconds": 1200}).json()["expires_at"]
        assert kept == first < longer

    def test_a_lost_lease_is_told_with_the_current_epoch(self, house: House) -> None:
        worker = Worker(house)
        worker.start("a")
        worker.claim()
        url = f"/work/{worker.lease}/heartbeat"
        expire(worker.lease)
        assert tasks.sweep() >= 1
        worker.claim()
        answer = worker.http.post(url, json={"epoch": 1})
        assert (answer.status_code, answer.json()["code"], answer.json()["current_epoch"]) == (409, "lease_lost", 2)

    def test_a_lease_that_was_extended_in_time_is_not_taken(self, house: House) -> None:
        worker = Worker(house)
        worker.start("a")
        worker.claim()
        operations.sweep()  # takes what other tests let run out, and not this one
        assert worker.commit(events=[{"type": "note"}])
        assert "lease_lost" not in [event["type"] for event in worker.get("/events")["items"]]

    def test_two_sweeps_at_once_take_a_lease_once(self, house: House) -> None:
        worker = Worker(house)
        worker.start("a")
        worker.claim()
        expire(worker.lease)
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda _: operations.sweep(), range(4)))
        kinds = [event["type"] for event in worker.get("/events")["items"]]
        assert kinds.count("lease_lost") == 1

    def test_another_tenant_cannot_keep_or_learn_of_a_lease(self, house: House, other_house: House) -> None:
        worker = Worker(house)
        worker.start("a")
        worker.claim()
        other = client(other_house.keys["agent"])
        theirs = other.post(f"/work/{worker.lease}/heartbeat", json={"epoch": 1})
        nobodys = other.post(f"/work/{uuid.uuid4()}/heartbeat", json={"epoch": 1})
        assert theirs.status_code == nobodys.status_code == 404
        assert theirs.json()["detail"] == nobodys.json()["detail"]


@pytest.fixture(scope="module")
def waits() -> Iterator[str]:
    """The process for waits, as it is served."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "granian", "--interface", "asginl", "--host", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen(
        [*command, "--workers", "1", "--log-level", "error", "config.asgi:application"], cwd=ROOT, env=os.environ
    )
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(200):
            try:
                httpx.get(f"{url}/healthz").raise_for_status()
                break
            except httpx.HTTPError:
                time.sleep(0.05)
        yield url
    finally:
        process.terminate()
        process.wait(20)


class TestWaiting:
    def ask(self, waits: str, house: House, queue: str, seconds: float) -> httpx.Response:
        headers = {"Authorization": f"Bearer {house.keys['agent']}"}
        body = {"worker": "w", "queues": [queue], "wait_seconds": seconds}
        return httpx.post(f"{waits}/api/v1/work/claim", json=body, headers=headers, timeout=60)

    def test_a_waiting_claim_is_answered_when_work_appears(self, waits: str, house: House) -> None:
        with ThreadPoolExecutor(1) as thread:
            waiting = thread.submit(self.ask, waits, house, "q", 30)
            time.sleep(0.5)
            run = start(house, [{"name": "a", "queue": "q"}])
            answer = waiting.result(timeout=20)
        assert answer.json()["run"]["id"] == run

    def test_a_claim_without_work_ends_when_it_said(self, waits: str, house: House) -> None:
        begin = time.monotonic()
        answer = self.ask(waits, house, "q", 1)
        assert (answer.status_code, time.monotonic() - begin >= 1) == (204, True)

    def test_many_idle_waits_hold_no_database_connection(self, waits: str, house: House) -> None:
        threads = [threading.Thread(target=self.ask, args=(waits, house, "none", 3)) for _ in range(60)]
        for thread in threads:
            thread.start()
        time.sleep(2)
        assert self.ask(waits, house, "q", 0).status_code == 204
        for thread in threads:
            thread.join()

    def test_a_refusal_is_a_problem_here_too(self, waits: str) -> None:
        answer = httpx.post(f"{waits}/api/v1/work/claim", json={"worker": "w"}, headers={"Authorization": "Bearer no"})
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")


def expire(lease: str) -> None:
    with tamperer() as connection:
        connection.execute("update runs_attempt set expires_at = now() - interval '1 second' where id = %s", [lease])
