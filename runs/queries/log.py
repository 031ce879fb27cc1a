"""The event log of a run, page by page."""

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec
import orjson
from django.db.models import BigIntegerField, F, Func
from django.db.models.functions import Coalesce
from msgspec import Raw

from kernel.call import Call
from kernel.errors import DomainError, NotFound
from kernel.ports import Corrupt
from privacy import keys
from privacy.keys import DataKey
from runs import sealing
from runs.models import Event, Run, Step
from tenancy.queries import Principal

# One page with everything needed to show and to verify it, in one round trip.
EVENTS: Final = Call(
    "runs_events",
    "uuid uuid int4 uuid uuid[] uuid int8 int4",
    "int8 uuid int8 text int2 text uuid uuid text uuid timestamptz timestamptz jsonb bytea bytea bytea bytea",
    reads=True,
)

_members: Final = msgspec.json.Decoder(dict[str, Raw])


class PayloadUnreadable(DomainError):
    """Stored bytes do not open: they were changed, or their key was destroyed. `verify` tells where the log is damaged."""

    code = "payload_unreadable"
    status = 409
    title = "This payload cannot be read"


@dataclass(frozen=True, slots=True)
class EventRow:
    """One event. `body` holds its payload's members as raw JSON and is None when they were not asked for, or do not open.

    `size` is the number of stored bytes.
    """

    seq: int
    type: str
    schema_version: int
    actor_kind: str
    actor_id: UUID | None
    step: str | None
    step_id: UUID | None
    lease_id: UUID | None
    occurred_at: datetime | None
    recorded_at: datetime
    labels: Mapping[str, str] | None
    size: int
    payload_commitment: bytes | None
    prev_digest: bytes
    digest: bytes
    readable: bool = True
    body: Mapping[str, Raw] | None = None

    def as_json(self) -> dict[str, Any]:
        members = {name: orjson.Fragment(bytes(value)) for name, value in (self.body or {}).items()}
        return {
            "seq": self.seq, "type": self.type, "schema_version": self.schema_version, "actor_kind": self.actor_kind,
            "actor_id": self.actor_id, "step": self.step, "step_id": self.step_id, "lease": self.lease_id,
            "occurred_at": self.occurred_at,
            "recorded_at": self.recorded_at, "labels": self.labels or {}, "readable": self.readable,
            "payload_commitment": self.payload_commitment and self.payload_commitment.hex(),
            "prev_digest": self.prev_digest.hex(), "digest": self.digest.hex(), **members,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class EventPage:
    """`next_after` is None on the last page."""

    rows: list[EventRow]
    last_seq: int
    next_after: int | None


def events_for_key(*, tenant: UUID, principal: Principal, run_id: UUID, after: int, limit: int) -> EventPage:
    """Events after a sequence number with their payloads. Raises NotFound."""
    projects = None if principal.project_ids is None else list(principal.project_ids)
    params = (
        tenant, principal.id, principal.version, principal.agent_id, projects, run_id, after, limit,
    )  # fmt: skip
    rows = EVENTS.rows(params)
    if not rows:
        raise NotFound("There is no such run.")
    last_seq, data_key_id = rows[0][:2]
    key = keys.data_key(tenant=tenant, key_id=data_key_id)
    events = [event_row(key, run_id, *row[2:]) for row in rows if row[2] is not None]
    return EventPage(events, last_seq, events[-1].seq if events and events[-1].seq < last_seq else None)


def events_page(*, tenant: UUID, run_id: UUID, after: int = 0, limit: int = 100) -> EventPage:
    """Events after a sequence number, without their payloads. Raises NotFound."""
    last_seq = Run.objects.filter(id=run_id).values_list("last_seq", flat=True).first()
    if last_seq is None:
        raise NotFound("There is no such run.")
    stored = list(
        Event.objects.filter(run_id=run_id, seq__gt=after)
        .order_by("seq")
        .annotate(size=Coalesce(Func(F("payload"), function="runs_size", output_field=BigIntegerField()), 0))
        .defer("payload")[:limit]
    )
    wanted = {event.step_id for event in stored if event.step_id is not None}
    names = dict(Step.objects.filter(id__in=wanted).values_list("id", "name"))
    rows = [
        EventRow(
            seq=event.seq, type=event.type, schema_version=event.schema_version, actor_kind=event.actor_kind,
            actor_id=event.actor_id, step=names.get(event.step_id), step_id=event.step_id,
            lease_id=event.lease_id, occurred_at=event.occurred_at,
            recorded_at=event.recorded_at, labels=event.labels, size=event.size,
            payload_commitment=event.payload_commitment and bytes(event.payload_commitment),
            prev_digest=bytes(event.prev_digest), digest=bytes(event.digest),
        )
        for event in stored
    ]  # fmt: skip
    return EventPage(rows, last_seq, rows[-1].seq if rows and rows[-1].seq < last_seq else None)


def event_payload(*, tenant: UUID, run_id: UUID, seq: int) -> bytes:
    """The payload of one event as a JSON object. Raises NotFound, PayloadUnreadable."""
    data_key_id = Run.objects.filter(id=run_id).values_list("data_key_id", flat=True).first()
    stored = Event.objects.filter(run_id=run_id, seq=seq).values_list("payload").first()
    if data_key_id is None or stored is None:
        raise NotFound("There is no such event.")
    if stored[0] is None:
        return b"{}"
    key = keys.data_key(tenant=tenant, key_id=data_key_id)
    try:
        return sealing.open_event(key, run_id, bytes(stored[0]))
    except Corrupt as error:
        raise PayloadUnreadable("The stored bytes do not open.") from error


def payloads(*, tenant: UUID, of: Collection[tuple[UUID, int]]) -> dict[tuple[UUID, int], bytes]:
    """The payloads of some events, each named by run and sequence number; those that are not there or do not open are left out."""
    runs = {run_id for run_id, _ in of}
    data_keys = dict(Run.objects.filter(id__in=runs).values_list("id", "data_key_id"))
    found: dict[tuple[UUID, int], bytes] = {}
    rows = Event.objects.filter(run_id__in=runs, seq__in={seq for _, seq in of}, payload__isnull=False)
    for run_id, seq, payload in rows.values_list("run_id", "seq", "payload") if of else ():
        if (run_id, seq) in of:
            key = keys.data_key(tenant=tenant, key_id=data_keys[run_id])
            with contextlib.suppress(Corrupt):
                found[run_id, seq] = sealing.open_event(key, run_id, bytes(payload))
    return found


def event_row(
    key: DataKey | None, run_id: UUID, seq: int, kind: str, schema_version: int, actor_kind: str, actor_id: UUID | None,
    step_id: UUID | None, step: str | None,
    lease_id: UUID | None, occurred_at: datetime | None, recorded_at: datetime, labels: dict[str, str] | None,
    payload: bytes | None, commitment: bytes | None, prev_digest: bytes, digest: bytes,
) -> EventRow:  # fmt: skip
    body: Mapping[str, Raw] | None = {}
    if payload is not None and key is None:
        body = None
    elif payload is not None:
        assert key is not None
        try:
            body = _members.decode(sealing.open_event(key, run_id, payload))
        except (Corrupt, msgspec.DecodeError):
            body = None
    return EventRow(
        seq=seq, type=kind, schema_version=schema_version, actor_kind=actor_kind, actor_id=actor_id, step=step,
        step_id=step_id, lease_id=lease_id,
        occurred_at=occurred_at, recorded_at=recorded_at, labels=labels, size=len(payload or b""),
        payload_commitment=commitment, prev_digest=prev_digest, digest=digest, readable=body is not None, body=body,
    )  # fmt: skip
