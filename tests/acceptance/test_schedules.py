"""Sweeps are killed around each fire: every planned time is one run, and none is left out."""

import random
import signal
import subprocess
import time
from datetime import datetime
from itertools import pairwise
from typing import Any

import httpx
import pytest

from tests.acceptance.live import HERE, Live, wait_for

pytestmark = [pytest.mark.proof, pytest.mark.timeout(600), pytest.mark.xdist_group("live")]


def test_a_planned_time_is_one_run_whatever_is_killed(live: Live, proof: bool) -> None:
    key = live.python(str(HERE / "make_tenant.py"), "schedules", "schedules:read", "schedules:write").strip()
    headers = {"Authorization": f"Bearer {key}"}
    dice, ended = random.Random(3), 0
    team: list[subprocess.Popen[bytes]] = []
    with httpx.Client(base_url=f"{live.base_url}/api/v1/", headers=headers, timeout=30) as client:
        run = {"workflow": "ticks", "workflow_version": "1", "steps": [{"name": "a", "queue": "nobody"}]}
        body = {"name": "tick", "every_seconds": 1, "missed": "run_all", "run": run}
        schedule = client.post("schedules", json=body).raise_for_status().json()["id"]
        until = time.monotonic() + (60 if proof else 12)
        try:
            while time.monotonic() < until:
                team = [process for process in team if process.poll() is None]
                while len(team) < 3:
                    seed = str(dice.randrange(2**31))
                    team.append(live.start(str(HERE / "schedule_actor.py"), seed, "0.1", log="schedules.log"))
                time.sleep(dice.uniform(0.1, 0.8))
                ended += sum(process.poll() == -signal.SIGKILL for process in team)
                if dice.random() < 0.2:
                    victim = team.pop()
                    victim.kill()
                    victim.wait()
            client.post(f"schedules/{schedule}/pause").raise_for_status()
        finally:
            for process in team:
                process.kill()
                process.wait()
        assert ended, "no sweep died at a named point"
        fires = pages(client, f"schedules/{schedule}/fires", limit=200)
        planned = sorted(datetime.fromisoformat(fire["planned_at"]) for fire in fires)
        assert len(planned) > 5
        steps = {round((later - earlier).total_seconds(), 6) for earlier, later in pairwise(planned)}
        assert steps == {1.0}, "a planned time is missing, or came twice"
        started = [fire["run_id"] for fire in fires]
        assert len(set(started)) == len(started)
        wait_for(lambda: len(pages(client, "runs", workflow="ticks")) == len(started))
        assert {run["id"] for run in pages(client, "runs", workflow="ticks")} == set(started)
        assert all(client.get(f"runs/{run_id}/verify").json()["ok"] for run_id in dice.sample(started, 5))


def pages(client: httpx.Client, path: str, **query: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while True:
        page = client.get(path, params=query).raise_for_status().json()
        found += page["items"]
        if page["next_cursor"] is None:
            return found
        query["cursor"] = page["next_cursor"]
