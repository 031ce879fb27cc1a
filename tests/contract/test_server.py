"""The real web server in front of the API: what is refused before a view is reached still gets a clear answer."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import httpx
import pytest

if TYPE_CHECKING:
    from tests.cast import House

MB = 1_000_000


@pytest.fixture(scope="module")
def server(_database: None) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        "-m",
        "granian",
        "--interface",
        "wsgi",
        "config.wsgi:application",
        "--port",
        str(port),
        "--no-ws",
        "--log-level",
        "error",
    ]
    process = subprocess.Popen([sys.executable, *command], env=os.environ)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(200):
            try:
                httpx.get(f"{url}/healthz")
                break
            except httpx.TransportError:
                time.sleep(0.1)
        yield f"{url}/api/v1"
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture
def client(server: str, house: "House") -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server, headers={"Authorization": f"Bearer {house.keys['admin']}"}, timeout=60) as found:
        yield found


@pytest.mark.parametrize("path", ["projects", "work/claim", "runs"])
def test_fifty_megabytes_get_an_answer(client: httpx.Client, path: str) -> None:
    body = b'{"a": "' + b"x" * 50 * MB + b'"}'
    headers = {"Content-Type": "application/json", "Idempotency-Key": "big"}
    response = client.post(path, content=body, headers=headers)
    assert (response.status_code, response.json()["code"]) == (413, "body_too_large")
    # The server and the connection are as before.
    assert client.get("projects").status_code == 200


def test_ten_thousand_levels_get_an_answer(client: httpx.Client) -> None:
    headers = {"Content-Type": "application/json", "Idempotency-Key": "deep"}
    response = client.post("projects", content=b"[" * 10_000 + b"]" * 10_000, headers=headers)
    assert (response.status_code, response.json()["code"]) == (422, "too_deep")


def test_a_chunked_body_is_read_or_refused(client: httpx.Client) -> None:
    def chunks() -> Iterator[bytes]:
        yield b'{"slug": "chunked", '
        yield b'"name": "Chunked"}'

    response = client.post("projects", content=chunks(), headers={"Content-Type": "application/json"})
    assert response.status_code in (201, 400, 411)
    if response.status_code != 201:
        assert response.json()["code"] in ("empty_body", "bad_request")


def test_head_has_no_body(client: httpx.Client) -> None:
    response = client.head("projects")
    assert (response.status_code, response.content) == (200, b"")


@pytest.mark.parametrize(
    "request_line",
    [
        b"GET /api/v1/projects%00 HTTP/1.1",
        b"GET /api/v1/%ff%fe HTTP/1.1",
        b"GET /api/v1/runs/../keys HTTP/1.1",
        b"GET /api/v1//keys HTTP/1.1",
        b"BREW /api/v1/keys HTTP/1.1",
        b"GET /api/v1/keys?%ff=%00 HTTP/1.1",
    ],
)
def test_odd_addresses_get_a_problem(server: str, house: "House", request_line: bytes) -> None:
    host, port = server.split("/")[2].split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        lines = [
            request_line,
            b"Host: 127.0.0.1",
            f"Authorization: Bearer {house.keys['admin']}".encode(),
            b"Connection: close",
            b"",
            b"",
        ]
        connection.sendall(b"\r\n".join(lines))
        answer = b""
        while chunk := connection.recv(65536):
            answer += chunk
    assert answer.split(b" ", 2)[1].startswith(b"4"), answer
    assert b"application/problem+json" in answer, answer
