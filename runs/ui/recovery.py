"""Ending a run and bringing one back: each way is explained by what it would do to this very run before anybody takes it."""

from dataclasses import dataclass
from typing import Any, Final, get_args
from urllib.parse import urlencode
from uuid import UUID

from django import forms
from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from audit import operations as audit_ops
from kernel import clock
from kernel.errors import Invalid, NotFound
from kernel.web import paging, states, text
from runs import operations, queries
from runs.operations import Action
from runs.queries import EffectView, RunFilter, Standing
from runs.states import RUN_ENDS
from runs.ui.base import OperatorPage, ReasonForm
from runs.ui.words import FAILURES, REFUSALS

BULK: Final = 100  # runs in one go; the page says how many are left
ACTIONS: Final = {
    "retry": _("Retry what failed"),
    "resume": _("Resume the run"),
    "skip": _("Skip what failed"),
    "compensate": _("Undo what it did"),
    "cancel": _("Cancel it"),
}
GRACES: Final = [
    ("0", _("at once")),
    ("30", _("after 30 seconds")),
    ("300", _("after 5 minutes")),
    ("3600", _("after an hour")),
]

assert set(ACTIONS) == set(get_args(Action))


@dataclass(frozen=True, slots=True)
class Way:
    """One way on. `facts` say what it would do here; `not_now` why it cannot be taken."""

    action: str
    word: str
    facts: list[str]
    not_now: str = ""


class CancelForm(ReasonForm):
    grace = forms.ChoiceField(label=_("Workers must stop"), choices=GRACES, initial="0", required=False)

    field_order = ["grace", "reason"]


class Cancel(OperatorPage):
    template_name = "runs/cancel.html"
    form_class = CancelForm

    def context(self) -> dict[str, Any]:
        found = queries.standing(tenant=self.visitor.tenant_id, run_id=self.kwargs["run_id"], now=clock.now())
        run = found.detail.run
        return {
            "run": run,
            "ended": run.status in RUN_ENDS and run.status != "dead_letter",
            "held": [attempt for attempt in found.detail.attempts if attempt.outcome is None],
            "left": run.steps_total - run.steps_done,
            "flying": _names(found.in_flight),
            "stay": _names([*found.undo, *found.stay]),
            "gates": found.gates,
            "cancel_at": found.detail.cancel_at,
        }

    def act(self, form: forms.Form) -> HttpResponse:
        grace = float(form.cleaned_data["grace"] or 0)
        operations.cancel_run(
            tenant=self.visitor.tenant_id, run_id=self.kwargs["run_id"], reason=form.cleaned_data["reason"], grace_seconds=grace,
            actor=self.visitor.actor, now=clock.now(),
        )  # fmt: skip
        done = (
            gettext("Its workers are told to stop. The run ends when they are done, or when their time is over.")
            if grace
            else gettext("The run is cancelled. Its workers are refused from now on.")
        )
        messages.success(self.request, done)
        return redirect("runs:detail", self.visitor.slug, self.kwargs["run_id"])


class RecoverForm(ReasonForm):
    action = forms.ChoiceField(
        label=_("What becomes of it?"), widget=forms.RadioSelect, choices=list(ACTIONS.items()), error_messages={
            "required": _("Choose what becomes of it."),
        },
    )  # fmt: skip

    field_order = ["action", "reason"]


class Recover(OperatorPage):
    """The ways out of the dead letter, for one run."""

    template_name = "runs/recover.html"
    form_class = RecoverForm
    secret = True

    def context(self) -> dict[str, Any]:
        now = clock.now()
        found = queries.standing(tenant=self.visitor.tenant_id, run_id=self.kwargs["run_id"], now=now)
        run = found.detail.run
        if any(failure.message for failure in found.failures):
            audit_ops.record(
                tenant=self.visitor.tenant_id, actor=self.visitor.actor, action="run.payload_viewed", target_kind="run",
                target_id=run.id, content={"seq": found.failures[-1].seq}, now=now,
            )  # fmt: skip
        return {
            "run": run,
            "dead": run.status == "dead_letter",
            "found": found,
            "ways": ways(found),
            "failure_words": FAILURES,
            "now": now,
        }

    def act(self, form: forms.Form) -> HttpResponse:
        status = operations.recover_run(
            tenant=self.visitor.tenant_id, run_id=self.kwargs["run_id"], action=form.cleaned_data["action"], step=None,
            reason=form.cleaned_data["reason"], actor=self.visitor.actor, now=clock.now(),
        )  # fmt: skip
        messages.success(
            self.request,
            gettext("Done. The run is %(status)s now.") % {"status": str(states.look(status).word).lower()},
        )
        return redirect("runs:detail", self.visitor.slug, self.kwargs["run_id"])


def ways(found: Standing) -> list[Way]:
    """What each way would do to this run."""
    steps = _listed([step.name for step in found.stopped])
    behind = (
        ngettext("%(steps)s follows when it succeeds.", "%(steps)s follow when it succeeds.", len(found.blocked))
        % {"steps": _listed([s.name for s in found.blocked])}
        if found.blocked
        else ""
    )
    unknown = found.unknown
    open_effects = (
        gettext("Not yet: nobody knows whether %(effects)s happened. Reconcile first.") % {"effects": _names(unknown)}
        if unknown
        else ""
    )
    told = (
        gettext("Its worker is told to find out about %(effects)s first.") % {"effects": _names(unknown)}
        if unknown
        else ""
    )
    again = (
        ngettext("%(steps)s gets new attempts, at once.", "%(steps)s get new attempts, at once.", len(found.stopped))
        % {"steps": steps}
        if found.stopped
        else gettext("No step failed: what the run's deadline stopped goes on.")
    )
    done = gettext("Effects that happened are not repeated: their keys are known.")
    skip = (
        ngettext("%(steps)s is never done.", "%(steps)s are never done.", len(found.stopped)) % {"steps": steps}
        if found.stopped
        else gettext("No step failed, so there is nothing to skip: the run goes on.")
    )
    after = (
        ngettext(
            "%(steps)s goes on as if it had succeeded.", "%(steps)s go on as if it had succeeded.", len(found.blocked)
        )
        % {"steps": _listed([s.name for s in found.blocked])}
        if found.blocked
        else gettext("No step is left: the run completes at once.")
    )
    stopped_ids = {step.name for step in found.stopped}
    skip_unknown = [view for view in unknown if view.effect.step in stopped_ids]
    undo = [
        gettext("%(tool)s is undone by %(compensation)s.") % {"tool": _name(view), "compensation": view.compensation}
        for view in found.undo
    ]
    if len(undo) > 1:
        undo.insert(0, gettext("%(count)s effects are undone, the newest first.") % {"count": len(undo)})
    if not undo:
        undo = [gettext("No effect of this run can be undone: the run is cancelled at once.")]
    if found.stay:
        undo.append(
            ngettext(
                "%(effects)s cannot be undone and stays.", "%(effects)s cannot be undone and stay.", len(found.stay)
            )
            % {"effects": _names(found.stay)}
        )
    undo.append(gettext("All other steps are skipped; then the run is cancelled."))
    kept = [gettext("No further step is done.")]
    happened = [*found.undo, *found.stay]
    if happened:
        kept.append(gettext("What happened stays: %(effects)s.") % {"effects": _names(happened)})
    if unknown:
        kept.append(
            ngettext(
                "%(effects)s stays unknown: an operator must find out.",
                "%(effects)s stay unknown: an operator must find out.",
                len(unknown),
            )
            % {"effects": _names(unknown)}
        )
    texts: dict[str, tuple[list[str], str]] = {
        "retry": ([again, behind, told, done], ""),
        "resume": (
            [gettext("As retry, for when the cause lay outside and is gone: the log says which of them it was."), again, told], "",
        ),
        "skip": ([skip, after], open_effects if skip_unknown else ""),
        "compensate": (undo, open_effects),
        "cancel": (kept, ""),
    }  # fmt: skip
    return [
        Way(action, str(word), [fact for fact in texts[action][0] if fact], texts[action][1])
        for action, word in ACTIONS.items()
    ]


BULK_FACTS: Final = {
    "retry": _("The steps that failed get new attempts, at once. Effects that happened are not repeated."),
    "resume": _("As retry, for when the cause lay outside and is gone."),
    "skip": _(
        "The steps that failed are never done; the steps behind them go on. Runs with an unknown effect there are refused."
    ),
    "compensate": _(
        "What can be undone is undone, newest first; then the run is cancelled. Runs with an unknown effect are refused."
    ),
    "cancel": _("No further step is done. What happened stays."),
}


class RecoverMany(OperatorPage):
    """The same for all dead letters of a filter: those that the preview showed, no other."""

    section = "attention"
    template_name = "runs/recover_many.html"
    form_class = RecoverForm

    @property
    def workflow(self) -> str:
        return paging.clean(self.request.GET, "workflow", 64)

    @property
    def after(self) -> UUID | None:
        """The run that the list begins behind."""
        try:
            return UUID(self.request.GET["after"]) if "after" in self.request.GET else None
        except ValueError as error:
            raise NotFound("There is no such run.") from error

    def address(self, after: UUID) -> str:
        """This page for the runs behind that one."""
        query = {"after": str(after), **({"workflow": self.workflow} if self.workflow else {})}
        return f"{self.request.path}?{urlencode(query)}"

    def context(self) -> dict[str, Any]:
        filters = RunFilter(status=("dead_letter",), workflow=self.workflow or None)
        runs, left = queries.oldest_dead(tenant=self.visitor.tenant_id, filters=filters, after=self.after, limit=BULK)
        return {
            "runs": runs,
            "left": left,
            "next": self.address(runs[-1].id) if left else None,
            "workflow": self.workflow,
            "ways": [Way(action, str(word), [str(BULK_FACTS[action])]) for action, word in ACTIONS.items()],
            "now": clock.now(),
            "back": reverse("runs:attention", args=[self.visitor.slug]),
        }

    def act(self, form: forms.Form) -> HttpResponse:
        try:
            wanted = [UUID(value) for value in self.request.POST.getlist("run")][:BULK]
        except ValueError as error:
            raise Invalid(gettext("The list of runs cannot be read. Go back and try again.")) from error
        done = operations.recover_runs(
            tenant=self.visitor.tenant_id, run_ids=wanted, action=form.cleaned_data["action"], reason=form.cleaned_data["reason"],
            actor=self.visitor.actor, now=clock.now(),
        )  # fmt: skip
        results = [(run_id, result, REFUSALS.get(result, "")) for run_id, result in done.items()]
        return self.render(
            {
                "results": results,
                "changed": sum(not word for *_ids, word in results),
                "action": ACTIONS[form.cleaned_data["action"]],
                "back": reverse("runs:attention", args=[self.visitor.slug]),
            },
            template="runs/recovered.html",
        )


def _names(views: list[EffectView]) -> str:
    return _listed([_name(view) for view in views])


def _name(view: EffectView) -> str:
    """A tool, and the amount by which one of its calls is told from another."""
    effect = view.effect
    return f"{effect.tool} ({text.money(effect.amount, effect.currency)})" if effect.amount else effect.tool


def _listed(names: list[str], most: int = 4) -> str:
    """A few names, and how many more there are."""
    shown = ", ".join(names[:most])
    rest = len(names) - most
    return (
        shown
        if rest <= 0
        else shown + " " + ngettext("and %(count)s more", "and %(count)s more", rest) % {"count": rest}
    )
