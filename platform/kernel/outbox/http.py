"""HTTP requests to receivers that tenants name, and the guard that keeps them off our own networks.

Invariant: a connection goes only to an address that was checked, on an allowed port. The name is resolved once, all its addresses
are judged, and the request goes to the address itself with the name in `Host` and in TLS (`sni_hostname`, which also says whose
certificate is accepted): a name that changes its address in between changes nothing. Redirects are answers, not followed; proxies
of the environment are not used.
"""

import asyncio
import re
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final, Literal

import httpx
import msgspec
from django.conf import settings

from kernel import clock
from kernel.outbox.deliverers import Dead, Delivered, Message, Outcome, Retry

TOPIC: Final = "http"
RESPONSE_LIMIT: Final = 256 * 1024  # bytes of an answer that are read
_CONNECT_SECONDS: Final = 5.0
# Answers that the same request will get again. All others, also 401 and 404, may be a receiver that is being set up.
_FINAL: Final = frozenset([400, 405, 410, 411, 413, 414, 415, 422, 431, 501, 505])
# Set by us, or by the transport.
_OURS: Final = frozenset(["host", "content-length", "transfer-encoding", "connection", "idempotency-key", "user-agent"])
_HOST: Final = re.compile(rb"[A-Za-z0-9._:-]+")
# What is not for the world, by IANA's registries of special-purpose addresses; not left to the standard library, whose idea of
# it differs between versions. The last one is public by its number, yet a cloud's own (Azure's wire server).
_NOT_PUBLIC_4: Final = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
            "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
            "224.0.0.0/4", "240.0.0.0/4", "168.63.129.16/32",
        ),
    )
)  # fmt: skip
# Only this part of IPv6 is given out to the world, and of it not these: protocols, tunnels and documentation.
_PUBLIC_6: Final = IPv6Network("2000::/3")
_NOT_PUBLIC_6: Final = tuple(map(IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")))
_NAT64: Final = IPv6Network("64:ff9b::/96")

Address = IPv4Address | IPv6Address


class Refused(Exception):
    """The request may not or cannot be sent, as it is. `reason`: a word for `last_error`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Failed(Exception):
    """No answer: it may or may not have been received. `reason`: a word for `last_error`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Request(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a message of topic `http`, as JSON. `content` is sent as UTF-8."""

    url: str
    method: Literal["POST", "GET"] = "POST"
    headers: dict[str, str] = {}
    content: str = ""


@dataclass(frozen=True, slots=True)
class Response:
    """`body`: its first RESPONSE_LIMIT bytes, not unpacked. `whole`: whether that is all of it."""

    status: int
    headers: httpx.Headers
    body: bytes = field(repr=False)
    whole: bool


def deliver(message: Message) -> Outcome:
    """Deliver a message whose body is a `Request`."""
    try:
        request = msgspec.json.decode(message.body, type=Request)
    except msgspec.MsgspecError:
        return Dead("invalid_request")
    return send(message, request)


def send(message: Message, request: Request) -> Outcome:
    """Send `request` as the attempt of `message`; any answer of 2xx is a delivery."""
    try:
        response = exchange(message, request)
    except Refused as error:
        return Dead(error.reason)
    except Failed as error:
        return Retry(error.reason)
    return outcome_of(response)


def outcome_of(response: Response) -> Outcome:
    """What an answer means for the message."""
    if 200 <= response.status < 300:
        return Delivered()
    reason = f"http_{response.status}"
    if 300 <= response.status < 400 or response.status in _FINAL:
        return Dead(reason)
    return Retry(reason, after=_retry_after(response.headers.get("Retry-After"), now=clock.now()))


def exchange(message: Message, request: Request) -> Response:
    """The receiver's answer, before the message's deadline. Raises Refused and Failed."""
    url = checked(request.url)
    headers = {name: value for name, value in request.headers.items() if name.lower() not in _OURS}
    headers |= {
        "Host": url.netloc.decode(),
        "User-Agent": "Smriti",
        "Idempotency-Key": str(message.id),
    }
    headers.setdefault("Accept-Encoding", "identity")
    try:
        return asyncio.run(_exchange(url, request.method, headers, request.content.encode(), message.seconds_left()))
    except TimeoutError as error:
        raise Failed("timeout") from error
    except (httpx.InvalidURL, httpx.LocalProtocolError, UnicodeEncodeError) as error:
        raise Refused("invalid_request") from error
    except httpx.TransportError as error:
        raise Failed(_reason(error)) from error


def checked(text: str) -> httpx.URL:
    """The URL, if it is http or https on an allowed port, without credentials. Raises Refused."""
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise Refused("invalid_url") from error
    if url.scheme not in ("http", "https") or not _HOST.fullmatch(url.raw_host) or url.userinfo:
        raise Refused("invalid_url")
    if _port(url) not in settings.OUTBOX_PORTS:
        raise Refused("port_refused")
    return url


def permitted(address: Address) -> bool:
    """Whether requests may go to an address: it is public, or in one of the networks that the operator allows."""
    if any(address in network for network in settings.OUTBOX_ALLOW_PRIVATE):
        return True
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC_4)
    if address.ipv4_mapped is not None:
        return permitted(address.ipv4_mapped)
    if address in _NAT64:
        return permitted(IPv4Address(int(address) & 0xFFFF_FFFF))
    return address in _PUBLIC_6 and not any(address in network for network in _NOT_PUBLIC_6)


async def _exchange(url: httpx.URL, method: str, headers: dict[str, str], content: bytes, seconds: float) -> Response:
    host = url.raw_host.decode()
    async with asyncio.timeout(seconds):
        addresses = await _resolve(host, _port(url))
        timeout = httpx.Timeout(seconds, connect=min(seconds, _CONNECT_SECONDS))
        transport = httpx.AsyncHTTPTransport(verify=_tls(), trust_env=False)
        async with httpx.AsyncClient(transport=transport, timeout=timeout, trust_env=False) as client:
            for place, address in enumerate(addresses, 1):
                request = client.build_request(
                    method, url.copy_with(host=str(address)), headers=headers, content=content,
                    extensions={"sni_hostname": host},
                )  # fmt: skip
                try:
                    response = await client.send(request, stream=True, follow_redirects=False)
                except (httpx.ConnectError, httpx.ConnectTimeout):
                    if place == len(addresses):
                        raise
                    continue
                return await _read(response)
    raise Failed("dns")


async def _read(response: httpx.Response) -> Response:
    parts, size = [], 0
    try:
        async for part in response.aiter_raw():
            parts.append(part)
            size += len(part)
            if size > RESPONSE_LIMIT:
                break
    finally:
        await response.aclose()
    return Response(
        status=response.status_code,
        headers=response.headers,
        body=b"".join(parts)[:RESPONSE_LIMIT],
        whole=size <= RESPONSE_LIMIT,
    )


async def _resolve(host: str, port: int) -> list[Address]:
    """The addresses of a name, all of which are permitted. Raises Refused and Failed."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.run_in_executor(_resolver(), lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    except (socket.gaierror, UnicodeError) as error:
        raise Failed("dns") from error
    addresses = list(dict.fromkeys(ip_address(str(entry[4][0]).partition("%")[0]) for entry in found))
    if not all(permitted(address) for address in addresses):
        raise Refused("address_refused")
    return addresses


def _port(url: httpx.URL) -> int:
    return url.port if url.port is not None else 443 if url.scheme == "https" else 80


def _reason(error: httpx.TransportError) -> str:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return "tls"
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, httpx.TimeoutException):
        return "timeout"
    return "not_connected" if isinstance(error, httpx.ConnectError) else "connection_lost"


def _retry_after(header: str | None, *, now: datetime) -> float | None:
    """Seconds, from either form of the header (RFC 9110, 10.2.3); None when it has none."""
    if header is None:
        return None
    if header.isascii() and header.isdigit():
        return float(header[:9])
    try:
        moment = parsedate_to_datetime(header)
    except ValueError:
        return None
    return max(0.0, ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - now).total_seconds())


@cache
def _tls() -> ssl.SSLContext:
    return httpx.create_ssl_context(trust_env=False)


@cache
def _resolver() -> ThreadPoolExecutor:
    """Threads of their own: a name server that hangs holds one of them, not the request."""
    return ThreadPoolExecutor(8, thread_name_prefix="outbox-dns")
