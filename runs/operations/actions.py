"""What an agent proposes, with everything that can be computed before the run is locked: schema, key, amount and digests."""

import dataclasses
import hashlib
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from kernel import codec as json
from kernel.errors import DomainError, FieldError, Invalid
from privacy import keys
from runs import registry as rules
from runs.models import Effect
from runs.queries import ledger, registry
from runs.registry import ToolVersion
from runs.wire import ReserveIn
from tenancy.queries import Principal


class InvalidReservation(DomainError):
    code = "invalid_reservation"
    status = 422
    title = "This reservation does not fit"


@dataclass(frozen=True, slots=True)
class Call:
    """A reservation with everything that can be computed before the run is locked."""

    tool: ToolVersion
    input: bytes
    business_object: str
    amount: tuple[Decimal, str] | None
    key: str
    arguments: Any
    canonical: bytes
    compensates: UUID | None


def called(tenant: UUID, request: ReserveIn, run_id: UUID, step: UUID) -> Call:
    assert request.tool is not None
    tool = registry.tool_version(tenant=tenant, name=request.tool, version=request.tool_version)
    body = bytes(request.input) or b"{}"
    business_object = rules.business_object(tool, body, request.business_object)
    place = {"step": [str(run_id), str(step)], "run": [str(run_id)], "tenant": []}[tool.scope]
    return checked(tenant, tool, body, business_object, [tool.scope, tool.name, *place, business_object], None)


def compensating(tenant: UUID, principal: Principal, request: ReserveIn) -> Call:
    """The call that undoes an effect: by its tool's definition, from what was sent and what came back."""
    if bytes(request.input) or request.business_object or request.tool_version:
        raise invalid("input", "What a compensation is called with follows from the effect.")
    original = Effect.objects.filter(
        id=request.compensates, run_id__in=ledger.visible_runs(principal).values("id")
    ).first()
    done = None if original is None else ledger.tool_of_in_scope(tenant=tenant, tool_id=original.tool_id)
    if original is None or done is None or done.compensation is None or original.outcome_seq is None:
        raise invalid("compensates", "There is no such effect that could be compensated.")
    tool = registry.tool_version(tenant=tenant, name=done.compensation.tool, version=done.compensation.version)
    sent = ledger.payload_member(tenant=tenant, run_id=original.run_id, seq=original.input_seq, name="input")
    answer = ledger.payload_member(tenant=tenant, run_id=original.run_id, seq=original.outcome_seq, name="output")
    body = rules.compensation_input(done, sent or b"{}", answer or b"null")
    business_object = f"compensates:{original.id}"
    return checked(tenant, tool, body, business_object, ["compensation", tool.name, business_object], original.id)


def checked(
    tenant: UUID, tool: ToolVersion, body: bytes, business_object: str, identity: list[str], compensates: UUID | None
) -> Call:
    errors = registry.validate_input(tool, body)
    if errors:
        raise Invalid(f"The input does not fit tool {tool.name!r}.", fields=tuple(errors))
    key = keys.keyed_digest(tenant=tenant, label=b"effect", value=msgspec.json.encode(identity).decode())
    arguments = json.decode(body, max_bytes=len(body))
    return Call(
        tool=tool, input=body, business_object=business_object, amount=rules.amount_of(tool, body), key=f"smr-{key[:20].hex()}",
        arguments=arguments, canonical=json.canonical(arguments), compensates=compensates,
    )  # fmt: skip


def amended(tenant: UUID, tool: ToolVersion, call_key: str, business_object: str, body: bytes) -> Call:
    """The call with an input that people put in the place of the agent's. Raises Invalid when it is about something else, too."""
    call = checked(tenant, tool, body, business_object, [], None)
    if tool.business_key is not None and rules.business_object(tool, body, None) != business_object:
        raise Invalid("An amended input is about the same business object.")
    return dataclasses.replace(call, key=call_key)


def input_digest(tenant: UUID, call: Call) -> bytes:
    return keys.keyed_digest(tenant=tenant, label=b"effect-input", value=call.canonical.decode())


def action_digest(*, tenant: UUID, requester: UUID, run_id: UUID, call: Call, target_version: str | None) -> bytes:
    """SHA-256 over "smriti:action:v1\\0" and the canonical JSON of what exactly is asked for, by whom and where.

    `requester` is the agent, or the key of none.
    """
    what = {
        "arguments": call.arguments, "requester": str(requester), "run": str(run_id), "target": call.business_object,
        "tenant": str(tenant), "tool": call.tool.name, "tool_version": call.tool.version,
    }  # fmt: skip
    if target_version is not None:
        what["target_version"] = target_version
    return hashlib.sha256(b"smriti:action:v1\0" + json.canonical(what)).digest()


def request_digest(request: ReserveIn, call: Call) -> bytes:
    """What an idempotency key of a reservation stands for."""
    what = [
        request.tool,
        request.tool_version,
        request.business_object,
        str(request.compensates),
        call.canonical.decode(),
    ]
    if request.explanation or request.target or request.evidence:
        what.append(msgspec.json.encode([request.explanation, request.target, request.evidence]).decode())
    return hashlib.sha256(msgspec.json.encode(what)).digest()


def invalid(path: str, message: str) -> InvalidReservation:
    return InvalidReservation(
        message, fields=(FieldError(path=f"/{path}", code="invalid_reservation", message=message),)
    )
