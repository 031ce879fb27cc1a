"""Operators see what does not get through and act on it, with an audit entry; nobody sees a body."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import httpx
import pytest

from kernel import clock, outbox
from kernel.context import tenant_scope
from kernel.outbox import deliverers, operations
from kernel.outbox.deliverers import Dead, Message, Outcome

if TYPE_CHECKING:
    from tests.cast import House

Api = Callable[[str | None], httpx.Client]


@pytest.fixture
def topic() -> Iterator[str]:
    """A topic whose receiver is gone."""

    def deliver(message: Message) -> Outcome:
        return Dead("http_410")

    name = f"test.t{uuid4().hex}"
    outbox.register(name, deliver)
    yield name
    del deliverers._deliverers[name]


def put(house: "House", topic: str, dedup: str) -> UUID:
    with tenant_scope(house.id):
        return operations.enqueue(
            tenant=house.id, topic=topic, body={"say": "zebra"}, ordering=None, dedup=dedup, now=clock.now()
        )


def audited(client: httpx.Client, action: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get("audit", params={"action": action}).json()["items"]
    return found


def test_an_operator_retries_and_skips(house: "House", other_house: "House", api: Api, topic: str) -> None:
    ids = [str(put(house, topic, f"{number}")) for number in range(3)]
    waits = str(put(house, "test.nobody", "waits"))
    theirs = str(put(other_house, topic, "theirs"))
    operations.dispatch()
    client, admin = api(house.keys["operator"]), api(house.keys["admin"])

    found = client.get("outbox").json()
    assert [row["id"] for row in found["items"]] == [waits, *reversed(ids)]
    assert found["counts"] == {"pending": 1, "sending": 0, "dead": 3, "sent": 0, "skipped": 0}
    assert found["oldest_seconds"] >= 0
    assert (found["items"][1]["status"], found["items"][1]["last_error"]) == ("dead", "http_410")
    assert "zebra" not in str(found)
    assert theirs not in str(found)
    page = client.get("outbox", params={"status": "dead", "topic": topic, "limit": 2}).json()
    rest = client.get("outbox", params={"status": ["dead", "sent"], "limit": 2, "cursor": page["next_cursor"]}).json()
    assert [row["id"] for row in page["items"] + rest["items"]] == list(reversed(ids))
    assert rest["next_cursor"] is None

    assert client.post(f"outbox/{ids[0]}/retry").json()["status"] == "pending"
    skipped = client.post(f"outbox/{ids[1]}/skip", json={"reason": "told them by phone"})
    assert skipped.json()["status"] == "skipped"
    assert client.post("outbox/retry", json={"last_error": "timeout"}).json() == {"retried": 0}
    assert client.post("outbox/retry", json={"topic": topic}).json() == {"retried": 1}
    refused = client.post(f"outbox/{ids[1]}/retry")
    assert (refused.status_code, refused.json()["code"]) == (409, "message_not_open")
    assert client.post(f"outbox/{theirs}/retry").status_code == 404
    assert client.post(f"outbox/{theirs}/skip", json={"reason": "x"}).status_code == 404

    assert [row["target_id"] for row in audited(admin, "outbox.retried")][-1] == ids[0]
    assert [row["content"] for row in audited(admin, "outbox.skipped")] == [{"reason": "told them by phone"}]
    [bulk] = audited(admin, "outbox.retried_all")
    assert bulk["content"] == {"topic": topic, "last_error": None, "messages": [ids[2]]}
    assert client.post(f"outbox/{waits}/skip", json={"reason": "test"}).status_code == 200


def test_who_may(house: "House", api: Api, topic: str) -> None:
    message_id = put(house, topic, "a")
    agent = api(house.keys["agent"])
    assert agent.get("outbox").status_code == 403  # it is bound to an agent
    for path, body in (
        (f"outbox/{message_id}/retry", None),
        (f"outbox/{message_id}/skip", {"reason": "x"}),
        ("outbox/retry", {}),
    ):
        assert agent.post(path, json=body).status_code == 403
    assert api(None).get("outbox").status_code == 401
    operations.dispatch()
