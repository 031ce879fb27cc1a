"""One request with everything that a decision rests on, in a fixed number of queries."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec
from django.db.models import Q
from msgspec import Raw

from approvals import rules, sealing
from approvals.models import Activity, Comment, Evidence, Policy, PolicyVersion, Request, RequestGroup, Vote
from approvals.queries import deciding, inbox
from approvals.queries.deciding import Decider, Verdict
from approvals.queries.inbox import Row
from kernel import pool
from kernel.errors import NotFound
from kernel.ports import Corrupt
from privacy.keys import KeyShredded
from runs.models import Gate, Grant
from runs.queries.checkpoints import Change, changes_between
from tenancy.models import Agent, ApiKey, Member
from tenancy.queries import Principal

MAX_ACTIVITY: Final = 200
STANDING: Final = "select * from approvals_standing(%b, %b, %b, %b)"


@dataclass(frozen=True, slots=True)
class EvidenceItem:
    """`title` and `content` (JSON text) are as they were when it was asked; `digest` (hex) is that of the thing itself."""

    id: UUID
    kind: str
    title: str
    digest: str
    content: bytes | None
    observed_at: datetime
    run_id: UUID | None
    seq: int | None
    artifact_id: UUID | None


@dataclass(frozen=True, slots=True)
class VoteRow:
    """`by` decided, in the right of `for_` when it was delegated."""

    by: str
    by_id: UUID
    by_kind: str
    for_: str | None
    group: str
    decision: str
    reason: str | None
    at: datetime
    current: bool


@dataclass(frozen=True, slots=True)
class GroupDetail:
    """`who` says who belongs to it: a role, the policy's approvers, keys. `can` are those who may still decide."""

    name: str
    got: int
    needed: int
    roles: tuple[str, ...]
    approvers: bool
    keys: tuple[str, ...]
    votes: tuple[VoteRow, ...]
    can: tuple[Decider, ...]


@dataclass(frozen=True, slots=True)
class CommentRow:
    id: UUID
    kind: str
    author: str
    author_kind: str
    text: str
    answers_id: UUID | None
    at: datetime


@dataclass(frozen=True, slots=True)
class ActivityRow:
    kind: str
    actor: str
    actor_kind: str
    at: datetime
    detail: dict[str, Any]


@dataclass(frozen=True, slots=True)
class PolicyBasis:
    """The version of the policy that asks, and its rules as JSON. `current` is false when another version is in force by now."""

    id: UUID
    name: str
    version: int
    rules: bytes
    current: bool


@dataclass(frozen=True, slots=True)
class GrantState:
    """`status`: unused, used, revoked or lapsed."""

    id: UUID
    status: str
    minted_at: datetime
    expires_at: datetime
    used_at: datetime | None


@dataclass(frozen=True, slots=True)
class Detail:
    """`action` are the arguments as canonical JSON, whole; None when the subject was erased. `explanation` is whole too.

    `previous` are the arguments of the request that this one superseded, `diff_previous` what changed since; `target` is what the
    agent said the target looked like, `target_version` its version, `diff_target` what the action would change of it.
    """

    row: Row
    action: bytes | None
    action_size: int
    action_digest: str
    explanation: str | None
    previous: bytes | None
    diff_previous: tuple[Change, ...]
    target: bytes | None
    target_version: str | None
    diff_target: tuple[Change, ...]
    evidence: tuple[EvidenceItem, ...]
    policy: PolicyBasis
    groups: tuple[GroupDetail, ...]
    votes: tuple[VoteRow, ...]
    comments: tuple[CommentRow, ...]
    activity: tuple[ActivityRow, ...]
    verdict: Verdict
    deciders: tuple[Decider, ...]
    grant: GrantState | None
    gate_status: str
    grant_seconds: float
    editors: tuple[str, ...]
    editable: bool
    requires_step_up: bool
    supersedes_id: UUID | None
    superseded_by: UUID | None


def detail(*, tenant: UUID, request_id: UUID, member: UUID | None = None, principal: Principal | None = None) -> Detail:
    """A request as a member, or a key (`principal`), sees it. The caller holds the tenant scope. Raises NotFound."""
    request = visible(principal).filter(id=request_id).first()
    if request is None:
        raise NotFound("There is no such request.")
    key_id = principal.id if principal is not None and principal.kind == "key" else None
    row = inbox.rows_of(tenant=tenant, requests=[request], member=member, key_id=key_id)[0]
    chain = Request.objects.filter(Q(id=request.supersedes_id) | Q(supersedes_id=request.id))
    others = {other.id: other for other in chain}
    previous = others.get(request.supersedes_id) if request.supersedes_id else None
    action = _open(tenant, request, bytes(request.action))
    before = None if previous is None else _open(tenant, previous, bytes(previous.action))
    comments = list(Comment.objects.filter(request_id=request_id).order_by("id"))
    activity = list(Activity.objects.filter(request_id=request_id).order_by("id")[:MAX_ACTIVITY])
    votes = list(Vote.objects.filter(request_id=request_id).order_by("at", "id"))
    groups = list(RequestGroup.objects.filter(request_id=request_id, round=request.round).order_by("position"))
    names = _names(request, comments, activity, votes, groups)
    evidence = _evidence(tenant, request)
    target = next((item for item in evidence if item.kind == "target"), None)
    policy = Policy.objects.get(id=request.policy_id)
    version = PolicyVersion.objects.get(id=request.policy_version_id)
    grant = Grant.objects.filter(gate_id=request.gate_id).first()
    gate = Gate.objects.get(id=request.gate_id)
    summary = sealing.Summary("")
    if row.readable:
        summary = sealing.open_summary(
            tenant=tenant, key_id=request.data_key_id, row=request.id, blob=bytes(request.summary)
        )
    can = deciding.deciders(tenant=tenant, request_id=request_id) if request.status == "open" else []
    said = tuple(_vote(tenant, request, vote, names) for vote in votes)
    return Detail(
        row=row, action=action, action_size=request.action_size, action_digest=bytes(request.action_digest).hex(),
        explanation=summary.explanation, previous=before, diff_previous=_diff(before, action),
        target=None if target is None else target.content, target_version=summary.target_version,
        diff_target=_diff_target(None if target is None else target.content, action), evidence=evidence,
        policy=PolicyBasis(
            policy.id, policy.name, version.version, version.rules.encode(),
            policy.enabled and policy.active_version == version.version,
        ),
        groups=tuple(
            GroupDetail(
                name=group.name, got=sum(v.group == group.name and v.decision == "approve" and v.current for v in said),
                needed=group.needed,
                roles=tuple(group.roles), approvers=group.approvers, keys=tuple(names.get(key, "") for key in group.keys),
                votes=tuple(v for v in said if v.group == group.name and v.current),
                can=tuple(d for d in can if d.group == group.name),
            )
            for group in groups
        ),
        votes=said, comments=tuple(_comment(tenant, request, comment, names) for comment in comments),
        activity=tuple(
            ActivityRow(item.kind, names.get(item.actor_id, ""), item.actor_kind, item.at, item.detail) for item in activity
        ),
        verdict=row.mine, deciders=tuple(can),
        grant=None if grant is None else GrantState(grant.id, grant.status, grant.minted_at, grant.expires_at, grant.used_at),
        gate_status=gate.status, grant_seconds=request.grant_seconds, editors=tuple(names.get(editor,
        "") for editor in request.editors),
        editable=request.status == "open" and row.mine.rule in (*_RIGHTS, "editor") and row.readable,
        requires_step_up=request.step_up, supersedes_id=request.supersedes_id,
        superseded_by=next((other.id for other in others.values() if other.supersedes_id == request.id), None),
    )  # fmt: skip


_RIGHTS: Final = ("role", "permission", "delegation", "already_voted", "group_complete")


def visible(principal: Principal | None) -> Any:
    """The requests that a key may see, by its bindings; all, for members."""
    rows = Request.objects.all()
    if principal is not None and principal.agent_id is not None:
        rows = rows.filter(agent_id=principal.agent_id)
    if principal is not None and principal.project_ids is not None:
        rows = rows.filter(project_id__in=principal.project_ids)
    return rows


def standing(*, tenant: UUID, request_id: UUID, principal: Principal) -> tuple[str, str]:
    """Status and digest (hex) of a request, for whoever waits for it. Raises NotFound."""
    found = visible(principal).filter(id=request_id).values_list("status", "digest").first()
    if found is None:
        raise NotFound("There is no such request.")
    return found[0], bytes(found[1]).hex()


def standing_now(*, tenant: UUID, request_id: UUID, principal: Principal) -> tuple[str, str]:
    """The same outside a tenant scope, without a connection of Django's."""
    projects = None if principal.project_ids is None else list(principal.project_ids)
    status, digest = pool.one(STANDING, (tenant, principal.agent_id, projects, request_id))
    if status is None:
        raise NotFound("There is no such request.")
    return status, bytes(digest).hex()


def _open(tenant: UUID, request: Request, blob: bytes) -> bytes | None:
    try:
        return sealing.open_(tenant=tenant, key_id=request.data_key_id, row=request.id, blob=blob)
    except (Corrupt, KeyShredded):
        return None


def _text(tenant: UUID, request: Request, row: UUID, blob: Any) -> str | None:
    if blob is None:
        return None
    try:
        return sealing.open_(tenant=tenant, key_id=request.data_key_id, row=row, blob=bytes(blob)).decode()
    except (Corrupt, KeyShredded):
        return None


def _vote(tenant: UUID, request: Request, vote: Vote, names: dict[UUID | None, str]) -> VoteRow:
    return VoteRow(
        by=names.get(vote.voter_id, ""), by_id=vote.voter_id, by_kind=vote.voter_kind,
        for_=None if vote.authority_id == vote.voter_id else names.get(vote.authority_id, ""), group=vote.group,
        decision=vote.decision, reason=_text(tenant, request, vote.id, vote.reason), at=vote.at,
        current=vote.round == request.round,
    )  # fmt: skip


def _comment(tenant: UUID, request: Request, comment: Comment, names: dict[UUID | None, str]) -> CommentRow:
    text = _text(tenant, request, comment.id, comment.text) or ""
    return CommentRow(
        comment.id, comment.kind, names.get(comment.author_id, ""), comment.author_kind, text, comment.answers_id, comment.at
    )  # fmt: skip


def _evidence(tenant: UUID, request: Request) -> tuple[EvidenceItem, ...]:
    found = []
    for item in Evidence.objects.filter(request_id=request.id, round=request.round).order_by("position"):
        text = _text(tenant, request, item.id, item.snapshot)
        snapshot: dict[str, Raw] = {} if text is None else msgspec.json.decode(text, type=dict[str, Raw])
        title = msgspec.json.decode(snapshot["title"]) if "title" in snapshot else ""
        content = bytes(snapshot["content"]) if "content" in snapshot else None
        found.append(
            EvidenceItem(
                item.id, item.kind, title, bytes(item.digest).hex(), content, item.observed_at, item.event_run_id,
                item.event_seq, item.artifact_id,
            )
        )  # fmt: skip
    return tuple(found)


def _names(
    request: Request, comments: list[Comment], activity: list[Activity], votes: list[Vote], groups: list[RequestGroup]
) -> dict[UUID | None, str]:
    """Names of everybody who is named: members, keys, agents."""
    ids: set[UUID] = {request.requester_id, *request.editors}
    ids |= {comment.author_id for comment in comments} | {item.actor_id for item in activity if item.actor_id}
    ids |= {vote.voter_id for vote in votes} | {vote.authority_id for vote in votes}
    ids |= {key for group in groups for key in group.keys}
    found: dict[UUID | None, str] = {None: ""}
    for model in (Agent, ApiKey, Member):
        found |= dict(model.objects.filter(id__in=ids).values_list("id", "name"))
    return found


def _diff(before: bytes | None, after: bytes | None) -> tuple[Change, ...]:
    if before is None or after is None or before == after:
        return ()
    return tuple(changes_between(_object(before), _object(after)))


def _diff_target(target: bytes | None, action: bytes | None) -> tuple[Change, ...]:
    """What the action would change of the target as it was shown. What it does not speak of stays, and is no difference."""
    return tuple(change for change in _diff(target, action) if change.kind != "removed")


def _object(text: bytes) -> bytes:
    """Differences are of objects; another value stands as the only member of one."""
    return text if text.lstrip()[:1] == b"{" else b'{"":%b}' % text


def rules_of(basis: PolicyBasis) -> rules.Rules:
    return rules.parse(basis.rules.decode())
