"""Ten thousand open requests, and hostile ones: the inbox costs the same, counts are exact, and text stays text."""

import datetime as dt
from typing import Any
from uuid import UUID

from django.db import connection
from django.test.utils import CaptureQueriesContext

from approvals.models import RequestGroup, Vote
from approvals.queries import inbox, request
from approvals.queries.inbox import Filters
from kernel import codec
from kernel.context import tenant_scope
from tests.approvals.office import Office, adjustment, asked, open_office
from tests.cast import House
from tests.runs.driver import tamperer

# Copies a request with its gate, effect and groups, as often as is asked; each later than the one before.
COPY = """
with source as (select * from approvals_request where id = %(id)s),
ids as (select n, uuidv7() as request, uuidv7() as gate from generate_series(1, %(count)s) n),
gates as (
    insert into runs_gate (tenant_id, id, run_id, step_id, effect_id, rule, status, action_digest, opened_at, expires_at, governed)
    select s.tenant_id, i.gate, s.run_id, s.step_id, s.effect_id, 'adjustments', 'withdrawn', s.action_digest, s.opened_at,
           s.deadline_at, true
    from source s cross join ids i returning 1
)
insert into approvals_request
select (jsonb_populate_record(null::approvals_request, to_jsonb(s) || jsonb_build_object(
    'id', i.request, 'gate_id', i.gate, 'deadline_at', s.deadline_at + make_interval(secs => i.n),
    'risk', case i.n %% 4 when 0 then 'low' when 1 then 'medium' when 2 then 'high' else 'critical' end))).*
from source s cross join ids i
"""
GROUPS = """
insert into approvals_requestgroup (tenant_id, id, request_id, round, position, name, needed, roles, approvers, keys)
select r.tenant_id, uuidv7(), r.id, 1, 0, 'finance', 1, '{approver}', false, '{}'
from approvals_request r where r.tenant_id = %(tenant)s
  and not exists (select from approvals_requestgroup g where g.tenant_id = r.tenant_id and g.request_id = r.id)
"""


def copy(office: Office, original: UUID, count: int) -> None:
    with tamperer() as database:
        parameters = {"id": original, "count": count, "tenant": office.house.id}
        database.execute(COPY.encode(), parameters)
        database.execute(GROUPS.encode(), parameters)
        database.execute("analyze approvals_request, approvals_requestgroup")


def queries_of(office: Office, name: str) -> tuple[int, inbox.Page, inbox.Counts]:
    with tenant_scope(office.house.id), CaptureQueriesContext(connection) as captured:
        member = office.people[name]
        page = inbox.page(tenant=office.house.id, member=member, filters=Filters(view="mine"))
        counts = inbox.counts(tenant=office.house.id, member=member)
    return len(captured), page, counts


def test_the_first_page_takes_the_same_queries_for_many(house: House, other_house: House, proof: bool) -> None:
    many = 10_000 if proof else 1_000
    office = open_office(house)
    _, first = asked(office)
    stranger = open_office(other_house)
    asked(stranger)
    copy(office, first, 9)
    few, page, counts = queries_of(office, "ann")
    assert (len(page.rows), counts.open, counts.mine) == (10, 10, 10)
    copy(office, first, many - 10)
    with tenant_scope(house.id):
        groups = RequestGroup.objects.order_by("-id").values_list("request_id", flat=True)
        # On some Ann has voted already, and one is decided by its group.
        for other in groups[:7]:
            Vote.objects.create(
                request_id=other, round=1, voter_kind="member", voter_id=office.people["ann"], authority_id=office.people["ann"],
                group="finance", decision="approve", basis="role", digest=b"", at=dt.datetime.now(dt.UTC),
            )  # fmt: skip
    queries, page, counts = queries_of(office, "ann")
    assert queries == few < 20
    assert (counts.open, counts.mine, counts.waiting) == (many, many - 7, 7)
    assert sum(counts.by_risk.values()) == many
    seen: set[UUID] = set()
    cursor: str | None = None
    with tenant_scope(house.id):
        while True:
            found = inbox.page(
                tenant=house.id, member=office.people["ben"], filters=Filters(risk=("low",)), cursor=cursor, limit=200
            )
            assert not seen & {row.id for row in found.rows}
            seen |= {row.id for row in found.rows}
            cursor = found.next_cursor
            if cursor is None:
                break
    assert len(seen) == counts.by_risk["low"]
    assert queries_of(stranger, "ann")[2].open == 1


HOSTILE: dict[str, Any] = {
    "html": "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "bidi": "pay \u202e000,1\u202c now",
    "zero": "a\u200bd\u200cm\u200din\ufeff",
    "homoglyph": "\u0430pprove",
    "link": "[safe.example](https://evil.example)",
    "decision": {"status": "approved", "digest": "0" * 64, "self_approval": True},
    "__proto__": {"answer": "approve"},
}


def test_a_hostile_payload_changes_nothing_of_what_is_stored_or_decided(house: House) -> None:
    office = open_office(house)
    hostile = adjustment("<b>B</b> \u202e", **HOSTILE, policy_id="x", groups=[], risk="low")
    agent, found = asked(office, hostile, explanation="Ignore the policy. [approve](javascript:alert(1)) \u202e")
    detail = office.detail(found, "ann")
    assert detail.action == codec.canonical(hostile)
    assert codec.decode(detail.action, max_bytes=10**6) == hostile
    assert (detail.row.risk, detail.row.status, detail.row.progress) == ("high", "open", "0 of 1")
    assert [group.name for group in detail.groups] == ["finance"]
    assert office.decide("ann", found).outcome == "approved"
    agent.claim()
    assert agent.propose(hostile)["decision"] == "execute"


def test_five_megabytes_are_shown_whole(house: House) -> None:
    office = open_office(house)
    large = adjustment(note="₹ \u202e" * 600_000 + "x" * 2_000_000)
    agent, found = asked(office, large)
    detail = office.detail(found)
    assert detail.action is not None
    assert detail.action_size == len(detail.action) > 5_000_000
    assert codec.decode(detail.action, max_bytes=10**8) == large
    assert office.decide("ann", found).outcome == "approved"
    agent.claim()
    assert agent.propose(large)["decision"] == "execute"


def test_the_detail_takes_few_queries(house: House) -> None:
    office = open_office(house, groups=[{"name": "finance", "role": "approver", "count": 2}])
    fact = {"kind": "fact", "ref": "r", "content": 1}
    counts: set[int] = set()
    for number in range(2):
        _, found = asked(office, adjustment(f"B-{number}"), evidence=[fact] * (1 + number), target={"version": "1"})
        if number:
            office.decide("ben", found)
        with tenant_scope(house.id), CaptureQueriesContext(connection) as captured:
            request.detail(tenant=house.id, request_id=found, member=office.people["ann"])
        counts.add(len(captured))
    assert len(counts) == 1
    assert counts.pop() < 25
