"""One run at the sizes that are promised: ten thousand steps, and a state of twenty megabytes."""

import json
import statistics
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from tests.cast import House
from tests.runs.driver import Worker, tamperer
from tests.servers import ROOT

pytestmark = [pytest.mark.proof, pytest.mark.xdist_group("scale"), pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def figures(proof: bool) -> Iterator[list[tuple[str, str]]]:
    """What was measured; with --proof it is written down when all is done."""
    found: list[tuple[str, str]] = []
    yield found
    if proof and found:
        rows = "\n".join(f"| {what} | {figure} |" for what, figure in found)
        text = f"""# Sizes

One run of 10,000 steps, and one with a state of 20 MB, through the API in process. Written by `make proof`
(`tests/runs/test_sizes.py`, which also holds that every step ran once and that the state comes back to the letter).

{time.strftime("%Y-%m-%d", time.gmtime())}, on a shared machine of two cores.

| what | measured |
|---|---|
{rows}
"""
        (ROOT / "tests" / "proof" / "sizes.md").write_text(text)


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    begin = time.perf_counter()
    answer = call()
    return answer, time.perf_counter() - begin


def test_ten_thousand_steps(house: House, proof: bool, figures: list[tuple[str, str]]) -> None:
    count = 10_000 if proof else 400
    worker = Worker(house)
    # A first step, all the others after it, and a last one after a hundred of them.
    steps: list[dict[str, Any]] = [{"name": "first", "queue": worker.queue}]
    steps += [{"name": f"s{n}", "queue": worker.queue, "depends_on": ["first"]} for n in range(count - 2)]
    steps += [{"name": "last", "queue": worker.queue, "depends_on": [f"s{n}" for n in range(count - 102, count - 2)]}]
    body = {"workflow": "big", "workflow_version": "1", "steps": steps}
    answer, created = timed(lambda: worker.http.post("/runs", json=body, headers={"Idempotency-Key": uuid.uuid4().hex}))
    assert answer.status_code == 201, answer.text
    worker.run = answer.json()["id"]
    worker.claim()
    freed, free = timed(lambda: worker.commit(step={"outcome": "succeeded"}))
    assert len(freed["runnable"]) == count - 2
    done: list[str] = []
    claims: list[float] = []
    commits: list[float] = []
    status = "running"
    while status != "completed":
        work, claimed = timed(worker.claim)
        done.append(work["step"]["name"])
        answer, committed = timed(lambda: worker.commit(step={"outcome": "succeeded"}))
        status = answer["run_status"]
        claims.append(claimed)
        commits.append(committed)
    assert len(done) == len(set(done)) == count - 1
    _, shown = timed(lambda: worker.get(""))
    verified, checking = timed(lambda: worker.get("/verify"))
    assert verified["ok"]
    first, last = (statistics.median(part) * 1e3 for part in (claims[:100], claims[-100:]))
    first_commit, last_commit = (statistics.median(part) * 1e3 for part in (commits[:100], commits[-100:]))
    figures += [
        (f"starting a run of {count:,} steps", f"{created:.2f} s"),
        (f"the commit that frees {count - 2:,} of them", f"{free:.2f} s"),
        ("a claim, median of the first and of the last hundred", f"{first:.1f} ms, {last:.1f} ms"),
        ("the commit of a step, likewise", f"{first_commit:.1f} ms, {last_commit:.1f} ms"),
        ("reading the run", f"{shown * 1e3:.0f} ms"),
        (f"verifying its {verified['checked']:,} events", f"{checking:.2f} s"),
    ]


def test_twenty_megabytes(house: House, proof: bool, figures: list[tuple[str, str]]) -> None:
    size = 20_000_000 if proof else 500_000
    worker = Worker(house)
    worker.start("a")
    worker.claim()
    rows = [{"id": n, "text": uuid.uuid4().hex, "amount": f"{n}.50"} for n in range(size // 74)]
    state = {"goal": "big", "rows": rows, "notes": []}
    length = len(json.dumps(state))
    _, whole = timed(lambda: worker.commit(checkpoint={"state": state}))
    stored = []
    appends = []
    for n in range(20):
        before = _stored(worker.run)
        note = {"op": "add", "path": "/notes/-", "value": {"n": n, "text": uuid.uuid4().hex * 64}}
        _, took = timed(partial(worker.commit, checkpoint={"patch": [note]}))
        appends.append(took)
        stored.append(_stored(worker.run) - before)
    latest, read = timed(lambda: worker.get("/checkpoints/latest"))
    assert latest["state"]["rows"] == rows
    assert [note["n"] for note in latest["state"]["notes"]] == list(range(20))
    assert statistics.median(stored) < 4096
    figures += [
        (f"committing a whole state of {length / 1e6:.1f} MB", f"{whole:.2f} s"),
        ("committing an addition of 2 KB to it, median", f"{statistics.median(appends) * 1e3:.1f} ms"),
        ("bytes stored for the addition, median", f"{statistics.median(stored):,.0f}"),
        ("reading the state back", f"{read:.2f} s"),
    ]


def _stored(run: str) -> int:
    with tamperer() as database:
        row = database.execute(
            "select sum(octet_length(body)) from runs_checkpoint where run_id = %s", [run]
        ).fetchone()
    assert row is not None
    return int(row[0])
