"""Counting the logs into roll-ups, each event once.

Invariant: what was counted is what stands before the cursor, because both change in one transaction under the cursor's lock; and
what an event counts for can be computed again from the log, whatever came after it. Only numbers and the declared vocabulary are
kept; of payloads nothing but `usage`. Where a payload was erased before it was counted, its cost is unknown and counted as such.
"""

import re
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec
from django.db import connection
from django.db.models import Max, Min

from kernel import context, pool
from runs import queries
from runs.models import Attempt, Event, Feed, Rollup, RollupCursor, RollupTotal, Run, Step, StepDependency
from runs.operations.feed import advance_feed
from runs.queries import EventRow, FeedCursor
from runs.queries.metrics import NO_AGENT, NO_SLOT, slot
from runs.wire import Usage

# Tenants whose logs were not counted to their end: ids only.
UNCOUNTED: Final = "select tenant from runs_uncounted_tenants(%s)"
# Adds to the numbers of a tenant.
ADD: Final = """
insert into runs_rollup (tenant_id, hour, project_id, agent_id, workflow, workflow_version, agent_version, metric, name, slot,
                         count, total)
select %s, * from unnest(%s::timestamptz[], %s::uuid[], %s::uuid[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[],
                         %s::smallint[], %s::bigint[], %s::numeric[])
on conflict (tenant_id, hour, project_id, agent_id, workflow, workflow_version, agent_version, metric, name, slot)
do update set count = runs_rollup.count + excluded.count, total = runs_rollup.total + excluded.total
"""
ADD_TOTALS: Final = """
insert into runs_rolluptotal (tenant_id, metric, slot, count, total)
select %s, * from unnest(%s::text[], %s::smallint[], %s::bigint[], %s::numeric[])
on conflict (tenant_id, metric, slot)
do update set count = runs_rolluptotal.count + excluded.count, total = runs_rolluptotal.total + excluded.total
"""
# The totals, from the rows of all hours.
SUM_TOTALS: Final = """
insert into runs_rolluptotal (tenant_id, metric, slot, count, total)
select tenant_id, metric, slot, sum(count), sum(total) from runs_rollup where tenant_id = %s group by tenant_id, metric, slot
on conflict (tenant_id, metric, slot) do update set count = excluded.count, total = excluded.total
"""

BATCH: Final = 2000
_PAYLOAD_BYTES: Final = 8 * 1024 * 1024
_TENANTS: Final = 10_000
_usage: Final = msgspec.json.Decoder(Usage)
# A plan of many pieces (`piece-0001`, …) is one line of a report: each number of three digits or more counts as the same name.
_NUMBER: Final = re.compile(r"\d{3,}")

_ENDS: Final = {
    "run_completed": "completed", "run_failed": "failed", "run_cancelled": "cancelled", "run_dead_letter": "dead_letter",
}  # fmt: skip
_STEP_ENDS: Final = {"step_succeeded": "steps_succeeded", "step_failed": "steps_failed"}
_STEPS: Final = {"lease_lost": "leases_lost", "step_dead_letter": "steps_dead_letter"}
# The effect ledger names its tool in a label.
_EFFECTS: Final = {
    f"effect_{state}": f"tool_{state}"
    for state in ("reserved", "executing", "succeeded", "failed", "unknown", "reconciled")
}
_GATE_ENDS: Final = {"gate_satisfied": "gates_satisfied", "gate_refused": "gates_refused"}
_INCIDENTS: Final = frozenset({"effect_duplicate", "checkpoint_corrupt", "migration_failed"})
_COSTS: Final = frozenset({"cost", "input_tokens", "output_tokens"})


class Key(NamedTuple):
    """A row of the roll-ups."""

    hour: datetime
    project_id: UUID
    agent_id: UUID
    workflow: str
    workflow_version: str
    agent_version: str
    metric: str
    name: str
    slot: int


class Numbers(defaultdict[Key, tuple[int, Decimal]]):
    """What is counted, by row: how often, and the sum."""

    def __init__(self) -> None:
        super().__init__(lambda: (0, Decimal(0)))

    def add(self, key: Key, count: int, total: Decimal) -> None:
        before = self[key]
        self[key] = (before[0] + count, before[1] + total)


@dataclass(slots=True)
class Facts:
    """What is known besides the events, none of which changes after the event that asks for it."""

    runs: dict[UUID, Run]
    attempts: dict[UUID, Attempt]
    steps: dict[UUID, Step]
    ready: dict[UUID, datetime]
    disturbed: dict[UUID, datetime]
    gates: dict[UUID, list[tuple[int, UUID | None, Any, datetime]]]


def count_metrics(*, seconds: float) -> int:
    """Count what grew in every tenant, a batch of each in turn, for about so long; how many events."""
    deadline = time.monotonic() + seconds
    counted = 0
    tenants = [tenant for (tenant,) in pool.rows(UNCOUNTED, (_TENANTS,))]
    for tenant in tenants:
        advance_feed(tenant=tenant)
    while tenants and time.monotonic() < deadline:
        left = []
        for tenant in tenants:
            count, more = count_tenant(tenant=tenant)
            counted += count
            if more:
                left.append(tenant)
        tenants = left
    return counted


def count_tenant(*, tenant: UUID, limit: int = BATCH) -> tuple[int, bool]:
    """Count at most `limit` events that come next in the feed; how many, and whether there are more. None while another does."""
    with context.tenant_scope(tenant):
        cursor = _locked(tenant)
        if cursor is None:
            return 0, False
        page = queries.feed(tenant=tenant, cursor=cursor, limit=limit, payload_bytes=_PAYLOAD_BYTES)
        if page.through != cursor:
            _add(tenant, numbers([(item.run_id, item.event) for item in page.items]))
            RollupCursor.objects.update(position=page.through.position, seq=page.through.seq)
        return len(page.items), page.more


def recount(*, tenant: UUID, start: datetime, end: datetime) -> int:
    """Count the hours from `start` to before `end` anew, from the log; how many rows were other than they should be.

    Reads every log that was alive then. Where fewer payloads can be read than when they were counted, costs stay as they were.
    """
    start, end = _hour(start), _hour(end)
    while count_tenant(tenant=tenant)[1]:
        pass
    with context.tenant_scope(tenant):
        RollupCursor.objects.get_or_create(defaults={"position": 1, "seq": 0})
        cursor = RollupCursor.objects.select_for_update().get()
        found = Numbers()
        ends = dict(
            Feed.objects.filter(position__lt=cursor.position)
            .order_by()
            .values_list("run_id")
            .annotate(n=Max("last_seq"))
        )
        partly = Feed.objects.filter(position=cursor.position).first()
        if partly is not None and cursor.seq:
            ends[partly.run_id] = cursor.seq
        alive = Run.objects.filter(updated_at__gte=start, created_at__lt=end).values_list("id", flat=True)
        for run_id in list(alive):
            after, last = 0, ends.get(run_id, 0)
            while after < last:
                tail = queries.tail(
                    tenant=tenant,
                    run_id=run_id,
                    after=after,
                    limit=min(BATCH, last - after),
                    payload_bytes=_PAYLOAD_BYTES,
                )
                if not tail.rows:
                    break
                after = tail.rows[-1].seq
                for key, value in numbers(
                    [(run_id, row) for row in tail.rows if start <= row.recorded_at < end]
                ).items():
                    found.add(key, *value)
        return _replace(tenant, start, end, found)


def numbers(events: Sequence[tuple[UUID, EventRow]]) -> Numbers:
    """What these events count for. The caller holds the tenant scope."""
    found = Numbers()
    facts = _facts(events)
    for run_id, event in events:
        run = facts.runs[run_id]
        key = Key(
            _hour(event.recorded_at), run.project_id, run.agent_id or NO_AGENT, run.workflow, run.workflow_version,
            run.agent_version, "", "", NO_SLOT,
        )  # fmt: skip
        for metric, name, seconds, total in _counts(run, event, facts):
            where = NO_SLOT if seconds is None else slot(seconds)
            found.add(key._replace(metric=metric, name=name, slot=where), 1, total)
    return found


def _counts(run: Run, event: EventRow, facts: Facts) -> Iterable[tuple[str, str, float | None, Decimal]]:
    """Metric, name, duration for a histogram, and what is summed up."""
    kind, at = event.type, event.recorded_at
    step = _NUMBER.sub("#", event.step or "")
    labels = event.labels or {}
    nothing = Decimal(0)
    if kind in ("run_created", "run_started"):
        yield f"runs_{kind[4:]}", "", None, nothing
    elif kind in _ENDS:
        yield "runs_ended", _ENDS[kind], *_since(run.started_at, at)
        if run.id in facts.disturbed and facts.disturbed[run.id] < at:
            yield "runs_disturbed", _ENDS[kind], None, nothing
    elif kind == "step_leased":
        attempt = facts.attempts[_known(event.lease_id)]
        yield "step_attempts", step, None, nothing
        if attempt.number > 1:
            yield "step_retries", step, None, nothing
        if attempt.epoch == 1:
            yield "queue_wait", facts.steps[attempt.step_id].queue, *_since(facts.ready[attempt.step_id], at)
    elif kind in _STEP_ENDS:
        begun = facts.attempts[event.lease_id].claimed_at if event.lease_id in facts.attempts else None
        yield _STEP_ENDS[kind], step, *_since(begun, at)
    elif kind in _STEPS:
        yield _STEPS[kind], step, None, nothing
    elif kind in _EFFECTS:
        yield _EFFECTS[kind], labels.get("tool", ""), None, nothing
    elif kind == "gate_opened":
        yield "gates_opened", "", None, nothing
    elif kind in _GATE_ENDS:
        opened = [
            moment
            for seq, step_id, gate, moment in facts.gates.get(run.id, ())
            if seq < event.seq and step_id == event.step_id and gate == labels.get("gate")
        ]
        yield _GATE_ENDS[kind], "", *_since(opened[-1] if opened else None, at)
    elif kind in _INCIDENTS:
        yield "incidents", kind, None, nothing
    if not event.readable:
        yield "usage_unreadable", "", None, nothing
    elif event.body and "usage" in event.body:
        usage = _usage.decode(event.body["usage"])
        if usage.cost is not None:
            yield "cost", usage.currency or "", None, Decimal(usage.cost)
        for name in ("input_tokens", "output_tokens"):
            if tokens := getattr(usage, name):
                yield name, usage.model, None, Decimal(tokens)


def _since(moment: datetime | None, at: datetime) -> tuple[float | None, Decimal]:
    """Seconds since a moment, for a histogram and its sum; neither when it never came."""
    if moment is None:
        return None, Decimal(0)
    seconds = max(0.0, (at - moment).total_seconds())
    return seconds, Decimal(str(round(seconds, 6)))


def _facts(events: Sequence[tuple[UUID, EventRow]]) -> Facts:
    runs = Run.objects.in_bulk({run_id for run_id, _ in events})
    leases = {event.lease_id for _, event in events if event.lease_id is not None}
    attempts = {row.id: row for row in Attempt.objects.filter(id__in=leases)}
    leased = [event.lease_id for _, event in events if event.type == "step_leased"]
    first = {attempts[_known(lease)].step_id for lease in leased if attempts[_known(lease)].epoch == 1}
    steps = {row.id: row for row in Step.objects.filter(id__in=first)}
    # A step is ready when it was planned, as its id tells, or when the last step before it succeeded.
    ready = {step: datetime.fromtimestamp((step.int >> 80) / 1000, UTC) for step in steps}
    before = list(StepDependency.objects.filter(step_id__in=first).values_list("step_id", "depends_on_id"))
    ended = dict(
        Step.objects.filter(id__in={step for _, step in before}, ended_at__isnull=False).values_list("id", "ended_at")
    )
    for step, depends_on in before:
        ready[step] = max(ready[step], ended.get(depends_on, ready[step]))
    over = {run_id for run_id, event in events if event.type in _ENDS}
    disturbed = dict(
        Attempt.objects.filter(run_id__in=over, outcome__in=["lost", "failed"])
        .order_by()
        .values_list("run_id")
        .annotate(n=Min("ended_at"))
    )
    gated = {run_id for run_id, event in events if event.type in _GATE_ENDS}
    gates = defaultdict(list)
    opened = Event.objects.filter(run_id__in=gated, type="gate_opened").order_by("run_id", "seq") if gated else ()
    for row in opened:
        gates[row.run_id].append((row.seq, row.step_id, (row.labels or {}).get("gate"), row.recorded_at))
    return Facts(runs, attempts, steps, ready, disturbed, dict(gates))


def _locked(tenant: UUID) -> FeedCursor | None:
    """Where counting stands, locked; None while somebody else counts."""
    rows = RollupCursor.objects.select_for_update(skip_locked=True)
    row = rows.first()
    if row is None:
        RollupCursor.objects.bulk_create([RollupCursor(position=1, seq=0)], ignore_conflicts=True)
        row = rows.first()
    return None if row is None else FeedCursor(row.position, row.seq)


def _add(tenant: UUID, found: Numbers) -> None:
    """Add to the rows and to the totals of the tenant."""
    if not found:
        return
    keys = sorted(found)
    totals: dict[tuple[str, int], tuple[int, Decimal]] = {}
    for key in keys:
        count, total = totals.get((key.metric, key.slot), (0, Decimal(0)))
        totals[key.metric, key.slot] = (count + found[key][0], total + found[key][1])
    with connection.cursor() as cursor:
        columns = [list(column) for column in zip(*((*key, *found[key]) for key in keys), strict=True)]
        cursor.execute(ADD, [tenant, *columns])
        columns = [list(column) for column in zip(*((*key, *totals[key]) for key in sorted(totals)), strict=True)]
        cursor.execute(ADD_TOTALS, [tenant, *columns])


def _replace(tenant: UUID, start: datetime, end: datetime, found: Numbers) -> int:
    """Put `found` in the place of what stands in these hours, by adding the differences."""
    stored = Numbers()
    for row in Rollup.objects.filter(hour__gte=start, hour__lt=end):
        stored.add(Key(*(getattr(row, name) for name in Key._fields)), row.count, row.total)
    unreadable = {key for key in found if key.metric == "usage_unreadable" and found[key][0] > stored[key][0]}
    kept = {key[:6] for key in unreadable}
    difference = Numbers()
    for key in {*found, *stored}:
        if key[:6] in kept and (key.metric in _COSTS or key.metric == "usage_unreadable"):
            continue
        count, total = (found[key][i] - stored[key][i] for i in (0, 1))
        if count or total:
            difference.add(key, int(count), Decimal(total))
    _add(tenant, difference)
    Rollup.objects.filter(hour__gte=start, hour__lt=end, count=0).delete()
    RollupTotal.objects.update(count=0, total=0)
    with connection.cursor() as cursor:
        cursor.execute(SUM_TOTALS, [tenant])
    return len(difference)


def _known(lease: UUID | None) -> UUID:
    assert lease is not None
    return lease


def _hour(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
