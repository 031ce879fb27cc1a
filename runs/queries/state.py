"""The stored state of a run: the newest whole checkpoint and the changes since, put together.

What does not open is never guessed: the changes stop before the first damaged one, and a damaged whole checkpoint is replaced by
the one before it and all changes since. Rows that are gone are noticed, because the run's row counts them. All of it is reported.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec

from kernel.call import Call
from kernel.errors import NotFound
from kernel.ports import Corrupt
from privacy import keys
from privacy.keys import DataKey
from runs import patch, sealing
from runs.patch import State
from tenancy.auth import Unauthorized
from tenancy.queries import Principal

# The newest whole checkpoint and all changes since, in one round trip.
STATE: Final = Call(
    "runs_state",
    "uuid uuid int4 uuid uuid[] uuid",
    "text int4 int8 uuid int4 int4 int4[] int8[] text[] bytea[] timestamptz",
    reads=True,
)


@dataclass(slots=True)
class StoredState:
    """`version` 0 means that nothing was stored yet. `damaged`: newer versions whose stored bytes do not open, or that build on
    what is gone. `missing`: sequence numbers of checkpoints in the log whose rows are gone.
    """

    head: int
    last_seq: int
    data_key_id: UUID
    version: int = 0
    base_version: int = 0
    seq: int = 0
    recorded_at: datetime | None = None
    state: State = field(default_factory=dict)
    damaged: list[int] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)


def load(*, tenant: UUID, run_id: UUID, principal: Principal | None = None) -> StoredState:
    """The newest state that opens. With a principal, its key and bindings are checked in the same statement."""
    who = (None, None, None, None)
    if principal is not None:
        projects = None if principal.project_ids is None else list(principal.project_ids)
        who = (principal.id, principal.version, principal.agent_id, projects)  # type: ignore[assignment]
    row = STATE.one((tenant, *who, run_id))
    code, head, last_seq, data_key_id, base, changes, versions, seqs, kinds, bodies, recorded_at = row
    if code == "key_refused":
        raise Unauthorized
    if code == "not_found":
        raise NotFound("There is no such run.")
    found = StoredState(head=head, last_seq=last_seq, data_key_id=data_key_id, recorded_at=recorded_at)
    kinds = kinds or []
    if kinds.count("patch") != changes or len(kinds) - kinds.count("patch") != (base > 0):
        # Nothing is put together from what is not all there; `queries.checkpoints` finds out what is gone.
        found.damaged = sorted({*(versions or ()), head})
    elif versions:
        assemble(
            found,
            keys.data_key(tenant=tenant, key_id=data_key_id),
            run_id,
            zip(versions, seqs, kinds, bodies, strict=True),
        )
    return found


def assemble(found: StoredState, key: DataKey, run_id: UUID, rows: object) -> None:
    """Fill `found` from rows `(version, seq, kind, body)` in order of version, the first of them whole (or the first change)."""
    operations: list[patch.Operation] = []
    base: State = {}
    for version, seq, kind, body in rows:  # type: ignore[attr-defined]
        try:
            text = _open(key, run_id, version, kind, body)
            if kind == "patch":
                operations.extend(patch.parse(text))
            else:
                base, operations = patch.load(text), []
                found.base_version = version
        except (Corrupt, msgspec.DecodeError):
            found.damaged.append(version)
            break
        found.version, found.seq = version, seq
    found.state = patch.apply(base, operations)


def _open(key: DataKey, run_id: UUID, version: int, kind: str, body: bytes | None) -> bytes:
    if body is None:
        raise Corrupt
    return sealing.unseal(key, run_id, sealing.checkpoint_label(version, kind), bytes(body)).body
