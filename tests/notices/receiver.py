"""A webhook receiver: a real HTTP server that verifies with the reference library, and answers as it is told."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from standardwebhooks.webhooks import Webhook, WebhookVerificationError


class Receiver(ThreadingHTTPServer):
    """`answers`: statuses to give, the last one for good; `secret`: what it verifies with, when it does; `got`: all requests.

    A path of `/slow` answers after half a minute, or when the server stops; `/redirect` leads to a private address.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers = [200]
        self.secret: str | None = None
        self.got: list[tuple[str, dict[str, str], bytes]] = []
        self.stopped = threading.Event()
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02})

    @property
    def port(self) -> int:
        return self.server_port

    def url(self, path: str = "/in") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def verified(self, secret: str) -> list[dict[str, Any]]:
        """The payloads of all requests; raises when the reference library accepts one of them not."""
        return [Webhook(secret).verify(body, headers) for _, headers, body in self.got]

    def judge(self, headers: dict[str, str], body: bytes) -> int:
        if self.secret is not None:
            try:
                Webhook(self.secret).verify(body, headers)
            except WebhookVerificationError:
                return 401
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self.shutdown()
        self._thread.join()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away."""


class _Handler(BaseHTTPRequestHandler):
    server: Receiver
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.got.append((self.path, headers, body))
        if self.path == "/slow":
            self.server.stopped.wait(30)
        if self.path == "/redirect":
            self.send_response(307)
            self.send_header("Location", "http://169.254.169.254/latest/meta-data/")
        else:
            self.send_response(self.server.judge(headers, body))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Quiet."""
