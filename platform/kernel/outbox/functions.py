"""The database functions of the outbox (`sql/outbox.sql`)."""

from pathlib import Path

from kernel.functions import SqlFunctions
from kernel.outbox.states import FINAL, MOVES, OPEN


def functions() -> SqlFunctions:
    """The last operation of every migration that changes `sql/outbox.sql`."""
    moves = [f"{source}>{target}" for source, targets in MOVES.items() for target in targets]
    return SqlFunctions(
        Path(__file__).parent / "sql", {"moves": _list(moves), "open": _list(OPEN), "final": _list(FINAL)}
    )


def _list(values: list[str] | tuple[str, ...]) -> str:
    return ", ".join(f"'{value}'" for value in values)
