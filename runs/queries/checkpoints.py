"""Checkpoints as a person and a resuming worker see them: the state at a version, and what changed between two."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal
from uuid import UUID

import orjson
from django.db import connection
from django.db.models import BigIntegerField, F, Func

from kernel.context import tenant_scope
from kernel.errors import NotFound
from privacy import keys
from runs import patch
from runs.models import Checkpoint, Run
from runs.queries import state as stored
from runs.queries.state import StoredState
from tenancy.queries import Principal

MAX_CHANGES: Final = 1000
MAX_BASES: Final = 10  # whole checkpoints that are tried, newest first, before giving up

# The checkpoints that the log announces after a sequence number, up to a version, and whose rows are gone.
MISSING: Final = """
select e.seq from runs_event e
where e.tenant_id = %(tenant)s and e.run_id = %(run)s and e.seq > %(after)s and e.type = 'checkpoint_created'
  and e.seq < coalesce((
      select min(c.seq) from runs_checkpoint c
      where c.tenant_id = %(tenant)s and c.run_id = %(run)s and c.version > %(upto)s and c.kind <> 'snapshot'), e.seq + 1)
  and not exists (
      select from runs_checkpoint c
      where c.tenant_id = %(tenant)s and c.run_id = %(run)s and c.seq = e.seq and c.kind <> 'snapshot')
order by e.seq
"""


@dataclass(frozen=True, slots=True)
class CheckpointView:
    """The state of a version as JSON text. `skipped`: newer or asked-for versions whose stored bytes do not open, or build on
    what is gone; `missing`: sequence numbers of newer checkpoints that are gone.
    """

    version: int
    seq: int
    head: int
    last_seq: int
    recorded_at: datetime | None
    state: bytes
    skipped: tuple[int, ...]
    missing: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    version: int
    seq: int
    kind: str
    size: int
    recorded_at: datetime


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between two states; `path` is a JSON pointer, values are JSON text."""

    path: str
    kind: Literal["added", "removed", "changed"]
    before: str | None
    after: str | None


def latest_checkpoint(*, tenant: UUID, principal: Principal, run_id: UUID) -> CheckpointView:
    """The newest state that opens (version 0 and `{}` when there is none), in one round trip. Raises NotFound."""
    found = stored.load(tenant=tenant, run_id=run_id, principal=principal)
    if found.damaged:
        found = _before_damage(tenant, run_id, found)
    return _view(found)


def checkpoint(*, tenant: UUID, run_id: UUID, version: int | None = None) -> CheckpointView:
    """The state at a version (None: the newest) or, when that is damaged, the last one before it that opens. Raises NotFound."""
    run = (
        Run.objects.filter(id=run_id)
        .values_list("head", "last_seq", "data_key_id", "base_version", "chain_count")
        .first()
    )
    if run is None:
        raise NotFound("There is no such run.")
    found = _load(tenant, run_id, *run, upto=run[0] if version is None else version)
    if not found.version and (version is not None or not (found.damaged or found.missing)):
        raise NotFound("There is no such checkpoint.")
    return _view(found)


def checkpoints_page(*, tenant: UUID, run_id: UUID, before: int | None = None, limit: int = 50) -> list[CheckpointRow]:
    """Stored checkpoints, newest first, those with a version below `before`. Snapshots are an internal matter and left out."""
    rows = Checkpoint.objects.filter(run_id=run_id, kind__in=["full", "patch"])
    if before is not None:
        rows = rows.filter(version__lt=before)
    size = Func(F("body"), function="runs_size", output_field=BigIntegerField())
    return [
        CheckpointRow(version=version, seq=seq, kind=kind, size=size or 0, recorded_at=recorded_at)
        for version, seq, kind, size, recorded_at in rows.order_by("-version")
        .annotate(size=size)
        .values_list("version", "seq", "kind", "size", "recorded_at")[:limit]
    ]


def checkpoint_diff(*, tenant: UUID, run_id: UUID, old: int, new: int) -> list[Change]:
    """What changed in the state from one version to another, at most MAX_CHANGES. Raises NotFound."""
    before = checkpoint(tenant=tenant, run_id=run_id, version=old)
    after = checkpoint(tenant=tenant, run_id=run_id, version=new)
    return changes_between(before.state, after.state)


def changes_between(old: bytes, new: bytes) -> list[Change]:
    """What differs between two states (JSON text), at most MAX_CHANGES."""
    operations = orjson.loads(patch.diff(patch.load(old), patch.load(new)))
    state: Any = orjson.loads(old)
    changes = []
    for operation in operations[:MAX_CHANGES]:
        path = operation["path"]
        value = _text(operation["value"]) if "value" in operation else None
        match operation["op"]:
            case "add":
                changes.append(Change(path, "added", None, value))
            case "remove":
                changes.append(Change(path, "removed", _text(_at(state, path)), None))
            case _:
                changes.append(Change(path, "changed", _text(_at(state, path)), value))
    return changes


def _before_damage(tenant: UUID, run_id: UUID, found: StoredState) -> StoredState:
    """When the newest whole checkpoint does not open, an older one and the changes since may still give the same state."""
    with tenant_scope(tenant):
        again = _load(tenant, run_id, found.head, found.last_seq, found.data_key_id, upto=found.head)
    return again if again.version > found.version else found


def _load(
    tenant: UUID, run_id: UUID, head: int, last_seq: int, data_key_id: UUID, *counted: int, upto: int
) -> StoredState:
    """The state at `upto` from the newest whole checkpoint that opens; the changes before a `full` one do not lead past it.

    `counted`: the newest whole checkpoint and the number of changes since, as the run's row has them. Where they do not tell
    that a chain is whole, the log does: what it announces and is gone, and what builds on that, is left out.
    """
    key = keys.data_key(tenant=tenant, key_id=data_key_id)
    rows = Checkpoint.objects.filter(run_id=run_id, version__lte=upto)
    whole = list(rows.exclude(kind="patch").order_by("-version").values_list("version", "kind")[:MAX_BASES])
    best = StoredState(head=head, last_seq=last_seq, data_key_id=data_key_id)
    damaged: set[int] = set()
    missing: set[int] = set()
    end = upto + 1
    for base, kind in [*whole, (0, "")]:
        chain = rows.filter(version__gt=base, version__lt=end, kind="patch") | rows.filter(version=base).exclude(
            kind="patch"
        )
        recorded = list(chain.order_by("version").values_list("version", "seq", "kind", "body", "recorded_at"))
        gone = []
        if upto != base and not (upto == head and (base, sum(row[2] == "patch" for row in recorded)) == counted):
            gone = _missing(tenant, run_id, recorded[0][1] if base and recorded else 0, upto)
        usable = [row for row in recorded if not gone or row[1] < gone[0]]
        found = StoredState(head=head, last_seq=last_seq, data_key_id=data_key_id)
        stored.assemble(found, key, run_id, [row[:4] for row in usable])
        found.recorded_at = next((row[4] for row in reversed(usable) if row[0] == found.version), None)
        damaged |= {*found.damaged, *(row[0] for row in recorded[len(usable) :])}
        missing |= set(gone)
        if found.version > best.version:
            best = found
        if not found.damaged:
            break
        if kind == "full":
            end = base
    best.damaged = sorted(version for version in damaged if version > best.version)
    best.missing = sorted(seq for seq in missing if seq > best.seq and best.version < upto)
    return best


def _missing(tenant: UUID, run_id: UUID, after: int, upto: int) -> list[int]:
    with connection.cursor() as cursor:
        cursor.execute(MISSING, {"tenant": tenant, "run": run_id, "after": after, "upto": upto})
        return [seq for (seq,) in cursor.fetchall()]


def _view(found: StoredState) -> CheckpointView:
    return CheckpointView(
        version=found.version, seq=found.seq, head=found.head, last_seq=found.last_seq, recorded_at=found.recorded_at,
        state=patch.dump(found.state), skipped=tuple(found.damaged), missing=tuple(found.missing),
    )  # fmt: skip


def _at(state: Any, path: str) -> Any:
    for token in path.split("/")[1:]:
        name = token.replace("~1", "/").replace("~0", "~")
        state = state[int(name)] if isinstance(state, list) else state[name]
    return state


def _text(value: object) -> str:
    return orjson.dumps(value).decode()
