"""The audit log over REST."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import httpx
import pytest

if TYPE_CHECKING:
    from tests.cast import House

Open = Callable[[str | None], httpx.Client]


@pytest.fixture
def admin(house: "House", api: Open) -> httpx.Client:
    return api(house.keys["admin"])


def test_what_was_done_stands_in_the_log_newest_first(admin: httpx.Client, house: "House") -> None:
    made = admin.post("/projects", json={"slug": "north", "name": "North"}).json()
    newest = admin.get("/audit", params={"limit": 1}).json()["items"][0]
    assert (newest["action"], newest["target_id"], newest["actor_id"]) == (
        "project.created", made["id"], str(house.key_ids["admin"]),
    )  # fmt: skip
    assert newest["content"]["name"] == "North"


def test_filters_and_pages_agree(admin: httpx.Client, house: "House") -> None:
    whole = admin.get("/audit", params={"action": "key."}).json()["items"]
    assert [row["action"] for row in whole] == ["key.issued"] * 3
    pages: list[dict[str, str]] = []
    cursor: str | None = None
    while cursor is not None or not pages:
        page = admin.get(
            "/audit", params={"action": "key.", "limit": "2"} | ({"cursor": cursor} if cursor else {})
        ).json()
        pages += page["items"]
        cursor = page["next_cursor"]
    assert pages == whole
    one = admin.get("/audit", params={"target_id": str(house.key_ids["agent"])}).json()["items"]
    assert [row["target_id"] for row in one] == [str(house.key_ids["agent"])]


def test_the_chain_verifies(admin: httpx.Client) -> None:
    found = admin.get("/audit/verify").json()
    assert (found["ok"], found["first_bad_position"]) == (True, None)


@pytest.mark.parametrize(
    "query",
    [
        "cursor=x",
        "cursor=!!!!",
        "actor_id=x",
        "recorded_from=yesterday",
        "recorded_from=2026-01-01T00:00:00",
        "limit=201",
    ],
)
def test_odd_parameters_are_refused(admin: httpx.Client, query: str) -> None:
    response = admin.get(f"/audit?{query}")
    assert (response.status_code, response.json()["errors"][0]["path"]) == (422, query.partition("=")[0])


def test_needs_its_scope(house: "House", api: Open) -> None:
    for path in ("/audit", "/audit/verify"):
        assert api(house.keys["agent"]).get(path).status_code == 403
