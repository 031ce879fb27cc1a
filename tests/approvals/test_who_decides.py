"""Who may decide: each test is named after the rule that it is about."""

from datetime import UTC, date, timedelta
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest

from approvals.models import Delegation, PolicyPermission
from approvals.operations import delegations, policies
from approvals.operations.delegations import window
from approvals.operations.refusals import MayNotDecide, StepUpRequired
from approvals.queries import deciding
from kernel import clock
from kernel.context import tenant_scope
from kernel.errors import Invalid
from tenancy import operations as tenancy_ops
from tenancy.models import Agent as AgentRow
from tenancy.models import ApiKey
from tests.approvals.office import SYSTEM, Office, adjustment, asked, open_office
from tests.cast import House

TWO = {"groups": [{"name": "finance", "role": "approver", "count": 2}]}


def stand_in(office: Office, from_: str, to: str | None, **extra: Any) -> UUID:
    now = clock.now()
    values: dict[str, Any] = {"starts_at": now - timedelta(hours=1), "ends_at": now + timedelta(hours=1), "away": False}
    with tenant_scope(office.house.id):
        row = delegations.delegate(
            tenant=office.house.id, from_member=office.people[from_], to_member=office.people[to] if to else None,
            reason="on leave", actor=SYSTEM, now=now, **(values | extra),
        )  # fmt: skip
    return row.id


def refused(office: Office, name: str, request: UUID, **extra: Any) -> str:
    """The rule by which a decision is refused; the verdict says the same."""
    with pytest.raises(MayNotDecide) as caught:
        office.decide(name, request, **extra)
    rule: str = caught.value.extra["rule"]
    verdict = office.verdict(name, request)
    assert (verdict.allowed, verdict.rule) == (False, rule)
    assert verdict.sentence == caught.value.detail
    return rule


def behind(office: Office, *, owner: str | None = None, issuer: str | None = None) -> None:
    """Makes members the people behind the agent and its key."""
    with tenant_scope(office.house.id):
        if owner:
            AgentRow.objects.filter(id=office.house.agent_id).update(owner_id=office.people[owner])
        if issuer:
            ApiKey.objects.filter(id=office.house.key_ids["agent"]).update(issued_by=office.people[issuer])


class TestGroups:
    def test_n_of_m(self, house: House) -> None:
        office = open_office(house, **TWO)
        office.hire("cleo")
        _, request = asked(office)
        first = office.decide("ann", request)
        assert (first.outcome, first.progress, first.grant_id) == ("waiting", "1 of 2", None)
        second = office.decide("cleo", request)
        assert (second.outcome, second.progress) == ("approved", "2 of 2")
        assert second.grant_id is not None

    def test_one_person_counts_once(self, house: House) -> None:
        office = open_office(house, **TWO)
        _, request = asked(office)
        office.decide("ann", request)
        assert office.decide("ann", request).progress == "1 of 2"  # the same decision again
        assert refused(office, "ann", request, answer="reject") == "already_voted"
        assert office.status(request) == ("open", None)

    def test_and_across_groups(self, house: House) -> None:
        groups = [{"name": "finance", "role": "approver"}, {"name": "security", "role": "compliance"}]
        office = open_office(house, groups=groups)
        office.hire("carl", "compliance")
        _, request = asked(office)
        assert office.decide("ann", request).progress == "1 of 2"
        assert refused(office, "ben", request) == "group_complete"
        assert [d.name for d in office.detail(request).deciders] == ["Carl"]
        assert office.decide("carl", request).outcome == "approved"

    def test_who_is_in_two_groups_counts_for_one(self, house: House) -> None:
        groups = [{"name": "finance", "role": "approver"}, {"name": "security", "role": "compliance"}]
        office = open_office(house, groups=groups)
        office.hire("both", "approver", "compliance")
        office.hire("carl", "compliance")
        _, request = asked(office)
        assert office.decide("both", request).outcome == "waiting"
        assert refused(office, "both", request, answer="reject") == "already_voted"
        assert office.decide("carl", request).outcome == "approved"

    def test_one_rejection_is_enough(self, house: House) -> None:
        office = open_office(house, **TWO)
        agent, request = asked(office)
        office.decide("ann", request)
        assert office.decide("ben", request, "reject").outcome == "rejected"
        agent.claim()
        assert (answer := agent.propose())["decision"] == "denied", answer
        assert answer["rule"] == "gate_refused"

    def test_no_authority(self, house: House) -> None:
        office = open_office(house)
        office.hire("olga", "operator")
        _, request = asked(office)
        assert refused(office, "olga", request) == "no_authority"

    def test_permission_on_the_policy(self, house: House) -> None:
        office = open_office(house, groups=[{"name": "owners", "approvers": True}])
        office.hire("vera", "viewer")
        _, request = asked(office)
        assert refused(office, "vera", request) == "no_authority"
        for allowed in (True, True):
            with tenant_scope(house.id):
                policies.set_approver(
                    tenant=house.id, policy_id=office.policy_id, member_id=office.people["vera"], allowed=allowed,  # type: ignore[arg-type]
                    actor=SYSTEM, now=clock.now(),
                )  # fmt: skip
        assert office.verdict("vera", request).rule == "permission"
        assert office.decide("vera", request).outcome == "approved"

    def test_permission_ends_with_the_membership(self, house: House) -> None:
        office = open_office(house, groups=[{"name": "owners", "approvers": True}])
        office.hire("vera", "viewer")
        with tenant_scope(house.id):
            policies.set_approver(
                tenant=house.id, policy_id=office.policy_id, member_id=office.people["vera"], allowed=True,  # type: ignore[arg-type]
                actor=SYSTEM, now=clock.now(),
            )  # fmt: skip
            assert PolicyPermission.objects.count() == 1
            tenancy_ops.remove_member(tenant=house.id, member_id=office.people["vera"], actor=SYSTEM, now=clock.now())
            assert PolicyPermission.objects.count() == 0


class TestSelfApproval:
    def test_requester(self, house: House) -> None:
        office = open_office(house)
        behind(office, issuer="ann")
        _, request = asked(office)
        assert refused(office, "ann", request) == "requester"
        assert office.decide("ben", request).outcome == "approved"

    def test_agent_owner(self, house: House) -> None:
        office = open_office(house)
        behind(office, owner="ann")
        _, request = asked(office)
        assert refused(office, "ann", request) == "agent_owner"

    def test_agent_owner_since_it_was_asked(self, house: House) -> None:
        office = open_office(house)
        _, request = asked(office)
        behind(office, owner="ann")
        assert refused(office, "ann", request) == "agent_owner"

    def test_who_was_behind_it_stays_behind_it(self, house: House) -> None:
        office = open_office(house)
        behind(office, owner="ann")
        _, request = asked(office)
        behind(office, owner="ben")
        assert refused(office, "ann", request) == "requester"

    def test_editor(self, house: House) -> None:
        office = open_office(house)
        _, request = asked(office)
        edited = office.edit("ann", request, adjustment(amount="1.00"))
        assert office.status(request) == ("superseded", None)
        assert refused(office, "ann", edited) == "editor"
        assert office.decide("ben", edited).outcome == "approved"

    def test_editor_even_where_self_approval_is_allowed(self, house: House) -> None:
        office = open_office(house, self_approval=True)
        behind(office, owner="ann")
        _, request = asked(office)
        assert office.verdict("ann", request).allowed
        edited = office.edit("ann", request, adjustment(amount="1.00"))
        assert refused(office, "ann", edited) == "editor"

    def test_delegate_of_requester(self, house: House) -> None:
        office = open_office(house)
        office.hire("vera", "viewer")
        behind(office, owner="ann")
        stand_in(office, "ann", "vera")
        _, request = asked(office)
        assert refused(office, "vera", request) == "delegate_of_requester"

    def test_requester_as_delegate(self, house: House) -> None:
        office = open_office(house)
        office.hire("vera", "viewer")
        behind(office, owner="vera")
        stand_in(office, "ann", "vera")
        _, request = asked(office)
        assert refused(office, "vera", request) == "agent_owner"

    def test_delegate_through_the_hands_of_the_requester(self, house: House) -> None:
        office = open_office(house)
        office.hire("vera", "viewer")
        office.hire("will", "viewer")
        behind(office, owner="vera")
        stand_in(office, "ann", "vera")
        stand_in(office, "vera", "will")
        _, request = asked(office)
        assert refused(office, "will", request) == "delegate_of_requester"


class TestDelegation:
    def test_delegation(self, house: House) -> None:
        office = open_office(house, **TWO)
        office.hire("vera", "viewer")
        stand_in(office, "ann", "vera")
        _, request = asked(office)
        verdict = office.verdict("vera", request)
        assert (verdict.rule, verdict.authority) == ("delegation", "Ann")
        assert "Ann" in verdict.sentence
        office.decide("vera", request)
        assert refused(office, "ann", request) == "authority_used"
        (vote,) = office.detail(request).votes
        assert (vote.by, vote.for_) == ("Vera", "Ann")

    def test_of_one_policy_only(self, house: House) -> None:
        office = open_office(house)
        office.hire("vera", "viewer")
        other = office.rule("other", priority=-1)
        stand_in(office, "ann", "vera", policy_id=other)
        _, request = asked(office)
        assert refused(office, "vera", request) == "no_authority"

    def test_chain(self, house: House) -> None:
        office = open_office(house)
        for name in ("one", "two", "three", "four"):
            office.hire(name, "viewer")
        for from_, to in (("ann", "one"), ("one", "two"), ("two", "three"), ("three", "four")):
            stand_in(office, from_, to)
        _, request = asked(office)
        verdict = office.verdict("three", request)
        assert (verdict.rule, verdict.authority) == ("delegation", "Ann")
        assert verdict.path == (office.people["one"], office.people["two"])
        assert refused(office, "four", request) == "no_authority"  # three hands at most

    def test_cycle(self, house: House) -> None:
        office = open_office(house)
        office.hire("vera", "viewer")
        office.hire("will", "viewer")
        for from_, to in (("ann", "vera"), ("vera", "will"), ("will", "ann"), ("will", "vera"), ("vera", "ann")):
            stand_in(office, from_, to)
        _, request = asked(office)
        assert office.verdict("ann", request).rule == "role"
        assert office.verdict("will", request).authority == "Ann"
        assert office.decide("will", request).outcome == "approved"

    def test_absent(self, house: House) -> None:
        office = open_office(house)
        found = stand_in(office, "ann", "ben", away=True)
        _, request = asked(office)
        assert refused(office, "ann", request) == "absent"
        assert [d.name for d in office.detail(request).deciders] == ["Ben"]
        with tenant_scope(house.id):
            delegations.revoke(tenant=house.id, delegation_id=found, actor=SYSTEM, now=clock.now())
        assert office.verdict("ann", request).allowed

    @pytest.mark.parametrize(
        ("zone", "first"), [("Asia/Kolkata", date(2026, 12, 1)), ("America/Los_Angeles", date(2026, 11, 1))]
    )
    def test_absence_windows_across_time_zones(self, house: House, zone: str, first: date) -> None:
        starts, ends = (moment.astimezone(UTC) for moment in window(first, first, ZoneInfo(zone)))
        # The day in Kolkata begins on the day before, by UTC; the one in Los Angeles is 25 hours long.
        hours = {"Asia/Kolkata": 24, "America/Los_Angeles": 25}[zone]
        assert ends - starts == timedelta(hours=hours)
        office = open_office(house)
        found = stand_in(office, "ann", None, away=True)
        _, request = asked(office)
        for moment, away in (
            (starts, True), (starts - timedelta(microseconds=1), False), (ends - timedelta(microseconds=1), True), (ends, False),
        ):  # fmt: skip
            shift = clock.now() - moment
            with tenant_scope(house.id):
                # As it is at that moment: the window lies where it would lie now. A second on either side is the test's own time.
                margin = timedelta(seconds=30 if moment in (starts, ends) else -30)
                Delegation.objects.filter(id=found).update(
                    starts_at=starts + shift - margin, ends_at=ends + shift - margin
                )
            assert (office.verdict("ann", request).rule == "absent") is away, (moment, away)

    def test_who_is_away_may_have_nobody_but_must_say_something(self, house: House) -> None:
        office = open_office(house)
        with pytest.raises(Invalid):
            stand_in(office, "ann", None, away=False)
        with pytest.raises(Invalid):
            stand_in(office, "ann", "ann")


class TestRightsAtTheMoment:
    def test_approver_lost_the_role_before_deciding(self, house: House) -> None:
        office = open_office(house)
        _, request = asked(office)
        office.demote("ann")
        assert refused(office, "ann", request) == "no_authority"

    def test_approver_lost_the_role_after_deciding(self, house: House) -> None:
        office = open_office(house)
        agent, request = asked(office)
        office.decide("ann", request)
        office.demote("ann")
        agent.claim()
        answer = agent.propose()
        assert answer["decision"] == "await_approval", answer
        assert office.grants(answer["effect"]) == ["revoked"]
        assert office.status(request) == ("superseded", "approver_lost_role")
        again = office.of_gate(answer["gate"])
        assert office.detail(again).supersedes_id == request
        assert office.decide("ben", again).outcome == "approved"
        agent.claim()
        assert agent.propose()["decision"] == "execute"

    def test_step_up(self, house: House) -> None:
        office = open_office(house, step_up_at="high")
        _, request = asked(office)
        assert office.detail(request).requires_step_up
        for confirmed in (None, clock.now() - timedelta(hours=1), clock.now() + timedelta(hours=1)):
            with pytest.raises(StepUpRequired):
                office.decide("ann", request, confirmed_at=confirmed)
        assert office.decide("ann", request, confirmed_at=clock.now()).outcome == "approved"


class TestServices:
    def test_a_key_decides_where_a_group_names_it(self, house: House) -> None:
        office = open_office(house, groups=[{"name": "bot", "keys": [str(house.key_ids["admin"])]}])
        _, request = asked(office)
        with tenant_scope(house.id):
            verdicts = {
                name: deciding.key_verdicts(tenant=house.id, key_id=house.key_ids[name], request_ids=[request])[request]
                for name in house.key_ids
            }
        assert {name: (v.allowed, v.rule) for name, v in verdicts.items()} == {
            "admin": (True, "key"), "operator": (False, "no_authority"), "agent": (False, "agents_never_decide"),
        }  # fmt: skip

    def test_agents_never_decide(self, house: House) -> None:
        office = open_office(house)
        with pytest.raises(Invalid, match="bound to no agent"):
            office.rule("bots", groups=[{"name": "bot", "keys": [str(house.key_ids["agent"])]}])
        with tenant_scope(house.id), pytest.raises(Invalid, match="approvals:decide"):
            tenancy_ops.issue_key(
                tenant=house.id,
                name="no",
                scopes=["approvals:decide"],
                agent_id=house.agent_id,
                actor=SYSTEM,
                now=clock.now(),
            )
