"""What happens when a run is resumed, for a person: from which state, what is known of its effects, what comes next."""

from typing import Any, Final

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from kernel import clock
from runs import queries
from runs.ui.inspector import RunPage
from runs.ui.words import WAITING_FOR

STEP_WORDS: Final[dict[str, str | Promise]] = {
    "claim": _("The next worker of its queue takes it at once."),
    "leave": _("A worker has it. If that worker is gone, the step is given to another when its lease runs out."),
    "decide": _("It failed for good: an operator decides first."),
    "wait": _("It goes on by itself when what it waits for has come."),
}
EFFECT_WORDS: Final[dict[str, str | Promise]] = {
    "done": _("Not repeated: its result is used."),
    "failed": _("It did not happen, and may be called again under the same key."),
    "reconcile": _("The next worker finds out what became of it before anything else."),
    "await": _("It waits for somebody's answer."),
    "leave": _("A worker has it in hand."),
}
REASONS: Final[dict[str, str | Promise]] = {
    "unknown_version": _("this version of the workflow is not registered"),
    "version_disabled": _("this version of the workflow is disabled"),
    "migration_missing": _("a migration of the state is missing"),
    "migration_failed": _("a migration does not fit the state"),
    "state_invalid": _("the state does not fit the version's schema"),
}


class Resume(RunPage):
    template_name = "runs/resume.html"
    tab = "resume"

    def context(self) -> dict[str, Any]:
        now = clock.now()
        plan = queries.resume_plan(tenant=self.visitor.tenant_id, run_id=self.run_id, now=now)
        return {
            **self.head(self.detail(now), now),
            "plan": plan,
            "since": sum(plan.since.values()),
            "step_words": STEP_WORDS,
            "effect_words": EFFECT_WORDS,
            "waiting_for": WAITING_FOR,
            "reason": REASONS.get(plan.version_check.reason or "", plan.version_check.reason or ""),
        }
