"""What a policy says, as pure data, and what follows from it for an action. Nothing here reads a clock or a database.

A policy's risk rules raise the risk that the tool's side-effect class has by itself; the highest wins, and its rule is named. Deny
beats everything; of several policies that ask, the one with the highest priority does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Final, Literal
from uuid import UUID

import msgspec
from msgspec import Meta, Struct

from approvals.states import RISKS
from kernel.errors import FieldError, Invalid
from runs.registry import Amounts, SideEffect
from runs.wire import Identifier, Labels

Risk = Literal["low", "medium", "high", "critical"]
RoleName = Literal["owner", "admin", "operator", "approver", "compliance", "auditor", "viewer"]
Seconds = Annotated[float, Meta(ge=1, le=366 * 86_400)]
Names = Annotated[list[Identifier], Meta(max_length=100)]

BASE_RISK: Final[dict[str, Risk]] = {"none": "low", "idempotent": "low", "reversible": "medium", "irreversible": "high"}
RESERVED: Final = ("never", "always")  # what a tool says without naming a policy
MAX_RULES: Final = 64 * 1024  # bytes of one version


class Conditions(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """All that is said must hold. Of a list one must match; `amount_over`: more than so much, or a currency that is not named."""

    tools: Names = []
    side_effects: Annotated[list[SideEffect], Meta(max_length=4)] = []
    amount_over: Amounts | None = None
    labels: Labels = {}
    agents: Names = []
    projects: Names = []


class Match(Conditions, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    risk_at_least: Risk | None = None


class RiskRule(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    name: Identifier
    level: Risk
    when: Conditions = Conditions()


class Group(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`count` of those who have the `role`, are `approvers` of the policy (by object permission), or are one of the service
    `keys`."""

    name: Identifier
    count: Annotated[int, Meta(ge=1, le=20)] = 1
    role: RoleName | None = None
    approvers: bool = False
    keys: Annotated[list[UUID], Meta(max_length=20)] = []


class Escalation(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """After so long those with the role are told; with `decides` they may decide from then on, in every group."""

    after_seconds: Seconds
    role: RoleName
    decides: bool = False


class Rules(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One version of a policy.

    `reminders`: seconds before the deadline. `step_up_at`: from this risk on a person proves anew who they are. `bulk_up_to`: up to
    this risk like requests may be decided together. `evidence_max_age_seconds`: older evidence is stale. `grant_seconds`: how long
    an approval may be used.
    """

    match: Match = Match()
    deny: bool = False
    groups: Annotated[list[Group], Meta(max_length=10)] = []
    risk: Annotated[list[RiskRule], Meta(max_length=50)] = []
    self_approval: bool = False
    deadline_seconds: Seconds = 72 * 3600.0
    reminders: Annotated[list[Seconds], Meta(max_length=10)] = []
    escalation: Annotated[list[Escalation], Meta(max_length=10)] = []
    step_up_at: Risk | None = None
    bulk_up_to: Risk | None = "low"
    evidence_max_age_seconds: Seconds | None = None
    grant_seconds: Seconds = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Facts:
    """What policies see of an action: names and numbers, never what an agent wrote. `approval` is what its tool says."""

    tool: str
    approval: str
    side_effect: str
    amount: Decimal | None
    currency: str | None
    labels: dict[str, str]
    agent: str | None
    project: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """A policy in force, with its version."""

    policy_id: UUID
    version_id: UUID
    name: str
    version: int
    priority: int
    rules: Rules


@dataclass(frozen=True, slots=True)
class Matched:
    """The policy that speaks for an action. `risk_rule` names what set the risk."""

    policy: Candidate
    risk: Risk
    risk_rule: str

    @property
    def denies(self) -> bool:
        return self.policy.rules.deny

    @property
    def step_up(self) -> bool:
        return _reaches(self.risk, self.policy.rules.step_up_at)

    @property
    def bulk(self) -> bool:
        limit = self.policy.rules.bulk_up_to
        return limit is not None and rank(self.risk) <= rank(limit)


def rank(risk: str) -> int:
    return RISKS.index(risk)


def judge(policies: Sequence[Candidate], facts: Facts) -> Matched | None:
    """The policy that speaks for an action; None when none does. A tool may name its policy in `approval`."""
    found: list[Matched] = []
    for policy in policies:
        risk, rule = risk_of(policy.rules, facts)
        if policy.name == facts.approval or _matches(policy.rules.match, facts, risk):
            found.append(Matched(policy, risk, rule))
    found.sort(key=lambda m: (not m.denies, -m.policy.priority, m.policy.name))
    return found[0] if found else None


def risk_of(rules: Rules, facts: Facts) -> tuple[Risk, str]:
    """The risk of an action and the rule that set it."""
    level, name = BASE_RISK[facts.side_effect], f"side_effect:{facts.side_effect}"
    for rule in rules.risk:
        if rank(rule.level) > rank(level) and _holds(rule.when, facts):
            level, name = rule.level, rule.name
    return level, name


def parse(text: str) -> Rules:
    return msgspec.json.decode(text, type=Rules)


def dump(rules: Rules) -> str:
    return msgspec.json.encode(rules).decode()


def check(rules: Rules, *, at: str = "/rules") -> None:
    """What the types cannot say of a version. Raises Invalid that names every field that has a part in it, behind `at`."""
    found: list[FieldError] = []

    def refuse(message: str, *paths: str) -> None:
        found.extend(FieldError(path=f"{at}/{path}", code="invalid_policy", message=message) for path in paths)

    if rules.deny and rules.groups:
        refuse("What is denied is not asked.", "groups", "deny")
    if not rules.deny and not rules.groups:
        refuse("Say who decides, or deny.", "groups", "deny")
    names = [group.name for group in rules.groups]
    for index, group in enumerate(rules.groups):
        if group.role is None and not group.approvers and not group.keys:
            refuse("Name a role, the policy's approvers or keys.", f"groups/{index}")
        elif group.role is None and not group.approvers and group.count > len(group.keys):
            refuse("There are fewer keys than must agree.", f"groups/{index}")
        if names.index(group.name) != index:
            refuse("This name stands twice.", f"groups/{index}/name")
    for index, seconds in enumerate(rules.reminders):
        if seconds >= rules.deadline_seconds:
            refuse("A reminder lies between the request and its deadline.", f"reminders/{index}", "deadline_seconds")
    for index, step in enumerate(rules.escalation):
        if step.after_seconds >= rules.deadline_seconds:
            refuse("An escalation comes before the deadline.", f"escalation/{index}/after_seconds", "deadline_seconds")
    if found:
        raise Invalid(f"{found[0].path}: {found[0].message}", fields=tuple(found))


def _matches(match: Match, facts: Facts, risk: Risk) -> bool:
    return _holds(match, facts) and _reaches(risk, match.risk_at_least, default=True)


def _holds(conditions: Conditions, facts: Facts) -> bool:
    return (
        (not conditions.tools or facts.tool in conditions.tools)
        and (not conditions.side_effects or facts.side_effect in conditions.side_effects)
        and (not conditions.agents or facts.agent in conditions.agents)
        and (not conditions.projects or facts.project in conditions.projects)
        and all(facts.labels.get(name) == value for name, value in conditions.labels.items())
        and (conditions.amount_over is None or _over(conditions.amount_over, facts))
    )


def _over(limits: dict[str, str], facts: Facts) -> bool:
    if facts.amount is None or facts.currency is None:
        return False
    limit = limits.get(facts.currency)
    return limit is None or facts.amount > Decimal(limit)


def _reaches(risk: str, level: str | None, *, default: bool = False) -> bool:
    return default if level is None else rank(risk) >= rank(level)
