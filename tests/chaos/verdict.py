"""What must be true after the chaos, read from outside: the bank's files, the agents' journals, and the platform's API.

`Verdict.give` writes findings (each a broken promise, none expected) and facts (how much was tried) into the books.
"""

import hashlib
import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import httpx

from tests.chaos import bank as the_bank

if TYPE_CHECKING:
    from tests.chaos.harness import Chaos

Json = dict[str, Any]

EXECUTED: Final = {"succeeded", "reconciled_succeeded", "compensating", "compensated", "compensation_failed"}
NOT_EXECUTED: Final = {"failed", "reconciled_failed", "cancelled", "reserved"}
STOPPED: Final = {"completed", "failed", "cancelled", "dead_letter"}
ENDED: Final = {"completed", "failed", "cancelled"}
# Outcomes after which an effect may be executed again.
CLEARED: Final = {"effect_failed", "effect_reconciled"}
OVER: Final = {"run_completed", "run_failed", "run_cancelled", "run_dead_letter"}
FEW: Final = 5  # findings of one kind that are written out


class Verdict:
    def __init__(self, chaos: "Chaos") -> None:
        self.chaos, self.books = chaos, chaos.books
        self.executions = chaos.executed.rows()
        self.ledger = chaos.effects()
        # Of one key at most one effect is live; the others are reservations that were given up.
        self.effects = {e["key"]: e for e in sorted(self.ledger, key=lambda e: e["status"] != "cancelled")}
        self.lines = [line for path in sorted(chaos.journals.glob("*.journal")) for line in read(path)]
        self.runs = {run["id"]: run for run in chaos.pages("/runs?limit=200")}
        self.events: dict[str, list[Json]] = {}
        self.found: Counter[str] = Counter()

    def give(self) -> None:
        self.check_corruption()
        self.await_artifacts()
        with ThreadPoolExecutor(4) as threads:
            self.events = dict(zip(self.runs, threads.map(self.read_events, self.runs), strict=True))
            verified = list(threads.map(lambda run: (run, self.chaos.call("GET", f"/runs/{run}/verify")), self.runs))
        self.find("a chain does not verify", (f"{run}: {answer}" for run, answer in verified if not answer["ok"]))
        audit = self.chaos.call("GET", "/audit/verify")
        self.find("the audit chain does not verify", [audit] if not audit["ok"] else [])
        self.check_bank()
        self.check_ledger()
        self.check_runs()
        self.check_journals()
        self.check_artifacts()
        for run, events in self.events.items():
            self.check_log(run, events)
        self.books.findings += [f"{what}: {count - FEW} more" for what, count in self.found.items() if count > FEW]
        self.count()

    def find(self, what: str, cases: Iterable[object]) -> None:
        for case in cases:
            self.found[what] += 1
            if self.found[what] <= FEW:
                self.books.findings.append(f"{what}: {case}")

    # ---- what happened outside against what the ledger says

    def check_bank(self) -> None:
        times = Counter(row["key"] for row in self.executions)
        self.find("executed more than once", (self.history(key) for key, count in times.items() if count > 1))
        refunds = {key for key, effect in self.effects.items() if effect["tool"] == "refund"}
        invoices = Counter(row["invoice_id"] for row in self.executions if row["key"] not in refunds)
        self.find("paid more than once", ((invoice, count) for invoice, count in invoices.items() if count > 1))
        self.find("executed, and not in the ledger", (key for key in times if key not in self.effects))

    def check_ledger(self) -> None:
        executed = {row["key"] for row in self.executions}
        for key, effect in self.effects.items():
            status = effect["status"]
            if (status in EXECUTED and key not in executed) or (status in NOT_EXECUTED and key in executed):
                self.find("the ledger is wrong", [f"{status}, executed: {key in executed}: {self.history(key)}"])
            # A worker comes back only to a run at work.
            run_ended = self.runs[effect["run_id"]]["status"] in STOPPED
            owners = {"probe", "operator"} if run_ended else {"worker", "probe", "operator"}
            if (
                status == "in_flight"
                or (status == "unknown" and effect["owner"] not in owners)
                or (status in ("reserved", "compensating") and run_ended)
            ):
                self.find("an effect has no end and no owner", [self.history(key)])

    def history(self, key: str) -> str:
        """Everything known of an effect, on one line for each thing."""
        effect = self.effects.get(key, {"id": "none", "run_id": ""})
        events = self.events.get(effect["run_id"], [])
        log = [
            f"{event['seq']} {event['type']} lease={str(event['lease'])[-6:]} {event['recorded_at']}"
            for event in events
            if (event.get("labels") or {}).get("effect") == effect["id"]
        ]
        calls = [row for row in the_bank.Tail(self.chaos.bank_folder / "received.jsonl").rows() if row["key"] == key]
        made = [row for row in self.executions if row["key"] == key]
        return "\n    ".join(
            [f"{key} {effect}", *log, *(f"asked: {row}" for row in calls), *(f"made: {row}" for row in made)]
        )

    # ---- the platform's own books

    def check_runs(self) -> None:
        self.find("a run is missing", self.chaos.runs.keys() - self.runs.keys())
        for run, found in self.runs.items():
            named = found["status"] == "waiting" and found["waiting_for"]
            if found["status"] not in ENDED and not named:
                self.find("a run neither ended nor waits for something", [(run, found["status"])])

    def read_events(self, run: str) -> list[Json]:
        events: list[Json] = []
        after: int | None = 0
        while after is not None:
            page = self.chaos.call("GET", f"/runs/{run}/events?after={after}&limit=1000")
            events += page["items"]
            after = page["next_after"]
        return events

    def check_log(self, run: str, events: list[Json]) -> None:
        if [event["seq"] for event in events] != list(range(1, len(events) + 1)):
            self.find("a gap in a log", [run])
        holders: dict[str, str | None] = {}
        executing: dict[str, int] = {}
        for event in events:
            kind, lease, step = event["type"], event["lease"], event["step"]
            effect = (event.get("labels") or {}).get("effect", "")
            if kind == "step_leased":
                holders[step] = lease
            elif kind in ("lease_lost", "lease_released", "step_succeeded", "step_failed", "step_waiting"):
                holders.pop(step, None)
            elif kind in ("invoice_paid", "checkpoint_created", "effect_executing") and holders.get(step) != lease:
                self.find("written under a lease that was lost", [(run, event)])
            if kind == "effect_duplicate":
                self.find("the platform itself found a duplicate", [(run, event)])
            if kind == "effect_executing":
                if executing.get(effect):
                    self.find("permission to execute was given twice", [(run, executing[effect], event["seq"], effect)])
                executing[effect] = event["seq"]
            elif kind in CLEARED:
                executing.pop(effect, None)

    def check_journals(self) -> None:
        self.find("an agent found a broken promise", (line for line in self.lines if line["kind"] == "violation"))
        errors = [line for line in self.lines if line["kind"] == "server_error"]
        self.find("a server error", (line for line in errors if line["status"] != 503))
        digests = {run: {event["seq"]: event["digest"] for event in events} for run, events in self.events.items()}
        reconciled = Counter(
            (event.get("labels") or {}).get("effect")
            for events in self.events.values()
            for event in events
            if event["type"] == "effect_reconciled"
        )
        known = {effect["id"] for effect in self.ledger}
        told: dict[str, set[str]] = defaultdict(set)
        for line in self.lines:
            if line["kind"] != "ack":
                continue
            answer = line["answer"]
            if "digest" in answer and digests.get(line["run"], {}).get(answer["last_seq"]) != answer["digest"]:
                self.find("an acknowledged write is missing", [line])
            if "decision" in answer and answer.get("effect") and answer["effect"] not in known:
                self.find("an acknowledged reservation is missing", [line])
            if line["path"].endswith("/reconcile"):
                told[line["path"].split("/")[2]].add(line["key"])
        self.find("an acknowledged reconciliation is missing", (e for e in told if not reconciled[e]))

    def check_corruption(self) -> None:
        """The platform must see the damage, name it, and go on from before it; then the bytes are put back."""
        skipped = {
            (line["run"], version) for line in self.lines if line["kind"] == "skipped" for version in line["versions"]
        }
        seen = 0
        for run, version in self.chaos.damage:
            newest = self.chaos.newest_checkpoint(run)
            if newest["version"] < version and version not in newest["skipped"]:
                self.find("a damaged checkpoint is not reported", [(run, version)])
            if newest["version"] == version:
                self.find("a damaged checkpoint was used", [(run, version)])
            seen += (run, version) in skipped
            verified = self.chaos.call("GET", f"/runs/{run}/verify")
            if verified["ok"]:
                self.find("a damaged checkpoint verifies", [(run, version)])
        self.books.facts["damaged checkpoints"] = len(self.chaos.damage)
        self.books.facts["damaged checkpoints that an agent was told of, and went on without"] = seen
        with self.chaos.stage.superuser() as connection:
            for (run, version), body in self.chaos.damage.items():
                restore = "update runs_checkpoint set body = %s where run_id = %s and version = %s"
                connection.execute(restore, [body, run, version])

    def kept_artifacts(self) -> dict[str, str]:
        """The SHA-256 of every artifact whose upload was acknowledged."""
        return {line["artifact"]: line["sha256"] for line in self.lines if line["kind"] == "ack" and "artifact" in line}

    def await_artifacts(self) -> None:
        """What was uploaded last is attached to its run by the sweep, when the process that took it was killed."""
        deadline = time.monotonic() + 60
        for artifact in self.kept_artifacts():
            while time.monotonic() < deadline:
                found = self.chaos.call("GET", f"/artifacts/{artifact}")
                if found["status"] == "ready" and found["referenced"]:
                    break
                time.sleep(0.5)

    def check_artifacts(self) -> None:
        """Every byte that was acknowledged comes back as it was, but for objects with a wrong byte: those are refused."""
        kept = self.kept_artifacts()
        attached = {
            event["artifact"]["id"]
            for events in self.events.values()
            for event in events
            if event["type"] == "artifact_attached"
        }
        refused = 0
        for artifact, sha256 in kept.items():
            found = self.chaos.call("GET", f"/artifacts/{artifact}")
            # A run that was over when the scan ended keeps its artifact without a line in its log.
            over = any(event["type"] in OVER for event in self.events[found["run_id"]])
            if found["status"] != "ready" or not found["referenced"] or (artifact not in attached and not over):
                self.find("an acknowledged artifact is missing", [found])
                continue
            answer = self.download(artifact)
            if answer.status_code == 409 and answer.json()["code"] == "artifact_unreadable":
                refused += 1
            elif answer.status_code != 200 or hashlib.sha256(answer.content).hexdigest() != sha256:
                self.find(
                    "an artifact is not what was uploaded", [(artifact, answer.status_code, answer.content[:300])]
                )
        if refused > len(self.chaos.spoilt):
            self.find("an artifact is unreadable", [(refused, self.chaos.spoilt)])
        self.books.facts["artifacts, every one as it was uploaded"] = len(kept) - refused
        self.books.facts["damaged artifacts"] = len(self.chaos.spoilt)
        self.books.facts["damaged artifacts that were refused to their reader"] = refused

    def download(self, artifact: str) -> httpx.Response:
        """The answer to a reader, who asks again when there was none for now."""
        deadline = time.monotonic() + 60
        while True:
            answer = self.chaos.http.get(self.chaos.call("POST", f"/artifacts/{artifact}/download")["url"])
            if answer.status_code != 503 or time.monotonic() > deadline:
                return answer
            time.sleep(0.2)

    # ---- how much was tried

    def count(self) -> None:
        kinds = Counter(line["kind"] for line in self.lines)
        decisions = Counter(line["answer"]["decision"] for line in self.lines if "decision" in line.get("answer", {}))
        types = Counter(event["type"] for events in self.events.values() for event in events)
        asked = the_bank.Tail(self.chaos.bank_folder / "received.jsonl").rows()
        faults = Counter(row["fault"] for row in asked)
        self.books.facts |= {
            "effects": len(self.ledger),
            "payments asked of the bank": len(asked),
            "payments made by the bank": len(self.executions),
            **{f"the bank: {name}": count for name, count in sorted(faults.items()) if name},
            **{f"effects {status}": n for status, n in sorted(Counter(e["status"] for e in self.ledger).items())},
            **{f"decisions {name}": count for name, count in sorted(decisions.items())},
            **{f"runs {status}": n for status, n in sorted(Counter(r["status"] for r in self.runs.values()).items())},
            "events": sum(map(len, self.events.values())),
            "leases lost": types["lease_lost"],
            "effects that became unknown": types["effect_unknown"],
            "reconciliations": types["effect_reconciled"],
            "outcomes that came too late, kept as evidence": types["effect_evidence"],
            "writes acknowledged, none missing": kinds["ack"],
            "writes refused to those whose lease was lost": kinds["lost"],
            "answers 503": sum(line["kind"] == "server_error" for line in self.lines),
        }


def read(path: Any) -> list[Json]:
    """The lines of a journal; a kill may have cut the last one."""
    lines = path.read_bytes().split(b"\n")[:-1]
    return [json.loads(line) for line in lines]
