"""Webhooks through the real dispatcher to a real server: signed, repeated, given up, sent again; and never to our own networks."""

import socket
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.core import mail
from django.db import connection
from pytest_django import Settings
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from kernel import clock
from kernel.actor import system
from kernel.context import tenant_scope
from kernel.errors import Invalid, NotFound
from notices import kinds, queries
from notices import operations as notices
from notices.models import Delivery, Endpoint
from notices.operations.endpoints import MAX_ENDPOINTS, EndpointDisabled, TooManyEndpoints
from notices.queries import DeliveryRow, EndpointRow
from tests.cast import Cast, House
from tests.notices.receiver import Receiver

Dispatch = Callable[..., None]
Register = Callable[..., notices.Issued]
WHO = system("tests")
KIND = "test.happened"


@pytest.fixture(autouse=True)
def _kind() -> None:
    kinds.register(KIND, "Something happened")
    kinds.register("test.other", "Something else happened")


def tell(house: House, *, kind: str = KIND, say: str = "hello", to: list[UUID] | None = None) -> UUID:
    with tenant_scope(house.id):
        return notices.tell(
            tenant=house.id, kind=kind, to=to, subject="S", lines=["L"], link=f"/t/{house.slug}/runs/", data={"say": say},
            now=clock.now(),
        )  # fmt: skip


def deliveries(house: House, endpoint: UUID, status: str | None = None) -> list[DeliveryRow]:
    with tenant_scope(house.id):
        found = queries.deliveries(tenant=house.id, endpoint_id=endpoint, status=status, cursor=None, limit=50)
        return found.rows[::-1]


def state(house: House, endpoint: UUID) -> EndpointRow:
    with tenant_scope(house.id):
        return queries.get_endpoint(tenant=house.id, endpoint_id=endpoint)


def test_a_notice_arrives_signed_and_only_where_its_kind_is_wanted(
    house: House, receiver: Receiver, register: Register, dispatch: Dispatch
) -> None:
    every = register(house, receiver.url("/every"))
    some = register(house, receiver.url("/some"), "test.other")
    first, second = tell(house, say="ज़"), tell(house, kind="test.other")
    dispatch(house)
    by_path = {(path, headers["webhook-id"]): (headers, body) for path, headers, body in receiver.got}
    assert set(by_path) == {("/every", str(first)), ("/every", str(second)), ("/some", str(second))}
    for (path, _), (headers, body) in by_path.items():
        payload = Webhook((every if path == "/every" else some).secret).verify(body, headers)
        assert payload["type"] in {KIND, "test.other"}
        assert headers["content-type"] == "application/json"
        with pytest.raises(WebhookVerificationError):
            Webhook(every.secret).verify(body + b" ", headers)
    headers, body = by_path["/every", str(first)]
    assert Webhook(every.secret).verify(body, headers)["data"] == {"say": "ज़"}
    [one, two] = deliveries(house, every.endpoint.id)
    assert (one.status, one.last_status, one.attempts, one.last_error) == ("delivered", 200, 1, None)
    assert one.latency_ms is not None
    assert two.kind == "test.other"


def test_nothing_that_a_client_chose_stands_in_clear(house: House, receiver: Receiver, register: Register) -> None:
    issued = register(house, receiver.url("/zebra-path"))
    tell(house, say="zebra-data")
    with tenant_scope(house.id), connection.cursor() as cursor:
        for table in ("notices_endpoint", "notices_delivery", "outbox_message"):
            cursor.execute(f"select string_agg(encode(convert_to(t::text, 'UTF8'), 'escape'), ' ') from {table} t")
            text = cursor.fetchone()[0]
            assert text
            for word in ("zebra", issued.secret, b"zebra".hex(), issued.secret.encode().hex()):
                assert word not in text


def test_a_receiver_that_is_down_for_an_hour_gets_it_under_the_same_id(
    house: House, receiver: Receiver, register: Register, dispatch: Dispatch
) -> None:
    issued = register(house, receiver.url())
    notice = tell(house)
    receiver.answers = [503]
    dispatch(house)
    for _ in range(12):
        dispatch(house, hours=0.1)
    assert len(receiver.got) >= 8
    [row] = deliveries(house, issued.endpoint.id)
    assert (row.status, row.last_status, row.last_error) == ("pending", 503, "http_503")
    assert row.due_at is not None
    assert state(house, issued.endpoint.id).failing_since is not None
    receiver.answers = [204]
    dispatch(house, hours=2)
    [row] = deliveries(house, issued.endpoint.id)
    assert (row.status, row.last_status, row.attempts) == ("delivered", 204, len(receiver.got))
    assert state(house, issued.endpoint.id).failing_since is None
    assert {headers["webhook-id"] for _, headers, _ in receiver.got} == {str(notice)}
    assert len({body for *_, body in receiver.got}) == 1
    receiver.verified(issued.secret)


def test_500_then_200(house: House, receiver: Receiver, register: Register, dispatch: Dispatch) -> None:
    issued = register(house, receiver.url())
    receiver.answers = [500, 200]
    tell(house)
    dispatch(house)
    dispatch(house, hours=1)
    assert [row.status for row in deliveries(house, issued.endpoint.id)] == ["delivered"]
    assert len(receiver.got) == 2


def test_a_slow_receiver_is_cut_off_and_holds_up_nothing(
    house: House, other_house: House, receiver: Receiver, register: Register, dispatch: Dispatch, settings: Settings
) -> None:
    settings.OUTBOX_SEND_SECONDS = 1
    slow, fast = register(house, receiver.url("/slow")), register(other_house, receiver.url("/fast"))
    for _ in range(3):
        tell(house)
    tell(other_house)
    began = time.monotonic()
    dispatch(house)
    assert time.monotonic() - began < 25  # the receiver would take 30 s for one
    assert {row.last_error for row in deliveries(house, slow.endpoint.id)} == {"timeout"}
    assert [row.status for row in deliveries(other_house, fast.endpoint.id)] == ["delivered"]


def test_a_redirect_to_a_private_address_is_not_followed(
    house: House, receiver: Receiver, register: Register, dispatch: Dispatch
) -> None:
    issued = register(house, receiver.url("/redirect"))
    tell(house)
    dispatch(house)
    [row] = deliveries(house, issued.endpoint.id)
    assert (row.status, row.last_error) == ("dead", "http_307")
    assert [path for path, *_ in receiver.got] == ["/redirect"]


def test_a_name_that_turns_to_a_private_address_is_refused_at_the_next_attempt(
    house: House, receiver: Receiver, register: Register, dispatch: Dispatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = ["127.0.0.1"]
    found = socket.getaddrinfo

    def names(host: str, port: int, *rest: Any, **more: Any) -> Any:
        if host != "hooks.example":
            return found(host, port, *rest, **more)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (answers[0], port))]

    monkeypatch.setattr(socket, "getaddrinfo", names)
    issued = register(house, f"http://hooks.example:{receiver.port}/in")
    tell(house)
    dispatch(house)
    answers[0] = "10.0.0.7"
    tell(house)
    dispatch(house)
    first, second = deliveries(house, issued.endpoint.id)
    assert (first.status, second.status, second.last_error) == ("delivered", "dead", "address_refused")
    assert len(receiver.got) == 1


def test_410_switches_the_endpoint_off_and_says_so(
    cast: Cast, receiver: Receiver, register: Register, dispatch: Dispatch
) -> None:
    house = cast.home
    issued = register(house, receiver.url("/token-in-path"))
    receiver.answers = [410]
    tell(house)
    dispatch(house)
    row = state(house, issued.endpoint.id)
    assert (row.status, row.disabled_reason) == ("disabled", "gone")
    [sent] = deliveries(house, issued.endpoint.id)
    assert (sent.status, sent.last_status) == ("dead", 410)
    dispatch(house)
    letters = [m for m in mail.outbox if m.to[0] in {house.users[role].email for role in house.users}]
    assert {m.to[0] for m in letters} == {house.users["owner"].email, house.users["admin"].email}
    assert f"/t/{house.slug}/webhooks/{row.id}/" in letters[0].body
    assert "token-in-path" not in str(letters[0].message())
    tell(house)
    dispatch(house)
    assert len(receiver.got) == 1
    with tenant_scope(house.id), pytest.raises(EndpointDisabled):
        notices.ping(tenant=house.id, endpoint_id=row.id, now=clock.now())


def test_an_endpoint_that_fails_for_days_is_switched_off_with_what_waits_kept(
    cast: Cast, receiver: Receiver, register: Register, dispatch: Dispatch
) -> None:
    house = cast.home
    issued = register(house, receiver.url())
    receiver.answers = [500]
    tell(house)
    dispatch(house)
    dispatch(house, hours=4 * 24)
    assert state(house, issued.endpoint.id).status == "active"
    tell(house)
    dispatch(house, hours=25)
    assert state(house, issued.endpoint.id).disabled_reason == "failing"
    dispatch(house, hours=4 * 24)
    assert {row.status for row in deliveries(house, issued.endpoint.id)} == {"dead"}
    assert house.users["owner"].email in {m.to[0] for m in mail.outbox}
    receiver.answers = [200]
    with tenant_scope(house.id):
        where: dict[str, Any] = {
            "tenant": house.id,
            "endpoint_id": issued.endpoint.id,
            "actor": WHO,
            "now": clock.now(),
        }
        assert notices.change_endpoint(**where, enabled=True).failing_since is None
        since = clock.now() - timedelta(hours=1)
        done = notices.redeliver_since(**where, since=since, delivered=False, cursor=None, limit=1)
        assert (done.count, done.next_cursor is None) == (1, False)
        done = notices.redeliver_since(**where, since=since, delivered=False, cursor=done.next_cursor, limit=10)
        assert (done.count, done.next_cursor) == (1, None)
    dispatch(house)
    assert [row.status for row in deliveries(house, issued.endpoint.id)] == ["delivered", "delivered"]


def test_what_was_delivered_can_be_sent_again_under_its_id(
    house: House, receiver: Receiver, register: Register, dispatch: Dispatch
) -> None:
    issued = register(house, receiver.url())
    notice = tell(house)
    dispatch(house)
    [row] = deliveries(house, issued.endpoint.id)
    where: dict[str, Any] = {"tenant": house.id, "endpoint_id": issued.endpoint.id, "actor": WHO, "now": clock.now()}
    with tenant_scope(house.id):
        again = notices.redeliver(**where, delivery_id=row.id)
        assert again.status == "pending"
    dispatch(house)
    with tenant_scope(house.id):
        since = clock.now() - timedelta(hours=1)
        found = notices.redeliver_since(**where, since=since, delivered=False, cursor=None, limit=10)
        assert found.count == 0
        assert notices.redeliver_since(**where, since=since, delivered=True, cursor=None, limit=10).count == 1
    dispatch(house)
    assert [headers["webhook-id"] for _, headers, _ in receiver.got] == [str(notice)] * 3
    receiver.verified(issued.secret)


def test_a_wrong_secret_is_tried_again_until_the_receiver_has_the_right_one(
    house: House, receiver: Receiver, register: Register, dispatch: Dispatch
) -> None:
    issued = register(house, receiver.url())
    receiver.secret = "whsec_" + "AAAA" * 11
    tell(house)
    dispatch(house)
    assert [(r.status, r.last_error) for r in deliveries(house, issued.endpoint.id)] == [("pending", "http_401")]
    receiver.secret = issued.secret
    dispatch(house, hours=1)
    assert [row.status for row in deliveries(house, issued.endpoint.id)] == ["delivered"]


def test_for_the_overlap_both_secrets_sign(
    house: House, receiver: Receiver, register: Register, dispatch: Dispatch
) -> None:
    old = register(house, receiver.url())
    where: dict[str, Any] = {"tenant": house.id, "endpoint_id": old.endpoint.id, "actor": WHO}
    with tenant_scope(house.id):
        new = notices.rotate_secret(**where, overlap=timedelta(hours=1), now=clock.now())
    tell(house)
    dispatch(house)
    receiver.verified(old.secret)
    receiver.verified(new.secret)
    with tenant_scope(house.id):  # the overlap is over
        Endpoint.objects.filter(id=old.endpoint.id).update(previous_until=clock.now() - timedelta(seconds=1))
    receiver.got.clear()
    tell(house)
    dispatch(house)
    receiver.verified(new.secret)
    with pytest.raises(WebhookVerificationError):
        receiver.verified(old.secret)
    with tenant_scope(house.id), pytest.raises(Invalid):
        notices.rotate_secret(**where, overlap=timedelta(days=8), now=clock.now())


def test_tenants_get_their_own_only(
    house: House, other_house: House, receiver: Receiver, register: Register, dispatch: Dispatch
) -> None:
    mine, theirs = register(house, receiver.url("/mine")), register(other_house, receiver.url("/theirs"))
    tell(house, say="mine")
    dispatch(house)
    assert [path for path, *_ in receiver.got] == ["/mine"]
    assert receiver.verified(mine.secret)[0]["data"] == {"say": "mine"}
    with tenant_scope(other_house.id):
        assert [row.id for row in queries.list_endpoints(tenant=other_house.id)] == [theirs.endpoint.id]
        with pytest.raises(NotFound):
            queries.get_endpoint(tenant=other_house.id, endpoint_id=mine.endpoint.id)


def test_what_cannot_be_reached_is_refused_at_once(house: House, register: Register, settings: Settings) -> None:
    for url in (
        "ftp://x.example/",
        "https://u:p@x.example/",
        "https://x.example:22/",
        "http://127.0.0.1/",
        "https://[::1]/",
    ):
        with pytest.raises(Invalid):
            register(house, url)
    settings.SECURE = True
    with pytest.raises(Invalid):
        register(house, "http://hooks.example/")
    with pytest.raises(Invalid):
        register(house, "https://hooks.example/", "no.such")
    for _ in range(MAX_ENDPOINTS):
        register(house, "https://hooks.example/")
    with pytest.raises(TooManyEndpoints):
        register(house, "https://hooks.example/")


def test_a_deleted_endpoint_is_told_nothing_and_leaves_nothing(
    house: House, receiver: Receiver, register: Register, dispatch: Dispatch
) -> None:
    issued = register(house, receiver.url("/redirect"))
    tell(house)
    dispatch(house)
    tell(house)
    with tenant_scope(house.id):
        notices.delete_endpoint(tenant=house.id, endpoint_id=issued.endpoint.id, actor=WHO, now=clock.now())
        assert not Delivery.objects.exists()
    dispatch(house)
    assert len(receiver.got) == 1
    with tenant_scope(house.id), connection.cursor() as cursor:
        cursor.execute("select distinct status from outbox_message")
        assert cursor.fetchall() == [("skipped",)]


def test_old_deliveries_are_forgotten_unless_they_are_on_their_way(
    house: House, receiver: Receiver, register: Register, dispatch: Dispatch, settings: Settings
) -> None:
    issued = register(house, receiver.url())
    receiver.answers = [200, 301, 500]
    for _ in range(3):
        tell(house)
        dispatch(house)
    assert {row.status for row in deliveries(house, issued.endpoint.id)} == {"delivered", "dead", "pending"}
    notices.purge(now=clock.now() + timedelta(days=settings.WEBHOOK_KEEP_DAYS - 1))
    assert len(deliveries(house, issued.endpoint.id)) == 3
    notices.purge(now=clock.now() + timedelta(days=settings.WEBHOOK_KEEP_DAYS + 1))
    assert [row.status for row in deliveries(house, issued.endpoint.id)] == ["pending"]
