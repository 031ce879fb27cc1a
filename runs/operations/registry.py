"""Registering tools and workflows, and switching versions off. Each writes its audit entry in the same transaction; the caller
holds the tenant scope. A version never changes: registering it again with an equal definition changes nothing.
"""

import re
from datetime import datetime
from functools import partial
from typing import Final, TypeVar
from uuid import UUID

from django.db import IntegrityError, transaction
from msgspec import Struct

from audit import operations as audit_ops
from kernel.actor import Actor
from kernel.errors import DomainError, FieldError, Invalid, NotFound
from privacy import guard
from runs import registry
from runs.models import Tool, Workflow
from runs.queries import registry as queries
from runs.queries.registry import Registered
from runs.registry import ToolDefinition, WorkflowDefinition

# What parts name and version in an address cannot stand in either.
_SEPARATOR: Final = "/versions/"
_IDENTIFIER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@/+-]{0,63}")

Row = TypeVar("Row", Tool, Workflow)


class VersionExists(DomainError):
    """A version is immutable: another definition needs another version."""

    code = "version_exists"
    status = 409
    title = "This version is registered with another definition"


def register_tool(
    *, tenant: UUID, name: str, version: str, definition: ToolDefinition, actor: Actor, now: datetime
) -> Registered:
    """Register a tool version. Raises Invalid, VersionExists, CredentialRefused."""
    registry.refuse(registry.check_tool(definition))
    return _register(Tool, "tool", tenant, name, version, definition, actor, now)


def register_workflow(
    *, tenant: UUID, name: str, version: str, definition: WorkflowDefinition, actor: Actor, now: datetime
) -> Registered:
    """Register a workflow version. Raises Invalid, VersionExists, CredentialRefused."""
    registry.refuse(registry.check_workflow(definition))
    return _register(Workflow, "workflow", tenant, name, version, definition, actor, now)


def set_tool_enabled(
    *, tenant: UUID, name: str, version: str, enabled: bool, reason: str, actor: Actor, now: datetime
) -> Registered:
    """The operator's switch. A tool version that is not enabled gets no permission to execute. Raises NotFound."""
    return _set_enabled(Tool, "tool", tenant, name, version, enabled, reason, actor, now)


def set_workflow_enabled(
    *, tenant: UUID, name: str, version: str, enabled: bool, reason: str, actor: Actor, now: datetime
) -> Registered:
    """The operator's switch for a workflow version. Raises NotFound."""
    return _set_enabled(Workflow, "workflow", tenant, name, version, enabled, reason, actor, now)


def _register(
    model: type[Row], kind: str, tenant: UUID, name: str, version: str, definition: Struct, actor: Actor, now: datetime
) -> Registered:
    _check_address("name", name)
    _check_address("version", version)
    text = registry.dump(definition)
    guard.inspect(text.encode())
    row = model(name=name, version=version, definition=text, enabled=True, created_at=now, created_by=actor.label[:160])
    try:
        with transaction.atomic():
            row.save(force_insert=True)
    except IntegrityError:
        found = model.objects.get(name=name, version=version)
        if not registry.same(registry.load(found.definition, type(definition)), definition):
            raise VersionExists("Register the new definition as another version.") from None
        return queries.shown(found)
    _record(tenant, actor, f"{kind}.registered", kind, row, {}, now)
    return queries.shown(row)


def _set_enabled(
    model: type[Row], kind: str, tenant: UUID, name: str, version: str, enabled: bool, reason: str, actor: Actor,
    now: datetime,
) -> Registered:  # fmt: skip
    row = model.objects.select_for_update(no_key=True).filter(name=name, version=version).first()
    if row is None:
        raise NotFound("No such version is registered.")
    if row.enabled != enabled:
        row.enabled = enabled
        row.save(update_fields=["enabled"])
        _record(tenant, actor, f"{kind}.{'enabled' if enabled else 'disabled'}", kind, row, {"reason": reason}, now)
    return queries.shown(row)


def _record(
    tenant: UUID, actor: Actor, action: str, kind: str, row: Tool | Workflow, content: dict[str, object], now: datetime
) -> None:
    content = {"name": row.name, "version": row.version} | content
    audit_ops.record(
        tenant=tenant, actor=actor, action=action, target_kind=kind, target_id=row.id, content=content, now=now
    )
    transaction.on_commit(partial(queries.forget, tenant=tenant, name=row.name))


def _check_address(member: str, value: str) -> None:
    if not _IDENTIFIER.fullmatch(value) or _SEPARATOR in value:
        message = (
            f"Use 1 to 64 letters, digits and _ . : @ / + -, beginning with a letter or digit, without {_SEPARATOR!r}."
        )
        raise Invalid(message, fields=(FieldError(member, "invalid", message, 64),))
