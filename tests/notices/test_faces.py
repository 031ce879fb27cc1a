"""The REST routes and the pages of webhooks: secrets shown once, who may press which button, what it does."""

import re
from collections.abc import Callable
from uuid import UUID

import httpx
from django.test import Client
from django.urls import reverse

from kernel.context import tenant_scope
from notices import queries
from tests.cast import Cast, House
from tests.notices.receiver import Receiver

Api = Callable[[str | None], httpx.Client]
Dispatch = Callable[..., None]
BACKEND = "allauth.account.auth_backends.AuthenticationBackend"


def visit(house: House, role: str) -> Client:
    client = Client()
    client.force_login(house.users[role], backend=BACKEND)
    return client


def test_over_rest(house: House, api: Api, receiver: Receiver, dispatch: Dispatch) -> None:
    admin, agent = api(house.keys["admin"]), api(house.keys["agent"])
    assert agent.get("/webhooks").status_code == 403
    body, key = {"url": receiver.url(), "kinds": ["webhook.disabled"]}, {"Idempotency-Key": "create"}
    made = admin.post("/webhooks", json=body, headers=key)
    assert made.status_code == 201
    hook, secret = made.json()["webhook"], made.json()["secret"]
    assert admin.post("/webhooks", json=body, headers=key).json() == {"webhook": hook, "secret": None}
    path = f"/webhooks/{hook['id']}"
    assert made.headers["Location"] == f"/api/v1{path}"
    assert secret not in admin.get(path).text + admin.get("/webhooks").text
    assert admin.post("/webhooks", json=body | {"kinds": ["no.such"]}).json()["errors"][0]["path"] == "/kinds"
    stale = admin.get(path).headers["ETag"]
    assert admin.patch(path, json={"kinds": []}, headers={"If-Match": stale}).json()["kinds"] == []
    assert admin.patch(path, json={"enabled": False}, headers={"If-Match": stale}).status_code == 412
    sent = admin.post(f"{path}/ping").json()
    dispatch(house)
    [found] = admin.get(f"{path}/deliveries", params={"status": "delivered"}).json()["items"]
    assert (found["id"], found["last_status"]) == (sent["id"], 200)
    assert receiver.verified(secret)[0]["type"] == "webhook.ping"
    assert admin.get(f"{path}/deliveries", params={"status": "dead"}).json()["items"] == []
    assert admin.post(f"{path}/deliveries/{sent['id']}/redeliver").json()["status"] == "pending"
    dispatch(house)
    again = {"since": "2020-01-01T00:00:00Z", "delivered": True}
    assert admin.post(f"{path}/redeliver", json=again).json() == {"redelivered": 1, "next_cursor": None}
    turned = admin.post(f"{path}/rotate", json={"overlap_seconds": 60}).json()
    assert turned["secret"] != secret
    assert turned["webhook"]["previous_until"] is not None
    assert admin.patch(path, json={"enabled": False}).json()["disabled_reason"] == "by_hand"
    assert admin.post(f"{path}/ping").json()["code"] == "webhook_disabled"
    assert admin.delete(path).status_code == 204
    assert admin.get(path).status_code == 404
    actions = [row["action"] for row in admin.get("/audit", params={"action": "webhook."}).json()["items"]][::-1]
    assert actions == [
        "webhook.created", "webhook.changed", "webhook.redelivered", "webhook.redelivered", "webhook.rotated", "webhook.changed",
        "webhook.deleted",
    ]  # fmt: skip


def test_a_key_that_is_bound_cannot_hold_the_scopes(house: House, api: Api) -> None:
    body = {"name": "k", "scopes": ["webhooks:read"], "agent_id": str(house.agent_id)}
    assert api(house.keys["admin"]).post("/keys", json=body).status_code == 422


def test_on_the_pages(cast: Cast, receiver: Receiver, dispatch: Dispatch) -> None:
    house, owner, auditor = cast.home, visit(cast.home, "owner"), visit(cast.home, "auditor")
    shown = owner.post(reverse("notices:webhook_new", args=[house.slug]), {"url": receiver.url("/page")})
    match = re.search(r'<code id="secret">([^<]+)</code>', shown.content.decode())
    assert match
    assert "no-store" in shown["Cache-Control"]
    with tenant_scope(house.id):
        [hook] = queries.list_endpoints(tenant=house.id)
    page = reverse("notices:webhook", args=[house.slug, hook.id])
    assert match[1] not in owner.get(page).content.decode()
    assert auditor.get(page).status_code == 200
    assert auditor.post(page, {"do": "ping"}).status_code == 403
    assert visit(house, "viewer").get(page).status_code == 403

    def rows() -> list[queries.DeliveryRow]:
        with tenant_scope(house.id):
            return queries.deliveries(tenant=house.id, endpoint_id=hook.id, status=None, cursor=None, limit=9).rows

    receiver.answers = [301, 200]
    assert owner.post(page, {"do": "ping"}).status_code == 302
    dispatch(house)
    assert "answered 301: redirects are not followed" in owner.get(page).content.decode()
    assert owner.post(page, {"do": "since", "since": "1"}).status_code == 302
    dispatch(house)
    assert [row.status for row in rows()] == ["delivered"]
    assert owner.post(page, {"do": "redeliver", "delivery": str(rows()[0].id)}).status_code == 302
    dispatch(house)
    receiver.verified(match[1])
    assert len(receiver.got) == 3
    owner.post(page, {"do": "off"})
    assert owner.post(page, {"do": "ping"}).status_code == 409
    owner.post(page, {"do": "on"})
    change = reverse("notices:webhook_change", args=[house.slug, hook.id])
    assert (
        "Requests may not go to this address"
        in owner.post(change, {"url": f"http://10.0.0.1:{receiver.port}/"}).content.decode()
    )
    assert owner.post(reverse("notices:webhook_delete", args=[house.slug, hook.id])).status_code == 302
    assert owner.get(page).status_code == 404


def test_each_member_chooses_for_itself(cast: Cast) -> None:
    def wishes(member: UUID) -> queries.Wishes:
        with tenant_scope(cast.home.id):
            return queries.wishes(tenant=cast.home.id, member_id=member)

    address = reverse("notices:notifications", args=[cast.home.slug])
    viewer = visit(cast.home, "viewer")
    assert "checked" in viewer.get(address).content.decode()
    assert viewer.post(address, {"language": "hi"}).status_code == 302
    assert "webhook.disabled" in wishes(cast.home.members["viewer"]).unwanted
    assert wishes(cast.home.members["owner"]).unwanted == frozenset()
    assert viewer.post(address, {"language": "xx"}).status_code == 422
