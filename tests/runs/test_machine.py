"""The API against a model, by random sequences of what several workers, operators, a bank and time can do.

The bank in the model executes whenever a worker that was told `execute` calls it in time, and must never execute twice. Outcomes
and reconciliations tell the truth; nothing else is promised: workers die, come back with stale leases, repeat requests and bring
outcomes late. What must hold in the database is asked as its superuser after every step.
"""

import uuid
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import httpx
import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from runs import operations
from runs.states import RUN_ENDS
from tests.cast import House, client, make_house
from tests.runs.driver import expire, register, settle, tamperer

TOOLS: Final = ("of_step", "of_run", "of_tenant", "gated", "gated_run")
OBJECTS: Final = ("INV-1", "INV-2")
RUNS: Final = 3
BOTH: Final = (False, True)
# How often, and with what, beside a number that picks one of what there is.
WEIGHTS: Final = {
    "claim": 8, "note": 3, "change_the_state": 3, "repeat": 3, "succeed": 3, "fail": 2, "stop": 3, "send_a_signal": 2,
    "reserve": 14, "call_the_bank": 8, "bring_the_outcome": 9, "time_settles": 3, "find_out": 6, "decide_a_gate": 4,
    "a_grant_lapses": 1, "lose_a_lease": 4, "time_passes": 4, "cancel": 1, "recover": 4,
}  # fmt: skip
ACTIONS: Final = [name for name, weight in WEIGHTS.items() for _ in range(weight)]
CHOICES: Final[dict[str, dict[str, tuple[Any, ...]]]] = {
    "note": {"stale": BOTH},
    "change_the_state": {"behind": BOTH, "more": BOTH},
    "repeat": {"other": BOTH},
    "fail": {
        "kind": (
            *("transient", "transient", "transient", "rate_limited", "unknown_outcome", "unknown_outcome"),
            *("permanent", "business_rejection"),
        )
    },
    "stop": {"kind": ("timer", "soon", "signal", "child", "release")},
    "reserve": {"tool": TOOLS, "what": OBJECTS, "amount": (1, 1, 1, 2), "again": BOTH, "stale": BOTH},
    "bring_the_outcome": {
        "unsure": (False, False, False, True),
        "kind": ("transient", "transient", "transient", "permanent"),
        "within": BOTH,
    },
    "find_out": {"by": ("worker", "worker", "operator"), "late": (False, False, True)},
    "decide_a_gate": {"satisfied": (True, True, True, False)},
    "cancel": {"grace": (0, 3600)},
    "recover": {"action": ("retry", "retry", "resume", "skip", "compensate", "cancel")},
}

# Each finds what must not be, in the runs of `%(runs)s`.
WRONG: Final = {
    "a run waits exactly when it names a reason":
        "select id, status from runs_run where id = any(%(runs)s) and (status = 'waiting') <> (waiting_for is not null)",
    "a run says what it does": """
        select r.id, r.status, r.waiting_for, array_agg(s.name || ':' || s.status)
        from runs_run r join runs_step s on s.run_id = r.id
        where r.id = any(%(runs)s) and r.cancel_at is null group by r.id, r.status, r.waiting_for having case r.status
            when 'running' then not bool_or(s.status in ('runnable', 'leased'))
            when 'pending' then not bool_or(s.status = 'runnable') or bool_or(s.status = 'leased')
            when 'waiting' then bool_or(s.status in ('runnable', 'leased')) or not bool_or(s.status = 'waiting')
                or r.waiting_for <> (array_agg(s.wait_kind order by s.position) filter (where s.status = 'waiting'))[1]
            when 'completed' then bool_or(s.status not in ('succeeded', 'skipped'))
            when 'dead_letter' then bool_or(s.status in ('runnable', 'leased'))
            else bool_or(s.status in ('runnable', 'leased', 'waiting', 'blocked')) end""",
    "a run counts its open steps": """
        select r.id, r.steps_open from runs_run r
        where r.id = any(%(runs)s) and r.status not in ('failed', 'cancelled') and r.steps_open <> (
            select count(*) from runs_step s where s.run_id = r.id and s.status not in ('succeeded', 'skipped'))""",
    "a blocked step waits for another": """
        select s.id, s.name, s.waiting_on from runs_step s join runs_run r on r.id = s.run_id
        where r.id = any(%(runs)s) and r.cancel_at is null and s.status = 'blocked' and (
            r.status <> 'dead_letter' and s.waiting_on = 0 or s.waiting_on <> (
                select count(*) from runs_stepdependency d join runs_step o on o.id = d.depends_on_id
                where d.step_id = s.id and o.status not in ('succeeded', 'skipped')))""",
    "the log has no gap": """
        select r.id, r.last_seq from runs_run r where r.id = any(%(runs)s)
        and array[r.last_seq, 1, r.last_seq] <> (
            select array[count(*), min(seq), max(seq)] from runs_event e where e.run_id = r.id)""",
    "an effect in flight is under a held lease": """
        select e.id from runs_effect e where e.run_id = any(%(runs)s) and e.status = 'in_flight' and not exists (
            select from runs_step s join runs_attempt a on a.id = s.lease_id
            where s.status = 'leased' and s.lease_id = e.lease_id and a.ended_at is null and a.run_id = e.run_id)""",
    "an unknown effect has an owner who can come": """
        select e.id, e.owner, r.status from runs_effect e join runs_run r on r.id = e.run_id where r.id = any(%(runs)s)
        and e.status = 'unknown' and (
            e.owner is null or e.owner = 'worker' and r.status in ('completed', 'failed', 'cancelled', 'dead_letter'))""",
    "a reserved effect stands behind a gate of a run that goes on": """
        select e.id, r.status from runs_effect e join runs_run r on r.id = e.run_id
        where r.id = any(%(runs)s) and e.status = 'reserved' and (
            e.gate_id is null or r.status in ('completed', 'failed', 'cancelled', 'dead_letter'))""",
    "nobody waits for what is over": """
        select s.id, s.wait_kind from runs_step s join runs_run r on r.id = s.run_id
        where r.id = any(%(runs)s) and s.status = 'waiting' and case s.wait_kind
            when 'gate' then not exists (select from runs_gate g where g.id = s.wait_id and g.status = 'open')
            when 'reconciliation' then not exists (select from runs_effect e where e.id = s.wait_id and e.status = 'unknown')
            when 'signal' then r.status <> 'dead_letter' and exists (
                select from runs_signal g where g.run_id = r.id and g.name = s.wait_name and g.taken_at is null)
            when 'child' then s.due_at is null and exists (
                select from runs_run c where c.id = s.wait_id and c.status in ('completed', 'failed', 'cancelled'))
            else s.due_at is null end""",
    "an open gate has an effect that waits for it": """
        select g.id from runs_gate g join runs_effect e on e.id = g.effect_id
        where g.run_id = any(%(runs)s) and g.status = 'open' and (e.status <> 'reserved' or e.gate_id <> g.id)""",
    "a grant that can be used is of an effect that can": """
        select g.id, e.status from runs_grant g join runs_effect e on e.id = g.effect_id
        where g.run_id = any(%(runs)s) and g.status = 'unused' and e.status not in ('reserved')""",
    "only one attempt of a step goes on": """
        select a.step_id from runs_attempt a join runs_step s on s.id = a.step_id
        where a.run_id = any(%(runs)s) and a.ended_at is null and s.lease_id is distinct from a.id""",
}  # fmt: skip


@dataclass
class Lease:
    id: str
    epoch: int
    run: str
    step: str
    held: bool = True


@dataclass
class Permit:
    """A worker was told `execute`. `called`: the bank did it. `void`: its time is over, or it said that it did not call."""

    lease: Lease
    effect: str
    key: str
    attempt: int
    called: bool = False
    void: bool = False
    told: bool = False


@dataclass
class Sent:
    """An acknowledged request, to be repeated."""

    path: str
    key: str
    body: dict[str, Any]
    answer: dict[str, Any]


@dataclass
class Model:
    leases: list[Lease] = field(default_factory=list)
    permits: list[Permit] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)
    bank: dict[str, int] = field(default_factory=dict)
    heads: dict[str, int] = field(default_factory=dict)
    notes: dict[str, set[str]] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)


class Engine(RuleBasedStateMachine):
    house: House
    database: psycopg.Connection[Any]

    @initialize()
    def begin(self) -> None:
        self.model = Model()
        self.mark = uuid.uuid4().hex[:12]
        self.queue = f"q-{self.mark}"
        self.agent, self.operator = client(self.house.keys["agent"]), client(self.house.keys["operator"])
        self.runs: list[str] = []
        for number in range(RUNS):
            plan = [
                {
                    "name": name,
                    "queue": self.queue,
                    "max_attempts": 3,
                    "retry": {"initial_seconds": 0},
                    "depends_on": after,
                }
                for name, after in (("a", []), ("b", []), ("c", []), ("d", ["a", "b"]))
            ]
            body = {"workflow": "machine", "workflow_version": "1", "steps": plan}
            answer = self.agent.post("/runs", json=body, headers={"Idempotency-Key": f"{self.mark}-{number}"})
            self.runs.append(answer.json()["id"])
        self.model.heads = dict.fromkeys(self.runs, 0)
        self.model.notes = {run: set() for run in self.runs}

    # What is sent, and what must come back.

    def post(self, path: str, body: dict[str, Any], key: str | None = None) -> httpx.Response:
        answer = self.agent.post(path, json=body, headers={"Idempotency-Key": key or uuid.uuid4().hex})
        assert answer.status_code < 500, (path, body, answer.text)
        return answer

    def operate(self, path: str, **body: Any) -> httpx.Response:
        answer = self.operator.post(path, json={"reason": "because", **body})
        assert answer.status_code < 500, (path, body, answer.text)
        return answer

    def commit(self, lease: Lease, **parts: Any) -> httpx.Response:
        """A commit. It is accepted only under a lease that is held."""
        key, path = uuid.uuid4().hex, f"/runs/{lease.run}/commit"
        body = {"lease": lease.id, "epoch": lease.epoch, **parts}
        answer = self.post(path, body, key)
        if answer.status_code == 200:
            assert lease.held, f"a write under a lost lease was accepted: {body}"
            self.model.sent.append(Sent(path, key, body, answer.json()))
            self.model.heads[lease.run] = answer.json()["head"]
            self.saw(lease.run, answer.json()["run_status"])
            if "step" in parts:
                lease.held = False
        elif not lease.held:
            assert answer.json()["code"] in ("stale_epoch", "lease_expired", "run_finished"), answer.text
        return answer

    def saw(self, run: str, status: str) -> None:
        """The run's status was seen: who held a lease of one that is over holds none."""
        if status in RUN_ENDS:
            self.model.ended.add(run)
            for lease in self.model.leases:
                lease.held &= lease.run != run
        else:
            self.model.ended.discard(run)

    def look(self, run: str) -> str:
        status: str = self.agent.get(f"/runs/{run}").json()["run"]["status"]
        self.saw(run, status)
        return status

    def lease(self, number: int, *, stale: bool = False) -> Lease | None:
        """One of the last leases; a worker that has none claims one."""
        if not any(lease.held for lease in self.model.leases):
            self.claim(number)
        found = [lease for lease in self.model.leases if stale or lease.held]
        return found[-1 - number % min(len(found), 6)] if found else None

    def effect(self, number: int, *statuses: str) -> dict[str, Any] | None:
        rows = self.database.execute(
            "select id, status, key, owner, lease_id from runs_effect where run_id = any(%s) and status = any(%s) order by id",
            [self.runs, list(statuses)],
        ).fetchall()
        if not rows:
            return None
        row = rows[number % len(rows)]
        return {"id": str(row[0]), "status": row[1], "key": row[2], "owner": row[3], "lease": str(row[4])}

    @rule(action=st.sampled_from(ACTIONS), number=st.integers(0, 2**16), choice=st.randoms(use_true_random=False))
    def act(self, action: str, number: int, choice: Random) -> None:
        """One rule, so that all of them meet in every example, each as often as it is named in ACTIONS."""
        values = {name: choice.choice(values) for name, values in CHOICES.get(action, {}).items()}
        getattr(self, action)(number=number, **values)

    # Workers.

    def claim(self, number: int) -> None:
        body = {"worker": "w", "queues": [self.queue], "lease_seconds": 3600}
        if number % 3:
            body["run_id"] = self.runs[number % RUNS]
        key = uuid.uuid4().hex
        answer = self.post("/work/claim", body, key)
        if answer.status_code == 204:
            return
        work = answer.json()
        lease = Lease(work["lease"], work["epoch"], work["run"]["id"], work["step"]["name"])
        for other in self.model.leases:
            if (other.run, other.step) == (lease.run, lease.step):
                assert not other.held, "a step was given to two workers"
                assert other.epoch < lease.epoch
        assert self.post("/work/claim", body, key).json()["lease"] == lease.id
        assert work["run"]["head"] == self.model.heads[lease.run]
        self.model.leases.append(lease)
        self.saw(lease.run, "running")

    def note(self, number: int, stale: bool) -> None:
        if (lease := self.lease(number, stale=stale)) is None:
            return
        word = uuid.uuid4().hex
        answer = self.commit(lease, events=[{"type": "note", "payload": word}])
        assert (answer.status_code == 200) == lease.held, answer.text
        if answer.status_code == 200:
            self.model.notes[lease.run].add(word)

    def change_the_state(self, number: int, behind: bool, more: bool) -> None:
        if (lease := self.lease(number)) is None:
            return
        head = self.model.heads[lease.run]
        parts: dict[str, Any] = {"head": head - 1 if behind and head else head, "checkpoint": {"state": {"n": number}}}
        if more and number % 4 == 0:
            parts["new_steps"] = [
                {
                    "name": f"x{uuid.uuid4().hex[:8]}",
                    "queue": self.queue,
                    "depends_on": [lease.step] if number % 8 else [],
                }
            ]
        answer = self.commit(lease, **parts)
        if parts["head"] != head:
            assert (answer.status_code, answer.json()["code"], answer.json()["head"]) == (409, "stale_head", head)
        else:
            assert answer.status_code == 200, answer.text
            assert answer.json()["head"] == head + 1

    def repeat(self, number: int, other: bool) -> None:
        """What was acknowledged is answered again, whatever happened since; with another body it is refused."""
        if not self.model.sent:
            return
        sent = self.model.sent[number % len(self.model.sent)]
        if other:
            body = {**sent.body, "events": [{"type": "other"}]}
            answer = self.post(sent.path, body, sent.key)
            assert (answer.status_code, answer.json()["code"]) == (422, "idempotency_key_reused")
        else:
            answer = self.post(sent.path, sent.body, sent.key)
            assert (answer.status_code, answer.json()) == (200, sent.answer)

    def succeed(self, number: int) -> None:
        if (lease := self.lease(number)) is None:
            return
        row = self.database.execute(
            """select count(*) from runs_effect e join runs_step s on s.id = e.step_id
               where e.run_id = %s and s.name = %s and e.status in ('in_flight', 'unknown')""",
            [lease.run, lease.step],
        ).fetchone()
        answer = self.commit(lease, step={"outcome": "succeeded"})
        if row and row[0]:
            assert (answer.status_code, answer.json()["code"]) == (409, "effects_open")
        else:
            assert answer.status_code == 200, answer.text

    def fail(self, number: int, kind: str) -> None:
        if (lease := self.lease(number)) is None or (kind == "business_rejection" and number % 3):
            return
        answer = self.commit(lease, step={"outcome": "failed", "error": {"class": kind}})
        assert answer.status_code == 200, answer.text
        self.void(lease)

    def stop(self, number: int, kind: str) -> None:
        if (lease := self.lease(number)) is None:
            return
        waits: dict[str, Any] = {
            "timer": {"timer": {"seconds": 3600}}, "soon": {"timer": {"seconds": 0}},
            "signal": {"signal": {"name": "s", **({"timeout_seconds": 60} if number % 2 else {})}},
            "child": {"child": {"run_id": next(run for run in self.runs if run != lease.run)}},
        }  # fmt: skip
        step = {"outcome": "released"} if kind == "release" else {"outcome": "waiting", "wait": waits[kind]}
        answer = self.commit(lease, step=step)
        assert answer.status_code == 200, answer.text
        self.void(lease)

    def void(self, lease: Lease) -> None:
        """A worker that gave its lease back calls no service any more."""
        for permit in self.model.permits:
            permit.void |= permit.lease is lease and not permit.called

    # Effects.

    def reserve(self, number: int, tool: str, what: str, amount: int, again: bool, stale: bool) -> None:
        if (lease := self.lease(number, stale=stale and number % 3 == 0)) is None:
            return
        body = {
            "lease": lease.id,
            "epoch": lease.epoch,
            "tool": tool,
            "input": {"invoice": f"{what}-{self.mark}", "amount": amount},
        }
        # A successor derives the key that its predecessor had.
        key = f"{lease.run}-{lease.step}-{tool}-{what}-{amount}-{number % 2}" if again else uuid.uuid4().hex
        answer = self.post(f"/runs/{lease.run}/effects", body, key)
        if answer.status_code != 200:
            assert not lease.held or lease.run in self.model.ended, answer.text
            assert answer.json()["code"] in ("stale_epoch", "lease_expired", "run_finished"), answer.text
            return
        decided = answer.json()
        if decided["decision"] != "execute":
            if decided["decision"] == "already_done":
                assert self.model.bank.get(decided["key"]), "it is said to be done, and was not"
            if decided["decision"] == "await_approval":
                lease.held = False
                self.void(lease)
            return
        assert lease.held, "a lost lease was told to execute"
        assert decided["seconds"] > 0
        for permit in self.model.permits:
            if (permit.effect, permit.attempt) == (decided["effect"], decided["attempt"]):
                assert permit.lease is lease, "an execute was answered to two workers"
                assert not permit.told, "an execute was answered after its outcome"
                return
            if permit.key == decided["key"]:
                assert permit.told or permit.void, "execute while an earlier one is open"
                assert not permit.called, "execute although it happened"
        self.model.permits.append(Permit(lease, decided["effect"], decided["key"], decided["attempt"]))

    def call_the_bank(self, number: int) -> None:
        """Also by a worker that lost its lease meanwhile and does not know it."""
        open_ones = [p for p in self.model.permits if not (p.called or p.void or p.told)]
        if open_ones:
            permit = open_ones[-1 - number % min(len(open_ones), 3)]
            permit.called = True
            self.model.bank[permit.key] = self.model.bank.get(permit.key, 0) + 1
            assert self.model.bank[permit.key] == 1, "the bank executed twice"

    def bring_the_outcome(self, number: int, unsure: bool, kind: str, within: bool) -> None:
        if not self.model.permits:
            return
        permit = self.model.permits[-1 - number % min(len(self.model.permits), 5)]
        if permit.void and not permit.called and not permit.told:
            return
        part: dict[str, Any] = (
            {"outcome": "succeeded", "external_id": "TX"}
            if permit.called
            else {"outcome": "failed", "error": {"class": kind}}
        )
        if unsure:
            part = {"outcome": "unknown"}
        if part["outcome"] == "failed":
            permit.void = True  # it will not call any more
        lease = permit.lease
        if within:
            answer = self.commit(lease, effects=[{"effect": permit.effect, **part}])
        else:
            body = {"lease": lease.id, "epoch": lease.epoch, **part}
            answer = self.post(f"/runs/{lease.run}/effects/{permit.effect}/outcome", body)
        if answer.status_code == 200:
            assert lease.held
            assert not permit.told
            permit.told = True
        else:
            codes = {"effect_not_held"} if lease.held else {"stale_epoch", "lease_expired", "run_finished"}
            assert answer.json()["code"] in codes, answer.text
            assert not lease.held or permit.told, answer.text

    def time_settles(self, number: int) -> None:
        """So much time passes that no call of an earlier permission can still be under way."""
        if (effect := self.effect(number, "unknown")) is not None:
            settle(effect["id"])
            for permit in self.model.permits:
                permit.void |= permit.effect == effect["id"] and not permit.called

    def find_out(self, number: int, by: str, late: bool) -> None:
        """The bank is asked, and what it says is reported. "Not found" before the time is not believed."""
        statuses = [
            "unknown",
            "unknown",
            "in_flight",
            "succeeded",
            "failed",
            "reconciled_failed",
            "reconciled_succeeded",
        ]
        if (effect := self.effect(number, *(statuses if late else statuses[:1]))) is None:
            return
        happened = bool(self.model.bank.get(effect["key"]))
        early = any(p.effect == effect["id"] and not (p.called or p.void) for p in self.model.permits)
        result = "succeeded" if happened else "failed"
        if by == "operator":
            answer = self.operate(f"/effects/{effect['id']}/reconcile", result=result)
        elif (lease := self.lease(number)) is not None:
            body = {"lease": lease.id, "epoch": lease.epoch, "result": result}
            answer = self.post(f"/effects/{effect['id']}/reconcile", body)
        else:
            return
        if answer.status_code == 200:
            assert answer.json()["status"] == f"reconciled_{result}"
            assert happened or not early, "not found was believed while the call could still be made"
            assert effect["status"] in ("unknown", f"reconciled_{result}")
            for permit in self.model.permits:
                permit.told |= permit.effect == effect["id"]
        else:
            assert answer.json()["code"] in (
                "too_early", "effect_not_unknown", "effect_not_held", "contradicting_evidence", "stale_epoch",
            ), answer.text  # fmt: skip
            if by == "operator" and effect["status"] == "unknown":
                assert answer.json()["code"] == "too_early", answer.text

    # Operators and time.

    def decide_a_gate(self, number: int, satisfied: bool) -> None:
        rows = self.database.execute(
            "select id, status from runs_gate where run_id = any(%s) order by status = 'open', id", [self.runs]
        ).fetchall()
        if not rows:
            return
        gate, status = rows[-1 - number % min(len(rows), 3)]
        answer = self.operate(f"/gates/{gate}/{'satisfy' if satisfied or number % 2 else 'refuse'}")
        assert answer.status_code == (200 if status == "open" else 409), answer.text

    def a_grant_lapses(self, number: int) -> None:
        self.database.execute(
            "update runs_grant set expires_at = clock_timestamp() where run_id = %s and status = 'unused'",
            [self.runs[number % RUNS]],
        )

    def lose_a_lease(self, number: int) -> None:
        """Its worker does not know it."""
        if (lease := self.lease(number)) is None:
            return
        expire(lease.id)
        operations.sweep()
        lease.held = False
        self.look(lease.run)

    def time_passes(self, number: int) -> None:
        self.database.execute(
            "update runs_step set due_at = clock_timestamp() where run_id = %s and status = 'waiting' and due_at is not null",
            [self.runs[number % RUNS]],
        )
        operations.sweep()
        self.look(self.runs[number % RUNS])

    def send_a_signal(self, number: int) -> None:
        run, key = self.runs[number % RUNS], uuid.uuid4().hex
        answer = self.post(f"/runs/{run}/signals", {"name": "s", "payload": number}, key)
        assert answer.status_code == 200 or answer.json()["code"] == "run_finished", answer.text
        again = self.post(f"/runs/{run}/signals", {"name": "s", "payload": number}, key)
        assert again.json() == answer.json() or answer.status_code != 200

    def cancel(self, number: int, grace: int) -> None:
        run = self.runs[number % RUNS]
        answer = self.operate(f"/runs/{run}/cancel", grace_seconds=grace)
        assert answer.status_code in (204, 409), answer.text
        self.look(run)

    def recover(self, number: int, action: str) -> None:
        stopped = [run for run in self.runs if self.look(run) == "dead_letter"]
        if not stopped or (action == "cancel" and number % 3):
            return
        run = stopped[number % len(stopped)]
        answer = self.operate(f"/runs/{run}/recover", action=action)
        assert answer.status_code == 200 or answer.json()["code"] == "effects_open", answer.text
        self.look(run)

    # What always holds.

    @invariant()
    def nothing_is_wrong(self) -> None:
        if not hasattr(self, "runs"):
            return
        for what, statement in WRONG.items():
            rows = self.database.execute(statement.encode(), {"runs": [uuid.UUID(run) for run in self.runs]}).fetchall()
            assert rows == [], f"not true: {what}: {rows}"

    def teardown(self) -> None:
        """Everything that was acknowledged is in the log, and the log verifies."""
        if not hasattr(self, "runs"):
            return
        for run in self.runs:
            assert self.agent.get(f"/runs/{run}/verify").json()["ok"], run
            events = self.agent.get(f"/runs/{run}/events?limit=1000").json()["items"]
            notes = [event["payload"] for event in events if event["type"] == "note"]
            assert sorted(notes) == sorted(self.model.notes[run])
            executed = [event["labels"]["effect"] for event in events if event["type"] == "effect_executing"]
            mine = [permit.effect for permit in self.model.permits if permit.lease.run == run]
            assert sorted(executed) == sorted(mine), "each execute stands in the log, and was answered"
        self.agent.close()
        self.operator.close()


@pytest.mark.proof
@pytest.mark.timeout(3600)
def test_the_engine_does_what_the_model_says(proof: bool) -> None:
    house = make_house("Acme", roles=())
    for tool in TOOLS:
        scope = {"of_step": "step", "of_run": "run", "gated_run": "run"}.get(tool, "tenant")
        retry = {"max_attempts": 4, "initial_seconds": 0}
        register(house, tool, scope=scope, approval="always" if tool.startswith("gated") else "never", retry=retry,
                 reconcile={"settle_seconds": 600})  # fmt: skip
    with tamperer() as database:
        engine = type("Engine", (Engine,), {"house": house, "database": database})
        run_state_machine_as_test(
            engine,
            settings=settings(
                max_examples=200 if proof else 10,
                stateful_step_count=120 if proof else 90,
                deadline=None,
                derandomize=not proof,
                database=None,
                suppress_health_check=list(HealthCheck),
                phases=[Phase.generate, *([Phase.shrink] if proof else [])],
                print_blob=False,
            ),
        )
