"""The web process as it runs in production, on this worker's database."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Its address. What it logs stands in `folder`; a traceback in it fails."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "granian", "--interface", "wsgi", "config.wsgi:application", "--workers", "1"]
    command += ["--blocking-threads", "4", "--host", "127.0.0.1", "--port", str(port), "--log-level", "warning"]
    log = folder / "server.log"
    with log.open("wb") as file:
        server = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "BASE_URL": url}, stdout=file, stderr=file)
    try:
        for _ in range(100):
            try:
                httpx.get(f"{url}/sign-in/")
                break
            except httpx.TransportError:
                assert server.poll() is None, log.read_text()
                time.sleep(0.1)
        yield url
    finally:
        server.terminate()
        server.wait(10)
    assert "Traceback" not in log.read_text(), log.read_text()
