"""What the routes of approvals take and answer."""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from msgspec import Meta, Raw, Struct, field

from approvals.queries.inbox import Row
from approvals.queries.policies import DelegationRow, PolicyRow
from approvals.queries.request import Detail
from approvals.rules import Risk, Rules
from kernel.moments import Moment
from runs.wire import EvidenceIn, Identifier, TargetIn

Status = Literal["open", "approved", "rejected", "expired", "withdrawn", "superseded", "stale"]
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Reason = Annotated[str, Meta(min_length=1, max_length=2000)]


class RequestsQuery(Struct, forbid_unknown_fields=True):
    """`view`: everything that is open (default), stale, or over. `gate_id` finds the request of a gate, whatever became of it."""

    view: Literal["open", "stale", "history"] | None = None
    status: list[Status] = []
    risk: list[Risk] = []
    tool: Identifier | None = None
    policy_id: UUID | None = None
    run_id: UUID | None = None
    gate_id: UUID | None = None
    effect_id: UUID | None = None
    cursor: Annotated[str, Meta(max_length=200)] | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 50


class WaitQuery(Struct, forbid_unknown_fields=True):
    """Waits until the status is another than `status`, at most `wait_seconds`."""

    status: Status = "open"
    wait_seconds: Annotated[float, Meta(ge=0, le=60)] = 0.0


class GroupOut(Struct):
    name: str
    got: int
    needed: int


class VerdictOut(Struct):
    """May this key decide? `rule` says by what right, or why not."""

    allowed: bool
    rule: str
    sentence: str


class RequestOut(Struct):
    """One request. `digest` is what a decision must present; `stale_reason` why it must be asked again."""

    id: UUID
    status: Status
    digest: str
    version: int
    round: int
    gate: UUID
    run_id: UUID
    effect: UUID
    tool: str
    tool_version: str
    business_object: str
    explanation: str | None
    risk: Risk
    risk_rule: str
    amount: str | None
    currency: str | None
    policy: str
    policy_id: UUID
    requester: str
    stale_reason: str | None
    progress: str
    groups: list[GroupOut]
    opened_at: datetime
    deadline_at: datetime
    decided_at: datetime | None
    mine: VerdictOut


class RequestsOut(Struct):
    items: list[RequestOut]
    next_cursor: str | None


class ChangeOut(Struct):
    """One difference; `path` is a JSON pointer, values are JSON text."""

    path: str
    kind: Literal["added", "removed", "changed"]
    before: str | None
    after: str | None


class EvidenceOut(Struct):
    id: UUID
    kind: Literal["event", "artifact", "fact", "target"]
    title: str
    digest: str
    content: Any
    observed_at: datetime
    run_id: UUID | None
    seq: int | None
    artifact_id: UUID | None


class VoteOut(Struct):
    by: str
    by_kind: Literal["member", "key"]
    for_: str | None = field(name="for")
    group: str
    decision: Literal["approve", "reject"]
    reason: str | None
    at: datetime
    current: bool


class CommentOut(Struct):
    id: UUID
    kind: Literal["comment", "question", "answer"]
    author: str
    author_kind: str
    text: str
    answers_id: UUID | None
    at: datetime


class ActivityOut(Struct):
    kind: str
    actor: str
    actor_kind: str
    at: datetime
    detail: dict[str, Any]


class GrantOut(Struct):
    id: UUID
    status: Literal["unused", "used", "revoked", "lapsed"]
    minted_at: datetime
    expires_at: datetime
    used_at: datetime | None


class DetailOut(Struct):
    """`action` are the arguments, whole; null when the subject was erased. `previous` those of the request that was superseded."""

    request: RequestOut
    action: Any
    action_digest: str
    explanation: str | None
    previous: Any
    diff_previous: list[ChangeOut]
    target: Any
    target_version: str | None
    diff_target: list[ChangeOut]
    evidence: list[EvidenceOut]
    policy_version: int
    votes: list[VoteOut]
    comments: list[CommentOut]
    activity: list[ActivityOut]
    deciders: list[str]
    grant: GrantOut | None
    supersedes: UUID | None
    superseded_by: UUID | None


class StandingOut(Struct):
    id: UUID
    status: Status
    digest: str


class WithdrawIn(Struct, forbid_unknown_fields=True):
    reason: Reason | None = None


class ReasonIn(Struct, forbid_unknown_fields=True):
    reason: Reason


class RevalidateIn(Struct, forbid_unknown_fields=True):
    """`evidence` takes the place of the old; left out, what still holds of it is kept."""

    evidence: Annotated[list[EvidenceIn], Meta(max_length=50)] | None = None


class AskedOut(Struct):
    """The request that waits now; null when there is nothing left to ask."""

    request: UUID | None
    status: str
    digest: str | None


class CommentIn(Struct, forbid_unknown_fields=True):
    text: Annotated[str, Meta(min_length=1, max_length=8000)]
    kind: Literal["comment", "question", "answer"] = "comment"
    answers: UUID | None = None


class CommentedOut(Struct):
    id: UUID


class DecideIn(Struct, forbid_unknown_fields=True):
    """`digest`: of what was looked at."""

    digest: Digest
    answer: Literal["approve", "reject"]
    reason: Reason | None = None


class ChoiceIn(Struct, forbid_unknown_fields=True):
    request: UUID
    digest: Digest


class DecideManyIn(Struct, forbid_unknown_fields=True):
    answer: Literal["approve", "reject"]
    requests: Annotated[list[ChoiceIn], Meta(min_length=1, max_length=100)]
    reason: Reason | None = None


class DecisionOut(Struct):
    """`outcome`: approved, rejected or waiting (for others); stale or expired when nothing was recorded."""

    request: UUID
    outcome: str
    recorded: bool
    progress: str
    grant: UUID | None
    stale_reason: str | None


class DecidedOne(Struct):
    """`decision`, or the `code` of its refusal."""

    request: UUID
    decision: DecisionOut | None
    code: str | None
    detail: str | None


class DecidedMany(Struct):
    items: list[DecidedOne]


class TargetOut(Struct):
    status: Status


class ApproverOut(Struct):
    member_id: UUID
    name: str


class PolicyOut(Struct):
    id: UUID
    name: str
    priority: int
    enabled: bool
    version: int
    rules: Rules
    approvers: list[ApproverOut]
    created_at: datetime
    updated_at: datetime


class PoliciesOut(Struct):
    items: list[PolicyOut]


class PolicyIn(Struct, forbid_unknown_fields=True):
    name: Identifier
    rules: Rules
    priority: Annotated[int, Meta(ge=-1000, le=1000)] = 0


class PolicyChangeIn(Struct, forbid_unknown_fields=True):
    rules: Rules | None = None
    priority: Annotated[int, Meta(ge=-1000, le=1000)] | None = None
    enabled: bool | None = None


class PolicyVersionOut(Struct):
    version: int
    rules: Rules
    created_at: datetime
    created_by: str


class PolicyVersionsOut(Struct):
    items: list[PolicyVersionOut]


class DryRunIn(Struct, forbid_unknown_fields=True):
    """`policy_id`: in the place of that policy; without it as one more, with `name` and `priority`."""

    rules: Rules
    last: Annotated[int, Meta(ge=1, le=1000)] = 100
    policy_id: UUID | None = None
    name: Identifier = "dry-run"
    priority: Annotated[int, Meta(ge=-1000, le=1000)] = 0


class TriedOut(Struct):
    effect_id: UUID
    run_id: UUID
    tool: str
    amount: str | None
    currency: str | None
    at: datetime
    now: Literal["allow", "ask", "deny"]
    then: Literal["allow", "ask", "deny"]
    policy: str | None
    risk: Risk | None
    risk_rule: str | None


class DryRunOut(Struct):
    actions: list[TriedOut]
    counts: dict[str, int]
    changed: int


class DelegationIn(Struct, forbid_unknown_fields=True):
    """From `starts_at` until before `ends_at`. `away`: who delegates does not decide meanwhile; then `to` may be left out."""

    from_: UUID = field(name="from")
    starts_at: Moment
    ends_at: Moment
    to: UUID | None = None
    policy_id: UUID | None = None
    away: bool = False
    reason: Reason | None = None


class DelegationOut(Struct):
    id: UUID
    from_id: UUID
    from_: str = field(name="from")
    to_id: UUID | None
    to: str | None
    policy_id: UUID | None
    policy: str | None
    away: bool
    starts_at: datetime
    ends_at: datetime
    reason: str | None
    created_at: datetime
    created_by: str
    revoked_at: datetime | None
    state: Literal["planned", "active", "over", "revoked"]


class DelegationsOut(Struct):
    items: list[DelegationOut]


class DelegationsQuery(Struct, forbid_unknown_fields=True):
    member_id: UUID | None = None


TargetReportIn = TargetIn


def request_out(row: Row) -> dict[str, Any]:
    same = (
        "id", "status", "digest", "version", "round", "run_id", "tool", "tool_version", "business_object", "explanation", "risk",
        "risk_rule", "amount", "currency", "policy", "policy_id", "requester", "stale_reason", "progress", "groups", "opened_at",
        "deadline_at", "decided_at",
    )  # fmt: skip
    mine = {"allowed": row.mine.allowed, "rule": row.mine.rule, "sentence": row.mine.sentence}
    found = {name: getattr(row, name) for name in same}
    return found | {"gate": row.gate_id, "effect": row.effect_id, "mine": mine}


def detail_out(found: Detail) -> dict[str, Any]:
    evidence = [
        {name: getattr(item, name) for name in EvidenceOut.__struct_fields__ if name != "content"} | {"content": _raw(item.content)}
        for item in found.evidence
    ]  # fmt: skip
    votes = [
        {"for" if name == "for_" else name: getattr(vote, name) for name in VoteOut.__struct_fields__} for vote in found.votes
    ]  # fmt: skip
    return {
        "request": request_out(found.row), "action": _raw(found.action), "action_digest": found.action_digest,
        "explanation": found.explanation, "previous": _raw(found.previous), "diff_previous": found.diff_previous,
        "target": _raw(found.target), "target_version": found.target_version, "diff_target": found.diff_target,
        "evidence": evidence,
        "policy_version": found.policy.version, "votes": votes, "comments": found.comments, "activity": found.activity,
        "deciders": sorted({decider.name for decider in found.deciders}), "grant": found.grant, "supersedes": found.supersedes_id,
        "superseded_by": found.superseded_by,
    }  # fmt: skip


def policy_out(row: PolicyRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in PolicyOut.__struct_fields__}


def delegation_out(row: DelegationRow) -> dict[str, Any]:
    names = DelegationOut.__struct_fields__
    return {"from" if name == "from_" else name: getattr(row, name) for name in names}


def _raw(text: bytes | None) -> Raw | None:
    return None if text is None else Raw(text)
