"""Bases of the pages under `/t/<slug>/`. A view translates in, makes one domain call, translates out.

Invariants: a stranger gets the same 404 as for a tenant that does not exist; the tenant's transaction is open while the page is
made and is rolled back when the domain refuses; what a page may do is asked of the visitor before anything is read.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, ClassVar

from django import forms
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.template.response import TemplateResponse
from django.utils.cache import add_never_cache_headers, patch_cache_control, patch_vary_headers
from django.utils.html import conditional_escape, format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.views import View

from kernel import context as tenant_context
from kernel.errors import DomainError, Forbidden, NotFound
from kernel.web import door, errors, navigation
from kernel.web.door import Visitor


class TenantPage(View):
    """A page of one tenant. Subclasses say the action it needs, its template, and what the template gets."""

    action: ClassVar[str]
    template_name: ClassVar[str]
    section: ClassVar[str] = ""
    # Set where a secret or a payload is shown: the browser keeps no copy.
    secret: ClassVar[bool] = False
    http_method_names = ["get", "post", "head"]

    visitor: Visitor

    def dispatch(self, request: HttpRequest, *args: Any, slug: str, **kwargs: Any) -> HttpResponseBase:
        if not request.user.is_authenticated:
            answer = redirect_to_login(request.get_full_path())
            if request.headers.get("HX-Request"):
                # A script follows redirects by itself and would take the sign-in page for its fragment.
                return HttpResponse(headers={"HX-Redirect": answer["Location"]})
            return answer
        try:
            response = self._inside(request, slug)
        except Exception as error:
            # Everything: a database that is away must not end in a blank page, and what is unforeseen is logged in there.
            response = errors.page(request, error)
        if self.secret:
            add_never_cache_headers(response)
        else:
            patch_cache_control(response, private=True, no_cache=True)
        patch_vary_headers(response, ["Cookie", "HX-Request"])
        return response

    def _inside(self, request: HttpRequest, slug: str) -> HttpResponseBase:
        visitor = door.enter(request, slug)
        if visitor is None:
            raise NotFound
        self.visitor = request.visitor = visitor  # type: ignore[attr-defined]  # the templates' frame reads it
        if not visitor.may(self.action):
            raise Forbidden(gettext("You need a role that grants %(action)s.") % {"action": self.action})
        try:
            with tenant_context.tenant_scope(visitor.tenant_id):
                return self._rendered(super().dispatch(request))
        except DomainError as error:
            with tenant_context.tenant_scope(visitor.tenant_id):
                return self._rendered(self.refused(error))

    @staticmethod
    def _rendered(response: HttpResponseBase) -> HttpResponseBase:
        return response.render() if isinstance(response, TemplateResponse) else response

    def get(self, request: HttpRequest) -> HttpResponseBase:
        return self.render(self.context())

    def context(self) -> dict[str, Any]:
        """What the template gets."""
        return {}

    def refused(self, error: DomainError) -> HttpResponseBase:
        """The answer when the domain said no; the transaction was rolled back."""
        return errors.page(self.request, error)

    def _counts(self) -> Mapping[str, int]:
        """What stands beside the sections; a fragment has no sections."""
        return {} if self.request.headers.get("HX-Request") else navigation.counts(self.visitor)

    def render(
        self, context: dict[str, Any], *, template: str | None = None, status: int = HTTPStatus.OK
    ) -> HttpResponse:
        context = {"section": self.section, "nav_counts": self._counts(), **context}
        return TemplateResponse(self.request, template or self.template_name, context, status=status)


class FormPage(TenantPage):
    """A page with one form. A refusal of the domain comes back at the field it names, or above the form."""

    form_class: ClassVar[type[forms.Form]]

    def form(self) -> forms.Form:
        return self.form_class(self.request.POST if self.request.method == "POST" else None, **self.form_kwargs())

    def form_kwargs(self) -> dict[str, Any]:
        return {}

    def get(self, request: HttpRequest) -> HttpResponseBase:
        return self.render({"form": self.form(), **self.context()})

    def post(self, request: HttpRequest) -> HttpResponseBase:
        form = self.form()
        if not form.is_valid():
            return self._again(form, HTTPStatus.UNPROCESSABLE_ENTITY)
        return self.act(form)

    def act(self, form: forms.Form) -> HttpResponseBase:
        """The one domain call, and the answer."""
        raise NotImplementedError

    def refused(self, error: DomainError) -> HttpResponseBase:
        if self.request.method != "POST" or error.status in {404, 500, 503}:
            return super().refused(error)
        form = self.form()
        form.is_valid()
        show_errors(form, error)
        return self._again(form, error.status)

    def _again(self, form: forms.Form, status: int) -> HttpResponse:
        return self.render({"form": form, **self.context()}, status=status)


def said(message: str, **names: str) -> SafeString:
    """A sentence with names that people chose in it, each kept apart from the words around it."""
    return SafeString(conditional_escape(message) % {name: format_html("<bdi>{}</bdi>", names[name]) for name in names})


def show_errors(form: forms.Form, error: DomainError) -> None:
    """Put what the domain said where it belongs in the form."""
    placed = False
    for field in error.fields:
        name = field.path.strip("/").split("/")[0]
        if name in form.fields:
            form.add_error(name, field.message)
            placed = True
    if not placed:
        form.add_error(None, error.detail)
