"""What runs wait for and what their events mean, in the reader's words."""

from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import Final

from django.urls import reverse
from django.utils.functional import Promise
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from kernel.errors import DomainError
from kernel.web.states import look
from kernel.web.text import duration, moment_text, short_id
from runs.queries import EventRow, RunDetail, StepRow, WaitReason
from runs.states import RUN_ENDS

WAITING_FOR: Final[dict[str, str | Promise]] = {
    "worker": _("waits for a worker"),
    "timer": _("waits for its time"),
    "retry": _("waits for its next attempt"),
    "signal": _("waits for a signal"),
    "child": _("waits for another run"),
    "gate": _("waits at a gate for a person"),
    "reconciliation": _("waits until an unknown outcome is known"),
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
    "step_waiting": "waiting",
    "lease_lost": "lease_lost",
    "effect_reserved": "reserved",
    "effect_executing": "in_flight",
    "effect_denied": "denied",
    "effect_succeeded": "succeeded",
    "effect_failed": "failed",
    "effect_unknown": "unknown",
    "effect_cancelled": "cancelled",
    "effect_compensating": "compensating",
    "effect_compensated": "compensated",
    "gate_opened": "open",
    "gate_satisfied": "satisfied",
    "gate_refused": "refused",
    "gate_lapsed": "lapsed",
    "gate_withdrawn": "withdrawn",
    "gate_revoked": "revoked",
}

# What a recovery of many runs answers instead of a status.
REFUSALS: Final[dict[str, str | Promise]] = {
    "not_in_dead_letter": _("not in the dead letter any more"),
    "effects_open": _("an effect is unknown: reconcile it first"),
    "steps_open": _("other steps failed too"),
    "plan_conflict": _("its plan does not fit"),
    "run_finished": _("has ended already"),
    "not_found": _("does not exist"),
}

# The classes of failures, as words for people.
FAILURES: Final[dict[str, str | Promise]] = {
    "transient": _("a passing failure"),
    "rate_limited": _("asked to slow down"),
    "permanent": _("failed for good"),
    "business_rejection": _("refused by a rule"),
    "unknown_outcome": _("the outcome is not known"),
    "lease_lost": _("the worker was lost"),
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
    # Where the way out of it is, and what it is called.
    link: str = ""
    link_word: str = ""


def why(detail: RunDetail, *, slug: str, zone: tzinfo, now: datetime) -> Why | None:
    """Why the run does not go on, or how it ended badly; None when there is nothing to say."""
    if detail.cancel_at is not None and detail.run.status not in RUN_ENDS:
        return _cancelling(detail, zone, now)
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
                reverse("runs:recover", args=[slug, detail.run.id]),
                gettext("Decide what becomes of it"),
            )
        case "timer" if step is not None:
            return Why(
                "waiting",
                gettext("%(step)s sleeps") % {"step": name},
                gettext("Its worker asked to be woken later. No lease is held meanwhile, and no attempt is used up."),
                wait.since,
                gettext("It goes on by itself at %(time)s.") % {"time": at_words(step.due_at, zone, now)},
                _checked(detail, now),
            )
        case "signal" if step is not None:
            return Why(
                "waiting",
                gettext("%(step)s waits for the signal %(signal)s") % {"step": name, "signal": step.wait_name},
                gettext("Something outside must send it: another agent, a webhook or a person, through the API."),
                wait.since,
                gettext("It goes on with the first signal of that name.") + " " + _latest(step, zone, now),
                _checked(detail, now),
            )
        case "child" if step is not None and step.wait_id is not None:
            return Why(
                "waiting",
                gettext("%(step)s waits for another run") % {"step": name},
                gettext("Run %(run)s must end first, however it ends.") % {"run": short_id(step.wait_id)},
                wait.since,
                gettext("It goes on as soon as that run is over.") + " " + _latest(step, zone, now),
                _checked(detail, now),
                reverse("runs:detail", args=[slug, step.wait_id]),
                gettext("Open that run"),
            )
        case "gate" if step is not None:
            return _gate(detail, wait, slug, zone, now)
        case "reconciliation" if step is not None:
            return _unknown(detail, wait, slug, zone, now)
    # A reason of a later release: its own words.
    return Why("waiting", detail.run.status.capitalize(), wait.detail, wait.since, wait.next, _checked(detail, now))


def _gate(detail: RunDetail, wait: WaitReason, slug: str, zone: tzinfo, now: datetime) -> Why:
    on = detail.waits_on
    tool, rule = (on.tool, on.rule) if on else ("", "")
    link, word = "", ""
    if on is None or on.gate is None or on.gate_status == "open":
        text = gettext("The rule %(rule)s asks for a person before %(tool)s is called. Nothing was sent.")
        then = gettext("Satisfied, it is called once; refused, its worker is told not to.")
        if on is not None and on.expires_at is not None:
            then += " " + gettext("If nobody decides, the gate lapses at %(time)s and the step goes on waiting.") % {
                "time": at_words(on.expires_at, zone, now)
            }
        if on is not None and on.gate is not None:
            link, word = reverse("runs:gate", args=[slug, detail.run.id, on.gate]), gettext("See what is asked for")
    else:
        text = gettext(
            "The gate before %(tool)s, by the rule %(rule)s, is no longer open: nobody decided in time. Nothing was sent."
        )
        then = gettext("Nothing happens by itself. Cancel the run, or ask the agent's owner to start it anew.")
    return Why(
        "waiting",
        gettext("%(step)s waits for a person's decision") % {"step": wait.step},
        text % {"tool": tool, "rule": rule},
        on.opened_at if on and on.opened_at else wait.since,
        then,
        _checked(detail, now),
        link,
        word,
    )


def _unknown(detail: RunDetail, wait: WaitReason, slug: str, zone: tzinfo, now: datetime) -> Why:
    on = detail.waits_on
    effect = on.effect if on else None
    if on is not None and on.owner == "probe":
        then = gettext("The platform asks the service by itself until it knows, or hands it to an operator.")
    elif on is not None and on.owner == "worker":
        then = gettext("The next worker that claims the step finds out before it does anything else.")
    else:
        then = gettext("Nothing happens until an operator says whether it happened.")
    return Why(
        "unknown",
        gettext("Nobody knows yet whether %(tool)s happened") % {"tool": on.tool if on else wait.step},
        gettext(
            "The call of %(step)s was on its way when its answer was lost. It is not repeated before the outcome is known."
        )
        % {"step": wait.step},
        wait.since,
        then,
        _checked(detail, now),
        reverse("runs:effect", args=[slug, detail.run.id, effect]) if effect else "",
        gettext("Open the effect") if effect else "",
    )


def _cancelling(detail: RunDetail, zone: tzinfo, now: datetime) -> Why:
    assert detail.cancel_at is not None
    return Why(
        "waiting",
        gettext("The run is being cancelled"),
        gettext(
            "Its workers were told to stop and may still bring what they have in hand. No step is given out any more."
        ),
        detail.run.updated_at,
        gettext("It ends when they are done, at %(time)s at the latest.")
        % {"time": at_words(detail.cancel_at, zone, now)},
        _checked(detail, now),
    )


def at_words(moment: datetime | None, zone: tzinfo, now: datetime) -> str:
    """The absolute time, and how far off it is."""
    if moment is None:
        return ""
    absolute = moment_text(moment, zone, today=now)
    if moment <= now:
        return absolute
    return gettext("%(time)s (in %(span)s)") % {"time": absolute, "span": duration(moment - now)}


def _latest(step: StepRow, zone: tzinfo, now: datetime) -> str:
    if step.due_at is None:
        return gettext("It waits without a limit.")
    return gettext("Without it, the step goes on at %(time)s and is told that the time was over.") % {
        "time": at_words(step.due_at, zone, now)
    }


def refusal(error: DomainError, *, zone: tzinfo, now: datetime) -> str:
    """What the domain answered to an operator, in the reader's words; the domain's own where there are none."""
    status = next(
        (error.extra[name] for name in ("effect_status", "gate_status", "run_status") if error.extra.get(name)), ""
    )
    match error.code:
        case "too_early":
            settle_at = error.extra.get("settle_at")
            moment = datetime.fromisoformat(settle_at) if isinstance(settle_at, str) else now
            return gettext(
                "Too early to say that it did not happen: the call may still be under way. Look again from %(time)s on."
            ) % {"time": at_words(moment, zone, now)}
        case "effect_not_unknown":
            return gettext("Somebody else was first: the outcome is known, the effect is %(status)s.") % {
                "status": str(look(str(status)).word).lower()
            }
        case "gate_decided":
            return gettext("Somebody else was first: the gate is %(status)s.") % {
                "status": str(look(str(status)).word).lower()
            }
        case "not_in_dead_letter":
            return gettext("The run is not in the dead letter any more: it is %(status)s.") % {
                "status": str(look(str(status)).word).lower()
            }
        case "effects_open":
            return gettext("An effect of the run is unknown. Say first what became of it.")
        case "run_finished":
            return gettext("The run has ended already. Nothing was changed.")
    return error.detail


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
