"""The operator at a desk, as a process: decides gates, reconciles the unknown effects that are an operator's, moves runs out of
the dead letter, cancels a few. Everything through the API, everything acknowledged in a journal.
"""

import argparse
import os
import random
import time
from pathlib import Path
from typing import Final

from tests.chaos.agent import Api, Bank, Journal, Json, output

RECOVERIES: Final = {"retry": 60, "resume": 20, "skip": 8, "cancel": 8, "compensate": 4}
REFUSED_GATES: Final = 0.15
CANCELLED: Final = 0.02  # of the runs that are seen at work


class Desk:
    def __init__(self, options: argparse.Namespace) -> None:
        self.dice = random.Random(f"{options.seed}/desk")
        self.journal = Journal(options.folder / "desk.journal")
        self.api = Api(options.base_url, os.environ["SMRITI_API_KEY"], self.journal, self.dice)
        self.bank = Bank(options.bank)
        self.seen: set[str] = set()
        self.written = 0

    def serve(self) -> None:
        while True:
            for gate in self.list("/gates?status=open"):
                self.decide(gate)
            for effect in self.list("/effects?status=unknown"):
                if effect["owner"] == "operator":
                    self.reconcile(effect)
            for run in self.list("/runs?status=dead_letter"):
                self.recover(run)
            for run in self.list("/runs?status=running"):
                if run["id"] not in self.seen and self.dice.random() < CANCELLED:
                    body = {"reason": "no longer wanted", "grace_seconds": self.dice.choice([0, 2])}
                    self.write(f"/runs/{run['id']}/cancel", body)
                self.seen.add(run["id"])
            time.sleep(0.4)

    def list(self, path: str) -> list[Json]:
        answer = self.api.call("GET", path)
        if answer.status != 200:
            raise AssertionError(f"{path}: {answer}")
        found: list[Json] = answer.body["items"]
        return found

    def write(self, path: str, body: Json) -> str:
        """Do it; the code of a refusal, which is no mistake: the world moves on while a person reads."""
        self.written += 1
        answer = self.api.write(path, body, key=f"desk-{self.written}")
        if answer.status >= 300:
            self.journal.write("refused", path=path, body=body, code=answer.code, answer=answer.body)
            if answer.status not in (404, 409):
                raise AssertionError(f"{path} {body}: {answer}")
        return answer.code

    def decide(self, gate: Json) -> None:
        verb = "refuse" if self.dice.random() < REFUSED_GATES else "satisfy"
        self.write(f"/gates/{gate['id']}/{verb}", {"reason": "as the rules say"})

    def reconcile(self, effect: Json) -> None:
        found = self.bank.find(effect["key"])
        if found is None:
            return
        body: Json = {"reason": "asked the bank", "evidence": found, "result": "failed"}
        if found["status"] == "executed":
            body |= {"result": "succeeded", "output": output(found), "external_id": found["transaction"]}
        self.write(f"/effects/{effect['id']}/reconcile", body)

    def recover(self, run: Json) -> None:
        (action,) = self.dice.choices(list(RECOVERIES), list(RECOVERIES.values()))
        self.write(f"/runs/{run['id']}/recover", {"action": action, "reason": "looked at it"})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--bank", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--seed", default="0")
    options = parser.parse_args()
    desk = Desk(options)
    try:
        desk.serve()
    except Exception as error:
        desk.journal.write("violation", durable=True, error=repr(error))
        raise
