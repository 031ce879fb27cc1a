"""Requests that leave the platform: what an answer means, and that no name and no redirect leads to our own networks."""

import datetime
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from pytest_django import Settings

from kernel import clock, ids
from kernel.outbox import http
from kernel.outbox.deliverers import Dead, Delivered, Message, Outcome, Retry


class Site(ThreadingHTTPServer):
    """Answers by the path: `/status/503`, `/redirect`, `/drip`, `/large`, `/cut`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away."""


class Handler(BaseHTTPRequestHandler):
    server: Site
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.requests.append((self.command, self.path, dict(self.headers), body))
        match self.path.split("/")[1:]:
            case ["status", status]:
                self.answer(int(status), b"", {"Retry-After": "7"})
            case ["redirect"]:
                self.answer(302, b"", {"Location": f"http://127.0.0.1:{self.server.server_port}/status/200"})
            case ["large"]:
                self.answer(200, b"x" * (http.RESPONSE_LIMIT * 4), {})
            case ["packed"]:
                self.answer(200, b"\x1f\x8b", {"Content-Encoding": "gzip"})
            case ["drip"]:
                self.connection.sendall(b"HTTP/1.1 200 OK\r\n")
                for number in range(600):
                    time.sleep(0.05)
                    self.connection.sendall(b"X-%d: y\r\n" % number)
            case ["cut"]:
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
            case _:
                self.answer(200, b'{"fine": true}', {})

    do_GET = do_POST

    def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Quiet."""


def serve(site: Site) -> Iterator[Site]:
    thread = threading.Thread(target=site.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield site
    site.shutdown()
    thread.join()
    site.server_close()


@pytest.fixture
def site(settings: Settings) -> Iterator[Site]:
    found = Site()
    settings.OUTBOX_PORTS = frozenset([found.server_port])
    settings.OUTBOX_ALLOW_PRIVATE = (ip_network("127.0.0.1/32"),)
    yield from serve(found)


def message(body: bytes = b"", seconds: float = 10) -> Message:
    return Message(
        tenant=ids.uuid7(), id=ids.uuid7(), topic="http", ordering=None, dedup="d", attempt=1, created_at=clock.now(),
        body=body, deadline=time.monotonic() + seconds,
    )  # fmt: skip


def to(url: str, **parts: Any) -> http.Request:
    return http.Request(url=url, **parts)


def send(url: str, **parts: Any) -> Outcome:
    return http.send(message(), to(url, **parts))


def test_a_request_arrives_with_the_messages_id(site: Site) -> None:
    url, headers = f"http://localhost:{site.server_port}/hook?a=b", {"X-Kind": "note", "Idempotency-Key": "mine"}
    found = message(msgspec.json.encode({"url": url, "headers": headers, "content": "न"}))
    assert http.deliver(found) == Delivered()
    [(method, path, headers, content)] = site.requests
    assert (method, path, content.decode()) == ("POST", "/hook?a=b", "न")
    assert headers["Idempotency-Key"] == str(found.id)
    assert headers["Host"] == f"localhost:{site.server_port}"
    assert headers["X-Kind"] == "note"
    assert sum(name.lower() == "idempotency-key" for name in headers) == 1


def test_a_body_that_is_no_request_is_given_up() -> None:
    for body in (b"", b"[]", b'{"url": 1}', b'{"url": "http://x", "method": "DELETE"}'):
        assert http.deliver(message(body)) == Dead("invalid_request")


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (200, Delivered()),
        (204, Delivered()),
        (302, Dead("http_302")),
        (400, Dead("http_400")),
        (401, Retry("http_401", after=7)),
        (404, Retry("http_404", after=7)),
        (410, Dead("http_410")),
        (429, Retry("http_429", after=7)),
        (500, Retry("http_500", after=7)),
        (503, Retry("http_503", after=7)),
    ],
)
def test_what_an_answer_means(site: Site, status: int, outcome: Outcome) -> None:
    assert send(f"http://127.0.0.1:{site.server_port}/status/{status}") == outcome


def test_a_redirect_is_not_followed(site: Site) -> None:
    assert send(f"http://127.0.0.1:{site.server_port}/redirect", method="GET") == Dead("http_302")
    assert [path for _, path, _, _ in site.requests] == ["/redirect"]


def test_of_a_large_answer_a_part_is_read_and_nothing_is_unpacked(site: Site) -> None:
    found = http.exchange(message(), to(f"http://127.0.0.1:{site.server_port}/large"))
    assert (len(found.body), found.whole) == (http.RESPONSE_LIMIT, False)
    found = http.exchange(message(), to(f"http://127.0.0.1:{site.server_port}/packed"))
    assert (found.body, found.whole) == (b"\x1f\x8b", True)


def test_an_answer_that_trickles_ends_with_the_deadline(site: Site) -> None:
    start = time.monotonic()
    outcome = http.send(message(seconds=0.5), to(f"http://127.0.0.1:{site.server_port}/drip"))
    assert outcome == Retry("timeout")
    assert time.monotonic() - start < 10  # it would take 30 s


def test_a_lost_answer_is_tried_again(site: Site) -> None:
    assert send(f"http://127.0.0.1:{site.server_port}/cut") == Retry("connection_lost")


def test_a_receiver_that_is_not_there_is_tried_again(settings: Settings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    settings.OUTBOX_PORTS = frozenset([port])
    settings.OUTBOX_ALLOW_PRIVATE = (ip_network("127.0.0.1/32"),)
    assert send(f"http://127.0.0.1:{port}/") == Retry("not_connected")


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "localhost", "127.1", "0x7f000001", "2130706433", "[::1]", "[::]", "0.0.0.0", "10.1.2.3",
        "172.16.0.1", "192.168.1.1", "100.64.0.1", "169.254.169.254", "[fd00:ec2::254]", "[fe80::1]", "[fc00::1]",
        "168.63.129.16", "100.100.100.200", "192.0.0.192", "224.0.0.1", "[ff02::1]", "[ff0e::1]", "255.255.255.255",
        "240.0.0.1", "198.18.0.1", "192.0.2.1", "[::ffff:127.0.0.1]", "[::ffff:169.254.169.254]", "[::127.0.0.1]",
        "[64:ff9b::127.0.0.1]", "[64:ff9b::a9fe:a9fe]", "[2002:7f00:1::]", "[2001:0:4136:e378:8000:63bf:80ff:fffe]",
        "[2001:db8::1]", "[3fff::1]", "[5f00::1]", "192.88.99.1",
    ],
)  # fmt: skip
def test_our_own_networks_are_refused(host: str) -> None:
    for scheme in ("http", "https"):
        assert send(f"{scheme}://{host}/") == Dead("address_refused")


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "64:ff9b::8.8.8.8", "::ffff:1.1.1.1"])
def test_public_addresses_are_permitted(address: str) -> None:
    assert http.permitted(ip_address(address))


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("ftp://example.com/", "invalid_url"),
        ("file:///etc/passwd", "invalid_url"),
        ("gopher://127.0.0.1:6379/_x", "invalid_url"),
        ("//example.com/", "invalid_url"),
        ("http:///x", "invalid_url"),
        ("http://user:secret@example.com/", "invalid_url"),
        ("http://exa mple.com/", "invalid_url"),
        ("http://[::1/", "invalid_url"),
        ("", "invalid_url"),
        ("http://example.com:22/", "port_refused"),
        ("https://example.com:6379/", "port_refused"),
        ("https://example.com:0/", "port_refused"),
    ],
)
def test_what_is_no_web_address_is_refused(url: str, reason: str) -> None:
    assert send(url) == Dead(reason)


@pytest.mark.parametrize("name", ["x\r\nHost: evil", "x y", "ü"])
def test_headers_cannot_smuggle(site: Site, name: str) -> None:
    for headers in ({name: "v"}, {"X-A": f"v{name}"}):
        outcome = send(f"http://127.0.0.1:{site.server_port}/", headers=headers)
        assert outcome in (Dead("invalid_request"), Delivered())
    assert all(headers["Host"].startswith("127.0.0.1") for _, _, headers, _ in site.requests)


class Names:
    """A name server that changes its mind with each question."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    def __call__(self, host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        self.asked.append(host)
        found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]


def test_a_name_is_asked_for_once_and_the_checked_address_is_used(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    names = Names(["127.0.0.1"], ["169.254.169.254"])
    monkeypatch.setattr(socket, "getaddrinfo", names)
    assert send(f"http://hooks.example:{site.server_port}/status/200") == Delivered()
    assert names.asked == ["hooks.example"]
    [(_, _, headers, _)] = site.requests
    assert headers["Host"] == f"hooks.example:{site.server_port}"
    # The next attempt asks again, and is refused.
    assert send(f"http://hooks.example:{site.server_port}/status/200") == Dead("address_refused")


def test_one_bad_address_among_good_ones_refuses_the_name(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", Names(["127.0.0.1", "10.0.0.1"]))
    assert send(f"http://hooks.example:{site.server_port}/") == Dead("address_refused")
    assert site.requests == []


def test_the_second_address_is_tried_when_the_first_does_not_listen(
    site: Site, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.OUTBOX_ALLOW_PRIVATE = (ip_network("127.0.0.0/8"),)
    monkeypatch.setattr(socket, "getaddrinfo", Names(["127.0.0.2", "127.0.0.1"]))
    assert send(f"http://hooks.example:{site.server_port}/") == Delivered()


def test_an_unknown_name_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: Any, **__: Any) -> Any:
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert send("http://hooks.example/") == Retry("dns")


def test_a_name_server_that_hangs_ends_with_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: released.wait(30) and [])
    assert http.send(message(seconds=0.3), to("http://hooks.example/")) == Retry("timeout")
    released.set()


def test_tls_is_that_of_the_name_and_not_of_the_address(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = tmp_path / "site.pem"
    certificate.write_bytes(certificate_for("hooks.example"))
    found = Site()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    asked: list[str | None] = []
    tls.sni_callback = lambda _socket, name, _context: asked.append(name)
    found.socket = tls.wrap_socket(found.socket, server_side=True)
    settings.OUTBOX_PORTS = frozenset([found.server_port])
    settings.OUTBOX_ALLOW_PRIVATE = (ip_network("127.0.0.1/32"),)
    monkeypatch.setattr(socket, "getaddrinfo", Names(["127.0.0.1"]))
    for _ in serve(found):
        assert send(f"https://hooks.example:{found.server_port}/") == Retry("tls")  # nobody vouches for it
        trusting = ssl.create_default_context(cafile=str(certificate))
        monkeypatch.setattr(http, "_tls", lambda trusting=trusting: trusting)
        assert send(f"https://hooks.example:{found.server_port}/") == Delivered()
        assert send(f"https://other.example:{found.server_port}/") == Retry("tls")
    assert asked == ["hooks.example", "hooks.example", "other.example"]
    assert len(found.requests) == 1


def certificate_for(name: str) -> bytes:
    """A self-signed certificate and its key, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private + built.public_bytes(serialization.Encoding.PEM)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [(None, None), ("7", 7.0), ("soon", None), ("-3", None), ("Sun, 29 Nov 2026 10:00:30 GMT", 30.0), ("1" * 400, 111111111.0)],
)  # fmt: skip
def test_retry_after_has_two_forms(header: str | None, seconds: float | None) -> None:
    now = datetime.datetime(2026, 11, 29, 10, tzinfo=datetime.UTC)
    assert http._retry_after(header, now=now) == seconds


def test_proxies_of_the_environment_are_not_used(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert send(f"http://127.0.0.1:{site.server_port}/") == Delivered()
    assert httpx.URL(f"http://127.0.0.1:{site.server_port}/").port == site.server_port
