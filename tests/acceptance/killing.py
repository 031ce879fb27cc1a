"""The kill campaign: workers drive runs through the API while processes are killed at random moments.

Afterwards the books are compared: what the workers' journals say was acknowledged is one, the platform's event log the
other. `Campaign.check` fails with the first difference.
"""

import json
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from tests.acceptance import kill_worker
from tests.acceptance.kill_worker import Answer, Api, Json
from tests.acceptance.live import HERE, Live, Platform

OPEN_RUNS: Final = 12  # kept going while there are kills to come
WORKERS: Final = 4
# Whom a kill hits. PostgreSQL has a schedule of its own.
VICTIMS: Final = {"worker": 0.77, "web process": 0.15, "web server": 0.03, "lease sweep": 0.05}
FREEZES: Final = 0.1  # for each kill, a worker that is stopped instead, and wakes up late
# What a worker was doing when it was killed, by the last line of its journal.
MOMENTS: Final = {
    "claim": "in claim",
    "commit": "in commit",
    "heartbeat": "in heartbeat",
    "load": "reading a checkpoint",
    "idle": "waiting for work",
}
ALL_KEYS: Final = tuple(key for step in kill_worker.STEPS for key in kill_worker.keys_of(step))


@dataclass
class Process:
    name: str
    popen: subprocess.Popen[bytes]
    journal: Path


@dataclass
class Books:
    """What the campaign did and found."""

    seed: int
    kills: Counter[str] = field(default_factory=Counter)
    moments: Counter[str] = field(default_factory=Counter)
    facts: Counter[str] = field(default_factory=Counter)
    seconds: float = 0


class Campaign:
    def __init__(self, platform: Platform, folder: Path, seed: int) -> None:
        self.platform, self.folder = platform, folder
        self.dice = random.Random(seed)
        self.queue = f"kills-{seed}"
        self.api = Api(platform.port, platform.key, random.Random(0))
        self.books = Books(seed)
        self.workers: list[Process] = []
        self.runs: list[str] = []
        self._open: list[str] = []
        self._started = 0
        self._signals: list[tuple[float, signal.Signals, Process]] = []

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.api.close()

    def drive(self, *, kills: int, postgres_kills: int = 0) -> None:
        """Kill `kills` processes while work goes on, and let every run end."""
        schedule = ["PostgreSQL"] * postgres_kills + [""] * (kills - postgres_kills)
        self.dice.shuffle(schedule)
        with self.working():
            for planned in schedule:
                self.feed()
                time.sleep(self.dice.uniform(0.03, 0.35))
                self.kill(planned)
                if self.dice.random() < FREEZES:
                    self.freeze()
                self.send_signals()
            while self._signals:
                self.send_signals()
                time.sleep(0.1)

    @contextmanager
    def working(self, *options: str) -> Iterator[None]:
        """Workers at work; at the end every run has ended."""
        started = time.monotonic()
        self.workers = [self.start_worker(f"w{number}", *options) for number in range(WORKERS)]
        try:
            yield
            self.let_end()
        finally:
            for worker in [*self.workers, *(worker for _, _, worker in self._signals)]:
                worker.popen.kill()
                worker.popen.wait()
        self.books.seconds = time.monotonic() - started

    def start_worker(self, name: str, *extra: str) -> Process:
        self._started += 1
        journal = self.folder / f"{self._started:04}-{name}.journal"
        arguments = ["--port", str(self.platform.port), "--name", name, "--queue", self.queue]
        arguments += ["--journal", str(journal), "--seed", str(self.dice.randrange(2**31)), *extra]
        key = {"SMRITI_API_KEY": self.platform.key}
        popen = self.platform.start(str(HERE / "kill_worker.py"), *arguments, log="workers.log", environment=key)
        return Process(name, popen, journal)

    def create_run(self) -> str:
        body = json.dumps(kill_worker.run_request(self.queue)).encode()
        answer = self.api.call("POST", "/runs", body, key=f"{self.queue}/{len(self.runs)}")
        assert answer.status == 201, answer
        self.runs.append(answer.body["id"])
        return self.runs[-1]

    def feed(self) -> None:
        """Replace runs that ended by new ones."""
        self._open = [run for run in self._open if self.is_open(run)]
        while len(self._open) < OPEN_RUNS:
            self._open.append(self.create_run())

    def kill(self, planned: str) -> None:
        live = self.platform
        assert isinstance(live, Live)
        for worker in self.workers:
            assert worker.popen.poll() is None, f"{worker.name} ended by itself, see {worker.journal}"
        victim = planned or self.dice.choices(list(VICTIMS), list(VICTIMS.values()))[0]
        serving = live.web_processes()
        if victim == "web process" and len(serving) < 2:
            victim = "worker"  # one of the two is coming back; without any, nothing would be in flight
        if victim == "web process":
            self.dice.choice(serving).kill()
        elif victim in ("web server", "lease sweep"):
            service = live.web if victim == "web server" else live.sweeper
            assert service is not None
            assert service.process is not None
            service.process.kill()  # it is started again by the watcher
        elif victim == "PostgreSQL":
            live.postgres.kill()
            live.postgres.start()
        else:
            worker = self.replace_worker()
            worker.popen.kill()
            worker.popen.wait()
            lines = read(worker.journal)
            self.books.moments[MOMENTS.get(lines[-1]["kind"], "between calls") if lines else "starting"] += 1
        self.books.kills[victim] += 1

    def replace_worker(self) -> Process:
        """A worker that is now out of the team, and another in its place."""
        index = self.dice.randrange(len(self.workers))
        worker = self.workers[index]
        self.workers[index] = self.start_worker(worker.name)
        return worker

    def freeze(self) -> None:
        """Stop a worker until its lease is another's; what it writes when it wakes up must be refused."""
        worker, now = self.replace_worker(), time.monotonic()
        worker.popen.send_signal(signal.SIGSTOP)
        self._signals += [(now + 2.5, signal.SIGCONT, worker), (now + 4, signal.SIGKILL, worker)]
        self.books.facts["workers stopped for longer than their lease, then woken"] += 1

    def send_signals(self) -> None:
        due = [planned for planned in self._signals if planned[0] <= time.monotonic()]
        for planned in due:
            _, number, worker = planned
            worker.popen.send_signal(number)
            if number == signal.SIGKILL:
                worker.popen.wait()
            self._signals.remove(planned)

    def let_end(self, patience: float = 120) -> None:
        deadline = time.monotonic() + patience
        for run in self._open:
            while self.is_open(run):
                assert time.monotonic() < deadline, f"run {run} does not end"
                time.sleep(0.1)
        self._open = []

    def check(self, *, replays: int) -> None:
        """Hold the journals against the platform. `replays`: how many commits are sent again and compared."""
        lines = [line for journal in sorted(self.folder.glob("*.journal")) for line in read(journal)]
        violations = [line for line in lines if line["kind"] == "violation"]
        assert not violations, violations
        errors = [line for line in lines if line["kind"] == "server_error"]
        assert not errors or self.books.kills["PostgreSQL"], errors[:3]
        assert all(line["answer"].startswith("503 ") for line in errors), errors
        claims = Counter((line["run"], line["step"], line["epoch"]) for line in lines if line["kind"] == "claimed")
        assert max(claims.values()) == 1, f"two workers hold one epoch: {claims.most_common(1)}"

        sent: dict[tuple[str, str], list[str]] = {}
        acknowledged: dict[tuple[str, str], Json] = {}
        for line in lines:
            if line["kind"] == "commit":
                sent.setdefault((line["run"], line["key"]), []).append(line["body"])
            elif line["kind"] == "ack":
                earlier = acknowledged.setdefault((line["run"], line["key"]), line["answer"])
                assert earlier == line["answer"], f"acknowledged twice, differently: {earlier} {line}"
        by_run: dict[str, dict[str, Json]] = {run: {} for run in self.runs}
        for (run, key), answer in acknowledged.items():
            by_run[run][key] = answer
        events = sum(self.check_run(run, answers) for run, answers in by_run.items())
        replayed = self.check_replays(sent, acknowledged, replays)

        kinds = Counter(line["kind"] for line in lines)
        self.books.facts |= {
            "runs, every one completed and verified": len(self.runs),
            "events, without a gap": events,
            "commits applied, each once": len(self.runs) * len(ALL_KEYS),
            "commits acknowledged to a worker, none lost": len(acknowledged),
            "commits sent again at the end, each with its first answer": replayed,
            "steps claimed": kinds["claimed"],
            "writes of stale workers, refused": kinds["refused"],
            "commits that a successor found done by their idempotency key": kinds["found_done"],
            "answers 503, while PostgreSQL was down": len(errors),
        }

    def check_run(self, run: str, acknowledged: dict[str, Json]) -> int:
        """Compare one run's log, state and end with what was acknowledged; the number of its events."""
        events = list(self.events(run))
        assert [event["seq"] for event in events] == list(range(1, len(events) + 1)), f"{run}: a gap in the sequence"
        ended = self.run(run)
        assert (ended["status"], ended["last_seq"]) == ("completed", len(events)), ended
        verified = self.api.call("GET", f"/runs/{run}/verify").body
        assert verified["ok"], f"{run}: {verified}"

        holders: dict[str, str | None] = {}
        for event in events:
            if event["type"] == "step_leased":
                holders[event["step"]] = event["lease"]
            elif event["type"] in ("lease_lost", "step_succeeded"):
                assert holders.pop(event["step"]) == event["lease"], f"{run}: {event}"
            elif event["type"] in ("unit_done", "checkpoint_created"):
                assert holders[event["step"]] == event["lease"], f"{run}: written by a stale worker: {event}"

        found: dict[str, list[tuple[int, int]]] = {}
        for event in events:
            if event["type"] == "unit_done":
                found.setdefault(event["payload"]["key"], []).append((event["seq"], event["payload"]["part"]))
        assert sorted(found) == sorted(ALL_KEYS), f"{run}: not every unit was done"
        for key, places in found.items():
            first = places[0][0]
            assert places == [(first + part, part) for part in range(kill_worker.parts(key))], f"{run} {key}: {places}"
        for key, answer in acknowledged.items():
            assert found[key][0][0] == answer["first_seq"], f"{run} {key}: at {found[key]}, not as in {answer}"
            assert events[answer["last_seq"] - 1]["digest"] == answer["digest"], f"{run} {key}: another digest"
        log = self.checkpoint(run)["state"]["log"]
        assert sorted(log) == sorted(filter(kill_worker.changes_state, ALL_KEYS)), f"{run}: a change lost or repeated"
        return len(events)

    def check_replays(
        self, sent: dict[tuple[str, str], list[str]], acknowledged: dict[tuple[str, str], Json], replays: int
    ) -> int:
        """Send bodies again: the one that was applied gets its first answer, others of its key are refused."""
        before = {run: self.run(run)["last_seq"] for run in self.runs}
        sample = self.dice.sample(sorted(sent), min(replays, len(sent)))
        for run, key in sample:
            answers = [self.commit(run, key, body) for body in dict.fromkeys(sent[run, key])]
            (applied,) = [answer.body for answer in answers if answer.status == 200]
            assert applied == acknowledged.get((run, key), applied), f"{run} {key}: another answer than before"
            answers.append(self.commit(run, key, sent[run, key][0].replace(kill_worker.FILLER, "", 1)))
            others = [answer.code for answer in answers if answer.status != 200]
            assert set(others) == {"idempotency_key_reused"}, f"{run} {key}: {others}"
        assert before == {run: self.run(run)["last_seq"] for run in self.runs}, "a replay changed something"
        return len(sample)

    def commit(self, run: str, key: str, body: str) -> Answer:
        return self.api.call("POST", f"/runs/{run}/commit", body.encode(), key=f"{run}/{key}")

    def claim(self) -> Json:
        claim = {"worker": "harness", "queues": [self.queue], "lease_seconds": 60}
        return self.api.call("POST", "/work/claim", json.dumps(claim).encode()).body

    def checkpoint(self, run: str) -> Json:
        return self.api.call("GET", f"/runs/{run}/checkpoints/latest").body

    def run(self, run: str) -> Json:
        found: Json = self.api.call("GET", f"/runs/{run}").body["run"]
        return found

    def is_open(self, run: str) -> bool:
        return self.run(run)["status"] in ("pending", "running")

    def events(self, run: str) -> Iterator[Json]:
        after: int | None = 0
        while after is not None:
            page = self.api.call("GET", f"/runs/{run}/events?after={after}&limit=500").body
            yield from page["items"]
            after = page["next_after"]


def read(journal: Path) -> list[Json]:
    """The lines of a journal; a kill may have cut the last one."""
    lines = journal.read_text(encoding="utf-8", errors="replace").split("\n") if journal.exists() else [""]
    return [json.loads(line) for line in lines[:-1]]
