"""What the roll-ups tell a tenant: runs, steps, tools and costs, and how its queues stand now."""

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from kernel.moments import Moment
from kernel.rest.views import ApiView, Context, endpoint
from runs.queries import metrics
from runs.queries.metrics import Group, MetricsFilter, quantile
from runs.wire import Identifier

Values = Annotated[list[Identifier], Meta(max_length=32)]


class MetricsQuery(Struct, forbid_unknown_fields=True, rename={"from_": "from"}):
    """Whole hours from `from` (a day ago) to before `to` (now); filters may stand several times. Numbers are seconds old."""

    from_: Moment | None = None
    to: Moment | None = None
    workflow: Values = []
    workflow_version: Values = []
    agent_version: Values = []
    bucket: Literal["hour", "day"] | None = None
    group_by: Annotated[list[Literal["workflow", "workflow_version", "agent_version"]], Meta(max_length=3)] = []


class Duration(Struct):
    """Seconds. The quantiles are off by at most 9.1 %; null when nothing was measured."""

    mean: float | None
    p50: float | None
    p95: float | None
    p99: float | None


class Where(Struct, kw_only=True, omit_defaults=True):
    """What a row is about: the time its bucket begins, and the values of `group_by`."""

    bucket: datetime | None = None
    workflow: str | None = None
    workflow_version: str | None = None
    agent_version: str | None = None


class RunsRow(Where, kw_only=True):
    """`completion_rate`: of the runs that ended. `resume_success_rate`: of those that ended after they had lost or failed an
    attempt. `duration`: of completed runs, from their first claim. `queue_wait`: from runnable to the first lease of a step."""

    created: int
    started: int
    completed: int
    failed: int
    cancelled: int
    dead_letter: int
    completion_rate: float | None
    resumed: int
    resume_success_rate: float | None
    duration: Duration
    queue_wait: Duration
    gates_opened: int
    gates_satisfied: int
    gates_refused: int
    approval_latency: Duration
    incidents: dict[str, int]


class StepsRow(Where, kw_only=True):
    """Numbers of three digits and more in a step's name count as one (`piece-#`). `duration`: of attempts that succeeded."""

    step: str
    attempts: int
    retries: int
    succeeded: int
    failed: int
    dead_letter: int
    leases_lost: int
    duration: Duration


class ToolsRow(Where, kw_only=True):
    """Of the effect ledger. The rates are of calls that ended or timed out: whose outcome became unknown."""

    tool: str
    reserved: int
    executing: int
    succeeded: int
    failed: int
    unknown: int
    reconciled: int
    success_rate: float | None
    timeout_rate: float | None


class Money(Struct):
    currency: str
    total: str
    per_completed_run: str | None


class Tokens(Struct):
    model: str
    input: int
    output: int


class CostRow(Where, kw_only=True):
    """`unreadable`: events whose usage was erased before it was counted."""

    completed: int
    cost: list[Money]
    tokens: list[Tokens]
    unreadable: int


class QueueOut(Struct):
    """`oldest_seconds`: how long the first of the runnable steps has been due."""

    queue: str
    runnable: int
    leased: int
    waiting: int
    oldest_seconds: float | None


class RunsMetrics(Struct):
    items: list[RunsRow]


class StepsMetrics(Struct):
    items: list[StepsRow]


class ToolsMetrics(Struct):
    items: list[ToolsRow]


class CostMetrics(Struct):
    items: list[CostRow]


class QueuesMetrics(Struct):
    items: list[QueueOut]


_INCIDENTS: Final = ("effect_duplicate", "checkpoint_corrupt", "migration_failed")


class RunsMetricsView(ApiView):
    @endpoint(summary="Measure runs", scope="metrics:read", query=MetricsQuery, answer=RunsMetrics)
    def get(self, call: Context) -> RunsMetrics:
        """How many runs began and how they ended, how long they took, and what went wrong."""
        return RunsMetrics([_runs(group) for group in _groups(call, metrics.RUNS)])


class StepsMetricsView(ApiView):
    @endpoint(summary="Measure steps", scope="metrics:read", query=MetricsQuery, answer=StepsMetrics)
    def get(self, call: Context) -> StepsMetrics:
        """Attempts, retries, lost leases and durations of each step."""
        return StepsMetrics([_steps(group) for group in _groups(call, metrics.STEPS, by_name=True)])


class ToolsMetricsView(ApiView):
    @endpoint(summary="Measure tools", scope="metrics:read", query=MetricsQuery, answer=ToolsMetrics)
    def get(self, call: Context) -> ToolsMetrics:
        """How the effects of each tool ended."""
        return ToolsMetrics([_tools(group) for group in _groups(call, metrics.TOOLS, by_name=True)])


class CostMetricsView(ApiView):
    @endpoint(summary="Measure cost", scope="metrics:read", query=MetricsQuery, answer=CostMetrics)
    def get(self, call: Context) -> CostMetrics:
        """What models cost, by currency, and for each completed run."""
        return CostMetrics([_cost(group) for group in _groups(call, metrics.COST)])


class QueuesMetricsView(ApiView):
    @endpoint(summary="See how the queues stand", scope="metrics:read", answer=QueuesMetrics)
    def get(self, call: Context) -> QueuesMetrics:
        """The queues that have steps of open runs, now."""
        rows = metrics.queues(tenant=call.tenant, principal=call.principal, now=call.now)
        return QueuesMetrics(
            [
                QueueOut(
                    row.queue, row.runnable, row.leased, row.waiting,
                    None if row.oldest_at is None else (call.now - row.oldest_at).total_seconds(),
                )
                for row in rows
            ]
        )  # fmt: skip


def _groups(call: Context, names: tuple[str, ...], *, by_name: bool = False) -> list[Group]:
    query: MetricsQuery = call.query
    end = query.to or call.now + timedelta(hours=1)
    filters = MetricsFilter(
        start=query.from_ or min(end, call.now) - timedelta(days=1), end=end, workflow=tuple(query.workflow),
        workflow_version=tuple(query.workflow_version), agent_version=tuple(query.agent_version), bucket=query.bucket,
        group_by=tuple(query.group_by),
    )  # fmt: skip
    return metrics.groups(tenant=call.tenant, principal=call.principal, filters=filters, metrics=names, by_name=by_name)


def _where(group: Group) -> dict[str, Any]:
    return {name: value for name, value in group.key.items() if name != "name"}


def _runs(group: Group) -> RunsRow:
    completed, failed, cancelled, dead = (
        group.count("runs_ended", name) for name in ("completed", "failed", "cancelled", "dead_letter")
    )
    disturbed = group.count("runs_disturbed")
    return RunsRow(
        **_where(group), created=group.count("runs_created"), started=group.count("runs_started"), completed=completed,
        failed=failed, cancelled=cancelled, dead_letter=dead,
        completion_rate=_rate(completed, completed + failed + cancelled + dead), resumed=disturbed,
        resume_success_rate=_rate(group.count("runs_disturbed", "completed"), disturbed),
        duration=_duration(group, "runs_ended", "completed"), queue_wait=_duration(group, "queue_wait"),
        gates_opened=group.count("gates_opened"), gates_satisfied=group.count("gates_satisfied"),
        gates_refused=group.count("gates_refused"), approval_latency=_duration(group, "gates_satisfied"),
        incidents={name: group.count("incidents", name) for name in _INCIDENTS},
    )  # fmt: skip


def _steps(group: Group) -> StepsRow:
    return StepsRow(
        **_where(group), step=group.key["name"], attempts=group.count("step_attempts"), retries=group.count("step_retries"),
        succeeded=group.count("steps_succeeded"), failed=group.count("steps_failed"),
        dead_letter=group.count("steps_dead_letter"), leases_lost=group.count("leases_lost"),
        duration=_duration(group, "steps_succeeded"),
    )  # fmt: skip


def _tools(group: Group) -> ToolsRow:
    succeeded, failed, unknown = (group.count(f"tool_{name}") for name in ("succeeded", "failed", "unknown"))
    over = succeeded + failed + unknown
    return ToolsRow(
        **_where(group), tool=group.key["name"], reserved=group.count("tool_reserved"),
        executing=group.count("tool_executing"), succeeded=succeeded, failed=failed, unknown=unknown,
        reconciled=group.count("tool_reconciled"), success_rate=_rate(succeeded, over), timeout_rate=_rate(unknown, over),
    )  # fmt: skip


def _cost(group: Group) -> CostRow:
    completed = group.count("runs_ended", "completed")
    money = {name: cell.total for (metric, name), cell in sorted(group.cells.items()) if metric == "cost"}
    models = sorted({name for metric, name in group.cells if metric in ("input_tokens", "output_tokens")})
    none = metrics.Cell()
    return CostRow(
        **_where(group), completed=completed, unreadable=group.count("usage_unreadable"),
        cost=[
            Money(currency, _plain(total), _plain(total / completed) if completed else None)
            for currency, total in money.items()
        ],
        tokens=[
            Tokens(model, *(int(group.cells.get((f"{way}_tokens", model), none).total) for way in ("input", "output")))
            for model in models
        ],
    )  # fmt: skip


def _duration(group: Group, metric: str, name: str | None = None) -> Duration:
    slots = group.slots(metric, name)
    measured = sum(slots.values())
    total = sum((cell.total for (m, n), cell in group.cells.items() if m == metric and name in (None, n)), Decimal(0))
    mean = float(f"{float(total) / measured:.4g}") if measured else None
    return Duration(mean, quantile(slots, 0.5), quantile(slots, 0.95), quantile(slots, 0.99))


def _rate(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def _plain(value: Decimal) -> str:
    """Money as a decimal string without an exponent or needless zeros."""
    text = f"{value:.9f}"
    return text.rstrip("0").rstrip(".")
