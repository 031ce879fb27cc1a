"""The database functions of approvals (`approvals/sql`). They run with the rights of the caller, in the tenant's open scope."""

from pathlib import Path

from approvals.states import moves_sql
from kernel.functions import SqlFunctions


def functions() -> SqlFunctions:
    """The last operation of every migration that changes a file of `approvals/sql`."""
    return SqlFunctions(Path(__file__).parent / "sql", {"moves": moves_sql()})
