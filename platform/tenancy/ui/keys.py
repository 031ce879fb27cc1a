"""API keys: list, create, rotate, revoke. A secret is in one response only, and the browser is told to keep no copy of it."""

from datetime import timedelta
from typing import Any
from uuid import UUID

from django import forms
from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from kernel import clock
from kernel.web.views import FormPage, TenantPage, said
from tenancy import operations, queries
from tenancy.ui.words import SCOPE_NOTES, key_state

LIFETIMES = [("90", _("in 90 days")), ("30", _("in 30 days")), ("365", _("in a year")), ("", _("never"))]
OVERLAPS = [
    ("24", _("24 hours: both work meanwhile")),
    ("168", _("7 days: both work meanwhile")),
    ("1", _("1 hour: both work meanwhile")),
    ("0", _("at once: the old one stops now")),
]


class IssueForm(forms.Form):
    name = forms.CharField(
        label=_("Name of the key"),
        max_length=operations.MAX_NAME,
        help_text=_("Where it is used. Only people see this."),
    )
    agent = forms.ChoiceField(
        label=_("Agent"), required=False, help_text=_("Runs started with this key are recorded as this agent's.")
    )
    expires = forms.ChoiceField(label=_("Expires"), required=False, choices=LIFETIMES, initial="90")
    scopes = forms.MultipleChoiceField(
        label=_("Scopes"),
        widget=forms.CheckboxSelectMultiple,
        choices=[(scope, scope) for scope in queries.SCOPES],
        help_text=_("What the key may do. Give the least that works."),
    )

    def __init__(self, *args: Any, agents: list[tuple[str, str]], scopes: list[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, options in (("agent", [("", _("none")), *agents]), ("scopes", [(s, s) for s in scopes])):
            choice = self.fields[name]
            assert isinstance(choice, forms.ChoiceField)
            choice.choices = options


class RotateForm(forms.Form):
    overlap = forms.ChoiceField(label=_("The old key goes on for"), choices=OVERLAPS)


class Keys(TenantPage):
    action = "keys:read"
    section = "keys"
    template_name = "tenancy/keys.html"

    def context(self) -> dict[str, Any]:
        now = clock.now()
        rows = [(key, key_state(key, now)) for key in queries.list_keys(tenant=self.visitor.tenant_id)]
        working = [row for row in rows if row[1] in {"active", "expiring"}]
        return {
            "working": working,
            "ended": [row for row in rows if row[1] in {"expired", "revoked"}],
            "writable": self.visitor.may("keys:write"),
        }


class Issue(FormPage):
    action = "keys:write"
    section = "keys"
    template_name = "tenancy/key_new.html"
    form_class = IssueForm
    secret = True

    def form_kwargs(self) -> dict[str, Any]:
        agents = queries.list_agents(tenant=self.visitor.tenant_id)
        return {
            "agents": [(str(agent.id), agent.name) for agent in agents],
            "scopes": [scope for scope in queries.SCOPES if self.visitor.may(scope)],
        }

    def context(self) -> dict[str, Any]:
        return {"scope_notes": SCOPE_NOTES}

    def act(self, form: forms.Form) -> HttpResponse:
        data, now = form.cleaned_data, clock.now()
        issued = operations.issue_key(
            tenant=self.visitor.tenant_id,
            name=data["name"],
            scopes=data["scopes"],
            agent_id=UUID(data["agent"]) if data["agent"] else None,
            expires_at=now + timedelta(days=int(data["expires"])) if data["expires"] else None,
            within=self.visitor.actions,
            actor=self.visitor.actor,
            now=now,
        )
        return self.render({"issued": issued}, template="tenancy/key_shown.html")


class KeyPage(FormPage):
    action = "keys:write"
    section = "keys"

    @property
    def key_id(self) -> UUID:
        found: UUID = self.kwargs["key_id"]
        return found

    def context(self) -> dict[str, Any]:
        key = queries.get_key(tenant=self.visitor.tenant_id, key_id=self.key_id)
        return {"key": key, "state": key_state(key, clock.now())}


class Rotate(KeyPage):
    template_name = "tenancy/key_rotate.html"
    form_class = RotateForm
    secret = True

    def act(self, form: forms.Form) -> HttpResponse:
        overlap = timedelta(hours=int(form.cleaned_data["overlap"]))
        issued = operations.rotate_key(
            tenant=self.visitor.tenant_id,
            key_id=self.key_id,
            overlap=overlap,
            within=self.visitor.actions,
            actor=self.visitor.actor,
            now=clock.now(),
        )
        old = queries.get_key(tenant=self.visitor.tenant_id, key_id=self.key_id)
        return self.render({"issued": issued, "old": old, "overlap": overlap}, template="tenancy/key_shown.html")


class Revoke(KeyPage):
    template_name = "tenancy/key_revoke.html"
    form_class = forms.Form

    def act(self, form: forms.Form) -> HttpResponse:
        key = operations.revoke_key(
            tenant=self.visitor.tenant_id, key_id=self.key_id, actor=self.visitor.actor, now=clock.now()
        )
        messages.success(self.request, said(gettext("%(name)s no longer opens anything."), name=key.name))
        return redirect("tenancy:keys", self.visitor.slug)
