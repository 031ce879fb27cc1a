"""Whatever fails, whenever: no payment is made twice, the ledger says what the bank did, and nothing is left without an end or an
owner. 300 effects here, 10,000 with `make proof`, any number with `make chaos`.
"""

import os
from pathlib import Path

import pytest

from tests.acceptance.live import ROOT
from tests.chaos import report
from tests.chaos.harness import Chaos
from tests.chaos.stage import COMPILER, PGBOUNCER

# Findings that no second run may take back.
PROMISES = (
    "executed more than once",
    "paid more than once",
    "permission to execute was given twice",
    "an acknowledged",
)

pytestmark = [pytest.mark.proof, pytest.mark.timeout(3600), pytest.mark.xdist_group("chaos")]


def test_no_effect_is_executed_twice(tmp_path: Path, proof: bool) -> None:
    if "CI" in os.environ:
        assert PGBOUNCER, "CI has PgBouncer"
        assert COMPILER, "CI has a C compiler"
    books = Chaos(tmp_path / "chaos", seed=4001, effects=10_500 if proof else 300).run()
    if proof:
        report.write(ROOT / "tests" / "proof" / "chaos.md", books)
    assert not books.findings, "\n".join(
        f"BROKEN PROMISE: {found}" if found.startswith(PROMISES) else found for found in books.findings
    )
