"""What an effect's state means, in a sentence: what happened, and what happens next."""

from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import Final

from django.utils.functional import Promise
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from kernel.web.text import moment_text
from runs.queries import EffectView
from runs.states import RUN_ENDS
from runs.ui.words import FAILURES

SIDE_EFFECTS: Final[dict[str, str | Promise]] = {
    "none": _("no side effect"),
    "idempotent": _("may be repeated"),
    "reversible": _("reversible"),
    "irreversible": _("irreversible"),
}

OWNERS: Final[dict[str, str | Promise]] = {
    "worker": _("the next worker of the step"),
    "probe": _("the platform, by asking the service"),
    "operator": _("an operator"),
}

RULES: Final[dict[str, str | Promise]] = {
    "max_amount_per_call": _("the amount is over the limit of one call"),
    "max_amount_per_day": _("the limit of the day is reached"),
    "currency_not_allowed": _("this currency is not permitted"),
    "calls_per_minute": _("too many calls in a minute"),
    "calls_per_day": _("the calls of the day are used up"),
    "max_in_flight": _("too many calls at once"),
    "tool_disabled": _("the tool is disabled"),
    "retry_later": _("the next attempt is not due yet"),
    "input_changed": _("the same key came with another input"),
    "contradicting_evidence": _("there is evidence that it did happen"),
    "nothing_to_compensate": _("there is nothing to undo"),
    "attempts_exhausted": _("its attempts are used up"),
    "gate_refused": _("a person refused it"),
    "policy_denied": _("a policy denies it"),
    "failed_permanent": _("it failed for good"),
    "failed_business_rejection": _("the service refused it"),
    "compensated": _("it was undone"),
}

EVIDENCE: Final[dict[str, str | Promise]] = {
    "late_outcome": _("The worker's answer, which came after its lease was lost"),
    "probe": _("The service's answer to the platform"),
}


@dataclass(frozen=True, slots=True)
class Told:
    """`text`: what is known. `then`: what happens next; empty when that is nothing."""

    text: str
    then: str = ""


def tell(view: EffectView, *, zone: tzinfo, now: datetime) -> Told:
    effect = view.effect

    def at(moment: datetime | None) -> str:
        return moment_text(moment, zone, today=now) if moment else ""

    match effect.status:
        case "reserved":
            return _reserved(view, at(view.gate.expires_at if view.gate else None))
        case "in_flight":
            return Told(
                gettext("Its worker was permitted to call the service at %(time)s and has not brought the outcome yet.")
                % {"time": at(view.started_at)},
                gettext(
                    "If the worker is lost, the outcome becomes unknown; it is not called again before that is settled."
                ),
            )
        case "unknown":
            return Told(
                gettext("It may or may not have happened: the answer was lost at %(time)s.")
                % {"time": at(effect.updated_at)},
                _next(
                    view, at(view.probe_at), at(effect.settle_at) if effect.settle_at and effect.settle_at > now else ""
                ),
            )
        case "succeeded":
            return Told(gettext("It happened, %(time)s.") % {"time": at(effect.updated_at)})
        case "failed":
            text = gettext("It certainly did not happen: %(class)s.") % {
                "class": str(FAILURES.get(effect.failure_class or "", gettext("no reason was given")))
            }
            return Told(text, _again(view, at(effect.retry_at) if effect.retry_at and effect.retry_at > now else ""))
        case "reconciled_succeeded":
            return Told(gettext("Its outcome was lost; somebody found out that it happened."))
        case "reconciled_failed":
            text = gettext("Its outcome was lost; somebody found out that it did not happen.")
            return Told(text, _again(view, ""))
        case "compensating":
            return Told(gettext("It happened, and is being undone."))
        case "compensated":
            return Told(gettext("It happened, and was undone at %(time)s.") % {"time": at(effect.updated_at)})
        case "compensation_failed":
            return Told(
                gettext("It happened, and could not be undone."),
                gettext("It stands until an operator compensates again."),
            )
        case "cancelled" if effect.rule:
            return Told(gettext("Never sent: %(rule)s.") % {"rule": rule_words(effect.rule)})
        case "cancelled":
            return Told(gettext("Never sent: its run or step ended before it was permitted."))
    return Told("")


def rule_words(rule: str) -> str:
    return str(RULES.get(rule, rule))


def _reserved(view: EffectView, expires: str) -> Told:
    gate = view.gate
    if gate is None:
        return Told(gettext("Asked for, and not permitted yet. Nothing was sent."))
    match gate.status:
        case "open":
            then = gettext("A person decides. Satisfied, it is called once; refused, never.")
            if expires:
                then += " " + gettext("The gate lapses at %(time)s.") % {"time": expires}
            return Told(gettext("Waits at a gate, by the rule %(rule)s. Nothing was sent.") % {"rule": gate.rule}, then)
        case "satisfied":
            return Told(
                gettext("Permitted by a person. Not sent yet."),
                gettext("Its worker calls it once, when it claims the step again."),
            )
        case "refused":
            return Told(
                gettext("Refused by a person. Never sent."), gettext("Its worker is told so and must do without.")
            )
    return Told(gettext("Nobody decided before the gate lapsed. Nothing was sent."))


def _next(view: EffectView, probe: str, settle: str) -> str:
    """What happens next with an unknown effect, in one sentence."""
    match view.effect.owner:
        case "probe":
            return gettext(
                "The platform asks the service again at %(time)s, until it knows or hands it to an operator."
            ) % {"time": probe}
        case "worker":
            return gettext("The next worker that claims %(step)s finds out before it does anything else.") % {
                "step": view.effect.step
            }
    if settle:
        return gettext(
            "Nothing happens until an operator says whether it happened; that it did not can be said from %(time)s."
        ) % {"time": settle}
    return gettext("Nothing happens until an operator says whether it happened.")


def _again(view: EffectView, retry: str) -> str:
    if view.run_status in RUN_ENDS:
        return gettext("Its run has ended: it is not called again.")
    if retry:
        return gettext("It may be called again under the same key from %(time)s.") % {"time": retry}
    return gettext("It may be called again, under the same key.")


def contradicted(view: EffectView) -> bool:
    """It was recorded as not done, and somebody brought evidence that it was: it may have happened twice."""
    return view.effect.status in ("failed", "reconciled_failed") and any(
        row.outcome == "succeeded" for row in view.evidence
    )
