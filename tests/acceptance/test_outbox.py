"""Whatever is killed around a delivery: nothing that was committed is missing at the receiver, nothing that was rolled back
arrives, duplicates carry equal ids, and each order is kept.
"""

import json
import random
import shutil
import signal
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest

from config.embedded.place import remembered_port
from config.embedded.postgres import PostgresServer
from config.embedded.provision import provision
from config.embedded.valkey import ValkeyServer
from kernel.roles import APP, OWNER, ROLES
from tests.acceptance.live import HERE, ROOT, Platform, wait_for

pytestmark = [pytest.mark.proof, pytest.mark.timeout(900), pytest.mark.xdist_group("live")]

ACTOR = str(HERE / "outbox_actor.py")


class Receiver(ThreadingHTTPServer):
    """Writes every request down; then answers, answers 503, loses the answer, or hangs until the sender gives up."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, seed: int, *, trouble: float) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.dice, self.trouble, self.lock = random.Random(seed), trouble, threading.Lock()
        self.arrived: list[tuple[str, dict[str, Any]]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hook"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A sender that was killed."""


class Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            trouble = self.server.dice.random() < self.server.trouble
            kind = self.server.dice.choice(("refuse", "lose", "lose", "hang")) if trouble else "answer"
            if kind != "refuse":
                self.server.arrived.append((self.headers["Idempotency-Key"], content))
        if kind == "hang":
            time.sleep(1.5)
        if kind in ("hang", "lose"):
            self.close_connection = True
            return
        self.send_response(503 if kind == "refuse" else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Quiet."""


class Post(Platform):
    """PostgreSQL, Valkey and a receiver. What sends is started by the tests."""

    def __init__(self, folder: Path, *, trouble: float) -> None:
        super().__init__(folder)
        self.postgres = PostgresServer(folder / "postgres")
        self.valkey = ValkeyServer(folder / "valkey")
        self.receiver = Receiver(11, trouble=trouble)
        self.listening = threading.Thread(target=self.receiver.serve_forever, kwargs={"poll_interval": 0.05})
        self.processes: list[subprocess.Popen[bytes]] = []

    def set_up(self) -> None:
        self.postgres.start()
        self.valkey.start()
        passwords = {role.name: "only-in-tests" for role in ROLES if role.login}
        main = provision(self.postgres.admin_url, database="smriti", passwords=passwords)
        vault = provision(self.postgres.admin_url, database="smriti_vault", passwords=passwords)
        self.port = remembered_port(self.folder / "web.port")
        self.environment = {
            "PATH": f"{Path(shutil.which('env') or '/usr/bin/env').parent}",
            "PYTHONPATH": f"{ROOT}:{ROOT / 'platform'}",
            "DJANGO_SETTINGS_MODULE": "config.settings",
            "SECRET_KEY": "x" * 50,
            "MASTER_KEY": "b25seS1mb3ItY2hlY2tzLTAxMjM0NTY3ODlhYmNkZWY=",
            "DATABASE_URL": main[APP],
            "VAULT_DATABASE_URL": vault[APP],
            "BROKER_URL": self.valkey.url,
            "DATA_DIR": str(self.folder),
            "LOG_LEVEL": "WARNING",
            "OUTBOX_PORTS": str(self.receiver.server_port),
            "OUTBOX_ALLOW_PRIVATE": "127.0.0.1/32",
            "OUTBOX_SEND_SECONDS": "1",
            "OUTBOX_MAX_ATTEMPTS": "1000",
        }
        owner = {"OWNER_DATABASE_URL": main[OWNER], "VAULT_OWNER_DATABASE_URL": vault[OWNER]}
        for alias in ("owner", "vault_owner"):
            self.python("manage.py", "migrate", "--database", alias, "--verbosity", "0", environment=owner)
        self.listening.start()

    def tear_down(self) -> None:
        for process in self.processes:
            end(process)
        if self.listening.is_alive():
            self.receiver.shutdown()
        self.receiver.server_close()
        self.valkey.destroy()
        self.postgres.destroy()

    def run(self, *arguments: str, log: str) -> subprocess.Popen[bytes]:
        process = self.start(*arguments, log=log)
        self.processes.append(process)
        return process

    def produce(self, *options: str) -> "Production":
        log = f"producer-{len(self.processes)}.log"
        return Production(self.run(ACTOR, "produce", "--url", self.receiver.url, *options, log=log), self.folder / log)

    def counts(self, tenants: set[str]) -> dict[str, int]:
        found: dict[str, int] = json.loads(self.python(ACTOR, "count", *sorted(tenants)))
        return {status: number for status, number in found.items() if number}


class Production:
    """What a producer committed, as it says itself."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process, self.log = process, log

    def committed(self) -> list[tuple[str, str, int, str]]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [tuple(json.loads(line)) for line in lines if line.startswith("[")]


def end(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to a process and its children."""
    if process.poll() is None:
        for child in psutil.Process(process.pid).children(recursive=True):
            child.kill()
        process.kill()
    process.wait()


@pytest.fixture
def troubled(tmp_path: Path) -> Iterator[Post]:
    with Post(tmp_path, trouble=0.25) as post:
        yield post


@pytest.fixture
def calm(tmp_path: Path) -> Iterator[Post]:
    with Post(tmp_path, trouble=0) as post:
        yield post


def settle(post: Post, production: Production, expected: int, *, unnoted: int = 0) -> None:
    """Wait until the receiver has everything and the outbox knows it; then hold the books against each other.

    `unnoted`: messages whose commit their producer did not live to note.
    """
    wait_for(lambda: production.process.poll() is not None, patience=240)
    committed = production.committed()
    assert len(committed) == expected, production.log.read_text()[-2000:]
    tenants = {tenant for tenant, *_ in committed}
    wait_for(lambda: post.counts(tenants) == {"sent": expected + unnoted}, patience=240)

    arrived = list(post.receiver.arrived)
    assert not [content for _, content in arrived if content["never"]], "a message of a rolled back transaction"
    known = {message_id: (order, number) for _, order, number, message_id in committed}
    first: defaultdict[str, list[int]] = defaultdict(list)
    seen: set[str] = set()
    for message_id, content in arrived:
        if message_id not in known:
            unnoted -= message_id not in seen
        else:
            assert known[message_id] == (content["order"], content["number"]), "an id with another content"
        if message_id not in seen:
            seen.add(message_id)
            first[content["order"]].append(content["number"])
    assert set(known) <= seen, "a committed message did not arrive"
    assert unnoted == 0, "a message that nobody committed"
    for order, numbers in first.items():
        assert numbers == sorted(numbers), f"{order} arrived out of order"


def test_dispatchers_are_killed_around_their_requests(troubled: Post, proof: bool) -> None:
    orders, messages = (20, 50) if proof else (4, 8)
    production = troubled.produce("--orders", str(orders), "--messages", str(messages), "--pause", "0.005")
    dice, kills, ended = random.Random(5), 0, 0
    team: list[subprocess.Popen[bytes]] = []

    def hire() -> None:
        seed = str(dice.randrange(2**31))
        arguments = ("dispatch", "--seed", seed, "--die-before", "0.03", "--die-after", "0.03")
        team.append(troubled.run(ACTOR, *arguments, log="dispatchers.log"))

    stop = threading.Event()

    def manage() -> None:
        nonlocal kills, ended
        next_kill = 5
        while not stop.wait(dice.uniform(0.1, 0.6)):
            for process in list(team):
                if process.poll() is not None:
                    assert process.returncode == -signal.SIGKILL, (troubled.folder / "dispatchers.log").read_text()
                    ended += 1
                    team.remove(process)
            while len(team) < 2:
                hire()
            if len(troubled.receiver.arrived) >= next_kill:  # at any moment, but not before anybody has done something
                victim = team.pop(0)
                victim.kill()
                victim.wait()
                kills, next_kill = kills + 1, len(troubled.receiver.arrived) + dice.randint(5, 20)

    manager = threading.Thread(target=manage)
    manager.start()
    try:
        settle(troubled, production, 2 * orders * messages)
    finally:
        stop.set()
        manager.join()
    assert kills
    assert ended, "no dispatcher died at a named point"
    duplicates = len(troubled.receiver.arrived) - 2 * orders * messages
    assert duplicates > 0, "nothing was sent twice: the killing came at no bad moment"


def test_postgresql_is_killed_while_messages_are_sent(troubled: Post, proof: bool) -> None:
    messages = 60 if proof else 20
    production = troubled.produce("--orders", "3", "--messages", str(messages), "--pause", "0.01")
    for seed in (1, 2):
        troubled.run(ACTOR, "dispatch", "--seed", str(seed), log="dispatchers.log")
    time.sleep(2)
    wait_for(lambda: bool(production.committed()))
    # The producer does not repeat what failed; it is only stopped while the server is away.
    production.process.send_signal(signal.SIGSTOP)
    wait_for(lambda: bool(troubled.receiver.arrived))
    for _ in range(3 if proof else 1):
        troubled.postgres.kill()
        troubled.postgres.start()
        time.sleep(0.5)
    production.process.kill()
    production.process.wait()
    committed = production.committed()
    stored = sum(troubled.counts({tenant for tenant, *_ in committed}).values())
    assert len(committed) <= stored <= len(committed) + 1
    settle(troubled, production, len(committed), unnoted=stored - len(committed))


def test_the_broker_and_all_it_held_are_lost_for_good(calm: Post, proof: bool) -> None:
    worker = "-m celery -A config worker --concurrency 2 --without-gossip --without-mingle --loglevel ERROR"
    services = {"worker": worker.split(), "scheduler": ["-m", "config.scheduler"]}
    ended = threading.Event()

    def supervise() -> None:
        """As the platform does: a Celery worker ends when its broker goes away."""
        running: dict[str, subprocess.Popen[bytes]] = {}
        while not ended.wait(0.2):
            for name, arguments in services.items():
                if name not in running or running[name].poll() is not None:
                    running[name] = calm.run(*arguments, log=f"{name}.log")

    supervisor = threading.Thread(target=supervise)
    supervisor.start()
    try:
        lose_the_broker(calm, messages=100 if proof else 40)
    finally:
        ended.set()
        supervisor.join()


def lose_the_broker(calm: Post, *, messages: int) -> None:
    orders = 5
    production = calm.produce("--orders", str(orders), "--messages", str(messages), "--pause", "0.02")
    wait_for(lambda: len(calm.receiver.arrived) > 20, patience=60)
    calm.valkey.kill()
    shutil.rmtree(calm.valkey.data)  # whatever tasks and hints it held
    before = len(production.committed())
    wait_for(lambda: len(production.committed()) > before + 20)  # callers go on without it
    calm.valkey.start()
    settle(calm, production, 2 * orders * messages)
