"""Forking: a new run from a checkpoint, with its plan as it stood, sealed anew, beside a source that stays as it is."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from kernel import clock
from kernel.context import tenant_scope
from privacy.models import Subject
from runs.models import Run, Step
from tests.cast import House, client
from tests.runs.driver import Worker, tamperer

Open = Callable[[str | None], httpx.Client]


class Case:
    """A run: `fetch` done with checkpoint 1, `match` done with checkpoint 3 after it had planned `extra`, `pay` open."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.admin = client(house.keys["admin"])
        self.worker = Worker(house)
        self.run = self.worker.start(
            "fetch",
            "match",
            "pay",
            subject="customer-7",
            input={"batch": 1.10},
            labels={"region": "south"},
            task_id="T-1",
        )
        self.worker.claim()
        self.worker.commit(checkpoint={"state": {"rows": [1], "note": "x" * 100}}, step={"outcome": "succeeded"})
        self.worker.claim()
        more = [{"name": "extra", "depends_on": ["match"], "queue": self.worker.queue}]
        self.worker.commit(new_steps=more)
        self.worker.commit(
            checkpoint={"patch": [{"op": "add", "path": "/rows/-", "value": 2}]}, step={"outcome": "succeeded"}
        )

    def call(self, *, key: str = "fork", **body: Any) -> httpx.Response:
        sent = {"reason": "another try"} | body
        return self.admin.post(f"/runs/{self.run}/fork", json=sent, headers={"Idempotency-Key": key})

    def fork(self, **body: Any) -> dict[str, Any]:
        answer = self.call(**body)
        assert answer.status_code == 201, answer.text
        found: dict[str, Any] = answer.json()
        assert answer.headers["Location"] == f"/api/v1/runs/{found['id']}"
        return found

    def steps(self, run: str) -> dict[str, str]:
        with tenant_scope(self.house.id):
            rows = Step.objects.filter(run_id=run).order_by("position")
            return dict(rows.values_list("name", "status"))

    def refused(self, **body: Any) -> tuple[int, str]:
        answer = self.call(**body)
        return answer.status_code, answer.json()["code"]


@pytest.fixture
def case(house: House) -> Case:
    return Case(house)


def of(worker: Worker, run: str) -> Worker:
    worker.run = run
    return worker


def test_a_fork_of_the_newest_checkpoint_goes_on_where_it_stood(case: Case) -> None:
    before = case.worker.get("/events")
    forked = case.fork()
    assert (forked["forked_from"], forked["checkpoint"], forked["carried"]) == (case.run, 3, ["fetch", "match"])
    assert case.steps(forked["id"]) == {"fetch": "skipped", "match": "skipped", "pay": "runnable", "extra": "runnable"}
    assert case.worker.get("/events") == before
    worker = of(case.worker, forked["id"])
    events = worker.get("/events")["items"]
    assert [event["type"] for event in events] == ["run_created", "run_forked", "checkpoint_created"]
    source = next(event for event in before["items"] if event["seq"] == events[1]["payload"]["seq"])
    assert source["type"] == "checkpoint_created"
    assert (events[1]["payload"]["run"], events[1]["payload"]["digest"]) == (case.run, source["digest"])
    assert (events[1]["payload"]["checkpoint"], events[1]["payload"]["reason"]) == (3, "another try")
    assert (events[0]["input"], worker.get("/verify")["ok"]) == ({"batch": 1.10}, True)
    found = worker.get("/checkpoints/latest")
    assert (found["version"], found["head"], found["state"]) == (1, 1, {"rows": [1, 2], "note": "x" * 100})
    work = worker.http.post(
        "/work/claim", json={"worker": "w", "run_id": forked["id"], "queues": [worker.queue]}
    ).json()
    assert (work["run"]["input"], work["run"]["task_id"], work["run"]["head"]) == ({"batch": 1.10}, "T-1", 1)
    worker.lease, worker.epoch, worker.head = work["lease"], work["epoch"], 1
    worker.commit(checkpoint={"patch": [{"op": "add", "path": "/rows/-", "value": 3}]}, step={"outcome": "succeeded"})
    assert worker.get("/checkpoints/latest")["state"]["rows"] == [1, 2, 3]
    with tenant_scope(case.house.id):
        one, other = Run.objects.get(id=case.run), Run.objects.get(id=forked["id"])
    same = ("project_id", "agent_id", "subject_id", "labels", "versions", "agent_version", "task_digest", "data_key_id")
    assert [getattr(one, name) for name in same] == [getattr(other, name) for name in same]
    assert (str(other.forked_from), other.forked_version, other.steps_open) == (case.run, 3, 1)


def test_a_fork_of_an_older_checkpoint_has_the_plan_of_its_time(case: Case) -> None:
    forked = case.fork(checkpoint=1)
    # `fetch` succeeded in the commit that wrote checkpoint 1; `extra` was not planned yet.
    assert (forked["carried"], forked["checkpoint"]) == (["fetch"], 1)
    assert case.steps(forked["id"]) == {"fetch": "skipped", "match": "runnable", "pay": "blocked"}
    worker = of(case.worker, forked["id"])
    assert worker.get("/checkpoints/latest")["state"]["rows"] == [1]
    work = worker.http.post(
        "/work/claim", json={"worker": "w", "run_id": forked["id"], "queues": [worker.queue]}
    ).json()
    worker.lease, worker.epoch, worker.head = work["lease"], work["epoch"], 1
    worker.commit(new_steps=[{"name": "extra", "depends_on": ["match"], "queue": worker.queue}])


def test_a_fork_can_be_forked(case: Case) -> None:
    first = case.fork(checkpoint=1)
    case.run = first["id"]
    second = case.fork(key="again")
    assert second["carried"] == ["fetch"]
    assert case.steps(second["id"])["match"] == "runnable"


def test_another_plan(case: Case) -> None:
    forked = case.fork(steps=[{"name": "look"}, {"name": "tell", "depends_on": ["look"]}])
    assert (forked["carried"], case.steps(forked["id"])) == ([], {"look": "runnable", "tell": "blocked"})
    assert case.refused(steps=[{"name": "a", "depends_on": ["b"]}], key="x") == (422, "invalid")
    assert case.refused(steps=[], key="y") == (422, "invalid")
    assert case.refused(steps="all", key="z") == (422, "invalid")


def test_a_run_that_is_over_can_be_forked(case: Case) -> None:
    for _ in range(2):
        case.worker.claim()
        case.worker.commit(step={"outcome": "succeeded"})
    assert case.worker.get("")["run"]["status"] == "completed"
    assert case.fork(checkpoint=1)["carried"] == ["fetch"]


def test_nothing_left_to_do(case: Case) -> None:
    case.worker.claim()
    case.worker.commit(step={"outcome": "succeeded"})
    case.worker.claim()
    case.worker.commit(checkpoint={"state": {"rows": [], "note": "y" * 99}}, step={"outcome": "succeeded"})
    assert case.refused() == (422, "nothing_to_do")
    assert case.fork(steps=[{"name": "once"}], key="x")["checkpoint"] == 4


def test_the_same_key_forks_once(case: Case) -> None:
    assert case.fork() == case.fork()
    assert case.refused(checkpoint=1) == (422, "idempotency_key_reused")
    assert case.admin.post(f"/runs/{case.run}/fork", json={"reason": "r"}).json()["code"] == "idempotency_key_required"


def test_no_such_checkpoint_and_one_that_does_not_open(case: Case) -> None:
    assert case.refused(checkpoint=2) == (404, "not_found")  # the head of a change of the plan
    assert case.refused(checkpoint=9) == (404, "not_found")
    with tamperer() as disks:
        disks.execute("update runs_checkpoint set body = '\\x00' where run_id = %s and version = 3", [case.run])
    assert case.refused(checkpoint=3) == (409, "checkpoint_unreadable")
    forked = case.fork()
    assert (forked["checkpoint"], forked["skipped"]) == (1, [3])


def test_under_another_version_the_state_is_migrated(case: Case) -> None:
    patch = [{"op": "move", "from": "/rows", "path": "/invoices"}]
    case.admin.put(
        "/workflows/test/versions/2", json={"state_schema": 2, "migrations": [{"from": 1, "to": 2, "patch": patch}]}
    )
    assert case.refused(workflow_version="3") == (409, "incompatible_version")
    forked = case.fork(workflow_version="2")
    assert (forked["workflow_version"], forked["version_check"]["status"]) == ("2", "migrate")
    worker = of(case.worker, forked["id"])
    assert worker.get("/checkpoints/latest")["state"]["invoices"] == [1, 2]
    told = worker.get("/events")["items"][1]["payload"]
    assert told["migrations"] == [{"from": 1, "to": 2, "registered_in": "2"}]
    assert worker.get("/verify")["ok"]
    # The source was not touched; once it is migrated, its older checkpoints still count as what they were written by.
    assert case.admin.post(f"/runs/{case.run}/resume", json={"workflow_version": "2", "apply": True}).json()["applied"]
    old = case.fork(checkpoint=1, key="old")
    assert (old["workflow_version"], old["version_check"]["from_schema"], old["version_check"]["status"]) == (
        "1", 1, "compatible",
    )  # fmt: skip
    new = case.fork(key="new")
    assert (new["workflow_version"], new["version_check"]["from_schema"]) == ("2", 2)
    assert case.fork(checkpoint=1, workflow_version="2", key="both")["version_check"]["status"] == "migrate"


def test_when_the_migrated_state_is_damaged_the_one_before_it_is_migrated_again(case: Case) -> None:
    patch = [{"op": "move", "from": "/rows", "path": "/invoices"}]
    case.admin.put(
        "/workflows/test/versions/2", json={"state_schema": 2, "migrations": [{"from": 1, "to": 2, "patch": patch}]}
    )
    path = f"/runs/{case.run}/resume"
    assert case.admin.post(path, json={"workflow_version": "2", "apply": True}).json()["checkpoint"]["version"] == 4
    with tamperer() as disks:
        disks.execute("update runs_checkpoint set body = '\\x00' where run_id = %s and version = 4", [case.run])
    plan = case.admin.post(path).json()
    assert (plan["checkpoint"]["version"], plan["version_check"]["status"]) == (3, "migrate")
    assert "apply" in plan["advice"]
    assert case.admin.post(path, json={"apply": True}).json()["applied"] is True
    found = case.worker.get("/checkpoints/latest")
    assert (found["version"], found["state"]["invoices"], found["skipped"]) == (5, [1, 2], [])


def test_the_source_gets_an_audit_entry(case: Case) -> None:
    forked = case.fork()
    [entry] = case.admin.get("/audit", params={"action": "run.forked"}).json()["items"]
    assert (entry["target_id"], entry["content"]) == (
        case.run, {"new_run": forked["id"], "checkpoint": 3, "reason": "another try"},
    )  # fmt: skip


def test_an_erased_subject_stays_erased(case: Case) -> None:
    with tenant_scope(case.house.id):
        Subject.objects.update(key_epoch=2, erased_at=clock.now())
    for key in ("one", "two"):
        assert case.refused(key=key)[1] == "subject_erased"


def test_who_may(case: Case, other_house: House, api: Open) -> None:
    headers = {"Idempotency-Key": "k"}
    path, body = f"/runs/{case.run}/fork", {"reason": "r"}
    assert case.worker.http.post(path, json=body, headers=headers).status_code == 403
    assert api(other_house.keys["admin"]).post(path, json=body, headers=headers).status_code == 404
    operator = api(case.house.keys["operator"]).post(path, json=body, headers=headers)
    assert operator.status_code == 201
    assert api(other_house.keys["admin"]).get(f"/runs/{operator.json()['id']}").status_code == 404
