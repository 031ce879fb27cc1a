"""A member's own page: which notices come by e-mail, and in which language."""

from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from kernel.web.views import FormPage
from notices import kinds, operations, queries


class WishesForm(forms.Form):
    wanted = forms.MultipleChoiceField(
        label=_("Send me an e-mail for"), required=False, widget=forms.CheckboxSelectMultiple
    )
    language = forms.ChoiceField(label=_("Language of the e-mails"), choices=settings.LANGUAGES)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        wanted = self.fields["wanted"]
        assert isinstance(wanted, forms.ChoiceField)
        wanted.choices = [(kind.name, kind.title) for kind in kinds.known() if kind.mailed]


class Notifications(FormPage):
    # Every member sees runs, and what there is to tell is about them.
    action = "runs:read"
    section = "notifications"
    template_name = "notices/notifications.html"
    form_class = WishesForm

    def form_kwargs(self) -> dict[str, Any]:
        if self.request.method == "POST":
            return {}
        found = queries.wishes(tenant=self.visitor.tenant_id, member_id=self.visitor.member_id)
        wanted = [kind.name for kind in kinds.known() if kind.name not in found.unwanted]
        return {"initial": {"language": found.language, "wanted": wanted}}

    def context(self) -> dict[str, Any]:
        return {"notes": {kind.name: kind.note for kind in kinds.known()}}

    def act(self, form: forms.Form) -> HttpResponse:
        operations.choose(
            tenant=self.visitor.tenant_id,
            member_id=self.visitor.member_id,
            language=form.cleaned_data["language"],
            wanted=form.cleaned_data["wanted"],
        )
        messages.success(self.request, gettext("Your choice is kept."))
        return redirect("notices:notifications", self.visitor.slug)
