"""Requests from being asked to being used: one outcome, at its time, for exactly what was shown."""

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from django.db import IntegrityError, connections, transaction
from msgspec import Raw

from approvals.models import Activity, Alarm, Request, Vote
from approvals.operations import asking, care, decisions
from approvals.operations.decisions import Choice
from approvals.operations.refusals import (
    AlreadyDecided,
    DigestChanged,
    NotAlike,
    NothingToRevoke,
    PolicyDenies,
    RequestNotOpen,
)
from kernel import clock, codec
from kernel.actor import Actor
from kernel.context import tenant_scope
from kernel.errors import DomainError, Invalid
from kernel.ids import uuid7
from runs import operations as runs_ops
from runs.models import Gate, Grant
from runs.operations.refusals import GateDecided, GateGoverned
from runs.wire import EvidenceIn, TargetIn
from tests.approvals.office import SYSTEM, TOOL, Agent, Office, adjustment, asked, let_deadline_pass, open_office, ring
from tests.cast import House
from tests.runs.driver import register, tamperer


def together(calls: list[Callable[[], Any]]) -> list[Any]:
    """What each call answers, or the code of its refusal; all begun at once, in threads of their own."""
    barrier = threading.Barrier(len(calls))

    def one(call: Callable[[], Any]) -> Any:
        barrier.wait()
        try:
            return call()
        except DomainError as error:
            return error
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(one, calls))


def activities(office: Office, request: UUID) -> Counter[str]:
    with tenant_scope(office.house.id):
        return Counter(Activity.objects.filter(request_id=request).values_list("kind", flat=True))


class TestOneOutcome:
    def test_two_approvers_race(self, house: House) -> None:
        office = open_office(house)
        agent, request = asked(office)
        digest = office.digest(request)
        done = together([lambda name=name: office.decide(name, request, digest=digest) for name in ("ann", "ben")])  # type: ignore[misc]
        (won,) = [answer for answer in done if not isinstance(answer, DomainError)]
        (lost,) = [answer for answer in done if isinstance(answer, AlreadyDecided)]
        assert won.outcome == "approved"
        (winner,) = lost.extra["decided_by"]
        assert winner in ("Ann", "Ben")
        assert (lost.extra["request_status"], lost.code) == ("approved", "already_decided")
        assert winner in lost.detail
        with tenant_scope(house.id):
            assert Vote.objects.filter(request_id=request).count() == 1
            assert Grant.objects.filter(run_id=agent.run).count() == 1

    def test_one_approves_while_the_other_rejects(self, house: House) -> None:
        office = open_office(house)
        for number in range(4):
            agent, request = asked(office, adjustment(f"B-{number}"))
            shown: dict[str, Any] = {"request_id": request, "digest": office.digest(request)}
            done = together([
                partial(office.decide, "ann", answer="approve", **shown), partial(office.decide, "ben", answer="reject", **shown),
            ])  # fmt: skip
            (won,) = [answer for answer in done if not isinstance(answer, DomainError)]
            (lost,) = [answer for answer in done if isinstance(answer, DomainError)]
            assert lost.code == "already_decided"
            assert lost.extra["decided_by"] == ["Ann" if won.outcome == "approved" else "Ben"]
            agent.claim()
            expected = {"approved": "execute", "rejected": "denied"}[won.outcome]
            assert agent.propose(adjustment(f"B-{number}"))["decision"] == expected

    def test_a_double_click_and_a_replayed_decision(self, house: House) -> None:
        office = open_office(house)
        _, request = asked(office)
        digest = office.digest(request)
        done = together([lambda: office.decide("ann", request, digest=digest)] * 4)
        assert {(answer.outcome, answer.grant_id) for answer in done} == {("approved", done[0].grant_id)}
        assert office.decide("ann", request, digest=digest) == done[0]
        assert activities(office, request)["voted"] == activities(office, request)["approved"] == 1

    def test_many_race_for_two_of_five(self, house: House) -> None:
        office = open_office(house, groups=[{"name": "finance", "role": "approver", "count": 2}])
        names = ["ann", "ben", *(f"m{number}" for number in range(4))]
        for name in names[2:]:
            office.hire(name)
        _, request = asked(office)
        digest = office.digest(request)
        done = together([lambda name=name: office.decide(name, request, digest=digest) for name in names])  # type: ignore[misc]
        outcomes = Counter(answer.code if isinstance(answer, DomainError) else answer.outcome for answer in done)
        assert outcomes == {"waiting": 1, "approved": 1, "already_decided": 4}

    def test_what_was_not_shown_is_not_decided(self, house: House) -> None:
        office = open_office(house)
        _, request = asked(office)
        shown = office.digest(request)
        edited = office.edit("ann", request, adjustment(amount="1.00"))
        with pytest.raises(DigestChanged):
            office.decide("ben", edited, digest=shown)
        with pytest.raises(AlreadyDecided):
            office.decide("ben", request, digest=shown)

    def test_an_edit_is_bound_to_what_was_shown(self, house: House) -> None:
        office = open_office(house)
        _, request = asked(office)
        shown = office.digest(request)
        first, second = together([
            lambda: office.edit("ann", request, adjustment(amount="1.00"), shown),
            lambda: office.edit("ben", request, adjustment(amount="2.00"), shown),
        ])  # fmt: skip
        assert sorted(isinstance(answer, RequestNotOpen) for answer in (first, second)) == [False, True]
        new = second if isinstance(first, RequestNotOpen) else first
        with pytest.raises(DigestChanged):
            office.edit("ann", new, adjustment(amount="3.00"), shown)

    def test_parallel_reservations_of_one_action_share_one_request(self, house: House) -> None:
        office = open_office(house)
        register(house, "shared", business_key="{batch}", scope="run")
        office.rule("shared", match={"tools": ["shared"]})
        agent = Agent(house)
        body = [{"name": name, "queue": agent.queue} for name in ("one", "two")]
        run = agent.http.post(
            "/runs",
            json={"workflow": "w", "workflow_version": "1", "steps": body},
            headers={"Idempotency-Key": agent.queue},
        )
        others = [Agent(house), Agent(house)]
        for other in others:
            other.run, other.queue = run.json()["id"], agent.queue
            other.claim()
        done = together([lambda other=other: other.reserve("shared", input={"batch": "B"}) for other in others])  # type: ignore[misc]
        assert {answer["decision"] for answer in done} == {"await_approval"}
        assert len({answer["gate"] for answer in done}) == 1
        office.decide("ann", office.of_gate(done[0]["gate"]))
        for other in others:
            other.claim()
        done = [other.reserve("shared", input={"batch": "B"})["decision"] for other in others]
        assert sorted(done) == ["execute", "reconcile"]

    def test_the_operators_endpoint_does_not_decide_what_is_governed(self, house: House) -> None:
        office = open_office(house)
        agent = Agent(house).begin()
        gate = agent.propose()["gate"]
        operator = office.principal("olaf")
        with tenant_scope(house.id), pytest.raises(GateGoverned):
            runs_ops.decide_gate(
                tenant=house.id, principal=operator, gate_id=UUID(gate), satisfied=True, reason="let it", actor=SYSTEM,
                now=clock.now(),
            )  # fmt: skip
        # The database itself refuses it, too: a grant is earned, and a governed gate follows its request.
        with tenant_scope(house.id):
            row = Gate.objects.get(id=gate)
            with pytest.raises(IntegrityError), transaction.atomic():
                Gate.objects.filter(id=gate).update(status="satisfied")
            with pytest.raises(IntegrityError), transaction.atomic():
                Grant.objects.create(
                    gate_id=gate, effect_id=row.effect_id, run_id=row.run_id, action_digest=row.action_digest, status="unused",
                    minted_at=clock.now(), expires_at=clock.now() + timedelta(days=1),
                )  # fmt: skip
            with pytest.raises(IntegrityError), transaction.atomic():
                Request.objects.filter(gate_id=gate).update(action=b"another")

    def test_like_low_risk_requests_are_decided_together(self, house: House, other_house: House) -> None:
        office = open_office(house, bulk_up_to="high")
        rows = [asked(office, adjustment(f"B-{number}"))[1] for number in range(3)]
        choices = [Choice(row, office.digest(row)) for row in rows]
        choices[1] = Choice(rows[1], "0" * 64)
        ann = office.principal("ann")
        with tenant_scope(house.id):
            done = decisions.decide_together(
                tenant=house.id,
                principal=ann,
                choices=choices,
                answer="approve",
                reason=None,
                actor=ann.actor,
                now=clock.now(),
            )
        assert [getattr(done[row], "outcome", getattr(done[row], "code", "")) for row in rows] == [
            "approved", "digest_changed", "approved",
        ]  # fmt: skip
        other = open_office(other_house, bulk_up_to="low")
        _, high = asked(other)
        stranger = other.principal("ann")
        with tenant_scope(other.house.id), pytest.raises(NotAlike):
            decisions.decide_together(
                tenant=other.house.id, principal=stranger, choices=[Choice(high, "0" * 64)], answer="approve",
                reason=None, actor=SYSTEM, now=clock.now(),
            )  # fmt: skip


class TestAmended:
    def test_executed_bytes_are_the_approved_bytes(self, house: House) -> None:
        office = open_office(house)
        agent, request = asked(office)
        edited = office.edit("ann", request, adjustment(amount="1.50", note="ünïcode ✓"))
        detail = office.detail(edited)
        assert [(c.path, c.kind) for c in detail.diff_previous] == [("/amount", "changed"), ("/note", "added")]
        office.decide("ben", edited)
        agent.claim()
        answer = agent.propose()  # the agent asks for what it asked before, and hears of the amendment
        assert (answer["decision"], answer["amended"]) == ("execute", True)
        assert codec.canonical(answer["input"]) == detail.action
        assert agent.types().count("effect_amended") == 1
        assert agent.close(answer["effect"]).status_code == 200
        (effect,) = agent.effects()
        assert effect["amount"] == "1.5"
        assert agent.propose()["decision"] == "already_done"

    def test_rejecting_the_amended_rejects_the_action(self, house: House) -> None:
        office = open_office(house)
        agent, request = asked(office)
        edited = office.edit("ann", request, adjustment(amount="1.50"))
        office.decide("ben", edited, "reject")
        agent.claim()
        assert agent.propose()["rule"] == "gate_refused"
        # Something else is another question.
        assert agent.propose(adjustment(amount="7.00"))["decision"] == "await_approval"

    def test_an_edit_that_is_about_something_else_is_refused(self, house: House) -> None:
        office = open_office(house)
        _, request = asked(office)
        with pytest.raises(Invalid, match="same business object"):
            office.edit("ann", request, adjustment("B-2"))
        office.rule(
            "too-much", priority=9, match={"tools": [TOOL], "amount_over": {"INR": "1000000"}}, deny=True, groups=[]
        )
        with pytest.raises(PolicyDenies):
            office.edit("ann", request, adjustment(amount="1000001"))
        assert office.status(request)[0] == "open"


class TestDeadline:
    def test_at_the_boundary_while_the_approver_has_the_page_open(self, house: House) -> None:
        office = open_office(house)
        agent, request = asked(office)
        digest = office.digest(request)
        let_deadline_pass(request)
        done = office.decide("ann", request, digest=digest)
        assert (done.outcome, done.recorded) == ("expired", False)
        runs_ops.sweep()
        assert office.status(request) == ("expired", None)
        assert agent.status() == ("waiting", "gate")
        assert office.grants(agent.effects()[0]["id"]) == []
        with pytest.raises(AlreadyDecided):
            office.decide("ann", request, digest=digest)

    def test_asked_again_after_the_deadline(self, house: House) -> None:
        office = open_office(house, deadline_seconds=600)
        agent, request = asked(office)
        let_deadline_pass(request)
        runs_ops.sweep()
        olaf = office.principal("olaf")
        with tenant_scope(house.id):
            again = asking.renew(
                tenant=house.id,
                request_id=request,
                reason="still wanted",
                actor=olaf.actor,
                now=clock.now(),
                principal=olaf,
            )
            assert again.request_id is not None
            row = Request.objects.get(id=again.request_id)
        assert timedelta(seconds=590) < row.deadline_at - row.opened_at <= timedelta(seconds=600)
        assert office.status(request) == ("superseded", None)
        assert agent.status() == ("waiting", "gate")
        assert office.decide("ben", row.id).outcome == "approved"
        agent.claim()
        assert agent.propose()["decision"] == "execute"

    def test_reminders_and_escalation_are_sent_once_each(self, house: House) -> None:
        office = open_office(
            house, reminders=[3600, 600], escalation=[{"after_seconds": 60, "role": "compliance", "decides": True}]
        )
        office.hire("carl", "compliance")
        _, request = asked(office)
        assert office.verdict("carl", request).rule == "no_authority"
        ring(request)
        together([care.sweep, care.sweep, care.sweep])
        care.sweep()
        found = activities(office, request)
        assert (found["reminded"], found["escalated"]) == (2, 1)
        assert office.verdict("carl", request).allowed

    def test_after_the_platform_was_down_past_it(self, house: House) -> None:
        office = open_office(house, reminders=[3600], escalation=[{"after_seconds": 60, "role": "compliance"}])
        agent, request = asked(office)
        ring(request, "reminder")
        care.sweep()
        let_deadline_pass(request)
        ring(request)
        # In whatever order the sweeps come back: nobody is reminded of what is over, and it is told once that it is.
        care.sweep()
        runs_ops.sweep()
        care.sweep()
        care.sweep()
        found = activities(office, request)
        assert (found["reminded"], found["escalated"], found["expired"]) == (1, 0, 1)
        with tenant_scope(house.id):
            assert Alarm.objects.filter(request_id=request, kind="closed", fired_at__isnull=False).count() == 1
        assert agent.status() == ("waiting", "gate")
        assert agent.idle()


class TestStale:
    def test_policy_changed(self, house: House) -> None:
        office = open_office(house)
        _, request = asked(office)
        before = office.digest(request)
        office.change(groups=[{"name": "finance", "role": "approver", "count": 2}])
        assert office.status(request) == ("stale", "policy_changed")
        done = office.decide("ann", request, digest=before)
        assert (done.outcome, done.recorded, done.stale_reason) == ("stale", False, "policy_changed")
        again = self.revalidate(office, request)
        assert again == (request, "open")
        assert office.digest(request) != before
        assert office.decide("ann", request).progress == "1 of 2"
        assert office.decide("ben", request).outcome == "approved"

    def test_votes_before_do_not_count(self, house: House) -> None:
        office = open_office(house, groups=[{"name": "finance", "role": "approver", "count": 2}])
        _, request = asked(office)
        office.decide("ann", request)
        office.change(groups=[{"name": "finance", "role": "approver", "count": 2}], grant_seconds=60)
        self.revalidate(office, request)
        assert office.detail(request).row.progress == "0 of 2"
        assert office.decide("ann", request).progress == "1 of 2"

    def test_policy_changed_after_approval(self, house: House) -> None:
        office = open_office(house)
        agent, request = asked(office)
        office.decide("ann", request)
        office.change(groups=[{"name": "finance", "role": "approver"}], grant_seconds=60)
        agent.claim()
        answer = agent.propose()
        assert answer["decision"] == "await_approval"
        assert office.status(request) == ("superseded", "policy_changed")

    def test_no_approval_is_needed_any_more(self, house: House) -> None:
        office = open_office(house)
        agent, request = asked(office)
        office.change(enabled=False)
        assert self.revalidate(office, request) == (None, "withdrawn")
        agent.claim()
        assert agent.propose()["decision"] == "execute"

    def test_evidence_changed(self, house: House) -> None:
        office = open_office(house)
        agent = Agent(house).begin()
        agent.commit(events=[{"type": "note", "payload": {"balance": "12"}}])
        seq = agent.get("/events?limit=1000")["items"][-1]["seq"]
        fact = {"kind": "fact", "ref": "ledger", "content": {"open": 3}}
        answer = agent.propose(evidence=[{"kind": "event", "seq": seq}, fact], explanation="Closes the month.")
        request = office.of_gate(answer["gate"])
        detail = office.detail(request)
        assert [(item.kind, item.content) for item in detail.evidence] == [
            ("event", b'{"payload":{"balance":"12"}}'), ("fact", b'{"open":3}'),
        ]  # fmt: skip
        assert detail.explanation == "Closes the month."
        with tamperer() as database:
            database.execute("update runs_event set payload = null where run_id = %s and seq = %s", [agent.run, seq])
        done = office.decide("ann", request)
        assert (done.outcome, done.stale_reason) == ("stale", "evidence_changed")
        assert office.status(request) == ("stale", "evidence_changed")
        assert self.revalidate(office, request) == (request, "open")
        assert [item.kind for item in office.detail(request).evidence] == ["fact"]
        assert office.decide("ann", request).outcome == "approved"

    def test_evidence_too_old(self, house: House) -> None:
        office = open_office(house, evidence_max_age_seconds=60)
        old = {"kind": "fact", "ref": "rate", "content": 1, "observed_at": "2026-01-01T00:00:00Z"}
        agent, request = asked(office, evidence=[old])
        assert office.decide("ann", request).stale_reason == "evidence_too_old"
        with pytest.raises(DomainError) as caught:
            self.revalidate(office, request)
        assert (caught.value.code, caught.value.extra["reason"]) == ("still_stale", "evidence_too_old")
        fresh = EvidenceIn(kind="fact", ref="rate", content=Raw(b"2"))
        assert self.revalidate(office, request, evidence=[fresh]) == (request, "open")
        assert office.decide("ann", request).outcome == "approved"
        agent.claim()
        assert agent.propose(evidence=[old])["decision"] == "execute"

    def test_target_changed(self, house: House) -> None:
        office = open_office(house)
        target = {"version": "7", "content": {"amount": "100", "state": "draft"}}
        agent, request = asked(office, target=target)
        detail = office.detail(request)
        assert [(c.path, c.before, c.after) for c in detail.diff_target if c.kind == "changed"] == [
            ("/amount", '"100"', '"250000.00"')
        ]
        with tenant_scope(house.id):
            now = TargetIn(version="8", content=Raw(b'{"amount": "90", "state": "draft"}'))
            status = asking.report_target(
                tenant=house.id, request_id=request, target=now, actor=agent_of(office), now=clock.now()
            )
        assert status == "stale"
        assert office.decide("ann", request).outcome == "stale"
        again, status = self.revalidate(office, request)
        assert status == "open"
        assert again is not None
        assert again != request
        assert office.status(request) == ("superseded", "target_changed")
        shown = office.detail(again)
        assert (shown.target_version, shown.target) == ("8", b'{"amount": "90", "state": "draft"}')
        office.decide("ann", again)
        agent.claim()
        answer = agent.propose(target={"version": "8"})
        assert answer["decision"] == "execute"
        assert "amended" not in answer

    def test_target_changed_when_the_grant_is_used(self, house: House) -> None:
        office = open_office(house)
        agent, request = asked(office, target={"version": "7"})
        office.decide("ann", request)
        agent.claim()
        answer = agent.propose(target={"version": "8"})
        assert answer["decision"] == "await_approval"
        assert office.grants(answer["effect"]) == ["revoked"]
        assert office.detail(office.of_gate(answer["gate"])).supersedes_id == request

    def revalidate(self, office: Office, request: UUID, **extra: Any) -> tuple[UUID | None, str]:
        with tenant_scope(office.house.id):
            found = asking.revalidate(
                tenant=office.house.id, request_id=request, actor=agent_of(office), now=clock.now(), **extra
            )
        return found.request_id, found.status


def agent_of(office: Office) -> Actor:
    return Actor(kind="key", id=office.house.key_ids["agent"], label="agent")


class TestEnds:
    def test_a_grant_is_used_once(self, house: House) -> None:
        office = open_office(house)
        agent, request = asked(office)
        office.decide("ann", request)
        agent.claim()
        first = agent.propose()
        assert first["decision"] == "execute"
        error = {"class": "transient", "message": "no"}
        assert agent.close(first["effect"], "failed", error=error).status_code == 200
        with tamperer() as database:
            database.execute("update runs_effect set retry_at = null where id = %s", [first["effect"]])
        second = agent.propose()
        assert second["decision"] == "await_approval"
        assert office.grants(first["effect"]) == ["used"]

    def test_revoked(self, house: House) -> None:
        office = open_office(house)
        agent, request = asked(office)
        office.decide("ann", request)
        office.revoke("ben", request)
        agent.claim()
        answer = agent.propose()
        assert answer["decision"] == "await_approval"
        assert office.grants(answer["effect"]) == ["revoked"]
        with pytest.raises(NothingToRevoke):
            office.revoke("ann", request)

    def test_withdrawn(self, house: House) -> None:
        office = open_office(house)
        agent, request = asked(office)
        with tenant_scope(house.id):
            asking.withdraw(
                tenant=house.id, request_id=request, reason="not needed", actor=agent_of(office), now=clock.now()
            )
        assert office.status(request) == ("withdrawn", None)
        with pytest.raises(AlreadyDecided):
            office.decide("ann", request)
        agent.claim()
        again = agent.propose()
        assert again["decision"] == "await_approval"
        assert office.status(request)[0] == "superseded"

    def test_a_cancelled_run_withdraws(self, house: House) -> None:
        office = open_office(house)
        agent, request = asked(office)
        with tenant_scope(house.id):
            runs_ops.cancel_run(tenant=house.id, run_id=UUID(agent.run), reason="no", actor=SYSTEM, now=clock.now())
        assert office.status(request) == ("withdrawn", None)

    def test_denied_by_policy(self, house: House) -> None:
        office = open_office(house)
        office.rule(
            "too-much", priority=-5, match={"tools": [TOOL], "amount_over": {"INR": "300000"}}, deny=True, groups=[]
        )
        agent = Agent(house).begin()
        answer = agent.propose(adjustment(amount="300000.01"))
        assert (answer["decision"], answer["rule"], answer["policy"]) == ("denied", "policy_denied", "too-much")
        assert (
            agent.propose(adjustment(amount="5", currency="USD"))["rule"] == "policy_denied"
        )  # not named: not permitted
        assert (answer := agent.propose(adjustment(amount="300000.00")))["decision"] == "await_approval", str(answer)

    def test_gates_without_a_policy_are_an_operators(self, house: House) -> None:
        office = open_office(house)
        register(house, "plain", business_key="{batch}", approval="manager")
        agent = Agent(house).begin()
        gate = agent.reserve("plain", input={"batch": "B"})["gate"]
        olaf = office.principal("olaf")
        with tenant_scope(house.id):
            assert not Request.objects.filter(gate_id=gate).exists()
            runs_ops.decide_gate(
                tenant=house.id,
                principal=olaf,
                gate_id=UUID(gate),
                satisfied=True,
                reason="fine",
                actor=SYSTEM,
                now=clock.now(),
            )
        agent.claim()
        assert agent.reserve("plain", input={"batch": "B"})["decision"] == "execute"

    def test_a_gate_decided_by_the_sweep_meanwhile(self, house: House) -> None:
        office = open_office(house)
        _, request = asked(office)
        olaf = office.principal("olaf")
        with tenant_scope(house.id), pytest.raises(GateDecided):
            asking.renew(
                tenant=house.id,
                request_id=request,
                reason="too early",
                actor=olaf.actor,
                now=clock.now(),
                principal=olaf,
            )
        assert office.verdict("ann", uuid7()).rule == "no_authority"
