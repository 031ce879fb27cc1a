"""The hot paths: plain views with typed decoding and one database call. DRF serves the rest.

Each translates in, makes one domain call and translates out.
"""

from collections.abc import Callable
from typing import Final
from uuid import UUID

import msgspec
import orjson
from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.views.decorators.csrf import csrf_exempt

from kernel import clock, codec, errors, fairness
from kernel.errors import NotFound
from kernel.rest import requests
from kernel.rest.endpoints import Endpoint, NoQuery
from kernel.rest.problems import MethodNotAllowed
from kernel.rest.schema import describe
from privacy.guard import CredentialRefused
from privacy.operations import SubjectErased
from runs import operations, queries
from runs.api.answers import (
    CheckpointAnswer,
    CommitAnswer,
    EventsAnswer,
    EventsQuery,
    Heartbeat,
    RunCreated,
    Work,
)
from runs.operations import Claimed, Committed
from runs.operations.commit import InvalidCommit
from runs.operations.create import InvalidRun
from runs.operations.refusals import (
    EffectNotHeld,
    EffectsOpen,
    LeaseExpired,
    LeaseLost,
    PlanConflict,
    RunFinished,
    StaleEpoch,
    StaleHead,
    StepsOpen,
    UnknownChild,
)
from runs.patch import PatchConflict
from runs.wire import ClaimIn, CommitIn, HeartbeatIn, RunIn
from tenancy import auth
from tenancy import queries as tenancy
from tenancy.queries import Principal

_SMALL_BODY: Final = 16 * 1024
_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])

View = Callable[..., HttpResponseBase]


def hot(method: str, action: str) -> Callable[[View], View]:
    """A view for one method and one scope, given the principal. Every exception becomes a problem."""

    def decorate(view: View) -> View:
        @csrf_exempt
        def wrapped(request: HttpRequest, **kwargs: UUID) -> HttpResponseBase:
            try:
                if request.method != method:
                    raise MethodNotAllowed(f"Use {method}.", headers={"Allow": method})
                principal = auth.authenticate(request.META.get("HTTP_AUTHORIZATION", ""))
                tenancy.require(principal, action)
                with fairness.turn(principal.tenant_id):
                    response = view(request, principal, **kwargs)
            except auth.Unauthorized as error:
                auth.forget(request.META.get("HTTP_AUTHORIZATION", ""))
                response = errors.respond(error, instance=request.path)
            except Exception as error:
                response = errors.respond(error, instance=request.path)
            response["X-Request-Id"] = requests.request_id(request)
            return response

        return wrapped

    return decorate


@describe("POST", Endpoint(
    summary="Start a run", scope="runs:write", body=RunIn, answer=RunCreated, status=201, idempotent=True,
    problems=(InvalidRun, CredentialRefused, SubjectErased),
))  # fmt: skip
@hot("POST", "runs:write")
def create(request: HttpRequest, principal: Principal) -> HttpResponse:
    """Create a run with its plan. `steps` stand in an order in which each depends only on steps before it."""
    key, body = requests.idempotency_key(request, required=True), whole_body(request)
    wanted, digest = codec.decode_request(body, RunIn, max_bytes=len(body))
    created = operations.create_run(
        tenant=principal.tenant_id, principal=principal, request=wanted, digest=digest, body=body,
        idempotency_key=key or "", now=clock.now(),
    )  # fmt: skip
    response = json_answer({"id": created.run_id}, status=201)
    response["Location"] = f"/api/v1/runs/{created.run_id}"
    return response


@describe("POST", Endpoint(
    summary="Commit a transition of a run", scope="runs:write", body=CommitIn, answer=CommitAnswer, idempotent=True,
    problems=(
        InvalidCommit, StaleEpoch, LeaseExpired, StaleHead, RunFinished, PatchConflict, PlanConflict, StepsOpen,
        EffectNotHeld, EffectsOpen, UnknownChild, CredentialRefused, SubjectErased,
    ),
))  # fmt: skip
@hot("POST", "runs:write")
def commit(request: HttpRequest, principal: Principal, run_id: UUID) -> HttpResponse:
    """Events, a change of the state, a step's result, new steps and the run's end, in one transaction: all or nothing."""
    key, body = requests.idempotency_key(request, required=True), whole_body(request)
    wanted, digest = codec.decode_request(body, CommitIn, max_bytes=len(body))
    done = operations.commit(
        tenant=principal.tenant_id, principal=principal, run_id=run_id,
        request=wanted, digest=digest, body=body, idempotency_key=key or "",
    )  # fmt: skip
    return commit_answer(done)


def commit_answer(done: Committed) -> HttpResponse:
    return json_answer(
        {
            "first_seq": done.first_seq, "last_seq": done.last_seq, "digest": done.digest.hex(), "head": done.head,
            "run_status": done.run_status, "runnable": done.runnable,
        }
    )  # fmt: skip


@describe("POST", Endpoint(
    summary="Take a step to work on", scope="work:claim", body=ClaimIn, answer=Work, may_be_empty=True, problems=(NotFound,),
))  # fmt: skip
@hot("POST", "work:claim")
def claim(request: HttpRequest, principal: Principal) -> HttpResponse:
    """Lease the most urgent runnable step to a worker. 204 when there is nothing to do now.

    The process for waits (`waits_url`) answers the same call and waits up to `wait_seconds` first; here it never waits.
    """
    body = requests.json_body(request, max_bytes=_SMALL_BODY)
    work = operations.claim(
        tenant=principal.tenant_id, principal=principal, request=codec.decode_as(body, ClaimIn, max_bytes=_SMALL_BODY),
        idempotency_key=requests.idempotency_key(request, required=False),
    )  # fmt: skip
    return work_answer(work)


def work_answer(work: Claimed | None) -> HttpResponse:
    if work is None:
        response = HttpResponse(status=204)
        del response["Content-Type"]
        return response
    chosen = {
        name: orjson.Fragment(bytes(value)) for name, value in _members.decode(work.creation).items() if name != "steps"
    }
    return json_answer(
        {
            "lease": work.lease, "epoch": work.epoch, "expires_at": work.expires_at,
            "step": {"name": work.step, "attempt": work.attempt, "max_attempts": work.max_attempts},
            "run": {
                "id": work.run_id, "workflow": work.workflow, "workflow_version": work.workflow_version,
                "agent_version": work.agent_version, "head": work.head, "last_seq": work.last_seq, **chosen,
            },
            "resumed": work.epoch > 1, "wake": _wake(work), "compensates": work.compensates,
        }
    )  # fmt: skip


def _wake(work: Claimed) -> dict[str, object] | None:
    if work.wake_reason is None:
        return None
    message = {} if work.wake_payload is None else _members.decode(work.wake_payload)
    return {"reason": work.wake_reason} | {name: orjson.Fragment(bytes(value)) for name, value in message.items()}


@describe("POST", Endpoint(
    summary="Keep a lease", scope="work:claim", body=HeartbeatIn, answer=Heartbeat, problems=(LeaseLost,)
))  # fmt: skip
@hot("POST", "work:claim")
def heartbeat(request: HttpRequest, principal: Principal, lease: UUID) -> HttpResponse:
    """Extend a lease that is still held. `lease_lost`: stop working on the step; another worker has it, or the run is over."""
    body = requests.json_body(request, max_bytes=_SMALL_BODY)
    kept = operations.heartbeat(
        tenant=principal.tenant_id, principal=principal, lease=lease,
        request=codec.decode_as(body, HeartbeatIn, max_bytes=_SMALL_BODY),
    )  # fmt: skip
    return json_answer(
        {"expires_at": kept.expires_at, "cancel_requested": kept.cancel_at is not None, "cancel_at": kept.cancel_at}
    )


@describe("GET", Endpoint(summary="Read a run's log", scope="runs:read", query=EventsQuery, answer=EventsAnswer))
@hot("GET", "runs:read")
def events(request: HttpRequest, principal: Principal, run_id: UUID) -> HttpResponse:
    """Events after a sequence number, in order, with their payloads and digests. `next_after` is null at the end."""
    query = requests.query(request, EventsQuery)
    page = queries.events_for_key(
        tenant=principal.tenant_id, principal=principal, run_id=run_id, after=query.after, limit=query.limit
    )
    return json_answer(
        {
            "items": [event.as_json() for event in page.rows],
            "last_seq": page.last_seq,
            "next_after": page.next_after,
        }
    )


@describe("GET", Endpoint(summary="Read the newest state", scope="runs:read", answer=CheckpointAnswer))
@hot("GET", "runs:read")
def latest_checkpoint(request: HttpRequest, principal: Principal, run_id: UUID) -> HttpResponse:
    """The newest state that opens. `skipped` names newer versions whose stored bytes are damaged."""
    requests.query(request, NoQuery)
    view = queries.latest_checkpoint(tenant=principal.tenant_id, principal=principal, run_id=run_id)
    if not view.version:
        if view.skipped or view.missing:
            lost = {"skipped": view.skipped, "missing": view.missing}
            raise NotFound("No stored checkpoint of this run opens: send the whole state.", extra=lost)
        raise NotFound("This run has no checkpoint yet.")
    etag = f'"{view.version}"'
    if request.META.get("HTTP_IF_NONE_MATCH") == etag:
        return HttpResponse(status=304, headers={"ETag": etag})
    response = json_answer(
        {
            "version": view.version, "seq": view.seq, "recorded_at": view.recorded_at, "head": view.head,
            "last_seq": view.last_seq, "skipped": view.skipped, "missing": view.missing, "state": orjson.Fragment(view.state),
        }
    )  # fmt: skip
    response["ETag"] = etag
    return response


def json_answer(value: object, status: int = 200) -> HttpResponse:
    return HttpResponse(codec.dumps(value), content_type="application/json", status=status)


def whole_body(request: HttpRequest) -> bytes:
    limit: int = settings.REQUEST_BODY_LIMIT
    return requests.json_body(request, max_bytes=limit)
