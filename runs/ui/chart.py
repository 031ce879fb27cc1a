"""A run's steps and attempts as rows of a timeline, and the same in words for those who cannot see it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from typing import Final
from uuid import UUID

from django.utils.translation import gettext, ngettext

from kernel.web import states, text, timeline
from kernel.web.timeline import Chart, Row, Span
from runs.queries import AttemptRow, RunDetail, StepRow
from runs.states import RUN_ENDS

MAX_STEPS: Final = 30
LEASE_STATES: Final = {None: "leased", "lost": "lease_lost"}


@dataclass(frozen=True, slots=True)
class StepLine:
    """A step as it stands beside its row: how long it took, in how many attempts."""

    id: UUID
    name: str
    status: str
    note: str


@dataclass(frozen=True, slots=True)
class RunChart:
    """`first` and `last` are positions of the `steps` shown, from 1, `earlier` and `later` where their neighbours begin (0: none);
    `active` is the time in which a worker held a step."""

    chart: Chart
    steps: list[StepRow]
    lines: list[StepLine]
    first: int
    last: int
    active: timedelta
    label: str
    now_text: str
    earlier: int
    later: int


def draw(detail: RunDetail, *, now: datetime, zone: tzinfo, fold: bool, first: int | None = None) -> RunChart:
    """The timeline of up to MAX_STEPS steps from position `first`, by default those around the current step."""
    steps = detail.steps
    begin = _window(steps, first)
    shown = steps[begin : begin + MAX_STEPS]
    attempts: dict[str, list[AttemptRow]] = {}
    for attempt in detail.attempts:
        attempts.setdefault(attempt.step, []).append(attempt)
    run, live = detail.run, detail.run.status not in RUN_ENDS
    ends = {step.name: step.ended_at for step in steps}
    rows = [
        _row(step, attempts.get(step.name, []), _ready(step, ends, run.created_at), live, now, zone) for step in shown
    ]
    chart = timeline.layout(
        rows, start=run.created_at.astimezone(zone), now=now, live=live, end=run.completed_at, fold=fold
    )
    label = gettext("Timeline of %(count)s steps from %(start)s to %(end)s.") % {
        "count": len(shown),
        "start": text.moment_text(chart.start, zone),
        "end": text.moment_text(chart.end, zone),
    }
    if chart.folded:
        label += " " + gettext("%(span)s without a worker are collapsed.") % {"span": text.duration(chart.folded)}
    now_text = gettext("now %(time)s") % {"time": text.clock_time(now, zone, seconds=False)}
    lines = [
        StepLine(step.id, step.name, step.status, _note(step, len(attempts.get(step.name, [])), now)) for step in shown
    ]
    end = begin + len(shown)
    return RunChart(
        chart=chart,
        steps=shown,
        lines=lines,
        first=begin + 1 if shown else 0,
        last=end,
        active=_active(detail.attempts, now),
        label=label,
        now_text=now_text,
        earlier=max(1, begin + 1 - MAX_STEPS) if begin else 0,
        later=end + 1 if end < len(steps) else 0,
    )


def _window(steps: Sequence[StepRow], first: int | None) -> int:
    if first is None:
        current = next((i for i, s in enumerate(steps) if s.status not in {"succeeded", "skipped"}), 0)
        first = current - MAX_STEPS // 2 + 1
    return max(0, min(first - 1, len(steps) - MAX_STEPS))


def _ready(step: StepRow, ends: dict[str, datetime | None], created: datetime) -> datetime | None:
    """When the last step it depends on ended; None while one goes on."""
    moments = [ends.get(name) for name in step.depends_on]
    return None if None in moments else max([created, *(m for m in moments if m is not None)])


def _end(attempt: AttemptRow, now: datetime) -> datetime | None:
    """When the worker stopped holding the step: of a lost one, when it was last heard of."""
    if attempt.outcome == "lost":
        return max(attempt.heartbeat_at, attempt.claimed_at)
    if attempt.outcome is None and attempt.expires_at <= now:
        return attempt.expires_at
    return attempt.ended_at


def attempt_state(attempt: AttemptRow) -> str:
    return LEASE_STATES.get(attempt.outcome, attempt.outcome or "")


def _row(
    step: StepRow, attempts: list[AttemptRow], ready: datetime | None, live: bool, now: datetime, zone: tzinfo
) -> Row:
    spans: list[Span] = []
    held_until, state = ready, "runnable"
    for index, attempt in enumerate(attempts):
        if held_until is not None and attempt.claimed_at > held_until:
            spans.append(Span("pause", state, held_until, attempt.claimed_at))
        end = _end(attempt, now)
        resumed = index > 0 and attempts[index - 1].outcome == "lost"
        spans.append(_bar(step, attempt, end, several=len(attempts) > 1, resumed=resumed, zone=zone))
        held_until, state = end, attempt_state(attempt)
    if live and held_until is not None and step.status in {"runnable", "waiting", "failed", "dead_letter"}:
        kind = "wait" if step.status == "waiting" else "pause"
        spans.append(Span(kind, "waiting" if kind == "wait" else state, held_until, None))  # type: ignore[arg-type]
    return Row(step.name, tuple(spans), ahead=step.status if step.status == "blocked" else "")


def _bar(
    step: StepRow, attempt: AttemptRow, end: datetime | None, *, several: bool, resumed: bool, zone: tzinfo
) -> Span:
    state = attempt_state(attempt)
    word = str(states.look(state).word)
    took = text.duration(end - attempt.claimed_at) if end else ""
    label = took if state == "succeeded" else word.lower() if several else word
    numbered = f"{attempt.number}, {label}"
    # The name says what the bar says, in the same words, and more.
    name = gettext("%(step)s, attempt %(what)s, %(worker)s, %(start)s to %(end)s, %(outcome)s") % {
        "step": step.name,
        "what": numbered,
        "worker": attempt.worker,
        "start": text.clock_time(attempt.claimed_at, zone),
        "end": text.clock_time(end, zone) if end else gettext("now"),
        "outcome": word,
    }
    return Span(
        kind="bar",
        state=state,
        start=attempt.claimed_at,
        end=end,
        name=name,
        label=numbered if several else label,
        href=f"#attempt-{attempt.id}",
        mark=gettext("resumed") if resumed else "",
    )


def _note(step: StepRow, attempts: int, now: datetime) -> str:
    """Beside the state's icon: the time it took and in how many attempts, or the state's word."""
    if step.started_at is None:
        return str(states.look(step.status).word)
    note = text.duration((step.ended_at or now) - step.started_at)
    if attempts > 1:
        note += ", " + ngettext("%(count)s attempt", "%(count)s attempts", attempts) % {"count": attempts}
    return note


def _active(attempts: Sequence[AttemptRow], now: datetime) -> timedelta:
    """Time in which at least one worker held a step."""
    total, until = timedelta(0), None
    for begin, end in sorted((a.claimed_at, _end(a, now) or now) for a in attempts):
        if until is None or begin > until:
            total += end - begin
            until = end
        elif end > until:
            total += end - until
            until = end
    return total
