"""A walk through the catalogue: no table, view or function can forget a part of the isolation."""

import re
from pathlib import Path

import pytest

from tests.isolation.catalogue import (
    APPEND_ONLY,
    CLUSTERS,
    DEFINER_FUNCTIONS,
    GLOBAL_TABLES,
    GLOBAL_UNIQUE,
    TENANT_SETTERS,
    privileges,
    query,
    tables,
    tenant_tables,
)

ROOT = Path(__file__).resolve().parents[2]
POLICY = """({} = ( SELECT (NULLIF(current_setting('smriti.tenant'::text, true), ''::text))::uuid AS "nullif"))"""

pytestmark = pytest.mark.parametrize("cluster", CLUSTERS)


def test_every_table_belongs_to_tenants_or_is_listed(cluster: str) -> None:
    others = {table.name for table in tables(cluster)} - {table.name for table in tenant_tables(cluster)}
    assert others == set(GLOBAL_TABLES[cluster])
    assert {name: privileges(cluster, name) for name in others} == {
        name: allowed for name, (_, allowed) in GLOBAL_TABLES[cluster].items()
    }


def test_row_level_security_is_enabled_and_forced(cluster: str) -> None:
    assert len(tenant_tables(cluster)) >= 2
    assert [table.name for table in tenant_tables(cluster) if not (table.secured and table.forced)] == []


def test_policies_are_the_one_policy(cluster: str) -> None:
    rows = query(
        cluster,
        """select polrelid::regclass::text, polname, polcmd::text, polpermissive, polroles::regrole[]::text[],
                  pg_get_expr(polqual, polrelid), pg_get_expr(polwithcheck, polrelid) from pg_policy""",
    )
    for table in tenant_tables(cluster):
        found = {row[1]: row[2:] for row in rows if row[0] == table.name}
        condition = POLICY.format(table.column)
        assert found.pop("tenant") == ("*", True, ["-"], condition, condition), table.name
        assert found.pop("definer", None) in (None, ("r", True, ["smriti_definer"], "true", None)), table.name
        assert found == {}, table.name


def test_keys_begin_with_the_tenant(cluster: str) -> None:
    rows = query(
        cluster,
        """select i.indrelid::regclass::text, i.indexrelid::regclass::text, i.indisprimary,
                  (select attname from pg_attribute where attrelid = i.indrelid and attnum = i.indkey[0])
           from pg_index i join pg_class c on c.oid = i.indrelid
           where i.indisunique and c.relnamespace = 'public'::regnamespace""",
    )
    for table in tenant_tables(cluster):
        indexes = [row[1:] for row in rows if row[0] == table.name]
        assert any(primary for _, primary, _ in indexes), f"{table.name} has no primary key"
        wrong = [name for name, _, first in indexes if first != table.column and name not in GLOBAL_UNIQUE]
        assert wrong == [], table.name


def test_foreign_keys_carry_the_tenant(cluster: str) -> None:
    rows = query(
        cluster,
        """select c.conname, c.conrelid::regclass::text, c.confrelid::regclass::text,
                  (select attname from pg_attribute where attrelid = c.conrelid and attnum = c.conkey[1]),
                  (select attname from pg_attribute where attrelid = c.confrelid and attnum = c.confkey[1]),
                  c.convalidated
           from pg_constraint c where c.contype = 'f' and c.connamespace = 'public'::regnamespace""",
    )
    columns = {table.name: table.column for table in tenant_tables(cluster)}
    for name, table, target, first, target_first, validated in rows:
        if table in columns or target in columns:
            assert (first, target_first, validated) == (columns.get(table), columns.get(target), True), name


def test_partitions_give_nothing_to_anyone(cluster: str) -> None:
    rows = query(
        cluster,
        """select c.relname, g.grantee::regrole::text, g.privilege_type from pg_class c, aclexplode(c.relacl) g
           where c.relispartition and g.grantee <> c.relowner""",
    )
    assert rows == []


def test_the_app_role_owns_nothing_and_is_nobody_else(cluster: str) -> None:
    owned = query(
        cluster,
        """select 'relation', oid::regclass::text from pg_class where relowner = 'smriti_app'::regrole
           union all select 'function', oid::regprocedure::text from pg_proc where proowner = 'smriti_app'::regrole
           union all select 'schema', nspname from pg_namespace where nspowner = 'smriti_app'::regrole
           union all select 'type', typname from pg_type where typowner = 'smriti_app'::regrole
           union all select 'database', datname from pg_database where datdba = 'smriti_app'::regrole""",
    )
    assert owned == []
    mighty = query(
        cluster,
        """select rolname from pg_roles where rolname like 'smriti%%'
           and (rolsuper or rolbypassrls or rolcreaterole or rolcreatedb or rolreplication)""",
    )
    assert mighty == []
    assert query(cluster, "select rolcanlogin from pg_roles where rolname = 'smriti_definer'") == [(False,)]
    memberships = query(
        cluster,
        """select member::regrole::text, roleid::regrole::text, inherit_option, admin_option from pg_auth_members
           where member::regrole::text like 'smriti%%' or roleid::regrole::text like 'smriti%%'""",
    )
    assert memberships == [("smriti_owner", "smriti_definer", False, False)]


def test_grants_go_no_further_than_reading_and_writing_rows(cluster: str) -> None:
    for table in tables(cluster):
        assert set(privileges(cluster, table.name)) <= set("siud"), table.name
        if table.name in APPEND_ONLY:
            assert privileges(cluster, table.name) == "si", table.name
    rows = query(
        cluster,
        """select has_schema_privilege('smriti_app', 'public', 'create'),
                  has_database_privilege('smriti_app', current_database(), 'create'),
                  has_database_privilege('smriti_app', current_database(), 'temporary')""",
    )
    assert rows == [(False, False, False)]


def test_nothing_is_open_to_public(cluster: str) -> None:
    rows = query(
        cluster,
        """select 'table', c.relname from pg_class c, aclexplode(c.relacl) g
               where c.relnamespace = 'public'::regnamespace and g.grantee = 0
           union all select 'schema', n.nspname from pg_namespace n, aclexplode(n.nspacl) g
               where n.nspname = 'public' and g.grantee = 0
           union all select 'database', d.datname from pg_database d, aclexplode(d.datacl) g
               where d.datname = current_database() and g.grantee = 0
           union all select 'default', d.oid::text from pg_default_acl d""",
    )
    assert rows == []


def test_views_show_what_their_reader_may_see(cluster: str) -> None:
    rows = query(
        cluster,
        """select c.relname from pg_class c where c.relnamespace = 'public'::regnamespace and (c.relkind in ('m', 'f')
           or (c.relkind = 'v' and not coalesce('security_invoker=true' = any(c.reloptions), false)))""",
    )
    assert rows == []


def test_functions_that_see_beyond_a_tenant_are_listed(cluster: str) -> None:
    rows = query(
        cluster,
        """select p.oid::regprocedure::text, p.proowner::regrole::text, p.proconfig,
                  (select array_agg(g.grantee::regrole::text order by 1) from aclexplode(p.proacl) g where g.grantee <> p.proowner),
                  p.proacl is null
           from pg_proc p where p.pronamespace = 'public'::regnamespace and p.prosecdef""",
    )
    assert {row[0] for row in rows} == set(DEFINER_FUNCTIONS[cluster])
    for name, owner, config, grantees, open_to_all in rows:
        assert (owner, grantees, open_to_all) == ("smriti_definer", ["smriti_app"], False), name
        # A temporary table, looked for last, cannot take the place of a real one.
        [path] = [setting for setting in config or () if setting.startswith("search_path=")]
        assert path.endswith(", pg_temp"), name


def test_the_definer_role_only_reads(cluster: str) -> None:
    for table in tables(cluster):
        assert privileges(cluster, table.name, "smriti_definer") in ("", "s"), table.name


def test_only_functions_that_refuse_nesting_set_the_tenant(cluster: str) -> None:
    rows = query(
        cluster,
        "select proname, prosrc from pg_proc where pronamespace = 'public'::regnamespace and prosrc ~* 'set_config'",
    )
    assert {name for name, _ in rows} == TENANT_SETTERS[cluster]
    assert [name for name, source in rows if "a tenant context is already open" not in source] == []
    setting = re.compile(r"set_config|set\s+(local\s+|session\s+)?smriti\.", re.IGNORECASE)
    sources = [
        path
        for root in ("platform", "runs", "memory", "approvals", "compliance")
        for path in (ROOT / root).rglob("*.py")
    ]
    found = {path.relative_to(ROOT).as_posix() for path in sources if setting.search(path.read_text())}
    assert found == {"platform/kernel/rls.py"}
