"""Many workers want one effect at the same moment: one of them executes, nobody gets an error."""

import threading
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx
import pytest
from django.db import connections

from tests.cast import House, client
from tests.runs.driver import Worker

CLIENTS = 32
PAYMENT = {"invoice_id": "INV-7", "amount": "4125.00", "currency": "INR"}


def at_once(calls: Sequence[Callable[[], httpx.Response]]) -> list[httpx.Response]:
    """Every call in a thread of its own, all of them begun together."""
    barrier = threading.Barrier(len(calls))

    def one(call: Callable[[], httpx.Response]) -> httpx.Response:
        barrier.wait()
        try:
            return call()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(one, calls))


def register(house: House, **definition: Any) -> None:
    body = {"side_effect": "irreversible", "business_key": "{invoice_id}", "execute_seconds": 600, **definition}
    answer = client(house.keys["admin"]).put("/tools/pay_invoice/versions/1", json=body)
    assert answer.status_code < 300, answer.text


def reserve(worker: Worker, *, key: str = "pay") -> httpx.Response:
    body = {"lease": worker.lease, "epoch": worker.epoch, "tool": "pay_invoice", "input": PAYMENT}
    return worker.http.post(f"/runs/{worker.run}/effects", json=body, headers={"Idempotency-Key": key})


def outcome(worker: Worker, effect: str) -> httpx.Response:
    held = {"lease": worker.lease, "epoch": worker.epoch}
    body = {**held, "outcome": "succeeded", "output": {"transaction": "TX-1"}, "external_id": "TX-1"}
    path = f"/runs/{worker.run}/effects/{effect}/outcome"
    return worker.http.post(path, json=body, headers={"Idempotency-Key": "paid"})


def team(house: House, size: int = CLIENTS) -> list[Worker]:
    """Workers, each with a run of its own and a lease in it."""
    workers = [Worker(house) for _ in range(size)]
    for worker in workers:
        worker.start("pay")
        worker.claim()
    return workers


def ledger(house: House) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client(house.keys["admin"]).get("/effects?limit=200").json()["items"]
    return found


def steady(answer: httpx.Response) -> dict[str, Any]:
    """An answer without what counts down."""
    return {name: value for name, value in answer.json().items() if name not in ("seconds", "retry_after")}


def test_one_of_32_runs_pays_the_invoice_that_all_want_to_pay(house: House) -> None:
    register(house, scope="tenant")
    workers = team(house)
    answers = at_once([partial(reserve, worker) for worker in workers])
    assert {answer.status_code for answer in answers} == {200}, [a.text for a in answers if a.status_code != 200]
    decisions = Counter(answer.json()["decision"] for answer in answers)
    assert decisions == {"execute": 1, "reconcile": CLIENTS - 1}
    told = [answer.json() for answer in answers if answer.json()["decision"] == "reconcile"]
    assert {answer["reason"] for answer in told} == {"in_flight_elsewhere"}
    assert len({answer.json()["effect"] for answer in answers}) == len(ledger(house)) == 1

    (winner,) = [i for i, answer in enumerate(answers) if answer.json()["decision"] == "execute"]
    assert outcome(workers[winner], answers[winner].json()["effect"]).status_code == 200
    again = at_once([partial(reserve, worker, key="again") for worker in workers])
    assert {answer.json()["decision"] for answer in again} == {"already_done"}
    assert all(answer.json()["output"] == {"transaction": "TX-1"} for answer in again)


def test_the_outcome_is_raced_against_those_who_ask(house: House) -> None:
    register(house, scope="tenant")
    first, *others = team(house, 16)
    effect = reserve(first).json()["effect"]
    calls = [partial(reserve, worker) for worker in others]
    answers = at_once([partial(outcome, first, effect), *calls])
    assert {answer.status_code for answer in answers} == {200}
    assert {answer.json()["decision"] for answer in answers[1:]} <= {"already_done", "reconcile"}


@pytest.mark.parametrize("scope", ["step", "run", "tenant"])
def test_one_idempotency_key_raced_32_times_is_one_effect_and_one_answer(house: House, scope: str) -> None:
    register(house, scope=scope)
    (worker,) = team(house, 1)
    answers = at_once([partial(reserve, worker)] * CLIENTS)
    assert {answer.status_code for answer in answers} == {200}, [a.text for a in answers if a.status_code != 200]
    first = steady(answers[0])
    assert first["decision"] == "execute"
    assert all(steady(answer) == first for answer in answers)
    assert len(ledger(house)) == 1
    kinds = Counter(event["type"] for event in worker.get("/events")["items"])
    assert (kinds["effect_reserved"], kinds["effect_executing"]) == (1, 1)


def test_other_keys_of_the_same_lease_do_not_execute_again(house: House) -> None:
    register(house, scope="step")
    (worker,) = team(house, 1)
    answers = at_once([partial(reserve, worker, key=uuid.uuid4().hex) for _ in range(CLIENTS)])
    assert Counter(answer.json()["decision"] for answer in answers) == {"execute": 1, "reconcile": CLIENTS - 1}
    assert len(ledger(house)) == 1


def test_one_outcome_raced_32_times_is_recorded_once(house: House) -> None:
    register(house)
    (worker,) = team(house, 1)
    effect = reserve(worker).json()["effect"]
    answers = at_once([partial(outcome, worker, effect)] * CLIENTS)
    assert {answer.status_code for answer in answers} == {200}
    assert all(answer.json() == answers[0].json() for answer in answers)
    assert [event["type"] for event in worker.get("/events")["items"]].count("effect_succeeded") == 1


def test_32_runs_that_need_an_approval_open_one_gate(house: House) -> None:
    register(house, scope="tenant", approval="always")
    answers = at_once([partial(reserve, worker) for worker in team(house)])
    assert {answer.status_code for answer in answers} == {200}, [a.text for a in answers if a.status_code != 200]
    assert Counter(answer.json()["decision"] for answer in answers) == {"await_approval": 1, "reconcile": CLIENTS - 1}
    assert len(ledger(house)) == len(client(house.keys["admin"]).get("/gates").json()["items"]) == 1
