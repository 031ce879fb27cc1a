"""The database itself, asked as the app's role, refuses illegal moves, unknown effects without an owner, second live effects."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any, Final
from uuid import UUID

import psycopg
import pytest
from psycopg import errors, sql

from runs.states import MACHINES
from tests.cast import House, client
from tests.runs.driver import Worker, register, tamperer

Connection = psycopg.Connection[Any]

OURS: Final = ("run", "step", "effect", "gate", "grant")
TABLES: Final = {machine: f"runs_{machine}" for machine in OURS}
FIRST: Final = {"run": "pending", "step": "blocked", "effect": "reserved", "gate": "open", "grant": "unused"}
# What else a row must say in a state, besides its name.
NEEDS: Final[dict[tuple[str, str], str]] = {
    ("run", "waiting"): "waiting_for = 'timer'",
    ("step", "leased"): "lease_id = id",
    ("step", "waiting"): "wait_kind = 'timer'",
    ("effect", "unknown"): "owner = 'worker'",
    ("effect", "in_flight"): "lease_id = id, deadline_at = now()",
}
CLEARED: Final = {
    "run": "waiting_for = null",
    "step": "lease_id = null, wait_kind = null",
    "effect": "owner = null",
    "gate": "",
    "grant": "",
}


@contextmanager
def app(house: House) -> Iterator[Connection]:
    """A transaction of the app role in a tenant, which leaves nothing behind."""
    with psycopg.connect(os.environ["DATABASE_URL"]) as connection:
        connection.execute("select smriti_enter(%s)", [house.id])
        yield connection
        connection.rollback()


@pytest.fixture
def rows(house: House) -> dict[str, UUID]:
    """A row of each machine: a run whose step executed an effect, that was gated, under a grant."""
    register(house, approval="always")
    worker = Worker(house)
    worker.start("a", "b")
    worker.claim()
    first = worker.reserve()
    with client(house.keys["operator"]) as operator:
        grant = operator.post(f"/gates/{first['gate']}/satisfy", json={"reason": "ok"}).json()["grant"]
    worker.claim()
    worker.reserve()
    with tamperer() as database:
        found = database.execute(
            "select id from runs_step where run_id = %s order by position", [worker.run]
        ).fetchone()
    assert found is not None
    return {
        "run": UUID(worker.run),
        "step": found[0],
        "effect": UUID(first["effect"]),
        "gate": UUID(first["gate"]),
        "grant": UUID(grant),
    }


def put(machine: str, row: UUID, status: str) -> None:
    """Puts a row into a state, past the triggers."""
    with tamperer() as database:
        database.execute(_update(machine, status), {"status": status, "id": row})


def _update(machine: str, status: str) -> sql.Composed:
    parts = [CLEARED[machine], NEEDS.get((machine, status), "")]
    names = [part.split(" = ")[0] for part in parts[1].split(", ")]
    kept = [part for part in parts[0].split(", ") if part and part.split(" = ")[0] not in names]
    extra = [part for part in (*kept, parts[1]) if part]
    return sql.SQL("update {} set status = %(status)s{} where id = %(id)s").format(
        sql.Identifier(TABLES[machine]), sql.SQL("".join(f", {part}" for part in extra))
    )


@pytest.mark.parametrize("machine", OURS)
def test_a_move_is_possible_exactly_when_the_table_has_it(house: House, rows: dict[str, UUID], machine: str) -> None:
    moves = MACHINES[machine]
    wrong = []
    for source, target in product(moves, [*moves, "no_such_state"]):
        if source == target:
            continue
        put(machine, rows[machine], source)
        with app(house) as connection:
            try:
                moved = connection.execute(_update(machine, target), {"status": target, "id": rows[machine]}).rowcount
                allowed = moved == 1
            except errors.CheckViolation:
                allowed = False
        if allowed != (target in moves[source]):
            wrong.append((source, target, allowed))
    assert wrong == []


@pytest.mark.parametrize("machine", OURS)
def test_a_row_begins_in_its_first_state(house: House, rows: dict[str, UUID], machine: str) -> None:
    table = sql.Identifier(TABLES[machine])
    with tamperer() as database:
        columns = [
            row[0]
            for row in database.execute(
                "select attname from pg_attribute where attrelid = %s::regclass and attnum > 0 and not attisdropped",
                [TABLES[machine]],
            )
        ]
    unique = {
        "id": "gen_random_uuid()", "creation_key": "gen_random_uuid()::text::bytea", "name": "'x'",
        "key": "gen_random_uuid()::text",
    }  # fmt: skip
    refused = []
    for status in MACHINES[machine]:
        values = {name: unique.get(name, name) for name in columns}
        for part in (CLEARED[machine], NEEDS.get((machine, status), "")):
            values |= dict(piece.split(" = ") for piece in part.split(", ") if piece)
        values["status"] = f"'{status}'"
        statement = sql.SQL("insert into {} ({}) select {} from {} where id = %s").format(
            table,
            sql.SQL(", ").join(map(sql.Identifier, values)),
            sql.SQL(", ").join(sql.SQL(value) for value in values.values()),
            table,
        )
        with app(house) as connection:
            try:
                connection.execute(statement, [rows[machine]])
            except errors.CheckViolation:
                refused.append(status)
            except errors.UniqueViolation:
                pass  # the trigger was asked before: one grant for each gate
    assert refused == [status for status in MACHINES[machine] if status != FIRST[machine]]


class TestLedger:
    def refused(self, house: House, statement: str, *values: Any) -> type[Exception] | None:
        with app(house) as connection:
            try:
                connection.execute(statement.encode(), values)
            except psycopg.Error as error:
                return type(error)
        return None

    @pytest.mark.parametrize("owner", [None, "nobody", ""])
    def test_an_unknown_effect_without_an_owner(self, house: House, rows: dict[str, UUID], owner: str | None) -> None:
        statement = "update runs_effect set status = 'unknown', owner = %s where id = %s"
        assert self.refused(house, statement, owner, rows["effect"]) is errors.CheckViolation
        assert self.refused(house, statement, "operator", rows["effect"]) is None

    def test_an_owner_of_what_is_known(self, house: House, rows: dict[str, UUID]) -> None:
        statement = "update runs_effect set status = 'succeeded', owner = 'worker' where id = %s"
        assert self.refused(house, statement, rows["effect"]) is errors.CheckViolation

    def test_an_effect_in_flight_without_a_holder(self, house: House, rows: dict[str, UUID]) -> None:
        statement = "update runs_effect set lease_id = null where id = %s"
        assert self.refused(house, statement, rows["effect"]) is errors.CheckViolation

    def test_two_live_effects_with_one_key(self, house: House, rows: dict[str, UUID]) -> None:
        worker = Worker(house)
        worker.start("a")
        worker.claim()
        other = worker.reserve(input={"invoice": "INV-2"})["effect"]
        statement = "update runs_effect set key = (select key from runs_effect where id = %s) where id = %s"
        assert self.refused(house, statement, rows["effect"], other) is errors.UniqueViolation

    def test_two_open_gates_of_one_effect(self, house: House, rows: dict[str, UUID]) -> None:
        statement = """insert into runs_gate (tenant_id, id, run_id, step_id, effect_id, rule, status, action_digest, opened_at)
            select tenant_id, gen_random_uuid(), run_id, step_id, effect_id, rule, 'open', action_digest, opened_at
            from runs_gate g, generate_series(1, 2) where g.id = %s"""
        assert self.refused(house, statement, rows["gate"]) is errors.UniqueViolation

    def test_two_grants_of_one_gate(self, house: House, rows: dict[str, UUID]) -> None:
        statement = """insert into runs_grant (
                tenant_id, id, gate_id, effect_id, run_id, action_digest, status, minted_at, expires_at)
            select tenant_id, gen_random_uuid(), gate_id, effect_id, run_id, action_digest, 'unused', minted_at, expires_at
            from runs_grant g where g.id = %s"""
        assert self.refused(house, statement, rows["grant"]) is errors.UniqueViolation

    def test_a_waiting_run_or_step_without_a_reason(self, house: House, rows: dict[str, UUID]) -> None:
        for machine in ("run", "step"):
            statement = (
                f"update runs_{machine} set status = 'waiting'{', lease_id = null' * (machine == 'step')} where id = %s"
            )
            assert self.refused(house, statement, rows[machine]) is errors.CheckViolation

    @pytest.mark.parametrize(
        "table", ["effect", "evidence", "gate", "grant", "decision", "signal", "queue", "toolusage"]
    )
    def test_nothing_of_the_ledger_is_deleted(self, house: House, rows: dict[str, UUID], table: str) -> None:
        assert self.refused(house, f"delete from runs_{table}") is errors.InsufficientPrivilege

    @pytest.mark.parametrize("table", ["effect", "gate", "grant"])
    def test_another_tenant_sees_and_moves_nothing(
        self, house: House, other_house: House, rows: dict[str, UUID], table: str
    ) -> None:
        with app(other_house) as connection:
            assert connection.execute(f"select count(*) from runs_{table}".encode()).fetchone() == (0,)
            moved = connection.execute(f"update runs_{table} set status = status where id = %s".encode(), [rows[table]])
            assert moved.rowcount == 0
