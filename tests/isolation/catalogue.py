"""What stands in the catalogue of a cluster, read as the app role."""

from dataclasses import dataclass
from typing import Any

from django.db import connections

CLUSTERS = ("default", "vault")

# Tables without tenant data, each with why, and what the app role may do with it: s(elect) i(nsert) u(pdate) d(elete).
GLOBAL_TABLES: dict[str, dict[str, tuple[str, str]]] = {
    "default": {
        "tenancy_user": ("a person's sign-in", "siu"),
        "django_session": ("who is signed in", "siud"),
        "account_emailaddress": ("the sign-in library's list of addresses", "siud"),
        "account_emailconfirmation": ("the sign-in library's list of open confirmations", "s"),
        "django_content_type": ("Django's list of models", "s"),
        "auth_permission": ("Django's list of permissions", "s"),
        "django_migrations": ("which migrations were applied", "s"),
        "auth_group": ("unused", ""),
        "auth_group_permissions": ("unused", ""),
    },
    "vault": {"django_migrations": ("which migrations were applied", "s")},
}
# The tenants themselves: the id is the tenant.
TENANT_COLUMN = {"tenancy_tenant": "id"}
# Unique across tenants on purpose: what must be found, or kept apart, before a tenant is known.
GLOBAL_UNIQUE = {
    "tenancy_apikey_prefix_unique": "a key is found by its random prefix",
    "tenancy_tenant_slug_unique": "a tenant's pages stand under its slug",
}
# Functions that see beyond one tenant, each with what it returns.
DEFINER_FUNCTIONS = {
    "default": {
        "key_by_prefix(text)": "the key with a prefix",
        "memberships_of(uuid)": "the tenants that a user may enter",
        "audit_unsealed_tenants()": "tenants, ids only",
        "runs_due(integer)": "tenants and what is due in them, ids only",
        "runs_due_probes(integer)": "tenants and effects, ids only",
        "runs_unanchored(integer)": "tenants, ids only",
        "runs_due_schedules(integer)": "tenants and schedules, ids only",
        "outbox_due_tenants(text[],integer)": "tenants, ids only",
        "outbox_purgeable_tenants(double precision)": "tenants, ids only",
        "notices_aged_tenants(timestamp with time zone)": "tenants, ids only",
        "runs_uncounted_tenants(integer)": "tenants, ids only",
        "runs_platform_totals()": "sums over all tenants, without names",
        "runs_platform_gauges()": "counts and ages over all tenants, without names",
        "runs_artifacts_due(integer)": "tenants and artifacts, ids only",
        "runs_artifact_tenants()": "tenants, ids only",
        "runs_offloads_due(integer)": "tenants and runs, ids only",
        "runs_offload_tenants()": "tenants, ids only",
        "approvals_due(integer)": "tenants and alarms, ids only",
    },
    "vault": {},
}
# Functions that set the transaction's tenant. Each refuses when one is set already.
TENANT_SETTERS = {"default": {"smriti_enter", "runs_commit"}, "vault": {"smriti_enter"}}
# Nobody may change what stands here, the app role not even with the right tenant.
APPEND_ONLY = (
    "audit_entry", "audit_link", "runs_anchor", "runs_checkpoint", "runs_commit", "runs_event", "approvals_policyversion",
    "approvals_evidence", "approvals_vote", "approvals_comment", "approvals_activity",
)  # fmt: skip

_TABLES = """
select c.relname, c.relispartition, c.relrowsecurity, c.relforcerowsecurity, c.relkind,
       exists (select from pg_attribute a where a.attrelid = c.oid and a.attname = 'tenant_id' and not a.attisdropped)
from pg_class c where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p') order by c.relname
"""


@dataclass(frozen=True)
class Table:
    name: str
    partition: bool
    secured: bool
    forced: bool
    kind: str
    has_tenant: bool

    @property
    def column(self) -> str:
        return TENANT_COLUMN.get(self.name, "tenant_id")


def query(cluster: str, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
    with connections[cluster].cursor() as cursor:
        cursor.execute(sql, parameters)
        return list(cursor.fetchall())


def tables(cluster: str) -> list[Table]:
    return [Table(*row) for row in query(cluster, _TABLES)]


def tenant_tables(cluster: str) -> list[Table]:
    """Every table with tenant data, partitions too."""
    return [table for table in tables(cluster) if table.has_tenant or table.name in TENANT_COLUMN]


def privileges(cluster: str, table: str, role: str = "smriti_app") -> str:
    """What a role may do with a table, as letters; columns count as well."""
    letters = {"select": "s", "insert": "i", "update": "u", "delete": "d", "truncate": "T", "references": "R", "trigger": "X",
               "maintain": "M"}  # fmt: skip
    found = ""
    for privilege, letter in letters.items():
        whole = query(cluster, "select has_table_privilege(%s, %s, %s)", role, table, privilege)[0][0]
        part = (
            letter in "siuR"
            and query(cluster, "select has_any_column_privilege(%s, %s, %s)", role, table, privilege)[0][0]
        )
        found += letter if whole or part else ""
    return found
