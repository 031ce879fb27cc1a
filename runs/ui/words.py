"""What runs wait for and what their events mean, in the reader's words."""

from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import Final

from django.utils.functional import Promise
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from kernel.web.text import moment_text
from runs.queries import EventRow, RunDetail, StepRow
from runs.states import RUN_ENDS

WAITING_FOR: Final[dict[str, str | Promise]] = {
    "worker": _("waits for a worker"),
    "timer": _("waits for its time"),
    "retry": _("waits for its next attempt"),
    "gate": _("waits for an approval"),
    "reconciliation": _("waits for an unknown outcome to be cleared up"),
    "child_run": _("waits for another run"),
}

# The state that an event led to, shown beside it; events that lead to none are only listed.
EVENT_STATES: Final[dict[str, str]] = {
    "run_started": "running",
    "run_completed": "completed",
    "run_failed": "failed",
    "run_cancelled": "cancelled",
    "run_dead_letter": "dead_letter",
    "step_leased": "leased",
    "step_succeeded": "succeeded",
    "step_failed": "failed",
    "step_dead_letter": "dead_letter",
    "step_retry_scheduled": "waiting",
    "step_skipped": "skipped",
    "lease_lost": "lease_lost",
}


def event_state(event: EventRow) -> str:
    return EVENT_STATES.get(event.type, "")


@dataclass(frozen=True, slots=True)
class Why:
    """The notice on top of a run: what holds it, since when, and what happens next if nobody acts."""

    state: str
    title: str
    text: str
    since: datetime
    then: str
    checked: str


def why(detail: RunDetail, *, zone: tzinfo, now: datetime) -> Why | None:
    """Why the run does not go on, or how it ended badly; None when there is nothing to say."""
    wait = detail.wait
    step = next((step for step in detail.steps if wait is not None and step.name == wait.step), None)
    name = wait.step if wait is not None and wait.step else ""
    if wait is None:
        return _failed(detail)
    match wait.reason:
        case "worker" if step is not None:
            return Why(
                "waiting",
                gettext("No worker has taken %(step)s yet") % {"step": name},
                gettext("%(step)s is ready. No worker of queue %(queue)s has claimed it.")
                % {"step": name, "queue": step.queue},
                wait.since,
                gettext("It starts as soon as a worker claims it. Until then nothing happens, and nothing is lost."),
                _checked(detail, now),
            )
        case "lease_expired":
            last = next((a for a in reversed(detail.attempts) if a.outcome is None and a.step == name), None)
            return Why(
                "lease_lost",
                gettext("The worker of %(step)s has stopped answering") % {"step": name},
                gettext("%(worker)s has not been heard of since its lease ran out.")
                % {"worker": last.worker if last else ""},
                wait.since,
                gettext("Within seconds the step is given to another worker, which goes on from the last commit."),
                _checked(detail, now),
            )
        case "retry" if step is not None:
            return Why(
                "waiting",
                gettext("%(step)s failed and is tried again") % {"step": name},
                gettext("Attempt %(next)s of %(most)s follows by itself.")
                % {"next": step.attempts + 1, "most": step.max_attempts},
                wait.since,
                gettext("The next attempt is due %(time)s.")
                % {"time": moment_text(step.due_at or now, zone, today=now)},
                _checked(detail, now),
            )
        case "dead_letter":
            return Why(
                "dead_letter",
                gettext("%(step)s stopped for good") % {"step": name or gettext("A step")},
                _spent(step) if step else gettext("It used up its attempts or failed for good."),
                wait.since,
                gettext("Nothing happens until an operator decides."),
                _checked(detail, now),
            )
    # A reason of a later release: its own words.
    return Why("waiting", detail.run.status.capitalize(), wait.detail, wait.since, wait.next, _checked(detail, now))


def _failed(detail: RunDetail) -> Why | None:
    if detail.run.status != "failed":
        return None
    failed = {attempt.step for attempt in detail.attempts if attempt.outcome == "failed"}
    step = next((step for step in detail.steps if step.name in failed and step.status != "succeeded"), None)
    return Why(
        "failed",
        gettext("%(step)s failed and the run ended with it") % {"step": step.name if step else gettext("A step")},
        _spent(step) if step else gettext("The agent ended the run as failed."),
        detail.run.completed_at or detail.run.updated_at,
        gettext("Nothing more happens in this run."),
        "",
    )


def _spent(step: StepRow) -> str:
    numbers = {"number": step.attempts, "most": step.max_attempts}
    if step.attempts < step.max_attempts:
        return gettext("Attempt %(number)s of %(most)s failed for good, so the others were not tried.") % numbers
    return gettext("All attempts failed, %(number)s of %(most)s.") % numbers


def _checked(detail: RunDetail, now: datetime) -> str:
    """What was looked at, so that nobody has to wonder."""
    if detail.run.status in RUN_ENDS:
        return ""
    held = sum(attempt.outcome is None and attempt.expires_at > now for attempt in detail.attempts)
    done = gettext("%(done)s of %(total)s steps are done.") % {
        "done": detail.run.steps_done,
        "total": detail.run.steps_total,
    }
    lease = gettext("No lease is held.") if not held else gettext("Leases held: %(count)s.") % {"count": held}
    return f"{done} {lease}"
