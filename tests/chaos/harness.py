"""Chaos: a seeded attack on a whole platform while a fleet of agents pays invoices, and the verdict from outside.

The plan is drawn from the seed: which faults, in which order, at which part of the work; where a worker dies within its work
is decided by the points that the agents reach (tests/chaos/agent.py). What happened is read from the bank's own files, the
agents' journals and the platform's API, and compared in tests/chaos/verdict.py.
"""

import bisect
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx
import psycopg
import redis
from psutil import NoSuchProcess

from config.embedded.place import remembered_port
from tests.chaos import bank as the_bank
from tests.chaos import tools
from tests.chaos.agent import POINTS
from tests.chaos.defects import Defect
from tests.chaos.stage import COMPILER, HOUR, Stage
from tests.chaos.workload import Workload

Json = dict[str, Any]

LEASE_SECONDS: Final = 3.0
FLEETS: Final = {"agents-a": 7, "agents-b": 7}  # two of them, with a clock each
RECEIPTS: Final = 0.15  # steps that keep an artifact
OPEN_RUNS: Final = 20
ENDED: Final = ("completed", "failed", "cancelled")
STUCK: Final = 60  # seconds without any progress are a finding

# How often, for each 1,000 effects; each at least once.
POINT_FAULTS: Final[dict[str, tuple[str, str, float]]] = {
    **{f"agent killed {point}": (point, "kill", 14) for point in POINTS},
    "agent stopped past its lease after_claim": ("after_claim", "stop", 3),
    "agent stopped past its lease before_reserve": ("before_reserve", "stop", 2),
    "agent stopped past its lease before_call": ("before_call", "stop", 10),
    "agent stopped past its lease after_call": ("after_call", "stop", 7),
    "agent stopped past its lease before_outcome": ("before_outcome", "stop", 4),
}
FAULTS: Final = {
    "agent killed anywhere": 15,
    "web process killed": 14,
    "web server killed": 2,
    "waits process killed": 3,
    "worker killed": 2,
    "scheduler killed": 2,
    "PostgreSQL killed": 6,
    "PgBouncer killed": 2,
    "database connections terminated": 8,
    "database connections cut": 8,
    "database answers swallowed": 20,
    "broker emptied": 4,
    "broker restarted empty": 2,
    "broker messages duplicated": 6,
    "bank killed": 5,
    "clock stepped": 12,
    "checkpoint corrupted": 8,
    "artifact corrupted": 2,
}
# Every message of the scheduler, three times.
AGAIN: Final = """
from config.celery import app
for entry in app.conf.beat_schedule.values():
    for _ in range(3):
        app.send_task(entry["task"], kwargs={}, retry=False)
"""


class Unavailable(Exception):
    """The platform cannot answer now, and says so with a 503, or cannot be reached."""


@dataclass
class Books:
    """What the chaos did and found."""

    seed: int
    effects: int
    faults: Counter[str] = field(default_factory=Counter)
    facts: dict[str, int] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    seconds: float = 0


class Chaos:
    def __init__(self, folder: Path, *, seed: int, effects: int, defect: Defect | None = None) -> None:
        self.folder, self.dice, self.defect = folder, random.Random(seed), defect
        self.books = Books(seed, effects)
        self.workload = Workload(random.Random(f"{seed}/work"), effects)
        self.stage = Stage(folder / "stage")
        self.points, self.journals, self.bank_folder = (folder / name for name in ("points", "journals", "bank"))
        self.runs: dict[str, Json] = {}  # id: the request
        self.open: set[str] = set()
        self.damage: dict[tuple[str, int], bytes] = {}  # run and version: the stored bytes as they were
        self.spoilt: list[Path] = []  # stored objects with a wrong byte
        self.executed = the_bank.Tail(self.bank_folder / "executed.jsonl")
        self.bank_url = ""
        self.http = httpx.Client(trust_env=False, timeout=20)
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._armed = 0
        self._taken: set[str] = set()

    # ---- the whole of it

    def run(self) -> Books:
        from tests.chaos.verdict import Verdict

        started = time.monotonic()
        self.folder.mkdir(parents=True)
        for name in ("stage", "journals", "points/taken", *(f"points/{point}" for point in POINTS)):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        with self.stage, self.http:
            self.prepare()
            self.say(f"{time.monotonic() - started:.0f} s: the platform is up")
            self.drive()
            self.say(f"{time.monotonic() - started:.0f} s: the work is done")
            Verdict(self).give()
        self.books.seconds = time.monotonic() - started
        return self.books

    def say(self, text: str) -> None:
        print(text, flush=True)

    def prepare(self) -> None:
        stage, seed = self.stage, str(self.books.seed)
        if self.defect is not None:
            self.defect.apply(stage)
        port = remembered_port(self.folder / "bank.port")
        self.bank_url = f"http://127.0.0.1:{port}"
        bank = ["--port", str(port), "--folder", str(self.bank_folder), "--seed", seed]
        stage.start_service("bank", ["tests.chaos.bank", *bank, "--settle", str(tools.BANK_SETTLE_SECONDS)])
        for name, definition in tools.definitions().items():
            changed = {} if self.defect is None else self.defect.tools.get(name, {})
            self.call("PUT", f"/tools/{name}/versions/1", {**definition, **changed})
        where = ["--base-url", stage.base_url, "--bank", self.bank_url, "--seed", seed, "--folder", str(self.journals)]
        operator = {"SMRITI_API_KEY": stage.operator_key}
        stage.start_service("desk", ["tests.chaos.desk", *where], environment=operator)
        agent = {"SMRITI_API_KEY": stage.key, "CHAOS_POINTS": str(self.points)}
        if self.defect is not None:
            agent["CHAOS_DEFECT"] = self.defect.agent
        for name, count in FLEETS.items():
            fleet = ["--name", name, "--workers", str(count), "--waits-url", stage.waits_url]
            fleet += ["--lease-seconds", str(LEASE_SECONDS), "--execute-seconds", str(tools.EXECUTE_SECONDS)]
            fleet += ["--receipts", str(RECEIPTS)]
            stage.start_service(name, ["tests.chaos.agent", *where, *fleet], environment=agent)

    def drive(self) -> None:
        """Work under faults until all of both are through, then work alone until all of it has ended."""
        plan = self.plan()
        progress, moved, told = (0, 0), time.monotonic(), 0
        while self.workload.left or self.open or plan:
            self.feed()
            self.tend()
            done = len(self.executed.rows())
            # The last payments may be refused or skipped for good; what is planned still happens, while there is work.
            while plan and (plan[0][0] * self.workload.size <= done or not self.workload.left):
                at, fault = plan.pop(0)
                if not self.inject(fault) and at < 1:  # there was nothing to do it to
                    bisect.insort(plan, (at + 0.03, fault))
                if not self.workload.left:
                    break
            if done // 500 > told:
                told = done // 500
                self.say(
                    f"    {done} payments, {sum(self.books.faults.values())} faults, {len(self.open)} runs at work"
                )
            if (done, len(self.open)) != progress:
                progress, moved = (done, len(self.open)), time.monotonic()
            elif time.monotonic() - moved > STUCK:
                self.books.findings.append(f"nothing moves any more: {self.stalled()}")
                break
            time.sleep(0.2)
        for _, action in self._later:
            action()
        self._later = []
        self.settle()

    def plan(self) -> list[tuple[float, str]]:
        """Every fault with the part of the work after which it happens."""
        rates = FAULTS | {name: rate for name, (_, _, rate) in POINT_FAULTS.items()}
        if not self.stage.pooled:
            del rates["PgBouncer killed"]
        if COMPILER is None:
            del rates["clock stepped"]
        faults: list[str] = []
        for name, rate in rates.items():
            exact = rate * self.books.effects / 1000
            faults += [name] * max(1, int(exact) + (self.dice.random() < exact % 1))
        return sorted((self.dice.uniform(0.02, 0.95), name) for name in faults)

    # ---- the work

    def feed(self) -> None:
        """Replace runs that ended by new ones."""
        with suppress(psycopg.OperationalError, Unavailable):
            if self.open:
                over = "select id::text from runs_run where id = any(%s::uuid[]) and status = any(%s)"
                with self.stage.superuser() as connection:
                    self.open -= {row[0] for row in connection.execute(over, [list(self.open), list(ENDED)])}
            while self.workload.left and len(self.open) < OPEN_RUNS:
                run = self.ask("POST", "/runs", self.workload.peek(), key=f"run-{len(self.runs)}", agent=True)["id"]
                self.runs[run] = self.workload.pop()
                self.open.add(run)

    def settle(self) -> None:
        """Give the sweeps, the probes and the desk the time to close what the last runs left."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if not any(self.effects(status) for status in ("in_flight", "unknown", "reserved", "compensating")):
                return
            time.sleep(0.3)

    def stalled(self) -> str:
        """What the open runs wait for, as the database has it."""
        queries = (
            "select kind, count(*) from runs_due(1000) group by 1",
            "select run_id, name, status, wait_kind, due_at, attempts, lease_id, clock_timestamp() from runs_step"
            " where run_id = any(%s::uuid[]) and status in ('waiting', 'leased', 'runnable', 'dead_letter')",
            "select pid, state, wait_event, clock_timestamp() - xact_start, query from pg_stat_activity"
            " where usename = 'smriti_app' and state <> 'idle'",
        )
        with self.stage.superuser() as connection:
            rows = [
                str(row)
                for query in queries
                for row in connection.execute(query, [list(self.open)] if "%s" in query else None).fetchall()
            ]
        return "\n    ".join(["", *rows])

    def effects(self, status: str = "") -> list[Json]:
        return self.pages("/effects?limit=200" + (f"&status={status}" if status else ""))

    # ---- the platform, as its operator asks it

    def ask(self, method: str, path: str, body: Any = None, *, key: str = "", agent: bool = False) -> Any:
        """One call. Raises Unavailable; every other refusal is a mistake."""
        headers = {"Authorization": f"Bearer {self.stage.key if agent else self.stage.operator_key}"}
        if key:
            headers["Idempotency-Key"] = key
        try:
            answer = self.http.request(method, f"{self.stage.base_url}/api/v1{path}", json=body, headers=headers)
        except httpx.TransportError as error:
            raise Unavailable from error
        if answer.status_code == 503:
            raise Unavailable
        assert answer.status_code < 300, f"{method} {path}: {answer.status_code} {answer.text[:500]}"
        return answer.json() if answer.content else None

    def newest_checkpoint(self, run: str) -> Json:
        """The newest that opens; version 0 when none does, and then the refusal names what was skipped."""
        while True:
            headers = {"Authorization": f"Bearer {self.stage.operator_key}"}
            url = f"{self.stage.base_url}/api/v1/runs/{run}/checkpoints/latest"
            with suppress(httpx.TransportError):
                answer = self.http.get(url, headers=headers)
                if answer.status_code in (200, 404):
                    return {"version": 0, "skipped": [], **answer.json()}
                assert answer.status_code == 503, answer.text
            time.sleep(0.2)

    def call(self, method: str, path: str, body: Any = None, *, key: str = "") -> Any:
        """As `ask`, until there is an answer."""
        deadline = time.monotonic() + 60
        while True:
            try:
                return self.ask(method, path, body, key=key)
            except Unavailable:
                assert time.monotonic() < deadline, f"{method} {path} is not answered"
                time.sleep(0.2)

    def pages(self, path: str) -> list[Json]:
        found: list[Json] = []
        cursor = ""
        while True:
            page = self.call("GET", path + (f"&cursor={cursor}" if cursor else ""))
            found += page["items"]
            cursor = page["next_cursor"]
            if not cursor:
                return found

    # ---- faults

    def inject(self, fault: str) -> bool:
        """Do a fault, if it can be done now; one at a point is counted when a worker took it."""
        if fault in POINT_FAULTS:
            point, action, _ = POINT_FAULTS[fault]
            self._armed += 1
            (self.points / point / f"{self._armed}.{action}").touch()
            return True
        done = ACTIONS[fault](self)
        self.books.faults[fault] += done
        return done

    def tend(self) -> None:
        """Count what was taken at the points, wake who stopped there when the lease is long another's, do what is due."""
        for name in os.listdir(self.points / "taken"):
            if name in self._taken:
                continue
            self._taken.add(name)
            point, _, action, pid = name.split(".")
            if action == "kill":
                self.books.faults[f"agent killed {point}"] += 1
            else:
                self.books.faults[f"agent stopped past its lease {point}"] += 1
                self.later(LEASE_SECONDS + self.dice.uniform(1.5, 8), partial(wake, int(pid)))
        now = time.monotonic()
        due = [action for at, action in self._later if at <= now]
        self._later = [(at, action) for at, action in self._later if at > now]
        for act in due:
            act()

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        self._later.append((time.monotonic() + seconds, action))

    def kill_one(self, *services: str, spare: int = 0) -> bool:
        found = self.stage.processes(self.dice.choice(services))
        if len(found) <= spare:
            return False
        with suppress(NoSuchProcess):
            self.dice.choice(found).kill()
        return True

    def kill_service(self, name: str) -> bool:
        """It is started again by the stage."""
        process = self.stage.services[name].process
        assert process is not None
        process.kill()
        return True

    def kill_postgres(self) -> bool:
        self.stage.postgres.kill()
        self.stage.postgres.start()
        return True

    def kill_pooler(self) -> bool:
        assert self.stage.pooler is not None
        self.stage.pooler.kill()
        self.stage.pooler.start()
        return True

    def terminate_connections(self) -> bool:
        victims = "select pid from pg_stat_activity where usename = 'smriti_app' order by random() limit %s"
        with suppress(psycopg.OperationalError), self.stage.superuser() as connection:
            connection.execute(f"select pg_terminate_backend(pid) from ({victims}) x", [self.dice.choice([1, 3, 100])])
            return True
        return False

    def signal_proxy(self, number: signal.Signals) -> bool:
        process = self.stage.services["proxy"].process
        assert process is not None
        process.send_signal(number)
        return True

    def broker(self) -> "redis.Redis":
        return redis.Redis.from_url(self.stage.valkey.url, socket_timeout=5)

    def empty_broker(self) -> bool:
        with suppress(redis.RedisError), self.broker() as broker:
            return bool(broker.flushall())
        return False

    def restart_broker_empty(self) -> bool:
        valkey = self.stage.valkey
        valkey.kill()
        for file in valkey.data.rglob("*"):
            if file.is_file():
                file.unlink()
        valkey.start()
        return True

    def duplicate_messages(self) -> bool:
        """Hints that nobody sent, and every message of the scheduler three times."""
        with suppress(redis.RedisError), self.broker() as broker:
            for _ in range(20):
                broker.publish("smriti:hint", f"work:{self.stage.tenant}")
        with suppress(AssertionError):  # the broker may be away
            self.stage.python("-c", AGAIN)
            return True
        return False

    def kill_bank(self) -> bool:
        self.stage.stop_service("bank")
        self.later(self.dice.uniform(0, 1.5), partial(self.stage.resume_service, "bank"))
        return True

    def step_clock(self) -> bool:
        clock = self.stage.clocks[self.dice.choice(["web", "web", "waits", "worker", "scheduler", *FLEETS, *FLEETS])]
        clock.step(self.dice.choice([-HOUR, HOUR]))
        self.later(self.dice.uniform(1, 8), partial(clock.step, 0))
        return True

    def corrupt_checkpoint(self) -> bool:
        """One byte of the newest checkpoint of a run at work, whose later steps will need it."""
        newest = """select run_id::text, version, body from runs_checkpoint c
            where run_id = any(%s::uuid[]) and not exists (
                select from runs_checkpoint n where n.tenant_id = c.tenant_id and n.run_id = c.run_id and n.version > c.version)"""
        damage = "update runs_checkpoint set body = %s where run_id = %s and version = %s"
        with suppress(psycopg.OperationalError), self.stage.superuser() as connection:
            if found := connection.execute(newest, [list(self.open)]).fetchall():
                run, version, body = self.dice.choice(found)
                bad = bytearray(body)
                bad[self.dice.randrange(len(bad))] ^= 1
                connection.execute(damage, [bytes(bad), run, version])
                self.damage.setdefault((run, version), bytes(body))
                return True
        return False

    def corrupt_artifact(self) -> bool:
        """One byte of a stored object, once it is a day like any other for it: uploaded, and maybe already read."""
        stored = [
            path
            for path in sorted((self.stage.folder / "artifacts").rglob("*"))
            if path.is_file()
            and path.stat().st_size
            and path not in self.spoilt
            and path.stat().st_mtime < time.time() - 1
        ]
        if not stored:
            return False
        path = self.dice.choice(stored)
        with path.open("r+b") as file:
            at = self.dice.randrange(path.stat().st_size)
            file.seek(at)
            (byte,) = file.read(1)
            file.seek(at)
            file.write(bytes([byte ^ 1]))
        self.spoilt.append(path)
        return True


ACTIONS: Final[dict[str, Callable[[Chaos], bool]]] = {
    "agent killed anywhere": lambda chaos: chaos.kill_one(*FLEETS),
    "web process killed": lambda chaos: chaos.kill_one("web", spare=1),
    "web server killed": lambda chaos: chaos.kill_service("web"),
    "waits process killed": lambda chaos: chaos.kill_service("waits"),
    "worker killed": lambda chaos: chaos.kill_service("worker"),
    "scheduler killed": lambda chaos: chaos.kill_service("scheduler"),
    "PostgreSQL killed": Chaos.kill_postgres,
    "PgBouncer killed": Chaos.kill_pooler,
    "database connections terminated": Chaos.terminate_connections,
    "database connections cut": lambda chaos: chaos.signal_proxy(signal.SIGUSR1),
    "database answers swallowed": lambda chaos: chaos.signal_proxy(signal.SIGUSR2),
    "broker emptied": Chaos.empty_broker,
    "broker restarted empty": Chaos.restart_broker_empty,
    "broker messages duplicated": Chaos.duplicate_messages,
    "bank killed": Chaos.kill_bank,
    "clock stepped": Chaos.step_clock,
    "checkpoint corrupted": Chaos.corrupt_checkpoint,
    "artifact corrupted": Chaos.corrupt_artifact,
}


def wake(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
