"""The isolation matrix: every route, called with the other tenant's key, member and ids.

The answer is 404 or 403, and word for word the one for an id that does not exist.
"""

import asyncio
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from uuid import UUID

import httpx
import pytest
from django.test import Client

from kernel.ids import uuid7
from tests.isolation.routes import API, ELSEWHERE, PAGES, listed, resolved

if TYPE_CHECKING:
    from tests.isolation.story import Story

Open = Callable[[str | None], httpx.Client]
KEYS = ("agent", "operator", "admin")
WITH_ID = [(method, path, body) for method, path, body in API if "{" in path]
WITHOUT_ID = [(method, path, body) for method, path, body in API if "{" not in path]
# Headers that differ between any two requests.
VARYING = {"x-request-id", "ratelimit", "content-length", "date", "set-cookie"}


@pytest.fixture
def nowhere() -> dict[str, Any]:
    """Ids that exist nowhere."""
    return {
        name: uuid7()
        for name in (
            "run_id",
            "message_id",
            "lease",
            "member_id",
            "key_id",
            "effect_id",
            "gate_id",
            "tool",
            "workflow",
            "version",
            "queue",
            "schedule_id",
            "artifact_id",
            "request_id",
            "policy_id",
            "delegation_id",
            "endpoint_id",
            "delivery_id",
        )
    }


@pytest.fixture(scope="module", autouse=True)
def untouched(home: "Story") -> Iterator[None]:
    """Whatever was tried, the attacked tenant is as it was."""
    before = state(home)
    yield
    assert state(home) == before


def state(story: "Story") -> dict[str, Any]:
    from tests.cast import client

    paths = (
        "runs",
        f"runs/{story.run_id}",
        f"runs/{story.run_id}/events",
        "outbox",
        "schedules",
        f"runs/{story.run_id}/artifacts",
        f"artifacts/{story.artifact_id}",
        "approvals/requests",
        f"approvals/requests/{story.request_id}",
        "approvals/policies",
        "approvals/delegations",
        "projects",
        "agents",
        "members",
        "keys",
        "audit",
        "tools",
        "workflows",
    )
    with client(story.house.keys["admin"]) as admin:
        found = {path: admin.get(path).json() for path in paths}
        assert admin.get(f"runs/{story.run_id}/verify").json()["ok"]
    for row in found["keys"]["items"]:
        del row["last_used_at"]
    del found["outbox"]["oldest_seconds"]
    return found


def call(client: httpx.Client, method: str, path: str, body: Any, ids: dict[str, Any], **query: Any) -> httpx.Response:
    headers = {} if method == "GET" else {"Idempotency-Key": str(uuid7())}
    return client.request(method, path.format(**ids), json=body, headers=headers, params=query or None)


def essence(response: httpx.Response, ids: dict[str, Any]) -> tuple[int, dict[str, str], str]:
    """What can be told from an answer, with the ids of the question taken out."""
    text = response.text
    for name, value in ids.items():
        text = text.replace(str(value), name)
    return response.status_code, {k: v for k, v in response.headers.items() if k not in VARYING}, text


def test_every_route_is_listed() -> None:
    assert listed() == resolved()


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize(("method", "path", "body"), WITH_ID, ids=[f"{m} {p}" for m, p, _ in WITH_ID])
def test_another_tenants_id_is_no_id(
    home: "Story", other: "Story", nowhere: dict[str, Any], api: Open, key: str, method: str, path: str, body: Any
) -> None:
    client = api(other.house.keys[key])
    theirs, none = (call(client, method, path, body, ids) for ids in (home.ids, nowhere))
    assert theirs.status_code in (403, 404), theirs.text
    assert key != "admin" or theirs.status_code == 404
    assert essence(theirs, home.ids) == essence(none, nowhere)
    # The owner's own call is answered, so that it is the tenant that makes the difference.
    if key == "admin" and method == "GET":
        answered = call(api(home.house.keys[key]), method, path, body, home.ids).status_code
        assert answered == (421 if path in ELSEWHERE else 200)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("path", [path for method, path, _ in WITHOUT_ID if method == "GET"])
def test_lists_hold_nothing_of_another_tenant(home: "Story", other: "Story", api: Open, key: str, path: str) -> None:
    response = api(other.house.keys[key]).get(path)
    assert response.status_code == 421 if path in ELSEWHERE else response.status_code in (200, 403)
    assert [word for word in home.words if word in response.text] == []
    if key == "admin" and path in (
        "runs",
        "outbox",
        "schedules",
        "projects",
        "agents",
        "members",
        "keys",
        "audit",
        "tools",
        "workflows",
    ):
        assert any(word in response.text for word in other.words)


@pytest.mark.parametrize(
    ("path", "name"),
    [("runs", "project"), ("runs", "agent"), ("runs", "workflow"), ("audit", "target_id"), ("audit", "actor_id")],
)
def test_filters_tell_nothing_of_another_tenant(home: "Story", other: "Story", api: Open, path: str, name: str) -> None:
    known = {"target_id": str(home.house.project_id), "actor_id": str(home.house.key_ids["admin"])}.get(
        name, home.project
    )
    client = api(other.house.keys["admin"])
    theirs = client.get(path, params={name: known})
    none = client.get(path, params={name: str(uuid7()) if "_id" in name else "does-not-exist"})
    assert (theirs.status_code, theirs.text) == (none.status_code, none.text)
    # The filter finds what is there, except that no run of the story names this agent.
    assert api(home.house.keys["admin"]).get(path, params={name: known}).json()["items"] != [] or name == "agent"


def test_cursors_do_not_carry_over(home: "Story", other: "Story", api: Open) -> None:
    for path in ("runs", "audit", "keys", "members", "projects", "agents"):
        cursor = api(home.house.keys["admin"]).get(path, params={"limit": 1}).json()["next_cursor"]
        assert cursor is not None, path
        response = api(other.house.keys["admin"]).get(path, params={"cursor": cursor})
        assert [word for word in home.words if word in response.text] == [], path


def bodies(story: "Story | None") -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Calls whose body names things of a tenant, or things that do not exist."""
    known: dict[str, Any] = {
        "agent_id": str(story.house.agent_id if story else uuid7()),
        "project_id": str(story.house.project_id if story else uuid7()),
        "project": story.project if story else "does-not-exist",
        "agent": story.agent if story else "does-not-exist",
        "run_id": str(story.run_id if story else uuid7()),
        "artifact_id": str(story.artifact_id if story else uuid7()),
        "lease": str(story.lease if story else uuid7()),
    }
    key, run = (
        {"name": "k", "scopes": ["runs:read"]},
        {"workflow": "w", "workflow_version": "1", "steps": [{"name": "a"}]},
    )
    yield "admin", "keys", key | {"agent_id": known["agent_id"]}
    yield "admin", "keys", key | {"project_ids": [known["project_id"]]}
    yield "admin", "runs", run | {"project": known["project"]}
    yield "admin", "runs", run | {"agent": known["agent"]}
    artifact = {"name": "a", "media_type": "text/plain", "size": 1, "sha256": "0" * 64}
    yield "admin", "artifacts", artifact | {"project": known["project"]}
    yield "admin", "artifacts", artifact | {"run_id": known["run_id"]}
    yield "agent", "runs/{own_run}/artifacts", {"artifact_id": known["artifact_id"]}
    yield "agent", "work/claim", {"worker": "w", "run_id": known["run_id"]}
    yield "agent", "runs/{own_run}/commit", {"lease": known["lease"], "epoch": 1, "step": {"outcome": "succeeded"}}


def test_bodies_cannot_name_things_of_another_tenant(home: "Story", other: "Story", api: Open) -> None:
    own = {"own_run": other.run_id}
    for (key, path, theirs), (_, _, none) in zip(bodies(home), bodies(None), strict=True):
        client = api(other.house.keys[key])
        answers = []
        for body, story in ((theirs, home), (none, None)):
            response = call(client, "POST", path, body, own)
            text = response.text.replace(story.project, "does-not-exist") if story else response.text
            answers.append((response.status_code, re.sub(r"[0-9a-f-]{36}", "id", text)))
        assert answers[0] == answers[1], path
        assert answers[0][0] in (204, 404, 409, 422), answers[0]


def test_idempotency_keys_are_a_tenants_own(home: "Story", api: Open) -> None:
    """The key and body of a call that `tests.isolation.story` made in `home`, from a third tenant."""
    from tests.cast import make_house

    third = make_house("Third", roles=())
    body = {"slug": home.project, "name": home.project}
    response = api(third.keys["admin"]).post("projects", json=body, headers={"Idempotency-Key": f"p-{home.project}"})
    assert response.status_code == 201
    assert "idempotency-replayed" not in response.headers
    assert response.json()["id"] not in {
        row["id"] for row in api(home.house.keys["admin"]).get("projects").json()["items"]
    }


@pytest.mark.parametrize(("method", "path", "body"), API, ids=[f"{m} {p}" for m, p, _ in API])
def test_without_a_valid_key_nothing_is_answered(
    home: "Story", nowhere: dict[str, Any], api: Open, method: str, path: str, body: Any
) -> None:
    good = home.house.keys["admin"]
    session = Client()
    session.force_login(home.house.users["owner"])
    answers = set()
    for key in (
        None,
        "",
        "smr_x",
        good[:-1],
        good[:-1] + ("A" if good[-1] != "A" else "B"),
        good.replace("smr_", "sms_"),
    ):
        client = api(key)
        # A signed-in member's session is no key.
        client.cookies.update({name: morsel.value for name, morsel in session.cookies.items()})
        for ids in (home.ids, nowhere):
            answers.add(essence(call(client, method, path, body, ids), ids)[0::2])
    assert len(answers) == 1, answers
    assert answers.pop()[0] == 401


def test_the_waiting_process_keeps_tenants_apart(home: "Story", other: "Story") -> None:
    from config.asgi import application

    async def claim(key: str | None, run_id: UUID) -> tuple[int, str]:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        transport = httpx.ASGITransport(app=application)
        async with httpx.AsyncClient(transport=transport, base_url="http://testserver", headers=headers) as client:
            response = await client.post("/api/v1/work/claim", json={"worker": "w", "run_id": str(run_id)})
            return response.status_code, response.text

    async def both(key: str | None) -> list[tuple[int, str]]:
        return [await claim(key, home.run_id), await claim(key, uuid7())]

    for key, status in (
        (other.house.keys["agent"], (204, 404)),
        (other.house.keys["operator"], (403,)),
        (None, (401,)),
    ):
        theirs, none = asyncio.run(both(key))
        assert theirs == none
        assert theirs[0] in status


# Pages ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stranger(other: "Story") -> Client:
    """The owner of the other tenant, signed in."""
    client = Client(raise_request_exception=True)
    client.force_login(other.house.users["owner"])
    return client


def page(client: Client, method: str, slug: str, path: str, ids: dict[str, Any]) -> tuple[int, str, str]:
    """What can be told from a page, with the question taken out of it."""
    response = getattr(client, method)(f"/t/{slug}/{path}".format(**ids))
    text = response.content.decode().replace(slug, "slug")
    for name, value in ids.items():
        text = text.replace(str(value), name)
    text = re.sub(r'name="csrfmiddlewaretoken" value="\w+"|data-now="[^"]*"|datetime="[^"]*"', "", text)
    return response.status_code, response.get("Location", "").replace(slug, "slug"), text


@pytest.mark.parametrize("method", ["get", "post", "head"])
@pytest.mark.parametrize("path", PAGES)
def test_a_stranger_sees_no_tenant(home: "Story", stranger: Client, method: str, path: str) -> None:
    theirs = page(stranger, method, home.house.slug, path, home.ids)
    none = page(stranger, method, "no-such-tenant", path, home.ids)
    assert theirs == none
    # The bare address leads to the runs whoever asks; an action that needs POST refuses GET before it looks who asks.
    assert theirs[0] in ((302,) if path == "" else (404, 405))


@pytest.mark.parametrize("method", ["get", "post"])
@pytest.mark.parametrize("path", [path for path in PAGES if "{" in path])
def test_a_member_finds_no_ids_of_another_tenant(
    home: "Story", other: "Story", nowhere: dict[str, Any], stranger: Client, method: str, path: str
) -> None:
    theirs = page(stranger, method, other.house.slug, path, home.ids)
    none = page(stranger, method, other.house.slug, path, nowhere)
    assert theirs == none
    assert theirs[0] in (404, 405)


@pytest.mark.parametrize("path", [path for path in PAGES if "{" not in path])
def test_pages_hold_nothing_of_another_tenant(home: "Story", other: "Story", stranger: Client, path: str) -> None:
    response = stranger.get(f"/t/{other.house.slug}/{path}")
    assert response.status_code in (200, 302, 405)
    assert [word for word in home.words if word in response.content.decode()] == []


@pytest.mark.parametrize("path", ["/", "/t/", "/profile/", "/password/"])
def test_a_persons_pages_hold_nothing_of_a_tenant_they_are_not_in(home: "Story", stranger: Client, path: str) -> None:
    response = stranger.get(path, follow=True)
    assert response.status_code == 200
    assert [word for word in home.words if word in response.content.decode()] == []


@pytest.mark.parametrize("path", PAGES)
def test_who_is_not_signed_in_is_sent_to_the_door(home: "Story", nowhere: dict[str, Any], path: str) -> None:
    theirs = page(Client(), "get", home.house.slug, path, home.ids)
    none = page(Client(), "get", "no-such-tenant", path, home.ids)
    assert theirs == none
    assert theirs[0] in (302, 405)


def test_a_key_opens_no_page(home: "Story") -> None:
    response = Client().get(
        f"/t/{home.house.slug}/runs/", headers={"Authorization": f"Bearer {home.house.keys['admin']}"}
    )
    assert response.status_code == 302


def test_a_removed_member_is_out_at_once(home: "Story", api: Open) -> None:
    from tests.isolation.story import tell

    story = tell("Leavers")
    client = Client()
    client.force_login(story.house.users["viewer"])
    assert client.get(f"/t/{story.house.slug}/runs/").status_code == 200
    admin = api(story.house.keys["admin"])
    assert admin.delete(f"members/{story.house.members['viewer']}").status_code == 204
    assert client.get(f"/t/{story.house.slug}/runs/").status_code == 404
