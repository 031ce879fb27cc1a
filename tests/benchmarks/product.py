"""Smriti over HTTP with everything on: a real web server, one keep-alive connection for each client, one commit for each step."""

import socket
import subprocess
import sys
import threading
import time
import uuid
from typing import Any

import orjson
import psutil

from tests.benchmarks.payloads import Step
from tests.servers import ROOT


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Product:
    name = "smriti"

    def __init__(self, key: str, *, workers: int = 2, threads: int = 4) -> None:
        self.port = free_port()
        command = [
            sys.executable,
            "-m",
            "granian",
            "--interface",
            "wsgi",
            "--workers",
            str(workers),
            "--blocking-threads",
        ]
        command += [
            str(threads),
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
            "--log-level",
            "error",
            "config.wsgi:application",
        ]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._key = key
        self._local = threading.local()
        for _ in range(200):
            try:
                socket.create_connection(("127.0.0.1", self.port), 0.2).close()
                break
            except OSError:
                time.sleep(0.05)
        time.sleep(1)

    def start_run(self, run: list[Step]) -> "ProductRun":
        return ProductRun(self, run)

    def call(self, method: str, path: str, body: Any = None, key: str | None = None) -> Any:
        text = b"" if body is None else orjson.dumps(body)
        head = f"{method} /api/v1{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {self._key}\r\n"
        if body is not None:
            head += f"Content-Type: application/json\r\nContent-Length: {len(text)}\r\n"
        if key is not None:
            head += f"Idempotency-Key: {key}\r\n"
        status, answer = self._exchange(head.encode() + b"\r\n" + text)
        if status >= 300:
            raise AssertionError(f"{method} {path}: {status} {answer[:500]!r}")
        return orjson.loads(answer) if answer else None

    def _exchange(self, request: bytes) -> tuple[int, bytes]:
        """One request on this thread's kept connection. Plain sockets: http.client costs as much CPU as the server does."""
        connection: socket.socket | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = socket.create_connection(("127.0.0.1", self.port))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(request)
        received = connection.recv(65_536)
        while (end := received.find(b"\r\n\r\n")) < 0:
            received += connection.recv(65_536)
        head, body = received[:end].lower(), received[end + 4 :]
        at = head.find(b"content-length:")
        length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        while len(body) < length:
            body += connection.recv(1 << 20)
        return int(received[9:12]), body

    def cpu_seconds(self) -> float:
        """CPU time of the web server's processes so far."""
        root = psutil.Process(self.process.pid)
        return sum(sum(process.cpu_times()[:2]) for process in [root, *root.children(recursive=True)])

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(20)


class ProductRun:
    def __init__(self, product: Product, run: list[Step]) -> None:
        self.product, self.run = product, run
        self.queue = uuid.uuid4().hex
        body = {"workflow": "bench", "workflow_version": "1", "steps": [{"name": "work", "queue": self.queue}]}
        self.id = product.call("POST", "/runs", body, key=self.queue)["id"]
        work = product.call("POST", "/work/claim", {"worker": "bench", "queues": [self.queue], "lease_seconds": 3600})
        assert work["run"]["id"] == self.id
        self.lease, self.epoch, self.head = work["lease"], work["epoch"], work["run"]["head"]
        self._last: dict[str, Any] = {}

    def step(self, seq: int) -> None:
        step = self.run[seq]
        body = {
            "lease": self.lease, "epoch": self.epoch, "head": self.head,
            "events": [{"type": "tool_succeeded", "input": step.input, "output": step.output}],
            "checkpoint": {"state": step.state} if not self._last else {"patch": self._patch(step.state)},
        }  # fmt: skip
        answer = self.product.call("POST", f"/runs/{self.id}/commit", body, key=f"{self.queue}-{seq}")
        self.head, self._last = answer["head"], step.state

    def resume(self) -> dict[str, Any]:
        state: dict[str, Any] = self.product.call("GET", f"/runs/{self.id}/checkpoints/latest")["state"]
        return state

    def _patch(self, state: dict[str, Any]) -> list[dict[str, Any]]:
        known = len(self._last["messages"])
        patch = [{"op": "add", "path": "/messages/-", "value": message} for message in state["messages"][known:]]
        patch += [
            {"op": "replace", "path": f"/{name}", "value": value}
            for name, value in state.items()
            if name != "messages" and self._last[name] != value
        ]
        return patch
