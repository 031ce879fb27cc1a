"""The bytes of artifacts by signed address, in the process for waits and streams. A plain ASGI application: Django would keep a
whole body before a view saw it.

A slow peer holds a connection and about a chunk of memory, and no thread: crypto and storage run in a few threads, piece by piece.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar
from uuid import UUID

from django.conf import settings
from django.utils.http import content_disposition_header

from kernel import clock, codec, errors, ids
from kernel.errors import BadCall, DomainError
from kernel.rest.problems import MethodNotAllowed
from privacy.stream import CHUNK
from runs import addresses, media
from runs.operations.transfers import Download, Upload

T = TypeVar("T")
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

PATH: Final = re.compile(r"/api/v1/artifacts/([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})/content", re.ASCII)
_THREADS: Final = 8
_SILENCE: Final = 60.0  # seconds in which a peer sends nothing
_RANGE: Final = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)
_DRAIN: Final = 2 * 1024 * 1024  # bytes of a refused body that are still taken, so that the answer can be read

_threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="content")
_running = 0


class Busy(DomainError):
    code = "too_many_transfers"
    status = 503
    title = "Too many transfers at this moment"


class SlowPeer(DomainError):
    code = "transfer_timeout"
    status = 408
    title = "Nothing was sent for too long"


class RangeNotSatisfiable(DomainError):
    code = "range_not_satisfiable"
    status = 416
    title = "There is nothing in this range"


class _Gone(Exception):
    """The peer closed the connection."""


async def serve(scope: Message, receive: Receive, send: Send) -> None:
    """Answer one request whose path matches PATH."""
    global _running
    begun = False

    async def sending(message: Message) -> None:
        nonlocal begun
        begun = True
        await send(message)

    if _running >= settings.ARTIFACT_TRANSFERS:
        await _refuse(Busy("Try again in a moment.", headers={"Retry-After": "1"}), scope, receive, send)
        return
    _running += 1
    try:
        await _transfer(scope, receive, sending)
    except _Gone:
        return
    except Exception as error:
        if begun:
            raise  # the head is sent: what is left is to break off, so that nobody takes a part for the whole
        await _refuse(error, scope, receive, send)
    finally:
        _running -= 1


async def _transfer(scope: Message, receive: Receive, send: Send) -> None:
    match = PATH.fullmatch(scope["path"])
    assert match is not None
    artifact, method = UUID(match[1]), scope["method"]
    if method not in ("PUT", "GET", "HEAD"):
        raise MethodNotAllowed("Use PUT, GET or HEAD.", headers={"Allow": "PUT, GET, HEAD"})
    signed = "GET" if method == "HEAD" else method
    query = scope["query_string"].decode("latin-1")
    tenant = addresses.verify(method=signed, artifact_id=artifact, query=query, now=clock.now())
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
    if method == "PUT":
        await _upload(tenant, artifact, headers, receive, send)
    else:
        await _download(tenant, artifact, headers, receive, send, body=method == "GET")


async def _upload(tenant: UUID, artifact: UUID, headers: dict[str, str], receive: Receive, send: Send) -> None:
    if headers.get("content-encoding", "identity") != "identity":
        raise BadCall("The content is stored as it comes: send it without Content-Encoding.")
    announced = headers.get("content-length")
    if announced is not None and not announced.isdecimal():
        raise BadCall("The Content-Length is not a number.")
    size = None if announced is None else int(announced)
    upload = await _thread(partial(Upload, tenant=tenant, artifact_id=artifact, announced=size))
    writing: asyncio.Future[None] | None = None
    try:
        pieces, held, more = [], 0, True
        while more:
            data, more = await _receive(receive)
            pieces.append(data)
            held += len(data)
            if held >= CHUNK or not more:
                if writing is not None:
                    await writing
                # The next piece is received while this one is sealed and written.
                writing = asyncio.ensure_future(_thread(partial(upload.write, b"".join(pieces))))
                pieces, held = [], 0
        if writing is not None:
            await writing
        status = await _thread(upload.finish)
    except BaseException:
        await asyncio.shield(_abort(upload, writing))
        raise
    await _answer(send, 200, codec.dumps({"id": artifact, "status": status, "size": upload.size}))


async def _abort(upload: Upload, writing: "asyncio.Future[None] | None") -> None:
    if writing is not None:
        await asyncio.wait([writing])
    await _thread(upload.abort)


async def _receive(receive: Receive) -> tuple[bytes, bool]:
    try:
        message = await asyncio.wait_for(receive(), _SILENCE)
    except TimeoutError as error:
        raise SlowPeer(f"Send something at least every {_SILENCE:.0f} seconds.") from error
    if message["type"] == "http.disconnect":
        raise _Gone
    return message.get("body", b""), message.get("more_body", False)


async def _download(
    tenant: UUID, artifact: UUID, headers: dict[str, str], receive: Receive, send: Send, *, body: bool
) -> None:
    found = await _thread(partial(Download, tenant=tenant, artifact_id=artifact))
    etag = f'"{artifact}"'
    head = {
        "Content-Type": media.served_as(found.media_type),
        "Content-Disposition": content_disposition_header(True, found.name) or "attachment",
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "X-Content-Type-Options": "nosniff",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cache-Control": "private, no-store",
        "Accept-Ranges": "bytes",
        "ETag": etag,
    }
    if headers.get("if-none-match") == etag:
        await _answer(send, 304, b"", head)
        return
    wanted = headers.get("range")
    if wanted is not None and headers.get("if-range", etag) != etag:
        wanted = None
    start, length, status = _span(wanted, found.size)
    if status == 206:
        head["Content-Range"] = f"bytes {start}-{start + length - 1}/{found.size}"
    head["Content-Length"] = str(length)
    if not body:
        await _answer(send, status, b"", head)
        return
    chunks = found.read(start, length)
    # The first chunk is opened before the head goes out: damage gets an answer of its own.
    chunk = await _thread(partial(next, chunks, None))
    await _head(send, status, head)
    ended = asyncio.ensure_future(_ended(receive))
    try:
        while chunk is not None and not ended.done():
            following = asyncio.ensure_future(_thread(partial(next, chunks, None)))
            try:
                await asyncio.wait_for(send({"type": "http.response.body", "body": chunk, "more_body": True}), _SILENCE)
            finally:
                await asyncio.wait([following])
            chunk = following.result()
    finally:
        ended.cancel()
        await _thread(chunks.close)  # type: ignore[attr-defined]
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _span(wanted: str | None, size: int) -> tuple[int, int, int]:
    """Start, length and status for a Range header. What is not one plain range is answered with the whole, as RFC 9110 allows."""
    match = None if wanted is None else _RANGE.fullmatch(wanted)
    if match is None or match[1] == match[2] == "":
        return 0, size, 200
    if match[1] == "":
        start = max(0, size - int(match[2]))
        end = size - 1
        if match[2].strip("0") == "":
            start = size
    else:
        start = int(match[1])
        end = min(size - 1, int(match[2])) if match[2] else size - 1
        if match[2] and int(match[2]) < start:
            return 0, size, 200
    if start >= size:
        raise RangeNotSatisfiable(headers={"Content-Range": f"bytes */{size}"}, extra={"size": size})
    return start, end - start + 1, 206


async def _ended(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _thread(work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(_threads, work)


async def _refuse(error: BaseException, scope: Message, receive: Receive, send: Send) -> None:
    """A problem. A little of a body that nobody wants is taken first: many clients read no answer before they have sent all."""
    response = errors.respond(error, instance=scope["path"])
    taken, more = 0, scope["method"] == "PUT"
    while more and taken < _DRAIN:
        try:
            message = await asyncio.wait_for(receive(), 1)
        except TimeoutError:
            break
        more = message["type"] == "http.request" and message.get("more_body", False)
        taken += len(message.get("body", b""))
    head = dict(response.items()) | {"X-Request-Id": str(ids.uuid7())}
    await _answer(send, response.status_code, b"" if scope["method"] == "HEAD" else response.content, head)


async def _answer(send: Send, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
    if headers is None:
        headers = {"Content-Type": "application/json", "Cache-Control": "no-store"}
    if status != 304:
        headers = {"Content-Length": str(len(body)), **headers}
    await _head(send, status, headers)
    await send({"type": "http.response.body", "body": body})


async def _head(send: Send, status: int, headers: dict[str, str]) -> None:
    pairs = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
