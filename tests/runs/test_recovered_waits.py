"""A run that comes out of the dead letter waits for nothing that went with it, or that was found out meanwhile."""

from typing import Any

import pytest

from tests.cast import House, client
from tests.runs.driver import Worker, register, settle

FAILED = {"outcome": "failed", "error": {"class": "permanent", "message": "no"}}
PAYMENT = {"invoice": "INV-7"}


def two_at_once(house: House) -> Worker:
    worker = Worker(house)
    plan = [{"name": name, "queue": worker.queue} for name in ("one", "two")]
    body = {"workflow": "test", "workflow_version": "1", "steps": plan}
    worker.run = worker.http.post("/runs", json=body, headers={"Idempotency-Key": "both"}).json()["id"]
    return worker


def recover(house: House, worker: Worker) -> None:
    operator = client(house.keys["admin"])
    answer = operator.post(f"/runs/{worker.run}/recover", json={"action": "retry", "reason": "looked at it"})
    assert answer.status_code == 200, answer.text


def claim(worker: Worker) -> str:
    body = {"worker": "w", "queues": [worker.queue], "run_id": worker.run, "lease_seconds": 600}
    answer = worker.http.post("/work/claim", json=body)
    assert answer.status_code == 200, answer.text
    work: dict[str, Any] = answer.json()
    worker.lease, worker.epoch = work["lease"], work["epoch"]
    return str(work["step"]["name"])


def test_a_step_whose_gate_was_withdrawn_with_the_run_is_claimed_again(house: House) -> None:
    register(house, approval="always")
    worker = two_at_once(house)
    first = claim(worker)
    assert worker.reserve(input=PAYMENT)["decision"] == "await_approval"
    second = claim(worker)
    worker.commit(step=FAILED)
    recover(house, worker)
    assert {claim(worker), claim(worker)} == {first, second} == {"one", "two"}


@pytest.mark.parametrize("result", ["succeeded", "failed"])
def test_a_step_whose_effect_was_reconciled_while_the_run_was_dead_is_claimed_again(house: House, result: str) -> None:
    register(house, reconcile={"probe_url": "https://bank.example/{key}", "settle_seconds": 0})
    worker = two_at_once(house)
    first = claim(worker)
    effect = worker.reserve(input=PAYMENT)["effect"]
    worker.commit(step={"outcome": "failed", "error": {"class": "unknown_outcome", "message": "lost"}})
    second = claim(worker)
    worker.commit(step=FAILED)
    settle(effect)
    operator = client(house.keys["admin"])
    found = operator.post(f"/effects/{effect}/reconcile", json={"result": result, "reason": "asked the bank"})
    assert found.status_code == 200, found.text
    recover(house, worker)
    assert {claim(worker), claim(worker)} == {first, second} == {"one", "two"}
