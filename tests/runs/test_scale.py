"""A tenant with a million events costs a reader what one with a hundred does: the same queries, and none that scans a table."""

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from kernel import clock
from kernel.call import Call
from kernel.context import tenant_scope
from runs import queries
from runs.queries import RunFilter
from runs.queries.log import EVENTS
from runs.queries.state import STATE
from tests.cast import House, client, make_house
from tests.runs.driver import Worker
from tests.servers import ROOT

pytestmark = [pytest.mark.proof, pytest.mark.xdist_group("scale")]


@dataclass(frozen=True)
class Crowd:
    """A house with a small run, and one beside it with `events` events, of which the largest run has `largest`."""

    small: House
    big: House
    small_run: UUID
    big_run: UUID
    events: int
    largest: int


@pytest.fixture(scope="module")
def crowd(proof: bool) -> Crowd:
    events, largest = (1_000_000, 50_000) if proof else (50_000, 20_000)
    small, big = make_house("Small", roles=()), make_house("Big", roles=())
    runs = []
    for house in (small, big):
        worker = Worker(house)
        worker.start("first", "second")
        worker.claim()
        worker.commit(
            events=[{"type": "note", "payload": {"n": i}} for i in range(90)], checkpoint={"state": {"rows": [1]}}
        )
        worker.commit(step={"outcome": "succeeded"})
        runs.append(UUID(worker.run))
    _fill(big, runs[1], events, largest)
    return Crowd(small, big, runs[0], runs[1], events, largest)


def _fill(house: House, run: UUID, events: int, largest: int) -> None:
    """Copies of one run beside it, and of one event inside it, as the superuser: rows to be found, not to be verified."""
    name = os.environ["DATABASE_URL"].rpartition("/")[2]
    url = os.environ["SMRITI_TEST_ADMIN_URL"].rpartition("/")[0] + f"/{name}"
    others = max(500, events // 400)
    each = (events - largest) // others
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("set session_replication_role = replica")
        admin.execute(
            """create temporary table copies as
               select uuidv7() as id, n, r.created_at - n * interval '1 minute' as at
               from runs_run r, generate_series(1, %s) n where r.id = %s""",
            [others, run],
        )
        columns = _columns(
            admin, "runs_run", {"id": "c.id", "created_at": "c.at", "creation_key": "sha256(c.id::text::bytea)"}
        )
        admin.execute(
            f"insert into runs_run select {columns} from runs_run t, copies c where t.id = %s".encode(), [run]
        )
        changed = {"id": "uuidv7()", "run_id": "c.id", "step_id": "uuidv7()"}
        for table in ("runs_step", "runs_attempt"):
            columns = _columns(admin, table, changed)
            admin.execute(
                f"insert into {table} select {columns} from {table} t, copies c where t.run_id = %s".encode(), [run]
            )
        columns = _columns(admin, "runs_event", {"run_id": "c.id", "seq": "s"})
        admin.execute(
            f"""insert into runs_event select {columns} from runs_event t, copies c, generate_series(1, %s) s
                where t.run_id = %s and t.seq = 5""".encode(),
            [each, run],
        )
        columns = _columns(admin, "runs_event", {"seq": "s"})
        admin.execute(
            f"""insert into runs_event select {columns} from runs_event t, generate_series(1000, %s) s
                where t.run_id = %s and t.seq = 5""".encode(),
            [1000 + largest, run],
        )
        admin.execute("update runs_run set last_seq = %s where id = %s", [1000 + largest, run])
        admin.execute("analyze")


def _columns(admin: psycopg.Connection[Any], table: str, changed: dict[str, str]) -> str:
    rows = admin.execute(
        "select attname from pg_attribute where attrelid = %s::regclass and attnum > 0 and not attisdropped order by attnum",
        [table],
    )
    return ", ".join(changed.get(name, f"t.{name}") for (name,) in rows)


Reader = Callable[[House, UUID], Any]

READERS: dict[str, Reader] = {
    "run list": lambda house, run: queries.list_runs(tenant=house.id, filters=RunFilter(), limit=50),
    "run list, filtered": lambda house, run: queries.list_runs(
        tenant=house.id,
        filters=RunFilter(status=("running",), workflow="test", created_from=clock.now() - timedelta(days=3650)),
        limit=50,
    ),
    "second page": lambda house, run: queries.list_runs(
        tenant=house.id,
        filters=RunFilter(),
        cursor=queries.list_runs(tenant=house.id, filters=RunFilter(), limit=1).next_cursor,
        limit=50,
    ),
    "inspector": lambda house, run: queries.get_run(tenant=house.id, run_id=run, now=clock.now()),
    "events page": lambda house, run: queries.events_page(tenant=house.id, run_id=run, after=40),
    "payload": lambda house, run: queries.event_payload(tenant=house.id, run_id=run, seq=5),
    "checkpoints": lambda house, run: queries.checkpoints_page(tenant=house.id, run_id=run),
    "checkpoint": lambda house, run: queries.checkpoint(tenant=house.id, run_id=run),
}


@contextmanager
def counted(house: House) -> Iterator[CaptureQueriesContext]:
    with tenant_scope(house.id), CaptureQueriesContext(connection) as captured:
        yield captured


@pytest.mark.parametrize("reader", READERS)
def test_the_number_of_queries_does_not_grow(crowd: Crowd, reader: str) -> None:
    with counted(crowd.small) as few:
        READERS[reader](crowd.small, crowd.small_run)
    with counted(crowd.big) as many:
        READERS[reader](crowd.big, crowd.big_run)
    assert len(many.captured_queries) == len(few.captured_queries) <= 9


@pytest.mark.parametrize("reader", READERS)
def test_no_query_scans_a_table(crowd: Crowd, reader: str) -> None:
    statements: list[tuple[str, Any]] = []

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        statements.append((sql, params))
        return execute(sql, params, many, context)

    with tenant_scope(crowd.big.id), connection.cursor() as cursor:
        with connection.execute_wrapper(note):
            READERS[reader](crowd.big, crowd.big_run)
        for sql, params in list(statements):
            plan = _plan(cursor, sql, params)
            assert not _scans(plan), f"{sql}\n{plan}"


HOT = {
    "events page": """select r.last_seq, e.*, s.name from runs_run r
        left join lateral (select * from runs_event x where x.tenant_id = %(tenant)s and x.run_id = %(run)s and x.seq > 500
                           order by x.seq limit 100) e on true
        left join runs_step s on s.tenant_id = %(tenant)s and s.id = e.step_id
        where r.tenant_id = %(tenant)s and r.id = %(run)s order by e.seq""",
    "state": """select array_agg(c.version) from runs_checkpoint c where c.tenant_id = %(tenant)s and c.run_id = %(run)s
        and (c.version > 1 and c.kind = 'patch' or c.version = 1 and c.kind <> 'patch')""",
    "claim": """select x.id from runs_step x join runs_run y on y.tenant_id = x.tenant_id and y.id = x.run_id
        where x.tenant_id = %(tenant)s and x.status = 'runnable' and x.queue = 'nothing'
        order by x.priority desc, x.turn, x.id limit 1
        for no key update of y skip locked""",
    "replay": """select * from runs_commit c
        where c.tenant_id = %(tenant)s and c.run_id = %(run)s and c.key_digest = '\\x00'""",
    "lease": "select * from runs_attempt where tenant_id = %(tenant)s and id = %(run)s",
}


@pytest.mark.parametrize("statement", HOT)
def test_no_statement_of_a_hot_function_scans_a_table(crowd: Crowd, statement: str) -> None:
    with tenant_scope(crowd.big.id), connection.cursor() as cursor:
        plan = _plan(cursor, HOT[statement], {"tenant": crowd.big.id, "run": crowd.big_run})
    assert not _scans(plan), plan


def test_the_largest_run_is_read_in_one_call_for_each_page(crowd: Crowd, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Call] = []
    rows = Call.rows

    def note(call: Call, values: Any, **kwargs: Any) -> Any:
        calls.append(call)
        return rows(call, values, **kwargs)

    http = client(crowd.big.keys["agent"])
    http.get(f"/runs/{crowd.big_run}/events?limit=1")
    monkeypatch.setattr(Call, "rows", note)
    page = http.get(f"/runs/{crowd.big_run}/events", params={"after": crowd.largest, "limit": 1000}).json()
    assert len(page["items"]) == 1000
    assert page["last_seq"] == 1000 + crowd.largest
    assert http.get(f"/runs/{crowd.big_run}/checkpoints/latest").json()["state"] == {"rows": [1]}
    assert calls == [EVENTS, STATE]


def _plan(cursor: Any, sql: str, params: Any) -> str:
    """The plan that is there when reading whole tables is made dear: a scan is left only where no index serves.

    Without that the planner rightly reads a table that is one page, or all of one tenant's.
    """
    cursor.execute("set local enable_seqscan = off")
    cursor.execute(f"explain {sql}", params)
    return "\n".join(line for (line,) in cursor.fetchall())


def _scans(plan: str) -> bool:
    return any("Seq Scan" in line and "runs_" in line for line in plan.splitlines())


def test_the_report_is_written(crowd: Crowd, proof: bool) -> None:
    """What readers take, small beside big. With --proof it is kept in tests/proof/scale.md."""
    rows = []
    for name, reader in READERS.items():
        with counted(crowd.big) as captured:
            reader(crowd.big, crowd.big_run)
        times = [
            _milliseconds(house, run, reader)
            for house, run in ((crowd.small, crowd.small_run), (crowd.big, crowd.big_run))
        ]
        rows.append(f"| {name} | {len(captured.captured_queries)} | {times[0]:.1f} | {times[1]:.1f} |")
    text = REPORT.format(
        events=crowd.events, largest=crowd.largest, date=f"{clock.now():%Y-%m-%d}", rows="\n".join(rows)
    )
    if proof:
        (ROOT / "tests" / "proof" / "scale.md").write_text(text)
    assert len(rows) == len(READERS)


REPORT = """# Reading at scale

A tenant with 100 events beside one with {events:,}, whose largest run has {largest:,}. Written by `make proof`
(`tests/runs/test_scale.py`, which also holds that the number of queries is the same and that each is served by an index).

{date}; medians of five, milliseconds, in process, on a shared machine.

| reader | queries | 100 events | {events:,} events |
|---|---|---|---|
{rows}
"""


def _milliseconds(house: House, run: UUID, reader: Reader) -> float:
    times = []
    for _ in range(5):
        with tenant_scope(house.id):
            begin = time.perf_counter()
            reader(house, run)
            times.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(times)
