"""The outbox: nothing leaves without its transaction, in its order, and no tenant or topic waits for another's trouble."""

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from django.db import DatabaseError, connection, connections, transaction
from pytest_django import Settings

from kernel import clock, ids, jobs, outbox
from kernel.context import tenant_scope
from kernel.errors import NotFound
from kernel.outbox import deliverers, operations, queries
from kernel.outbox.deliverers import Dead, Delivered, Message, Outcome, Retry


class Receiver:
    """Takes the messages of a topic of its own, and answers as told."""

    def __init__(self) -> None:
        self.topic = f"test.t{uuid4().hex}"
        self.answers: defaultdict[str, list[Outcome | Exception]] = defaultdict(list)
        self.got: list[Message] = []
        self.delivered: list[str] = []
        outbox.register(self.topic, self.deliver)

    def deliver(self, message: Message) -> Outcome:
        self.got.append(message)
        answers = self.answers[message.dedup]
        answer = answers.pop(0) if answers else Delivered()
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, Delivered):
            self.delivered.append(message.dedup)
        return answer


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    yield found
    del deliverers._deliverers[found.topic]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries fall due at once, and no broker is asked."""
    monkeypatch.setattr(operations, "FIRST_DELAY", 0.0)
    monkeypatch.setattr(jobs, "enqueue", lambda *_, **__: None)


def put(tenant: UUID, topic: str, dedup: str, *, ordering: UUID | None = None, body: Any = None) -> UUID:
    with tenant_scope(tenant):
        return put_here(tenant, topic, dedup, ordering=ordering, body=body)


def put_here(tenant: UUID, topic: str, dedup: str, *, ordering: UUID | None = None, body: Any = None) -> UUID:
    return operations.enqueue(
        tenant=tenant, topic=topic, body=body or {"say": dedup}, ordering=ordering, dedup=dedup, now=clock.now()
    )


def get(tenant: UUID, message_id: UUID) -> queries.MessageRow:
    with tenant_scope(tenant):
        return queries.get_message(tenant=tenant, message_id=message_id)


def operate(what: Callable[..., None], tenant: UUID, message_id: UUID) -> None:
    with tenant_scope(tenant):
        what(tenant=tenant, message_id=message_id)


def test_a_message_is_sent_once_with_its_body_and_id(receiver: Receiver) -> None:
    tenant = ids.uuid7()
    message_id = put(tenant, receiver.topic, "a", body={"say": "नमस्ते"})
    assert operations.dispatch() == 1
    [message] = receiver.got
    assert (message.id, message.tenant, message.attempt) == (message_id, tenant, 1)
    assert message.body == '{"say":"नमस्ते"}'.encode()
    row = get(tenant, message_id)
    assert (row.status, row.attempts, row.last_error) == ("sent", 1, None)
    assert row.ended_at is not None
    assert operations.dispatch() == 0


def test_what_is_rolled_back_is_not_sent(receiver: Receiver) -> None:
    tenant = ids.uuid7()
    with tenant_scope(tenant):
        put_here(tenant, receiver.topic, "a")
        transaction.set_rollback(True)
    assert operations.dispatch() == 0
    assert receiver.got == []


def test_nothing_of_the_body_stands_in_clear_and_nothing_is_kept_once_it_is_over(receiver: Receiver) -> None:
    tenant = ids.uuid7()
    put(tenant, receiver.topic, "a", body={"say": "zebra-" * 30})

    def row() -> tuple[str, bytes | None]:
        with tenant_scope(tenant), connection.cursor() as cursor:
            cursor.execute("select m::text, body from outbox_message m where topic = %s", [receiver.topic])
            found: tuple[str, bytes | None] = cursor.fetchone()
            return found

    text, body = row()
    assert "zebra" not in text
    assert b"zebra" not in bytes(body or b"")
    operations.dispatch()
    assert row()[1] is None


def test_one_dedup_id_is_one_message(receiver: Receiver) -> None:
    tenant, other = ids.uuid7(), ids.uuid7()
    first = put(tenant, receiver.topic, "a")
    assert put(tenant, receiver.topic, "a") == first
    assert put(other, receiver.topic, "a") != first
    operations.dispatch()
    assert put(tenant, receiver.topic, "a") == first
    operations.dispatch()
    assert [message.tenant for message in receiver.got].count(tenant) == 1


def test_a_later_message_waits_for_the_earlier_ones_of_its_order_only(receiver: Receiver) -> None:
    tenant, order = ids.uuid7(), ids.uuid7()
    receiver.answers["a"] = [Retry("http_503"), ValueError("secret"), Retry("http_503", after=0.0)]
    for name in ("a", "b", "c"):
        put(tenant, receiver.topic, name, ordering=order)
    put(tenant, receiver.topic, "other", ordering=ids.uuid7())
    put(tenant, receiver.topic, "free")
    operations.dispatch()
    names = [message.dedup for message in receiver.got]
    assert [name for name in names if name in "abc"] == ["a", "a", "a", "a", "b", "c"]
    assert names.index("other") < names.index("b")
    assert names.index("free") < names.index("b")


def test_a_receiver_says_when_to_come_again(receiver: Receiver) -> None:
    tenant, order = ids.uuid7(), ids.uuid7()
    receiver.answers["a"] = [Retry("http_429", after=3000)]
    first, second = (put(tenant, receiver.topic, name, ordering=order) for name in "ab")
    before = clock.now()
    operations.dispatch()
    row = get(tenant, first)
    assert (row.status, row.last_error) == ("pending", "http_429")
    assert row.due_at is not None
    assert row.due_at > before + timedelta(seconds=2990)
    assert get(tenant, second).due_at is None
    operate(operations.retry, tenant, first)
    operations.dispatch()
    assert receiver.delivered == ["a", "b"]


def test_delays_grow_with_full_jitter_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "FIRST_DELAY", 2.0)
    for attempt, ceiling in ((1, 2), (2, 4), (5, 32), (12, 3600), (10_000, 3600)):
        drawn = [operations.delay_of(attempt, after=None) for _ in range(500)]
        assert max(drawn) <= ceiling
        assert min(drawn) < ceiling / 4
        assert max(drawn) > ceiling * 3 / 4
    assert operations.delay_of(1, after=50) == 50
    assert operations.delay_of(1, after=1e9) == operations.LONGEST_ASKED


def test_what_is_given_up_makes_way_and_comes_back_when_an_operator_says_so(
    receiver: Receiver, settings: Settings
) -> None:
    settings.OUTBOX_MAX_ATTEMPTS = 3
    tenant, order = ids.uuid7(), ids.uuid7()
    receiver.answers["a"] = [Retry("timeout")] * 3
    receiver.answers["b"] = [Dead("http_410")]
    a, b, c = (put(tenant, receiver.topic, name, ordering=order) for name in "abc")
    operations.dispatch()
    assert [message.dedup for message in receiver.got] == ["a", "a", "a", "b", "c"]
    assert [(row.status, row.last_error) for row in (get(tenant, x) for x in (a, b, c))] == [
        ("dead", "timeout"),
        ("dead", "http_410"),
        ("sent", None),
    ]
    with tenant_scope(tenant):
        assert operations.retry_dead(tenant=tenant, topic=receiver.topic, error="timeout", limit=10) == [a]
    operations.dispatch()
    assert (get(tenant, a).status, get(tenant, a).attempts) == ("sent", 1)
    operate(operations.skip, tenant, b)
    assert get(tenant, b).status == "skipped"
    for what in (operations.retry, operations.skip):
        with pytest.raises(operations.MessageNotOpen):
            operate(what, tenant, b)


def test_a_message_is_given_up_when_it_is_too_old(receiver: Receiver, settings: Settings) -> None:
    settings.OUTBOX_MAX_AGE_HOURS = 0
    tenant = ids.uuid7()
    receiver.answers["a"] = [Retry("http_500")]
    message_id = put(tenant, receiver.topic, "a")
    operations.dispatch()
    assert (get(tenant, message_id).status, get(tenant, message_id).last_error) == ("dead", "http_500")


def test_skipping_the_head_lets_the_next_go_on(receiver: Receiver) -> None:
    tenant, order = ids.uuid7(), ids.uuid7()
    receiver.answers["a"] = [Retry("http_500", after=3000)]
    a, b, c = (put(tenant, receiver.topic, name, ordering=order) for name in "abc")
    operations.dispatch()
    operate(operations.skip, tenant, b)  # not the head: the head still holds c
    assert operations.dispatch() == 0
    operate(operations.skip, tenant, a)
    operations.dispatch()
    assert receiver.delivered == ["c"]
    assert get(tenant, c).status == "sent"


def test_operators_of_another_tenant_find_nothing(receiver: Receiver) -> None:
    tenant, other = ids.uuid7(), ids.uuid7()
    message_id = put(tenant, receiver.topic, "a")
    for what in (operations.retry, operations.skip):
        with pytest.raises(NotFound):
            operate(what, other, message_id)
    with tenant_scope(other):
        assert operations.retry_dead(tenant=other, topic=None, error=None, limit=10) == []
        assert queries.overview(tenant=other, statuses=[], topic=None, cursor=None, limit=10).rows == []
    operations.dispatch()


def test_an_attempt_that_was_cut_off_is_made_again_and_its_late_end_changes_nothing(receiver: Receiver) -> None:
    tenant, order = ids.uuid7(), ids.uuid7()
    first = put(tenant, receiver.topic, "a", ordering=order)
    put(tenant, receiver.topic, "b", ordering=order)
    # A dispatcher takes it, its lease runs out at once, and it is never heard of until too late.
    _, stale, *_ = operations.CLAIM.one((tenant, [receiver.topic], 0.0, 50))
    assert operations.dispatch() == 2
    assert (receiver.got[0].id, receiver.got[0].attempt) == (first, 2)
    for status in ("sent", "dead", "pending"):
        assert operations.FINISH.one((tenant, first, stale, status, None, 0.0, 50, 1e6)) == ("lost",)
    assert get(tenant, first).status == "sent"


def test_while_a_lease_lasts_nobody_else_has_the_message_or_the_next_one(receiver: Receiver) -> None:
    tenant, order = ids.uuid7(), ids.uuid7()
    put(tenant, receiver.topic, "a", ordering=order)
    message_id, lease, *_ = operations.CLAIM.one((tenant, [receiver.topic], 60.0, 50))
    put(tenant, receiver.topic, "b", ordering=order)
    assert operations.dispatch() == 0
    with pytest.raises(operations.MessageNotOpen):
        operate(operations.skip, tenant, message_id)
    assert operations.FINISH.one((tenant, message_id, lease, "sent", None, 0.0, 50, 1e6)) == ("sent",)
    operations.dispatch()
    assert receiver.delivered == ["b"]


def test_what_kills_every_dispatcher_is_given_up(receiver: Receiver, settings: Settings) -> None:
    settings.OUTBOX_MAX_ATTEMPTS = 4
    tenant, order = ids.uuid7(), ids.uuid7()
    poison = put(tenant, receiver.topic, "a", ordering=order)
    put(tenant, receiver.topic, "b", ordering=order)
    for _ in range(4):
        assert operations.CLAIM.one((tenant, [receiver.topic], 0.0, 4))[0] == poison
    operations.dispatch()
    assert receiver.delivered == ["b"]
    assert (get(tenant, poison).status, get(tenant, poison).last_error) == ("dead", "lost")


def test_who_adds_to_an_order_waits_for_the_one_before_to_commit(receiver: Receiver) -> None:
    tenant, order = ids.uuid7(), ids.uuid7()
    added, may_commit = threading.Event(), threading.Event()

    def first() -> None:
        with tenant_scope(tenant):
            put_here(tenant, receiver.topic, "a", ordering=order)
            added.set()
            may_commit.wait(30)
        connections.close_all()

    def second() -> None:
        put(tenant, receiver.topic, "b", ordering=order)
        connections.close_all()

    threads = [threading.Thread(target=work) for work in (first, second)]
    threads[0].start()
    assert added.wait(30)
    threads[1].start()
    threads[1].join(0.3)
    assert threads[1].is_alive()
    operations.dispatch()
    assert receiver.got == []
    may_commit.set()
    for thread in threads:
        thread.join(30)
    operations.dispatch()
    assert receiver.delivered == ["a", "b"]


@pytest.mark.proof
def test_a_tenant_with_very_many_messages_delays_no_other(receiver: Receiver, settings: Settings, proof: bool) -> None:
    """The many have no readable body; they are given up at once, which is as much work for the dispatcher."""
    settings.OUTBOX_CONCURRENCY = 4
    many, few = ids.uuid7(), ids.uuid7()
    with tenant_scope(many), connection.cursor() as cursor:
        cursor.execute(
            """select count(outbox_put(%s, uuidv7(), %s, null, 'm' || n, '\\x00')) from generate_series(1, %s) n""",
            [many, receiver.topic, 100_000 if proof else 2_000],
        )
    other = Receiver()
    for number in range(5):
        put(few, receiver.topic, f"{number}")
        put(few, other.topic, f"{number}")
    attempts = operations.dispatch(seconds=2 if proof else 0.5)
    assert (len(receiver.delivered), len(other.delivered)) == (5, 5)
    assert attempts < (100_000 if proof else 2_000)
    with tenant_scope(many), connection.cursor() as cursor:
        cursor.execute("select count(*) from outbox_message where status = 'dead' and last_error = 'unreadable'")
        assert cursor.fetchone()[0] == attempts - 10
    del deliverers._deliverers[other.topic]


def test_receivers_that_hang_take_a_part_of_the_places_only(receiver: Receiver, settings: Settings) -> None:
    settings.OUTBOX_CONCURRENCY = 4
    hanging, fine, released = ids.uuid7(), ids.uuid7(), threading.Event()
    hangs = Receiver()
    hangs.deliver = lambda message: Delivered() if released.wait(30) else Retry("timeout")  # type: ignore[method-assign]
    deliverers._deliverers[hangs.topic] = hangs.deliver
    for number in range(10):
        put(hanging, hangs.topic, f"{number}")
        put(fine, receiver.topic, f"{number}")
    dispatcher = threading.Thread(target=operations.dispatch)
    dispatcher.start()
    deadline = time.monotonic() + 20
    while len(receiver.delivered) < 10:
        assert time.monotonic() < deadline, "the fine tenant waits for the hanging one"
        time.sleep(0.01)
    assert not released.is_set()
    released.set()
    dispatcher.join()
    del deliverers._deliverers[hangs.topic]


def test_messages_that_nobody_here_can_deliver_wait(receiver: Receiver) -> None:
    tenant = ids.uuid7()
    message_id = put(tenant, "test.nobody", "a")
    put(tenant, receiver.topic, "b")
    assert operations.dispatch() == 1
    assert get(tenant, message_id).status == "pending"
    operate(operations.skip, tenant, message_id)


def test_functions_of_the_database_put_messages_too(receiver: Receiver) -> None:
    from kernel import pool, ports

    tenant, message_id = ids.uuid7(), ids.uuid7()
    sealed = ports.codec().seal(tenant=tenant, context=operations.context(message_id), plaintext=b"from SQL")
    with pool.pool().connection() as source, source.transaction():
        source.execute("select smriti_enter(%s)", [tenant])
        source.execute("select outbox_put(%s, %s, %s, null, 'a', %s)", [tenant, message_id, receiver.topic, sealed])
    operations.dispatch()
    assert [(message.id, message.body) for message in receiver.got] == [(message_id, b"from SQL")]


def test_a_body_of_another_message_is_not_sent(receiver: Receiver) -> None:
    tenant = ids.uuid7()
    message_id = put(tenant, receiver.topic, "a")
    put(tenant, receiver.topic, "b", body={"say": "swapped"})
    with tenant_scope(tenant), connection.cursor() as cursor:
        cursor.execute(
            "update outbox_message set body = (select body from outbox_message where topic = %s and dedup = 'b') "
            "where topic = %s and dedup = 'a'",
            [receiver.topic, receiver.topic],
        )
    operations.dispatch()
    assert receiver.delivered == ["b"]
    assert (get(tenant, message_id).status, get(tenant, message_id).last_error) == ("dead", "unreadable")


@pytest.mark.parametrize(
    "statement",
    [
        "update outbox_message set status = 'sent', body = null, ended_at = now()",
        "update outbox_message set status = 'dead', ended_at = now()",
        "delete from outbox_message",
    ],
)
def test_the_database_refuses_other_moves(receiver: Receiver, statement: str) -> None:
    tenant = ids.uuid7()
    message_id = put(tenant, receiver.topic, "a")
    with (
        tenant_scope(tenant),
        connection.cursor() as cursor,
        pytest.raises(DatabaseError) as caught,
        transaction.atomic(),
    ):
        cursor.execute(statement)
    assert isinstance(caught.value.__cause__, psycopg.errors.CheckViolation)
    operate(operations.skip, tenant, message_id)


def test_what_is_over_is_purged_after_a_time_and_nothing_else(receiver: Receiver, settings: Settings) -> None:
    tenant, other = ids.uuid7(), ids.uuid7()
    receiver.answers["dead"] = [Dead("http_410")]
    kept = [put(tenant, receiver.topic, "dead"), put(tenant, "test.nobody", "waits")]
    gone = [put(tenant, receiver.topic, "a"), put(other, receiver.topic, "a")]
    operations.dispatch()
    operations.purge()
    assert get(tenant, gone[0]).status == "sent"
    settings.OUTBOX_KEEP_DAYS = 0
    assert operations.purge() >= 2
    assert [get(tenant, message_id).status for message_id in kept] == ["dead", "pending"]
    for house, message_id in zip((tenant, other), gone, strict=True):
        with pytest.raises(NotFound):
            get(house, message_id)
    for message_id in kept:
        operate(operations.skip, tenant, message_id)


@pytest.mark.parametrize(("topic", "dedup"), [("Test", "a"), ("test", "Asha Rao"), ("te st", "a"), ("test", "")])
def test_topics_and_dedup_ids_are_words_of_ours(topic: str, dedup: str) -> None:
    with pytest.raises(DatabaseError, match="identifier"):
        put(ids.uuid7(), topic, dedup)


def test_an_order_holds_with_several_dispatchers_and_receivers_that_fail(settings: Settings) -> None:
    """Whatever receivers answer and however many dispatchers there are: one message of an order at a time, in order."""
    settings.OUTBOX_CONCURRENCY = 6
    settings.OUTBOX_MAX_ATTEMPTS = 1000
    dice, lock = random.Random(7), threading.Lock()
    busy: set[UUID] = set()
    over: defaultdict[UUID, list[int]] = defaultdict(list)
    wrong: list[str] = []

    def deliver(message: Message) -> Outcome:
        assert message.ordering is not None
        with lock:
            if message.ordering in busy:
                wrong.append(f"{message.dedup} while another of its order is sent")
            busy.add(message.ordering)
            answer: Outcome = dice.choice((Delivered(), Delivered(), Retry("http_500"), Dead("http_410")))
            pause = dice.random() * 0.004
        time.sleep(pause)
        with lock:
            if not isinstance(answer, Retry):
                over[message.ordering].append(int(message.dedup.partition(":")[2]))
            busy.discard(message.ordering)
        return answer

    topic = f"test.t{uuid4().hex}"
    outbox.register(topic, deliver)
    tenants = [ids.uuid7() for _ in range(2)]
    orders = [(tenant, ids.uuid7()) for tenant in tenants for _ in range(5)]

    def feed() -> None:
        for number in range(10):
            for tenant, order in orders:
                put(tenant, topic, f"{order}:{number}", ordering=order)
        connections.close_all()

    feeder = threading.Thread(target=feed)
    feeder.start()

    def work() -> None:
        deadline = time.monotonic() + 60
        while sum(map(len, over.values())) < 100 and time.monotonic() < deadline:
            operations.dispatch(seconds=1)
        connections.close_all()

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for thread in [feeder, *workers]:
        thread.join()
    assert wrong == []
    assert over == {order: list(range(10)) for _, order in orders}
    del deliverers._deliverers[topic]
