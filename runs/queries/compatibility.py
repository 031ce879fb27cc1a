"""Can a run's state go on under another workflow version? The registered migrations that lead there, or what exactly is missing.

All versions of a workflow that are enabled contribute migrations, so that 1 to 3 may go through 1 to 2 and 2 to 3 of two versions.
Of two migrations between the same schemas, the one that the wanted version registers is taken, or else the newest.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal
from uuid import UUID

import orjson
from django.conf import settings

from kernel.errors import FieldError
from privacy import keys
from runs import patch, registry, schemas, sealing
from runs.models import Event, Run, Tool, Workflow
from runs.patch import PatchConflict
from runs.queries.checkpoints import Change, changes_between
from runs.registry import Migration, WorkflowDefinition

MAX_SEARCHED: Final = 500  # versions of one workflow, the newest

Status = Literal["compatible", "migrate", "incompatible"]
Reason = Literal["unknown_version", "version_disabled", "migration_missing", "migration_failed", "state_invalid"]
Action = Literal["register_migration", "register_version", "enable_version", "resume_under", "fork"]
ToolStatus = Literal["known", "untested", "disabled", "unregistered"]


@dataclass(frozen=True, slots=True)
class MigrationUsed:
    """A registered migration; `instead_of` are versions that register another one between the same schemas."""

    from_schema: int
    to_schema: int
    registered_in: str
    instead_of: tuple[str, ...]
    description: str


@dataclass(frozen=True, slots=True)
class MissingMigration:
    from_schema: int
    to_schema: int


@dataclass(frozen=True, slots=True)
class StateError:
    """Where a state breaks its schema: JSON pointer, rule, sentence."""

    path: str
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class WayOut:
    action: Action
    detail: str


@dataclass(frozen=True, slots=True)
class ToolCheck:
    """`known`: the workflow version names this tool version. `untested`: registered, but not named by it."""

    name: str
    version: str
    status: ToolStatus


@dataclass(frozen=True, slots=True)
class Compatibility:
    """`migrate`: `migrations` lead there and make `changes`. `incompatible`: `reason`, `detail`, and the `ways_out`."""

    status: Status
    from_version: str
    to_version: str
    from_schema: int
    to_schema: int | None
    migrations: tuple[MigrationUsed, ...] = ()
    changes: tuple[Change, ...] = ()
    reason: Reason | None = None
    detail: str = ""
    missing: MissingMigration | None = None
    errors: tuple[StateError, ...] = ()
    ways_out: tuple[WayOut, ...] = ()
    tools: tuple[ToolCheck, ...] = ()


def check(
    *, tenant: UUID, run: Run, state: bytes | None, written: tuple[str, int], wanted: str, tools: Mapping[str, str]
) -> tuple[Compatibility, bytes | None]:
    """Whether a state of `run` goes on under a workflow version, and the state as it would be there.

    `written`: the version and the schema that the state was written under.
    """
    row = Workflow.objects.filter(name=run.workflow, version=wanted).first()
    target = None if row is None else registry.load(row.definition, WorkflowDefinition)
    version, schema = written
    found = Compatibility(
        "compatible", version, wanted, schema, schema if wanted == version else target.state_schema if target else None,
        tools=tuple(_check_tool(name, tool, target) for name, tool in sorted(tools.items())),
    )  # fmt: skip
    if wanted == version:
        return found, state
    if row is None or target is None:
        return _refused(found, run, "unknown_version", f"Version {wanted} of this workflow is not registered."), None
    if not row.enabled and wanted != run.workflow_version:
        return _refused(found, run, "version_disabled", f"Version {wanted} of this workflow is switched off."), None
    if state is None:
        return found, None
    if schema != found.to_schema:
        found, state = _migrated(found, run, state)
        if state is None:
            return found, None
    errors = _judge(target, state)
    if errors:
        detail = f"The state does not have the shape of version {wanted}: {errors[0].path or 'the whole'}: {errors[0].message}"
        return replace(_refused(found, run, "state_invalid", detail), errors=errors), None
    return found, state


def written_under(*, tenant: UUID, run: Run, seq: int) -> tuple[str, int]:
    """The workflow version, and the schema, under which the state at a sequence number was written: the log says it."""
    rows = Event.objects.filter(run_id=run.id, type="state_migrated").order_by("seq").values_list("seq", "payload")
    version, schema = run.workflow_version, run.state_schema
    key = keys.data_key(tenant=tenant, key_id=run.data_key_id)
    for at, payload in reversed(rows):
        if at <= seq:
            break
        before = orjson.loads(sealing.open_event(key, run.id, bytes(payload)))["payload"]["from"]
        version, schema = before["workflow_version"], before["state_schema"]
    return version, schema


def find_way(edges: Iterable[tuple[int, int]], start: int, end: int) -> list[tuple[int, int]] | None:
    """The shortest chain of migrations; of several, the one whose schemas come first."""
    ways = defaultdict(list)
    for source, target in sorted(edges):
        ways[source].append(target)
    before: dict[int, int | None] = {start: None}
    waiting = deque([start])
    while waiting and end not in before:
        here = waiting.popleft()
        for there in ways[here]:
            if there not in before:
                before[there] = here
                waiting.append(there)
    if end not in before:
        return None
    chain: list[tuple[int, int]] = []
    here = end
    while (origin := before[here]) is not None:
        chain.append((origin, here))
        here = origin
    return chain[::-1]


def find_gap(edges: Iterable[tuple[int, int]], start: int, end: int) -> tuple[int, int]:
    """The one migration that would close the way: between what is reached and what leads to the end, the smallest step."""
    known = list(edges)
    reached = _closure(known, start)
    leading = _closure([(target, source) for source, target in known], end)
    return min(
        ((source, target) for source in reached for target in leading),
        key=lambda step: (abs(step[1] - step[0]), abs(end - step[0]), step),
    )


def _closure(edges: list[tuple[int, int]], start: int) -> set[int]:
    found, waiting = {start}, [start]
    while waiting:
        here = waiting.pop()
        fresh = {target for source, target in edges if source == here} - found
        found |= fresh
        waiting += fresh
    return found


def _migrated(found: Compatibility, run: Run, state: bytes) -> tuple[Compatibility, bytes | None]:
    """The state taken through the chain of migrations, or why it cannot be."""
    assert found.to_schema is not None
    known = _known(run.workflow, found.to_version)
    chain = find_way(known, found.from_schema, found.to_schema)
    if chain is None:
        missing = MissingMigration(*find_gap(known, found.from_schema, found.to_schema))
        detail = (
            f"The state is of schema {found.from_schema}, version {found.to_version} reads schema {found.to_schema}, and no "
            f"migration from {missing.from_schema} to {missing.to_schema} is registered."
        )
        return replace(_refused(found, run, "migration_missing", detail, missing), missing=missing), None
    used = tuple(known[step][0] for step in chain)
    found = replace(found, status="migrate", migrations=used)
    after = patch.load(state)
    for step in chain:
        name, migration = known[step]
        try:
            after = patch.apply(after, patch.parse(bytes(migration.patch)), limit=settings.REQUEST_BODY_LIMIT)
        except PatchConflict as error:
            detail = (
                f"The migration from {step[0]} to {step[1]} of version {name.registered_in} does not fit this state: "
                f"{_place(error)}{error.detail}"
            )
            return _refused(found, run, "migration_failed", detail), None
    text = patch.dump(after)
    return replace(found, changes=tuple(changes_between(state, text))), text


def _known(workflow: str, wanted: str) -> dict[tuple[int, int], tuple[MigrationUsed, Migration]]:
    """Every migration of a workflow by its schemas, the one to be taken."""
    rows = Workflow.objects.filter(name=workflow, enabled=True).order_by("-created_at", "-id")[:MAX_SEARCHED]
    found: dict[tuple[int, int], list[tuple[str, Migration]]] = defaultdict(list)
    for row in rows:
        for migration in registry.load(row.definition, WorkflowDefinition).migrations:
            found[migration.from_, migration.to].append((row.version, migration))
    chosen = {}
    for step, candidates in found.items():
        version, migration = next((one for one in candidates if one[0] == wanted), candidates[0])
        others = tuple(other for other, _ in candidates if other != version)
        chosen[step] = (MigrationUsed(*step, version, others, migration.description), migration)
    return chosen


def _judge(target: WorkflowDefinition, state: bytes) -> tuple[StateError, ...]:
    schema = bytes(target.state_json_schema)
    found: list[FieldError] = [] if schema == b"null" else schemas.errors(schema, state)
    return tuple(StateError(error.path, error.code, error.message) for error in found)


def _check_tool(name: str, version: str, target: WorkflowDefinition | None) -> ToolCheck:
    enabled = Tool.objects.filter(name=name, version=version).values_list("enabled", flat=True).first()
    status: ToolStatus
    if enabled is None:
        status = "unregistered"
    elif not enabled:
        status = "disabled"
    else:
        status = "known" if target is not None and target.tools.get(name) == version else "untested"
    return ToolCheck(name, version, status)


def _refused(
    found: Compatibility, run: Run, reason: Reason, detail: str, missing: MissingMigration | None = None
) -> Compatibility:
    address = f"PUT /api/v1/workflows/{run.workflow}/versions"
    ways: list[WayOut] = []
    if reason == "unknown_version":
        ways.append(WayOut("register_version", f"Register it: {address}/{found.to_version}."))
    elif reason == "version_disabled":
        ways.append(WayOut("enable_version", f"Switch it on: {address.replace('PUT', 'PATCH')}/{found.to_version}."))
    else:
        step = f"from schema {missing.from_schema} to {missing.to_schema}" if missing else "that fits this state"
        ways.append(
            WayOut("register_migration", f"Register a migration {step} with any version of the workflow: {address}/….")
        )
    ways.append(WayOut("resume_under", f"Go on under version {found.from_version}, which the state was written by."))
    ways.append(WayOut("fork", f"Fork from an earlier checkpoint that fits: POST /api/v1/runs/{run.id}/fork."))
    return replace(found, status="incompatible", reason=reason, detail=detail, ways_out=tuple(ways))


def _place(error: PatchConflict) -> str:
    """Which operation of the migration it was."""
    parts = error.fields[0].path.split("/") if error.fields else []
    return f"operation {parts[3]}: " if len(parts) > 3 else ""
