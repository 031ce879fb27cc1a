"""The effect ledger: each decision, each way out of the unknown, gates, limits and compensation."""

import uuid
from typing import Any

import pytest

from runs import operations
from tests.cast import House, client
from tests.runs.driver import Worker, expire, register, settle, tamperer


@pytest.fixture
def worker(house: House) -> Worker:
    register(house)
    worker = Worker(house)
    worker.start("a", "b")
    worker.claim()
    return worker


class TestDecisions:
    def test_the_first_reservation_executes_and_its_outcome_is_answered_ever_after(self, worker: Worker) -> None:
        first = worker.reserve()
        assert first["decision"] == "execute"
        assert (first["attempt"], first["seconds"]) == (1, 60)
        assert first["key"].startswith("smr-")
        done = worker.close(first["effect"], output={"paid": "4125.00"}, external_id="TX-1")
        assert done.status_code == 200, done.text
        again = worker.reserve()
        assert again["decision"] == "already_done"
        assert (again["output"], again["external_id"], again["input_matches"]) == ({"paid": "4125.00"}, "TX-1", True)
        assert (again["effect"], again["key"]) == (first["effect"], first["key"])
        worker.commit(step={"outcome": "succeeded"})
        assert worker.get("/verify")["ok"]
        assert worker.types() == [
            "run_created", "run_started", "step_leased", "effect_reserved", "effect_executing", "effect_succeeded",
            "step_succeeded",
        ]  # fmt: skip

    def test_a_lost_answer_is_asked_for_again_under_its_key(self, worker: Worker) -> None:
        first = worker.reserve(key="k")
        again = worker.reserve(key="k")
        assert again["decision"] == "execute"
        assert again["effect"] == first["effect"]
        assert again["seconds"] < first["seconds"]
        assert worker.types().count("effect_executing") == 1

    def test_the_same_key_for_something_else_is_refused(self, worker: Worker) -> None:
        worker.reserve(key="k")
        answer = worker.ask(key="k", input={"invoice": "INV-2"})
        assert (answer.status_code, answer.json()["code"]) == (422, "idempotency_key_reused")

    def test_another_reservation_meanwhile_is_told_to_wait(self, worker: Worker) -> None:
        worker.reserve(key="k")
        second = worker.reserve(key="l")
        assert (second["decision"], second["reason"]) == ("reconcile", "in_flight_elsewhere")
        assert second["retry_after"] > 0

    def test_the_execute_of_a_lost_lease_is_judged_anew(self, worker: Worker) -> None:
        first = worker.reserve(key="k")
        worker.lose()
        worker.claim()
        second = worker.reserve(key="k")
        assert (second["decision"], second["reason"], second["effect"]) == (
            "reconcile",
            "outcome_unknown",
            first["effect"],
        )

    def test_a_failure_is_tried_again_under_the_same_key(self, house: House) -> None:
        register(house, retry={"max_attempts": 2, "initial_seconds": 0})
        worker = Worker(house)
        worker.start("a")
        worker.claim()
        first = worker.reserve()
        assert worker.close(first["effect"], "failed", error={"class": "transient"}).status_code == 200
        second = worker.reserve()
        assert (second["decision"], second["attempt"], second["key"]) == ("execute", 2, first["key"])
        assert worker.close(second["effect"], "failed", error={"class": "transient"}).status_code == 200
        third = worker.reserve()
        assert (third["decision"], third["rule"]) == ("denied", "attempts_exhausted")

    def test_a_failure_for_good_is_not_tried_again(self, worker: Worker) -> None:
        first = worker.reserve()
        worker.close(first["effect"], "failed", error={"class": "permanent", "message": "no such account"})
        assert worker.reserve()["rule"] == "failed_permanent"

    def test_a_retry_waits_for_the_service(self, worker: Worker) -> None:
        first = worker.reserve()
        worker.close(first["effect"], "failed", error={"class": "rate_limited", "retry_after": 300})
        second = worker.reserve()
        assert (second["decision"], second["rule"]) == ("denied", "retry_later")
        assert 300 <= second["retry_after"] <= 302

    def test_a_step_with_an_open_effect_does_not_succeed(self, worker: Worker) -> None:
        first = worker.reserve()
        answer = worker.call(lease=worker.lease, epoch=worker.epoch, step={"outcome": "succeeded"})
        assert (answer.status_code, answer.json()["code"], answer.json()["effect"]) == (
            409,
            "effects_open",
            first["effect"],
        )
        both = worker.commit(
            effects=[{"effect": first["effect"], "outcome": "succeeded", "output": 1}], step={"outcome": "succeeded"}
        )
        assert both["runnable"] == ["b"]

    def test_two_steps_are_two_objects(self, worker: Worker) -> None:
        first = worker.reserve()
        worker.commit(effects=[{"effect": first["effect"], "outcome": "succeeded"}], step={"outcome": "succeeded"})
        worker.claim()
        assert worker.reserve()["decision"] == "execute"

    def test_an_input_that_breaks_the_schema_names_the_field(self, house: House) -> None:
        schema = {
            "type": "object",
            "properties": {"invoice": {"type": "string", "maxLength": 5}},
            "required": ["invoice"],
        }
        register(house, input_schema=schema)
        worker = Worker(house)
        worker.start("a")
        worker.claim()
        answer = worker.ask(input={"invoice": "far too long"})
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["path"] == "/input/invoice"
        assert worker.effects() == []

    def test_an_unknown_tool_is_named(self, worker: Worker) -> None:
        answer = worker.ask("no_such_tool")
        assert (answer.status_code, answer.json()["code"]) == (422, "unknown_tool")

    def test_a_disabled_tool_is_denied(self, house: House, worker: Worker) -> None:
        with client(house.keys["admin"]) as admin:
            assert admin.patch("/tools/pay/versions/1", json={"enabled": False, "reason": "stop"}).is_success
        decided = worker.reserve(tool_version="1")
        assert (decided["decision"], decided["rule"]) == ("denied", "tool_disabled")

    def test_an_output_that_breaks_the_schema_is_recorded_and_marked(self, house: House) -> None:
        register(house, output_schema={"type": "object"})
        worker = Worker(house)
        worker.start("a")
        worker.claim()
        first = worker.reserve()
        assert worker.close(first["effect"], output=[1]).status_code == 200
        event = worker.get("/events?limit=1000")["items"][-1]
        assert event["labels"] == {"effect": first["effect"], "output": "invalid", "tool": "pay"}
        assert worker.reserve()["decision"] == "already_done"


class TestUnknown:
    def test_a_lost_lease_leaves_its_effect_unknown_and_the_next_worker_reconciles(self, worker: Worker) -> None:
        first = worker.reserve(key="k")
        worker.lose()
        (effect,) = worker.effects()
        assert (effect["status"], effect["owner"]) == ("unknown", "worker")
        assert worker.claim()["wake"] == {"reason": "lease_lost"}
        second = worker.reserve(key="l")
        assert (second["decision"], second["reason"], second["key"]) == ("reconcile", "outcome_unknown", first["key"])
        early = worker.reconcile(first["effect"], "failed")
        assert (early.status_code, early.json()["code"]) == (409, "too_early")
        settle(first["effect"])
        assert worker.reconcile(first["effect"], "failed").json()["status"] == "reconciled_failed"
        third = worker.reserve(key="m")
        assert (third["decision"], third["attempt"], third["key"]) == ("execute", 2, first["key"])
        assert worker.get("/verify")["ok"]

    def test_found_done_is_done(self, worker: Worker) -> None:
        first = worker.reserve()
        worker.lose()
        worker.claim()
        worker.reserve()
        found = worker.reconcile(
            first["effect"], "succeeded", output={"paid": 1}, external_id="TX-9", evidence={"seen": True}
        )
        assert found.json()["status"] == "reconciled_succeeded"
        again = worker.reserve()
        assert (again["decision"], again["external_id"]) == ("already_done", "TX-9")
        worker.commit(step={"outcome": "succeeded"})

    def test_an_outcome_under_a_lost_lease_is_kept_as_evidence(self, house: House, worker: Worker) -> None:
        first = worker.reserve()
        stale = Worker(house)
        stale.run, stale.lease, stale.epoch = worker.run, worker.lease, worker.epoch
        worker.lose()
        worker.claim()
        late = stale.close(first["effect"], output={"paid": 1}, external_id="TX-3")
        assert (late.status_code, late.json()["code"], late.json()["current_epoch"]) == (409, "stale_epoch", 2)
        stale.close(first["effect"], output={"paid": 1}, external_id="TX-3")
        assert worker.effects()[0]["status"] == "unknown"
        told = worker.reserve()
        assert told["decision"] == "reconcile"
        assert [(found["kind"], found["outcome"], found["detail"]["external_id"]) for found in told["evidence"]] == [
            ("late_outcome", "succeeded", "TX-3")
        ]
        settle(first["effect"])
        against = worker.reconcile(first["effect"], "failed")
        assert (against.status_code, against.json()["code"]) == (409, "contradicting_evidence")
        assert worker.reconcile(first["effect"], "succeeded").is_success
        assert worker.get("/verify")["ok"]

    def test_a_late_success_after_a_reconciled_failure_stops_the_next_attempt(
        self, house: House, worker: Worker
    ) -> None:
        first = worker.reserve()
        stale = Worker(house)
        stale.run, stale.lease, stale.epoch = worker.run, worker.lease, worker.epoch
        worker.lose()
        worker.claim()
        worker.reserve()
        settle(first["effect"])
        assert worker.reconcile(first["effect"], "failed").is_success
        stale.close(first["effect"], external_id="TX-3")
        assert "effect_duplicate" in worker.types()
        decided = worker.reserve()
        assert (decided["decision"], decided["rule"]) == ("denied", "contradicting_evidence")

    def test_who_was_not_told_to_may_not_reconcile(self, house: House, worker: Worker) -> None:
        first = worker.reserve()
        worker.lose()
        other = Worker(house)
        other.start("x")
        other.claim()
        answer = other.reconcile(first["effect"], "failed")
        assert (answer.status_code, answer.json()["code"]) == (409, "effect_not_held")

    def test_an_operator_reconciles_with_a_reason(self, house: House, worker: Worker) -> None:
        first = worker.reserve()
        worker.close(first["effect"], "unknown")
        operator = client(house.keys["operator"])
        bare = operator.post(f"/effects/{first['effect']}/reconcile", json={"result": "succeeded"})
        assert (bare.status_code, bare.json()["errors"][0]["path"]) == (422, "/reason")
        done = operator.post(
            f"/effects/{first['effect']}/reconcile", json={"result": "succeeded", "reason": "asked the bank"}
        )
        assert done.json()["status"] == "reconciled_succeeded", done.text
        found = operator.get(f"/effects/{first['effect']}").json()
        assert found["outcome"]["reason"] == "asked the bank"
        with client(house.keys["admin"]) as admin:
            actions = [entry["action"] for entry in admin.get("/audit").json()["items"]]
        assert "effect.reconciled" in actions

    def test_an_agent_may_not_reconcile_without_a_lease(self, worker: Worker) -> None:
        first = worker.reserve()
        worker.close(first["effect"], "unknown")
        answer = worker.http.post(f"/effects/{first['effect']}/reconcile", json={"result": "failed", "reason": "x"})
        assert answer.status_code == 403

    def test_a_step_that_cannot_tell_waits_until_it_can_be_known(self, worker: Worker) -> None:
        first = worker.reserve()
        worker.commit(step={"outcome": "failed", "error": {"class": "unknown_outcome", "message": "timeout"}})
        run = worker.get("")
        assert (run["run"]["status"], run["run"]["waiting_for"]) == ("waiting", "retry")
        assert run["steps"][0]["due_at"] >= worker.effects()[0]["settle_at"]
        assert worker.effects()[0]["status"] == "unknown"
        assert first["effect"] == worker.effects()[0]["id"]

    def test_cancelling_a_run_leaves_its_effect_to_an_operator(self, house: House, worker: Worker) -> None:
        first = worker.reserve()
        with client(house.keys["operator"]) as operator:
            assert operator.post(f"/runs/{worker.run}/cancel", json={"reason": "stop"}).status_code == 204
        (effect,) = worker.effects()
        assert (effect["status"], effect["owner"]) == ("unknown", "operator")
        late = worker.close(first["effect"], external_id="TX-1")
        assert (late.status_code, late.json()["code"]) == (409, "run_finished")
        with client(house.keys["operator"]) as operator:
            found = operator.get(f"/effects/{first['effect']}").json()
            assert found["evidence"][0]["detail"] == {"external_id": "TX-1"}
            settled = operator.post(
                f"/effects/{first['effect']}/reconcile", json={"result": "succeeded", "reason": "see evidence"}
            )
        assert settled.is_success, settled.text
        assert worker.get("")["run"]["status"] == "cancelled"
        assert worker.get("/verify")["ok"]


class TestScope:
    def test_two_runs_cannot_pay_one_invoice(self, house: House) -> None:
        register(house, scope="tenant")
        one, two = Worker(house), Worker(house)
        for worker in (one, two):
            worker.start("a")
            worker.claim()
        first = one.reserve()
        assert first["decision"] == "execute"
        second = two.reserve()
        assert (second["decision"], second["reason"]) == ("reconcile", "in_flight_elsewhere")
        one.close(first["effect"], output={"paid": 1})
        third = two.reserve()
        assert (third["decision"], third["run_id"], third["output"]) == ("already_done", one.run, {"paid": 1})

    def test_what_failed_in_one_run_is_tried_in_another(self, house: House) -> None:
        register(house, scope="tenant", retry={"initial_seconds": 0})
        one, two = Worker(house), Worker(house)
        for worker in (one, two):
            worker.start("a")
            worker.claim()
        first = one.reserve()
        one.close(first["effect"], "failed", error={"class": "transient"})
        second = two.reserve()
        assert (second["decision"], second["attempt"], second["key"]) == ("execute", 2, first["key"])
        assert two.effects()[0]["id"] == first["effect"]
        assert two.close(second["effect"]).is_success
        assert one.get("/verify")["ok"]
        assert two.get("/verify")["ok"]

    def test_another_run_reconciles_what_a_dead_one_left(self, house: House) -> None:
        register(house, scope="tenant")
        one, two = Worker(house), Worker(house)
        for worker in (one, two):
            worker.start("a")
            worker.claim()
        first = one.reserve()
        one.lose()
        assert two.reserve()["reason"] == "outcome_unknown"
        assert two.reconcile(first["effect"], "succeeded", external_id="TX").is_success
        assert two.reserve()["external_id"] == "TX"


class TestGates:
    @pytest.fixture
    def worker(self, house: House) -> Worker:
        register(house, approval="always")
        worker = Worker(house)
        worker.start("a")
        worker.claim()
        return worker

    def decide(self, house: House, gate: str, what: str = "satisfy") -> Any:
        with client(house.keys["operator"]) as operator:
            return operator.post(f"/gates/{gate}/{what}", json={"reason": "looked at it"})

    def test_a_grant_lets_one_execution_through(self, house: House, worker: Worker) -> None:
        first = worker.reserve()
        assert first["decision"] == "await_approval"
        run = worker.get("")
        assert (run["run"]["status"], run["run"]["waiting_for"], run["steps"][0]["attempts"]) == ("waiting", "gate", 0)
        stale = worker.ask()
        assert (stale.status_code, stale.json()["code"]) == (409, "stale_epoch")
        (gate,) = client(house.keys["operator"]).get("/gates", params={"status": "open"}).json()["items"]
        assert (gate["id"], gate["input"], gate["effect"]) == (first["gate"], {"invoice": "INV-1"}, first["effect"])
        assert self.decide(house, gate["id"]).json()["grant"]
        twice = self.decide(house, gate["id"])
        assert (twice.status_code, twice.json()["code"]) == (409, "gate_decided")
        assert worker.claim()["wake"] == {"reason": "gate"}
        second = worker.reserve()
        assert (second["decision"], second["effect"]) == ("execute", first["effect"])
        worker.close(first["effect"], "failed", error={"class": "transient", "retry_after": 0})
        with tamperer() as database:
            database.execute("update runs_effect set retry_at = clock_timestamp() where id = %s", [first["effect"]])
        assert worker.reserve()["decision"] == "await_approval", "a grant is used once"
        assert worker.get("/verify")["ok"]

    def test_another_input_needs_another_grant(self, house: House, worker: Worker) -> None:
        first = worker.reserve(input={"invoice": "INV-1", "amount": 1})
        self.decide(house, first["gate"])
        worker.claim()
        second = worker.reserve(input={"invoice": "INV-1", "amount": 1_000_000})
        assert second["decision"] == "await_approval"
        assert second["gate"] != first["gate"]
        self.decide(house, second["gate"])
        worker.claim()
        assert worker.reserve(input={"invoice": "INV-1", "amount": 1_000_000})["decision"] == "execute"

    def test_a_refusal_is_told(self, house: House, worker: Worker) -> None:
        first = worker.reserve()
        assert self.decide(house, first["gate"], "refuse").json()["grant"] is None
        worker.claim()
        second = worker.reserve()
        assert (second["decision"], second["rule"]) == ("denied", "gate_refused")
        worker.commit(step={"outcome": "succeeded"})
        assert worker.effects()[0]["status"] == "cancelled"

    def test_a_grant_lapses(self, house: House, worker: Worker) -> None:
        first = worker.reserve()
        self.decide(house, first["gate"])
        with tamperer() as database:
            database.execute("update runs_grant set expires_at = clock_timestamp() where gate_id = %s", [first["gate"]])
        worker.claim()
        assert worker.reserve()["decision"] == "await_approval"

    def test_a_gate_lapses_and_is_opened_anew(self, house: House, worker: Worker) -> None:
        first = worker.reserve()
        early = self.decide(house, first["gate"], "renew")
        assert (early.status_code, early.json()["code"], early.json()["gate_status"]) == (409, "gate_decided", "open")
        with tamperer() as database:
            database.execute("update runs_gate set expires_at = clock_timestamp() where id = %s", [first["gate"]])
        operations.sweep()
        late = self.decide(house, first["gate"])
        assert (late.status_code, late.json()["gate_status"]) == (409, "lapsed")
        run = worker.get("")["run"]
        assert (run["status"], run["waiting_for"]) == ("waiting", "gate")
        renewed = self.decide(house, first["gate"], "renew").json()
        assert (renewed["status"], renewed["grant"]) == ("open", None)
        assert renewed["gate"] != first["gate"]
        assert self.decide(house, renewed["gate"]).is_success
        assert worker.claim()["wake"] == {"reason": "gate"}
        assert worker.reserve()["decision"] == "execute"
        assert worker.get("/verify")["ok"]

    def test_a_gate_of_another_tenant_is_not_there(self, other_house: House, worker: Worker) -> None:
        first = worker.reserve()
        assert self.decide(other_house, first["gate"]).status_code == 404


class TestLimits:
    def pay(self, worker: Worker, amount: str, currency: str = "INR") -> dict[str, Any]:
        return worker.reserve(input={"invoice": uuid.uuid4().hex, "amount": amount, "currency": currency})

    def start(self, house: House, **limits: Any) -> Worker:
        register(house, amount={"path": "amount", "currency_path": "currency"}, limits=limits)
        worker = Worker(house)
        worker.start("a")
        worker.claim()
        return worker

    def test_an_amount_has_its_limit_for_each_call(self, house: House) -> None:
        worker = self.start(house, max_amount_per_call={"INR": "100.00"})
        assert self.pay(worker, "100.00")["decision"] == "execute"
        denied = self.pay(worker, "100.01")
        assert (denied["decision"], denied["rule"], denied["limit"]) == ("denied", "max_amount_per_call", "100.00")
        assert self.pay(worker, "1", "USD")["rule"] == "currency_not_allowed"

    def test_a_day_has_its_amount_and_what_did_not_happen_is_given_back(self, house: House) -> None:
        worker = self.start(house, max_amount_per_day={"INR": "100"})
        first = self.pay(worker, "60")
        denied = self.pay(worker, "60")
        assert (denied["rule"], denied["retry_after"] > 0) == ("max_amount_per_day", True)
        worker.close(first["effect"], "failed", error={"class": "permanent"})
        assert self.pay(worker, "60")["decision"] == "execute"

    def test_calls_are_counted(self, house: House) -> None:
        worker = self.start(house, calls_per_day=2)
        assert [self.pay(worker, "1")["decision"] for _ in range(3)] == ["execute", "execute", "denied"]

    def test_calls_have_a_rate(self, house: House) -> None:
        worker = self.start(house, calls_per_minute=1)
        assert self.pay(worker, "1")["decision"] == "execute"
        denied = self.pay(worker, "1")
        assert denied["rule"] == "calls_per_minute"
        assert 50 < denied["retry_after"] <= 60

    def test_calls_in_flight_are_limited(self, house: House) -> None:
        worker = self.start(house, max_in_flight=1)
        first = self.pay(worker, "1")
        assert self.pay(worker, "1")["rule"] == "max_in_flight"
        worker.close(first["effect"])
        assert self.pay(worker, "1")["decision"] == "execute"


class TestCompensation:
    def test_an_operator_undoes_a_run(self, house: House) -> None:
        register(house, "refund", business_key=None)
        register(
            house,
            compensation={"tool": "refund", "input": {"transaction": "{output/id}", "invoice": "{input/invoice}"}},
        )
        worker = Worker(house)
        worker.start("a", "b")
        worker.claim()
        paid = worker.reserve()
        worker.close(paid["effect"], output={"id": "TX-7"})
        worker.commit(step={"outcome": "failed", "error": {"class": "permanent"}})
        with client(house.keys["operator"]) as operator:
            answer = operator.post(
                f"/runs/{worker.run}/recover", json={"action": "compensate", "reason": "wrong month"}
            )
        assert answer.json() == {"run_status": "pending"}, answer.text
        work = worker.claim()
        assert work["compensates"] == paid["effect"]
        undo = worker.reserve(None, input=None, compensates=paid["effect"])
        assert (undo["decision"], undo["input"]) == ("execute", {"transaction": "TX-7", "invoice": "INV-1"})
        assert {row["id"]: row["status"] for row in worker.effects()}[paid["effect"]] == "compensating"
        worker.close(undo["effect"], output={"ok": True})
        done = worker.commit(step={"outcome": "succeeded"})
        assert done["run_status"] == "cancelled"
        assert {row["id"]: row["status"] for row in worker.effects()}[paid["effect"]] == "compensated"
        assert worker.get("/verify")["ok"]


def test_the_ledger_of_another_tenant_is_not_there(other_house: House, worker: Worker) -> None:
    first = worker.reserve()
    with client(other_house.keys["admin"]) as stranger:
        assert stranger.get("/effects").json()["items"] == []
        assert stranger.get(f"/effects/{first['effect']}").status_code == 404
        reconciled = stranger.post(f"/effects/{first['effect']}/reconcile", json={"result": "failed", "reason": "x"})
        assert reconciled.status_code == 404
    expire(worker.lease)
