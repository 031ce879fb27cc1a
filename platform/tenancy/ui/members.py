"""Members of a tenant: who is in, as what; add, change, remove."""

import secrets
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
from tenancy.models import Member, Role, User
from tenancy.ui.door import role_words
from tenancy.ui.words import ROLE_NOTES, ROLES


class RolesForm(forms.Form):
    roles = forms.MultipleChoiceField(
        label=_("Roles"), choices=list(ROLES.items()), widget=forms.CheckboxSelectMultiple, help_text=_("At least one.")
    )


class AddForm(RolesForm):
    name = forms.CharField(
        label=_("Name"), max_length=operations.MAX_NAME, help_text=_("As colleagues know this person.")
    )
    email = forms.EmailField(label=_("E-mail"), max_length=254, help_text=_("This is what the person signs in with."))
    field_order = ["name", "email", "roles"]


class Members(TenantPage):
    action = "members:read"
    section = "members"
    template_name = "tenancy/members.html"

    def context(self) -> dict[str, Any]:
        members = queries.list_members(tenant=self.visitor.tenant_id)
        owners = [member.id for member in members if Role.OWNER in member.roles]
        return {
            "rows": [(m, role_words(frozenset(m.roles)), owners == [m.id]) for m in members],
            "writable": self.visitor.may("members:write"),
            "owners": [m.name for m in members if m.id in owners],
        }


class Add(FormPage):
    action = "members:write"
    section = "members"
    template_name = "tenancy/member_add.html"
    form_class = AddForm
    secret = True

    def context(self) -> dict[str, Any]:
        return {"role_notes": ROLE_NOTES}

    def act(self, form: forms.Form) -> HttpResponse:
        """Add a person who signs in already, or one for whom a first password is made and shown once."""
        data, now = form.cleaned_data, clock.now()
        user, password = User.objects.filter(email__iexact=data["email"]).first(), ""
        if user is None:
            password = secrets.token_urlsafe(15)
            user = operations.create_user(email=data["email"], password=password, name=data["name"], now=now)
        member = operations.add_member(
            tenant=self.visitor.tenant_id,
            user=user,
            name=data["name"],
            roles=data["roles"],
            actor=self.visitor.actor,
            now=now,
        )
        if password:
            return self.render({"member": member, "password": password}, template="tenancy/member_added.html")
        messages.success(
            self.request, said(gettext("%(name)s is a member now and signs in as before."), name=member.name)
        )
        return redirect("tenancy:members", self.visitor.slug)


class MemberPage(FormPage):
    action = "members:write"
    section = "members"

    @property
    def member_id(self) -> UUID:
        found: UUID = self.kwargs["member_id"]
        return found

    def member(self) -> Member:
        return queries.get_member(tenant=self.visitor.tenant_id, member_id=self.member_id)

    def context(self) -> dict[str, Any]:
        member = self.member()
        return {"member": member, "self": member.id == self.visitor.member_id, "role_notes": ROLE_NOTES}


class ChangeRoles(MemberPage):
    template_name = "tenancy/member_roles.html"
    form_class = RolesForm

    def form_kwargs(self) -> dict[str, Any]:
        return {"initial": {"roles": self.member().roles}} if self.request.method == "GET" else {}

    def act(self, form: forms.Form) -> HttpResponse:
        member = operations.change_roles(
            tenant=self.visitor.tenant_id,
            member_id=self.member_id,
            roles=form.cleaned_data["roles"],
            within=self.visitor.actions,
            actor=self.visitor.actor,
            now=clock.now(),
        )
        messages.success(self.request, said(gettext("The roles of %(name)s were changed."), name=member.name))
        return redirect("tenancy:members", self.visitor.slug)


class Remove(MemberPage):
    template_name = "tenancy/member_remove.html"
    form_class = forms.Form

    def act(self, form: forms.Form) -> HttpResponse:
        operations.remove_member(
            tenant=self.visitor.tenant_id, member_id=self.member_id, actor=self.visitor.actor, now=clock.now()
        )
        messages.success(self.request, gettext("The membership has ended."))
        gone = self.member_id == self.visitor.member_id
        return redirect("tenancy:places") if gone else redirect("tenancy:members", self.visitor.slug)
