"""What a decision rests on, frozen when it is asked: what the agent names is looked up and kept as it is now."""

import hashlib
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec

from approvals import sealing
from approvals.models import Evidence, Request
from kernel import codec as json
from kernel import ids
from kernel.ports import Corrupt
from privacy import keys
from privacy.keys import KeyShredded
from runs.models import Artifact, Event, Run
from runs.operations.actions import invalid
from runs.ports import Supporting
from runs.queries.artifacts import open_meta
from runs.queries.log import PayloadUnreadable, event_payload
from runs.wire import EvidenceIn, TargetIn

MAX_CONTENT: Final = 256 * 1024  # bytes of an event's payload that are kept; of a larger one only the digest


@dataclass(frozen=True, slots=True)
class Item:
    """One piece of evidence before it is stored. `content` is JSON text."""

    kind: str
    title: str
    digest: bytes
    content: bytes | None
    observed_at: datetime
    run_id: UUID | None = None
    seq: int | None = None
    artifact_id: UUID | None = None


def capture(*, tenant: UUID, run: Run, supporting: Supporting, now: datetime) -> list[Item]:
    """What the agent named, as it is now. Raises InvalidReservation for what is not there, or not of this project."""
    found = [_one(tenant, run, index, item, now) for index, item in enumerate(supporting.evidence)]
    return found if supporting.target is None else [_target(supporting.target, now), *found]


def store(*, tenant: UUID, request: Request, round: int, items: list[Item]) -> None:
    rows = []
    for position, item in enumerate(items):
        row = Evidence(
            id=ids.uuid7(), request_id=request.id, round=round, position=position, kind=item.kind, event_run_id=item.run_id,
            event_seq=item.seq, artifact_id=item.artifact_id, digest=item.digest, observed_at=item.observed_at,
        )  # fmt: skip
        content = b"" if item.content is None else b',"content":%b' % item.content
        body = b'{"title":%b%b}' % (msgspec.json.encode(item.title), content)
        row.snapshot = sealing.seal(tenant=tenant, key_id=request.data_key_id, row=row.id, body=body)
        rows.append(row)
    Evidence.objects.bulk_create(rows)


def reopen(*, tenant: UUID, request: Request, round: int) -> list[Item]:
    """The evidence of a round as it was stored; what cannot be read any more is left out."""
    found = []
    for row in Evidence.objects.filter(request_id=request.id, round=round).order_by("position"):
        try:
            body = sealing.open_(tenant=tenant, key_id=request.data_key_id, row=row.id, blob=bytes(row.snapshot))
        except (Corrupt, KeyShredded):
            continue
        members = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        content = bytes(members["content"]) if "content" in members else None
        found.append(Item(
            row.kind, msgspec.json.decode(members["title"]), bytes(row.digest), content, row.observed_at, row.event_run_id,
            row.event_seq, row.artifact_id,
        ))  # fmt: skip
    return found


def _one(tenant: UUID, run: Run, index: int, item: EvidenceIn, now: datetime) -> Item:
    at = f"evidence/{index}"
    match item.kind:
        case "event":
            if item.seq is None:
                raise invalid(f"{at}/seq", "Name the event by its sequence number.")
            return _event(tenant, run, at, item.run_id or run.id, item.seq)
        case "artifact":
            if item.artifact_id is None:
                raise invalid(f"{at}/artifact_id", "Name the artifact.")
            return _artifact(tenant, run, at, item.artifact_id)
    if item.ref is None or not bytes(item.content):
        raise invalid(at, "A fact has a ref and a content.")
    content = bytes(item.content)
    return Item("fact", item.ref, _digest(content), content, item.observed_at or now)


def _event(tenant: UUID, run: Run, at: str, run_id: UUID, seq: int) -> Item:
    event = Event.objects.filter(run_id=run_id, seq=seq).defer("payload").first()
    if event is None or (run_id != run.id and not Run.objects.filter(id=run_id, project_id=run.project_id).exists()):
        raise invalid(at, "There is no such event.")
    try:
        body = event_payload(tenant=tenant, run_id=run_id, seq=seq)
    except PayloadUnreadable:
        raise invalid(at, "This event cannot be read.") from None
    content = body if len(body) <= MAX_CONTENT else None
    return Item("event", f"{seq} {event.type}", bytes(event.digest), content, event.recorded_at, run_id=run_id, seq=seq)


def _artifact(tenant: UUID, run: Run, at: str, artifact_id: UUID) -> Item:
    row = Artifact.objects.filter(id=artifact_id, project_id=run.project_id, status="ready").first()
    if row is None:
        raise invalid(at, "There is no such artifact that is ready.")
    meta = open_meta(keys.data_key(tenant=tenant, key_id=row.data_key_id), row.id, bytes(row.meta_sealed))
    content = msgspec.json.encode({"media_type": meta.media_type, "sha256": meta.sha256, "size": row.size})
    moment = row.ready_at or row.created_at
    return Item("artifact", meta.name, bytes.fromhex(meta.sha256), content, moment, artifact_id=row.id)


def _target(target: TargetIn, now: datetime) -> Item:
    content = bytes(target.content) or None
    return Item("target", target.version, _digest(content or msgspec.json.encode(target.version)), content, now)


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(json.canonical(json.decode(content, max_bytes=len(content)))).digest()
