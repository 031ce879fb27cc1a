"""Every write route with every field that it takes, on a tenant where the call makes sense."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import httpx

from kernel import clock
from kernel.context import tenant_scope
from kernel.ids import uuid7
from kernel.outbox import operations as outbox_ops
from tests.cast import House, client, make_house
from tests.runs.artifacts import upload


@dataclass(frozen=True)
class Write:
    """A call that is answered as it stands. `free`: the parts of the body that hold any JSON."""

    method: str
    path: str
    body: Any
    key: str = "admin"
    free: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.method} {self.path}"


class Desk:
    """A fresh tenant with a run at work, and its keys."""

    def __init__(self) -> None:
        self.house: House = make_house("Contract")
        self.clients = {name: client(key) for name, key in self.house.keys.items()}
        agent = self.clients["agent"]
        run = {"workflow": "w", "workflow_version": "1", "steps": [{"name": "first"}, {"name": "second"}]}
        self.run_id = self.sent(agent.post("runs", json=run, headers={"Idempotency-Key": "desk"}))["id"]
        self.work = self.sent(agent.post("work/claim", json={"worker": "desk"}))
        schedule = {"name": "desk", "cron": "0 0 1 1 *", "starts_at": "2100-01-01T00:00:00Z", "run": run}
        self.schedule_id = self.sent(self.clients["admin"].post("schedules", json=schedule))["id"]
        with tenant_scope(self.house.id):
            self.message_id = outbox_ops.enqueue(
                tenant=self.house.id, topic="test.nobody", body={}, ordering=None, dedup="desk", now=clock.now()
            )
        admin = self.clients["admin"]
        hook = {"url": "https://hooks.example/desk"}
        endpoint = self.sent(admin.post("webhooks", json=hook))["webhook"]["id"]
        delivery = self.sent(admin.post(f"webhooks/{endpoint}/ping"))["id"]
        self.ids = {
            "run_id": self.run_id,
            "lease": self.work["lease"],
            "message_id": self.message_id,
            "schedule_id": self.schedule_id,
            "member_id": self.house.members["viewer"],
            "key_id": self.house.key_ids["operator"],
            "endpoint_id": endpoint,
            "delivery_id": delivery,
            "queue": "gated",
            "tool": "desk",
            "workflow": "desk",
            "version": "1",
            "artifact_id": upload(self.clients["admin"], b"desk"),
        }
        self._pay(agent, admin)
        self._ask(agent, admin)
        self.sent(admin.put("tools/desk/versions/1", json={"side_effect": "none"}))
        self.sent(admin.put("workflows/desk/versions/1", json={}))

    def _pay(self, agent: httpx.Client, admin: httpx.Client) -> None:
        """An effect in flight under the desk's lease, and a gate of another run."""
        for name, approval in (("pay", "never"), ("ask", "always")):
            self.sent(admin.put(f"tools/{name}/versions/1", json={"side_effect": "none", "approval": approval}))
        held = {"lease": self.work["lease"], "epoch": self.work["epoch"], "business_object": "1"}
        sent = agent.post(f"runs/{self.run_id}/effects", json=held | {"tool": "pay"}, headers={"Idempotency-Key": "e"})
        self.ids["effect_id"] = self.sent(sent)["effect"]
        run = {"workflow": "w", "workflow_version": "1", "steps": [{"name": "first", "queue": "gated"}]}
        other = self.sent(agent.post("runs", json=run, headers={"Idempotency-Key": "gated"}))["id"]
        work = self.sent(agent.post("work/claim", json={"worker": "desk", "queues": ["gated"]}))
        held = {"lease": work["lease"], "epoch": work["epoch"], "business_object": "1", "tool": "ask"}
        asked = agent.post(f"runs/{other}/effects", json=held, headers={"Idempotency-Key": "g"})
        self.ids["gate_id"] = self.sent(asked)["gate"]

    def _ask(self, agent: httpx.Client, admin: httpx.Client) -> None:
        """A request that waits, its policy, and a delegation."""
        self.sent(admin.put("tools/govern/versions/1", json={"side_effect": "none"}))
        rules = {"match": {"tools": ["govern"]}, "groups": [{"name": "all", "role": "approver"}]}
        self.ids["policy_id"] = self.sent(admin.post("approvals/policies", json={"name": "desk", "rules": rules}))["id"]
        run = {"workflow": "w", "workflow_version": "1", "steps": [{"name": "first", "queue": "asked"}]}
        other = self.sent(agent.post("runs", json=run, headers={"Idempotency-Key": "asked"}))["id"]
        work = self.sent(agent.post("work/claim", json={"worker": "desk", "queues": ["asked"]}))
        held = {"lease": work["lease"], "epoch": work["epoch"], "business_object": "1", "tool": "govern"}
        asked = self.sent(agent.post(f"runs/{other}/effects", json=held, headers={"Idempotency-Key": "a"}))
        (request,) = self.sent(agent.get("approvals/requests", params={"gate_id": asked["gate"]}))["items"]
        self.ids["request_id"] = request["id"]
        people = self.house.members
        body = {"from": str(people["approver"]), "to": str(people["owner"])}
        times = {"starts_at": "2100-01-01T00:00:00Z", "ends_at": "2100-01-02T00:00:00Z"}
        self.ids["delegation_id"] = self.sent(admin.post("approvals/delegations", json=body | times))["id"]

    def close(self) -> None:
        for found in self.clients.values():
            found.close()

    @staticmethod
    def sent(response: httpx.Response) -> Any:
        assert response.is_success, response.text
        return response.json()

    def send(self, write: Write, content: bytes, **headers: str) -> httpx.Response:
        sent = {"Content-Type": "application/json", "Idempotency-Key": str(uuid7())} | headers
        path = write.path.format(**self.ids)
        return self.clients[write.key].request(write.method, path, content=content, headers=sent)

    def writes(self) -> dict[str, Write]:
        later = (clock.now() + timedelta(days=1)).isoformat()
        payload = {"text": "x", "number": 1.5, "list": [None, True]}
        step = {"name": "third", "depends_on": ["first"], "queue": "slow", "priority": 1, "max_attempts": 2}
        schedule = {
            "name": "s", "cron": "0 9 * * *", "every_seconds": None, "time_zone": "Asia/Kolkata", "overlap": "skip",
            "missed": "run_all", "jitter_seconds": 5, "starts_at": later, "ends_at": "2100-01-01T00:00:00Z",
            "run": {"workflow": "w", "workflow_version": "1", "input": payload, "steps": [{**step, "depends_on": []}]},
        }  # fmt: skip
        event = {
            "type": "tool.called", "step": "first", "occurred_at": later, "labels": {"tool": "bank"}, "input": payload,
            "output": payload, "payload": payload, "trace_id": "0af7651916cd43dd8448eb211c80319c",
            "span_id": "b7ad6b7169203331",
            "usage": {"model": "m", "input_tokens": 1, "output_tokens": 2, "cost": "0.5", "currency": "INR"},
        }  # fmt: skip
        found = [
            Write(
                "POST", "runs",
                {
                    "workflow": "w", "workflow_version": "1", "agent_version": "1", "project": "main", "agent": "clerk",
                    "subject": "s", "correlation_id": "c", "task_id": "t", "labels": {"a": "b"}, "versions": {"model": "m"},
                    "input": payload, "steps": [{**step, "name": "first", "depends_on": []}, step],
                },
                key="agent", free=("/input",),
            ),
            Write(
                "POST", "runs/{run_id}/commit",
                {
                    "lease": str(self.work["lease"]), "epoch": self.work["epoch"], "head": self.work["run"]["head"],
                    "events": [event], "checkpoint": {"state": {"a": payload}}, "new_steps": [step],
                    "step": {"outcome": "succeeded", "output": payload},
                },
                key="agent",
                free=("/events/0/input", "/events/0/output", "/events/0/payload", "/checkpoint/state/a", "/step/output"),
            ),
            Write("POST", "runs/{run_id}/cancel", {"reason": "enough", "grace_seconds": 1}),
            Write("POST", "runs/recover", {
                "action": "cancel", "reason": "enough", "workflow": "w", "agent": "clerk", "project": "main", "created_from": later,
                "created_to": later, "limit": 10,
            }),
            Write("POST", "runs/{run_id}/signals", {"name": "answer", "payload": payload}, key="agent", free=("/payload",)),
            Write(
                "POST", "runs/{run_id}/effects",
                {
                    "lease": str(self.work["lease"]), "epoch": self.work["epoch"], "tool": "pay", "tool_version": "1",
                    "input": payload, "business_object": "INV-1", "explanation": "It is due.",
                    "target": {"version": "3", "content": payload},
                    "evidence": [{"kind": "fact", "ref": "ledger", "content": payload, "observed_at": later}],
                },
                key="agent", free=("/input", "/target/content", "/evidence/0/content"),
            ),
            Write(
                "POST", "runs/{run_id}/effects/{effect_id}/outcome",
                {
                    "lease": str(self.work["lease"]), "epoch": self.work["epoch"], "outcome": "succeeded", "output": payload,
                    "external_id": "TX-1",
                },
                key="agent", free=("/output",),
            ),
            *(
                Write("PUT", path, {"paused": False, "max_leased": 5, "rate_per_minute": 60, "burst": 5, "reason": "enough"})
                for path in ("queues/{queue}", "queues")
            ),
            Write("POST", "gates/{gate_id}/satisfy", {"reason": "looked at it"}),
            Write("POST", "gates/{gate_id}/refuse", {"reason": "looked at it"}),
            Write("POST", "gates/{gate_id}/renew", {"reason": "it was a holiday"}),
            Write("POST", "runs/{run_id}/recover", {"action": "retry", "reason": "it is mended", "step": "first"}),
            Write(
                "POST", "effects/{effect_id}/reconcile",
                {"result": "failed", "reason": "asked", "output": payload, "external_id": "TX-1", "evidence": payload},
                free=("/output", "/evidence"),
            ),
            Write("POST", "runs/{run_id}/artifacts", {"artifact_id": str(self.ids["artifact_id"])}),
            Write(
                "POST", "artifacts",
                {"name": "a", "media_type": "text/plain", "size": 1, "sha256": "0" * 64, "project": "main"}, key="agent",
            ),
            Write(
                "POST", "runs/{run_id}/fork",
                {"reason": "try again", "checkpoint": 1, "workflow_version": "1", "steps": [{**step, "depends_on": []}]},
            ),
            Write(
                "POST", "runs/{run_id}/resume", {"workflow_version": "1", "tools": {"desk": "1"}, "apply": True},
                free=("/tools",),
            ),
            Write(
                "POST", "work/claim",
                {"worker": "w", "queues": ["none"], "lease_seconds": 30, "wait_seconds": 0, "run_id": str(self.run_id)},
                key="agent",
            ),
            Write("POST", "work/{lease}/heartbeat", {"epoch": self.work["epoch"], "lease_seconds": 30}, key="agent"),
            Write("POST", "schedules", schedule, free=("/run/input",)),
            Write("PATCH", "schedules/{schedule_id}", schedule, free=("/run/input",)),
            Write("POST", "outbox/retry", {"topic": "test.nobody", "last_error": "http_503", "limit": 10}),
            Write("POST", "outbox/{message_id}/skip", {"reason": "enough"}),
            *self._approvals(later, payload),
            Write("POST", "webhooks", {"url": "https://hooks.example/a", "kinds": ["webhook.disabled"]}),
            Write(
                "PATCH", "webhooks/{endpoint_id}",
                {"url": "https://hooks.example/b", "kinds": ["webhook.disabled"], "enabled": True},
            ),
            Write("POST", "webhooks/{endpoint_id}/rotate", {"overlap_seconds": 60}),
            Write(
                "POST", "webhooks/{endpoint_id}/redeliver",
                {"since": "2026-01-01T00:00:00Z", "delivered": True, "cursor": str(uuid7()), "limit": 5},
            ),
            Write("POST", "projects", {"slug": "p", "name": "P"}),
            Write("POST", "agents", {"slug": "a", "name": "A", "owner_id": str(self.house.members["owner"])}),
            Write("PUT", "members/{member_id}/roles", {"roles": ["viewer"]}),
            Write(
                "POST", "keys",
                {
                    "name": "k", "scopes": ["runs:read"], "agent_id": str(self.house.agent_id),
                    "project_ids": [str(self.house.project_id)], "expires_at": later,
                },
            ),
            Write("POST", "keys/{key_id}/rotate", {"overlap_seconds": 60}),
            Write(
                "PUT", "tools/{tool}/versions/{version}",
                {
                    "side_effect": "irreversible", "description": "Pays", "input_schema": {"type": "object"},
                    "output_schema": {"type": "object"}, "business_key": "{id}", "scope": "tenant",
                    "amount": {"path": "amount", "currency_path": "currency"},
                    "limits": {
                        "max_amount_per_call": {"INR": "500000.00"}, "max_amount_per_day": {"INR": "900000"},
                        "calls_per_minute": 10, "calls_per_day": 100, "max_in_flight": 2, "time_zone": "Asia/Kolkata",
                    },
                    "approval": "always",
                    "retry": {
                        "max_attempts": 2, "initial_seconds": 1, "factor": 2, "max_seconds": 60, "deadline_seconds": 600,
                    },
                    "compensation": {"tool": "refund", "version": "1", "input": {"id": "{output/id}"}},
                    "reconcile": {
                        "hint": "Ask", "probe_url": "https://bank.example/{key}", "settle_seconds": 5, "give_up_seconds": 60,
                    },
                    "redact": ["/card"], "execute_seconds": 30,
                },
                free=("/input_schema", "/output_schema", "/limits/max_", "/compensation/input"),
            ),
            Write("PATCH", "tools/{tool}/versions/{version}", {"enabled": True, "reason": "it works"}),
            Write(
                "PUT", "workflows/{workflow}/versions/{version}",
                {
                    "description": "Pays", "state_schema": 2, "state_json_schema": {"type": "object"}, "tools": {"bank": "1"},
                    "steps": [{**step, "name": "first", "depends_on": []}, step],
                    "defaults": {"max_attempts": 2, "retry": {"max_attempts": 2}, "deadline_seconds": 60},
                    "migrations": [{"from": 1, "to": 2, "patch": [{"op": "remove", "path": "/a"}], "description": "d"}],
                },
                free=("/state_json_schema", "/tools", "/migrations/0/patch"),
            ),
            Write("PATCH", "workflows/{workflow}/versions/{version}", {"enabled": True, "reason": "it works"}),
        ]  # fmt: skip
        return {write.name: write for write in found}

    def _approvals(self, later: str, payload: Any) -> list[Write]:
        people, request = self.house.members, "approvals/requests/{request_id}"
        rules = {
            "match": {
                "tools": ["none"], "side_effects": ["irreversible"], "amount_over": {"INR": "1000"}, "labels": {"a": "b"},
                "agents": ["clerk"], "projects": ["main"], "risk_at_least": "high",
            },
            "groups": [{"name": "finance", "count": 2, "role": "approver", "approvers": True,
            "keys": [str(self.house.key_ids["admin"])]}],
            "risk": [{"name": "large", "level": "critical", "when": {"tools": ["none"]}}], "self_approval": False,
            "deadline_seconds": 3600, "reminders": [600], "escalation": [{"after_seconds": 60, "role": "admin", "decides": True}],
            "step_up_at": "critical", "bulk_up_to": "low", "evidence_max_age_seconds": 60, "grant_seconds": 60,
        }  # fmt: skip
        free = ("/rules/match/amount_over",)
        decision = {"answer": "approve", "reason": "looked at it"}
        return [
            Write("POST", "approvals/decide", decision | {"requests": [{"request": str(self.ids["request_id"]),
            "digest": "0" * 64}]}),
            Write("POST", f"{request}/decide", decision | {"digest": "0" * 64}),
            Write("POST", f"{request}/withdraw", {"reason": "enough"}),
            Write(
                "POST", f"{request}/revalidate",
                {"evidence": [{"kind": "fact", "ref": "ledger", "content": payload, "observed_at": later}]},
                free=("/evidence/0/content",),
            ),
            Write("POST", f"{request}/target", {"version": "4", "content": payload}, free=("/content",)),
            Write("POST", f"{request}/renew", {"reason": "it was a holiday"}),
            Write("POST", f"{request}/revoke", {"reason": "a mistake"}),
            Write("POST", f"{request}/comments", {"kind": "comment", "text": "Why?"}),
            Write("POST", "approvals/policies", {"name": "p", "rules": rules, "priority": 1}, free=free),
            Write(
                "POST", "approvals/policies/dry-run",
                {"rules": rules, "last": 5, "policy_id": str(self.ids["policy_id"]), "name": "p", "priority": 1},
                free=free,
            ),
            Write("PATCH", "approvals/policies/{policy_id}", {"rules": rules, "priority": 2, "enabled": True}, free=free),
            Write(
                "POST", "approvals/delegations",
                {
                    "from": str(people["approver"]), "to": str(people["owner"]), "starts_at": later,
                    "ends_at": (clock.now() + timedelta(days=9)).isoformat(), "away": True,
                    "policy_id": str(self.ids["policy_id"]), "reason": "on leave",
                },
            ),
        ]  # fmt: skip
