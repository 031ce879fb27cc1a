"""The log as people read it: newest first, filtered, in pages, by indexes, and only one's own."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from audit.models import Entry, Head, Link, Pending
from audit.queries import AuditFilter
from kernel import actor, ids
from kernel.context import tenant_scope
from kernel.errors import Invalid
from kernel.roles import OWNER
from tests.audit.log import ASHA, connect, page, record, verify

START = datetime(2026, 3, 1, 9, tzinfo=UTC)


@pytest.fixture
def story(tenant: UUID) -> list[UUID]:
    """Twelve entries, one a minute: members, keys and the sweep take turns; their ids, oldest first."""
    found = []
    turns = (
        (ASHA, "member.added", "member", "m-1"),
        (actor.Actor(kind="key", id=UUID(int=7), label="ci"), "key.issued", "key", "k-1"),
        (actor.system("sweep"), "member.removed", "member", "m-2"),
    )
    for minute in range(12):
        who, action, kind, target = turns[minute % 3]
        now = START + timedelta(minutes=minute)
        found += record(tenant, actor=who, action=action, target_kind=kind, target_id=target, now=now)
    return found


def test_what_was_recorded_is_shown(tenant: UUID, story: list[UUID]) -> None:
    row = page(tenant).rows[-2]
    assert (row.id, row.position, row.recorded_at) == (story[1], 2, START + timedelta(minutes=1))
    assert (row.actor_kind, row.actor_id, row.actor) == ("key", UUID(int=7), "ci")
    assert (row.action, row.target_kind, row.target_id) == ("key.issued", "key", "k-1")
    assert row.content == {"number": 0, "after": ["admin"], "comment": "नमस्ते"}
    assert row.payload == "intact"
    assert row.digest is not None
    assert len(bytes.fromhex(row.digest)) == 32


def test_pages_follow_each_other_without_gap_or_overlap(tenant: UUID, story: list[UUID]) -> None:
    story += record(tenant, 5, now=START + timedelta(minutes=11))  # ties with the last
    for limit in (1, 4, 5, 17, 50):
        seen: list[UUID] = []
        cursor = None
        while True:
            found = page(tenant, cursor=cursor, limit=limit)
            assert len(found.rows) <= limit
            seen += [row.id for row in found.rows]
            cursor = found.next_cursor
            if cursor is None:
                break
        assert seen == story[::-1]


@pytest.mark.parametrize(
    ("filters", "turns"),
    [
        (AuditFilter(), {0, 1, 2}),
        (AuditFilter(action="member."), {0, 2}),
        (AuditFilter(action="member.added"), {0}),
        (AuditFilter(action="me"), {0, 2}),
        (AuditFilter(action="ember"), set()),
        (AuditFilter(action="%"), set()),
        (AuditFilter(actor_id=UUID(int=7)), {1}),
        (AuditFilter(target_kind="member"), {0, 2}),
        (AuditFilter(target_kind="member", target_id="m-2"), {2}),
        (AuditFilter(action="key.", target_kind="member"), set()),
    ],
)
def test_filters(tenant: UUID, story: list[UUID], filters: AuditFilter, turns: set[int]) -> None:
    wanted = [entry for number, entry in enumerate(story) if number % 3 in turns]
    assert [row.id for row in page(tenant, filters).rows] == wanted[::-1]


def test_a_period_includes_its_beginning_only(tenant: UUID, story: list[UUID]) -> None:
    period = AuditFilter(recorded_from=START + timedelta(minutes=3), recorded_to=START + timedelta(minutes=6))
    assert [row.id for row in page(tenant, period).rows] == story[3:6][::-1]


@pytest.mark.parametrize("cursor", ["", "x", "AAAA", "?" * 32, "A" * 36, "é" * 32, "-" * 32])
def test_a_foreign_cursor_is_refused(tenant: UUID, cursor: str) -> None:
    with pytest.raises(Invalid) as caught:
        page(tenant, cursor=cursor)
    assert caught.value.fields[0].path == "cursor"


def test_another_tenant_sees_nothing(tenant: UUID, story: list[UUID]) -> None:
    other = ids.uuid7()
    assert page(other).rows == ()
    assert verify(other).entries == 0
    with tenant_scope(other), connection.cursor() as cursor:
        for model in (Entry, Link, Pending, Head):
            cursor.execute(f"select count(*) from {model._meta.db_table}")
            assert cursor.fetchone() == (0,)


def test_a_page_takes_two_queries(tenant: UUID, story: list[UUID]) -> None:
    for limit in (1, 50):
        with CaptureQueriesContext(connection) as captured:
            page(tenant, limit=limit)
        assert len([query for query in captured if "audit_" in query["sql"]]) == 2


def test_no_page_scans_the_table(tenant: UUID) -> None:
    with tenant_scope(tenant):
        Entry.objects.bulk_create(_entries(tenant, 5_000))
    with connect(OWNER) as owner:
        owner.execute("analyze audit_entry")
        owner.commit()
    for filters in (
        AuditFilter(),
        AuditFilter(action="key."),
        AuditFilter(action="none."),
        AuditFilter(actor_id=UUID(int=7)),
        AuditFilter(target_id="m-7"),
        AuditFilter(target_kind="none"),
        AuditFilter(target_kind="member", target_id="m-7"),
        AuditFilter(recorded_from=START, recorded_to=START + timedelta(seconds=9)),
    ):
        first = page(tenant, filters)
        for cursor in (None, first.next_cursor):
            with CaptureQueriesContext(connection) as captured:
                page(tenant, filters, cursor)
            (query,) = [query["sql"] for query in captured if 'FROM "audit_entry"' in query["sql"]]
            plan = _plan(tenant, query)
            assert "Seq Scan" not in plan, plan
            assert "audit_entry_" in plan, plan


def _plan(tenant: UUID, query: str) -> str:
    with tenant_scope(tenant), connection.cursor() as cursor:
        cursor.execute("explain " + query)
        return "\n".join(line for (line,) in cursor.fetchall())


def _entries(tenant: UUID, count: int) -> list[Entry]:
    rare = {"actor_id": UUID(int=7), "action": "key.revoked"}
    found = []
    for number in range(count):
        values = {"actor_id": ASHA.id, "action": "member.added"} | (rare if number % 500 == 3 else {})
        found.append(
            Entry(
                tenant_id=tenant,
                recorded_at=START + timedelta(seconds=number),
                actor_kind="key",
                target_kind="member",
                target_id=f"m-{number % 100}",
                commitment=bytes(32),
                content_digest=bytes(32),
                **values,
            )
        )
    return found
