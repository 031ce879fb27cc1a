"""How a run's payloads are sealed: labels, and the plain values that each commitment covers besides the body.

The byte layouts are in PROTOCOL.md; `runs.queries.verify` and offline verifiers follow the same document.
"""

import hashlib
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

import msgspec

from kernel import codec as json
from kernel import pool
from kernel.errors import NotFound
from privacy import codec, keys
from privacy.codec import Opened, Sealed
from privacy.keys import DataKey
from privacy.models import Subject
from runs import offload
from runs.models import Run

EVENT: Final = b"event"
# Under which key a run is sealed.
RUN_KEY: Final = "select * from runs_key(%b, %b)"
_CACHE_SIZE: Final = 100_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class RunKey:
    """The data key of a run, and the epoch of its subject's key (0 without a subject)."""

    data_key_id: UUID
    key_epoch: int


_run_keys: dict[tuple[UUID, UUID], RunKey] = {}
_lock = threading.Lock()


def run_key(*, tenant: UUID, run_id: UUID) -> RunKey:
    """Under which key a run is sealed. Cached: the database refuses a commit that was sealed under another. Raises NotFound."""
    found = _run_keys.get((tenant, run_id))
    if found is None:
        row = pool.one(RUN_KEY, (tenant, run_id))
        if row[0] is None:
            raise NotFound("There is no such run.")
        found = RunKey(*row)
        remember(tenant=tenant, run_id=run_id, key=found)
    return found


def run_key_in_scope(*, run_id: UUID) -> RunKey:
    """The same inside an open tenant scope. Raises NotFound."""
    found = Run.objects.filter(id=run_id).values_list("data_key_id", "subject_id").first()
    if found is None:
        raise NotFound("There is no such run.")
    epoch = Subject.objects.filter(id=found[1]).values_list("key_epoch", flat=True).first()
    return RunKey(found[0], epoch or 0)


def remember(*, tenant: UUID, run_id: UUID, key: RunKey) -> None:
    with _lock:
        if len(_run_keys) >= _CACHE_SIZE:
            _run_keys.clear()
        _run_keys[(tenant, run_id)] = key


def forget(*, tenant: UUID, run_id: UUID) -> None:
    """Drop what this process believes of a run's key, after the database refused it."""
    with _lock:
        found = _run_keys.pop((tenant, run_id), None)
    if found is not None:
        keys.forget(tenant=tenant, key_id=found.data_key_id)


def unseal(key: DataKey, run_id: UUID, label: bytes, stored: bytes) -> Opened:
    """Open what a row keeps, wherever its sealed bytes lie. Raises Corrupt."""
    blob = stored if len(stored) != offload.SIZE else offload.fetch(key.tenant, stored)
    return codec.unseal(key, context=run_id.bytes, label=label, blob=blob)


def open_event(key: DataKey, run_id: UUID, stored: bytes) -> bytes:
    """The payload of an event. Raises Corrupt."""
    return unseal(key, run_id, EVENT, stored).body


def seal_event(
    key: DataKey,
    run_id: UUID,
    body: bytes,
    *,
    labels: dict[str, str] | None = None,
    occurred_at: datetime | None = None,
) -> Sealed:
    return codec.seal(key, context=run_id.bytes, label=EVENT, body=body, meta=event_meta(labels, occurred_at))


def event_meta(labels: dict[str, str] | None, occurred_at: datetime | None) -> bytes:
    """The client-chosen plain columns of an event as canonical JSON; empty when there are none."""
    if labels is None and occurred_at is None:
        return b""
    micros = None if occurred_at is None else microseconds(occurred_at)
    return json.canonical({"labels": labels, "occurred_at": micros})


def labels_commitment(meta: bytes) -> bytes:
    """What an event without a payload commits to when it has labels (`runs_mark`)."""
    return hashlib.sha256(b"smriti:labels:v1\0" + len(meta).to_bytes(4, "big") + meta).digest()


def seal_checkpoint(key: DataKey, run_id: UUID, version: int, kind: str, body: bytes) -> Sealed:
    return codec.seal(key, context=run_id.bytes, label=checkpoint_label(version, kind), body=body)


def checkpoint_label(version: int, kind: str) -> bytes:
    """A snapshot holds the state of its version, as a full checkpoint does; both are told from a patch."""
    return b"checkpoint:" + kind.encode() + b":" + str(version).encode()


def microseconds(moment: datetime) -> int:
    """Microseconds since 1970, exactly."""
    delta = moment - _EPOCH
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def members(**values: msgspec.Raw | bytes | None) -> bytes:
    """A JSON object of raw values, in the order given; empty ones are left out."""
    return (
        b"{" + b",".join(b'"%b":%b' % (name.encode(), bytes(value)) for name, value in values.items() if value) + b"}"
    )
