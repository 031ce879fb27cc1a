"""A sample agent: reconciles 842 invoices with a bank statement, and can be killed at any moment.

It knows Smriti by HTTP only. Invariant: whatever was done is in the run's state before the next chunk begins, in the
same commit as its events; so a worker that takes over reads the latest checkpoint and goes on behind it, and nothing is
counted twice. Copy it as a start for an agent of your own.

    python -m config.demo.agent --base-url http://127.0.0.1:8000 --key smr_... [--worker NAME] [--run RUN_ID]
    python -m config.demo.agent --base-url http://127.0.0.1:8000 --key smr_... --kill-demo
"""

import argparse
import hashlib
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self

import httpx

from config.demo import reconcile
from config.demo.reconcile import Books, CannotReconcile, Json, Totals

QUEUE: Final = "reconcile"
DATA: Final = Path(__file__).parent / "data"
FILES: Final = ("invoices.csv", "bank_statement.csv")
PLAN: Final[Json] = {
    "workflow": "reconcile-invoices",
    "workflow_version": "7",
    "agent_version": "3.2.0",
    "labels": {"period": "2026-11"},
    "input": {"folder": "data", "period": "2026-11"},
    "steps": [
        {"name": "fetch_invoices", "queue": QUEUE},
        {"name": "match_payments", "queue": QUEUE, "depends_on": ["fetch_invoices"]},
        {"name": "create_report", "queue": QUEUE, "depends_on": ["match_payments"]},
    ],
}
PATIENCE: Final = 60  # seconds for which a call is tried again
OPEN: Final = ("pending", "running", "waiting")
# The answers that say: this step is another worker's now, or nobody's. The last one: another worker did this very piece.
LOST: Final = {"stale_epoch", "lease_expired", "lease_lost", "run_finished", "idempotency_key_reused"}


class Refused(Exception):
    """An answer that trying again cannot change. `code` is the problem's stable code."""

    def __init__(self, status: int, problem: Json) -> None:
        self.code = str(problem.get("code", status))
        super().__init__(f"{status} {self.code}: {problem.get('detail', '')}")


class Client:
    """Calls the API. A lost answer, an overloaded or a restarting server is asked again with the same bytes and key."""

    def __init__(self, base_url: str, key: str) -> None:
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        self._http = httpx.Client(base_url=f"{base_url.rstrip('/')}/api/v1", headers=headers, timeout=20)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        idempotency_key: str | None = None,
        patience: float = PATIENCE,
    ) -> Json:
        """The answer, or {} when it is empty. Raises Refused, and when there is none for `patience` seconds, its cause."""
        content = None if body is None else json.dumps(body, ensure_ascii=False).encode()
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
        deadline, delay = time.monotonic() + patience, 0.05
        while True:
            try:
                answer = self._http.request(method, path, content=content, headers=headers)
                if answer.is_success:
                    return answer.json() if answer.content else {}
                problem = answer.json() if "json" in answer.headers.get("Content-Type", "") else {}
                failure: Exception = Refused(answer.status_code, problem)
                if answer.status_code < 500 and answer.status_code != 429:
                    raise failure
                delay = max(delay, float(answer.headers.get("Retry-After", 0)))
            except httpx.TransportError as error:
                failure = error
            if time.monotonic() + delay > deadline:
                raise failure
            time.sleep(delay * random.uniform(0.5, 1))  # noqa: S311 - jitter, so that workers do not come back together
            delay = min(2, delay * 2)


class Heartbeat(threading.Thread):
    """Extends a lease from a thread of its own while the step's work goes on; `lost` is set when that ends."""

    def __init__(self, client: Client, claim: Json, lease_seconds: float) -> None:
        super().__init__(daemon=True)
        self._client, self._seconds = client, lease_seconds
        self._path, self._epoch = f"/work/{claim['lease']}/heartbeat", claim["epoch"]
        self._done = threading.Event()
        self.lost = threading.Event()

    def run(self) -> None:
        body = {"epoch": self._epoch, "lease_seconds": self._seconds}
        while not self._done.wait(self._seconds / 3):
            try:
                self._client.call("POST", self._path, body, patience=self._seconds)
            except (Refused, httpx.TransportError):
                self.lost.set()
                return

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self.join()


class Task:
    """A claimed step: the run's state as of the last commit, and the only way to change it."""

    def __init__(self, client: Client, claim: Json) -> None:
        self.client = client
        self.run: str = claim["run"]["id"]
        self.step: str = claim["step"]["name"]
        self.epoch: int = claim["epoch"]
        self._lease: str = claim["lease"]
        self.head: int = claim["run"]["head"]
        self.state: Json = {}

    def load(self) -> Json:
        """Read the latest checkpoint, if the run has one."""
        checkpoint: Json = {}
        if self.head:
            checkpoint = self.client.call("GET", f"/runs/{self.run}/checkpoints/latest")
            self.head, self.state = checkpoint["head"], checkpoint["state"]
        return checkpoint

    def commit(
        self,
        part: str,
        events: Sequence[Json] = (),
        *,
        replace: Mapping[str, object] | None = None,
        append: Mapping[str, Sequence[object]] | None = None,
        **results: Json,
    ) -> None:
        """One durable transition: events, changed channels of the state, and what the step or the run came to.

        `part` names the piece of work. With run and step it makes the idempotency key, which is the same whoever does
        that piece: after a lost answer, asking again finds what was committed. Raises Refused.
        """
        replace, append = replace or {}, append or {}
        patch = [{"op": "add", "path": f"/{name}", "value": value} for name, value in replace.items()]
        patch += [{"op": "add", "path": f"/{n}/-", "value": value} for n, values in append.items() for value in values]
        changed = {**self.state, **replace, **{name: [*self.state[name], *values] for name, values in append.items()}}
        body: Json = {"lease": self._lease, "epoch": self.epoch, "events": list(events), **results}
        if patch:
            body["head"] = self.head
            body["checkpoint"] = {"patch": patch} if self.head else {"state": changed}
        answer = self.client.call(
            "POST", f"/runs/{self.run}/commit", body, idempotency_key=f"{self.run}:{self.step}:{part}"
        )
        self.head, self.state = answer["head"], changed

    def books(self) -> Books:
        """The files, when they are still those that the run began with. Raises CannotReconcile."""
        known = {artifact["name"]: artifact["sha256"] for artifact in self.state.get("artifacts", [])}
        for name in FILES:
            if name in known and digest(DATA / name) != known[name]:
                raise CannotReconcile(f"{name} is not the file that this run began with")
        return reconcile.read_books(DATA)


class Worker:
    """Claims steps and works on them, until `run` has ended, or for ever without one."""

    def __init__(
        self, client: Client, *, name: str, chunk: int, pause: float, lease_seconds: float, run: str | None
    ) -> None:
        self._client, self._name, self._chunk, self._pause = client, name, chunk, pause
        self._lease_seconds, self._run = lease_seconds, run
        self._steps: dict[str, Callable[[Task, Heartbeat], None]] = {
            "fetch_invoices": self.fetch_invoices,
            "match_payments": self.match_payments,
            "create_report": self.create_report,
        }

    def serve(self) -> None:
        wanted: Json = {"worker": self._name, "queues": [QUEUE], "lease_seconds": self._lease_seconds}
        if self._run:
            wanted["run_id"] = self._run
        while True:
            claim = self._client.call("POST", "/work/claim", wanted)
            if claim:
                self.work(claim)
            elif self._run and self._client.call("GET", f"/runs/{self._run}")["run"]["status"] not in OPEN:
                return
            else:
                time.sleep(0.25)

    def work(self, claim: Json) -> None:
        task = Task(self._client, claim)
        with Heartbeat(self._client, claim, self._lease_seconds) as heartbeat:
            while True:
                checkpoint = task.load()
                since = f"from checkpoint {checkpoint['version']} (event {checkpoint['seq']})" if checkpoint else "anew"
                self.say(f"{task.step}, attempt {claim['step']['attempt']}, epoch {task.epoch}, begins {since}")
                try:
                    return self.do(task, heartbeat)
                except Refused as refusal:
                    if refusal.code in LOST:
                        return self.say(f"{task.step} is not mine any more ({refusal.code}); I changed nothing of it")
                    # A stale head: somebody else changed the state. Begin again from what it is now.
                    if refusal.code != "stale_head":
                        raise

    def do(self, task: Task, heartbeat: Heartbeat) -> None:
        try:
            self._steps[task.step](task, heartbeat)
        except CannotReconcile as error:
            self.say(f"{task.step} cannot be done: {error}")
            failure = {"class": "permanent", "message": str(error)}
            task.commit(f"failed:{task.epoch}", step={"outcome": "failed", "error": failure})

    def fetch_invoices(self, task: Task, _: Heartbeat) -> None:
        events, books = tool("read_files", {"files": FILES}, task.books)
        artifacts = [
            {"name": name, "uri": f"file:{name}", "sha256": digest(DATA / name), "bytes": (DATA / name).stat().st_size}
            for name in FILES
        ]
        count = {"invoices": len(books.invoices), "payments": len(books.payments)}
        events[-1]["output"] = count
        state = {
            "goal": "Reconcile the invoices of November 2026 with the bank statement",
            "plan": {"steps": [step["name"] for step in PLAN["steps"]], "current_index": 1},
            "facts": {"invoice_batch_id": "batch_2026_11", "currency": reconcile.CURRENCY, "invoices_done": 0}
            | {"totals": Totals.empty().to_json()},
            "artifacts": artifacts,
            "tool_results": {"fetch_invoices": {"status": "success", "count": count["invoices"]}},
            "pending_approvals": [],
            "policy_flags": [],
            "exceptions": [],
        }
        task.commit("read", events, replace=state, step={"outcome": "succeeded", "output": count})
        self.say(f"read {count['invoices']} invoices and {count['payments']} payments")

    def match_payments(self, task: Task, heartbeat: Heartbeat) -> None:
        books = task.books()
        while (start := task.state["facts"]["invoices_done"]) < len(books.invoices):
            if heartbeat.lost.is_set():
                self.say(f"stopped before invoice {start + 1}: the lease is lost, or the run is over")
                return
            end = min(start + self._chunk, len(books.invoices))
            numbers = {"first": books.invoices[start].number, "last": books.invoices[end - 1].number}
            events, matches = tool("match_payments", numbers, books.match, start, end)
            totals = Totals.from_json(task.state["facts"]["totals"])
            totals.add(matches)
            exceptions = reconcile.exceptions(matches)
            events[-1]["output"] = {"invoices": len(matches), "exceptions": [item["invoice"] for item in exceptions]}
            status = {"status": "success" if end == len(books.invoices) else "running", "count": end}
            task.commit(
                str(start),
                events,
                replace={
                    "facts": task.state["facts"] | {"invoices_done": end, "totals": totals.to_json()},
                    "tool_results": task.state["tool_results"] | {"match_payments": status},
                },
                append={"exceptions": exceptions},
            )
            time.sleep(self._pause)
        output = {"invoices": len(books.invoices), "exceptions": len(task.state["exceptions"])}
        plan = task.state["plan"] | {"current_index": 2}
        task.commit("end", replace={"plan": plan}, step={"outcome": "succeeded", "output": output})
        self.say(f"matched {len(books.invoices)} invoices")

    def create_report(self, task: Task, _: Heartbeat) -> None:
        books, totals = task.books(), Totals.from_json(task.state["facts"]["totals"])
        events, report = tool("create_report", {}, reconcile.report, books, totals, task.state["exceptions"])
        content = json.dumps(report, ensure_ascii=False, sort_keys=True).encode()
        artifact = {"name": "report", "uri": "state:/report", "sha256": hashlib.sha256(content).hexdigest()}
        events[-1]["output"] = artifact | {"bytes": len(content)}
        task.commit(
            "write",
            events,
            replace={
                "report": report,
                "plan": task.state["plan"] | {"current_index": 3},
                "tool_results": task.state["tool_results"] | {"create_report": {"status": "success"}},
            },
            append={"artifacts": [artifact | {"bytes": len(content)}]},
            step={"outcome": "succeeded", "output": report["open"]},
            run={"outcome": "completed", "output": report},
        )
        self.say(summary(report))

    def say(self, text: str) -> None:
        print(f"{self._name}: {text}", flush=True)


def tool(name: str, given: Json, function: Callable[..., Any], *arguments: object) -> tuple[list[Json], Any]:
    """Call a tool; the events that record the call, and its result."""
    called = {"type": "tool_called", "occurred_at": now(), "labels": {"tool": name}, "input": given}
    result = function(*arguments)
    return [called, {"type": "tool_succeeded", "occurred_at": now(), "labels": {"tool": name}}], result


def summary(report: Json) -> str:
    counts = {status: sums["count"] for status, sums in report["by_status"].items()}
    return (
        f"{report['invoices']['count']} invoices: {counts['matched']} matched, {counts['partially_paid']} partly paid, "
        f"{counts['overpaid']} overpaid, {counts['unmatched']} unpaid; {report['open']['count']} open with INR "
        f"{report['open']['amount']}; {report['payments']['unmatched']} payments match nothing"
    )


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def now() -> str:
    return datetime.now(UTC).isoformat()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--base-url", default="http://127.0.0.1:8000")
    parser.add_argument("--key", default=os.environ.get("SMRITI_API_KEY"), help="API key; default: SMRITI_API_KEY")
    parser.add_argument("--worker", default=f"worker-{os.getpid()}")
    parser.add_argument("--run", help="work on this run only, and stop when it has ended")
    parser.add_argument("--chunk", type=int, default=40, help="invoices per commit")
    parser.add_argument("--pause", type=float, default=0, help="seconds between commits")
    parser.add_argument("--lease-seconds", type=float, default=30)
    parser.add_argument("--kill-demo", action="store_true", help="kill a worker in mid-work, and let another go on")
    options = parser.parse_args()
    if options.chunk < 1:
        parser.error("a chunk has at least one invoice")
    if not options.key:
        parser.error("an API key is needed: --key, or SMRITI_API_KEY")
    if options.kill_demo:
        from config.demo import kill_demo

        sys.exit(kill_demo.main(options.base_url, options.key))
    try:
        with Client(options.base_url, options.key) as client:
            Worker(
                client,
                name=options.worker,
                chunk=options.chunk,
                pause=options.pause,
                lease_seconds=options.lease_seconds,
                run=options.run,
            ).serve()
    except (Refused, httpx.TransportError) as error:
        sys.exit(f"{options.worker}: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
