"""The inbox: requests that wait, those that this member can decide, and those that are over. Counts are exact.

Every page takes the same number of queries, however many requests there are.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal
from uuid import UUID

from django.db import connection
from django.db.models import Q, QuerySet
from django.db.models.expressions import RawSQL

from approvals import sealing
from approvals.models import Policy, Request, RequestGroup, Vote
from approvals.queries import deciding
from approvals.queries.deciding import Verdict
from approvals.states import RISKS
from kernel.ports import Corrupt
from privacy.keys import KeyShredded
from runs.queries.listing import decode_cursor, encode_cursor
from tenancy.models import Agent, ApiKey, Project

View = Literal["mine", "open", "stale", "history", "all"]
SOON: Final = timedelta(hours=1)

# Open requests on which a member may decide now.
_MINE: Final = "select request_id from approvals_judge(%s, %s::uuid[], null, clock_timestamp()) where allowed"
# What waits, counted in one pass.
_COUNTS: Final = """
select count(*) filter (where status = 'open'), count(*) filter (where status = 'stale'),
       count(*) filter (where status = 'open' and deadline_at <= clock_timestamp() + make_interval(secs => %s)),
       count(*) filter (where status = 'open' and risk = 'low'), count(*) filter (where status = 'open' and risk = 'medium'),
       count(*) filter (where status = 'open' and risk = 'high'), count(*) filter (where status = 'open' and risk = 'critical')
from approvals_request where tenant_id = %s and status in ('open', 'stale')
"""


@dataclass(frozen=True, slots=True)
class Filters:
    """Empty means all. `view`: what I can decide, everything open, what is stale, what is over, or all.

    `bound_agent` and `bound_projects` are the bindings of a key.
    """

    view: View = "open"
    risk: tuple[str, ...] = ()
    tool: str | None = None
    policy_id: UUID | None = None
    agent_id: UUID | None = None
    project_id: UUID | None = None
    run_id: UUID | None = None
    gate_id: UUID | None = None
    effect_id: UUID | None = None
    status: tuple[str, ...] = ()
    bound_agent: UUID | None = None
    bound_projects: frozenset[UUID] | None = None


@dataclass(frozen=True, slots=True)
class GroupProgress:
    name: str
    got: int
    needed: int


@dataclass(frozen=True, slots=True)
class Row:
    """One request in a list. `title` is tool and business object; that is the agent's text, and so is `explanation` (its
    beginning).

    `progress` is "1 of 2" over all groups. `mine`: may I decide? `digest` (hex) is what a decision presents. `bulk`: may be decided
    together with others like it; `step_up`: needs a fresh sign-in. `readable` is false when the subject was erased.
    """

    id: UUID
    title: str
    tool: str
    tool_version: str
    business_object: str
    explanation: str | None
    status: str
    stale_reason: str | None
    risk: str
    risk_rule: str
    amount: str | None
    currency: str | None
    requester: str
    agent: str | None
    project: str
    policy: str
    policy_id: UUID
    run_id: UUID
    gate_id: UUID
    effect_id: UUID
    version: int
    round: int
    opened_at: datetime
    deadline_at: datetime
    decided_at: datetime | None
    groups: tuple[GroupProgress, ...]
    progress: str
    mine: Verdict
    digest: str
    bulk: bool
    step_up: bool
    readable: bool


@dataclass(frozen=True, slots=True)
class Page:
    rows: list[Row]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class Counts:
    """`mine`: on which I may decide now; `waiting`: open, but for others; `soon`: due within an hour; `by_risk` of those open."""

    mine: int
    open: int
    waiting: int
    stale: int
    soon: int
    by_risk: dict[str, int]


def page(
    *, tenant: UUID, member: UUID | None, filters: Filters | None = None, cursor: str | None = None, limit: int = 50,
    key_id: UUID | None = None,
) -> Page:  # fmt: skip
    """Requests: those that wait by deadline, the nearest first; those that are over newest first. For a member, or for a key.

    The caller holds the tenant scope. Raises Invalid for a cursor that is not ours.
    """
    filters = filters or Filters()
    rows = matching(tenant, member, filters)
    history = filters.view in ("history", "all")
    order = "opened_at" if history else "deadline_at"
    if cursor:
        moment, last = decode_cursor(cursor)
        past = "lt" if history else "gt"
        rows = rows.filter(Q(**{f"{order}__{past}": moment}) | Q(**{order: moment, f"id__{past}": last}))
    sign = "-" if history else ""
    found = list(rows.order_by(f"{sign}{order}", f"{sign}id").defer("action")[: limit + 1])
    shown = found[:limit]
    more = encode_cursor(getattr(shown[-1], order), shown[-1].id) if len(found) > limit else None
    return Page(rows_of(tenant=tenant, requests=shown, member=member, key_id=key_id), more)


def counts(*, tenant: UUID, member: UUID | None) -> Counts:
    """Exact numbers for the whole tenant. The caller holds the tenant scope."""
    with connection.cursor() as cursor:
        cursor.execute(_COUNTS, [SOON.total_seconds(), tenant])
        opened, stale, soon, *risks = cursor.fetchone()
    mine = 0 if member is None else deciding.decidable(tenant=tenant, member=member)
    return Counts(mine, opened, opened - mine, stale, soon, dict(zip(RISKS, risks, strict=True)))


def next_mine(*, tenant: UUID, member: UUID, after: UUID | None = None) -> UUID | None:
    """What to look at next: the nearest deadline that this member can decide, other than `after`."""
    rows = matching(tenant, member, Filters(view="mine"))
    if after is not None:
        rows = rows.exclude(id=after)
    found: UUID | None = rows.order_by("deadline_at", "id").values_list("id", flat=True).first()
    return found


def matching(tenant: UUID, member: UUID | None, filters: Filters) -> QuerySet[Request]:
    rows: QuerySet[Request] = Request.objects.all()
    match filters.view:
        case "mine":
            rows = rows.filter(status="open", id__in=RawSQL(_MINE, [tenant, [member]]))  # noqa: S611  our own statement
        case "open":
            rows = rows.filter(status="open")
        case "stale":
            rows = rows.filter(status="stale")
        case "history":
            rows = rows.exclude(status__in=["open", "stale"])
    if filters.status:
        rows = rows.filter(status__in=filters.status)
    if filters.risk:
        rows = rows.filter(risk__in=filters.risk)
    for name in ("tool", "policy_id", "agent_id", "project_id", "run_id", "gate_id", "effect_id"):
        if getattr(filters, name) is not None:
            rows = rows.filter(**{name: getattr(filters, name)})
    if filters.bound_agent is not None:
        rows = rows.filter(agent_id=filters.bound_agent)
    if filters.bound_projects is not None:
        rows = rows.filter(project_id__in=filters.bound_projects)
    return rows


def rows_of(*, tenant: UUID, requests: Sequence[Request], member: UUID | None, key_id: UUID | None = None) -> list[Row]:
    """Read models of requests, in a fixed number of queries."""
    ids = [row.id for row in requests]
    mine: dict[UUID, Verdict] = {}
    if member is not None:
        mine = deciding.verdicts(tenant=tenant, member=member, request_ids=ids)
    elif key_id is not None:
        mine = deciding.key_verdicts(tenant=tenant, key_id=key_id, request_ids=ids)
    agents = dict(Agent.objects.filter(id__in={row.agent_id for row in requests}).values_list("id", "name"))
    keys = dict(ApiKey.objects.filter(id__in={row.requester_id for row in requests}).values_list("id", "name"))
    projects = dict(Project.objects.filter(id__in={row.project_id for row in requests}).values_list("id", "name"))
    policies = dict(Policy.objects.filter(id__in={row.policy_id for row in requests}).values_list("id", "name"))
    groups = progress(requests)
    nobody = Verdict(False, "no_authority", "")
    found = []
    for row in requests:
        summary, readable = _summary(tenant, row)
        agent = None if row.agent_id is None else agents.get(row.agent_id)
        parts = groups[row.id]
        got = sum(min(part.got, part.needed) for part in parts)
        found.append(Row(
            id=row.id, title=f"{row.tool} · {summary.business_object}", tool=row.tool, tool_version=row.tool_version,
            business_object=summary.business_object, explanation=(summary.explanation or "")[:300] or None, status=row.status,
            stale_reason=row.stale_reason, risk=row.risk, risk_rule=row.risk_rule,
            amount=None if row.amount is None else f"{row.amount.normalize():f}", currency=row.currency,
            requester=agent or keys.get(row.requester_id, ""), agent=agent, project=projects.get(row.project_id, ""),
            policy=policies[row.policy_id], policy_id=row.policy_id, run_id=row.run_id, gate_id=row.gate_id,
            effect_id=row.effect_id,
            version=row.version, round=row.round, opened_at=row.opened_at, deadline_at=row.deadline_at, decided_at=row.decided_at,
            groups=parts, progress=f"{got} of {sum(part.needed for part in parts)}", mine=mine.get(row.id, nobody),
            digest=bytes(row.digest).hex(), bulk=row.bulk, step_up=row.step_up, readable=readable,
        ))  # fmt: skip
    return found


def progress(requests: Sequence[Request]) -> dict[UUID, tuple[GroupProgress, ...]]:
    """How far each group of each request is, in its current round."""
    rounds = {row.id: row.round for row in requests}
    got: dict[tuple[UUID, str], int] = defaultdict(int)
    votes = Vote.objects.filter(request_id__in=rounds, decision="approve").values_list("request_id", "round", "group")
    for request_id, number, group in votes:
        got[request_id, group] += number == rounds[request_id]
    parts: dict[UUID, list[GroupProgress]] = {request_id: [] for request_id in rounds}
    for group in RequestGroup.objects.filter(request_id__in=rounds).order_by("position"):
        if group.round == rounds[group.request_id]:
            parts[group.request_id].append(GroupProgress(group.name, got[group.request_id, group.name], group.needed))
    return {request_id: tuple(found) for request_id, found in parts.items()}


def _summary(tenant: UUID, row: Request) -> tuple[sealing.Summary, bool]:
    try:
        found = sealing.open_summary(tenant=tenant, key_id=row.data_key_id, row=row.id, blob=bytes(row.summary))
        return found, True
    except (Corrupt, KeyShredded):
        return sealing.Summary(business_object=""), False
