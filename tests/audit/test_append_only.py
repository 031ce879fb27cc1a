"""Nobody changes or removes what was recorded: not the app, not the tables' owner, not the eraser beyond a payload."""

from uuid import UUID

import psycopg
import pytest

from kernel.roles import APP, ERASER, OWNER
from tests.audit.log import connect, page, record, superuser, verify

TABLES = ("audit_entry", "audit_link", "audit_head")
CHANGES = [
    *(f"delete from {table}" for table in TABLES),
    *(f"truncate {table} cascade" for table in TABLES),
    "update audit_entry set action = 'member.added'",
    "update audit_entry set payload = null",
    "update audit_link set sealed_at = now()",
    "update audit_head set position = position - 1",
    "update audit_head set digest = digest",
]


@pytest.mark.parametrize("statement", CHANGES)
@pytest.mark.parametrize("role", [APP, OWNER])
def test_changes_are_refused(tenant: UUID, role: str, statement: str) -> None:
    record(tenant, 2)
    with connect(role, tenant) as connection:
        with pytest.raises((psycopg.errors.InsufficientPrivilege, psycopg.errors.RestrictViolation)):
            connection.execute(statement.encode())
        connection.rollback()
    assert verify(tenant).entries == 2


@pytest.mark.parametrize(
    "statement",
    [
        "delete from audit_entry",
        "update audit_entry set payload = 'x'",
        "update audit_entry set payload = null, action = 'member.added'",
        "update audit_link set sealed_at = now()",
    ],
)
def test_the_eraser_can_only_empty_a_payload(tenant: UUID, statement: str) -> None:
    record(tenant)
    with connect(ERASER, tenant) as connection:
        with pytest.raises((psycopg.errors.InsufficientPrivilege, psycopg.errors.RestrictViolation)):
            connection.execute(statement.encode())
        connection.rollback()
    assert page(tenant).rows[0].payload == "intact"


@pytest.mark.parametrize("change", ["payload = 'x'", "payload = null, action = 'member.added'", "target_id = 'other'"])
def test_the_trigger_does_not_depend_on_grants(tenant: UUID, change: str) -> None:
    record(tenant)
    with superuser() as connection, connection.transaction(force_rollback=True):
        connection.execute("grant update on audit_entry to smriti_eraser")
        connection.execute("set local role smriti_eraser")
        connection.execute("select smriti_enter(%s)", [tenant])
        with pytest.raises(psycopg.errors.RestrictViolation):
            connection.execute(f"update audit_entry set {change}".encode())
