"""Webhooks: list, create, change, rotate the secret, delete, test, and send again what was not delivered."""

from datetime import timedelta
from typing import Any
from uuid import UUID

from django import forms
from django.contrib import messages
from django.http import HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from kernel import clock
from kernel.errors import Forbidden
from kernel.web import paging
from kernel.web.views import FormPage, TenantPage, said
from notices import kinds, operations, queries
from notices.operations.endpoints import MAX_REDELIVERED, MAX_URL
from notices.ui.words import REASONS, STATES, error_words

PAGE = 50
OVERLAPS = [
    ("24", _("24 hours: both are signed with meanwhile")),
    ("168", _("7 days: both are signed with meanwhile")),
    ("1", _("1 hour: both are signed with meanwhile")),
    ("0", _("at once: the old one is not used again")),
]
SINCE = [
    ("1", _("the last hour")),
    ("24", _("the last day")),
    ("72", _("the last 3 days")),
    ("720", _("the last 30 days")),
]


class EndpointForm(forms.Form):
    url = forms.CharField(
        label=_("Address"),
        max_length=MAX_URL,
        help_text=_("Where notices are sent to, as https://…; never an address of our own networks."),
        widget=forms.TextInput(attrs={"inputmode": "url"}),
    )
    kinds = forms.MultipleChoiceField(
        label=_("Kinds of notices"),
        required=False,
        widget=forms.CheckboxSelectMultiple,
        help_text=_("None chosen: all, also those that come later."),
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        choice = self.fields["kinds"]
        assert isinstance(choice, forms.ChoiceField)
        choice.choices = [(kind.name, kind.name) for kind in kinds.known() if kind.name != kinds.PING]


class RotateForm(forms.Form):
    overlap = forms.ChoiceField(label=_("The old secret goes on for"), choices=OVERLAPS)


class ActForm(forms.Form):
    """One of the buttons of an endpoint's page."""

    do = forms.ChoiceField(choices=[(name, name) for name in ("ping", "redeliver", "since", "on", "off")])
    delivery = forms.UUIDField(required=False)
    since = forms.ChoiceField(choices=SINCE, label=_("What was not delivered in"), required=False)


class Webhooks(TenantPage):
    action = "webhooks:read"
    section = "webhooks"
    template_name = "notices/webhooks.html"

    def context(self) -> dict[str, Any]:
        rows = queries.list_endpoints(tenant=self.visitor.tenant_id)
        return {
            "rows": [(row, state(row), reason(row)) for row in rows],
            "writable": self.visitor.may("webhooks:write"),
        }


class Create(FormPage):
    action = "webhooks:write"
    section = "webhooks"
    template_name = "notices/webhook_new.html"
    form_class = EndpointForm
    secret = True

    def context(self) -> dict[str, Any]:
        return {"notes": {kind.name: kind.title for kind in kinds.known()}}

    def act(self, form: forms.Form) -> HttpResponse:
        issued = operations.create_endpoint(
            tenant=self.visitor.tenant_id,
            url=form.cleaned_data["url"],
            kinds=form.cleaned_data["kinds"],
            actor=self.visitor.actor,
            now=clock.now(),
        )
        return self.render({"issued": issued, "fresh": True}, template="notices/webhook_shown.html")


class EndpointPage(FormPage):
    action = "webhooks:write"
    section = "webhooks"

    @property
    def endpoint_id(self) -> UUID:
        found: UUID = self.kwargs["endpoint_id"]
        return found

    def endpoint(self) -> queries.EndpointRow:
        return queries.get_endpoint(tenant=self.visitor.tenant_id, endpoint_id=self.endpoint_id)

    def context(self) -> dict[str, Any]:
        row = self.endpoint()
        return {"endpoint": row, "state": state(row), "reason": reason(row)}


class Webhook(EndpointPage):
    """An endpoint and its deliveries. Reading needs less than the buttons do."""

    action = "webhooks:read"
    template_name = "notices/webhook.html"
    form_class = ActForm

    def context(self) -> dict[str, Any]:
        query = self.request.GET
        status = query.get("status", "")
        status = status if status in queries.STATUSES else ""
        found = queries.deliveries(
            tenant=self.visitor.tenant_id,
            endpoint_id=self.endpoint_id,
            status=status or None,
            cursor=cursor(query.get("cursor", "")),
            limit=PAGE,
        )
        return {
            **super().context(),
            "rows": [(row, STATES[row.status], error_words(row.last_error)) for row in found.rows],
            "status": status,
            "pager": paging.pager(
                self.request.path,
                query,
                shown=len(found.rows),
                total=None,
                next_cursor=str(found.next_cursor) if found.next_cursor else None,
            ),
            "writable": self.visitor.may("webhooks:write"),
        }

    def post(self, request: Any) -> HttpResponseBase:
        if not self.visitor.may("webhooks:write"):
            raise Forbidden(gettext("You need a role that grants %(action)s.") % {"action": "webhooks:write"})
        return super().post(request)

    def act(self, form: forms.Form) -> HttpResponse:
        data, now, tenant, actor = form.cleaned_data, clock.now(), self.visitor.tenant_id, self.visitor.actor
        match data["do"]:
            case "ping":
                operations.ping(tenant=tenant, endpoint_id=self.endpoint_id, now=now)
                messages.success(self.request, gettext("A test is on its way."))
            case "redeliver" if data["delivery"]:
                operations.redeliver(
                    tenant=tenant, endpoint_id=self.endpoint_id, delivery_id=data["delivery"], actor=actor, now=now
                )
                messages.success(self.request, gettext("It is sent again."))
            case "since" if data["since"]:
                self._since(timedelta(hours=int(data["since"])))
            case "on" | "off":
                operations.change_endpoint(
                    tenant=tenant, endpoint_id=self.endpoint_id, enabled=data["do"] == "on", actor=actor, now=now
                )
        return redirect("notices:webhook", self.visitor.slug, self.endpoint_id)

    def _since(self, span: timedelta) -> None:
        now = clock.now()
        done = operations.redeliver_since(
            tenant=self.visitor.tenant_id,
            endpoint_id=self.endpoint_id,
            since=now - span,
            delivered=False,
            cursor=None,
            limit=MAX_REDELIVERED,
            actor=self.visitor.actor,
            now=now,
        )
        words = ngettext("%(count)d is sent again.", "%(count)d are sent again.", done.count) % {"count": done.count}
        if done.next_cursor is not None:
            words += " " + gettext("There are more: repeat it.")
        messages.success(self.request, words)


class Change(EndpointPage):
    template_name = "notices/webhook_change.html"
    form_class = EndpointForm

    def form_kwargs(self) -> dict[str, Any]:
        if self.request.method == "POST":
            return {}
        row = self.endpoint()
        return {"initial": {"url": row.url, "kinds": row.kinds}}

    def context(self) -> dict[str, Any]:
        return {**super().context(), "notes": {kind.name: kind.title for kind in kinds.known()}}

    def act(self, form: forms.Form) -> HttpResponse:
        operations.change_endpoint(
            tenant=self.visitor.tenant_id,
            endpoint_id=self.endpoint_id,
            url=form.cleaned_data["url"],
            kinds=form.cleaned_data["kinds"],
            actor=self.visitor.actor,
            now=clock.now(),
        )
        return redirect("notices:webhook", self.visitor.slug, self.endpoint_id)


class Rotate(EndpointPage):
    template_name = "notices/webhook_rotate.html"
    form_class = RotateForm
    secret = True

    def act(self, form: forms.Form) -> HttpResponse:
        issued = operations.rotate_secret(
            tenant=self.visitor.tenant_id,
            endpoint_id=self.endpoint_id,
            overlap=timedelta(hours=int(form.cleaned_data["overlap"])),
            actor=self.visitor.actor,
            now=clock.now(),
        )
        return self.render({"issued": issued}, template="notices/webhook_shown.html")


class Delete(EndpointPage):
    template_name = "notices/webhook_delete.html"
    form_class = forms.Form

    def act(self, form: forms.Form) -> HttpResponse:
        host = self.endpoint().host
        operations.delete_endpoint(
            tenant=self.visitor.tenant_id, endpoint_id=self.endpoint_id, actor=self.visitor.actor, now=clock.now()
        )
        messages.success(self.request, said(gettext("%(name)s is told nothing any more."), name=host))
        return redirect("notices:webhooks", self.visitor.slug)


def state(row: queries.EndpointRow) -> str:
    """`active`, `failing` or `disabled`."""
    return "failing" if row.status == "active" and row.failing_since is not None else row.status


def reason(row: queries.EndpointRow) -> Any:
    """Why it is switched off, in words."""
    return REASONS.get(row.disabled_reason or "", "")


def cursor(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
