"""The list of runs: newest first, filtered, in cursor pages that stay stable while runs are added."""

import base64
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from django.db.models import Case, Count, OuterRef, Q, QuerySet, Subquery, When

from kernel.errors import FieldError, Invalid
from runs.models import Attempt, Run, Step
from tenancy.models import Agent, Project

COUNT_CAP: Final = 10_000  # counting stops here: "10,000 or more" costs the same for every tenant


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Empty means all. `projects` and `agent_id` are the bindings of a key."""

    status: tuple[str, ...] = ()
    workflow: str | None = None
    agent: str | None = None
    project: str | None = None
    created_from: datetime | None = None
    created_to: datetime | None = None
    agent_id: UUID | None = None
    projects: frozenset[UUID] | None = None


@dataclass(frozen=True, slots=True)
class RunRow:
    id: UUID
    project: str
    workflow: str
    workflow_version: str
    agent: str | None
    agent_version: str
    status: str
    waiting_for: str | None
    current_step: str | None
    steps_total: int
    steps_done: int
    attempts: int
    lost_attempts: int
    last_seq: int
    head: int
    created_at: datetime
    started_at: datetime | None
    updated_at: datetime
    completed_at: datetime | None


@dataclass(frozen=True, slots=True)
class RunPage:
    """`total` counts all runs of the filter, up to COUNT_CAP (`total_capped`)."""

    rows: list[RunRow]
    next_cursor: str | None
    total: int
    total_capped: bool


def list_runs(*, tenant: UUID, filters: RunFilter, cursor: str | None = None, limit: int = 50) -> RunPage:
    """One page of runs, newest first. Raises Invalid for a cursor that is not ours."""
    matching = _matching(filters)
    total = matching.order_by()[: COUNT_CAP + 1].count()
    page = matching
    if cursor:
        created_at, run_id = decode_cursor(cursor)
        page = page.filter(Q(created_at__lt=created_at) | Q(created_at=created_at, id__lt=run_id))
    found = list(rows(page.order_by("-created_at", "-id")[: limit + 1]))
    more = len(found) > limit
    found = found[:limit]
    next_cursor = encode_cursor(found[-1].created_at, found[-1].id) if more else None
    return RunPage(found, next_cursor, min(total, COUNT_CAP), total > COUNT_CAP)


def oldest_runs(*, tenant: UUID, filters: RunFilter, after: UUID | None = None, limit: int) -> tuple[list[UUID], int]:
    """The ids of the oldest runs of a filter (of those younger than the run `after`), and how many more there are, counted up to
    COUNT_CAP.
    """
    matching = _matching(filters)
    if after is not None:
        visible = _matching(RunFilter(agent_id=filters.agent_id, projects=filters.projects))
        begin = visible.filter(id=after).values_list("created_at", flat=True).first()
        if begin is None:
            message = "There is no such run to go on after."
            raise Invalid(message, fields=(FieldError(path="/after", code="not_found", message=message),))
        matching = matching.filter(Q(created_at__gt=begin) | Q(created_at=begin, id__gt=after))
    found = list(matching.order_by("created_at", "id").values_list("id", flat=True)[: limit + COUNT_CAP])
    return found[:limit], len(found) - len(found[:limit])


def rows(runs: QuerySet[Run]) -> list[RunRow]:
    """Read models of runs: one query for the runs, one for their steps, one for their attempts."""
    found = list(
        runs.annotate(
            project=Subquery(Project.objects.filter(id=OuterRef("project_id")).values("slug")[:1]),
            agent=Subquery(Agent.objects.filter(id=OuterRef("agent_id")).values("slug")[:1]),
        )
    )
    ids = [run.id for run in found]
    urgency = Case(When(status="runnable", then=1), default=0)
    current = dict(
        Step.objects.filter(run_id__in=ids, status__in=["leased", "waiting", "failed", "dead_letter", "runnable"])
        .order_by("run_id", urgency, "position")
        .distinct("run_id")
        .values_list("run_id", "name")
    )
    attempts = {
        run_id: (count, lost)
        for run_id, count, lost in Attempt.objects.filter(run_id__in=ids)
        .values("run_id")
        .annotate(count=Count("id"), lost=Count("id", filter=Q(outcome="lost")))
        .values_list("run_id", "count", "lost")
    }
    return [
        RunRow(
            id=run.id, project=run.project, workflow=run.workflow, workflow_version=run.workflow_version, agent=run.agent,
            agent_version=run.agent_version, status=run.status, waiting_for=run.waiting_for, current_step=current.get(run.id),
            steps_total=run.steps_total, steps_done=run.steps_total - run.steps_open,
            attempts=attempts.get(run.id, (0, 0))[0], lost_attempts=attempts.get(run.id, (0, 0))[1], last_seq=run.last_seq,
            head=run.head, created_at=run.created_at, started_at=run.started_at, updated_at=run.updated_at,
            completed_at=run.completed_at,
        )
        for run in found
    ]  # fmt: skip


def _matching(filters: RunFilter) -> QuerySet[Run]:
    runs = Run.objects.all()
    if filters.status:
        runs = runs.filter(status__in=filters.status)
    if filters.workflow:
        runs = runs.filter(workflow=filters.workflow)
    if filters.agent:
        runs = runs.filter(agent_id__in=Agent.objects.filter(slug=filters.agent).values("id"))
    if filters.project:
        runs = runs.filter(project_id__in=Project.objects.filter(slug=filters.project).values("id"))
    if filters.created_from:
        runs = runs.filter(created_at__gte=filters.created_from)
    if filters.created_to:
        runs = runs.filter(created_at__lt=filters.created_to)
    if filters.agent_id is not None:
        runs = runs.filter(agent_id=filters.agent_id)
    if filters.projects is not None:
        runs = runs.filter(project_id__in=filters.projects)
    return runs


def encode_cursor(created_at: datetime, run_id: UUID) -> str:
    return base64.urlsafe_b64encode(f"{created_at.isoformat()}|{run_id}".encode()).decode().rstrip("=")


def decode_cursor(cursor: str) -> tuple[datetime, UUID]:
    try:
        moment, _, run_id = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode().partition("|")
        created_at = datetime.fromisoformat(moment)
        if created_at.tzinfo is None:
            raise ValueError
        return created_at, UUID(run_id)
    except ValueError as error:
        message = "This cursor was not made by this list."
        raise Invalid(message, fields=(FieldError("cursor", "invalid_cursor", message),)) from error
