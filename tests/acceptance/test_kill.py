"""Whatever is killed, whenever: no acknowledged commit is lost, none is applied twice, sequences have no gap, a stale
worker is refused, and every run ends. `make proof` does it at the full numbers and writes tests/proof/kills.md.
"""

import json
import signal
import time
from pathlib import Path

import pytest

from config.embedded.postgres import PostgresServer
from tests.acceptance import kill_worker
from tests.acceptance.killing import Books, Campaign, read
from tests.acceptance.live import Installation, Live, wait_for

pytestmark = [pytest.mark.proof, pytest.mark.timeout(900), pytest.mark.xdist_group("live")]


def test_workers_and_web_processes_are_killed(
    live: Live, tmp_path: Path, proof: bool, kill_report: dict[str, Books]
) -> None:
    with Campaign(live, tmp_path / "journals", seed=2001) as campaign:
        campaign.drive(kills=250 if proof else 20)
        campaign.check(replays=1000 if proof else 60)
    kill_report["Workers, web processes and the lease sweep"] = campaign.books


def test_postgresql_is_killed(live: Live, tmp_path: Path, proof: bool, kill_report: dict[str, Books]) -> None:
    with Campaign(live, tmp_path / "journals", seed=2002) as campaign:
        campaign.drive(kills=60 if proof else 6, postgres_kills=20 if proof else 2)
        campaign.check(replays=500 if proof else 30)
    kill_report["PostgreSQL too"] = campaign.books


def test_the_platform_stops_or_dies_during_work(tmp_path: Path, proof: bool, kill_report: dict[str, Books]) -> None:
    with (
        Installation(tmp_path / "installation") as installation,
        Campaign(installation, tmp_path / "journals", seed=2003) as campaign,
    ):
        postgres = PostgresServer(installation.data / "services" / "postgres")

        def stop_and_start() -> None:
            installation.down()
            installation.up()

        def all_of_it_dies() -> None:
            installation.kill_everything()
            installation.up()

        acts = {"make down": stop_and_start, "PostgreSQL": postgres.kill, "every process": all_of_it_dies}
        with campaign.working("--pause", "0.05"):
            for _ in range(4 if proof else 1):
                for what, act in acts.items():
                    campaign.feed()
                    time.sleep(campaign.dice.uniform(0.5, 1.5))
                    act()
                    campaign.books.kills[what] += 1
        campaign.check(replays=300 if proof else 30)
    kill_report["The whole platform, under its supervisor"] = campaign.books


@pytest.mark.parametrize("taken_over", [False, True], ids=["lease ran out", "another worker has it"])
def test_a_worker_that_wakes_up_late_is_refused(live: Live, tmp_path: Path, taken_over: bool) -> None:
    with Campaign(live, tmp_path / "journals", seed=2004 + taken_over) as campaign:
        run = campaign.create_run()
        sleeper = campaign.start_worker("sleeper", "--once", "--pause", "0.3", "--lease-seconds", "2")
        try:
            wait_for(lambda: any(line["kind"] == "ack" for line in read(sleeper.journal)))
            sleeper.popen.send_signal(signal.SIGSTOP)
            wait_for(lambda: any(event["type"] == "lease_lost" for event in campaign.events(run)))
            successor = campaign.claim() if taken_over else {}
            before = list(campaign.events(run)), campaign.checkpoint(run)
            sleeper.popen.send_signal(signal.SIGCONT)
            assert sleeper.popen.wait(20) == 0
        finally:
            sleeper.popen.kill()
            sleeper.popen.wait()
        tried, refused = read(sleeper.journal)[-2:]
        assert tried["kind"] in ("commit", "heartbeat")
        assert (refused["kind"], refused["code"]) in {("refused", "stale_epoch"), ("refused", "lease_lost")}
        assert (list(campaign.events(run)), campaign.checkpoint(run)) == before

        successor = successor or campaign.claim()
        assert (successor["run"]["id"], successor["epoch"], successor["resumed"]) == (run, 2, True)
        key = kill_worker.keys_of("prepare")[-1]
        request = kill_worker.commit_request(successor, "prepare", key, successor["run"]["head"])
        assert campaign.commit(run, key, json.dumps(request)).status == 200
