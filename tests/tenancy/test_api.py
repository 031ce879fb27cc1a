"""Projects, agents, members and API keys over REST."""

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from kernel import clock
from kernel.ids import uuid7

if TYPE_CHECKING:
    from tests.cast import House

Open = Callable[[str | None], httpx.Client]


@pytest.fixture
def house() -> "House":
    from tests.cast import make_house

    return make_house("Rest", roles=("owner", "admin", "viewer"))


@pytest.fixture
def admin(house: "House", api: Open) -> httpx.Client:
    return api(house.keys["admin"])


def issue(admin: httpx.Client, **changes: Any) -> dict[str, Any]:
    response = admin.post("/keys", json={"name": "robot", "scopes": ["runs:read"]} | changes)
    assert response.status_code == 201, response.text
    found: dict[str, Any] = response.json()
    return found


def code(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["code"]


def test_projects_and_agents(admin: httpx.Client) -> None:
    for path in ("/projects", "/agents"):
        made = admin.post(path, json={"slug": "north", "name": "उत्तर"})
        assert made.status_code == 201
        assert made.json() in admin.get(path).json()["items"]
        assert code(admin.post(path, json={"slug": "north", "name": "x"})) == (409, "slug_taken")
        refused = admin.post(path, json={"slug": "North", "name": "x"})
        assert (code(refused), refused.json()["errors"][0]["path"]) == ((422, "invalid"), "/slug")


def test_a_key_bound_to_a_project_sees_that_project(admin: httpx.Client, house: "House", api: Open) -> None:
    other = admin.post("/projects", json={"slug": "other", "name": "Other"}).json()
    bound = issue(admin, scopes=["projects:read"], project_ids=[other["id"]])
    assert [row["slug"] for row in api(bound["secret"]).get("/projects").json()["items"]] == ["other"]


def test_members_and_roles(admin: httpx.Client, house: "House") -> None:
    members = {row["name"]: row for row in admin.get("/members").json()["items"]}
    assert {row["roles"][0] for row in members.values()} == {"owner", "admin", "viewer"}
    viewer = house.members["viewer"]
    changed = admin.put(f"/members/{viewer}/roles", json={"roles": ["auditor", "operator"]})
    assert (changed.status_code, changed.json()["roles"]) == (200, ["operator", "auditor"])
    assert admin.get(f"/members/{viewer}").json() == changed.json()
    owner = f"/members/{house.members['owner']}"
    assert code(admin.put(f"{owner}/roles", json={"roles": ["viewer"]})) == (409, "last_owner")
    assert code(admin.delete(owner)) == (409, "last_owner")
    unknown = admin.put(f"/members/{viewer}/roles", json={"roles": ["king"]})
    assert (code(unknown), unknown.json()["errors"][0]["path"]) == ((422, "invalid"), "/roles/0")
    assert admin.delete(f"/members/{viewer}").status_code == 204
    assert code(admin.get(f"/members/{viewer}")) == (404, "not_found")


def test_a_key_opens_what_its_scopes_say(admin: httpx.Client, api: Open) -> None:
    issued = issue(admin, scopes=["projects:read"])
    robot = api(issued["secret"])
    assert robot.get("/projects").status_code == 200
    assert code(robot.get("/members")) == (403, "forbidden")
    assert issued["secret"] not in admin.get("/keys").text
    shown = admin.get(f"/keys/{issued['key']['id']}").json()
    assert shown["last_used_at"] is not None
    assert shown | {"last_used_at": None} == issued["key"]


def test_rotation_keeps_the_powers_and_ends_the_old_key(admin: httpx.Client, api: Open) -> None:
    issued = issue(admin, scopes=["projects:read"])
    path = f"/keys/{issued['key']['id']}/rotate"
    rotated = admin.post(path, json={"overlap_seconds": 3600}).json()
    assert rotated["key"]["scopes"] == ["projects:read"]
    for secret in (issued["secret"], rotated["secret"]):
        assert api(secret).get("/projects").status_code == 200
    assert code(admin.post(path, json={})) == (409, "key_not_active")
    assert code(admin.post(path, json={"overlap_seconds": 31 * 86_400})) == (422, "invalid")


def test_revocation_is_at_once_and_can_be_repeated(admin: httpx.Client, api: Open) -> None:
    issued = issue(admin, scopes=["projects:write", "projects:read"])
    for _ in range(2):
        revoked = admin.post(f"/keys/{issued['key']['id']}/revoke")
        assert revoked.status_code == 200
    assert revoked.json()["revoked_at"] is not None
    assert code(api(issued["secret"]).post("/projects", json={"slug": "x", "name": "x"})) == (401, "unauthorized")


def test_nobody_gains_powers_through_keys_or_roles(admin: httpx.Client, house: "House", api: Open) -> None:
    clerk = api(issue(admin, scopes=["keys:write", "keys:read", "members:write", "runs:read"])["secret"])
    wider = {"name": "w", "scopes": ["audit:read"]}
    assert code(clerk.post("/keys", json=wider)) == (403, "scope_too_wide")
    assert code(clerk.post(f"/keys/{house.key_ids['admin']}/rotate", json={})) == (403, "scope_too_wide")
    viewer = f"/members/{house.members['viewer']}/roles"
    assert code(clerk.put(viewer, json={"roles": ["admin"]})) == (403, "scope_too_wide")
    bound = {"name": "b", "scopes": ["keys:write"], "agent_id": str(house.agent_id)}
    assert code(admin.post("/keys", json=bound)) == (422, "invalid")


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"scopes": []}, "/scopes"),
        ({"scopes": ["everything"]}, "/scopes/0"),
        ({"name": ""}, "/name"),
        ({"name": "n" * 121}, "/name"),
        ({"agent_id": str(uuid7())}, "/agent_id"),
        ({"project_ids": []}, "/project_ids"),
        ({"project_ids": [str(uuid7())]}, "/project_ids"),
        ({"expires_at": (clock.now() - timedelta(days=1)).isoformat()}, "/expires_at"),
        ({"expires_at": "2030-01-01T00:00:00"}, "/expires_at"),
        ({"admin": True}, "/admin"),
    ],
)
def test_bad_values_are_named(admin: httpx.Client, change: dict[str, Any], path: str) -> None:
    response = admin.post("/keys", json={"name": "robot", "scopes": ["runs:read"]} | change)
    assert (code(response), response.json()["errors"][0]["path"]) == ((422, "invalid"), path)
