"""Reading the roll-ups: rates, durations and costs of a tenant, and how its queues stand.

Durations are counted in slots whose bounds are powers of 2^(1/4) seconds. A quantile is given as the middle of its slot (by ratio),
so it is off by at most 9.1 % (2^(1/8)).
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from django.db.models import Count, Min, Q, Sum
from django.db.models.functions import TruncDay

from kernel import pool
from kernel.errors import FieldError, Invalid
from runs.models import Rollup, Run, Step
from tenancy.queries import Principal

SLOTS_PER_DOUBLING: Final = 4
LOWEST, HIGHEST = -40, 100  # 1 ms, and a year
MAX_ROWS: Final = 1000
MAX_CELLS: Final = 200_000
NO_AGENT: Final = UUID(int=0)
NO_SLOT: Final = -1000
MAX_SPAN: Final = {"hour": timedelta(days=31), "day": timedelta(days=400), None: timedelta(days=400)}
DIMENSIONS: Final = ("workflow", "workflow_version", "agent_version")

# What each view shows.
RUNS: Final = ("runs_created", "runs_started", "runs_ended", "runs_disturbed", "gates_opened", "gates_satisfied", "gates_refused",
               "queue_wait", "incidents")  # fmt: skip
STEPS: Final = ("step_attempts", "step_retries", "steps_succeeded", "steps_failed", "steps_dead_letter", "leases_lost")
TOOLS: Final = ("tool_reserved", "tool_executing", "tool_succeeded", "tool_failed", "tool_unknown", "tool_reconciled")
COST: Final = ("cost", "input_tokens", "output_tokens", "usage_unreadable", "runs_ended")


@dataclass(frozen=True, slots=True)
class MetricsFilter:
    """From `start` to before `end`, in whole hours. Empty means all. `group_by`: of DIMENSIONS. `bucket`: hour, day or None."""

    start: datetime
    end: datetime
    workflow: tuple[str, ...] = ()
    workflow_version: tuple[str, ...] = ()
    agent_version: tuple[str, ...] = ()
    bucket: str | None = None
    group_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Cell:
    """One metric in one group: how often in all, the sum of what was measured, and the slots of a histogram."""

    count: int = 0
    total: Decimal = Decimal(0)
    slots: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Group:
    """`key`: the values of the grouping, the time first when there are buckets. `cells`: by metric and its name."""

    key: Mapping[str, Any]
    cells: Mapping[tuple[str, str], Cell]

    def count(self, metric: str, name: str | None = None) -> int:
        return sum(cell.count for (m, n), cell in self.cells.items() if m == metric and name in (None, n))

    def slots(self, metric: str, name: str | None = None) -> dict[int, int]:
        found: dict[int, int] = defaultdict(int)
        for (m, n), cell in self.cells.items():
            if m == metric and name in (None, n):
                for slot, count in cell.slots.items():
                    found[slot] += count
        return found


def slot(seconds: float) -> int:
    """The slot of a duration: the lowest k with seconds <= 2^(k/4)."""
    if seconds <= 2 ** (LOWEST / SLOTS_PER_DOUBLING):
        return LOWEST
    return min(HIGHEST, math.ceil(round(SLOTS_PER_DOUBLING * math.log2(seconds), 9)))


def quantile(slots: Mapping[int, int], share: float) -> float | None:
    """Seconds under which `share` of what was counted lies; None when nothing was."""
    left = math.ceil(sum(slots.values()) * share)
    for number in sorted(slots):
        left -= slots[number]
        if left <= 0:
            return float(f"{2 ** ((number - 0.5) / SLOTS_PER_DOUBLING):.4g}")
    return None


def groups(
    *, tenant: UUID, principal: Principal, filters: MetricsFilter, metrics: Sequence[str], by_name: bool
) -> list[Group]:
    """The groups that have anything, in the order of their keys. The caller holds the tenant scope.

    `by_name`: a group for each name, of which then only metrics with that name are part. Raises Invalid when the span is too long
    or there are more than MAX_ROWS groups.
    """
    if not filters.start < filters.end <= filters.start + MAX_SPAN[filters.bucket]:
        days = MAX_SPAN[filters.bucket].days
        raise _invalid("to", f"`to` is after `from`, and by {filters.bucket or 'no'} bucket at most {days} days.", days)
    rows = Rollup.objects.filter(hour__gte=filters.start, hour__lt=filters.end, metric__in=metrics)
    for name in DIMENSIONS:
        if values := getattr(filters, name):
            rows = rows.filter(**{f"{name}__in": values})
    if principal.project_ids is not None:
        rows = rows.filter(project_id__in=principal.project_ids)
    if principal.agent_id is not None:
        rows = rows.filter(agent_id=principal.agent_id)
    if filters.bucket == "day":
        rows = rows.annotate(bucket=TruncDay("hour"))
    time = {"hour": "hour", "day": "bucket", None: None}[filters.bucket]
    dimensions = [*([time] if time else []), *(name for name in DIMENSIONS if name in filters.group_by)]
    found = rows.order_by().values_list(*dimensions, "metric", "name", "slot").annotate(n=Sum("count"), t=Sum("total"))
    cells: dict[tuple[Any, ...], dict[tuple[str, str], list[Any]]] = defaultdict(dict)
    for *key, metric, name, number, count, total in found[:MAX_CELLS]:
        place = (*key, name) if by_name else tuple(key)
        cell = cells[place].setdefault((metric, name), [0, Decimal(0), {}])
        cell[0] += count
        cell[1] += total
        if number != NO_SLOT:
            cell[2][number] = count
        if len(cells) > MAX_ROWS:
            text = f"There are more than {MAX_ROWS} groups: ask for a shorter time or coarser groups."
            raise _invalid("group_by", text, MAX_ROWS)
    names = ["bucket", *dimensions[1:]] if time else dimensions
    names = [*names, "name"] if by_name else names
    return [
        Group(dict(zip(names, key, strict=True)), {place: Cell(*cell) for place, cell in cells[key].items()})
        for key in sorted(cells)
    ]


@dataclass(frozen=True, slots=True)
class QueueRow:
    """How a queue stands. `oldest_at`: since when the step that is due longest could have been claimed."""

    queue: str
    runnable: int
    leased: int
    waiting: int
    oldest_at: datetime | None


def queues(*, tenant: UUID, principal: Principal, now: datetime) -> list[QueueRow]:
    """The queues that have steps of open runs. The caller holds the tenant scope."""
    runs = Run.objects.filter(status__in=["pending", "running", "waiting"])
    if principal.project_ids is not None:
        runs = runs.filter(project_id__in=principal.project_ids)
    if principal.agent_id is not None:
        runs = runs.filter(agent_id=principal.agent_id)
    due = Q(status="runnable", due_at__lte=now)
    steps = Step.objects.filter(status__in=["runnable", "leased", "waiting"], run_id__in=runs.values("id"))
    found = steps.values("queue").annotate(
        runnable=Count("pk", filter=due), leased=Count("pk", filter=Q(status="leased")),
        waiting=Count("pk", filter=Q(status="waiting")),
        oldest_at=Min("due_at", filter=due),
    )  # fmt: skip
    return [QueueRow(**row) for row in found.order_by("queue")[:MAX_ROWS]]


def platform_totals() -> list[tuple[str, int, int, Decimal]]:
    """Metric, slot, count and total since ever, over all tenants; outside any tenant scope."""
    return [(row[0], row[1], row[2], row[3]) for row in pool.rows("select * from runs_platform_totals()", ())]


def platform_gauges() -> dict[str, float]:
    """How things stand now, over all tenants; outside any tenant scope."""
    return dict(pool.rows("select * from runs_platform_gauges()", ()))


def _invalid(path: str, message: str, limit: int) -> Invalid:
    return Invalid(message, fields=(FieldError(path, "invalid", message, limit),))
