"""The commit operation through the API: all or nothing, once, under the current epoch, on the current head."""

import json
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from kernel import actor, clock
from kernel.context import tenant_scope
from kernel.pool import pool
from privacy.models import Subject
from runs import operations
from tenancy import operations as tenancy_ops
from tests.cast import House, client
from tests.runs.driver import Worker, tamperer


@pytest.fixture
def worker(house: House) -> Worker:
    worker = Worker(house)
    worker.start("first", "second")
    worker.claim()
    return worker


def problem(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


class TestOnce:
    def test_a_repeated_key_gets_the_same_answer_and_changes_nothing(self, worker: Worker) -> None:
        first = worker.commit(key="k", events=[{"type": "note", "payload": {"a": 1, "b": 2}}])
        assert worker.commit(key="k", events=[{"type": "note", "payload": {"a": 1, "b": 2}}]) == first
        assert worker.get("/events")["last_seq"] == first["last_seq"]

    def test_the_order_of_members_and_white_space_do_not_make_another_request(self, worker: Worker) -> None:
        body = {"lease": worker.lease, "epoch": 1, "events": [{"type": "note", "payload": {"a": 1, "b": 2}}]}
        turned = {"events": [{"payload": {"b": 2, "a": 1}, "type": "note"}], "epoch": 1, "lease": worker.lease}
        headers = {"Idempotency-Key": "k", "Content-Type": "application/json"}
        url = f"/runs/{worker.run}/commit"
        first = worker.http.post(url, content=json.dumps(body), headers=headers)
        again = worker.http.post(url, content=json.dumps(turned, indent=3), headers=headers)
        assert (first.status_code, first.json()) == (again.status_code, again.json())

    def test_the_same_key_with_another_value_is_refused(self, worker: Worker) -> None:
        worker.commit(key="k", events=[{"type": "note"}])
        answer = worker.call(key="k", lease=worker.lease, epoch=1, events=[{"type": "other"}])
        assert problem(answer) == (422, "idempotency_key_reused")

    def test_a_replay_is_answered_after_the_lease_and_the_run_are_over(self, worker: Worker) -> None:
        held: dict[str, Any] = {"lease": worker.lease, "epoch": worker.epoch}
        first = worker.commit(key="k", step={"outcome": "succeeded"})
        worker.claim()
        worker.commit(step={"outcome": "succeeded"})
        replay = worker.call(key="k", **held, step={"outcome": "succeeded"})
        assert (replay.status_code, replay.json()) == (200, first)

    def test_sixteen_racing_requests_with_one_key_are_one_commit(self, worker: Worker) -> None:
        before = worker.get("/events")["last_seq"]
        with ThreadPoolExecutor(16) as threads:
            answers = list(threads.map(lambda _: worker.commit(key="k", events=[{"type": "note"}]), range(16)))
        assert all(answer == answers[0] for answer in answers)
        assert worker.get("/events")["last_seq"] == before + 1


class TestFencing:
    def test_the_worker_before_is_refused_and_changes_nothing(self, worker: Worker) -> None:
        old: dict[str, Any] = {"lease": worker.lease, "epoch": worker.epoch}
        _run_out(worker.lease)
        assert operations.sweep() >= 1
        worker.claim()
        before = worker.get("/events")["last_seq"]
        answer = worker.call(**old, events=[{"type": "late"}], step={"outcome": "succeeded"})
        assert problem(answer) == (409, "stale_epoch")
        assert answer.json()["current_epoch"] == 2
        assert worker.get("/events")["last_seq"] == before

    def test_a_lease_that_ran_out_is_refused_before_anyone_took_it(self, worker: Worker) -> None:
        _run_out(worker.lease)
        answer = worker.call(lease=worker.lease, epoch=worker.epoch, events=[{"type": "late"}])
        assert problem(answer) == (409, "lease_expired")

    @pytest.mark.parametrize("epoch", [2, 7])
    def test_an_epoch_that_was_not_given_is_refused(self, worker: Worker, epoch: int) -> None:
        answer = worker.call(lease=worker.lease, epoch=epoch, events=[{"type": "note"}])
        assert problem(answer) == (409, "stale_epoch")

    def test_a_lease_of_another_run_is_unknown(self, worker: Worker, house: House) -> None:
        other = Worker(house)
        other.start("only")
        other.claim()
        answer = worker.call(lease=other.lease, epoch=1, events=[{"type": "note"}])
        assert problem(answer) == (404, "not_found")

    def test_a_cancelled_run_refuses_its_worker(self, worker: Worker, house: House) -> None:
        cancelled = client(house.keys["operator"]).post(f"/runs/{worker.run}/cancel", json={"reason": "enough"})
        assert cancelled.status_code == 204
        answer = worker.call(lease=worker.lease, epoch=1, events=[{"type": "note"}])
        assert problem(answer) == (409, "run_finished")
        beat = worker.http.post(f"/work/{worker.lease}/heartbeat", json={"epoch": 1})
        assert problem(beat) == (409, "lease_lost")
        assert worker.get("/verify")["ok"]


class TestHead:
    def test_a_stale_head_is_refused_with_the_current_one(self, worker: Worker) -> None:
        worker.commit(checkpoint={"state": {"n": 1}})
        answer = worker.call(lease=worker.lease, epoch=1, head=0, checkpoint={"state": {"n": 2}})
        assert problem(answer) == (409, "stale_head")
        assert answer.json()["head"] == 1
        assert worker.get("/checkpoints/latest")["state"] == {"n": 1}

    def test_a_plan_change_moves_the_head(self, worker: Worker) -> None:
        assert worker.commit(new_steps=[{"name": "third"}])["head"] == 1

    @pytest.mark.parametrize("patch", [
        [{"op": "add", "path": "/n/-", "value": 1}],
        [{"op": "replace", "path": "/missing", "value": 1}],
        [{"op": "remove", "path": "/missing"}],
        [{"op": "add", "path": "/missing/deep", "value": 1}],
        [{"op": "test", "path": "/n", "value": 2}],
    ])  # fmt: skip
    def test_a_patch_that_does_not_fit_is_refused_whole(self, worker: Worker, patch: list[Any]) -> None:
        worker.commit(checkpoint={"state": {"n": 1}})
        good = {"op": "add", "path": "/rows", "value": []}
        answer = worker.call(lease=worker.lease, epoch=1, head=1, checkpoint={"patch": [good, *patch]})
        assert problem(answer) == (409, "patch_conflict")
        assert worker.get("/checkpoints/latest")["state"] == {"n": 1}

    def test_parallel_steps_write_events_without_a_head(self, house: House) -> None:
        one, two = Worker(house), Worker(house)
        two.queue = one.queue
        body = {"workflow": "t", "workflow_version": "1", "steps": [{"name": n, "queue": one.queue} for n in "ab"]}
        one.run = two.run = one.http.post("/runs", json=body, headers={"Idempotency-Key": one.queue}).json()["id"]
        one.claim(), two.claim()
        with ThreadPoolExecutor(16) as threads:
            list(threads.map(lambda i: (one, two)[i % 2].commit(events=[{"type": "note"}] * (1 + i % 3)), range(60)))
        found = one.get("/verify")
        assert (found["ok"], found["last_seq"]) == (True, 4 + sum(1 + i % 3 for i in range(60)))


class TestParts:
    @pytest.mark.parametrize("parts", [
        {},
        {"events": []},
        {"checkpoint": {"state": {}}, "head": 0},
        {"step": {"outcome": "succeeded"}},
        {"run": {"outcome": "failed"}},
    ])  # fmt: skip
    def test_without_a_lease_only_events_are_taken(self, worker: Worker, parts: dict[str, Any]) -> None:
        assert problem(worker.call(**parts)) == (422, "invalid_commit")
        assert worker.call(events=[{"type": "logged"}]).status_code == 200

    @pytest.mark.parametrize("parts", [
        {"checkpoint": {}, "head": 0},
        {"checkpoint": {"state": {}, "patch": []}, "head": 0},
        {"checkpoint": {"state": []}, "head": 0},
        {"checkpoint": {"state": {}}},
        {"step": {"outcome": "failed"}},
        {},
    ])  # fmt: skip
    def test_parts_that_contradict_each_other_are_refused(self, worker: Worker, parts: dict[str, Any]) -> None:
        assert problem(worker.call(lease=worker.lease, epoch=1, **parts)) == (422, "invalid_commit")

    @pytest.mark.parametrize("kind", ["run_created", "step_done", "lease_x", "checkpoint_created", "Tool", "a b", ""])
    def test_event_types_of_the_platform_cannot_be_written(self, worker: Worker, kind: str) -> None:
        assert problem(worker.call(lease=worker.lease, epoch=1, events=[{"type": kind}]))[0] == 422

    def test_a_plan_that_does_not_fit_is_refused(self, worker: Worker) -> None:
        for steps in (
            [{"name": "first"}],
            [{"name": "x", "depends_on": ["nowhere"]}],
            [{"name": "x", "depends_on": ["x"]}],
        ):
            answer = worker.call(lease=worker.lease, epoch=1, head=0, new_steps=steps)
            assert problem(answer) == (409, "plan_conflict")
        assert len(worker.get("")["steps"]) == 2

    def test_an_event_may_name_another_step_but_not_an_unknown_one(self, worker: Worker) -> None:
        worker.commit(events=[{"type": "note", "step": "second"}])
        assert worker.get("/events")["items"][-1]["step"] == "second"
        answer = worker.call(lease=worker.lease, epoch=1, events=[{"type": "note", "step": "nowhere"}])
        assert problem(answer) == (409, "plan_conflict")


class TestEnds:
    def test_a_run_completes_with_its_last_step_and_keeps_its_output(self, worker: Worker) -> None:
        early = worker.call(lease=worker.lease, epoch=1, step={"outcome": "succeeded"}, run={"outcome": "completed"})
        assert problem(early) == (409, "steps_open")
        done = worker.commit(step={"outcome": "succeeded"})
        assert (done["runnable"], done["run_status"]) == (["second"], "running")
        worker.claim()
        done = worker.commit(step={"outcome": "succeeded"}, run={"outcome": "completed", "output": {"total": "7.10"}})
        assert done["run_status"] == "completed"
        assert worker.get("/events")["items"][-1]["output"] == {"total": "7.10"}
        assert worker.get("/verify")["ok"]

    @pytest.mark.parametrize(("kind", "step", "run"), [
        ("transient", "waiting", "waiting"),
        ("rate_limited", "waiting", "waiting"),
        ("permanent", "dead_letter", "dead_letter"),
        ("unknown_outcome", "dead_letter", "dead_letter"),
        ("business_rejection", "failed", "failed"),
    ])  # fmt: skip
    def test_a_failure_takes_the_path_of_its_class(self, worker: Worker, kind: str, step: str, run: str) -> None:
        error = {"class": kind, "message": "no", "retry_after": 40}
        worker.commit(step={"outcome": "failed", "error": error})
        found = worker.get("")
        assert (found["steps"][0]["status"], found["run"]["status"]) == (step, run)
        if step == "waiting":
            assert found["wait"]["reason"] == "retry"
        assert worker.get("/verify")["ok"]

    def test_a_run_is_not_completed_by_saying_so(self, worker: Worker) -> None:
        answer = worker.call(lease=worker.lease, epoch=1, events=[{"type": "note"}], run={"outcome": "completed"})
        assert problem(answer) == (422, "invalid_commit")
        assert worker.get("")["run"]["status"] == "running"

    def test_a_run_can_fail_with_its_last_step_done(self, house: House) -> None:
        worker = Worker(house)
        worker.start("only")
        worker.claim()
        done = worker.commit(
            step={"outcome": "succeeded"}, run={"outcome": "failed", "output": {"why": "totals differ"}}
        )
        assert done["run_status"] == "failed"
        assert worker.get("/events")["items"][-1]["type"] == "run_failed"
        assert worker.get("/verify")["ok"]

    def test_a_plan_of_thousands_of_steps_is_taken(self, house: House) -> None:
        worker = Worker(house)
        steps = [f"s{i}" for i in range(5000)]
        worker.start(*steps)
        assert worker.claim()["step"]["name"] == "s0"
        assert worker.get("")["run"]["steps_total"] == 5000

    def test_attempts_run_out_into_the_dead_letter(self, house: House) -> None:
        worker = Worker(house)
        body = {
            "workflow": "t", "workflow_version": "1",
            "steps": [{"name": "a", "queue": worker.queue, "max_attempts": 2}, {"name": "b", "depends_on": ["a"]}],
        }  # fmt: skip
        worker.run = worker.http.post("/runs", json=body, headers={"Idempotency-Key": worker.queue}).json()["id"]
        for _ in range(2):
            worker.claim()
            _run_out(worker.lease)
            operations.sweep()
        found = worker.get("")
        assert [step["status"] for step in found["steps"]] == ["dead_letter", "blocked"]
        assert (found["run"]["status"], found["wait"]["reason"]) == ("dead_letter", "dead_letter")
        assert worker.get("/verify")["ok"]

    @pytest.mark.parametrize(("table", "start", "target"), [
        ("runs_run", "completed", "running"), ("runs_run", "completed", "pending"), ("runs_run", "completed", "nonsense"),
        ("runs_step", "succeeded", "runnable"), ("runs_step", "succeeded", "leased"),
    ])  # fmt: skip
    def test_the_database_refuses_other_moves(
        self, worker: Worker, house: House, table: str, start: str, target: str
    ) -> None:
        worker.commit(step={"outcome": "succeeded"})
        worker.claim()
        worker.commit(step={"outcome": "succeeded"})
        with pool().connection() as connection, connection.transaction(force_rollback=True):
            connection.execute("select smriti_enter(%s)", [house.id])
            move = f"update {table} set status = %s where status = %s".encode()
            with pytest.raises(psycopg.errors.CheckViolation):
                connection.execute(move, [target, start])


class TestKeys:
    def test_a_revoked_key_is_refused_at_once(self, worker: Worker, house: House) -> None:
        worker.commit(events=[{"type": "note"}])
        with tenant_scope(house.id):
            tenancy_ops.revoke_key(
                tenant=house.id, key_id=house.key_ids["agent"], actor=actor.system("tests"), now=clock.now()
            )
        answer = worker.call(lease=worker.lease, epoch=1, events=[{"type": "note"}])
        assert problem(answer) == (401, "unauthorized")

    def test_a_key_bound_to_an_agent_does_not_reach_other_runs(self, house: House) -> None:
        worker = Worker(house, key="admin")
        worker.start("only")
        worker.claim()
        bound = client(house.keys["agent"])
        url = f"/runs/{worker.run}/commit"
        event = {"lease": worker.lease, "epoch": 1, "events": [{"type": "note"}]}
        assert bound.post(url, json=event, headers={"Idempotency-Key": "k"}).status_code == 404
        assert bound.get(f"/runs/{worker.run}").status_code == 404
        assert bound.post("/work/claim", json={"worker": "w", "queues": [worker.queue]}).status_code == 204

    def test_an_erased_subject_takes_nothing_new(self, house: House) -> None:
        worker = Worker(house)
        worker.start("only", subject="asha")
        worker.claim()
        worker.commit(events=[{"type": "note"}])
        with tenant_scope(house.id):
            Subject.objects.update(key_epoch=2, erased_at=clock.now())
        answer = worker.call(lease=worker.lease, epoch=1, events=[{"type": "note"}])
        assert problem(answer) == (410, "subject_erased")
        body = {"workflow": "t", "workflow_version": "1", "steps": [{"name": "a"}], "subject": "asha"}
        again = worker.http.post("/runs", json=body, headers={"Idempotency-Key": uuid.uuid4().hex})
        assert problem(again) == (410, "subject_erased")

    def test_a_raised_key_epoch_is_followed(self, house: House) -> None:
        worker = Worker(house)
        worker.start("only", subject="ravi")
        worker.claim()
        with tenant_scope(house.id):
            Subject.objects.update(key_epoch=2)
        worker.commit(events=[{"type": "note"}])
        assert worker.get("/verify")["ok"]


def _run_out(lease: str) -> None:
    with tamperer() as connection:
        connection.execute("update runs_attempt set expires_at = now() - interval '1 second' where id = %s", [lease])
