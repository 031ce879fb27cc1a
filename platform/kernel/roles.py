"""The table of database roles. No process connects as more than it needs, and none may be able to bypass row-level security."""

from dataclasses import dataclass
from typing import Final

from django.db import connections


@dataclass(frozen=True, slots=True)
class DatabaseRole:
    name: str
    login: bool
    purpose: str


OWNER: Final = "smriti_owner"
APP: Final = "smriti_app"
DEFINER: Final = "smriti_definer"
ERASER: Final = "smriti_eraser"
VERIFIER: Final = "smriti_verifier"

ROLES: Final = (
    DatabaseRole(OWNER, login=True, purpose="owns the schema; migrations and maintenance"),
    DatabaseRole(APP, login=True, purpose="web, waits, worker and scheduler; owns nothing"),
    DatabaseRole(DEFINER, login=False, purpose="owns the few functions that must see beyond one tenant"),
    DatabaseRole(ERASER, login=True, purpose="executes erasure"),
    DatabaseRole(VERIFIER, login=True, purpose="probes after an erasure, independently of the eraser"),
)


class UnsafeRole(RuntimeError):
    """The process is connected as a role for which the database would not enforce tenant isolation."""


def refuse_unsafe(alias: str) -> None:
    """Raise UnsafeRole when the connection's role is a superuser, bypasses RLS, or owns a table."""
    with connections[alias].cursor() as cursor:
        cursor.execute(
            """select current_user, rolsuper or rolbypassrls,
                      exists (select from pg_class c join pg_namespace n on n.oid = c.relnamespace
                              where c.relkind in ('r', 'p') and n.nspname !~ '^pg_' and n.nspname <> 'information_schema'
                                and pg_has_role(current_user, c.relowner, 'member'))
               from pg_roles where rolname = current_user"""
        )
        name, bypasses, owns = cursor.fetchone()
    if bypasses or owns:
        reason = "is a superuser or bypasses row-level security" if bypasses else "owns tables"
        raise UnsafeRole(f"Refusing to start: database role {name!r} ({alias}) {reason}. Connect as {APP!r}.")
