"""The registry over REST: immutable versions, the newest enabled one, the operator's switch, and two tenants that share names."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from kernel.context import tenant_scope
from runs import queries
from runs.models import Run, Step
from runs.queries import registry
from runs.queries.registry import UnknownTool
from tests.cast import House, client

Open = Callable[[str | None], httpx.Client]

PAY = {
    "side_effect": "irreversible",
    "input_schema": {"type": "object", "required": ["invoice_id"]},
    "business_key": "{invoice_id}",
    "scope": "tenant",
}


@pytest.fixture
def admin(house: House, api: Open) -> httpx.Client:
    return api(house.keys["admin"])


def put(admin: httpx.Client, name: str, version: str, **changes: Any) -> httpx.Response:
    return admin.put(f"/tools/{name}/versions/{version}", json=PAY | changes)


def switch(admin: httpx.Client, path: str, enabled: bool, **headers: str) -> httpx.Response:
    return admin.patch(path, json={"enabled": enabled, "reason": "it pays twice"}, headers=headers)


def code(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["code"]


def test_a_version_is_registered_once_and_never_changes(admin: httpx.Client) -> None:
    first = put(admin, "pay", "1")
    assert first.status_code == 200, first.text
    assert first.json()["definition"]["retry"]["max_attempts"] == 5
    # The same value in another order, with a default written out.
    again = {"scope": "tenant", "execute_seconds": 60, **PAY}
    assert admin.put("/tools/pay/versions/1", json=again).json() == first.json()
    assert code(put(admin, "pay", "1", scope="run")) == (409, "version_exists")
    assert code(put(admin, "pay", "1", input_schema={"type": "object"})) == (409, "version_exists")
    assert admin.get("/tools/pay/versions/1").json() == first.json()
    audit = [row["action"] for row in admin.get("/audit").json()["items"] if row["target_kind"] == "tool"]
    assert audit == ["tool.registered"]


def test_a_definition_comes_back_to_the_letter(admin: httpx.Client) -> None:
    schema = '{"type":"object","properties":{"z":{"maximum":0.1000000000000000000055511},"a":{"minimum":1.10}}}'
    body = f'{{"side_effect": "none", "input_schema": {schema}}}'
    sent = admin.put("/tools/t/versions/1", content=body, headers={"Content-Type": "application/json"})
    assert sent.status_code == 200
    assert f'"input_schema":{schema}' in admin.get("/tools/t/versions/1").text


def test_thirty_two_register_one_version_at_once(house: House) -> None:
    def register(number: int) -> tuple[int, str]:
        with client(house.keys["admin"]) as admin:
            answer = put(admin, "race", "1", description=f"as {number % 2}")
            return answer.status_code, answer.json().get("code", answer.json().get("id"))

    with ThreadPoolExecutor(8) as pool:
        answers = set(pool.map(register, range(32)))
    assert {status for status, _ in answers} == {200, 409}
    assert len(answers) == 2


def test_the_latest_is_the_newest_that_is_enabled(admin: httpx.Client, house: House) -> None:
    for version in ("1", "3", "2"):
        put(admin, "pay", version)
    assert queries.tool_version(tenant=house.id, name="pay").version == "2"
    switched = switch(admin, "/tools/pay/versions/2", False)
    assert (switched.status_code, switched.json()["enabled"]) == (200, False)
    assert queries.tool_version(tenant=house.id, name="pay").version == "3"
    assert queries.tool_version(tenant=house.id, name="pay", version="2").enabled is False
    [listed] = admin.get("/tools").json()["items"]
    assert (listed["name"], listed["versions"], listed["latest"]["version"]) == ("pay", 3, "3")
    assert [row["version"] for row in admin.get("/tools/pay").json()["items"]] == ["2", "3", "1"]
    for version in ("1", "3"):
        switch(admin, f"/tools/pay/versions/{version}", False)
    with pytest.raises(UnknownTool):
        queries.tool_version(tenant=house.id, name="pay")
    assert admin.get("/tools").json()["items"][0]["latest"] is None


def test_what_another_process_changed_is_known_within_seconds(
    admin: httpx.Client, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(admin, "pay", "1")
    kept = queries.tool_version(tenant=house.id, name="pay", version="1")
    monkeypatch.setattr(registry, "forget", lambda **_: None)
    switch(admin, "/tools/pay/versions/1", False)
    assert queries.tool_version(tenant=house.id, name="pay", version="1") is kept
    monkeypatch.setattr(registry, "FRESH_SECONDS", 0.0)
    found = queries.tool_version(tenant=house.id, name="pay", version="1")
    assert found.enabled is False
    assert found.input_schema is kept.input_schema  # the definition was not sent again


def test_the_switch_is_audited_with_its_reason_and_guards_against_lost_updates(
    admin: httpx.Client, house: House, api: Open
) -> None:
    put(admin, "pay", "1")
    path = "/tools/pay/versions/1"
    tag = admin.get(path).headers["ETag"]
    operator = api(house.keys["operator"])
    assert switch(operator, path, False, **{"If-Match": tag}).status_code == 200
    assert code(switch(operator, path, True, **{"If-Match": tag})) == (412, "precondition_failed")
    assert switch(operator, path, False).status_code == 200  # changes nothing
    entries = admin.get("/audit", params={"action": "tool.disabled"}).json()["items"]
    assert [entry["content"] for entry in entries] == [{"name": "pay", "version": "1", "reason": "it pays twice"}]


def test_names_may_have_slashes(admin: httpx.Client) -> None:
    for name, version in (("bank/pay", "1"), ("a@b:c+d", "2026/09"), ("versions", "versions"), ("x", "y/versions")):
        assert put(admin, name, version).status_code == 200
        found = admin.get(f"/tools/{name}/versions/{version}").json()
        assert (found["name"], found["version"]) == (name, version)
        assert [row["version"] for row in admin.get(f"/tools/{name}").json()["items"]] == [version]
    assert admin.get("/tools/a b/versions/1").status_code == 404


def test_lists_are_paged(admin: httpx.Client) -> None:
    for number in range(5):
        put(admin, f"t{number}", "1")
    seen, cursor = [], None
    while True:
        page = admin.get("/tools", params={"limit": 2} | ({"cursor": cursor} if cursor else {})).json()
        seen += [row["name"] for row in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == [f"t{number}" for number in range(5)]


def test_lists_cost_the_same_however_many_there_are(admin: httpx.Client, house: House) -> None:
    def count() -> int:
        with tenant_scope(house.id), CaptureQueriesContext(connection) as queries_made:
            queries.list_tools(tenant=house.id)
        return len(queries_made)

    put(admin, "one", "1")
    few = count()
    for number in range(10):
        put(admin, f"t{number}", "1")
        put(admin, f"t{number}", "2")
    assert (few, count()) == (2, 2)


def test_two_tenants_register_the_same_name_and_never_meet(
    admin: httpx.Client, house: House, other_house: House, api: Open
) -> None:
    stranger = api(other_house.keys["admin"])
    assert put(admin, "pay", "1", description="ours").status_code == 200
    assert stranger.get("/tools").json()["items"] == []
    assert code(stranger.get("/tools/pay/versions/1")) == (404, "not_found")
    assert code(switch(stranger, "/tools/pay/versions/1", False)) == (404, "not_found")
    with pytest.raises(UnknownTool):
        queries.tool_version(tenant=other_house.id, name="pay", version="1")
    assert put(stranger, "pay", "1", description="theirs").status_code == 200
    switch(stranger, "/tools/pay/versions/1", False)
    ours = queries.tool_version(tenant=house.id, name="pay", version="1")
    theirs = queries.tool_version(tenant=other_house.id, name="pay", version="1")
    assert (ours.description, ours.enabled, theirs.description, theirs.enabled) == ("ours", True, "theirs", False)


def test_scopes(house: House, api: Open) -> None:
    agent, operator = api(house.keys["agent"]), api(house.keys["operator"])
    assert agent.get("/tools").status_code == 200
    assert code(put(agent, "pay", "1")) == (403, "forbidden")
    assert code(put(operator, "pay", "1")) == (403, "forbidden")
    with client(house.keys["admin"]) as admin:
        bound = {"name": "b", "scopes": ["tools:write"], "agent_id": str(house.agent_id)}
        assert admin.post("/keys", json=bound).status_code == 422


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"side_effect": "maybe"}, "/side_effect"),
        ({"input_schema": {"type": "strin"}}, "/input_schema/type"),
        ({"input_schema": {"properties": {"a": {"$ref": "https://example.com/s.json"}}}}, "/input_schema/properties/a/$ref"),
        ({"input_schema": {"$ref": "file:///etc/passwd"}}, "/input_schema/$ref"),
        ({"output_schema": {"$ref": "other.json"}}, "/output_schema/$ref"),
        ({"output_schema": 5}, "/output_schema"),
        ({"input_schema": {"pattern": "(?=a)"}}, "/input_schema/pattern"),
        ({"input_schema": {"pattern": r"(a)\1"}}, "/input_schema/pattern"),
        ({"input_schema": {"$schema": "http://json-schema.org/draft-07/schema#"}}, "/input_schema/$schema"),
        ({"input_schema": {"description": "x" * 262_144}}, "/input_schema"),
        ({"business_key": "invoice"}, "/business_key"),
        ({"business_key": "{a}{b}"}, "/business_key"),
        ({"business_key": "{/a}"}, "/business_key"),
        ({"business_key": "{a~}"}, "/business_key"),
        ({"business_key": "{}"}, "/business_key"),
        ({"business_key": "{{a}}"}, "/business_key"),
        ({"business_key": "x" * 513}, "/business_key"),
        ({"amount": {"path": "amount"}}, "/amount"),
        ({"amount": {"path": "amount", "currency": "INR", "currency_path": "c"}}, "/amount"),
        ({"amount": {"path": "/amount", "currency": "INR"}}, "/amount/path"),
        ({"limits": {"max_amount_per_call": {"INR": "5"}}}, "/amount"),
        ({"amount": {"path": "a", "currency": "INR"}, "limits": {"max_amount_per_day": {"INR": "-5"}}},
         "/limits/max_amount_per_day/INR"),
        ({"limits": {"time_zone": "Mars/Olympus"}}, "/limits/time_zone"),
        ({"limits": {"time_zone": "../../etc/passwd"}}, "/limits/time_zone"),
        ({"limits": {"calls_per_day": 0}}, "/limits/calls_per_day"),
        ({"redact": ["card"]}, "/redact/0"),
        ({"redact": ["/a"] * 65}, "/redact"),
        ({"compensation": {"tool": "t", "input": {"a": ["{inputs/x}"]}}}, "/compensation/input/a/0"),
        ({"reconcile": {"probe_url": "http://bank.example/{key}"}}, "/reconcile/probe_url"),
        ({"reconcile": {"probe_url": "https://bank.example/"}}, "/reconcile/probe_url"),
        ({"reconcile": {"probe_url": "https://{key}.example/"}}, "/reconcile/probe_url"),
        ({"reconcile": {"probe_url": "https://u:p@bank.example/{key}"}}, "/reconcile/probe_url"),
        ({"reconcile": {"probe_url": "https://[::1/{key}"}}, "/reconcile/probe_url"),
        ({"retry": {"max_attempts": 0}}, "/retry/max_attempts"),
        ({"execute_seconds": 0}, "/execute_seconds"),
        ({"surprise": 1}, "/surprise"),
    ],
)  # fmt: skip
def test_bad_definitions_are_refused_at_their_place(admin: httpx.Client, change: dict[str, Any], path: str) -> None:
    answer = put(admin, "pay", "1", **change)
    assert code(answer) in ((422, "invalid"), (422, "credential_refused")), answer.text
    assert answer.json()["errors"][0]["path"] == path


def test_a_credential_is_no_part_of_a_definition(admin: httpx.Client) -> None:
    answer = put(admin, "pay", "1", reconcile={"hint": "use AKIAABCDEFGHIJKLMNOP"})
    assert code(answer) == (422, "credential_refused")


class TestWorkflows:
    def put(self, admin: httpx.Client, version: str, **definition: Any) -> httpx.Response:
        return admin.put(f"/workflows/reconcile/versions/{version}", json=definition)

    def test_a_workflow_is_registered_like_a_tool(self, admin: httpx.Client, house: House, other_house: House) -> None:
        patch = [{"op": "move", "from": "/a", "path": "/b"}, {"op": "test", "path": "/b", "value": 1.10}]
        definition = {
            "state_schema": 2, "state_json_schema": {"type": "object"}, "tools": {"pay": "1"},
            "steps": [{"name": "fetch"}, {"name": "pay", "depends_on": ["fetch"]}],
            "migrations": [{"from": 1, "to": 2, "patch": patch}],
        }  # fmt: skip
        made = self.put(admin, "2", **definition)
        assert made.status_code == 200, made.text
        assert self.put(admin, "2", **definition).json() == made.json()
        assert code(self.put(admin, "2", state_schema=3)) == (409, "version_exists")
        found = queries.workflow_version(tenant=house.id, name="reconcile", version="2")
        assert found is not None
        assert (found.state_schema, [step.name for step in found.steps or ()]) == (2, ["fetch", "pay"])
        assert json.loads(bytes(found.migrations[0].patch)) == patch
        assert queries.workflow_version(tenant=house.id, name="reconcile", version="9") is None
        assert queries.workflow_version(tenant=other_house.id, name="reconcile", version="2") is None
        assert admin.get("/workflows").json()["items"][0]["latest"]["version"] == "2"
        assert switch(admin, "/workflows/reconcile/versions/2", False).json()["enabled"] is False
        assert queries.workflow_version(tenant=house.id, name="reconcile") is None

    @pytest.mark.parametrize(
        ("change", "path"),
        [
            ({"state_json_schema": {"type": "strin"}}, "/state_json_schema/type"),
            ({"steps": []}, "/steps"),
            ({"steps": [{"name": "a"}, {"name": "a"}]}, "/steps/1/name"),
            ({"steps": [{"name": "a", "depends_on": ["b"]}, {"name": "b"}]}, "/steps/0/depends_on/0"),
            ({"migrations": [{"from": 1, "to": 1, "patch": []}]}, "/migrations/0/to"),
            ({"migrations": [{"from": 1, "to": 2, "patch": []}] * 2}, "/migrations/1/to"),
            ({"migrations": [{"from": 1, "to": 2, "patch": {}}]}, "/migrations/0/patch"),
            ({"migrations": [{"from": 1, "to": 2, "patch": [{"op": "add", "path": "/a"}]}]}, "/migrations/0/patch/0/value"),
            ({"migrations": [{"from": 1, "to": 2, "patch": [{"op": "remove", "path": "a"}]}]}, "/migrations/0/patch/0/path"),
            ({"migrations": [{"to": 2, "patch": []}]}, "/migrations/0/from"),
            ({"tools": {"pay it": "1"}}, "/tools/pay it"),
            ({"state_schema": -1}, "/state_schema"),
        ],
    )  # fmt: skip
    def test_bad_definitions_are_refused_at_their_place(
        self, admin: httpx.Client, change: dict[str, Any], path: str
    ) -> None:
        answer = self.put(admin, "1", **change)
        assert (code(answer), answer.json()["errors"][0]["path"]) == ((422, "invalid"), path)


def test_a_run_takes_its_plan_from_the_workflow(house: House) -> None:
    definition = {
        "state_schema": 3,
        "steps": [
            {"name": "first", "queue": "planned"},
            {"name": "second", "depends_on": ["first"], "max_attempts": 9},
        ],
        "defaults": {
            "max_attempts": 2,
            "retry": {"initial_seconds": 5, "factor": 3, "max_seconds": 60},
            "deadline_seconds": 90,
        },
    }
    with client(house.keys["admin"]) as admin, client(house.keys["agent"]) as agent:
        assert admin.put("/workflows/planned/versions/1", json=definition).is_success
        body = {"workflow": "planned", "workflow_version": "1"}
        run = agent.post("/runs", json=body, headers={"Idempotency-Key": "p"}).json()["id"]
        steps = agent.get(f"/runs/{run}").json()["steps"]
        assert [(step["name"], step["queue"], step["max_attempts"]) for step in steps] == [
            ("first", "planned", 2), ("second", "default", 9),
        ]  # fmt: skip
        other = agent.post("/runs", json=body | {"workflow_version": "2"}, headers={"Idempotency-Key": "q"})
        assert (other.status_code, other.json()["errors"][0]["path"]) == (422, "/steps")
    with tenant_scope(house.id):
        assert Run.objects.get(id=run).state_schema == 3
        step = Step.objects.get(run_id=run, name="first")
        assert (step.retry, step.deadline_seconds) == (
            {"initial_seconds": 5.0, "factor": 3.0, "max_seconds": 60.0},
            90.0,
        )
