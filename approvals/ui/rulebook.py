"""Policies: which there are, what each version said, who decides by them, and what another version would have done."""

from typing import Any
from uuid import UUID

import msgspec
from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from approvals import rules
from approvals.operations import policies as operations
from approvals.queries import dryrun, policies
from approvals.rules import Rules
from approvals.ui.words import DIFFERENCES, RISKS, refusal
from kernel import clock, codec
from kernel.errors import BadCall, DomainError, Forbidden
from kernel.web import exhibit, jsontree
from kernel.web.views import FormPage, TenantPage
from tenancy import queries as tenancy_queries

TRY = (50, 200, 1000)
EXAMPLE = Rules(
    groups=[rules.Group(name="approvers", count=1, role="approver")],
    match=rules.Match(side_effects=["irreversible"]),
    reminders=[4 * 3600.0],
)


def pretty(definition: Rules) -> str:
    """Seconds and counts as whole numbers where they are whole."""
    return jsontree.exact(rules.dump(definition).encode())


class PolicyForm(forms.Form):
    name = forms.RegexField(label=_("Name"), regex=r"^[A-Za-z0-9][A-Za-z0-9_.:@/+-]{0,63}\Z", max_length=64)
    priority = forms.IntegerField(label=_("Priority, the highest speaks"), min_value=-1000, max_value=1000, initial=0)
    rules = forms.CharField(
        label=_("Rules (JSON)"),
        max_length=rules.MAX_RULES,
        widget=forms.Textarea(attrs={"rows": 18, "spellcheck": "false"}),
    )
    last = forms.TypedChoiceField(
        label=_("Try it on the last"), choices=[(str(n), str(n)) for n in TRY], coerce=int, initial=str(TRY[0])
    )  # fmt: skip


class ChangeForm(PolicyForm):
    name = None  # type: ignore[assignment]
    enabled = forms.BooleanField(label=_("In force"), required=False)


class Policies(TenantPage):
    action = "approvals:read"
    section = "policies"
    template_name = "approvals/policies.html"

    def context(self) -> dict[str, Any]:
        return {
            "rows": policies.list_policies(tenant=self.visitor.tenant_id),
            "writable": self.visitor.may("policies:write"),
            "risk_words": RISKS,
        }


class _Rulebook(FormPage):
    section = "policies"
    template_name = "approvals/policy.html"

    def post(self, request: HttpRequest) -> HttpResponseBase:
        form = self.form()
        if not form.is_valid():
            return self._again(form, 422)
        try:
            definition = _parsed(form.cleaned_data["rules"])
            if "try" in request.POST:
                return self.render({"form": form, **self.context(), "tried": self.tried(form, definition)})
        except DomainError as error:
            form.add_error("rules", error.detail)
            return self._again(form, 422)
        if not self.visitor.may("policies:write"):
            raise Forbidden(gettext("You need a role that grants %(action)s.") % {"action": "policies:write"})
        return self.keep(form, definition)

    def tried(self, form: forms.Form, definition: Rules) -> dryrun.DryRun:
        raise NotImplementedError

    def keep(self, form: forms.Form, definition: Rules) -> HttpResponse:
        raise NotImplementedError

    def refused(self, error: DomainError) -> HttpResponseBase:
        error.detail = refusal(error)
        return super().refused(error)


class NewPolicy(_Rulebook):
    action = "policies:write"
    form_class = PolicyForm

    def form_kwargs(self) -> dict[str, Any]:
        return {"initial": {"rules": pretty(EXAMPLE), "priority": 0}}

    def context(self) -> dict[str, Any]:
        return {"writable": True}

    def tried(self, form: forms.Form, definition: Rules) -> dryrun.DryRun:
        return dryrun.dry_run(
            tenant=self.visitor.tenant_id, definition=definition, last=form.cleaned_data["last"], name=form.cleaned_data["name"],
            priority=form.cleaned_data["priority"],
        )  # fmt: skip

    def keep(self, form: forms.Form, definition: Rules) -> HttpResponse:
        data = form.cleaned_data
        row = operations.create_policy(
            tenant=self.visitor.tenant_id, name=data["name"], priority=data["priority"], definition=definition,
            actor=self.visitor.actor, now=clock.now(),
        )  # fmt: skip
        messages.success(self.request, gettext("The policy is in force."))
        return redirect("approvals:policy", self.visitor.slug, row.id)


class Policy(_Rulebook):
    action = "approvals:read"
    form_class = ChangeForm

    @property
    def policy_id(self) -> UUID:
        found: UUID = self.kwargs["policy_id"]
        return found

    def form_kwargs(self) -> dict[str, Any]:
        row = policies.get_policy(tenant=self.visitor.tenant_id, policy_id=self.policy_id)
        return {"initial": {"rules": pretty(row.rules), "priority": row.priority, "enabled": row.enabled}}

    def context(self) -> dict[str, Any]:
        tenant = self.visitor.tenant_id
        row = policies.get_policy(tenant=tenant, policy_id=self.policy_id)
        found = policies.versions(tenant=tenant, policy_id=self.policy_id)
        named = {approver.member_id for approver in row.approvers}
        history = [
            (version, pretty(version.rules), _changes(older.rules if older else None, version.rules))
            for version, older in zip(found, [*found[1:], None], strict=True)
        ]
        return {
            "policy": row,
            "history": history,
            "difference_words": DIFFERENCES,
            "writable": self.visitor.may("policies:write"),
            "others": [m for m in tenancy_queries.list_members(tenant=tenant) if m.id not in named],
        }

    def tried(self, form: forms.Form, definition: Rules) -> dryrun.DryRun:
        return dryrun.dry_run(
            tenant=self.visitor.tenant_id, definition=definition, last=form.cleaned_data["last"], policy_id=self.policy_id,
            priority=form.cleaned_data["priority"],
        )  # fmt: skip

    def keep(self, form: forms.Form, definition: Rules) -> HttpResponse:
        data = form.cleaned_data
        operations.change_policy(
            tenant=self.visitor.tenant_id, policy_id=self.policy_id, definition=definition, priority=data["priority"],
            enabled=data["enabled"], actor=self.visitor.actor, now=clock.now(),
        )  # fmt: skip
        messages.success(self.request, gettext("Changed. What the policy was asking for is asked anew."))
        return redirect("approvals:policy", self.visitor.slug, self.policy_id)


class Approver(TenantPage):
    """Give or take the right to decide by a policy."""

    action = "policies:write"
    section = "policies"
    http_method_names = ["post"]

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        try:
            member = UUID(request.POST.get("member", ""))
        except ValueError:
            raise BadCall(gettext("Choose a member.")) from None
        operations.set_approver(
            tenant=self.visitor.tenant_id, policy_id=self.kwargs["policy_id"], member_id=member,
            allowed=request.POST.get("allowed") == "yes", actor=self.visitor.actor, now=clock.now(),
        )  # fmt: skip
        messages.success(request, gettext("The approvers of the policy are changed."))
        return redirect("approvals:policy", self.visitor.slug, self.kwargs["policy_id"])


def _parsed(text: str) -> Rules:
    return codec.decode_as(text.encode(errors="replace"), Rules, max_bytes=rules.MAX_RULES)


def _changes(before: Rules | None, after: Rules) -> list[exhibit.Difference]:
    if before is None:
        return []
    return exhibit.differences(msgspec.json.encode(before), msgspec.json.encode(after))
