"""The commit operation through the API."""

from collections.abc import Callable

import httpx

from tests.cast import House


def test_unknown_key_is_refused(api: Callable[[str | None], httpx.Client]) -> None:
    assert api(None).post("/work/claim", json={"worker": "w"}).status_code == 401


def test_claim_without_work(house: House, api: Callable[[str | None], httpx.Client]) -> None:
    assert api(house.keys["agent"]).post("/work/claim", json={"worker": "w"}).status_code == 204
