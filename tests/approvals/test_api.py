"""Approvals over REST: what agents ask, what services decide, what administrators change."""

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from django.db import connections

from audit import queries as audit
from audit.queries import AuditFilter
from kernel.context import tenant_scope
from tests.approvals.office import TOOL, Agent, adjustment, asked, open_office, policy_rules
from tests.cast import Cast, House, make_house
from tests.runs.driver import register

Open = Callable[[str | None], httpx.Client]


@pytest.fixture
def house() -> House:
    return make_house("Acme", roles=("approver", "owner"))


def test_an_agent_asks_waits_answers_and_withdraws(house: House, api: Open) -> None:
    office = open_office(house)
    agent = Agent(house).begin()
    gate = agent.propose(explanation="Closes the month.")["gate"]
    key = api(house.keys["agent"])
    (found,) = key.get("/approvals/requests", params={"gate_id": gate}).json()["items"]
    assert (found["status"], found["tool"], found["mine"]["rule"]) == ("open", TOOL, "agents_never_decide")
    path = f"/approvals/requests/{found['id']}"
    shown = key.get(path)
    assert (shown.json()["action"], shown.json()["explanation"]) == (adjustment(), "Closes the month.")
    assert key.get(path, headers={"If-None-Match": shown.headers["ETag"]}).status_code == 304
    assert key.get(f"{path}/wait").json()["status"] == "open"
    admin = api(house.keys["admin"])
    question = admin.post(f"{path}/comments", json={"kind": "question", "text": "Why now?"})
    assert question.status_code == 201
    answer = {"kind": "answer", "text": "The month ends.", "answers": question.json()["id"]}
    assert key.post(f"{path}/comments", json=answer).status_code == 201
    assert [c["kind"] for c in key.get(path).json()["comments"]] == ["question", "answer"]
    body = {"digest": found["digest"], "answer": "approve"}
    assert (
        key.post(f"{path}/decide", json=body).status_code == 403
    )  # an agent has no such scope, and cannot be given it
    headers = {"Idempotency-Key": "w"}
    for _ in range(2):
        done = key.post(f"{path}/withdraw", json={"reason": "not needed"}, headers=headers)
        assert (done.status_code, done.json()["status"]) == (200, "withdrawn")
    assert key.get("/approvals/requests").json()["items"] == []
    assert [row["id"] for row in key.get("/approvals/requests?view=history").json()["items"]] == [found["id"]]
    assert office.status(office.of_gate(gate))[0] == "withdrawn"


def test_a_service_decides_where_a_policy_names_its_key(house: House, api: Open) -> None:
    open_office(house, groups=[{"name": "bot", "keys": [str(house.key_ids["admin"])]}])
    agent = Agent(house).begin()
    gate = agent.propose()["gate"]
    service = api(house.keys["admin"])
    (found,) = service.get("/approvals/requests", params={"gate_id": gate}).json()["items"]
    path = f"/approvals/requests/{found['id']}/decide"
    wrong = service.post(path, json={"digest": "0" * 64, "answer": "approve"})
    assert (wrong.status_code, wrong.json()["code"]) == (409, "digest_changed")
    body = {"digest": found["digest"], "answer": "approve", "reason": "within the budget"}
    done = service.post(path, json=body)
    assert (done.status_code, done.json()["outcome"]) == (200, "approved")
    assert service.post(path, json=body).json() == done.json()
    other = service.post(path, json=body | {"answer": "reject"})
    assert (other.status_code, other.json()["code"]) == (409, "already_decided")
    assert other.json()["decided_by"] == ["admin"]
    agent.claim()
    assert agent.propose()["decision"] == "execute"
    revoke = service.post(f"/approvals/requests/{found['id']}/revoke", json={"reason": "too late"})
    assert (revoke.status_code, revoke.json()["code"]) == (409, "nothing_to_revoke")
    with tenant_scope(house.id):
        page = audit.page(tenant=house.id, filters=AuditFilter(action="approval."), cursor=None, limit=50)
        assert {row.action for row in page.rows} == {"approval.voted", "approval.approved"}


def test_a_stale_request_is_asked_again(house: House, api: Open) -> None:
    office = open_office(house)
    _, request = asked(office, target={"version": "1"})
    key, path = api(house.keys["agent"]), f"/approvals/requests/{request}"
    assert key.post(f"{path}/target", json={"version": "1"}).json() == {"status": "open"}
    assert key.post(f"{path}/target", json={"version": "2", "content": {"a": 1}}).json() == {"status": "stale"}
    again = key.post(f"{path}/revalidate").json()
    assert again["request"] != str(request)
    assert key.get(path).json()["superseded_by"] == again["request"]
    assert key.get(f"/approvals/requests/{again['request']}").json()["target"] == {"a": 1}


def test_policies_are_versioned_and_tried_before(house: House, api: Open) -> None:
    register(house, TOOL, business_key="{batch}", amount={"path": "amount", "currency_path": "currency"})
    agent = Agent(house).begin()
    assert agent.propose(adjustment("A", "100"))["decision"] == "execute"
    assert agent.propose(adjustment("B", "900"))["decision"] == "execute"
    admin = api(house.keys["admin"])
    rules = policy_rules(match={"tools": [TOOL], "amount_over": {"INR": "500"}})
    tried = admin.post("/approvals/policies/dry-run", json={"rules": rules}).json()
    assert (tried["counts"], tried["changed"]) == ({"allow": 1, "ask": 1, "deny": 0}, 1)
    body = {"name": "adjustments", "rules": rules}
    made = admin.post("/approvals/policies", json=body, headers={"Idempotency-Key": "p"})
    assert made.status_code == 201
    assert admin.post("/approvals/policies", json=body).json()["code"] == "policy_exists"
    path = made.headers["Location"].removeprefix("/api/v1")
    tag = admin.get(path).headers["ETag"]
    changed = admin.patch(path, json={"rules": policy_rules(deadline_seconds=60)}, headers={"If-Match": tag})
    assert changed.json()["version"] == 2
    assert admin.patch(path, json={"enabled": False}, headers={"If-Match": tag}).status_code == 412
    assert [row["version"] for row in admin.get(f"{path}/versions").json()["items"]] == [2, 1]
    member = house.members["owner"]
    assert admin.put(f"{path}/approvers/{member}").json()["approvers"][0]["member_id"] == str(member)
    assert admin.delete(f"{path}/approvers/{member}").json()["approvers"] == []
    faults: list[dict[str, Any]] = [{"groups": []}, {"groups": [{"name": "x"}]}, {"reminders": [10**6]}, {"deny": True}]
    for wrong in faults:
        refused = admin.post("/approvals/policies", json={"name": "w", "rules": policy_rules(**wrong)})
        assert refused.status_code == 422, refused.text
    assert api(house.keys["agent"]).post("/approvals/policies", json=body).status_code == 403


def test_delegations(house: House, api: Open) -> None:
    admin = api(house.keys["admin"])
    body: dict[str, Any] = {
        "from": str(house.members["approver"]), "to": str(house.members["owner"]), "starts_at": "2026-12-24T00:00:00+05:30",
        "ends_at": "2027-01-02T00:00:00-08:00", "away": True, "reason": "on leave",
    }  # fmt: skip
    made = admin.post("/approvals/delegations", json=body)
    assert made.status_code == 201, made.text
    assert (made.json()["starts_at"], made.json()["ends_at"]) == ("2026-12-23T18:30:00Z", "2027-01-02T08:00:00Z")
    (listed,) = admin.get("/approvals/delegations", params={"member_id": body["to"]}).json()["items"]
    assert (listed["to"], listed["reason"], listed["away"]) == ("Owner Acme", "on leave", True)
    path = made.headers["Location"].removeprefix("/api/v1")
    assert admin.delete(path).status_code == 204
    assert admin.get(path).json()["state"] == "revoked"
    assert admin.post("/approvals/delegations", json=body | {"to": body["from"]}).status_code == 422


def test_who_waits_is_woken_by_the_decision(house: House) -> None:
    from config.asgi import application

    office = open_office(house)
    _, request = asked(office)

    def decide() -> None:
        office.decide("ann", request)
        connections.close_all()

    async def waited() -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {house.keys['agent']}"}
        transport = httpx.ASGITransport(app=application)
        async with httpx.AsyncClient(transport=transport, base_url="http://testserver", headers=headers) as client:
            path = f"/api/v1/approvals/requests/{request}/wait?wait_seconds=60"
            waiting = asyncio.create_task(client.get(path))
            await asyncio.sleep(0.2)
            assert not waiting.done()
            await asyncio.to_thread(decide)
            answer: dict[str, Any] = (await waiting).json()
            return answer

    assert asyncio.run(waited())["status"] == "approved"


def test_nothing_of_another_tenant(cast: Cast, api: Open) -> None:
    office = open_office(cast.home)
    _, request = asked(office)
    stranger = api(cast.other.keys["admin"])
    body = {"digest": office.digest(request), "answer": "approve"}
    path = f"/approvals/requests/{request}"
    assert stranger.get(path).status_code == 404
    assert stranger.post(f"{path}/decide", json=body).status_code == 404
    assert stranger.get("/approvals/requests").json()["items"] == []
