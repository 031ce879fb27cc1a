"""A paying agent as a customer writes it, with httpx: claims steps, reserves each payment, calls the bank, brings the
outcome, commits a checkpoint. The parent process only keeps `--workers` children running.

Invariants: a payment is asked for only on `execute`, and only while less than the tool's `execute_seconds` have passed on a
monotonic clock since the reservation was first asked for; the wall clock decides nothing. What the platform acknowledged
stands in the journal, on disk, before the next call begins.

The harness arms *points*: files in the folder of the environment's CHAOS_POINTS, `<point>/<number>.kill` or `.stop`. The
first worker that reaches the point takes the file, and kills or stops itself there.
"""

import argparse
import hashlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

import httpx

Json = dict[str, Any]

POINTS: Final = (
    "before_claim", "after_claim", "before_reserve", "after_reserve", "before_call", "after_call", "before_outcome",
    "after_outcome", "after_commit",
)  # fmt: skip
PATIENCE: Final = 90  # seconds until the platform must answer
LOST: Final = {"stale_epoch", "lease_expired", "lease_lost", "run_finished", "lease_not_found"}
LOST_ANSWER: Final = 0.01  # how often an answer is thrown away unread, as when a connection breaks
ASKED_AGAIN: Final = 0.02  # how often an acknowledged write is sent once more
TRIES: Final = 8  # of one payment under one lease
DEFECT: Final = os.environ.get("CHAOS_DEFECT", "")  # a mistake of the agent's, to see that it is found


class Lost(Exception):
    """The step is another worker's, or over."""


class Left(Exception):
    """The platform took the step back, to give it out again later."""


class Failed(Exception):
    def __init__(self, kind: str, message: str, retry_after: float | None = None) -> None:
        self.error: Json = {"class": kind, "message": message}
        if retry_after is not None:
            self.error["retry_after"] = retry_after


class Waits(Exception):
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


@dataclass(frozen=True)
class Answer:
    status: int
    body: Json

    @property
    def code(self) -> str:
        return "" if self.status < 300 else str(self.body.get("code", self.status))


class Journal:
    def __init__(self, path: Path) -> None:
        self.file = path.open("ab", buffering=0)

    def write(self, kind: str, *, durable: bool = False, **values: object) -> None:
        self.file.write(json.dumps({"kind": kind, **values}, ensure_ascii=False).encode() + b"\n")
        if durable:
            os.fsync(self.file.fileno())


def point(name: str) -> None:
    """A place to die. Nothing, unless the harness armed it."""
    folder = os.environ.get("CHAOS_POINTS")
    for armed in os.listdir(f"{folder}/{name}") if folder else ():
        number, _, action = armed.partition(".")
        try:
            os.rename(f"{folder}/{name}/{armed}", f"{folder}/taken/{name}.{number}.{action}.{os.getpid()}")
        except FileNotFoundError:
            continue  # another worker was faster
        os.kill(os.getpid(), signal.SIGKILL if action == "kill" else signal.SIGSTOP)
        return


class Api:
    """The platform. A call is repeated, with the same bytes, until there is an answer other than a broken connection or a 5xx."""

    def __init__(self, base_url: str, key: str, journal: Journal, dice: random.Random) -> None:
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        self.http = httpx.Client(base_url=f"{base_url}/api/v1", headers=headers, timeout=10, trust_env=False)
        self.journal, self.dice = journal, dice

    def call(
        self, method: str, path: str, body: Json | None = None, *, key: str = "", patience: float = PATIENCE
    ) -> Answer:
        content = None if body is None else json.dumps(body, ensure_ascii=False).encode()
        headers = {"Idempotency-Key": key} if key else {}
        deadline = time.monotonic() + patience
        while True:
            try:
                response = self.http.request(method, path, content=content, headers=headers)
                if response.status_code == 429 or '"idempotency_in_progress"' in response.text:
                    failure = response.text  # a moment later there is an answer
                elif response.status_code < 500 and self.dice.random() >= LOST_ANSWER:
                    return Answer(response.status_code, response.json() if response.content else {})
                elif response.status_code >= 500:
                    failure = f"{response.status_code} {response.text[:500]}"
                    self.journal.write(
                        "server_error", path=path, status=response.status_code, answer=response.text[:2000]
                    )
                else:
                    failure = "the answer was lost"
            except (httpx.TransportError, json.JSONDecodeError) as error:
                failure = repr(error)
            if time.monotonic() > deadline:
                raise TimeoutError(f"{method} {path}: {failure}")
            time.sleep(0.02 + self.dice.random() * 0.15)

    def write(self, path: str, body: Json, *, key: str, **about: object) -> Answer:
        """A write whose acknowledgement is kept; sometimes it is sent again, and must be answered alike."""
        answer = self.call("POST", path, body, key=key)
        if answer.status < 300:
            self.journal.write("ack", durable=True, path=path, key=key, answer=answer.body, **about)
            if self.dice.random() < ASKED_AGAIN:
                again = self.call("POST", path, body, key=key)
                if alike(again) != alike(answer) and again.code not in LOST:
                    raise AssertionError(f"{path} {key}: {answer} became {again}")
        return answer


def alike(answer: Answer) -> Answer:
    """Without what counts down."""
    return Answer(
        answer.status, {name: value for name, value in answer.body.items() if name not in ("seconds", "retry_after")}
    )


class Bank:
    """The bank's client. It tells a payment that certainly was not made from one that nobody knows of."""

    def __init__(self, base_url: str) -> None:
        self.http = httpx.Client(base_url=base_url, timeout=3, trust_env=False)

    def pay(self, key: str, payment: Json) -> Json:
        """The outcome, as the platform wants to hear it."""
        try:
            response = self.http.post(f"/payments/{key}", json=payment)
            body = response.json()
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            return {"outcome": "failed", "error": {"class": "transient", "message": repr(error)}}
        except (httpx.TransportError, ValueError):
            return {"outcome": "unknown"}
        if body.get("key") != key:  # the second answer to an earlier question
            self.http.close()
            self.http = httpx.Client(base_url=self.http.base_url, timeout=3, trust_env=False)
            return {"outcome": "unknown"}
        if response.is_success:
            return {"outcome": "succeeded", "output": output(body), "external_id": body["transaction"]}
        if body.get("executed", True):
            return {"outcome": "unknown"}
        kinds = {429: "rate_limited", 400: "permanent", 422: "business_rejection"}
        failure = {"class": kinds.get(response.status_code, "transient"), "message": body["error"]}
        if "retry_after" in body:
            failure["retry_after"] = body["retry_after"]
        return {"outcome": "failed", "error": failure}

    def find(self, key: str) -> Json | None:
        """What became of a payment; None when the bank does not say."""
        try:
            body: Json = self.http.get(f"/payments/{key}").json()
        except (httpx.TransportError, ValueError):
            return None
        return body if body.get("key") == key and body.get("status") in ("executed", "not_found") else None


def output(body: Json) -> Json:
    return {"transaction": body["transaction"]}


@dataclass
class Work:
    """A claimed step."""

    claim: Json
    head: int = 0
    state: Json = field(default_factory=dict)
    whole: bool = True  # the next change must be sent as the whole state
    beaten: float = field(default_factory=time.monotonic)

    @property
    def run(self) -> str:
        return str(self.claim["run"]["id"])

    @property
    def step(self) -> str:
        return str(self.claim["step"]["name"])

    @property
    def held(self) -> Json:
        return {"lease": self.claim["lease"], "epoch": self.claim["epoch"]}


class Worker:
    def __init__(self, options: argparse.Namespace, name: str) -> None:
        self.options, self.name = options, name
        self.dice = random.Random(f"{options.seed}/{name}")
        self.journal = Journal(options.folder / f"{name}.journal")
        key = os.environ["SMRITI_API_KEY"]
        self.api = Api(options.base_url, key, self.journal, self.dice)
        self.waits = Api(options.waits_url or options.base_url, key, self.journal, self.dice)
        self.bank = Bank(options.bank)

    def serve(self) -> None:
        while True:
            point("before_claim")
            claim = self.claim()
            if claim is None:
                continue
            point("after_claim")
            try:
                self.work(Work(claim))
            except Lost:
                self.journal.write("lost")
            except Left:
                self.journal.write("left")

    def claim(self) -> Json | None:
        body = {"worker": self.name, "queues": [self.options.queue], "lease_seconds": self.options.lease_seconds}
        api = self.waits if self.dice.random() < 0.5 else self.api
        try:
            answer = api.call("POST", "/work/claim", {**body, "wait_seconds": 1}, patience=0)
        except TimeoutError:
            time.sleep(0.1)
            return None
        if answer.status == 200:
            return answer.body
        if answer.status != 204:
            raise AssertionError(f"claim: {answer}")
        time.sleep(0.05 + self.dice.random() * 0.1)
        return None

    def work(self, work: Work) -> None:
        self.load(work)
        try:
            if effect := work.claim.get("compensates") or work.claim["step"].get("compensates"):
                self.pay(work, {"compensates": effect, "invoice_id": f"refund-{effect}"})
            else:
                payments = work.claim["run"]["input"]["steps"].get(work.step, [])
                # Twice: a state that is read again on the way may have lost what was noted before the damage.
                for payment in payments * 2:
                    if payment["invoice_id"] not in work.state.get("paid", {}):
                        self.pay(work, payment)
                noted = all(payment["invoice_id"] in work.state.get("paid", {}) for payment in payments)
                if noted and random.Random(f"{work.run}/{work.step}").random() < self.options.receipts:
                    self.receipt(work)
            self.commit(work, f"{work.step}:done", step={"outcome": "succeeded", "output": {"by": self.name}})
        except Failed as failed:
            self.commit(work, self.attempt_key(work, "failed"), step={"outcome": "failed", "error": failed.error})
        except Waits as waits:
            wait = {"timer": {"seconds": waits.seconds}}
            self.commit(work, self.attempt_key(work, "waits"), step={"outcome": "waiting", "wait": wait})

    def attempt_key(self, work: Work, what: str) -> str:
        return f"{work.step}:{work.claim['epoch']}:{what}"

    def load(self, work: Work) -> None:
        """The newest state. Where the platform had to skip a damaged one, the next change is sent whole."""
        answer = self.api.call("GET", f"/runs/{work.run}/checkpoints/latest")
        if answer.status == 404:
            work.head, work.state, work.whole = work.claim["run"]["head"], {}, True
        elif answer.status == 200:
            work.head, work.state = answer.body["head"], answer.body["state"]
            work.whole = bool(answer.body["skipped"])
            if answer.body["skipped"]:
                self.journal.write("skipped", run=work.run, versions=answer.body["skipped"])
        else:
            raise AssertionError(f"checkpoint: {answer}")

    # ---- a payment

    def pay(self, work: Work, payment: Json) -> None:
        """Have the payment made exactly once, whoever tried before."""
        for number in range(1, TRIES + 1):
            self.keep(work)
            point("before_reserve")
            asked = time.monotonic()
            decision = self.reserve(work, payment, number)
            point("after_reserve")
            match decision["decision"]:
                case "execute":
                    if self.execute(work, payment, decision, asked):
                        return
                case "already_done":
                    self.record(work, payment, decision.get("output"))
                    return
                case "reconcile":
                    if DEFECT == "agent-calls-again":
                        self.execute(work, payment, decision, asked)
                        return
                    self.reconcile(work, decision)
                case "await_approval":
                    raise Left
                case "denied":
                    wait = decision.get("retry_after")
                    if wait is None:
                        raise Failed("permanent", f"denied: {decision['rule']}")
                    if wait > 2:
                        raise Waits(wait)
                    self.rest(work, wait)
                case other:
                    raise AssertionError(f"a sixth decision: {other}")
        raise Failed("transient", "the bank does not let it through")

    def reserve(self, work: Work, payment: Json, number: int) -> Json:
        path, key = f"/runs/{work.run}/effects", f"{work.step}:{payment['invoice_id']}:{number}"
        body: Json = {**work.held}
        if "compensates" in payment:
            body["compensates"] = payment["compensates"]
        else:
            body |= {
                "tool": payment["tool"],
                "input": {name: payment[name] for name in ("invoice_id", "amount", "currency")},
            }
        answer = self.api.call("POST", path, body, key=key)
        if answer.status != 200:
            self.give_up(answer, f"reserve {key}")
        self.journal.write("ack", durable=True, path=path, key=key, answer=answer.body, run=work.run)
        return answer.body

    def execute(self, work: Work, payment: Json, decision: Json, asked: float) -> bool:
        """Call the bank and bring the outcome; False when the platform must be asked again."""
        key = decision["key"]
        point("before_call")
        seconds = min(self.options.execute_seconds, decision.get("seconds", self.options.execute_seconds))
        if time.monotonic() - asked > seconds and DEFECT != "agent-calls-late":
            result: Json = {"outcome": "failed", "error": {"class": "transient", "message": "it was too late to call"}}
        else:
            request = decision.get("input") or {name: payment[name] for name in ("invoice_id", "amount", "currency")}
            result = self.bank.pay(key, request)
        point("after_call")
        about = {"effect": decision["effect"], **result}
        point("before_outcome")
        if result["outcome"] == "succeeded" and self.dice.random() < 0.5:
            self.record(work, payment, result["output"], effects=[about])
            point("after_outcome")
            return True
        path = f"/runs/{work.run}/effects/{decision['effect']}/outcome"
        name = f"{decision['effect']}:{work.claim['lease']}:{decision.get('attempt')}:{result['outcome']}"
        answer = self.api.write(path, {**work.held, **result}, key=name, run=work.run, effect=decision["effect"])
        if answer.status >= 300:
            self.give_up(answer, f"outcome {name}")
        point("after_outcome")
        if result["outcome"] == "succeeded":
            self.record(work, payment, result["output"])
            return True
        if result["outcome"] == "unknown":
            if self.dice.random() < 0.3:
                raise Failed("unknown_outcome", "the bank's answer was lost")
            return False
        error = result["error"]
        if error["class"] in ("permanent", "business_rejection") or self.dice.random() < 0.5:
            raise Failed(error["class"], error["message"], error.get("retry_after"))
        self.rest(work, error.get("retry_after", 0.1))
        return False

    def reconcile(self, work: Work, decision: Json) -> None:
        """Find out what became of an earlier call. That it did not happen is said only on an answer to a question asked after it
        could not happen any more."""
        if decision["reason"] == "in_flight_elsewhere":
            raise Waits(decision.get("retry_after") or 1)
        effect, wait = decision["effect"], decision.get("retry_after") or 0
        while True:
            self.rest(work, wait)
            wait = 0.2
            found = self.bank.find(decision["key"])
            if found is None:
                continue
            result: Json = {"result": "failed", "evidence": found}
            if found["status"] == "executed":
                result |= {"result": "succeeded", "output": output(found), "external_id": found["transaction"]}
            key = f"{effect}:{work.claim['lease']}:{result['result']}"
            answer = self.api.write(f"/effects/{effect}/reconcile", {**work.held, **result}, key=key, effect=effect)
            if answer.code in LOST:
                self.give_up(answer, f"reconcile {key}")
            if answer.code == "too_early":
                wait = answer.body["retry_after"]
                continue
            if answer.status >= 300:  # somebody else did: the reservation will tell
                self.journal.write("not_reconciled", effect=effect, code=answer.code)
            return

    def receipt(self, work: Work) -> None:
        """Keep what the step paid as an artifact of the run; whoever does it again has the same bytes."""
        payments = work.claim["run"]["input"]["steps"][work.step]
        paid = {payment["invoice_id"]: work.state["paid"][payment["invoice_id"]] for payment in payments}
        content = json.dumps({"run": work.run, "step": work.step, "paid": paid}, sort_keys=True).encode()
        about = {
            "name": f"{work.step}.json",
            "media_type": "application/json",
            "size": len(content),
            "run_id": work.run,
        }
        sha256 = hashlib.sha256(content).hexdigest()
        answer = self.api.call("POST", "/artifacts", {**about, "sha256": sha256}, key=f"{work.run}:{work.step}:receipt")
        if answer.status != 201:
            self.give_up(answer, "announce")
        artifact, address = answer.body["id"], (answer.body["upload"] or {}).get("url")
        while True:
            self.keep(work)
            if address is None:  # the answer that had it was lost, or it has expired
                answer = self.api.call("POST", f"/artifacts/{artifact}/upload")
                if answer.code == "artifact_uploaded":
                    return
                if answer.status != 200:
                    self.give_up(answer, "address")
                address = answer.body["url"]
            status, code = self.put(address, content)
            if status == 200:
                line = {
                    "run": work.run,
                    "artifact": artifact,
                    "sha256": sha256,
                    "answer": {},
                    "path": "content",
                    "key": "",
                }
                self.journal.write("ack", durable=True, **line)
                return
            if code == "artifact_uploaded":
                return
            if status not in (0, 403, 409, 500, 503):
                raise AssertionError(f"upload: {status} {code}")
            address = None
            self.rest(work, 0.3)

    def put(self, address: str, content: bytes) -> tuple[int, str]:
        try:
            response = httpx.put(address, content=content, timeout=10, trust_env=False)
            if response.status_code == 500:
                self.journal.write("server_error", path="content", status=500, answer=response.text[:2000])
            return response.status_code, "" if response.is_success else response.json().get("code", "")
        except (httpx.TransportError, ValueError) as error:
            return 0, repr(error)

    # ---- commits

    def record(self, work: Work, payment: Json, result: Json | None, **parts: Any) -> None:
        """Note a payment in the shared state, whoever else changes it meanwhile."""
        invoice, found = payment["invoice_id"], result or {}
        name = f"{work.step}:{invoice}:paid"
        while True:
            paid = {**work.state.get("paid", {}), invoice: found}
            if work.whole:
                change: Json = {"state": {**work.state, "paid": paid}}
            else:
                change = {"patch": [{"op": "add", "path": f"/paid/{invoice}", "value": found}]}
            event = {"type": "invoice_paid", "payload": {"invoice": invoice, "result": found}}
            answer = self.commit(work, name, checkpoint=change, head=work.head, events=[event], **parts)
            if answer.status < 300:
                work.head, work.whole = answer.body["head"], False
                work.state = {**work.state, "paid": paid}
                return
            if answer.code == "idempotency_key_reused":
                # A predecessor did it, and died. If the state does not have it, that was damaged since: this is another write.
                self.load(work)
                if not parts and invoice in work.state.get("paid", {}):
                    return
                name = f"{work.step}:{invoice}:paid:{work.head}"
                continue
            if answer.code not in ("stale_head", "patch_conflict"):
                self.give_up(answer, f"commit {name}")
            self.load(work)

    def commit(self, work: Work, name: str, **parts: Any) -> Answer:
        answer = self.api.write(f"/runs/{work.run}/commit", {**work.held, **parts}, key=name, run=work.run)
        point("after_commit")
        if answer.code == "idempotency_key_reused":
            # A predecessor did it, and died; or a successor, while this worker was stopped: then the lease is lost.
            self.beat(work)
        if answer.code in LOST or (answer.status >= 300 and "head" not in parts):
            self.give_up(answer, f"commit {name}")
        return answer

    def keep(self, work: Work) -> None:
        """Keep the lease, when a third of it is over."""
        if time.monotonic() - work.beaten > self.options.lease_seconds / 3:
            self.beat(work)

    def beat(self, work: Work) -> None:
        body = {"epoch": work.claim["epoch"], "lease_seconds": self.options.lease_seconds}
        answer = self.api.call("POST", f"/work/{work.claim['lease']}/heartbeat", body)
        if answer.status >= 300:
            self.give_up(answer, "heartbeat")
        work.beaten = time.monotonic()

    def rest(self, work: Work, seconds: float) -> None:
        end = time.monotonic() + seconds
        while True:
            self.keep(work)
            left = end - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, 0.3))

    def give_up(self, answer: Answer, what: str) -> NoReturn:
        if answer.code in LOST:
            self.journal.write("refused", what=what, answer=answer.body)
            raise Lost
        raise AssertionError(f"{what}: {answer}")


def child(options: argparse.Namespace, name: str) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    worker = Worker(options, name)
    try:
        worker.serve()
    except Exception as error:
        worker.journal.write("violation", durable=True, error=repr(error))
        print(f"{name}: {error!r}", file=sys.stderr, flush=True)
    os._exit(1)


def keep_running(count: int, start: Callable[[], int]) -> NoReturn:
    children = {start() for _ in range(count)}

    def stop(*_: object) -> None:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        os._exit(0)

    signal.signal(signal.SIGTERM, stop)
    while True:
        pid, _ = os.wait()
        if pid in children:
            children.discard(pid)
            time.sleep(0.05)
            children.add(start())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--waits-url", default="")
    parser.add_argument("--bank", required=True, help="the bank's URL")
    parser.add_argument("--queue", default="payments")
    parser.add_argument("--name", default="agent")
    parser.add_argument("--folder", type=Path, required=True, help="for the journals")
    parser.add_argument("--seed", default="0")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--lease-seconds", type=float, default=4)
    parser.add_argument("--receipts", type=float, default=0, help="how many steps, of 1, keep a receipt as an artifact")
    parser.add_argument("--execute-seconds", type=float, default=3, help="as the tools say")
    options = parser.parse_args()
    started = 0

    def start() -> int:
        nonlocal started
        started += 1
        return os.fork() or child(options, f"{options.name}-{started}")

    keep_running(options.workers, start)


if __name__ == "__main__":
    main()
