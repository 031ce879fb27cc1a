"""A tenant with a row in every table, so that there is something to steal."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import httpx

from approvals.operations import decisions
from kernel import clock
from kernel.actor import system
from kernel.context import tenant_scope
from kernel.outbox import operations as outbox_ops
from notices import operations as notices
from privacy import operations as privacy_ops
from privacy.models import HoldKind
from runs import operations as runs_ops
from runs.models import Offload
from tenancy.models import Member
from tenancy.queries import Principal
from tests.cast import House, client, make_house
from tests.runs.artifacts import upload
from tests.runs.driver import expire


@dataclass(frozen=True)
class Story:
    """`words`: what this tenant alone knows; none may appear in another's answers."""

    house: House
    run_id: UUID
    lease: UUID
    effect: str
    gate: str
    message_id: UUID
    schedule_id: UUID
    artifact_id: UUID
    request_id: UUID
    policy_id: UUID
    delegation_id: UUID
    endpoint_id: UUID
    delivery_id: UUID
    project: str
    agent: str
    words: tuple[str, ...]

    @property
    def ids(self) -> dict[str, UUID | str]:
        return {
            "run_id": self.run_id,
            "lease": self.lease,
            "effect_id": self.effect,
            "gate_id": self.gate,
            "message_id": self.message_id,
            "schedule_id": self.schedule_id,
            "member_id": self.house.members["viewer"],
            "key_id": self.house.key_ids["operator"],
            "queue": f"{self.project}.queue",
            "tool": f"{self.project}.tool",
            "workflow": f"{self.project}.flow",
            "version": f"{self.project}.v",
            "artifact_id": self.artifact_id,
            "request_id": self.request_id,
            "policy_id": self.policy_id,
            "delegation_id": self.delegation_id,
            "endpoint_id": self.endpoint_id,
            "delivery_id": self.delivery_id,
        }


def tell(name: str) -> Story:
    """A fresh tenant that has used everything."""
    house = make_house(name)
    word = f"{name.lower()}-{house.id.hex[-8:]}"
    with client(house.keys["admin"]) as admin, client(house.keys["agent"]) as agent:
        _sent(admin.post("/projects", json={"slug": word, "name": word}, headers={"Idempotency-Key": f"p-{word}"}))
        _sent(admin.post("/agents", json={"slug": word, "name": word}))
        for kind, definition in (("tool", {"side_effect": "none"}), ("flow", {})):
            path = f"/{'tools' if kind == 'tool' else 'workflows'}/{word}.{kind}/versions/{word}.v"
            _sent(admin.put(path, json={"description": word} | definition))
        steps = [{"name": "fetch"}, {"name": "match", "depends_on": ["fetch"]}]
        body = {
            "workflow": word, "workflow_version": "1", "project": word, "subject": f"{word}@example.com", "steps": steps,
            "labels": {"from": word}, "input": {"say": word},
        }  # fmt: skip
        idle = {
            "workflow": word,
            "workflow_version": "1",
            "project": word,
            "steps": [{"name": "a", "queue": f"{word}.queue"}],
        }
        _sent(agent.post("/runs", json=idle, headers={"Idempotency-Key": "r0"}))
        run = _sent(agent.post("/runs", json=body, headers={"Idempotency-Key": "r"}))["id"]
        later = body | {"steps": [{"name": "fetch", "queue": "nobody"}]}
        schedule = _sent(
            admin.post(
                "/schedules",
                json={"name": word, "cron": "0 0 1 1 *", "starts_at": "2100-01-01T00:00:00Z", "run": later},
            )
        )["id"]
        work = _sent(agent.post("/work/claim", json={"worker": word}))
        commit = {
            "lease": work["lease"], "epoch": work["epoch"], "head": work["run"]["head"],
            "events": [{"type": "note", "payload": {"say": word}, "labels": {"from": word}}],
            "checkpoint": {"state": {"say": word}}, "step": {"outcome": "succeeded", "output": {"say": word}},
        }  # fmt: skip
        _sent(agent.post(f"/runs/{run}/commit", json=commit, headers={"Idempotency-Key": "c"}))
        work = _sent(agent.post("/work/claim", json={"worker": word, "lease_seconds": 3600}))
        run_2 = _sent(agent.post("/runs", json=body | {"steps": steps[:1]}, headers={"Idempotency-Key": "r2"}))["id"]
        work_2 = _sent(agent.post("/work/claim", json={"worker": word, "run_id": run_2}))
        end = {"lease": work_2["lease"], "epoch": work_2["epoch"], "step": {"outcome": "succeeded"}}
        _sent(agent.post(f"/runs/{run_2}/commit", json=end, headers={"Idempotency-Key": "c2"}))
        _sent(admin.post(f"/schedules/{schedule}/run-now"))
        artifact = upload(agent, word.encode(), name=f"{word}.txt", run_id=run)
    effect, gate = _pay(house, word, body)
    request, policy, delegation = _ask(house, word, body)
    now = clock.now()
    runs_ops.anchor_heads(now=now)
    runs_ops.advance_feed(tenant=house.id)
    runs_ops.count_tenant(tenant=house.id)
    with tenant_scope(house.id):
        Offload.objects.create(run_id=UUID(run), size=1, created_at=now)
        privacy_ops.place_hold(
            tenant=house.id,
            kind=HoldKind.RUN,
            target_id=UUID(run),
            reason=word,
            review_on=now.date(),
            actor=system("tests"),
            now=now,
        )
        endpoint_id, delivery_id = _notices(house, word)
        message_id = outbox_ops.enqueue(
            tenant=house.id, topic="test.nobody", body={"say": word}, ordering=UUID(run), dedup=word, now=now
        )
    return Story(
        house=house,
        run_id=UUID(run),
        lease=UUID(work["lease"]),
        effect=effect,
        gate=gate,
        message_id=message_id,
        schedule_id=UUID(schedule),
        artifact_id=artifact,
        request_id=request,
        policy_id=policy,
        delegation_id=delegation,
        endpoint_id=endpoint_id,
        delivery_id=delivery_id,
        project=word,
        agent=word,
        words=(
            word,
            house.name,
            str(house.id),
            run,
            work["lease"],
            effect,
            gate,
            str(message_id),
            schedule,
            str(artifact),
            *map(str, (request, policy, delegation)),
            str(endpoint_id),
            str(delivery_id),
            *map(str, house.members.values()),
            *map(str, house.key_ids.values()),
        ),
    )


def _notices(house: House, word: str) -> tuple[UUID, UUID]:
    """A webhook with something on its way, and a member who has chosen. In the tenant's scope."""
    now, who = clock.now(), system("tests")
    url = f"https://hooks.example/{word}"
    endpoint = notices.create_endpoint(tenant=house.id, url=url, kinds=[], actor=who, now=now).endpoint
    notices.choose(tenant=house.id, member_id=house.members["viewer"], language="hi", wanted=[])
    return endpoint.id, notices.ping(tenant=house.id, endpoint_id=endpoint.id, now=now).id


def _pay(house: House, word: str, body: dict[str, Any]) -> tuple[str, str]:
    """An effect whose worker was lost and came back too late, and one behind a gate that was satisfied."""
    pay = {"side_effect": "irreversible", "business_key": "{say}", "limits": {"calls_per_day": 9}}
    with client(house.keys["admin"]) as admin, client(house.keys["agent"]) as agent:
        for name, approval in (("pay", "never"), ("ask", "always")):
            _sent(admin.put(f"/tools/{word}.{name}/versions/1", json=pay | {"approval": approval}))
        run = _sent(agent.post("/runs", json=body, headers={"Idempotency-Key": "r3"}))["id"]
        _sent(
            agent.post(f"/runs/{run}/signals", json={"name": word, "payload": word}, headers={"Idempotency-Key": "s"})
        )
        held = _sent(agent.post("/work/claim", json={"worker": word, "run_id": run}))
        wanted = {"lease": held["lease"], "epoch": held["epoch"], "tool": f"{word}.pay", "input": {"say": word}}
        paid = _sent(agent.post(f"/runs/{run}/effects", json=wanted, headers={"Idempotency-Key": "e"}))
        expire(held["lease"])
        runs_ops.sweep()
        late = {"lease": held["lease"], "epoch": held["epoch"], "outcome": "succeeded", "external_id": word}
        path = f"/runs/{run}/effects/{paid['effect']}/outcome"
        assert agent.post(path, json=late, headers={"Idempotency-Key": "o"}).status_code == 409
        held = _sent(agent.post("/work/claim", json={"worker": word, "run_id": run}))
        wanted = {"lease": held["lease"], "epoch": held["epoch"], "tool": f"{word}.ask", "input": {"say": word}}
        asked = _sent(agent.post(f"/runs/{run}/effects", json=wanted, headers={"Idempotency-Key": "g"}))
        _sent(admin.post(f"/gates/{asked['gate']}/satisfy", json={"reason": word}))
    return paid["effect"], asked["gate"]


def _ask(house: House, word: str, body: dict[str, Any]) -> tuple[UUID, UUID, UUID]:
    """An action that waits for the second of two approvals, with everything that can be said about it; its policy; a delegation."""
    tool = f"{word}.adjust"
    with client(house.keys["admin"]) as admin, client(house.keys["agent"]) as agent:
        _sent(admin.put(f"/tools/{tool}/versions/1", json={"side_effect": "irreversible", "business_key": "{say}"}))
        group = {"name": "both", "role": "approver", "approvers": True, "count": 2}
        rules = {"match": {"tools": [tool]}, "groups": [group], "reminders": [60]}
        policy = _sent(admin.post("/approvals/policies", json={"name": word, "rules": rules}))["id"]
        people = house.members
        _sent(admin.put(f"/approvals/policies/{policy}/approvers/{people['viewer']}"))
        times = {"starts_at": "2100-01-01T00:00:00Z", "ends_at": "2100-01-02T00:00:00Z", "reason": word}
        sent = {"from": str(people["approver"]), "to": str(people["viewer"]), **times}
        delegation = _sent(admin.post("/approvals/delegations", json=sent))["id"]
        run = _sent(agent.post("/runs", json=body, headers={"Idempotency-Key": "r4"}))["id"]
        held = _sent(agent.post("/work/claim", json={"worker": word, "run_id": run}))
        wanted = {
            "lease": held["lease"], "epoch": held["epoch"], "tool": tool, "input": {"say": word}, "explanation": word,
            "evidence": [{"kind": "fact", "ref": word, "content": word}],
        }  # fmt: skip
        gate = _sent(agent.post(f"/runs/{run}/effects", json=wanted, headers={"Idempotency-Key": "q"}))["gate"]
        (found,) = _sent(agent.get("/approvals/requests", params={"gate_id": gate}))["items"]
        _sent(admin.post(f"/approvals/requests/{found['id']}/comments", json={"text": word}))
    with tenant_scope(house.id):
        member = Member.objects.get(id=people["approver"])
        who = Principal("member", member.id, house.id, house.slug, member.name, frozenset(), frozenset(member.roles))
        decisions.decide(
            tenant=house.id, principal=who, request_id=UUID(found["id"]), digest=found["digest"], answer="approve", reason=word,
            actor=who.actor, now=clock.now(),
        )  # fmt: skip
    return UUID(found["id"]), UUID(policy), UUID(delegation)


def _sent(response: httpx.Response) -> Any:
    assert response.is_success, response.text
    return response.json() if response.content else None
