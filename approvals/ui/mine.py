"""My absences, and who decides in my place meanwhile."""

from typing import Any
from uuid import UUID

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from approvals.operations import delegations
from approvals.queries import policies
from kernel import clock
from kernel.web.views import FormPage
from tenancy import queries as tenancy_queries

_DATE = {"type": "date"}


class DelegationForm(forms.Form):
    to = forms.ChoiceField(label=_("Who stands in"), required=False)
    policy = forms.ChoiceField(label=_("For"), required=False)
    first = forms.DateField(label=_("First day"), widget=forms.DateInput(attrs=_DATE))
    last = forms.DateField(label=_("Last day"), widget=forms.DateInput(attrs=_DATE))
    away = forms.BooleanField(label=_("I am away and do not decide myself meanwhile"), required=False)
    reason = forms.CharField(label=_("Reason, kept in the audit log"), required=False, max_length=500)

    def __init__(self, *args: Any, people: list[tuple[str, str]], rules: list[tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        to, policy = self.fields["to"], self.fields["policy"]
        assert isinstance(to, forms.ChoiceField)
        assert isinstance(policy, forms.ChoiceField)
        to.choices = [("", _("nobody")), *people]
        policy.choices = [("", _("all policies")), *rules]


class Mine(FormPage):
    action = "approvals:read"
    section = "approvals"
    template_name = "approvals/mine.html"
    form_class = DelegationForm

    def form_kwargs(self) -> dict[str, Any]:
        tenant = self.visitor.tenant_id
        return {
            "people": [
                (str(member.id), member.name)
                for member in tenancy_queries.list_members(tenant=tenant)
                if member.id != self.visitor.member_id
            ],
            "rules": [(str(policy.id), policy.name) for policy in policies.list_policies(tenant=tenant)],
        }

    def context(self) -> dict[str, Any]:
        now = clock.now()
        rows = policies.list_delegations(tenant=self.visitor.tenant_id, now=now, member=self.visitor.member_id)
        return {
            "given": [row for row in rows if row.from_id == self.visitor.member_id],
            "taken": [row for row in rows if row.to_id == self.visitor.member_id],
            "zone": timezone.get_current_timezone(),
        }

    def act(self, form: forms.Form) -> HttpResponse:
        data = form.cleaned_data
        zone = timezone.get_current_timezone()
        starts, ends = delegations.window(data["first"], data["last"], zone)
        delegations.delegate(
            tenant=self.visitor.tenant_id, from_member=self.visitor.member_id, to_member=UUID(data["to"]) if data["to"] else None,
            starts_at=starts, ends_at=ends, away=data["away"], reason=data["reason"] or None,
            policy_id=UUID(data["policy"]) if data["policy"] else None, actor=self.visitor.actor, now=clock.now(),
        )  # fmt: skip
        messages.success(self.request, gettext("Kept. It holds on these days, in your time zone."))
        return redirect("approvals:mine", self.visitor.slug)


class EndDelegation(FormPage):
    """One of one's own, at once."""

    action = "approvals:read"
    section = "approvals"
    http_method_names = ["post"]

    def post(self, request: HttpRequest) -> HttpResponseBase:
        delegations.revoke(
            tenant=self.visitor.tenant_id, delegation_id=self.kwargs["delegation_id"], actor=self.visitor.actor, now=clock.now(),
            member=self.visitor.member_id,
        )  # fmt: skip
        messages.success(request, gettext("Ended. What was decided under it stays."))
        return redirect("approvals:mine", self.visitor.slug)
