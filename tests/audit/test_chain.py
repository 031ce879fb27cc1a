"""The chain holds, others can recompute it, and every change to what is stored makes `verify` name the place."""

import hashlib
import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from django.db import models

from audit.models import Entry, Head, Link
from kernel import actor, ids, ports
from kernel.context import tenant_scope
from kernel.roles import ERASER
from tests.audit.log import Attack, connect, page, record, verify

# How an attacker changes a value by little, so that it stays valid for its column.
CHANGES: "dict[type[models.Field[Any, Any]], str]" = {
    models.BinaryField: "set_byte({0}, octet_length({0}) - 1, get_byte({0}, octet_length({0}) - 1) # 1)",
    models.CharField: "left({0}, -1) || case right({0}, 1) when 'x' then 'y' else 'x' end",
    models.DateTimeField: "{0} + interval '1 microsecond'",
    models.UUIDField: "(left({0}::text, -1) || case right({0}::text, 1) when '0' then '1' else '0' end)::uuid",
    models.BigIntegerField: "{0} + 1000",
}


def columns(*tables: type[models.Model]) -> list[tuple[str, str, str]]:
    """Every stored column as (table, column, changed value)."""
    found = []
    for table in tables:
        for field in table._meta.local_concrete_fields:
            form = next(form for kind, form in CHANGES.items() if isinstance(field, kind))
            value = "'key'" if field.name == "actor_kind" else form.format(field.name)
            found.append((table._meta.db_table, field.name, value))
    return found


def test_entries_are_sealed_in_order(tenant: UUID) -> None:
    entries = record(tenant, 5)
    found = page(tenant).rows
    assert [row.id for row in found] == entries[::-1]
    assert [row.position for row in found] == [5, 4, 3, 2, 1]
    result = verify(tenant)
    assert (result.ok, result.entries, result.first_bad_position, result.reason) == (True, 5, None, None)


def test_an_empty_log_verifies(tenant: UUID) -> None:
    assert verify(tenant).ok


def test_others_can_recompute_the_chain(tenant: UUID) -> None:
    """What the docstring of `audit.operations` says about the bytes, written anew from that text."""

    def h(label: bytes, *parts: bytes) -> bytes:
        return hashlib.sha256(label + b"\x00" + b"".join(parts)).digest()

    def moment(value: datetime) -> bytes:
        whole = int((value.replace(microsecond=0) - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds())
        return (whole * 1_000_000 + value.microsecond).to_bytes(8, "big")

    moment_with_all_digits = datetime(2026, 1, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    record(tenant, 2)
    record(tenant, actor=actor.system("sweep"), target_id="a-slug", now=moment_with_all_digits)
    prev = h(b"smriti:audit-genesis:v1", tenant.bytes)
    with tenant_scope(tenant):
        links = list(Link.objects.order_by("position"))
        assert [link.position for link in links] == [1, 2, 3]
        for link in links:
            entry = Entry.objects.get(id=link.entry_id)
            assert entry.payload is not None
            plaintext = ports.codec().open(tenant=tenant, context=b"audit:" + entry.id.bytes, blob=bytes(entry.payload))
            body = json.loads(plaintext[16:])
            assert set(body) == {"actor", "content"}
            assert plaintext[16:].decode() == json.dumps(
                body, sort_keys=True, separators=(",", ":"), ensure_ascii=False
            )
            fields = (
                tenant.bytes,
                entry.id.bytes,
                moment(entry.recorded_at),
                entry.actor_kind.encode(),
                entry.actor_id.bytes if entry.actor_id else b"",
                entry.action.encode(),
                entry.target_kind.encode(),
                entry.target_id.encode(),
                h(b"smriti:audit-payload:v1", plaintext),
            )
            content = h(b"smriti:audit-entry:v1", *(len(field).to_bytes(4, "big") + field for field in fields))
            place = link.position.to_bytes(8, "big")
            digest = h(
                b"smriti:audit-link:v1", prev, tenant.bytes, place, entry.id.bytes, content, moment(link.sealed_at)
            )
            assert (bytes(link.prev_digest), bytes(link.digest)) == (prev, digest)
            prev = digest


@pytest.mark.parametrize(("table", "column", "value"), columns(Entry))
def test_a_changed_entry_is_named(tenant: UUID, attack: Attack, table: str, column: str, value: str) -> None:
    entries = record(tenant, 5)
    assert attack(f"update {table} set {column} = {value} where tenant_id = %s and id = %s", tenant, entries[2]) == 1
    result = verify(tenant)
    assert (result.ok, result.entries, result.first_bad_position) == (False, 2, 3)


@pytest.mark.parametrize(("table", "column", "value"), columns(Link))
def test_a_changed_link_is_named(tenant: UUID, attack: Attack, table: str, column: str, value: str) -> None:
    record(tenant, 5)
    assert attack(f"update {table} set {column} = {value} where tenant_id = %s and position = 3", tenant) == 1
    result = verify(tenant)
    assert (result.ok, result.entries, result.first_bad_position) == (False, 2, 3)


@pytest.mark.parametrize(("table", "column", "value"), columns(Head))
def test_a_changed_head_is_found(tenant: UUID, attack: Attack, table: str, column: str, value: str) -> None:
    record(tenant, 5)
    assert attack(f"update {table} set {column} = {value} where tenant_id = %s", tenant) == 1
    result = verify(tenant)
    expected = {"tenant_id": 1, "position": 6, "digest": 5}[column]
    assert (result.ok, result.first_bad_position) == (False, expected)


def test_a_changed_byte_anywhere_in_a_payload_is_named(tenant: UUID, attack: Attack) -> None:
    entries = record(tenant, 3)
    with tenant_scope(tenant):
        payload = Entry.objects.get(id=entries[1]).payload
    assert payload is not None
    change = "update audit_entry set payload = set_byte(payload, %s, get_byte(payload, %s) # 128) where id = %s"
    for place in range(len(payload)):
        attack(change, place, place, entries[1])
        assert verify(tenant).first_bad_position == 2
        attack(change, place, place, entries[1])
    assert verify(tenant).ok


def test_a_payload_of_another_entry_is_named(tenant: UUID, attack: Attack) -> None:
    entries = record(tenant, 3)
    attack(
        "update audit_entry set payload = (select payload from audit_entry where id = %s) where id = %s",
        entries[0],
        entries[1],
    )
    assert verify(tenant).first_bad_position == 2
    assert [row.payload for row in page(tenant).rows] == ["intact", "damaged", "intact"]


def test_a_deleted_entry_is_named(tenant: UUID, attack: Attack) -> None:
    entries = record(tenant, 5)
    attack("delete from audit_entry where id = %s", entries[3])
    assert verify(tenant).first_bad_position == 4


def test_a_deleted_link_is_named(tenant: UUID, attack: Attack) -> None:
    record(tenant, 5)
    attack("delete from audit_link where tenant_id = %s and position = 2", tenant)
    assert verify(tenant).first_bad_position == 2


def test_links_that_changed_places_are_named(tenant: UUID, attack: Attack) -> None:
    record(tenant, 5)
    for old, new in ((2, 100), (3, 2), (100, 3)):
        attack("update audit_link set position = %s where tenant_id = %s and position = %s", new, tenant, old)
    assert verify(tenant).first_bad_position == 2


@pytest.mark.parametrize("kept", [0, 1, 3])
def test_a_cut_tail_is_named(tenant: UUID, attack: Attack, kept: int) -> None:
    entries = record(tenant, 5)
    attack("delete from audit_link where tenant_id = %s and position > %s", tenant, kept)
    attack("delete from audit_entry where id = any(%s)", entries[kept:])
    assert verify(tenant).first_bad_position == kept + 1


def test_a_cut_tail_stays_found_when_the_log_goes_on(tenant: UUID, attack: Attack) -> None:
    entries = record(tenant, 5)
    attack("delete from audit_link where tenant_id = %s and position > 3", tenant)
    attack("delete from audit_entry where id = any(%s)", entries[3:])
    record(tenant, 2)
    assert verify(tenant).first_bad_position == 4


def test_a_link_behind_the_head_is_found(tenant: UUID, attack: Attack) -> None:
    record(tenant, 3)
    attack(
        """update audit_head head set position = link.position, digest = link.digest
           from audit_link link where link.tenant_id = head.tenant_id and head.tenant_id = %s and link.position = 2""",
        tenant,
    )
    assert verify(tenant).first_bad_position == 3


def test_an_entry_outside_the_chain_is_found(tenant: UUID, attack: Attack) -> None:
    record(tenant, 3)
    attack(
        """insert into audit_entry
           select (jsonb_populate_record(e, jsonb_build_object('id', %s::text))).* from audit_entry e
           where tenant_id = %s limit 1""",
        ids.uuid7(),
        tenant,
    )
    result = verify(tenant)
    assert (result.ok, result.entries, result.first_bad_position) == (False, 3, None)


def test_the_chain_verifies_without_an_erased_payload(tenant: UUID) -> None:
    entries = record(tenant, 3)
    with connect(ERASER, tenant) as connection:
        assert connection.execute("update audit_entry set payload = null where id = %s", [entries[1]]).rowcount == 1
    assert verify(tenant).ok
    erased = page(tenant).rows[1]
    assert (erased.id, erased.payload, erased.actor, erased.content) == (entries[1], "erased", "", {})
