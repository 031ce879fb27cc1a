"""The sample agent on a real server: whatever happens to its workers, its report is that of an undisturbed run."""

import itertools
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from config.demo import agent, kill_demo, reconcile
from config.demo.agent import Client, Heartbeat, Refused, Task, Worker
from config.demo.reconcile import Books, Json, Match
from tests.acceptance.live import ROOT, Live, wait_for

pytestmark = [pytest.mark.xdist_group("live"), pytest.mark.timeout(120)]


@pytest.fixture
def client(live: Live) -> Iterator[Client]:
    with Client(live.base_url, live.key) as opened:
        yield opened


@pytest.fixture
def run(client: Client) -> str:
    return str(client.call("POST", "/runs", agent.PLAN, idempotency_key=str(uuid.uuid4()))["id"])


def worker(client: Client, run: str, name: str = "worker-1") -> Worker:
    return Worker(client, name=name, chunk=200, pause=0, lease_seconds=30, run=run)


def claim(client: Client, run: str, **more: float) -> Json:
    return client.call("POST", "/work/claim", {"worker": "w", "queues": [agent.QUEUE], "run_id": run, **more})


def state(client: Client, run: str) -> Json:
    found: Json = client.call("GET", f"/runs/{run}/checkpoints/latest")["state"]
    return found


def test_an_undisturbed_run_reports_what_the_files_say(client: Client, run: str) -> None:
    worker(client, run).serve()
    events = kill_demo.all_events(client, run)
    expected = reconcile.undisturbed(agent.DATA)
    assert kill_demo.read(client, run)["status"] == "completed"
    assert state(client, run)["report"] == expected
    assert events[-1]["type"] == "run_completed"
    assert events[-1]["output"] == expected
    assert client.call("GET", f"/runs/{run}/verify")["ok"]


def test_the_state_has_the_shape_of_the_brief(client: Client, run: str) -> None:
    worker(client, run).serve()
    found = state(client, run)
    assert {"goal", "plan", "facts", "artifacts", "tool_results", "pending_approvals", "policy_flags"} <= set(found)
    assert found["plan"] == {"steps": ["fetch_invoices", "match_payments", "create_report"], "current_index": 3}
    assert found["tool_results"]["fetch_invoices"] == {"status": "success", "count": 842}
    assert [artifact["name"] for artifact in found["artifacts"]] == ["invoices.csv", "bank_statement.csv", "report"]


def test_a_killed_worker_is_succeeded_by_another(live: Live, client: Client) -> None:
    command = [sys.executable, "-m", "config.demo.agent", "--base-url", live.base_url, "--kill-demo"]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"SMRITI_API_KEY": live.key}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    run = done.stdout.split()[1].rstrip(":")
    attempts = [a for a in client.call("GET", f"/runs/{run}")["attempts"] if a["step"] == "match_payments"]
    assert [(a["worker"], a["outcome"]) for a in attempts] == [("worker-1", "lost"), ("worker-2", "succeeded")]
    matching = [event for event in kill_demo.all_events(client, run) if event["step"] == "match_payments"]
    assert [event["lease"] for event in matching if event["type"] == "lease_lost"] == [attempts[0]["lease"]]
    chunks = [sum(e["type"] == "tool_succeeded" and e["lease"] == a["lease"] for e in matching) for a in attempts]
    assert min(chunks) > 0
    assert sum(chunks) == 22  # chunks of 40 invoices, none of them twice


def test_lost_answers_repeat_nothing(client: Client, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    request, sent = httpx.Client.request, itertools.count()

    def lose_every_second(http: httpx.Client, method: str, url: str, **more: Any) -> httpx.Response:
        answer = request(http, method, url, **more)
        if method == "POST" and next(sent) % 2:
            raise httpx.ReadTimeout("the answer is lost")
        return answer

    one = worker(client, run)
    for _ in range(3):
        claimed = claim(client, run)
        with monkeypatch.context() as lossy:
            lossy.setattr(httpx.Client, "request", lose_every_second)
            one.work(claimed)
    assert state(client, run)["report"] == reconcile.undisturbed(agent.DATA)
    types = [event["type"] for event in kill_demo.all_events(client, run)]
    assert types.count("tool_succeeded") == types.count("tool_called") == 7  # reading, five chunks of 200, the report
    assert types.count("step_succeeded") == 3


def test_a_file_that_changed_under_the_run_ends_it_clearly(
    client: Client, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = worker(client, run)
    one.work(claim(client, run))
    monkeypatch.setattr(agent, "digest", lambda path: "0" * 64)
    one.serve()
    failed = next(event for event in kill_demo.all_events(client, run) if event["type"] == "step_failed")
    assert kill_demo.read(client, run)["status"] == "dead_letter"
    assert failed["error"]["class"] == "permanent"
    assert failed["error"]["message"] == "invoices.csv is not the file that this run began with"


def test_a_lost_lease_stops_the_worker_and_changes_nothing(client: Client, run: str) -> None:
    claimed = claim(client, run, lease_seconds=1)
    task = Task(client, claimed)
    wait_for(lambda: any(event["type"] == "lease_lost" for event in kill_demo.all_events(client, run)))
    before = kill_demo.all_events(client, run)
    with pytest.raises(Refused) as refusal:
        worker(client, run).fetch_invoices(task, Heartbeat(client, claimed, 1))
    assert refusal.value.code == "stale_epoch"
    assert refusal.value.code in agent.LOST
    assert kill_demo.all_events(client, run) == before


def test_a_state_that_somebody_else_changed_is_read_again(
    client: Client, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = worker(client, run)
    one.work(claim(client, run))
    matching = claim(client, run)
    match, other = Books.match, Task(client, matching)

    def match_while_another_commits(books: Books, start: int, end: int) -> list[Match]:
        if start == 200 and not other.state:
            other.load()
            other.commit("elsewhere", replace={"policy_flags": ["seen"]})
        return match(books, start, end)

    monkeypatch.setattr(Books, "match", match_while_another_commits)
    one.work(matching)
    one.serve()
    assert state(client, run)["policy_flags"] == ["seen"]
    assert state(client, run)["report"] == reconcile.undisturbed(agent.DATA)
