"""Tools and workflows over REST."""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from msgspec import Meta, Struct

from kernel.rest.views import ApiView, Context, endpoint
from privacy.guard import CredentialRefused
from runs import operations, queries
from runs.operations.registry import VersionExists
from runs.queries.registry import NamePage, Registered
from runs.registry import MAX_DEFINITION, ToolDefinition, WorkflowDefinition
from runs.wire import Identifier


class NamesQuery(Struct, forbid_unknown_fields=True):
    """`cursor`: `next_cursor` of the page before."""

    cursor: Identifier | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 50


class VersionSummary(Struct):
    version: str
    enabled: bool
    created_at: datetime
    created_by: str


class NameSummary(Struct):
    """`latest` is the newest version that is enabled: the one that a call without a version gets."""

    name: str
    versions: int
    latest: VersionSummary | None


class NamesAnswer(Struct):
    items: list[NameSummary]
    next_cursor: str | None


class VersionsAnswer(Struct):
    """Newest first, at most 200."""

    name: str
    items: list[VersionSummary]


class ToolAnswer(Struct):
    id: UUID
    name: str
    version: str
    enabled: bool
    created_at: datetime
    created_by: str
    definition: ToolDefinition


class WorkflowAnswer(Struct):
    id: UUID
    name: str
    version: str
    enabled: bool
    created_at: datetime
    created_by: str
    definition: WorkflowDefinition


class EnabledIn(Struct, forbid_unknown_fields=True):
    enabled: bool
    reason: Annotated[str, Meta(min_length=1, max_length=2000)]


class ToolsView(ApiView):
    @endpoint(summary="List tools", scope="tools:read", query=NamesQuery, answer=NamesAnswer)
    def get(self, call: Context) -> NamePage:
        """By name."""
        return queries.list_tools(tenant=call.tenant, after=call.query.cursor, limit=call.query.limit)


class ToolView(ApiView):
    @endpoint(summary="List a tool's versions", scope="tools:read", answer=VersionsAnswer)
    def get(self, call: Context, tool: str) -> Any:
        return {"name": tool, "items": queries.tool_versions(tenant=call.tenant, name=tool)}


class ToolVersionView(ApiView):
    @endpoint(summary="Read a tool version", scope="tools:read", answer=ToolAnswer, conditional=True)
    def get(self, call: Context, tool: str, version: str) -> Registered:
        return queries.get_tool(tenant=call.tenant, name=tool, version=version)

    @endpoint(
        summary="Register a tool version", scope="tools:write", body=ToolDefinition, answer=ToolAnswer,
        max_bytes=MAX_DEFINITION, problems=(VersionExists, CredentialRefused),
    )  # fmt: skip
    def put(self, call: Context, tool: str, version: str) -> Registered:
        """A version never changes: the same definition again is answered as before, another one is refused."""
        return operations.register_tool(
            tenant=call.tenant, name=tool, version=version, definition=call.body, actor=call.actor, now=call.now
        )

    @endpoint(
        summary="Switch a tool version on or off",
        scope="runs:operate",
        body=EnabledIn,
        answer=ToolAnswer,
        conditional=True,
    )
    def patch(self, call: Context, tool: str, version: str) -> Registered:
        """A version that is off gets no permission to execute; what is in flight goes on. The reason is audited."""
        call.require_match(lambda: queries.get_tool(tenant=call.tenant, name=tool, version=version))
        return operations.set_tool_enabled(
            tenant=call.tenant, name=tool, version=version, enabled=call.body.enabled, reason=call.body.reason,
            actor=call.actor, now=call.now,
        )  # fmt: skip


class WorkflowsView(ApiView):
    @endpoint(summary="List workflows", scope="tools:read", query=NamesQuery, answer=NamesAnswer)
    def get(self, call: Context) -> NamePage:
        """Those that are registered, by name."""
        return queries.list_workflows(tenant=call.tenant, after=call.query.cursor, limit=call.query.limit)


class WorkflowView(ApiView):
    @endpoint(summary="List a workflow's versions", scope="tools:read", answer=VersionsAnswer)
    def get(self, call: Context, workflow: str) -> Any:
        return {"name": workflow, "items": queries.workflow_versions(tenant=call.tenant, name=workflow)}


class WorkflowVersionView(ApiView):
    @endpoint(summary="Read a workflow version", scope="tools:read", answer=WorkflowAnswer, conditional=True)
    def get(self, call: Context, workflow: str, version: str) -> Registered:
        return queries.get_workflow(tenant=call.tenant, name=workflow, version=version)

    @endpoint(
        summary="Register a workflow version", scope="tools:write", body=WorkflowDefinition, answer=WorkflowAnswer,
        max_bytes=MAX_DEFINITION, problems=(VersionExists, CredentialRefused),
    )  # fmt: skip
    def put(self, call: Context, workflow: str, version: str) -> Registered:
        """A version never changes: the same definition again is answered as before, another one is refused."""
        return operations.register_workflow(
            tenant=call.tenant, name=workflow, version=version, definition=call.body, actor=call.actor, now=call.now
        )

    @endpoint(
        summary="Switch a workflow version on or off", scope="runs:operate", body=EnabledIn, answer=WorkflowAnswer,
        conditional=True,
    )  # fmt: skip
    def patch(self, call: Context, workflow: str, version: str) -> Registered:
        """A version that is off starts no runs by its registered plan; runs at work go on. The reason is audited."""
        call.require_match(lambda: queries.get_workflow(tenant=call.tenant, name=workflow, version=version))
        return operations.set_workflow_enabled(
            tenant=call.tenant, name=workflow, version=version, enabled=call.body.enabled, reason=call.body.reason,
            actor=call.actor, now=call.now,
        )  # fmt: skip
