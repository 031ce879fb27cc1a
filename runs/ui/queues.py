"""Queues: what waits in them, what limits them, and the switch that pauses them."""

from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from kernel import clock
from kernel.errors import NotFound
from kernel.web.views import TenantPage
from runs import operations, queries
from runs.operations.queues import EVERY_QUEUE
from runs.queries import QueueRow
from runs.ui.base import OperatorPage, ReasonForm

COUNT_CAP = 10_000
MOST = 1_000_000


def _state(row: QueueRow) -> str:
    return "paused" if row.paused else "serving"


class Queues(TenantPage):
    action = "runs:read"
    section = "queues"
    template_name = "runs/queues.html"

    def context(self) -> dict[str, Any]:
        rows = queries.list_queues(tenant=self.visitor.tenant_id)
        every = next((row for row in rows if row.name == EVERY_QUEUE), None)
        return {
            "rows": [(row, _state(row)) for row in rows if row.name != EVERY_QUEUE],
            "every": every,
            "cap": COUNT_CAP,
            "now": clock.now(),
        }


class LimitsForm(ReasonForm):
    paused = forms.BooleanField(label=_("Paused: no step is given out"), required=False)
    max_leased = forms.IntegerField(
        label=_("Most steps at once"), required=False, min_value=1, max_value=MOST, help_text=_("Empty: no limit.")
    )
    rate_per_minute = forms.FloatField(
        label=_("Most claims in a minute"),
        required=False,
        min_value=0.001,
        max_value=MOST,
        help_text=_("Empty: no limit."),
    )
    burst = forms.FloatField(
        label=_("Of them at once"), required=False, min_value=1, max_value=MOST,
        help_text=_("How many may come together under the limit of a minute. Empty: as many as come in a minute."),
    )  # fmt: skip

    field_order = ["paused", "max_leased", "rate_per_minute", "burst", "reason"]


class Limits(OperatorPage):
    """All limits of a queue, or of all queues together."""

    section = "queues"
    template_name = "runs/queue.html"
    form_class = LimitsForm

    def row(self) -> QueueRow | None:
        name: str = self.kwargs["queue"]
        row = next(iter(queries.list_queues(tenant=self.visitor.tenant_id, name=name)), None)
        if row is None and name != EVERY_QUEUE:
            raise NotFound("There is no such queue.")
        return row

    def form_kwargs(self) -> dict[str, Any]:
        row = self.row()
        fields = ("paused", "max_leased", "rate_per_minute", "burst")
        return {"initial": {name: getattr(row, name) for name in fields} if row else {}}

    def context(self) -> dict[str, Any]:
        row = self.row()
        return {"row": row, "every": self.kwargs["queue"] == EVERY_QUEUE, "state": _state(row) if row else "serving"}

    def act(self, form: forms.Form) -> HttpResponse:
        data, name = form.cleaned_data, self.kwargs["queue"]
        operations.set_queue(
            tenant=self.visitor.tenant_id, name=name, paused=data["paused"], max_leased=data["max_leased"],
            rate_per_minute=data["rate_per_minute"], burst=data["burst"], reason=data["reason"], actor=self.visitor.actor,
            now=clock.now(),
        )  # fmt: skip
        done = (
            gettext("Paused. What is leased goes on; nothing new is given out.")
            if data["paused"]
            else gettext("Set. It holds from the next claim on.")
        )
        messages.success(self.request, done)
        return redirect("runs:queues", self.visitor.slug)
