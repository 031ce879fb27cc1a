"""An office: people with roles, a policy, and an agent whose action waits. Decisions go through the domain."""

import uuid
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from django.db import connections

from approvals import rules
from approvals.models import Request
from approvals.operations import asking, decisions, policies
from approvals.operations.decisions import Decision
from approvals.queries import deciding, request
from approvals.queries.deciding import Verdict
from approvals.queries.request import Detail
from kernel import actor, clock
from kernel.actor import Actor
from kernel.context import tenant_scope
from runs.models import Grant
from tenancy import operations as tenancy_ops
from tenancy.models import Member
from tenancy.queries import ROLE_ACTIONS, Principal
from tests.cast import House, client
from tests.runs.driver import Worker, register, tamperer

TOOL = "post_adjustments"
SYSTEM = actor.system("tests")


def adjustment(batch: str = "B-1", amount: str = "250000.00", **extra: Any) -> dict[str, Any]:
    return {"batch": batch, "amount": amount, "currency": "INR", **extra}


def policy_rules(**changes: Any) -> dict[str, Any]:
    """One approver for adjustments; anything else that a test needs of it."""
    return {"match": {"tools": [TOOL]}, "groups": [{"name": "finance", "role": "approver"}], **changes}


@dataclass
class Office:
    house: House
    people: dict[str, UUID] = field(default_factory=dict)
    policy_id: UUID | None = None

    def hire(self, name: str, *roles: str) -> UUID:
        """A member with these roles."""
        now = clock.now()
        with tenant_scope(self.house.id):
            email = f"{name}.{uuid.uuid4().hex[:12]}@acme.example"
            user = tenancy_ops.create_user(email=email, password=uuid.uuid4().hex, name=name.title(), now=now)
            member = tenancy_ops.add_member(
                tenant=self.house.id, user=user, roles=roles or ["approver"], actor=SYSTEM, now=now
            )
        self.people[name] = member.id
        return member.id

    def rule(self, name: str = "adjustments", priority: int = 0, **changes: Any) -> UUID:
        """A policy, in force."""
        with tenant_scope(self.house.id):
            row = policies.create_policy(
                tenant=self.house.id, name=name, priority=priority, definition=parsed(policy_rules(**changes)), actor=SYSTEM,
                now=clock.now(),
            )  # fmt: skip
        self.policy_id = self.policy_id or row.id
        return row.id

    def change(self, policy_id: UUID | None = None, **changes: Any) -> None:
        """Another version of the policy, or other switches (`enabled`, `priority`)."""
        switches = {name: changes.pop(name) for name in ("enabled", "priority") if name in changes}
        definition = parsed(policy_rules(**changes)) if changes else None
        with tenant_scope(self.house.id):
            policies.change_policy(
                tenant=self.house.id, policy_id=policy_id or self.policy_id or uuid.uuid4(), definition=definition, actor=SYSTEM,
                now=clock.now(), **switches,
            )  # fmt: skip

    def principal(self, name: str) -> Principal:
        with tenant_scope(self.house.id):
            member = Member.objects.get(id=self.people[name])
        return Principal(
            kind="member", id=member.id, tenant_id=self.house.id, tenant_slug=self.house.slug, name=member.name,
            actions=frozenset().union(*(ROLE_ACTIONS[role] for role in member.roles)), roles=frozenset(member.roles),
            user_id=member.user_id,
        )  # fmt: skip

    def demote(self, name: str, *roles: str) -> None:
        with tenant_scope(self.house.id):
            tenancy_ops.change_roles(
                tenant=self.house.id,
                member_id=self.people[name],
                roles=roles or ["viewer"],
                actor=SYSTEM,
                now=clock.now(),
            )

    def decide(self, name: str, request_id: UUID, answer: Any = "approve", **extra: Any) -> Decision:
        """What `name` decides on what is shown now."""
        principal = self.principal(name)
        digest = extra.pop("digest", None) or self.digest(request_id)
        with tenant_scope(self.house.id):
            return decisions.decide(
                tenant=self.house.id, principal=principal, request_id=request_id, digest=digest, answer=answer,
                reason=extra.pop("reason", "looked at it"), actor=principal.actor, now=clock.now(), **extra,
            )  # fmt: skip

    def edit(self, name: str, request_id: UUID, arguments: Any, digest: str | None = None) -> UUID:
        principal = self.principal(name)
        shown = digest or self.digest(request_id)
        with tenant_scope(self.house.id):
            asked = asking.edit(
                tenant=self.house.id, member=principal.id, request_id=request_id, digest=shown,
                arguments=msgspec.json.encode(arguments), reason=None, actor=principal.actor, now=clock.now(),
            )  # fmt: skip
        assert asked.request_id is not None
        return asked.request_id

    def revoke(self, name: str, request_id: UUID) -> None:
        principal = self.principal(name)
        with tenant_scope(self.house.id):
            decisions.revoke(
                tenant=self.house.id, principal=principal, request_id=request_id, reason="changed my mind",
                actor=principal.actor, now=clock.now(),
            )  # fmt: skip

    def verdict(self, name: str, request_id: UUID) -> Verdict:
        with tenant_scope(self.house.id):
            return deciding.may_decide(tenant=self.house.id, member=self.people[name], request_id=request_id)

    def detail(self, request_id: UUID, name: str | None = None) -> Detail:
        with tenant_scope(self.house.id):
            return request.detail(
                tenant=self.house.id, request_id=request_id, member=None if name is None else self.people[name]
            )

    def digest(self, request_id: UUID) -> str:
        with tenant_scope(self.house.id):
            return bytes(Request.objects.values_list("digest", flat=True).get(id=request_id)).hex()

    def of_gate(self, gate: str) -> UUID:
        with tenant_scope(self.house.id):
            found: UUID = Request.objects.values_list("id", flat=True).get(gate_id=UUID(gate))
            return found

    def status(self, request_id: UUID) -> tuple[str, str | None]:
        with tenant_scope(self.house.id):
            found: tuple[str, str | None] = Request.objects.values_list("status", "stale_reason").get(id=request_id)
            return found

    def grants(self, effect: str) -> list[str]:
        with tenant_scope(self.house.id):
            return list(Grant.objects.filter(effect_id=effect).order_by("minted_at").values_list("status", flat=True))


def parsed(value: dict[str, Any]) -> rules.Rules:
    return rules.parse(msgspec.json.encode(value).decode())


def open_office(house: House, **changes: Any) -> Office:
    """Olaf owns the tenant, Ann and Ben approve; the tool and its policy are there."""
    office = Office(house)
    register(house, TOOL, business_key="{batch}", amount={"path": "amount", "currency_path": "currency"})
    office.hire("olaf", "owner")
    office.hire("ann")
    office.hire("ben")
    office.rule(**changes)
    return office


class Agent(Worker):
    """A worker whose step asks for an adjustment."""

    def begin(self) -> "Agent":
        self.start("post")
        self.claim()
        return self

    def propose(self, input: dict[str, Any] | None = None, **extra: Any) -> dict[str, Any]:
        return self.reserve(TOOL, input=input or adjustment(), **extra)


def asked(office: Office, input: dict[str, Any] | None = None, **extra: Any) -> tuple[Agent, UUID]:
    """An agent that waits at a gate, and the request that governs it."""
    agent = Agent(office.house).begin()
    answer = agent.propose(input, **extra)
    assert answer["decision"] == "await_approval", answer
    return agent, office.of_gate(answer["gate"])


def let_deadline_pass(request_id: UUID) -> None:
    """Time passes until just after the deadline, by the database's clock."""
    of = "(select gate_id from approvals_request where id = %s)"
    with tamperer() as database:
        past = "clock_timestamp() - interval '1 ms'"
        database.execute(f"update runs_gate set expires_at = {past} where id = {of}".encode(), [request_id])
        moment = "(select expires_at from runs_gate g where g.id = gate_id)"
        database.execute(f"update approvals_request set deadline_at = {moment} where id = %s".encode(), [request_id])


def ring(request_id: UUID, kind: str = "") -> None:
    """Time passes until alarms of a request are due."""
    with tamperer() as database:
        database.execute(
            "update approvals_alarm set due_at = clock_timestamp()"
            " where request_id = %s and due_at is not null and kind like %s",
            [request_id, f"{kind}%"],
        )


def close_connections() -> None:
    connections.close_all()


def member_actor(office: Office, name: str) -> Actor:
    return office.principal(name).actor


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


__all__ = ["Agent", "Office", "adjustment", "asked", "client", "open_office"]
