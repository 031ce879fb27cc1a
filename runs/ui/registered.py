"""Tools and workflows as they were registered, and the switch that takes a version out of use."""

from typing import Any, ClassVar, Final

import msgspec
from django import forms
from django.conf import settings
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.utils.translation import gettext

from kernel import clock
from kernel.errors import Forbidden
from kernel.web import paging
from kernel.web.views import FormPage, TenantPage
from runs import operations, queries
from runs.queries.registry import Registered, VersionRow
from runs.registry import ToolDefinition, WorkflowDefinition
from runs.ui.base import ReasonForm
from runs.ui.ledger import SIDE_EFFECTS

PAGE_SIZE: Final = 50


class Tools(TenantPage):
    action = "tools:read"
    section = "tools"
    template_name = "runs/tools.html"
    kind: ClassVar[str] = "tool"

    def context(self) -> dict[str, Any]:
        listing = queries.list_tools if self.kind == "tool" else queries.list_workflows
        after = paging.clean(self.request.GET, "after", 64)
        page = listing(tenant=self.visitor.tenant_id, after=after or None, limit=PAGE_SIZE)
        return {
            "page": page,
            "kind": self.kind,
            "after": after,
            "next": page.next_cursor and paging.link(self.request.path, self.request.GET, after=page.next_cursor),
            "base_url": settings.BASE_URL,
        }


class Workflows(Tools):
    section = "workflows"
    kind = "workflow"


class Tool(TenantPage):
    """The name alone leads to its newest version that is enabled, or to the newest."""

    action = "tools:read"
    section = "tools"
    kind: ClassVar[str] = "tool"

    def get(self, request: HttpRequest) -> HttpResponseBase:
        name: str = self.kwargs[self.kind]
        versions = queries.tool_versions if self.kind == "tool" else queries.workflow_versions
        rows = versions(tenant=self.visitor.tenant_id, name=name)
        best = next((row for row in rows if row.enabled), rows[0])
        return redirect(f"runs:{self.kind}_version", self.visitor.slug, name, best.version)


class Workflow(Tool):
    section = "workflows"
    kind = "workflow"


class SwitchForm(ReasonForm):
    enabled = forms.TypedChoiceField(choices=[("yes", ""), ("no", "")], coerce=lambda value: value == "yes")


class ToolVersion(FormPage):
    """A version with everything that was registered, and its switch."""

    action = "tools:read"
    section = "tools"
    template_name = "runs/tool.html"
    form_class = SwitchForm
    kind: ClassVar[str] = "tool"

    def context(self) -> dict[str, Any]:
        tenant, name = self.visitor.tenant_id, self.kwargs[self.kind]
        found = queries.get_tool(tenant=tenant, name=name, version=self.kwargs["version"])
        definition = msgspec.json.decode(bytes(found.definition), type=ToolDefinition)
        schemas = [
            (gettext("Schema of the input"), bytes(definition.input_schema)),
            (gettext("Schema of the output"), bytes(definition.output_schema)),
        ]
        versions = queries.tool_versions(tenant=tenant, name=name)
        return {
            **self.shown(found, versions, schemas),
            "definition": definition,
            "side_effects": SIDE_EFFECTS,
        }

    def shown(self, found: Registered, versions: list[VersionRow], schemas: list[tuple[str, bytes]]) -> dict[str, Any]:
        """What the pages of tools and workflows share."""
        return {
            "found": found,
            "raw": bytes(found.definition),
            "versions": versions,
            "newest": next((row.version for row in versions if row.enabled), None),
            "schemas": schemas,
            "any_value": b"true",
            "kind": self.kind,
            "writable": self.visitor.may("tools:write"),
        }

    def post(self, request: HttpRequest) -> HttpResponseBase:
        if not self.visitor.may("tools:write"):
            raise Forbidden(gettext("You need a role that grants %(action)s.") % {"action": "tools:write"})
        return super().post(request)

    def act(self, form: forms.Form) -> HttpResponse:
        switch = operations.set_tool_enabled if self.kind == "tool" else operations.set_workflow_enabled
        enabled = form.cleaned_data["enabled"]
        name, version = self.kwargs[self.kind], self.kwargs["version"]
        switch(
            tenant=self.visitor.tenant_id, name=name, version=version, enabled=enabled, reason=form.cleaned_data["reason"],
            actor=self.visitor.actor, now=clock.now(),
        )  # fmt: skip
        word = gettext("%(name)s %(version)s is enabled.") if enabled else gettext("%(name)s %(version)s is disabled.")
        messages.success(self.request, word % {"name": name, "version": version})
        return redirect(f"runs:{self.kind}_version", self.visitor.slug, name, version)


class WorkflowVersion(ToolVersion):
    section = "workflows"
    template_name = "runs/workflow.html"
    kind = "workflow"

    def context(self) -> dict[str, Any]:
        tenant, name = self.visitor.tenant_id, self.kwargs[self.kind]
        found = queries.get_workflow(tenant=tenant, name=name, version=self.kwargs["version"])
        definition = msgspec.json.decode(bytes(found.definition), type=WorkflowDefinition)
        shape = bytes(definition.state_json_schema)
        schemas = [(gettext("Schema of the state"), b"true" if shape == b"null" else shape)]
        versions = queries.workflow_versions(tenant=tenant, name=name)
        return {
            **self.shown(found, versions, schemas),
            "definition": definition,
            "migrations": [
                {"old": m.from_, "new": m.to, "description": m.description, "patch": bytes(m.patch)}
                for m in definition.migrations
            ],
        }
