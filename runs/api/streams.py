"""The log, live: server-sent events of one run, and of all runs of a tenant. Served by the process for waits and streams.

A stream begins after `Last-Event-ID` (as EventSource sends it), or `after`; then it goes on for as long as the reader may see it.
"""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from typing import Annotated, Any, Final, TypeVar
from uuid import UUID

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.urls import path
from msgspec import Meta, Struct

from kernel import codec, errors
from kernel.errors import DomainError, FieldError, Invalid
from kernel.rest import ratelimit, requests
from kernel.rest.endpoints import Endpoint
from kernel.rest.problems import MethodNotAllowed
from kernel.rest.schema import describe
from runs import operations, queries
from runs.api import hot
from runs.api.hub import Frame, Hub, Page, Shared
from runs.queries import FeedCursor, FeedItem
from runs.states import RUN_MOVES
from runs.wire import Identifier
from tenancy import auth
from tenancy import queries as tenancy
from tenancy.queries import Principal

Form = TypeVar("Form", bound=Struct)
Cursor = TypeVar("Cursor", int, FeedCursor)

_UNCHECKED: Final = 50.0  # seconds; a key that could not be checked for so long (the database is away) ends its streams
_RETRY_MS: Final = 3000
_CHUNK: Final = 64 * 1024
_ROWS: Final = 256
_PAYLOAD_BYTES: Final = 1024 * 1024
_FINALS: Final = frozenset(status for status, moves in RUN_MOVES.items() if not moves)
_CURSOR: Final = re.compile(r"(\d{1,18})\.(\d{1,18})")
_LINE_END: Final = re.compile(rb"\r\n|\r|\n")


class RunStreamQuery(Struct, forbid_unknown_fields=True):
    """`after`: a sequence number. `payloads`: the events as the log is read page by page; otherwise without payloads."""

    after: Annotated[int, Meta(ge=0, le=2**53 - 1)] = 0
    payloads: bool = False


class TenantStreamQuery(Struct, forbid_unknown_fields=True):
    """`after`: the id of an event of this stream, or `start`; without it the stream begins now. Filters may stand several times."""

    after: Annotated[str, Meta(pattern=r"^(start|\d{1,18}\.\d{1,18})\Z")] | None = None
    payloads: bool = False
    workflow: Annotated[list[Identifier], Meta(max_length=32)] = []
    project: Annotated[list[Identifier], Meta(max_length=32)] = []
    type: Annotated[list[Identifier], Meta(max_length=32)] = []


class TooManyStreams(DomainError):
    code = "too_many_streams"
    status = 429
    title = "Too many open streams"


class Misdirected(DomainError):
    """The web process keeps no connection open."""

    code = "misdirected"
    status = 421
    title = "Streams are served elsewhere"

    def __init__(self) -> None:
        super().__init__("This process serves no streams.", hint=f"Send this request to {settings.WAITS_URL}.")


_hub = Hub()
_open: Counter[UUID] = Counter()


# ---- the process for waits and streams


async def run_stream(request: HttpRequest, run_id: UUID) -> HttpResponseBase:
    """The events of one run."""
    try:
        header, principal, query = await _admit(request, RunStreamQuery)
        after = _last_seq_header(request)
        after = query.after if after is None else after
        tenant = principal.tenant_id
        now = await _hub.call(_visible_run, principal, run_id, after)
        if after == now.last_seq and now.status in _FINALS:
            return HttpResponse(status=204)  # tells EventSource not to come again
        form = "payloads" if query.payloads else "plain"
        source = _hub.watch(
            tenant, run_id, form, name=operations.log_hint(tenant, run_id), at=now.last_seq,
            read=partial(_read_run, tenant, run_id, _PAYLOAD_BYTES if query.payloads else None),
        )  # fmt: skip

        def may_see(principal: Principal, frame: Frame[int] | None) -> bool:
            return queries.visible(principal, project_id=now.project_id, agent_id=now.agent_id)

        return _answer(request, _stream(source, after, header, principal, may_see))
    except Exception as error:
        return errors.respond(error, instance=request.path)


async def tenant_stream(request: HttpRequest) -> HttpResponseBase:
    """The events of all runs that the key may see."""
    try:
        header, principal, query = await _admit(request, TenantStreamQuery)
        tenant = principal.tenant_id
        head = await _hub.call(_feed_end, tenant)
        cursor = _feed_cursor(request.META.get("HTTP_LAST_EVENT_ID") or query.after, head)
        form = "payloads" if query.payloads else "plain"
        source = _hub.watch(
            tenant, None, form, name=operations.feed_hint(tenant), at=head,
            read=partial(_read_feed, tenant, _PAYLOAD_BYTES if query.payloads else None),
        )  # fmt: skip
        filters = [
            (name, frozenset(values))
            for name, values in (("workflow", query.workflow), ("project", query.project), ("type", query.type))
            if values
        ]

        def may_see(principal: Principal, frame: Frame[FeedCursor] | None) -> bool:
            if frame is None:
                return True
            item: FeedItem = frame.about
            found = {"workflow": item.workflow, "project": item.project, "type": item.event.type}
            return queries.visible(principal, project_id=item.project_id, agent_id=item.agent_id) and all(
                found[name] in values for name, values in filters
            )

        return _answer(request, _stream(source, cursor, header, principal, may_see))
    except Exception as error:
        return errors.respond(error, instance=request.path)


async def _admit(request: HttpRequest, form: type[Form]) -> tuple[str, Principal, Form]:
    if request.method != "GET":
        raise MethodNotAllowed("Use GET.", headers={"Allow": "GET"})
    header = request.META.get("HTTP_AUTHORIZATION", "")
    principal = await _hub.call(_principal, header)
    await _hub.call(ratelimit.take, principal.id)
    query = requests.query(request, form)
    limit: int = settings.STREAMS_PER_TENANT
    if _open[principal.tenant_id] >= limit:
        raise TooManyStreams(f"A tenant may keep {limit} streams open here.", headers={"Retry-After": "10"})
    return header, principal, query


def _principal(header: str) -> Principal:
    principal = auth.authenticate(header)
    tenancy.require(principal, "runs:read")
    return principal


def _answer(request: HttpRequest, content: AsyncIterator[bytes]) -> StreamingHttpResponse:
    headers = {
        "Cache-Control": "no-store",
        "X-Accel-Buffering": "no",  # nginx would collect what must go out now
        "X-Request-Id": requests.request_id(request),
    }
    return StreamingHttpResponse(content, content_type="text/event-stream", headers=headers)


async def _stream(
    source: Any,
    cursor: Cursor,
    header: str,
    principal: Principal,
    may_see: Callable[[Principal, Frame[Cursor] | None], bool],
) -> AsyncIterator[bytes]:
    """What one reader gets. It holds its cursor and at most one chunk; who takes nothing for too long is dropped."""
    clock, task = asyncio.get_running_loop().time, asyncio.current_task()
    assert task is not None
    tenant, heartbeat = principal.tenant_id, settings.STREAM_HEARTBEAT
    _open[tenant] += 1
    try:
        async with source as shared:
            checked, told = clock(), cursor
            yield b"retry: %d\nid: %b\n\n" % (_RETRY_MS, str(cursor).encode())
            while True:
                if clock() - checked >= heartbeat:
                    try:
                        principal = await _hub.call(_principal, header)
                        if not may_see(principal, None):
                            raise errors.NotFound("There is no such run.")
                        checked = clock()
                    except Exception as error:
                        refused = isinstance(error, DomainError)
                        if refused or clock() - checked > _UNCHECKED:
                            yield _named("problem", errors.problem(errors.from_exception(error)))
                            return
                page = await _next(shared, cursor)
                frames = [frame for frame in page.frames if may_see(principal, frame)]
                for chunk in _chunks(frames):
                    begun = _hub.sending[task] = clock()
                    yield chunk
                    _hub.sending.pop(task, None)
                    if clock() - begun > heartbeat:
                        yield b"retry: %d\n" % (5 * _RETRY_MS) + _named(
                            "slow", {"detail": "You read too slowly. Come again."}
                        )
                        return
                if frames:
                    told = frames[-1].cursor
                cursor = page.through
                if page.over is not None and not page.more:
                    yield _named("end", {"status": page.over, "last_seq": cursor})
                    return
                if page.frames or page.more:
                    continue
                try:
                    await asyncio.wait_for(shared.moved.wait(), heartbeat)
                except TimeoutError:
                    # The id alone moves the reader's cursor past what it is not shown.
                    yield b": \n\n" if told == cursor else b"id: %b\n\n" % str(cursor).encode()
                    told = cursor
    finally:
        _hub.sending.pop(task, None)
        _open[tenant] -= 1
        if not _open[tenant]:
            del _open[tenant]


async def _next(shared: Shared[Cursor], cursor: Cursor) -> Page[Cursor]:
    """What the shared read kept, or a page of the reader's own when it stands before that."""
    if cursor > shared.high:
        return Page([], cursor)  # read by itself what the shared read will find in a moment
    kept = shared.after(cursor)
    return await _hub.call(shared.read, cursor) if kept is None else kept


def _chunks(frames: Iterable[Frame[Any]]) -> Iterable[bytes]:
    parts: list[bytes] = []
    size = 0
    for frame in frames:
        if parts and size + len(frame.data) > _CHUNK:
            yield b"".join(parts)
            parts, size = [], 0
        parts.append(frame.data)
        size += len(frame.data)
    if parts:
        yield b"".join(parts)


def _named(event: str, value: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event.encode(), codec.dumps(value))


def _frame(cursor: Cursor, value: dict[str, Any], *, payloads: bool, about: Any = None) -> Frame[Cursor]:
    if not payloads:
        del value["readable"]  # nobody looked
    # A payload comes back to the letter, line ends between its tokens too.
    text = _LINE_END.sub(b"\ndata: ", codec.dumps(value))
    return Frame(cursor, b"id: %b\ndata: %b\n\n" % (str(cursor).encode(), text), about)


def _visible_run(principal: Principal, run_id: UUID, after: int) -> queries.Tail:
    """Where the run stands. Raises NotFound, Invalid for a number that its log has not reached."""
    found = queries.tail(tenant=principal.tenant_id, run_id=run_id, after=2**53, limit=1, payload_bytes=None)
    if not queries.visible(principal, project_id=found.project_id, agent_id=found.agent_id):
        raise errors.NotFound("There is no such run.")
    if after > found.last_seq:
        raise _invalid("The log does not go so far.", found.last_seq)
    return found


def _read_run(tenant: UUID, run_id: UUID, payload_bytes: int | None, after: int) -> Page[int]:
    found = queries.tail(tenant=tenant, run_id=run_id, after=after, limit=_ROWS, payload_bytes=payload_bytes)
    frames = [_frame(row.seq, row.as_json(), payloads=payload_bytes is not None) for row in found.rows]
    through = found.rows[-1].seq if found.rows else after
    more = through < found.last_seq
    return Page(frames, through, more=more, over=found.status if found.status in _FINALS and not more else None)


def _feed_end(tenant: UUID) -> FeedCursor:
    return FeedCursor(operations.advance_feed(tenant=tenant) + 1, 0)


def _read_feed(tenant: UUID, payload_bytes: int | None, after: FeedCursor) -> Page[FeedCursor]:
    operations.advance_feed(tenant=tenant)
    found = queries.feed(tenant=tenant, cursor=after, limit=_ROWS, payload_bytes=payload_bytes)
    frames = [
        _frame(item.cursor, item.as_json(), payloads=payload_bytes is not None, about=item) for item in found.items
    ]
    return Page(frames, found.through, more=found.more)


def _last_seq_header(request: HttpRequest) -> int | None:
    sent = request.META.get("HTTP_LAST_EVENT_ID")
    if not sent:
        return None
    if not (sent.isascii() and sent.isdigit() and len(sent) <= 16):
        raise _invalid("The id of an event of this stream is its sequence number.")
    return int(sent)


def _feed_cursor(sent: str | None, end: FeedCursor) -> FeedCursor:
    if sent is None:
        return end
    if sent == "start":
        return queries.START
    match = _CURSOR.fullmatch(sent)
    cursor = FeedCursor(int(match[1]), int(match[2])) if match else None
    if cursor is None or not queries.START <= cursor <= end:
        raise _invalid("This is not the id of an event of this stream.")
    return cursor


def _invalid(message: str, limit: int | None = None) -> Invalid:
    return Invalid(message, fields=(FieldError("after", "invalid", message, limit),))


# ---- the web process


@describe("GET", Endpoint(
    summary="Follow a run's log", scope="runs:read", query=RunStreamQuery, answer=str, media="text/event-stream",
    problems=(TooManyStreams, Misdirected),
))  # fmt: skip
@hot.hot("GET", "runs:read")
def run_elsewhere(request: HttpRequest, principal: Principal, run_id: UUID) -> HttpResponse:
    """Server-sent events (`text/event-stream`) from the process for waits: each event of the log as a message whose `id` is its
    sequence number and whose data is the event as JSON. `end` follows when the run is over, `problem` when the stream may not
    go on, `slow` when the reader did not keep up. Resume with `Last-Event-ID` or `after`; 204 when there is nothing left to follow.
    """
    query = requests.query(request, RunStreamQuery)
    _visible_run(principal, run_id, query.after)
    raise Misdirected


@describe("GET", Endpoint(
    summary="Follow the logs of all runs", scope="runs:read", query=TenantStreamQuery, answer=str, media="text/event-stream",
    problems=(TooManyStreams, Misdirected),
))  # fmt: skip
@hot.hot("GET", "runs:read")
def tenant_elsewhere(request: HttpRequest, principal: Principal) -> HttpResponse:
    """As a run's stream, of all runs that the key may see. The `id` is opaque; between events of one run their order is that of
    the log, and no event is left out or repeated, however transactions overlapped.
    """
    requests.query(request, TenantStreamQuery)
    raise Misdirected


urlpatterns = [
    path("api/v1/runs/<uuid:run_id>/events/stream", run_stream),
    path("api/v1/events/stream", tenant_stream),
]
