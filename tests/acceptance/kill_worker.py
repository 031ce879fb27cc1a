"""One worker process of the kill test: claims steps, commits units, sends heartbeats, and is killed while at it.

Invariant: what the server acknowledged stands in the journal, on disk, before the next call begins. Standard library
only, so that a killed worker is back within a tenth of a second.
"""

import argparse
import http.client
import json
import os
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

UNITS: Final = 8  # per step
STEPS: Final = ("prepare", "left", "right", "finish")
PATIENCE: Final = 60
# The step is another worker's, or over. Everything not acknowledged by now will be done by whoever holds it.
LOST: Final = {"stale_epoch", "lease_expired", "lease_lost", "run_finished"}
LOST_ANSWER: Final = 0.05  # how often an answer is thrown away unread, as when a connection breaks
ASKED_AGAIN: Final = 0.05  # how often an acknowledged commit is sent once more
FILLER: Final = "मेमोरी " * 30

Json = dict[str, Any]


def run_request(queue: str) -> Json:
    """A run whose two middle steps contend for its state."""
    step = {"queue": queue, "max_attempts": 1000}
    return {
        "workflow": "kill-test",
        "workflow_version": "1",
        "steps": [
            {"name": "prepare", **step},
            {"name": "left", "depends_on": ["prepare"], **step},
            {"name": "right", "depends_on": ["prepare"], **step},
            {"name": "finish", "depends_on": ["left", "right"], **step},
        ],
    }


def keys_of(step: str) -> list[str]:
    return [f"{step}:{unit}" for unit in range(UNITS)]


def changes_state(key: str) -> bool:
    """The units in the middle of a step append events only; no checkpoint tells a later worker that they are done."""
    return not key.endswith(":1")


def parts(key: str) -> int:
    """How many events a unit appends."""
    return 1 + sum(map(ord, key)) % 3


class Stopped(Exception):
    """The step is lost."""


class Journal:
    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1, encoding="utf-8")

    def write(self, kind: str, *, durable: bool = False, **values: object) -> None:
        self._file.write(json.dumps({"kind": kind, "at": time.time(), **values}, ensure_ascii=False) + "\n")
        if durable:
            os.fsync(self._file.fileno())


@dataclass
class Answer:
    status: int
    body: Json

    @property
    def code(self) -> str:
        return "" if self.status < 300 else str(self.body.get("code", self.status))


class Api:
    """Asks until there is an answer other than a broken connection or a 5xx, always with the same bytes."""

    def __init__(self, port: int, key: str, dice: random.Random, journal: Journal | None = None) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=15)
        self._headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        self._dice, self._journal = dice, journal

    def close(self) -> None:
        self._connection.close()

    def call(self, method: str, path: str, body: bytes | None = None, *, key: str = "", lossy: bool = False) -> Answer:
        headers = self._headers | ({"Idempotency-Key": key} if key else {})
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                self._connection.request(method, f"/api/v1{path}", body, headers)
                if lossy and self._dice.random() < LOST_ANSWER:
                    raise ConnectionError("the answer is lost")
                response = self._connection.getresponse()
                content = response.read()
                if response.status < 500:
                    return Answer(response.status, json.loads(content) if content else {})
                failure = f"{response.status} {content[:300].decode(errors='replace')}"
                if self._journal:
                    self._journal.write("server_error", path=path, answer=failure)
            except (OSError, http.client.HTTPException) as error:
                failure = repr(error)
                self._connection.close()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{method} {path}: {failure}")
            time.sleep(0.02 + self._dice.random() * 0.1)


class Worker:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.dice = options, random.Random(options.seed)
        self.journal = Journal(options.journal)
        self.api = Api(options.port, os.environ["SMRITI_API_KEY"], self.dice, self.journal)

    def serve(self) -> None:
        body = {
            "worker": self.options.name,
            "queues": [self.options.queue],
            "lease_seconds": self.options.lease_seconds,
        }
        while True:
            self.journal.write("claim")
            answer = self.api.call("POST", "/work/claim", json.dumps(body).encode(), lossy=True)
            if answer.status == 200:
                try:
                    self.work(answer.body)
                except Stopped:
                    if self.options.once:
                        return
            elif answer.status == 204:
                self.journal.write("idle")
                time.sleep(0.05 + self.dice.random() * 0.1)
            else:
                raise AssertionError(f"claim: {answer}")

    def work(self, claim: Json) -> None:
        run, step = claim["run"]["id"], claim["step"]["name"]
        self.journal.write("claimed", run=run, step=step, lease=claim["lease"], epoch=claim["epoch"])
        head, log = self.load(run) if claim["run"]["head"] else (0, [])
        for key in keys_of(step):
            if self.options.pause:
                time.sleep(self.options.pause)
            if self.dice.random() < 0.3:
                self.heartbeat(claim)
            while not (changes_state(key) and key in log):
                answer = self.commit(claim, key, head)
                if answer.status == 200:
                    head = answer.body["head"]
                    break
                if answer.code == "idempotency_key_reused":
                    # Done by a predecessor that died, or by a successor while this worker was stopped: then stop.
                    self.journal.write("found_done", run=run, key=key)
                    self.heartbeat(claim)
                    if not changes_state(key):
                        break
                    raise AssertionError(f"{key} was done, the state does not have it, and the lease is mine")
                if answer.code != "stale_head":
                    raise AssertionError(f"commit {key}: {answer}")
                head, log = self.load(run)

    def load(self, run: str) -> tuple[int, list[str]]:
        self.journal.write("load")
        answer = self.api.call("GET", f"/runs/{run}/checkpoints/latest")
        if answer.status != 200:
            raise AssertionError(f"checkpoint: {answer}")
        return answer.body["head"], answer.body["state"]["log"]

    def heartbeat(self, claim: Json) -> None:
        self.journal.write("heartbeat")
        body = json.dumps({"epoch": claim["epoch"], "lease_seconds": self.options.lease_seconds}).encode()
        self.stop_when_lost(self.api.call("POST", f"/work/{claim['lease']}/heartbeat", body))

    def commit(self, claim: Json, key: str, head: int) -> Answer:
        run, step = claim["run"]["id"], claim["step"]["name"]
        content = json.dumps(commit_request(claim, step, key, head), ensure_ascii=False)
        self.journal.write("commit", run=run, key=key, body=content)
        path, idempotency = f"/runs/{run}/commit", f"{run}/{key}"
        answer = self.api.call("POST", path, content.encode(), key=idempotency, lossy=True)
        self.stop_when_lost(answer)
        if answer.status == 200:
            self.journal.write("ack", durable=True, run=run, key=key, answer=answer.body)
            if self.dice.random() < ASKED_AGAIN:
                again = self.api.call("POST", path, content.encode(), key=idempotency)
                if again != answer:
                    raise AssertionError(f"replay of {key}: {answer} became {again}")
        return answer

    def stop_when_lost(self, answer: Answer) -> None:
        if answer.code in LOST:
            self.journal.write("refused", code=answer.code)
            raise Stopped


def commit_request(claim: Json, step: str, key: str, head: int) -> Json:
    payloads = [{"key": key, "part": part, "text": FILLER} for part in range(parts(key))]
    events = [{"type": "unit_done", "payload": payload} for payload in payloads]
    request: Json = {"lease": claim["lease"], "epoch": claim["epoch"], "events": events}
    if changes_state(key):
        appended = {"patch": [{"op": "add", "path": "/log/-", "value": key}]}
        request |= {"head": head, "checkpoint": appended if head else {"state": {"log": [key]}}}
    if key == keys_of(step)[-1]:
        request["step"] = {"outcome": "succeeded", "output": {"key": key}}
    return request


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--queue", required=True)
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--lease-seconds", type=float, default=1)
    parser.add_argument("--pause", type=float, default=0, help="seconds before each unit")
    parser.add_argument("--once", action="store_true", help="end when a step was lost")
    worker = Worker(parser.parse_args())
    try:
        worker.serve()
    except Exception as error:
        worker.journal.write("violation", error=repr(error))
        raise
