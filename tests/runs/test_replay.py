"""Replay: the log alone tells what is stored, at any event; and what was changed beside it is found."""

import random
from collections.abc import Callable
from typing import Any
from uuid import UUID

import httpx
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from kernel.context import tenant_scope
from runs import operations, queries
from tests.cast import House, client
from tests.runs.driver import Worker, tamperer

Open = Callable[[str | None], httpx.Client]


def replayed(worker: Worker, **query: Any) -> dict[str, Any]:
    answer = worker.http.get(f"/runs/{worker.run}/replay", params=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def statuses(found: dict[str, Any]) -> dict[str, tuple[str, int, int]]:
    return {step["name"]: (step["status"], step["attempts"], step["epoch"]) for step in found["steps"]}


@pytest.fixture
def worker(house: House) -> Worker:
    worker = Worker(house)
    worker.start("fetch", "match", "pay")
    return worker


def test_every_moment_of_a_run(worker: Worker, house: House) -> None:
    moments: dict[int, tuple[Any, Any]] = {}

    def note() -> None:
        live = replayed(worker)
        assert live["differences"] == []
        moments[live["upto"]] = (statuses(live), live["state"])

    note()
    worker.claim()
    note()
    worker.commit(checkpoint={"state": {"rows": [], "note": "x" * 100}}, step={"outcome": "succeeded"})
    note()
    worker.claim()
    worker.lose()
    note()
    worker.claim()
    worker.commit(
        new_steps=[{"name": "extra", "depends_on": ["match"], "queue": worker.queue}],
        checkpoint={"patch": [{"op": "add", "path": "/rows/-", "value": 1}]},
    )
    worker.commit(step={"outcome": "waiting", "wait": {"signal": {"name": "go"}}})
    note()
    worker.http.post(f"/runs/{worker.run}/signals", json={"name": "go"}, headers={"Idempotency-Key": "s"})
    worker.claim()
    worker.commit(step={"outcome": "released"})
    note()
    worker.claim()
    worker.commit(step={"outcome": "failed", "error": {"class": "permanent"}})
    note()
    with client(house.keys["operator"]) as operator:
        answer = operator.post(f"/runs/{worker.run}/recover", json={"action": "retry", "reason": "r"})
        assert answer.status_code == 200, answer.text
    note()
    worker.claim()
    worker.commit(checkpoint={"state": {"quite": "another", "note": "y" * 100}}, step={"outcome": "succeeded"})
    note()
    for _ in range(2):
        worker.claim()
        worker.commit(step={"outcome": "succeeded"})
        note()
    end = replayed(worker)
    assert (end["run_status"], end["steps_total"]) == ("completed", 4)
    assert {status for status, _, _ in statuses(end).values()} == {"succeeded"}
    assert statuses(end)["match"] == ("succeeded", 1, 5)
    assert end["state"] == worker.get("/checkpoints/latest")["state"]
    # Afterwards every moment is told as it was.
    for seq, moment in moments.items():
        found = replayed(worker, upto=seq)
        assert (statuses(found), found["state"]) == moment, seq


def test_the_plan_grows_when_the_log_says_so(worker: Worker) -> None:
    worker.claim()
    before = worker.get("/events")["last_seq"]
    worker.commit(new_steps=[{"name": "extra", "queue": worker.queue}])
    assert "extra" not in statuses(replayed(worker, upto=before))
    assert statuses(replayed(worker))["extra"] == ("runnable", 0, 0)


def test_a_cancelled_and_a_forked_run(worker: Worker, house: House) -> None:
    worker.claim()
    worker.commit(checkpoint={"state": {"a": 1, "note": "x" * 100}}, step={"outcome": "succeeded"})
    with client(house.keys["admin"]) as admin:
        headers = {"Idempotency-Key": "f"}
        fork = admin.post(f"/runs/{worker.run}/fork", json={"reason": "r"}, headers=headers).json()["id"]
        worker.claim()
        assert admin.post(f"/runs/{worker.run}/cancel", json={"reason": "r"}).status_code == 204
    found = replayed(worker)
    assert (found["run_status"], found["differences"]) == ("cancelled", [])
    assert {name: status for name, (status, _, _) in statuses(found).items()} == {
        "fetch": "succeeded", "match": "skipped", "pay": "skipped",
    }  # fmt: skip
    worker.run = fork
    found = replayed(worker)
    assert (found["differences"], found["state"]) == ([], {"a": 1, "note": "x" * 100})
    assert statuses(found) == {"fetch": ("skipped", 0, 0), "match": ("runnable", 0, 0), "pay": ("blocked", 0, 0)}


@pytest.mark.parametrize(
    ("statement", "what", "name"),
    [
        ("update runs_step set attempts = 4 where run_id = %s and name = 'fetch'", "step", "fetch/attempts"),
        ("update runs_step set epoch = 9 where run_id = %s and name = 'fetch'", "step", "fetch/epoch"),
        ("update runs_step set status = 'succeeded' where run_id = %s and name = 'pay'", "step", "pay/status"),
        ("update runs_run set status = 'completed' where id = %s", "run", "status"),
        ("update runs_step set name = 'other' where run_id = %s and name = 'pay'", "step", "other"),
        ("delete from runs_event where run_id = %s and seq = 3", "log", "3"),
        ("update runs_checkpoint set body = '\\x00' where run_id = %s", "state", "version 1"),
    ],
)
def test_what_was_changed_beside_the_log_is_found(worker: Worker, statement: str, what: str, name: str) -> None:
    worker.claim()
    worker.commit(checkpoint={"state": {"a": 1, "note": "x" * 100}}, step={"outcome": "succeeded"})
    with tamperer() as disks:
        disks.execute(statement.encode(), [worker.run])
    assert (what, name) in {(found["what"], found["name"]) for found in replayed(worker)["differences"]}


def test_pages_and_limits(worker: Worker) -> None:
    worker.claim()
    worker.commit(new_steps=[{"name": f"s{number}", "queue": worker.queue} for number in range(5)])
    names: list[str] = []
    after: int | None = 0
    while after is not None:
        page = replayed(worker, after=after, limit=3, state=False)
        assert (page["steps_total"], page["state"]) == (8, None)
        names += [step["name"] for step in page["steps"]]
        after = page["next_after"]
    assert names == ["fetch", "match", "pay", "s0", "s1", "s2", "s3", "s4"]
    refused = worker.http.get(f"/runs/{worker.run}/replay", params={"upto": 99})
    assert (refused.status_code, refused.json()["errors"][0]["path"]) == (422, "upto")
    assert worker.http.get(f"/runs/{worker.run}/replay", params={"upto": 0}).status_code == 422


def test_another_tenant_sees_nothing(worker: Worker, other_house: House, api: Open) -> None:
    assert api(other_house.keys["admin"]).get(f"/runs/{worker.run}/replay").status_code == 404


@pytest.mark.proof
def test_a_long_log_is_read_in_bounded_batches(worker: Worker, house: House, proof: bool) -> None:
    worker.claim()
    for _ in range(50 if proof else 5):
        worker.commit(events=[{"type": "note", "payload": {"text": "x" * 200}}] * 1000)
    with tenant_scope(house.id), CaptureQueriesContext(connection) as made:
        found = queries.replay(tenant=house.id, run_id=UUID(worker.run))
    assert found.differences == []
    assert len(made) < 12 + found.last_seq // 1000


@pytest.mark.parametrize("seed", range(4))
def test_whatever_workers_do_the_log_tells_it(worker: Worker, seed: int) -> None:
    rnd = random.Random(seed)
    held = False
    number = 0
    for _ in range(40):
        if not held:
            answer = worker.http.post(
                "/work/claim", json={"worker": "w", "queues": [worker.queue], "lease_seconds": 600}
            )
            if answer.status_code == 204:
                break
            work = answer.json()
            worker.lease, worker.epoch, worker.head, held = work["lease"], work["epoch"], work["run"]["head"], True
            continue
        number += 1
        match rnd.randrange(8):
            case 0:
                worker.lose()
                held = False
            case 1:
                worker.commit(step={"outcome": "released"})
                held = False
            case 2:
                worker.commit(step={"outcome": "waiting", "wait": {"timer": {"seconds": 0}}})
                held = False
            case 3:
                worker.commit(step={"outcome": "failed", "error": {"class": "transient"}})
                with tamperer() as clock:
                    clock.execute(
                        "update runs_step set due_at = now() where run_id = %s and status = 'waiting'", [worker.run]
                    )
                operations.sweep()
                held = False
            case 4:
                worker.commit(new_steps=[{"name": f"n{number}", "queue": worker.queue, "depends_on": ["fetch"]}])
            case 5:
                worker.commit(checkpoint={"state": {"n": number, "text": "x" * rnd.randrange(300)}})
            case 6:
                worker.commit(step={"outcome": "succeeded"})
                held = False
            case _:
                worker.commit(events=[{"type": "note"}])
        assert replayed(worker)["differences"] == []
