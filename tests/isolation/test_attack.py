"""Plain SQL as the app's own database role: whoever reaches the connection still sees and changes one tenant at most."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg
import pytest
from psycopg import errors, sql
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from tests.isolation.catalogue import APPEND_ONLY, TENANT_COLUMN, privileges, query, tenant_tables

if TYPE_CHECKING:
    from tests.isolation.story import Story

Connection = psycopg.Connection[Any]
URLS = {"default": "DATABASE_URL", "vault": "VAULT_DATABASE_URL"}
# Rows of these come and go within moments; the attack is given one.
PASSING = {
    "audit_pending": """insert into audit_pending (tenant_id, entry_id)
                        select tenant_id, id from audit_entry where tenant_id = %s limit 1""",
    "runs_anchordue": """insert into runs_anchordue (tenant_id, id)
                         select tenant_id, id from runs_run where tenant_id = %s limit 1""",
    "runs_feeddue": """insert into runs_feeddue (tenant_id, id, fed_seq)
                       select tenant_id, id, 0 from runs_run where tenant_id = %s limit 1""",
}
# By row-level security or a missing grant; or, before the policy is asked, by a trigger that guards what rows may say.
REFUSED = (errors.InsufficientPrivilege, errors.FeatureNotSupported, errors.RestrictViolation, errors.CheckViolation)


@pytest.fixture(params=["default", "vault"])
def cluster(request: pytest.FixtureRequest, home: "Story", other: "Story") -> str:
    return str(request.param)


@contextmanager
def app(cluster: str, tenant: UUID | None = None) -> Iterator[Connection]:
    """A transaction of the app role, in a tenant or in none."""
    with psycopg.connect(os.environ[URLS[cluster]]) as connection:
        if tenant is not None:
            connection.execute("select smriti_enter(%s)", [tenant])
        yield connection
        connection.rollback()


@contextmanager
def superuser(cluster: str) -> Iterator[Connection]:
    database = os.environ[URLS[cluster]].rpartition("/")[2]
    url = os.environ["SMRITI_TEST_ADMIN_URL"].rpartition("/")[0] + "/" + database
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


def names(cluster: str) -> list[str]:
    """The tables that are reached by their own name; partitions are not."""
    return [table.name for table in tenant_tables(cluster) if not table.partition]


def column(table: str) -> sql.Identifier:
    return sql.Identifier(TENANT_COLUMN.get(table, "tenant_id"))


def say(text: str, table: str, **parts: sql.Composable) -> sql.Composed:
    return sql.SQL(text).format(table=sql.Identifier(table), tenant=column(table), **parts)


def row_of(cluster: str, table: str, tenant: UUID) -> dict[str, Any]:
    """One row of a tenant, as the superuser sees it."""
    with superuser(cluster) as connection:
        reader = connection.cursor(row_factory=dict_row)
        row = reader.execute(say("select * from {table} where {tenant} = %s limit 1", table), [tenant]).fetchone()
        if row is None and table in PASSING:
            connection.execute(PASSING[table].encode(), [tenant])
            row = reader.execute(say("select * from {table} where {tenant} = %s limit 1", table), [tenant]).fetchone()
    assert row is not None, f"tests.isolation.story leaves {table} empty"
    return row


def insert(connection: Connection, table: str, row: dict[str, Any]) -> None:
    columns = sql.SQL(", ").join(map(sql.Identifier, row))
    values = sql.SQL(", ").join(sql.Placeholder() * len(row))
    connection.execute(
        say("insert into {table} ({columns}) values ({values})", table, columns=columns, values=values),
        [Jsonb(value) if isinstance(value, dict) else value for value in row.values()],
    )


def refuses(connection: Connection, statement: Any, *parameters: Any) -> bool:
    """Whether the database refuses a statement, or lets it touch nothing."""
    try:
        with connection.transaction():
            return connection.execute(statement, parameters).rowcount == 0
    except REFUSED:
        return True


def test_without_a_tenant_nothing_is_there_and_nothing_can_be_written(cluster: str, home: "Story") -> None:
    for table in names(cluster):
        row = row_of(cluster, table, home.house.id)
        with app(cluster) as connection:
            assert connection.execute(say("select count(*) from {table}", table)).fetchone() == (0,), table
            assert refuses(connection, say("update {table} set {tenant} = {tenant}", table)), table
            assert refuses(connection, say("delete from {table}", table)), table
            with pytest.raises(REFUSED):
                insert(connection, table, row)


def test_an_emptied_or_odd_tenant_shows_nothing(cluster: str, home: "Story") -> None:
    for table in names(cluster):
        row_of(cluster, table, home.house.id)  # in an empty table the policy would not be asked
        with app(cluster) as connection:
            connection.execute("select set_config('smriti.tenant', '', true)")
            assert connection.execute(say("select count(*) from {table}", table)).fetchone() == (0,), table
            connection.execute("select set_config('smriti.tenant', 'all', true)")
            with pytest.raises(errors.InvalidTextRepresentation):
                connection.execute(say("select count(*) from {table}", table))


def test_in_one_tenant_the_other_is_not_there(cluster: str, home: "Story", other: "Story") -> None:
    for table in names(cluster):
        row_of(cluster, table, home.house.id)
        row_of(cluster, table, other.house.id)
        with app(cluster, other.house.id) as connection:
            found = connection.execute(say("select distinct {tenant} from {table}", table)).fetchall()
            assert found == [(other.house.id,)], table
            theirs = say("select count(*) from {table} where {tenant} = %s", table)
            assert connection.execute(theirs, [home.house.id]).fetchone() == (0,), table


def test_in_one_tenant_the_other_cannot_be_changed(cluster: str, home: "Story", other: "Story") -> None:
    for table in names(cluster):
        row = row_of(cluster, table, home.house.id)
        with app(cluster, other.house.id) as connection:
            assert refuses(
                connection, say("update {table} set {tenant} = {tenant} where {tenant} = %s", table), home.house.id
            )
            assert refuses(connection, say("delete from {table} where {tenant} = %s", table), home.house.id)
            # Neither as a new row nor by giving one's own row away.
            with pytest.raises(REFUSED), connection.transaction():
                insert(connection, table, row)
            with pytest.raises(REFUSED), connection.transaction():
                connection.execute(say("update {table} set {tenant} = %s", table), [home.house.id])
        assert row_of(cluster, table, home.house.id) == row


def test_copy_gives_and_takes_nothing(cluster: str, home: "Story", other: "Story") -> None:
    for table in names(cluster):
        theirs = row_of(cluster, table, home.house.id)
        row_of(cluster, table, other.house.id)
        with app(cluster, other.house.id) as connection:
            for text in ("copy {table} to stdout", "copy (select * from {table}) to stdout"):
                with connection.cursor().copy(say(text, table)) as copy:
                    out = b"".join(copy)
                # A partitioned table itself holds no rows.
                assert str(other.house.id).encode() in out or text.startswith("copy {"), table
                assert str(home.house.id).encode() not in out, table
            with (
                pytest.raises(REFUSED),
                connection.transaction(),
                connection.cursor().copy(say("copy {table} from stdin", table)) as copy,
            ):
                copy.write_row(list(theirs.values()))


def test_foreign_keys_neither_reach_nor_reveal_the_other_tenant(home: "Story", other: "Story") -> None:
    keys = query(
        "default",
        """select c.conrelid::regclass::text, c.confrelid::regclass::text,
                  (select array_agg(attname order by place) from unnest(c.conkey) with ordinality key(number, place)
                   join pg_attribute on attrelid = c.conrelid and attnum = number),
                  (select array_agg(attname order by place) from unnest(c.confkey) with ordinality key(number, place)
                   join pg_attribute on attrelid = c.confrelid and attnum = number)
           from pg_constraint c where c.contype = 'f' and c.connamespace = 'public'::regnamespace""",
    )
    tried = 0
    for table, target, columns, referenced in keys:
        if table not in names("default") or "i" not in privileges("default", table) or len(columns) < 2:
            continue
        theirs = row_of("default", target, home.house.id)
        mine = row_of("default", table, other.house.id)
        if "id" in mine and "id" not in columns:
            mine["id"] = UUID(int=mine["id"].int ^ 1)
        answers = set()
        for foreign in (theirs[referenced[1]], UUID(int=0)):
            with app("default", other.house.id) as connection:
                # Refused by the key, at once: none of these is deferred.
                with pytest.raises(psycopg.Error) as caught:
                    insert(connection, table, mine | {columns[1]: foreign})
                answers.add((type(caught.value), caught.value.diag.constraint_name))
        assert len(answers) == 1, f"{table}.{columns[1]} tells whether the id exists: {answers}"
        tried += 1
    assert tried >= 5


def test_what_is_append_only_is_refused_to_everyone(home: "Story") -> None:
    for table in APPEND_ONLY:
        with app("default", home.house.id) as connection:
            for text in ("update {table} set {tenant} = {tenant}", "delete from {table}", "truncate {table}"):
                with pytest.raises(errors.InsufficientPrivilege), connection.transaction():
                    connection.execute(say(text, table))


def test_events_are_refused_even_to_the_owner(home: "Story") -> None:
    from tests.servers import owner_url

    with psycopg.connect(owner_url()) as connection:
        connection.execute("select set_config('smriti.tenant', %s, true)", [str(home.house.id)])
        for text in ("update runs_event set type = 'x'", "delete from runs_event"):
            with pytest.raises(errors.RestrictViolation), connection.transaction():
                connection.execute(text.encode())


def test_partitions_cannot_be_read_around_the_policy(home: "Story") -> None:
    partitions = [table.name for table in tenant_tables("default") if table.partition]
    assert partitions
    with app("default", home.house.id) as connection:
        for table in partitions:
            with pytest.raises(errors.InsufficientPrivilege), connection.transaction():
                connection.execute(say("select count(*) from {table}", table))


def test_a_tenant_is_entered_once_and_ends_with_the_transaction(cluster: str, home: "Story", other: "Story") -> None:
    table = sql.Identifier(names(cluster)[0])
    with psycopg.connect(os.environ[URLS[cluster]]) as connection:
        connection.execute("select smriti_enter(%s)", [other.house.id])
        for tenant in (home.house.id, other.house.id):
            with pytest.raises(errors.InvalidTransactionState), connection.transaction():
                connection.execute("select smriti_enter(%s)", [tenant])
        with pytest.raises(psycopg.Error), connection.transaction():
            connection.execute("select smriti_enter(null)")
        assert connection.execute(sql.SQL("select count(*) > 0 from {}").format(table)).fetchone() == (True,)
        connection.commit()
        assert connection.execute(sql.SQL("select count(*) from {}").format(table)).fetchone() == (0,)
        with pytest.raises(errors.InvalidParameterValue):
            connection.execute("select smriti_enter(null)")


@pytest.mark.parametrize(
    "statement",
    [
        "set role smriti_owner",
        "set role smriti_definer",
        "set role smriti_eraser",
        "set session authorization smriti_owner",
        "alter role smriti_app bypassrls",
        "alter table runs_run disable row level security",
        "create policy open on runs_run using (true)",
        "drop policy tenant on runs_run",
        "alter table runs_run owner to smriti_app",
        "grant select on runs_event_0 to smriti_app",
        "create table theft (n int)",
        "create temporary table runs_run (n int)",
        "create function f() returns int language sql as 'select 1'",
        "create schema theft",
        "alter role smriti_owner set row_security = off",
        "copy runs_run to program 'cat'",
        "select pg_read_file('/etc/passwd')",
    ],
)
def test_the_app_role_cannot_free_itself(statement: str, home: "Story") -> None:
    with app("default", home.house.id) as connection, pytest.raises(psycopg.Error) as caught:
        connection.execute(statement.encode())
    assert isinstance(caught.value, errors.InsufficientPrivilege | errors.UndefinedObject), caught.value


def test_row_security_cannot_be_switched_off(home: "Story") -> None:
    with app("default", home.house.id) as connection:
        connection.execute("set local row_security = off")
        with pytest.raises(errors.InsufficientPrivilege):
            connection.execute("select count(*) from runs_run")


def test_statistics_tell_nothing(cluster: str) -> None:
    with superuser(cluster) as connection:
        connection.execute("analyze")
        assert connection.execute("select count(*) from pg_stats where schemaname = 'public'").fetchone() != (0,)
    with app(cluster) as connection:
        rows = connection.execute(
            "select distinct tablename::text from pg_stats where schemaname = 'public' and tablename::text = any(%s)",
            [[table.name for table in tenant_tables(cluster)]],
        ).fetchall()
    assert rows == []
