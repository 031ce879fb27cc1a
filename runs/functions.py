"""The database functions of runs (`runs/sql`), each one transaction in one round trip.

All of them take the lock of the run's row first and then those of its steps, attempts and effects, so that they cannot deadlock.
They run with the rights of the caller, under row-level security; they answer with a code instead of raising, so that an
expected refusal costs no aborted transaction and no line in the server's log.
"""

from pathlib import Path

from kernel.functions import SqlFunctions
from kernel.rls import enter_sql
from runs.states import RUN_ENDS, RUN_MOVES, moves_sql


def functions() -> SqlFunctions:
    """The last operation of every migration that changes a file of `runs/sql`."""
    return SqlFunctions(
        Path(__file__).parent / "sql",
        {
            "enter": enter_sql("p_tenant"),
            "run_ends": _list(RUN_ENDS),
            "run_finals": _list([status for status, moves in RUN_MOVES.items() if not moves]),
            "moves": moves_sql(),
        },
    )


def _list(values: list[str] | tuple[str, ...]) -> str:
    return ", ".join(f"'{value}'" for value in values)
