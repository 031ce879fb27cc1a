"""The story that the screenshots tell: a tenant whose runs are in every state, one of them killed and resumed.

Times of runs, steps and attempts are moved into the past as the database owner, so that a timeline has minutes to show; events
keep theirs, because their chain covers it.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import httpx
import psycopg

from kernel import actor, clock
from kernel.context import tenant_scope
from notices import operations as notices
from notices.models import Delivery
from runs import operations as runs_ops
from tenancy import operations as tenancy_ops
from tenancy.queries import SCOPES
from tests.cast import House, client
from tests.servers import owner_url

STATE = {
    "goal": "Reconcile 842 invoices",
    "plan": [{"step": "fetch_invoices", "status": "done"}, {"step": "match_payments", "status": "running"}],
    "facts": {"invoices": 842, "matched": 611, "total": 41_250_000.5},
    "notes": "समायोजन लंबित: दो भुगतान आंशिक हैं।",
    "pending_approvals": [],
    "policy_flags": {"dual_control": True, "limit": None},
}

# When a step's attempts began and ended, in minutes after the start.
Minutes = dict[str, list[tuple[float, float]]]


@dataclass
class Story:
    house: House
    runs: dict[str, UUID] = field(default_factory=dict)
    effects: dict[str, str] = field(default_factory=dict)
    gates: dict[str, str] = field(default_factory=dict)
    hook: UUID | None = None


@dataclass
class Worker:
    """An agent's worker, through the API as every agent does it."""

    api: httpx.Client
    run: UUID
    name: str = "worker-2"
    lease: str = ""
    epoch: int = 0

    def claim(self) -> "Worker":
        answer = self.api.post(
            "/work/claim", json={"worker": self.name, "run_id": str(self.run), "lease_seconds": 3600}
        )
        assert answer.status_code == 200, answer.text
        self.lease, self.epoch = answer.json()["lease"], answer.json()["epoch"]
        return self

    def commit(self, **parts: Any) -> dict[str, Any]:
        body = {"lease": self.lease, "epoch": self.epoch, **parts}
        headers = {"Idempotency-Key": str(uuid4())}
        answer = self.api.post(f"/runs/{self.run}/commit", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def reserve(self, tool: str | None, **more: Any) -> dict[str, Any]:
        """The decision about a side effect."""
        body = {"lease": self.lease, "epoch": self.epoch, "tool": tool, **more}
        body = {name: value for name, value in body.items() if value is not None}
        answer = self.api.post(f"/runs/{self.run}/effects", json=body, headers={"Idempotency-Key": str(uuid4())})
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def did(self, effect: str, **outcome: Any) -> None:
        self.commit(effects=[{"effect": effect, "outcome": "succeeded", **outcome}])

    def succeed(self, **output: Any) -> None:
        self.commit(step={"outcome": "succeeded", "output": output})


def start(api: httpx.Client, workflow: str, *steps: str, version: str = "7", **more: Any) -> UUID:
    """A run whose steps follow one another."""
    plan = [
        {"name": name, "depends_on": [before] if before else [], **more}
        for before, name in zip(("", *steps), steps, strict=False)
    ]
    body = {
        "workflow": workflow,
        "workflow_version": version,
        "agent_version": "3.2.0",
        "steps": plan,
        "input": {"month": 11},
    }
    answer = api.post("/runs", json=body, headers={"Idempotency-Key": str(uuid4())})
    assert answer.status_code == 201, answer.text
    return UUID(answer.json()["id"])


def tell(house: House) -> Story:
    """Make the runs; a few dozen calls."""
    story, api = Story(house), client(house.keys["agent"])
    with api:
        story.runs["done"] = _resumed(api, house)
        for workflow in ("check-vendor-master", "sync-bank-statements"):
            run = start(api, workflow, "read", "compare")
            for _ in range(2):
                Worker(api, run, "worker-5").claim().succeed()
        story.runs["running"] = _running(api)
        story.runs["waiting"] = start(api, "read-scanned-bills", "read_page", "store", queue="ocr-gpu")
        story.runs["dead"] = _dead(api, house)
        story.runs["failed"] = start(api, "match-card-settlements", "fetch", "match")
        Worker(api, story.runs["failed"]).claim().succeed()
        Worker(api, story.runs["failed"]).claim().commit(
            step={"outcome": "failed", "error": {"class": "business_rejection", "message": "closed period"}}
        )
        _ledger(story, api, house)
        story.hook = _hook(house)
        story.runs["cancelled"] = start(api, "remind-overdue-customers", "pick", "write", "send", "report")
        with tenant_scope(house.id):
            runs_ops.cancel_run(
                tenant=house.id,
                run_id=story.runs["cancelled"],
                reason="wrong segment",
                actor=actor.Actor("member", house.members["operator"], "Operator Acme"),
                now=clock.now(),
            )
    with tenant_scope(house.id):
        who = actor.system("tests")
        for name in ("statement-clerk, production", "old laptop"):
            issued = tenancy_ops.issue_key(
                tenant=house.id,
                name=name,
                scopes=["runs:read", "work:claim"],
                expires_at=clock.now() + timedelta(days=5),
                actor=who,
                now=clock.now(),
            )
        tenancy_ops.revoke_key(tenant=house.id, key_id=issued.key.id, actor=who, now=clock.now())
    return story


def _hook(house: House) -> UUID:
    """A webhook with deliveries in each state; what was written down of their attempts is made up."""
    now, who = clock.now(), actor.system("tests")
    with tenant_scope(house.id):
        url = "https://hooks.acme.example/in/erp?team=finance"
        hook = notices.create_endpoint(tenant=house.id, url=url, kinds=[], actor=who, now=now).endpoint.id
        sent = [notices.ping(tenant=house.id, endpoint_id=hook, now=now).id for _ in range(4)]
        tried = Delivery.objects.filter(id__in=sent[1:])
        tried.update(attempts=3, last_at=now, last_status=503, last_error="http_503", latency_ms=412)
        Delivery.objects.filter(id__in=sent[2:]).update(
            attempts=1, last_status=204, last_error=None, delivered_at=now, latency_ms=87
        )
    return hook


def tell_long(house: House) -> Story:
    """The longest names and values there can be, without a blank to break them at; and more steps than one page shows."""
    story, api = Story(house), client(house.keys["agent"])
    long = "w" * 63
    with api:
        story.runs["long"] = run = start(
            api, f"{long}w", *(f"{long}{letter}" for letter in "abcdefgh"), queue=f"{long}q"
        )
        body = {"worker": f"{long}n", "queues": [f"{long}q"], "run_id": str(run)}
        claim = api.post("/work/claim", json=body).json()
        worker = Worker(api, run, lease=claim["lease"], epoch=claim["epoch"])
        payload = {"k" * 200: "v" * 5000, "list": list(range(2000)), "deep": [[[["x" * 300]]]]}
        labels = {f"{long[:-2]}{n:02}": long for n in range(16)}
        worker.commit(
            head=0, checkpoint={"state": payload}, events=[{"type": "e" * 64, "labels": labels, "payload": payload}]
        )
        worker.commit(head=1, checkpoint={"state": {**payload, "k" * 200: "u" * 5000}})
        _long_ledger(story, api, house, long)
        story.runs["many"] = many = start(api, "many-steps", *(f"step_{n:03}" for n in range(1, 121)))
        for _ in range(50):
            Worker(api, many).claim().succeed()
    with tenant_scope(house.id):
        tenancy_ops.issue_key(
            tenant=house.id, name="k" * 120, scopes=SCOPES, actor=actor.system("a" * 100), now=clock.now()
        )
    return story


def _long_ledger(story: Story, api: httpx.Client, house: House, long: str) -> None:
    """An unknown outcome, a gate and dead letters, all as long as they may be."""
    tool = f"{long}t"
    definition = {
        "side_effect": "irreversible", "description": "d" * 400, "amount": {"path": "amount", "currency": "INR"},
        "business_key": "{key}", "reconcile": {"hint": "h" * 300}, "redact": [f"/{long}{n}" for n in range(20)],
        "input_schema": {"type": "object", "properties": {f"{long}{n}": {"description": long * 4} for n in range(100)}},
    }  # fmt: skip
    steps = [{"name": f"{long}{n:02}"[-64:], "queue": f"{long}q"} for n in range(40)]
    with client(house.keys["admin"]) as admin:
        for name, more in ((tool, {}), (f"{long}u", {"approval": f"{long}r"})):
            assert admin.put(f"/tools/{name}/versions/{long}v", json=definition | more).is_success
        flow = {"description": "d" * 400, "steps": steps, "tools": {tool: f"{long}v"}}
        assert admin.put(f"/workflows/{long}w/versions/{long}v", json=flow).is_success

    def begin(number: int) -> Worker:
        run = start(api, f"{long}w", f"{long}{number}", queue=f"{long}q")
        work = api.post("/work/claim", json={"worker": f"{long}n", "queues": [f"{long}q"], "run_id": str(run)}).json()
        return Worker(api, run, lease=work["lease"], epoch=work["epoch"])

    asked = {"key": "k" * 200, "amount": "999999999999.999999", "text": "t" * 3000, "list": list(range(500))}
    for number in range(3):
        worker = begin(number)
        worker.reserve(tool, input=asked | {"key": f"{number}{'k' * 200}"})
        error = {"class": "permanent", "message": "m" * 4000}
        worker.commit(step={"outcome": "failed", "error": error})
        story.runs["long-dead"] = worker.run
    worker = begin(4)
    gate = worker.reserve(f"{long}u", input=asked)
    story.runs["long-gate"], story.gates["long"], story.effects["long"] = worker.run, gate["gate"], gate["effect"]


def _resumed(api: httpx.Client, house: House) -> UUID:
    """Killed in match_payments, resumed by another worker."""
    run = start(api, "reconcile-invoices", "fetch_invoices", "match_payments", "create_report")
    first = Worker(api, run).claim()
    for page in range(3):
        first.commit(
            events=[{"type": "page.read", "labels": {"page": str(page)}, "payload": {"rows": 281, "page": page}}]
        )
    first.commit(head=0, checkpoint={"state": STATE})
    first.succeed(invoices=842)
    first.claim()
    first.commit(events=[{"type": "match.tried", "payload": {"invoice": "INV-24-3317", "payee": "श्री गणेश ट्रेडर्स, पुणे"}}])
    _lose(house, first.lease)
    second = Worker(api, run, "worker-5").claim()
    patch = [
        {"op": "replace", "path": "/facts/matched", "value": 825},
        {"op": "replace", "path": "/plan/1/status", "value": "done"},
        {"op": "add", "path": "/facts/open_invoices", "value": 17},
        {"op": "remove", "path": "/policy_flags/limit"},
    ]
    second.commit(
        head=1, checkpoint={"patch": patch}, events=[{"type": "match.finished", "labels": {"matched": "825"}}]
    )
    second.succeed(matched=825)
    second.claim().succeed(total="41250000.50")
    minutes: Minutes = {
        "fetch_invoices": [(0, 1.7)],
        "match_payments": [(1.7, 4.3), (5.3, 10)],
        "create_report": [(10, 11.2)],
    }
    _move(house, run, minutes, ago=64)
    return run


def _running(api: httpx.Client) -> UUID:
    run = start(api, "sync-bank-statements", "list_pages", "fetch_pages", "parse_pages", "store", "report")
    worker = Worker(api, run, "worker-5")
    worker.claim().succeed()
    worker.claim().commit(head=0, checkpoint={"state": STATE}, step={"outcome": "succeeded"})
    worker.claim().commit(events=[{"type": "page.parsed", "labels": {"page": "3"}, "payload": {"lines": 418}}])
    return run


def _dead(api: httpx.Client, house: House) -> UUID:
    run = start(api, "file-gstr-1", "collect", "file_return")
    Worker(api, run, "worker-9").claim().succeed()
    Worker(api, run, "worker-9").claim().commit(
        step={"outcome": "failed", "error": {"class": "permanent", "message": "the portal refused the number"}}
    )
    _move(house, run, {"collect": [(0, 2)], "file_return": [(2, 9.6)]}, ago=190)
    return run


TOOLS: dict[str, dict[str, Any]] = {
    "bank.pay": {
        "side_effect": "irreversible", "description": "Pays a supplier from the current account.", "business_key": "{invoice}",
        "input_schema": {
            "type": "object", "required": ["invoice", "amount"],
            "properties": {"invoice": {"type": "string"}, "amount": {"type": "string"}, "payee": {"type": "string"}},
        },
        "scope": "tenant", "amount": {"path": "amount", "currency": "INR"},
        "limits": {"max_amount_per_call": {"INR": "500000.00"}, "calls_per_day": 5000, "time_zone": "Asia/Kolkata"},
        "compensation": {"tool": "bank.recall", "input": {"payment": "{output/payment}"}},
        "reconcile": {"hint": "Look for the key in the statement of account, column reference.", "settle_seconds": 900},
    },
    "bank.recall": {"side_effect": "irreversible"},
    "bank.pay_large": {
        "side_effect": "irreversible", "business_key": "{invoice}", "amount": {"path": "amount", "currency": "INR"},
        "approval": "two_lakh_and_more",
    },
    "mail.send": {"side_effect": "idempotent", "business_key": "{to}", "description": "Sends a mail to a supplier."},
}  # fmt: skip


def _ledger(story: Story, api: httpx.Client, house: House) -> None:
    """Effects in every state, and runs that wait for each reason."""
    with client(house.keys["admin"]) as admin:
        for name, definition in TOOLS.items():
            assert admin.put(f"/tools/{name}/versions/1", json=definition).is_success
        workflow = {
            "description": "Pays what is due", "state_schema": 2, "tools": {"bank.pay": "1"},
            "steps": [{"name": "pick"}, {"name": "pay", "depends_on": ["pick"]}],
            "migrations": [{"from": 1, "to": 2, "patch": [{"op": "move", "from": "/rows", "path": "/invoices"}]}],
        }  # fmt: skip
        assert admin.put("/workflows/pay-suppliers/versions/7", json=workflow).is_success

    def pay(worker: Worker, invoice: str, amount: str, tool: str = "bank.pay") -> dict[str, Any]:
        return worker.reserve(tool, input={"invoice": invoice, "amount": amount, "payee": "श्री गणेश ट्रेडर्स, पुणे"})

    # Paid twice, once with an unknown end: stopped for good.
    story.runs["unknown"] = run = start(api, "pay-suppliers", "pick", "pay", "confirm")
    worker = Worker(api, run).claim()
    worker.succeed()
    worker.claim()
    paid = pay(worker, "INV-24-3317", "37500.00")
    worker.did(paid["effect"], output={"payment": "P-1"}, external_id="UTR 2291 8814")
    mail = worker.reserve("mail.send", input={"to": "accounts@ganesh.example"})
    worker.did(mail["effect"])
    lost = pay(worker, "INV-24-3318", "120000.00")
    worker.commit(
        step={"outcome": "failed", "error": {"class": "permanent", "message": "the bank closed the connection"}}
    )
    story.effects |= {"succeeded": paid["effect"], "unknown": lost["effect"]}
    # A gate.
    story.runs["gate"] = run = start(api, "pay-suppliers", "pick", "pay")
    Worker(api, run).claim().succeed()
    asked = pay(Worker(api, run).claim(), "INV-24-4001", "412500.00", "bank.pay_large")
    story.effects["reserved"], story.gates["open"] = asked["effect"], asked["gate"]
    # An unknown effect that the next worker must find out about, and whose worker came back too late.
    story.runs["finding"] = run = start(api, "pay-suppliers", "pay")
    worker = Worker(api, run).claim()
    late = pay(worker, "INV-24-5001", "18240.00")
    _lose(house, worker.lease)
    headers = {"Idempotency-Key": str(uuid4())}
    body = {"lease": worker.lease, "epoch": worker.epoch, "outcome": "succeeded", "external_id": "UTR 77"}
    assert api.post(f"/runs/{run}/effects/{late['effect']}/outcome", json=body, headers=headers).status_code == 409
    story.effects["finding"] = late["effect"]
    # In flight now.
    story.runs["flying"] = run = start(api, "pay-suppliers", "pay", "confirm")
    pay(Worker(api, run, "worker-5").claim(), "INV-24-6001", "86200.00")
    for name, wait in (
        ("timer", {"timer": {"seconds": 7200}}),
        ("signal", {"signal": {"name": "bank_holiday_over", "timeout_seconds": 86400}}),
        ("child", {"child": {"run_id": str(run)}}),
    ):
        story.runs[name] = start(api, f"wait-for-{name}", "rest", "go_on")
        Worker(api, story.runs[name]).claim().commit(step={"outcome": "waiting", "wait": wait})
    # Tried again later.
    story.runs["retry"] = start(
        api, "sync-bank-statements", "list_pages", retry={"initial_seconds": 3600, "max_seconds": 7200}
    )
    Worker(api, story.runs["retry"]).claim().commit(
        step={"outcome": "failed", "error": {"class": "rate_limited", "message": "slow down", "retry_after": 1800}}
    )


def _as_owner(house: House) -> psycopg.Connection[Any]:
    connection = psycopg.connect(owner_url())
    connection.execute("select set_config('smriti.tenant', %s, true)", [str(house.id)])
    return connection


def _lose(house: House, lease: str) -> None:
    """Let a lease run out as if its worker had been killed."""
    with _as_owner(house) as connection:
        connection.execute(
            "update runs_attempt set claimed_at = now() - interval '3 hours', heartbeat_at = now() - interval '2 hours',"
            " expires_at = now() - interval '1 hour' where id = %s",
            [lease],
        )
    assert runs_ops.sweep() >= 1


def _move(house: House, run: UUID, minutes: Minutes, *, ago: float) -> None:
    """Put a run's attempts at these minutes after its start, and its start `ago` minutes back."""
    begin = clock.now() - timedelta(minutes=ago)

    def at(minute: float) -> datetime:
        return begin + timedelta(minutes=minute)

    end = at(max(last for spans in minutes.values() for _, last in spans))
    with _as_owner(house) as connection:
        connection.execute(
            "update runs_run set created_at = %s, started_at = %s, updated_at = %s,"
            " completed_at = case when completed_at is null then null else %s end where id = %s",
            [at(-0.1), begin, end, end, run],
        )
        for step, spans in minutes.items():
            for number, (first, last) in enumerate(spans, start=1):
                connection.execute(
                    "update runs_attempt a set claimed_at = %s, heartbeat_at = %s, ended_at = %s from runs_step s"
                    " where s.id = a.step_id and s.run_id = %s and s.name = %s and a.number = %s",
                    [at(first), at(last), at(last), run, step, number],
                )
            connection.execute(
                "update runs_step set started_at = %s, ended_at = %s where run_id = %s and name = %s",
                [at(spans[0][0]), at(spans[-1][1]), run, step],
            )
