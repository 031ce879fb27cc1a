"""Row-level security as a migration operation, so that no tenant table can forget a part of it.

Invariant: a table with tenant data has row-level security enabled and forced, one policy that compares `tenant_id` with the
transaction's setting, a key that begins with `tenant_id`, composite foreign keys, and grants to the app role for what it does.
"""

from collections.abc import Sequence
from typing import Any

from django.db import router
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState

from kernel import roles

TENANT = "(select nullif(current_setting('smriti.tenant', true), '')::uuid)"


def enter_sql(tenant: str) -> str:
    """The statements of a plpgsql function that set the transaction's tenant, for `smriti_enter` and for hot functions that
    cannot afford to call it. The only place where a tenant is set.
    """
    return f"""
    if {tenant} is null then
        raise exception 'a tenant is required' using errcode = 'invalid_parameter_value';
    end if;
    if coalesce(current_setting('smriti.tenant', true), '') <> '' then
        raise exception 'a tenant context is already open' using errcode = 'invalid_transaction_state';
    end if;
    perform set_config('smriti.tenant', {tenant}::text, true);"""


def policy_sql(table: str, *, column: str = "tenant_id", definer_reads: bool = False) -> str:
    """The statements that put `table` under tenant isolation. The only place where a tenant policy is written.

    The setting is wrapped in a sub-select so that it is read once a statement, and becomes null when it is empty, as it is
    after a transaction that had set it.
    """
    sql = f"""
        alter table {table} enable row level security;
        alter table {table} force row level security;
        create policy tenant on {table} using ({column} = {TENANT}) with check ({column} = {TENANT});
        revoke all on {table} from public;
    """
    if definer_reads:
        sql += definer_reads_sql(table)
    return sql


def definer_reads_sql(table: str) -> str:
    """The statements that let definer functions read a table of every tenant."""
    return f"""
        create policy definer on {table} for select to {roles.DEFINER} using (true);
        grant select on {table} to {roles.DEFINER};
        """


class TenantTable(Operation):
    """Put a model's table under tenant isolation.

    `grants`: privileges of the app role. `foreign_keys`: `(columns, table)` or `(columns, table, referenced columns)`, each
    beginning with `tenant_id` implicitly. `column`: the tenant column (`id` for the tenant table itself).
    """

    reversible = False

    def __init__(
        self,
        table: str,
        *,
        grants: str,
        foreign_keys: Sequence[tuple[str, str] | tuple[str, str, str]] = (),
        unique: Sequence[str] = (),
        column: str = "tenant_id",
        definer_reads: bool = False,
        composite_key: bool = True,
    ) -> None:
        self.table = table
        self.grants = grants
        self.foreign_keys = foreign_keys
        self.unique = unique
        self.column = column
        self.definer_reads = definer_reads
        self.composite_key = composite_key

    def deconstruct(self) -> tuple[str, Sequence[Any], dict[str, Any]]:
        return (
            "TenantTable",
            [self.table],
            {
                "grants": self.grants,
                "foreign_keys": self.foreign_keys,
                "unique": self.unique,
                "column": self.column,
                "definer_reads": self.definer_reads,
                "composite_key": self.composite_key,
            },
        )

    def describe(self) -> str:
        return f"Isolate {self.table} by tenant"

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """Isolation lives in the database only."""

    def database_forwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        if router.allow_migrate(schema_editor.connection.alias, app_label):
            schema_editor.execute(self.sql())

    def database_backwards(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError("tenant isolation is not taken off a table")

    def sql(self) -> str:
        table, column = self.table, self.column
        sql = ""
        if self.composite_key and column != "id":
            sql += f"alter table {table} drop constraint {table}_pkey, add primary key ({column}, id);"
        for columns in self.unique:
            sql += f"create unique index on {table} ({column}, {columns});"
        for columns, target, *referenced in self.foreign_keys:
            name = f"{table}_{columns.replace(', ', '_')}_fk"
            target_columns = referenced[0] if referenced else "id"
            sql += f"""alter table {table} add constraint {name}
                       foreign key ({column}, {columns}) references {target} (tenant_id, {target_columns});"""
        sql += policy_sql(table, column=column, definer_reads=self.definer_reads)
        return sql + f"grant {self.grants} on {table} to {roles.APP};"


def definer_function(signature: str, definition: str) -> str:
    """SQL that creates a function of the definer role and lets only the app role call it.

    The definer role may read beyond one tenant (`definer_reads`), so such a function returns ids and the least else.
    `signature` is the form in which the function is named, `definition` its whole CREATE FUNCTION.
    """
    return f"""
        {definition};
        revoke all on function {signature} from public;
        grant execute on function {signature} to {roles.APP};
        grant create on schema public to {roles.DEFINER};
        alter function {signature} owner to {roles.DEFINER};
        revoke create on schema public from {roles.DEFINER};
    """
