"""Announcing, uploading and downloading artifacts in a few lines, and the real process that their bytes go through."""

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import httpx
import psutil

from config.embedded.place import remembered_port
from runs.operations.transfers import Upload


def announce(client: httpx.Client, content: bytes, **changes: Any) -> httpx.Response:
    body = {
        "name": "report.bin", "media_type": "application/octet-stream", "size": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    } | changes  # fmt: skip
    return client.post("/artifacts", json={name: value for name, value in body.items() if value is not None})


def announced(client: httpx.Client, content: bytes, **changes: Any) -> tuple[UUID, str]:
    """The artifact, and where to upload it."""
    response = announce(client, content, **changes)
    assert response.status_code == 201, response.text
    return UUID(response.json()["id"]), response.json()["upload"]["url"]


def upload(client: httpx.Client, content: bytes, **changes: Any) -> UUID:
    """An uploaded artifact, in process."""
    artifact, url = announced(client, content, **changes)
    transfer = Upload(tenant=_tenant(url), artifact_id=artifact, announced=None)
    transfer.write(content)
    transfer.finish()
    return artifact


def _tenant(url: str) -> UUID:
    return UUID(hex=dict(part.split("=") for part in urlsplit(url).query.split("&"))["tenant"])


class Waits:
    """The process for waits and streams. `path`: a signed address as one of this process."""

    def __init__(self, process: subprocess.Popen[bytes], base: str) -> None:
        self.process, self.base = process, base
        self.http = httpx.Client(base_url=base, timeout=60)

    def path(self, url: str) -> str:
        parts = urlsplit(url)
        return f"{self.base}{parts.path}?{parts.query}"

    def put(self, url: str, content: Any, **headers: str) -> httpx.Response:
        return self.http.put(self.path(url), content=content, headers=headers)

    def get(self, url: str, **headers: str) -> httpx.Response:
        return self.http.get(self.path(url), headers=headers)

    def rss(self) -> int:
        """Bytes of memory of all its processes."""
        parent = psutil.Process(self.process.pid)
        return sum(found.memory_info().rss for found in [parent, *parent.children(recursive=True)])

    def kill(self) -> None:
        """SIGKILL to every process of it."""
        parent = psutil.Process(self.process.pid)
        for found in [*parent.children(recursive=True), parent]:
            found.kill()
        self.process.wait(10)


@contextmanager
def waits(tmp_path: Any, **environment: str) -> Iterator[Waits]:
    """A started process; it ends with the block."""
    port = remembered_port(tmp_path / "waits.port")
    base = f"http://127.0.0.1:{port}"
    command = [
        "-m",
        "granian",
        "--interface",
        "asginl",
        "config.asgi:application",
        "--workers",
        "1",
        "--port",
        str(port),
    ]
    with (tmp_path / "waits.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, *command, "--no-ws", "--log-level", "error"],
            env=os.environ | {"WAITS_URL": base} | environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    found = Waits(process, base)
    try:
        for _ in range(200):
            try:
                found.http.get("/healthz")
                break
            except httpx.TransportError:
                assert process.poll() is None, (tmp_path / "waits.log").read_text()
                time.sleep(0.1)
        yield found
    finally:
        found.http.close()
        if process.poll() is None:
            process.terminate()
            process.wait(20)
