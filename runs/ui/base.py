"""What the pages of operators share: the member as a principal, the reason every act needs, and refusals in words."""

from django import forms
from django.http.response import HttpResponseBase
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from kernel import clock
from kernel.errors import DomainError
from kernel.web.door import Visitor
from kernel.web.views import FormPage
from runs.ui.words import refusal
from tenancy.queries import Principal

MAX_REASON = 500


class ReasonForm(forms.Form):
    reason = forms.CharField(
        label=_("Reason, kept in the audit log"), max_length=MAX_REASON, widget=forms.Textarea(attrs={"rows": 3})
    )


def principal_of(visitor: Visitor) -> Principal:
    """The member as the domain knows it: bound to no agent and no project."""
    return Principal(
        kind="member", id=visitor.member_id, tenant_id=visitor.tenant_id, tenant_slug=visitor.slug, name=visitor.name,
        actions=visitor.actions,
    )  # fmt: skip


class OperatorPage(FormPage):
    """A page on which an operator acts. What the domain refuses is told in the reader's words."""

    action = "runs:operate"
    section = "runs"

    def refused(self, error: DomainError) -> HttpResponseBase:
        error.detail = refusal(error, zone=timezone.get_current_timezone(), now=clock.now())
        return super().refused(error)
