"""The effects of a run: the ledger, one effect with its evidence, and what operators decide about it.

Invariant: an input, an outcome or an error is read only when somebody asks for it or has to decide about it, and the audit log says
who did.
"""

from typing import Any
from uuid import UUID

import msgspec
from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from msgspec import Raw

from audit import operations as audit_ops
from kernel import clock
from kernel.errors import NotFound
from runs import operations, queries
from runs.queries import EffectView
from runs.ui import ledger
from runs.ui.base import MAX_REASON, OperatorPage, ReasonForm, principal_of
from runs.ui.inspector import RunPage
from runs.ui.ledger import EVIDENCE, OWNERS, SIDE_EFFECTS, Told
from runs.ui.words import at_words
from runs.wire import ReconcileIn


def _told(view: EffectView) -> Told:
    return ledger.tell(view, zone=timezone.get_current_timezone(), now=clock.now())


class Effects(RunPage):
    template_name = "runs/effects.html"
    tab = "effects"

    def context(self) -> dict[str, Any]:
        now = clock.now()
        found = queries.run_effects(tenant=self.visitor.tenant_id, run_id=self.run_id, now=now)
        return {
            **self.head(found.detail, now),
            "effects": [(view, _told(view)) for view in found.effects],
            "unknown": sum(view.effect.status == "unknown" for view in found.effects),
            "side_effects": SIDE_EFFECTS,
        }


class Effect(RunPage):
    """One effect: what is known of it, who must find out, and the way to what was sent and what came back."""

    template_name = "runs/effect.html"
    tab = "effects"

    def context(self) -> dict[str, Any]:
        now = clock.now()
        detail, view = queries.run_effect(
            tenant=self.visitor.tenant_id, run_id=self.run_id, effect_id=self.kwargs["effect_id"], now=now
        )
        return {
            **self.head(detail, now),
            "view": view,
            "effect": view.effect,
            "told": _told(view),
            "contradicted": ledger.contradicted(view),
            "side_effects": SIDE_EFFECTS,
            "owners": OWNERS,
            "evidence_words": EVIDENCE,
            "rule": ledger.rule_words(view.effect.rule) if view.effect.rule else "",
        }


class EffectPayload(Effect):
    """What was sent, what came back, and what the evidence says: on demand, as a fragment or in the page."""

    secret = True

    def get(self, request: HttpRequest) -> HttpResponseBase:
        effect_id: UUID = self.kwargs["effect_id"]
        found = queries.get_effect(
            tenant=self.visitor.tenant_id, effect_id=effect_id, principal=principal_of(self.visitor)
        )
        if found.effect.run_id != self.run_id:
            raise NotFound("There is no such effect.")
        outcome = msgspec.json.decode(found.outcome, type=dict[str, Raw]) if found.outcome else {}
        self.record("run.payload_viewed", {"effect": str(effect_id), "seq": found.effect.input_seq})
        external = outcome.pop("external_id", None)
        shown = {
            "shown": found,
            "outcome": msgspec.json.encode(outcome) if outcome else None,
            "external_id": msgspec.json.decode(external) if external else None,
            "evidence": [(row, msgspec.json.encode(row.detail)) for row in found.evidence],
            "evidence_words": EVIDENCE,
        }
        if request.headers.get("HX-Request"):
            return self.render({**shown, "run_id": self.run_id}, template="runs/effect_payload.html")
        return self.render({**self.context(), **shown})


class ReconcileForm(ReasonForm):
    result = forms.ChoiceField(
        label=_("What became of the call?"),
        widget=forms.RadioSelect,
        choices=[("succeeded", _("It happened")), ("failed", _("It did not happen, and will not"))],
    )
    external_id = forms.CharField(
        label=_("Id that the service gave it"), max_length=256, required=False,
        help_text=_("A transaction or message id, if it happened and the service has one."),
    )  # fmt: skip
    evidence = forms.CharField(
        label=_("What you saw, and where"), max_length=4000, required=False, widget=forms.Textarea(attrs={"rows": 3}),
        help_text=_("Such as the line of a bank statement. It is stored encrypted, with the run."),
    )  # fmt: skip

    field_order = ["result", "external_id", "evidence", "reason"]


class Reconcile(OperatorPage):
    """An operator says what became of an unknown effect."""

    template_name = "runs/reconcile.html"
    form_class = ReconcileForm

    def context(self) -> dict[str, Any]:
        now = clock.now()
        detail, view = queries.run_effect(
            tenant=self.visitor.tenant_id, run_id=self.kwargs["run_id"], effect_id=self.kwargs["effect_id"], now=now
        )
        effect = view.effect
        return {
            "run": detail.run,
            "view": view,
            "effect": effect,
            "told": _told(view),
            "early": at_words(effect.settle_at, timezone.get_current_timezone(), now)
            if effect.settle_at and effect.settle_at > now
            else "",
            "late": [row for row in view.evidence if row.outcome == "succeeded"],
            "owners": OWNERS,
            "now": now,
        }

    def act(self, form: forms.Form) -> HttpResponse:
        data = form.cleaned_data
        wanted = ReconcileIn(
            result=data["result"],
            reason=data["reason"],
            external_id=(data["external_id"] or None) if data["result"] == "succeeded" else None,
            evidence=Raw(msgspec.json.encode(data["evidence"])) if data["evidence"] else Raw(),
        )
        operations.reconcile(
            tenant=self.visitor.tenant_id, principal=principal_of(self.visitor), effect_id=self.kwargs["effect_id"], request=wanted,
            actor=self.visitor.actor, now=clock.now(),
        )  # fmt: skip
        done = (
            gettext("Recorded that it happened. It will not be called again.")
            if data["result"] == "succeeded"
            else gettext("Recorded that it did not happen. Its worker may call it again, under the same key.")
        )
        messages.success(self.request, done)
        return redirect("runs:effect", self.visitor.slug, self.kwargs["run_id"], self.kwargs["effect_id"])


class GateForm(ReasonForm):
    decision = forms.ChoiceField(choices=[("satisfy", ""), ("refuse", "")])


class Gate(OperatorPage):
    """A gate is decided here, with exactly what is asked for in sight. Seeing it is recorded."""

    template_name = "runs/gate.html"
    form_class = GateForm
    secret = True

    def context(self) -> dict[str, Any]:
        now = clock.now()
        asked = queries.asked(
            tenant=self.visitor.tenant_id, run_id=self.kwargs["run_id"], gate_id=self.kwargs["gate_id"], now=now
        )
        if asked.input is not None:
            audit_ops.record(
                tenant=self.visitor.tenant_id, actor=self.visitor.actor, action="run.payload_viewed", target_kind="run",
                target_id=self.kwargs["run_id"],
                content={"effect": str(asked.view.effect.id), "seq": asked.view.effect.input_seq}, now=now,
            )  # fmt: skip
        gate = asked.gate
        return {
            "run": asked.detail.run,
            "asked": asked,
            "view": asked.view,
            "effect": asked.view.effect,
            "gate": gate,
            "open": gate.status == "open" and (gate.expires_at is None or gate.expires_at > now),
            "hours": int(operations.GRANT_SECONDS // 3600),
            "side_effects": SIDE_EFFECTS,
            "max_reason": MAX_REASON,
            "now": now,
        }

    def act(self, form: forms.Form) -> HttpResponse:
        satisfied = form.cleaned_data["decision"] == "satisfy"
        operations.decide_gate(
            tenant=self.visitor.tenant_id, principal=principal_of(self.visitor), gate_id=self.kwargs["gate_id"],
            satisfied=satisfied,
            reason=form.cleaned_data["reason"], actor=self.visitor.actor, now=clock.now(),
        )  # fmt: skip
        done = (
            gettext("Satisfied. The worker that claims the step next may call it once.")
            if satisfied
            else gettext("Refused. It is not called; the step goes on and is told so.")
        )
        messages.success(self.request, done)
        return redirect("runs:detail", self.visitor.slug, self.kwargs["run_id"])
