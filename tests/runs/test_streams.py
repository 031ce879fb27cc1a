"""Live streams from the real process for waits, while the API in this process changes the runs."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

import httpx
import psutil
import psycopg
import pytest

from tests.runs.driver import Worker

if TYPE_CHECKING:
    from tests.cast import House

PATIENCE = 30


@contextmanager
def waits_process(**environment: str) -> Iterator[tuple[str, int]]:
    """The process for waits on a port of its own: its URL and process id."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    from config.embedded.supervisor import WAITS

    command = [sys.executable, "-m", *WAITS, "--port", str(port), "--log-level", "error"]
    process = subprocess.Popen(command, env=os.environ | environment)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(200):
            try:
                httpx.get(f"{url}/healthz")
                break
            except httpx.TransportError:
                time.sleep(0.1)
        yield url, process.pid
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture(scope="module")
def waits(_database: None) -> Iterator[str]:
    with waits_process(STREAM_HEARTBEAT="1", STREAMS_PER_TENANT="20") as (url, _):
        yield url


@dataclass
class Message:
    id: str = ""
    event: str = "message"
    data: str = ""

    @property
    def json(self) -> Any:
        return json.loads(self.data)


@dataclass
class Reader:
    """A client as EventSource is one: `messages` grows while the stream is open; `last_id` is where to come back."""

    messages: list[Message] = field(default_factory=list)
    last_id: str = ""
    retry: int = 0
    comments: int = 0
    status: int = 0
    ended: threading.Event = field(default_factory=threading.Event)
    _close: threading.Event = field(default_factory=threading.Event)

    def run(self, url: str, key: str, **headers: str) -> None:
        try:
            with (
                httpx.Client(timeout=PATIENCE, headers={"Authorization": f"Bearer {key}", **headers}) as client,
                client.stream("GET", url) as response,
            ):
                self.status = response.status_code
                message = Message()
                for line in response.iter_lines():
                    if self._close.is_set():
                        return
                    self.take(line, message)
                    if not line:
                        if message.data:
                            self.messages.append(message)
                        message = Message()
        except httpx.TransportError:
            pass
        finally:
            self.ended.set()

    def take(self, line: str, message: Message) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            message.data += ("\n" if message.data else "") + value
        elif name == "id":
            message.id = self.last_id = value
        elif name == "event":
            message.event = value
        elif name == "retry":
            self.retry = int(value)
        elif line.startswith(":"):
            self.comments += 1

    def wait(self, count: int) -> list[Message]:
        until(lambda: len(self.messages) >= count or self.ended.is_set())
        assert len(self.messages) >= count, self.messages
        return self.messages

    def close(self) -> None:
        self._close.set()


def until(condition: Any) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "nothing happens"
        time.sleep(0.01)


def follow(url: str, house: "House", path: str, *, kind: str = "agent", **headers: str) -> Reader:
    """A reader that is connected: its first block came."""
    reader = Reader()
    arguments = (f"{url}/api/v1/{path}", house.keys[kind])
    threading.Thread(target=reader.run, args=arguments, kwargs=headers, daemon=True).start()
    until(lambda: reader.retry or reader.ended.is_set())
    return reader


def log(worker: Worker) -> list[Any]:
    return list(worker.get("/events?limit=1000")["items"])


def plain(items: list[Any]) -> list[Any]:
    left_out = ("readable", "input", "output", "payload", "steps")
    return [{name: value for name, value in item.items() if name not in left_out} for item in items]


def test_a_run_is_followed_from_its_first_event_to_its_end(waits: str, house: "House") -> None:
    worker = Worker(house)
    run = worker.start("a", "b")
    reader = follow(waits, house, f"runs/{run}/events/stream")
    assert [message.json["type"] for message in reader.wait(1)] == ["run_created"]
    for step in ("a", "b"):
        worker.claim()
        worker.commit(events=[{"type": "note", "payload": {"step": step}}], step={"outcome": "succeeded"})
    assert reader.ended.wait(PATIENCE)
    *events, end = reader.messages
    assert (end.event, end.json) == ("end", {"status": "completed", "last_seq": len(events)})
    assert [message.id for message in events] == [str(seq) for seq in range(1, len(events) + 1)]
    assert [message.json for message in events] == plain(log(worker))
    # Who comes back after the end is told not to.
    assert httpx.get(
        f"{waits}/api/v1/runs/{run}/events/stream",
        headers={"Authorization": f"Bearer {house.keys['agent']}", "Last-Event-ID": events[-1].id},
    ).status_code == 204  # fmt: skip


def test_a_stream_goes_on_where_the_last_one_ended(waits: str, house: "House") -> None:
    worker = Worker(house)
    run = worker.start("a")
    worker.claim()
    first = follow(waits, house, f"runs/{run}/events/stream")
    first.wait(3)
    first.close()
    worker.commit(events=[{"type": "note"}] * 700)  # more than is kept for all
    second = follow(waits, house, f"runs/{run}/events/stream?after=1", **{"Last-Event-ID": first.last_id})
    second.wait(700)
    worker.commit(events=[{"type": "more"}])
    seqs = [int(message.id) for message in second.wait(701)]
    assert seqs == list(range(int(first.last_id) + 1, int(first.last_id) + 702))


def test_payloads_come_to_the_letter_when_asked_for(waits: str, house: "House") -> None:
    worker = Worker(house)
    run = worker.start("a")
    worker.claim()
    body = (
        b'{"lease": "%b", "epoch": %d, "events": [{"type": "note", "payload": {\r\n "a" :\t1.50,\n\n"b":\r"x"}}]}'
        % (worker.lease.encode(), worker.epoch)
    )
    headers = {"Idempotency-Key": "spaced", "Content-Type": "application/json"}
    assert worker.http.post(f"/runs/{run}/commit", content=body, headers=headers).status_code == 200
    reader = follow(waits, house, f"runs/{run}/events/stream?payloads=true")
    assert [message.json for message in reader.wait(4)] == log(worker)
    assert '"a" :\t1.50' in reader.messages[-1].data
    bare = follow(waits, house, f"runs/{run}/events/stream")
    assert [message.json for message in bare.wait(4)] == plain(log(worker))
    assert not any("payload" in message.json for message in bare.messages)


def test_large_payloads_come_in_bounded_pages(waits: str, house: "House") -> None:
    worker = Worker(house)
    run = worker.start("a")
    worker.claim()
    for number in range(6):
        worker.commit(events=[{"type": "note", "payload": {"n": number, "text": "x" * 700_000}}] * 2)
    reader = follow(waits, house, f"runs/{run}/events/stream?payloads=true")
    assert [message.json["payload"]["n"] for message in reader.wait(15)[3:]] == sorted([*range(6), *range(6)])
    feed = follow(waits, house, "events/stream?payloads=true&after=start&type=note")
    assert [message.json["payload"]["n"] for message in feed.wait(12)] == sorted([*range(6), *range(6)])


def test_the_feed_of_a_tenant_has_all_runs_and_can_be_filtered(
    waits: str, house: "House", other_house: "House"
) -> None:
    everything = follow(waits, house, "events/stream")
    workflow = follow(waits, house, "events/stream?workflow=pay&workflow=none")
    types = follow(waits, house, "events/stream?type=step_leased&project=main")
    elsewhere = follow(waits, house, "events/stream?project=other")
    stranger = follow(waits, other_house, "events/stream?after=start")
    workers = [Worker(house), Worker(house)]
    workers[0].start("a", workflow="pay")
    workers[1].start("a", workflow="test")
    for worker in workers:
        worker.claim()
        worker.commit(step={"outcome": "succeeded"})
    seen = [(message.json["run_id"], message.json["seq"]) for message in everything.wait(10)]
    assert sorted(seen) == sorted((worker.run, seq) for worker in workers for seq in range(1, 6))
    assert {message.json["workflow"] for message in workflow.wait(5)} == {"pay"}
    assert [message.json["type"] for message in types.wait(2)] == ["step_leased", "step_leased"]
    # A reader to whom nothing is shown moves on all the same.
    until(lambda: elsewhere.last_id == types.last_id != "" or elsewhere.last_id > types.last_id)
    assert (elsewhere.messages, stranger.messages) == ([], [])
    again = follow(waits, house, "events/stream", **{"Last-Event-ID": everything.messages[3].id})
    assert [message.data for message in again.wait(6)] == [message.data for message in everything.messages[4:]]


def test_a_cancelled_run_ends_its_stream_without_a_hint(waits: str, house: "House") -> None:
    from kernel import actor, clock
    from kernel.context import tenant_scope
    from runs import operations

    worker = Worker(house)
    run = worker.start("a")
    reader = follow(waits, house, f"runs/{run}/events/stream")
    with tenant_scope(house.id):
        operations.cancel_run(
            tenant=house.id, run_id=UUID(run), reason="no", actor=actor.system("tests"), now=clock.now()
        )
    assert reader.ended.wait(PATIENCE)
    assert reader.messages[-1].json == {"status": "cancelled", "last_seq": 2}


def test_a_revoked_key_ends_its_streams(waits: str, house: "House") -> None:
    worker = Worker(house)
    run = worker.start("a")
    readers = [follow(waits, house, path) for path in (f"runs/{run}/events/stream", "events/stream")]
    kept = follow(waits, house, "events/stream", kind="operator")
    admin = httpx_client(house)
    assert admin.post(f"/keys/{house.key_ids['agent']}/revoke").status_code in (200, 204)
    for reader in readers:
        assert reader.ended.wait(PATIENCE)
        assert (reader.messages[-1].event, reader.messages[-1].json["code"]) == ("problem", "unauthorized")
    assert not kept.ended.is_set()
    kept.close()


def httpx_client(house: "House") -> httpx.Client:
    from tests.cast import client

    return client(house.keys["admin"])


def test_what_a_key_may_not_see_is_not_there(waits: str, house: "House", other_house: "House") -> None:
    """Projects and agents that a key is bound to hold for streams, also for what happens while they are open."""
    from kernel import actor, clock
    from kernel.context import tenant_scope
    from tenancy import operations as tenancy_ops

    who, now = actor.system("tests"), clock.now()
    with tenant_scope(house.id):
        project = tenancy_ops.create_project(tenant=house.id, slug="second", name="Second", actor=who, now=now)
        issued = tenancy_ops.issue_key(
            tenant=house.id, name="bound", scopes=("runs:read",), project_ids=[project.id], actor=who, now=now
        )
    house.keys["bound"] = issued.secret
    worker = Worker(house, key="admin")
    hidden = worker.start("a", project="main")
    feed = follow(waits, house, "events/stream?after=start", kind="bound")
    shown = Worker(house, key="admin").start("a", project="second")
    assert [message.json["run_id"] for message in feed.wait(1)] == [shown]
    answers = [
        httpx.get(f"{waits}/api/v1/runs/{run}/events/stream", headers={"Authorization": f"Bearer {key}"})
        for run, key in (
            (hidden, house.keys["bound"]),
            (hidden, other_house.keys["admin"]),
            ("019aa000-0000-7000-8000-000000000000", house.keys["admin"]),
        )
    ]
    assert [(answer.status_code, answer.json()["code"]) for answer in answers] == [(404, "not_found")] * 3


@pytest.mark.parametrize(
    ("path", "headers", "status", "code"),
    [
        ("events/stream?after=1", {}, 422, "invalid"),
        ("events/stream?after=0.0", {}, 422, "invalid"),
        ("events/stream?after=9999.0", {}, 422, "invalid"),
        ("events/stream", {"Last-Event-ID": "7"}, 422, "invalid"),
        ("events/stream?colour=red", {}, 422, "invalid"),
        ("events/stream?workflow=" + "x" * 65, {}, 422, "invalid"),
        ("runs/{run}/events/stream?after=-1", {}, 422, "invalid"),
        ("runs/{run}/events/stream?after=2", {}, 422, "invalid"),
        ("runs/{run}/events/stream", {"Last-Event-ID": "1.0"}, 422, "invalid"),
        ("runs/{run}/events/stream?payloads=perhaps", {}, 422, "invalid"),
        ("runs/{run}/events/stream", {"Authorization": "Bearer nobody"}, 401, "unauthorized"),
    ],
)
def test_wrong_calls_are_refused(
    waits: str, house: "House", path: str, headers: dict[str, str], status: int, code: str
) -> None:
    run = Worker(house).start("a")
    url = f"{waits}/api/v1/{path.replace('{run}', run)}"
    answer = httpx.get(url, headers={"Authorization": f"Bearer {house.keys['agent']}", **headers})
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert httpx.post(url, headers={"Authorization": f"Bearer {house.keys['agent']}"}).status_code == 405


def test_a_tenant_has_a_limit_of_open_streams(waits: str, house: "House", other_house: "House") -> None:
    readers = [follow(waits, house, "events/stream") for _ in range(20)]
    answer = httpx.get(f"{waits}/api/v1/events/stream", headers={"Authorization": f"Bearer {house.keys['agent']}"})
    assert (answer.status_code, answer.json()["code"]) == (429, "too_many_streams")
    assert not follow(waits, other_house, "events/stream").ended.is_set()
    readers[0].close()
    until(lambda: follow(waits, house, "events/stream").status == 200)


def test_who_reads_too_slowly_is_dropped(waits: str, house: "House") -> None:
    """The others do not wait for it, and the server forgets it."""
    worker = Worker(house)
    run = worker.start("a")
    worker.claim()
    quick = follow(waits, house, f"runs/{run}/events/stream?payloads=true")
    host, port = waits.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as slow:
        lines = [f"GET /api/v1/runs/{run}/events/stream?payloads=true HTTP/1.1", f"Host: {host}", "Connection: close"]
        slow.sendall("\r\n".join([*lines, f"Authorization: Bearer {house.keys['agent']}", "", ""]).encode())
        slow.recv(100)
        for _ in range(30):
            worker.commit(events=[{"type": "note", "payload": "x" * 900_000}])
        quick.wait(33)
        time.sleep(5)  # two heartbeats and two looks
        received = b""
        while part := slow.recv(1 << 20):
            received += part
        assert len(received) < 29 * 900_000


def test_the_web_process_says_where_streams_are(house: "House") -> None:
    run = Worker(house).start("a")
    for path in (f"/runs/{run}/events/stream", "/events/stream"):
        answer = httpx_client(house).get(path)
        assert (answer.status_code, answer.json()["code"]) == (421, "misdirected")


def connections(application: str) -> int:
    url = os.environ["SMRITI_TEST_ADMIN_URL"]
    database = os.environ["DATABASE_URL"].rpartition("/")[2]
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(
            "select count(*) from pg_stat_activity where datname = %s and application_name like %s",
            [database, application],
        ).fetchone()
    assert row is not None
    return int(row[0])


def test_thousands_of_idle_readers_hold_no_connection_and_no_thread(house: "House") -> None:
    workers = [Worker(house) for _ in range(100)]
    for worker in workers:
        worker.start("a")
    before = connections("smriti%")
    with waits_process() as (url, pid):
        host, port = url.removeprefix("http://").split(":")
        process = next(iter(psutil.Process(pid).children(recursive=True)), psutil.Process(pid))
        opened: list[socket.socket] = []

        def open_streams(count: int) -> None:
            for number in range(count):
                path = f"runs/{workers[number % 100].run}/events/stream" if number % 2 else "events/stream"
                connection = socket.create_connection((host, int(port)), timeout=PATIENCE)
                head = f"GET /api/v1/{path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {house.keys['agent']}\r\n\r\n"
                connection.sendall(head.encode())
                opened.append(connection)
            for connection in opened[-count:]:
                assert b"200 OK" in connection.recv(200)

        open_streams(100)
        base, threads = process.memory_info().rss, process.num_threads()
        open_streams(1900)
        grown = (process.memory_info().rss - base) / 1900
        held = connections("smriti%") - before
        print(f"2000 readers: {grown / 1024:.1f} KiB each, {process.num_threads()} threads, {held} connections")
        assert process.num_threads() <= threads + 2
        assert held <= 2 * 8
        # All of them hear of one more event.
        workers[1].claim()
        until(lambda: all(heard(connection, workers[1].run) for connection in opened[:102:2]))
        for connection in opened:
            connection.close()


def heard(connection: socket.socket, run: str) -> bool:
    connection.setblocking(False)
    try:
        return run.encode() in connection.recv(1 << 16, socket.MSG_PEEK)
    except BlockingIOError:
        return False
