"""A tool's probe URL is asked what became of an unknown effect."""

import ipaddress
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from kernel.outbox import operations as outbox_ops
from runs import operations
from tests.cast import House
from tests.runs.driver import Worker, register, settle, tamperer


class Service(ThreadingHTTPServer):
    """Answers `status` and `body` to every question, and keeps their paths."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.status: int = 200
        self.body: Any = {}
        self.asked: list[str] = []


class Handler(BaseHTTPRequestHandler):
    server: Service

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        text = json.dumps(self.server.body).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def service(settings: Any) -> Iterator[Service]:
    with Service() as found:
        settings.OUTBOX_ALLOW_PRIVATE = [ipaddress.ip_network("127.0.0.0/8")]
        settings.OUTBOX_PORTS = {found.server_port}
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield found
        found.shutdown()
    # What is still to be asked is nobody else's business.
    with tamperer() as database:
        database.execute("update outbox_message set due_at = null where status = 'pending' and topic = 'runs.probe'")


@pytest.fixture
def worker(house: House, service: Service) -> Worker:
    """A worker that could not tell what became of its call."""
    register(house, reconcile={"probe_url": "https://bank.example/payments/{key}"})
    with tamperer() as database:
        local = f"http://127.0.0.1:{service.server_port}/payments/"
        database.execute(
            "update runs_tool set definition = replace(definition, 'https://bank.example/payments/', %s) where tenant_id = %s",
            [local, house.id],
        )
    worker = Worker(house)
    worker.start("a")
    worker.claim()
    worker.effect = worker.reserve()  # type: ignore[attr-defined]
    worker.commit(step={"outcome": "failed", "error": {"class": "unknown_outcome"}})
    return worker


def ask(worker: Worker) -> dict[str, Any]:
    """Let the platform ask once; the effect after it."""
    operations.send_probes()
    with tamperer() as database:
        database.execute(
            "update outbox_message set due_at = clock_timestamp() where status = 'pending' and topic = 'runs.probe'"
        )
    outbox_ops.dispatch(seconds=2)
    (effect,) = worker.effects()
    return effect


def test_what_the_service_knows_settles_the_effect(worker: Worker, service: Service) -> None:
    run = worker.get("")["run"]
    assert (run["status"], run["waiting_for"]) == ("waiting", "reconciliation")
    service.body = {"status": "succeeded", "external_id": "TX-8", "output": {"paid": 1}}
    assert ask(worker)["status"] == "reconciled_succeeded"
    assert service.asked == [f"/payments/{worker.effect['key']}"]  # type: ignore[attr-defined]
    assert worker.claim()["wake"] == {"reason": "reconciled"}
    again = worker.reserve()
    assert (again["decision"], again["external_id"], again["output"]) == ("already_done", "TX-8", {"paid": 1})
    assert worker.get("/verify")["ok"]


def test_not_found_counts_only_when_it_was_asked_late_enough(worker: Worker, service: Service) -> None:
    service.status = 404
    assert ask(worker)["status"] == "unknown"
    settle(worker.effect["effect"])  # type: ignore[attr-defined]
    assert ask(worker)["status"] == "reconciled_failed"
    worker.claim()
    assert worker.reserve()["attempt"] == 2


def test_who_does_not_know_yet_is_asked_again(worker: Worker, service: Service) -> None:
    for status, body in (
        (200, {"status": "pending"}),
        (200, {"status": "odd"}),
        (500, {}),
        (302, {}),
        (200, ["not", "ours"]),
    ):
        service.status, service.body = status, body
        assert ask(worker)["status"] == "unknown"
    service.status, service.body = 200, {"status": "succeeded"}
    assert ask(worker)["status"] == "reconciled_succeeded"


def test_an_effect_that_somebody_else_settled_is_not_asked_about(
    house: House, worker: Worker, service: Service
) -> None:
    from tests.cast import client

    effect = worker.effect["effect"]  # type: ignore[attr-defined]
    with client(house.keys["operator"]) as operator:
        assert operator.post(f"/effects/{effect}/reconcile", json={"result": "succeeded", "reason": "seen"}).is_success
    assert ask(worker)["status"] == "reconciled_succeeded"
    assert service.asked == []


def test_a_private_address_is_not_asked_and_an_operator_owns_the_effect(
    worker: Worker, service: Service, settings: Any
) -> None:
    settings.OUTBOX_ALLOW_PRIVATE = []
    effect = ask(worker)
    assert (effect["status"], effect["owner"]) == ("unknown", "operator")
    assert service.asked == []
