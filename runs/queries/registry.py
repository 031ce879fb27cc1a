"""Registered tools and workflows, and what a tool's definition says of a call.

Definitions never change and are kept by every process; which version is the newest, and whether one is enabled, is at most
FRESH_SECONDS old here. Whoever acts on `enabled` reads it again in its own statement.
"""

import dataclasses
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Generic, TypeVar
from uuid import UUID

from django.db.models import Count
from msgspec import Raw

from kernel.call import Call
from kernel.errors import DomainError, FieldError, NotFound
from runs import registry, schemas
from runs.models import Tool, Workflow
from runs.registry import ToolDefinition, ToolVersion, WorkflowDefinition, WorkflowVersion, amount_of, business_object

__all__ = [
    "UnknownTool",
    "amount_of",
    "business_object",
    "get_tool",
    "get_workflow",
    "list_tools",
    "list_workflows",
    "tool_version",
    "tool_versions",
    "validate_input",
    "validate_output",
    "workflow_version",
    "workflow_versions",
]

FRESH_SECONDS: Final = 5.0
MAX_VERSIONS: Final = 200  # shown at once; there may be more
_CACHE_SIZE: Final = 1000

# A version with its definition, unless that is known; in one round trip, also outside a tenant scope.
TOOL: Final = Call("runs_tool_version", "uuid text text uuid[]", "uuid text bool text", reads=True)
WORKFLOW: Final = Call("runs_workflow_version", "uuid text text uuid[]", "uuid text bool text", reads=True)

Found = TypeVar("Found", bound=ToolVersion | WorkflowVersion)
Model = type[Tool] | type[Workflow]


class UnknownTool(DomainError):
    """No such tool version was registered, or (without a version) none is enabled."""

    code = "unknown_tool"
    status = 422
    title = "This tool is not registered"


@dataclass(frozen=True, slots=True)
class Registered:
    """A version as it was registered. `definition` is JSON."""

    id: UUID
    name: str
    version: str
    enabled: bool
    created_at: datetime
    created_by: str
    definition: Raw


@dataclass(frozen=True, slots=True)
class VersionRow:
    version: str
    enabled: bool
    created_at: datetime
    created_by: str


@dataclass(frozen=True, slots=True)
class NameRow:
    """A name with how many versions it has and the newest that is enabled."""

    name: str
    versions: int
    latest: VersionRow | None


@dataclass(frozen=True, slots=True)
class NamePage:
    items: list[NameRow]
    next_cursor: str | None


def tool_version(*, tenant: UUID, name: str, version: str | None = None) -> ToolVersion:
    """A tool version; without `version` the newest that is enabled. Raises UnknownTool."""
    found = _tools.get(tenant, name, version)
    if found is None:
        raise UnknownTool(
            f"There is no tool {name!r}" + (" that is enabled." if version is None else " of this version.")
        )
    return found


def workflow_version(*, tenant: UUID, name: str, version: str | None = None) -> WorkflowVersion | None:
    """A workflow version; without `version` the newest that is enabled. None when it is not registered."""
    return _workflows.get(tenant, name, version)


def forget(*, tenant: UUID, name: str) -> None:
    """Drop what this process believes of the versions of a name, after they changed."""
    _tools.forget(tenant, name)
    _workflows.forget(tenant, name)


def validate_input(tool: ToolVersion, raw: bytes, *, at: str = "/input") -> list[FieldError]:
    """How an input (JSON text) breaks the tool's schema: pointers behind `at`, limits, never a value."""
    return schemas.errors(tool.input_schema, raw, at=at)


def validate_output(tool: ToolVersion, raw: bytes, *, at: str = "/output") -> list[FieldError]:
    """The same for an output."""
    return schemas.errors(tool.output_schema, raw, at=at)


def list_tools(*, tenant: UUID, after: str | None = None, limit: int = 50) -> NamePage:
    """Tools by name. `after`: the last name of the page before."""
    return _list(Tool, after, limit)


def list_workflows(*, tenant: UUID, after: str | None = None, limit: int = 50) -> NamePage:
    """Workflows by name."""
    return _list(Workflow, after, limit)


def tool_versions(*, tenant: UUID, name: str) -> list[VersionRow]:
    """The versions of a tool, newest first, at most MAX_VERSIONS. Raises NotFound."""
    return _versions(Tool, name)


def workflow_versions(*, tenant: UUID, name: str) -> list[VersionRow]:
    """The versions of a workflow, newest first, at most MAX_VERSIONS. Raises NotFound."""
    return _versions(Workflow, name)


def get_tool(*, tenant: UUID, name: str, version: str) -> Registered:
    """A tool version as it was registered. Raises NotFound."""
    return _registered(Tool, name, version)


def get_workflow(*, tenant: UUID, name: str, version: str) -> Registered:
    """A workflow version as it was registered. Raises NotFound."""
    return _registered(Workflow, name, version)


def shown(row: Tool | Workflow) -> Registered:
    return Registered(
        id=row.id, name=row.name, version=row.version, enabled=row.enabled, created_at=row.created_at,
        created_by=row.created_by, definition=Raw(row.definition.encode()),
    )  # fmt: skip


def _list(model: Model, after: str | None, limit: int) -> NamePage:
    names = model.objects.values("name").order_by("name").annotate(count=Count("id"))
    if after is not None:
        names = names.filter(name__gt=after)
    counts = dict(names.values_list("name", "count")[: limit + 1])
    page = list(counts)[:limit]
    newest = model.objects.filter(name__in=page, enabled=True).order_by("name", "-created_at", "-id").distinct("name")
    latest = {row.name: _row(row) for row in newest.defer("definition")}
    items = [NameRow(name, counts[name], latest.get(name)) for name in page]
    return NamePage(items, page[-1] if len(counts) > limit else None)


def _versions(model: Model, name: str) -> list[VersionRow]:
    rows = model.objects.filter(name=name).order_by("-created_at", "-id").defer("definition")[:MAX_VERSIONS]
    found = [_row(row) for row in rows]
    if not found:
        raise NotFound("Nothing of this name is registered.")
    return found


def _registered(model: Model, name: str, version: str) -> Registered:
    row = model.objects.filter(name=name, version=version).first()
    if row is None:
        raise NotFound("No such version is registered.")
    return shown(row)


def _row(row: Any) -> VersionRow:
    return VersionRow(row.version, row.enabled, row.created_at, row.created_by)


class _Cache(Generic[Found]):
    """What this process knows of versions. A definition that it has is not sent again when its entry is refreshed."""

    def __init__(self, call: Call, make: Callable[[UUID, str, str, bool, str], Found]) -> None:
        self._call, self._make = call, make
        self._entries: OrderedDict[tuple[UUID, str, str | None], tuple[float, Found]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, tenant: UUID, name: str, version: str | None) -> Found | None:
        asked = (tenant, name, version)
        now = time.monotonic()
        entry = self._entries.get(asked)
        if entry is not None and now - entry[0] < FRESH_SECONDS:
            return entry[1]
        known = [] if entry is None else [entry[1].id]
        found_id, found_version, enabled, definition = self._call.one((tenant, name, version, known))
        if found_id is None:
            return None
        if definition is not None:
            found = self._make(found_id, name, found_version, enabled, definition)
        else:
            assert entry is not None
            found = dataclasses.replace(entry[1], enabled=enabled)
        with self._lock:
            self._entries[asked] = (now, found)
            self._entries.move_to_end(asked)
            while len(self._entries) > _CACHE_SIZE:
                self._entries.popitem(last=False)
        return found

    def forget(self, tenant: UUID, name: str) -> None:
        with self._lock:
            for asked in [asked for asked in self._entries if asked[:2] == (tenant, name)]:
                del self._entries[asked]


def _tool(id: UUID, name: str, version: str, enabled: bool, definition: str) -> ToolVersion:
    form = registry.load(definition, ToolDefinition)
    return ToolVersion.of(id=id, name=name, version=version, enabled=enabled, definition=form)


def _workflow(id: UUID, name: str, version: str, enabled: bool, definition: str) -> WorkflowVersion:
    form = registry.load(definition, WorkflowDefinition)
    return WorkflowVersion.of(id=id, name=name, version=version, enabled=enabled, definition=form)


_tools: Final[_Cache[ToolVersion]] = _Cache(TOOL, _tool)
_workflows: Final[_Cache[WorkflowVersion]] = _Cache(WORKFLOW, _workflow)
