"""How a request's payloads are sealed: under its run's data key, bound to the row they stand in. And its digest (PROTOCOL.md)."""

import hashlib
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec

from kernel import codec as json
from privacy import codec, keys

LABEL = b"approval"


@dataclass(frozen=True, slots=True)
class Summary:
    """What is short and sealed. `target_version` is what the agent said the target was when it asked."""

    business_object: str
    explanation: str | None = None
    target_version: str | None = None


def seal(*, tenant: UUID, key_id: UUID, row: UUID, body: bytes) -> bytes:
    return codec.seal(keys.data_key(tenant=tenant, key_id=key_id), context=row.bytes, label=LABEL, body=body).blob


def open_(*, tenant: UUID, key_id: UUID, row: UUID, blob: bytes) -> bytes:
    """Raises Corrupt, KeyShredded."""
    return codec.unseal(keys.data_key(tenant=tenant, key_id=key_id), context=row.bytes, label=LABEL, blob=blob).body


def seal_json(*, tenant: UUID, key_id: UUID, row: UUID, value: Any) -> bytes:
    return seal(tenant=tenant, key_id=key_id, row=row, body=msgspec.json.encode(value))


def open_summary(*, tenant: UUID, key_id: UUID, row: UUID, blob: bytes) -> Summary:
    # The label tells it from the action of the same row.
    opened = codec.unseal(keys.data_key(tenant=tenant, key_id=key_id), context=row.bytes, label=b"summary", blob=blob)
    return msgspec.json.decode(opened.body, type=Summary)


def seal_summary(*, tenant: UUID, key_id: UUID, row: UUID, summary: Summary) -> bytes:
    key = keys.data_key(tenant=tenant, key_id=key_id)
    return codec.seal(key, context=row.bytes, label=b"summary", body=msgspec.json.encode(summary)).blob


def digest(
    *, tenant: UUID, run_id: UUID, tool: str, tool_version: str, arguments: bytes, summary: Summary, requester: UUID,
    policy_version: UUID, round: int, evidence: list[tuple[str, bytes]],
) -> bytes:  # fmt: skip
    """What a decision is bound to: SHA-256 over "smriti:approval:v1\\0" and canonical JSON. `arguments` is canonical JSON
    already."""
    what = {
        "arguments": msgspec.json.decode(arguments),
        "evidence": [{"digest": value.hex(), "kind": kind} for kind, value in evidence],
        "explanation": summary.explanation, "policy_version": str(policy_version), "requester": str(requester),
        "round": round, "run": str(run_id), "target": summary.business_object, "target_version": summary.target_version,
        "tenant": str(tenant), "tool": tool, "tool_version": tool_version,
    }  # fmt: skip
    return hashlib.sha256(b"smriti:approval:v1\0" + json.canonical(what)).digest()
