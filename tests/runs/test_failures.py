"""What becomes of failures: each class on its path, the dead letter and every way out of it, and cancellation with a grace."""

from datetime import datetime
from typing import Any

import pytest

from runs import operations
from tests.cast import House, client
from tests.runs.driver import Worker, pass_time, register, settle, tamperer


def start(house: House, *steps: dict[str, Any], **extra: Any) -> Worker:
    """A worker whose run has these steps, without a lease."""
    worker = Worker(house)
    plan = [{"queue": worker.queue, **step} for step in steps]
    body = {"workflow": "t", "workflow_version": "1", "steps": plan, **extra}
    answer = worker.http.post("/runs", json=body, headers={"Idempotency-Key": worker.queue})
    assert answer.status_code == 201, answer.text
    worker.run = answer.json()["id"]
    return worker


def fail(worker: Worker, kind: str = "transient", **error: Any) -> dict[str, Any]:
    return worker.commit(step={"outcome": "failed", "error": {"class": kind, **error}})


def recover(house: House, worker: Worker, action: str, *, key: str = "operator", **extra: Any) -> Any:
    with client(house.keys[key]) as operator:
        return operator.post(f"/runs/{worker.run}/recover", json={"action": action, "reason": "I say so", **extra})


def cancel(house: House, worker: Worker, grace: float) -> None:
    with client(house.keys["operator"]) as operator:
        answer = operator.post(f"/runs/{worker.run}/cancel", json={"reason": "stop", "grace_seconds": grace})
    assert answer.status_code == 204, answer.text


def labels(worker: Worker, kind: str) -> list[dict[str, str]]:
    return [event["labels"] for event in worker.get("/events?limit=1000")["items"] if event["type"] == kind]


def delay(worker: Worker, name: str = "a") -> float:
    """Seconds from the failure to the next attempt, as the log tells them."""
    failed = [event for event in worker.get("/events?limit=1000")["items"] if event["type"] == "step_failed"][-1]
    due = worker.step(name)["due_at"]
    assert labels(worker, "step_retry_scheduled")[-1]["due_at"] == due.replace("+00:00", "Z")
    return (datetime.fromisoformat(due) - datetime.fromisoformat(failed["recorded_at"])).total_seconds()


class TestClasses:
    def test_transient_failures_back_off_with_jitter_until_attempts_are_used_up(self, house: House) -> None:
        retry = {"initial_seconds": 10, "factor": 3, "max_seconds": 50}
        worker = start(house, {"name": "a", "max_attempts": 5, "retry": retry})
        delays = []
        for attempt in range(1, 6):
            assert worker.claim()["step"] == {"name": "a", "attempt": attempt, "max_attempts": 5}
            done = fail(worker, message="the line was cut")
            if attempt < 5:
                assert done["run_status"] == "waiting"
                delays.append(delay(worker))
                assert labels(worker, "step_retry_scheduled")[-1]["attempt"] == str(attempt + 1)
                pass_time(worker.run)
        for seconds, most in zip(delays, (10, 30, 50, 50), strict=True):
            assert 0 <= seconds <= most
        assert done["run_status"] == "dead_letter"
        assert labels(worker, "step_failed") == [{"class": "transient"}] * 5
        assert labels(worker, "step_dead_letter") == [{"reason": "attempts_exhausted"}]
        run = worker.get("")
        assert (run["wait"]["reason"], run["wait"]["step"]) == ("dead_letter", "a")
        assert worker.get("/verify")["ok"]

    def test_the_jitter_is_spread_over_the_whole_range(self, house: House) -> None:
        retry = {"initial_seconds": 1000, "factor": 1, "max_seconds": 1000}
        worker = start(house, {"name": "a", "max_attempts": 30, "retry": retry})
        delays = []
        for _ in range(12):
            worker.claim()
            fail(worker)
            delays.append(delay(worker))
            pass_time(worker.run)
        assert 0 <= min(delays) < 500 < max(delays) <= 1000

    def test_a_providers_word_is_a_lower_bound(self, house: House) -> None:
        worker = start(house, {"name": "a", "retry": {"initial_seconds": 5, "factor": 1, "max_seconds": 5}})
        worker.claim()
        fail(worker, "rate_limited", retry_after=300)
        assert 300 <= delay(worker) <= 305
        operations.sweep()
        assert worker.idle()

    def test_an_immediate_retry_is_possible(self, house: House) -> None:
        worker = start(house, {"name": "a", "retry": {"initial_seconds": 0}})
        worker.claim()
        fail(worker)
        assert delay(worker) == 0
        operations.sweep()
        assert worker.claim()["wake"] == {"reason": "retry"}

    def test_permanent_goes_to_the_dead_letter_at_once(self, house: House) -> None:
        worker = start(house, {"name": "a"}, {"name": "b", "depends_on": ["a"]}, {"name": "c"})
        worker.claim()
        assert fail(worker, "permanent", message="no such account")["run_status"] == "dead_letter"
        assert worker.types()[-3:] == ["step_failed", "step_dead_letter", "run_dead_letter"]
        assert labels(worker, "step_dead_letter") == [{"reason": "permanent"}]
        statuses = {name: worker.step(name)["status"] for name in "abc"}
        assert statuses == {"a": "dead_letter", "b": "blocked", "c": "blocked"}
        assert worker.idle(), "nothing of it can be claimed"

    def test_a_business_no_ends_the_run(self, house: House) -> None:
        worker = start(house, {"name": "a"}, {"name": "b", "depends_on": ["a"]})
        worker.claim()
        assert fail(worker, "business_rejection")["run_status"] == "failed"
        assert (worker.step("a")["status"], worker.step("b")["status"]) == ("failed", "skipped")
        assert recover(house, worker, "retry").json()["code"] == "not_in_dead_letter"

    def test_an_unknown_outcome_without_an_effect_is_an_operators(self, house: House) -> None:
        worker = start(house, {"name": "a"})
        worker.claim()
        assert fail(worker, "unknown_outcome")["run_status"] == "dead_letter"
        assert labels(worker, "step_dead_letter") == [{"reason": "unknown_outcome"}]

    def test_an_unknown_outcome_is_tried_again_to_reconcile_when_that_can_be(self, house: House) -> None:
        register(house, execute_seconds=60, reconcile={"settle_seconds": 100})
        worker = start(house, {"name": "a"})
        worker.claim()
        effect = worker.reserve()["effect"]
        fail(worker, "unknown_outcome")
        assert worker.status() == ("waiting", "retry")
        assert delay(worker) > 150
        pass_time(worker.run)
        assert worker.claim()["step"]["attempt"] == 2
        assert worker.reserve()["decision"] == "reconcile"
        settle(effect)
        assert worker.reconcile(effect, "failed").is_success
        assert worker.reserve()["decision"] == "execute"

    def test_an_unknown_outcome_that_a_probe_finds_out_waits_for_it(self, house: House) -> None:
        register(house, reconcile={"probe_url": "https://bank.example/{key}"})
        worker = start(house, {"name": "a"})
        worker.claim()
        worker.reserve()
        fail(worker, "unknown_outcome")
        assert worker.status() == ("waiting", "reconciliation")
        assert labels(worker, "step_retry_scheduled") == [{"attempt": "2", "for": "reconciliation"}]
        pass_time(worker.run)
        assert worker.status() == ("waiting", "reconciliation"), "time alone finds nothing out"

    @pytest.mark.parametrize("retry_after", [0, 300])
    def test_finding_out_ends_a_retrys_wait_but_not_a_providers(self, house: House, retry_after: int) -> None:
        register(house, execute_seconds=60, reconcile={"settle_seconds": 100})
        worker = start(house, {"name": "a", "retry": {"initial_seconds": 50, "factor": 1, "max_seconds": 50}})
        worker.claim()
        effect = worker.reserve()["effect"]
        fail(worker, "rate_limited" if retry_after else "transient", **({"retry_after": 300} if retry_after else {}))
        with client(house.keys["operator"]) as operator:
            found = {"result": "succeeded", "reason": "the statement shows it"}
            assert operator.post(f"/effects/{effect}/reconcile", json=found).is_success
        assert worker.status() == (("waiting", "retry") if retry_after else ("running", None))

    def test_the_error_is_in_the_log(self, house: House) -> None:
        worker = start(house, {"name": "a"})
        worker.claim()
        fail(worker, "rate_limited", message="slow down", retry_after=1)
        (event,) = [row for row in worker.get("/events")["items"] if row["type"] == "step_failed"]
        assert event["labels"] == {"class": "rate_limited"}
        assert event["error"]["message"] == "slow down"


class TestDeadlines:
    def test_no_retry_begins_after_the_deadline_of_a_step(self, house: House) -> None:
        worker = start(house, {"name": "a", "max_attempts": 1000, "deadline_seconds": 100})
        worker.claim()
        assert fail(worker, "rate_limited", retry_after=101)["run_status"] == "dead_letter"
        assert labels(worker, "step_dead_letter") == [{"reason": "deadline"}]

    def test_a_lease_that_is_lost_after_the_deadline_is_not_followed_by_another(self, house: House) -> None:
        worker = start(house, {"name": "a", "deadline_seconds": 100})
        worker.claim()
        with tamperer() as database:
            database.execute(
                "update runs_step set started_at = started_at - interval '101 s' where run_id = %s", [worker.run]
            )
        worker.lose()
        assert worker.status() == ("dead_letter", None)
        assert labels(worker, "step_dead_letter") == [{"reason": "deadline"}]

    def test_a_heartbeat_does_not_extend_beyond_it(self, house: House) -> None:
        worker = start(house, {"name": "a", "deadline_seconds": 100})
        first = worker.claim(seconds=10)["expires_at"]
        kept = worker.http.post(f"/work/{worker.lease}/heartbeat", json={"epoch": 1, "lease_seconds": 3600}).json()
        extended = datetime.fromisoformat(kept["expires_at"]) - datetime.fromisoformat(first)
        assert 85 < extended.total_seconds() <= 91

    def test_a_run_has_a_deadline_too(self, house: House) -> None:
        worker = start(house, {"name": "a"}, {"name": "b"}, deadline_seconds=100)
        worker.claim()
        with tamperer() as database:
            database.execute("update runs_run set deadline_at = clock_timestamp() where id = %s", [worker.run])
        operations.sweep()
        assert worker.status() == ("dead_letter", None)
        assert labels(worker, "run_dead_letter") == [{"reason": "deadline"}]
        refused = worker.call(lease=worker.lease, epoch=worker.epoch, step={"outcome": "succeeded"})
        assert refused.json()["code"] == "run_finished"
        assert recover(house, worker, "resume").json() == {"run_status": "pending"}
        for _ in "ab":
            worker.claim()
            done = worker.commit(step={"outcome": "succeeded"})
        assert done["run_status"] == "completed"
        assert worker.get("/verify")["ok"]


class TestPoison:
    def test_a_step_that_kills_its_workers_ends_in_the_dead_letter(self, house: House) -> None:
        register(house)
        worker = start(house, {"name": "a", "max_attempts": 3})
        for attempt in (1, 2, 3):
            work = worker.claim()
            assert work["step"]["attempt"] == attempt
            if attempt == 1:
                worker.reserve()
            worker.lose()
        assert worker.status() == ("dead_letter", None)
        assert worker.types().count("lease_lost") == 3
        assert labels(worker, "step_dead_letter") == [{"reason": "attempts_exhausted"}]
        (effect,) = worker.effects()
        assert (effect["status"], effect["owner"]) == ("unknown", "operator")
        assert [row["outcome"] for row in worker.get("")["attempts"]] == ["lost"] * 3
        assert worker.get("/verify")["ok"]


class TestRecovery:
    @pytest.fixture
    def worker(self, house: House) -> Worker:
        """A run whose first step of three is in the dead letter; the second depends on it."""
        register(house)
        worker = start(house, {"name": "a", "max_attempts": 1}, {"name": "b", "depends_on": ["a"]}, {"name": "c"})
        worker.claim()
        fail(worker)
        return worker

    def finish(self, worker: Worker) -> list[str]:
        """Everything that can be done is done; the names of the steps, in order."""
        names = []
        while (answer := self.ask(worker)) is not None:
            names.append(answer["step"]["name"])
            worker.commit(step={"outcome": "succeeded"})
        return names

    def ask(self, worker: Worker) -> Any:
        answer = worker.http.post("/work/claim", json={"worker": "w", "queues": [worker.queue]})
        if answer.status_code == 204:
            return None
        work = answer.json()
        worker.lease, worker.epoch = work["lease"], work["epoch"]
        return work

    def audited(self, house: House, action: str) -> list[Any]:
        with client(house.keys["admin"]) as admin:
            items = admin.get("/audit").json()["items"]
        return [entry["content"] for entry in items if entry["action"] == action]

    @pytest.mark.parametrize("action", ["retry", "resume"])
    def test_what_is_tried_again_completes(self, house: House, worker: Worker, action: str) -> None:
        assert recover(house, worker, action).json() == {"run_status": "pending"}
        assert self.ask(worker)["step"]["name"] == "c"
        worker.commit(step={"outcome": "succeeded"})
        work = self.ask(worker)
        assert (work["wake"], work["step"]["attempt"], work["epoch"]) == ({"reason": "operator"}, 1, 2)
        worker.commit(step={"outcome": "succeeded"})
        assert self.finish(worker) == ["b"]
        assert worker.status() == ("completed", None)
        (event,) = [row for row in worker.get("/events?limit=1000")["items"] if row["type"] == "run_recovered"]
        assert (event["labels"], event["reason"], event["actor_kind"], event["actor_id"]) == (
            {"action": action}, "I say so", "key", str(house.key_ids["operator"]),
        )  # fmt: skip
        assert self.audited(house, "run.recovered") == [{"action": action, "step": None, "reason": "I say so"}]
        assert worker.get("/verify")["ok"]

    def test_skipped_its_dependents_go_on_and_the_run_completes(self, house: House, worker: Worker) -> None:
        assert recover(house, worker, "skip", step="a").json() == {"run_status": "pending"}
        assert worker.step("a")["status"] == "skipped"
        assert sorted(self.finish(worker)) == ["b", "c"]
        assert worker.status() == ("completed", None)
        assert self.audited(house, "run.recovered") == [{"action": "skip", "step": "a", "reason": "I say so"}]
        assert worker.get("/verify")["ok"]

    def test_skipping_the_last_step_completes_the_run(self, house: House) -> None:
        worker = start(house, {"name": "a", "max_attempts": 1})
        worker.claim()
        fail(worker)
        assert recover(house, worker, "skip").json() == {"run_status": "completed"}
        assert worker.types()[-2:] == ["step_skipped", "run_completed"]
        assert worker.get("/verify")["ok"]

    def test_cancelled_it_is_over(self, house: House, worker: Worker) -> None:
        assert recover(house, worker, "cancel").json() == {"run_status": "cancelled"}
        assert worker.status() == ("cancelled", None)
        assert self.ask(worker) is None
        assert self.audited(house, "run.cancelled") == [{"reason": "I say so"}]
        again = recover(house, worker, "cancel")
        assert (again.status_code, again.json()["code"]) == (409, "run_finished")

    def test_it_may_die_again_and_be_recovered_again(self, house: House, worker: Worker) -> None:
        for _ in range(3):
            recover(house, worker, "retry")
            while self.ask(worker)["step"]["name"] != "a":
                worker.commit(step={"outcome": "succeeded"})
            assert fail(worker)["run_status"] == "dead_letter"
        assert worker.types().count("run_recovered") == 3
        assert worker.get("/verify")["ok"]

    def test_a_step_that_did_not_stop_is_not_recovered(self, house: House, worker: Worker) -> None:
        for name in ("b", "nothing"):
            answer = recover(house, worker, "retry", step=name)
            assert (answer.status_code, answer.json()["code"]) == (409, "plan_conflict")
        assert worker.status() == ("dead_letter", None)

    def test_an_effect_that_failed_for_good_may_be_tried_again_by_an_operator(self, house: House) -> None:
        register(house)
        worker = start(house, {"name": "a"})
        worker.claim()
        first = worker.reserve()
        worker.close(first["effect"], "failed", error={"class": "permanent"})
        fail(worker, "permanent")
        recover(house, worker, "retry")
        worker.claim()
        second = worker.reserve()
        assert (second["decision"], second["effect"], second["key"]) == ("execute", first["effect"], first["key"])

    def test_what_is_unknown_must_be_found_out_before_it_is_skipped_or_undone(self, house: House) -> None:
        register(house)
        worker = start(house, {"name": "a"}, {"name": "b"})
        worker.claim()
        effect = worker.reserve()["effect"]
        fail(worker, "permanent")
        for action in ("skip", "compensate"):
            answer = recover(house, worker, action)
            assert (answer.status_code, answer.json()["code"], answer.json()["effect"]) == (
                409,
                "effects_open",
                effect,
            )
        with client(house.keys["operator"]) as operator:
            body = {"result": "succeeded", "reason": "the statement shows it"}
            assert operator.post(f"/effects/{effect}/reconcile", json=body).is_success
        assert worker.status() == ("dead_letter", None)
        assert recover(house, worker, "skip").json() == {"run_status": "pending"}
        assert self.finish(worker) == ["b"]
        assert worker.get("/verify")["ok"]

    def test_only_a_dead_letter_is_recovered(self, house: House) -> None:
        worker = start(house, {"name": "a"})
        for action in ("retry", "resume", "skip", "compensate"):
            answer = recover(house, worker, action)
            assert (answer.status_code, answer.json()["code"], answer.json()["run_status"]) == (
                409,
                "not_in_dead_letter",
                "pending",
            )

    def test_agents_may_not_and_other_tenants_cannot(self, house: House, other_house: House, worker: Worker) -> None:
        assert recover(house, worker, "retry", key="agent").status_code == 403
        for action in ("retry", "cancel"):
            assert recover(other_house, worker, action).status_code == 404
        with client(house.keys["agent"]) as agent:
            assert agent.post("/runs/recover", json={"action": "retry", "reason": "x"}).status_code == 403
        with client(other_house.keys["operator"]) as stranger:
            bulk = stranger.post("/runs/recover", json={"action": "cancel", "reason": "x"})
            assert bulk.json() == {"results": {}, "left": 0, "next_after": None}
            bulk = stranger.post("/runs/recover", json={"action": "cancel", "reason": "x", "after": worker.run})
            assert (bulk.status_code, bulk.json()["errors"][0]["path"]) == (422, "/after")
        assert worker.status() == ("dead_letter", None)

    def test_many_are_recovered_by_a_filter_in_pieces(self, house: House) -> None:
        register(house)
        runs = []
        for number in range(5):
            worker = start(house, {"name": "a"}, workflow="wanted" if number else "other")
            worker.claim()
            if number in (1, 4):
                worker.reserve()
            fail(worker, "permanent")
            runs.append(worker)
        body = {"action": "skip", "reason": "all of them", "workflow": "wanted", "limit": 3}
        with client(house.keys["operator"]) as operator:
            first = operator.post("/runs/recover", json=body).json()
            assert (first["left"], first["next_after"]) == (1, runs[3].run)
            assert list(first["results"].values()) == ["effects_open", "completed", "completed"]
            second = operator.post("/runs/recover", json={**body, "after": first["next_after"]}).json()
        assert (second["left"], second["next_after"]) == (0, None)
        assert second["results"] == {runs[4].run: "effects_open"}
        assert runs[0].status() == ("dead_letter", None)
        assert len(self.audited(house, "run.recovered")) == 2


class TestCompensation:
    @pytest.fixture
    def worker(self, house: House) -> Worker:
        """A run that paid two invoices and died."""
        register(house, "refund", business_key=None, retry={"max_attempts": 2, "initial_seconds": 0})
        register(house, compensation={"tool": "refund", "input": {"transaction": "{output/id}"}})
        worker = start(house, {"name": "a"}, {"name": "b", "depends_on": ["a"]}, {"name": "c", "depends_on": ["b"]})
        for number in (1, 2):
            worker.claim()
            paid = worker.reserve(input={"invoice": f"INV-{number}"})
            worker.close(paid["effect"], output={"id": f"TX-{number}"})
            worker.commit(step={"outcome": "succeeded"})
        worker.claim()
        fail(worker, "permanent")
        return worker

    def undo(self, worker: Worker) -> tuple[str, dict[str, Any]]:
        """The effect that the next step undoes, and the decision."""
        undone: str = worker.claim()["compensates"]
        return undone, worker.reserve(None, input=None, compensates=undone)

    def test_everything_is_undone_the_newest_first(self, house: House, worker: Worker) -> None:
        assert recover(house, worker, "compensate").json() == {"run_status": "pending"}
        found = []
        for _ in range(2):
            _, decided = self.undo(worker)
            assert decided["decision"] == "execute"
            found.append(decided["input"]["transaction"])
            worker.close(decided["effect"])
            done = worker.commit(step={"outcome": "succeeded"})
        assert found == ["TX-2", "TX-1"]
        assert done["run_status"] == "cancelled"
        assert sorted(row["status"] for row in worker.effects()) == [
            "compensated",
            "compensated",
            "succeeded",
            "succeeded",
        ]
        assert worker.get("/verify")["ok"]

    def test_a_compensation_that_fails_is_tried_again_by_an_operator(self, house: House, worker: Worker) -> None:
        recover(house, worker, "compensate")
        undone, decided = self.undo(worker)
        worker.close(decided["effect"], "failed", error={"class": "permanent"})
        assert {row["id"]: row["status"] for row in worker.effects()}[undone] == "compensation_failed"
        assert fail(worker, "permanent")["run_status"] == "dead_letter"
        assert recover(house, worker, "compensate").json() == {"run_status": "pending"}
        for _ in range(2):
            again, second = self.undo(worker)
            assert second["decision"] == "execute", second
            assert again != undone or second["effect"] == decided["effect"], "one compensation for each effect"
            worker.close(second["effect"])
            done = worker.commit(step={"outcome": "succeeded"})
        assert done["run_status"] == "cancelled"
        assert sorted(row["status"] for row in worker.effects()) == [
            "compensated",
            "compensated",
            "succeeded",
            "succeeded",
        ]
        assert worker.get("/verify")["ok"]

    def test_it_may_also_be_retried_as_a_step(self, house: House, worker: Worker) -> None:
        recover(house, worker, "compensate")
        undone, decided = self.undo(worker)
        worker.close(decided["effect"], "failed", error={"class": "permanent"})
        fail(worker, "permanent")
        # The step that stopped before the compensation was skipped by it: only this one is in the dead letter.
        assert recover(house, worker, "retry").json() == {"run_status": "pending"}
        again, second = self.undo(worker)
        assert (again, second["decision"]) == (undone, "execute")
        worker.close(second["effect"])
        worker.commit(step={"outcome": "succeeded"})
        _, third = self.undo(worker)
        worker.close(third["effect"])
        assert worker.commit(step={"outcome": "succeeded"})["run_status"] == "cancelled"

    def test_nothing_is_undone_twice(self, house: House, worker: Worker) -> None:
        recover(house, worker, "compensate")
        undone, decided = self.undo(worker)
        worker.close(decided["effect"])
        again = worker.reserve(None, input=None, compensates=undone)
        assert again["decision"] == "already_done"

    def test_an_unknown_compensation_is_reconciled(self, house: House, worker: Worker) -> None:
        recover(house, worker, "compensate")
        undone, decided = self.undo(worker)
        worker.lose()
        _, again = self.undo(worker)
        assert again["decision"] == "reconcile"
        assert worker.reconcile(decided["effect"], "succeeded").is_success
        assert {row["id"]: row["status"] for row in worker.effects()}[undone] == "compensated"

    def test_a_run_without_anything_to_undo_is_cancelled_at_once(self, house: House) -> None:
        worker = start(house, {"name": "a"})
        worker.claim()
        fail(worker, "permanent")
        assert recover(house, worker, "compensate").json() == {"run_status": "cancelled"}
        assert worker.get("/verify")["ok"]


class TestGracefulCancellation:
    @pytest.fixture
    def worker(self, house: House) -> Worker:
        register(house)
        worker = start(house, {"name": "a"}, {"name": "b", "depends_on": ["a"]}, {"name": "c"}, {"name": "d"})
        worker.claim()
        return worker

    def beat(self, worker: Worker) -> Any:
        return worker.http.post(f"/work/{worker.lease}/heartbeat", json={"epoch": worker.epoch, "lease_seconds": 600})

    def test_workers_are_told_and_nothing_new_begins(self, house: House, worker: Worker) -> None:
        assert self.beat(worker).json()["cancel_requested"] is False
        cancel(house, worker, 60)
        told = self.beat(worker).json()
        assert told["cancel_requested"] is True
        assert told["cancel_at"] is not None
        assert worker.status()[0] == "running"
        assert worker.idle()
        assert worker.commit(new_steps=[{"name": "e", "queue": worker.queue}])["runnable"] == []
        assert worker.idle()
        done = worker.commit(step={"outcome": "succeeded"})
        assert done["runnable"] == []
        assert worker.idle()

    def test_an_outcome_within_the_grace_is_accepted_and_the_run_ends_early(self, house: House, worker: Worker) -> None:
        effect = worker.reserve()["effect"]
        cancel(house, worker, 3600)
        assert worker.close(effect, external_id="TX-1").status_code == 200
        worker.commit(step={"outcome": "succeeded"})
        operations.sweep()
        assert worker.status() == ("cancelled", None)
        assert worker.effects()[0]["status"] == "succeeded"
        assert {worker.step(name)["status"] for name in "bcd"} == {"skipped"}
        assert worker.types()[-1] == "run_cancelled"
        assert worker.get("/verify")["ok"]

    def test_when_the_grace_is_over_it_ends_and_effects_are_an_operators(self, house: House, worker: Worker) -> None:
        effect = worker.reserve()["effect"]
        cancel(house, worker, 3600)
        operations.sweep()
        assert worker.status()[0] == "running", "not yet"
        with tamperer() as database:
            database.execute("update runs_run set cancel_at = clock_timestamp() where id = %s", [worker.run])
        operations.sweep()
        assert worker.status() == ("cancelled", None)
        assert (worker.effects()[0]["status"], worker.effects()[0]["owner"]) == ("unknown", "operator")
        late = worker.close(effect, external_id="TX-1")
        assert (late.status_code, late.json()["code"]) == (409, "run_finished")
        assert self.beat(worker).json()["code"] == "lease_lost"

    @pytest.mark.parametrize("kind", ["transient", "permanent", "business_rejection", "unknown_outcome"])
    def test_a_failure_within_the_grace_does_not_keep_the_run(self, house: House, worker: Worker, kind: str) -> None:
        cancel(house, worker, 3600)
        fail(worker, kind)
        operations.sweep()
        assert worker.status() == ("failed" if kind == "business_rejection" else "cancelled", None)
        assert worker.get("/verify")["ok"]

    def test_a_lease_that_is_lost_within_the_grace_ends_the_run(self, house: House) -> None:
        worker = start(house, {"name": "a", "max_attempts": 1}, {"name": "b"})
        worker.claim()
        cancel(house, worker, 3600)
        worker.lose()
        operations.sweep()
        assert worker.status() == ("cancelled", None)

    def test_the_last_step_may_still_complete_the_run(self, house: House) -> None:
        worker = start(house, {"name": "a"})
        worker.claim()
        cancel(house, worker, 3600)
        assert worker.commit(step={"outcome": "succeeded"})["run_status"] == "completed"

    def test_with_nothing_leased_it_ends_at_once(self, house: House) -> None:
        worker = start(house, {"name": "a"})
        cancel(house, worker, 3600)
        assert worker.status() == ("cancelled", None)

    def test_a_second_cancellation_may_shorten_the_grace_and_not_lengthen_it(
        self, house: House, worker: Worker
    ) -> None:
        cancel(house, worker, 600)
        first = self.beat(worker).json()["cancel_at"]
        cancel(house, worker, 3600)
        assert self.beat(worker).json()["cancel_at"] == first
        cancel(house, worker, 60)
        assert self.beat(worker).json()["cancel_at"] < first
        cancel(house, worker, 0)
        assert worker.status() == ("cancelled", None)

    def test_who_waits_or_asks_for_approval_within_the_grace_is_the_last(self, house: House, worker: Worker) -> None:
        cancel(house, worker, 3600)
        worker.wait(timer={"seconds": 0})
        operations.sweep()
        assert worker.status() == ("cancelled", None)
        assert worker.idle()
