"""Recomputing a run's chain from what is stored, by the layout in PROTOCOL.md.

Invariant: a changed byte in any column of an event or checkpoint, a missing or an extra event, and a cut tail are found, and
the first bad sequence number is named.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from audit import queries as audit_queries
from kernel.errors import NotFound
from kernel.ports import Corrupt
from privacy import codec, keys
from privacy.keys import DataKey
from runs import sealing
from runs.models import Anchor, Checkpoint, Event, Run

_BATCH: Final = 500
_NONE: Final = bytes(16)


@dataclass(frozen=True, slots=True)
class Verification:
    """`bad_seq` is the first event that is not what was recorded; `checked` counts the events before it that are."""

    ok: bool
    checked: int
    last_seq: int
    digest: str
    anchored_seq: int
    bad_seq: int | None = None
    reason: str | None = None


class _Bad(Exception):
    def __init__(self, seq: int, reason: str) -> None:
        self.seq, self.reason = seq, reason


def verify_run(*, tenant: UUID, run_id: UUID, after: int = 0, checkpoints: bool = True) -> Verification:
    """Recompute every digest and commitment of a run and compare its end with the run's row and its anchors. Raises NotFound.

    `after`: begin behind this event, whose stored digest is then taken as it is. `checkpoints`: whether the stored states must
    open, too.
    """
    run = Run.objects.filter(id=run_id).first()
    if run is None:
        raise NotFound("There is no such run.")
    anchors = dict(Anchor.objects.filter(run_id=run_id).values_list("seq", "digest"))
    seq, digest = 0, genesis(tenant, run_id)
    anchored = 0
    try:
        if after:
            seq, digest = after, _digest_at(run_id, after)
        _check_anchor(tenant, run_id)
        key = keys.data_key(tenant=tenant, key_id=run.data_key_id)
        for event, checkpoint in _events(run_id, after):
            if event.seq != seq + 1:
                raise _Bad(seq + 1, "missing")
            if checkpoints or event.type != "checkpoint_created":
                _check_commitment(key, run_id, event, checkpoint)
            if bytes(event.prev_digest) != digest:
                raise _Bad(event.seq, "does not follow the event before it")
            digest = event_digest(tenant, event)
            if bytes(event.digest) != digest:
                raise _Bad(event.seq, "is not what was recorded")
            seq = event.seq
            if seq in anchors:
                if bytes(anchors[seq]) != digest:
                    raise _Bad(seq, "differs from its anchor in the audit chain")
                anchored = seq
        if seq < max([run.last_seq, *anchors]):
            raise _Bad(seq + 1, "missing")
        if bytes(run.last_digest) != digest:
            raise _Bad(seq, "differs from the end that the run names")
    except _Bad as bad:
        return Verification(False, min(seq, bad.seq - 1), run.last_seq, digest.hex(), anchored, bad.seq, bad.reason)
    return Verification(True, seq, run.last_seq, digest.hex(), anchored)


def genesis(tenant: UUID, run_id: UUID) -> bytes:
    return hashlib.sha256(b"smriti:run:v1\0" + tenant.bytes + run_id.bytes).digest()


def event_digest(tenant: UUID, event: Event) -> bytes:
    kind, actor = event.type.encode(), event.actor_kind.encode()
    return hashlib.sha256(
        b"".join(
            (
                b"smriti:event:v1\0", tenant.bytes, event.run_id.bytes, bytes(event.prev_digest),
                event.seq.to_bytes(8, "big", signed=True),
                sealing.microseconds(event.recorded_at).to_bytes(8, "big", signed=True),
                _id(event.lease_id), _id(event.actor_id), len(actor).to_bytes(4, "big"), actor, _id(event.step_id),
                event.schema_version.to_bytes(2, "big", signed=True), len(kind).to_bytes(4, "big"), kind,
                bytes(event.payload_commitment or b""),
            )
        )
    ).digest()  # fmt: skip


def _digest_at(run_id: UUID, seq: int) -> bytes:
    stored = Event.objects.filter(run_id=run_id, seq=seq).values_list("digest", flat=True).first()
    if stored is None:
        raise _Bad(seq, "missing")
    return bytes(stored)


def _check_anchor(tenant: UUID, run_id: UUID) -> None:
    """The newest anchor must be what the sealed audit entry says: whoever rewrote a log could rewrite its anchors, too."""
    anchor = Anchor.objects.filter(run_id=run_id).order_by("-seq").first()
    if anchor is None:
        return
    entry = audit_queries.get_entry(tenant=tenant, entry_id=anchor.entry_id)
    if entry is None or entry.payload == "damaged":
        raise _Bad(anchor.seq, "has an anchor that the audit log does not hold")
    head = {"run": str(run_id), "seq": anchor.seq, "digest": bytes(anchor.digest).hex()}
    if entry.payload == "intact" and head not in entry.content["heads"]:
        raise _Bad(anchor.seq, "has another anchor than the audit log holds")


def _id(value: UUID | None) -> bytes:
    return _NONE if value is None else value.bytes


def _events(run_id: UUID, after: int) -> Iterator[tuple[Event, Checkpoint | None]]:
    """Events in order, each with the checkpoint it announces, in batches; what stands past the end comes, too."""
    while True:
        batch = list(Event.objects.filter(run_id=run_id, seq__gt=after).order_by("seq")[:_BATCH])
        announced = [event.seq for event in batch if event.type == "checkpoint_created"]
        checkpoints = {}
        if announced:
            rows = Checkpoint.objects.filter(run_id=run_id, kind__in=["full", "patch"], seq__in=announced)
            checkpoints = {row.seq: row for row in rows}
        for event in batch:
            yield event, checkpoints.get(event.seq)
        if len(batch) < _BATCH:
            return
        after = batch[-1].seq


def _check_commitment(key: DataKey, run_id: UUID, event: Event, checkpoint: Checkpoint | None) -> None:
    """The commitment must be that of the stored payload, or of the checkpoint that the event announces."""
    commitment = None if event.payload_commitment is None else bytes(event.payload_commitment)
    meta = sealing.event_meta(event.labels, event.occurred_at)
    label, blob = sealing.EVENT, event.payload
    if event.type == "checkpoint_created":
        if checkpoint is None:
            raise _Bad(event.seq, "has lost its checkpoint")
        if bytes(checkpoint.commitment) != commitment or checkpoint.recorded_at != event.recorded_at:
            raise _Bad(event.seq, "has another checkpoint than was recorded")
        label, blob = sealing.checkpoint_label(checkpoint.version, checkpoint.kind), checkpoint.body
    if blob is None:
        if meta and commitment == sealing.labels_commitment(meta):
            return  # an event of the platform's own
        if commitment is not None:
            raise _Bad(event.seq, "has lost its payload")
        if meta:
            raise _Bad(event.seq, "has values that were not recorded")
        return
    try:
        opened = sealing.unseal(key, run_id, label, bytes(blob))
    except Corrupt as error:
        raise _Bad(event.seq, "has a payload that does not open") from error
    if codec.commitment(salt=opened.salt, meta=meta, body=opened.body) != commitment:
        raise _Bad(event.seq, "has a payload or labels other than recorded")
