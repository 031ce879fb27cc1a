"""The feed of a tenant: no event is left out, none is repeated, however transactions of different runs overlap."""

import os
import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg

if TYPE_CHECKING:
    from runs.queries import FeedCursor
    from tests.cast import House

QUIET = "update runs_run set updated_at = updated_at - interval '1 minute' where id = %s"


@contextmanager
def writer(house: "House") -> Iterator[psycopg.Connection[Any]]:
    """A transaction of the app role in a tenant, committed at the end."""
    with psycopg.connect(os.environ["DATABASE_URL"]) as connection:
        connection.execute("select smriti_enter(%s)", [house.id])
        yield connection


def grow(connection: psycopg.Connection[Any], run: UUID, count: int = 1) -> None:
    """What every change of a log does, under the lock of the run's row."""
    connection.execute("select from runs_run where id = %s for no key update", [run])
    connection.execute(
        """update runs_run set last_seq = last_seq + %(n)s, updated_at = clock_timestamp(), last_digest = runs_append(
               tenant_id, id, last_seq, last_digest, clock_timestamp(), 'system', null, null,
               array_fill('note'::text, array[%(n)s]), null, null, null, null, null)
           where id = %(run)s""",
        {"n": count, "run": run},
    )


def new_run(house: "House") -> UUID:
    from tests.runs.driver import Worker

    return UUID(Worker(house).start("work"))


def read(house: "House", cursor: "FeedCursor", limit: int = 7) -> tuple[list[tuple[UUID, int]], "FeedCursor"]:
    """All that a reader with a cursor can have now: runs and sequence numbers."""
    from runs import operations, queries

    operations.advance_feed(tenant=house.id)
    found: list[tuple[UUID, int]] = []
    while True:
        page = queries.feed(tenant=house.id, cursor=cursor, limit=limit, payload_bytes=None)
        found += [(item.run_id, item.event.seq) for item in page.items]
        cursor = page.through
        if not page.more:
            return found, cursor


def test_a_transaction_that_commits_late_is_read_late_and_once(house: "House") -> None:
    from runs.queries import START

    early, late = new_run(house), new_run(house)
    seen, cursor = read(house, START)
    assert sorted(seen) == sorted([(early, 1), (late, 1)])
    with writer(house) as held:
        grow(held, late, 3)  # begins, and takes its numbers, before the other
        with writer(house) as other:
            grow(other, early)
        seen, cursor = read(house, cursor)
        assert seen == [(early, 2)]
        assert read(house, cursor)[0] == []
    seen, cursor = read(house, cursor)
    assert seen == [(late, 2), (late, 3), (late, 4)]
    assert read(house, cursor) == ([], cursor)


def test_what_is_rolled_back_is_never_read(house: "House") -> None:
    from runs.queries import START

    run = new_run(house)
    _, cursor = read(house, START)
    with writer(house) as connection:
        grow(connection, run)
        connection.rollback()
    assert read(house, cursor)[0] == []
    with writer(house) as connection:
        grow(connection, run)
    assert read(house, cursor)[0] == [(run, 2)]


def test_a_quiet_run_leaves_the_list_of_what_is_due_and_comes_back(house: "House") -> None:
    from kernel.context import tenant_scope
    from runs.models import FeedDue, Run
    from runs.queries import START

    run = new_run(house)
    _, cursor = read(house, START)
    with writer(house) as connection:
        connection.execute(QUIET, [run])
    with writer(house) as held:
        held.execute("select from runs_run where id = %s for no key update", [run])
        assert read(house, cursor)[0] == []  # does not wait for the lock of a run that somebody changes
    with tenant_scope(house.id):
        assert FeedDue.objects.filter(id=run).exists()
    assert read(house, cursor)[0] == []
    with tenant_scope(house.id):
        assert not FeedDue.objects.filter(id=run).exists()
        assert not Run.objects.get(id=run).feed_due
    with writer(house) as connection:
        grow(connection, run, 2)
    assert read(house, cursor)[0] == [(run, 2), (run, 3)]


def test_readers_miss_and_repeat_nothing_while_transactions_overlap(house: "House", proof: bool) -> None:
    """Writers hold their transactions open for random times and give some up; every reader sees every log whole, once, in order."""
    from kernel.context import tenant_scope
    from runs.models import Run
    from runs.queries import START

    runs = [new_run(house) for _ in range(6)]
    stop = threading.Event()
    failures: list[BaseException] = []
    logs: list[list[tuple[UUID, int]]] = [[] for _ in range(3)]

    def write(number: int) -> None:
        dice = random.Random(number)
        for _ in range(400 if proof else 60):
            try:
                with writer(house) as connection:
                    for run in sorted(dice.sample(runs, dice.choice([1, 1, 2]))):
                        grow(connection, run, dice.randint(1, 9))
                    time.sleep(dice.choice([0, 0, 0.001, 0.01]))
                    if dice.random() < 0.1:
                        raise InterruptedError
                    if dice.random() < 0.3:
                        connection.execute(QUIET, [run])
            except InterruptedError:
                continue
            except BaseException as error:
                failures.append(error)
                raise

    def follow(log: list[tuple[UUID, int]], limit: int) -> None:
        cursor = START
        last = False
        while True:
            last = stop.is_set()
            try:
                seen, cursor = read(house, cursor, limit)
            except BaseException as error:
                failures.append(error)
                raise
            log += seen
            if last:
                return

    readers = [threading.Thread(target=follow, args=(log, limit)) for log, limit in zip(logs, (1, 7, 256), strict=True)]
    writers = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for thread in (*readers, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    for thread in readers:
        thread.join()
    assert failures == []
    with tenant_scope(house.id):
        ends = dict(Run.objects.values_list("id", "last_seq"))
    assert sum(ends.values()) > 300
    for log in logs:
        by_run = defaultdict(list)
        for run, seq in log:
            by_run[run].append(seq)
        assert {run: list(range(1, end + 1)) for run, end in ends.items()} == by_run
    assert logs[0] == logs[1] == logs[2]  # one order for all


def test_another_tenants_runs_are_not_in_the_feed(house: "House", other_house: "House") -> None:
    from runs.queries import START

    mine, theirs = new_run(house), new_run(other_house)
    assert read(house, START)[0] == [(mine, 1)]
    assert read(other_house, START)[0] == [(theirs, 1)]
