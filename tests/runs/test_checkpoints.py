"""The shared state: stored by change, read in a bounded chain, and never guessed when stored bytes are damaged."""

import random
from typing import Any
from uuid import UUID

import pytest

from kernel.context import tenant_scope
from runs import queries
from runs.models import Checkpoint, Run
from tests.cast import House
from tests.runs.driver import Worker, tamperer


@pytest.fixture
def worker(house: House) -> Worker:
    worker = Worker(house)
    worker.start("only")
    worker.claim()
    return worker


def stored(house: House, worker: Worker) -> list[tuple[int, str, int]]:
    """Version, kind and bytes of every stored checkpoint."""
    with tenant_scope(house.id):
        rows = Checkpoint.objects.filter(run_id=worker.run).order_by("version", "kind")
        return [(row.version, row.kind, len(row.body or b"")) for row in rows]


def words(rnd: random.Random, size: int) -> str:
    return "".join(rnd.choice("abcdefghijklmnopqrstuvwxyz0123456789") for _ in range(size))


class TestSize:
    @pytest.mark.parametrize("whole", [False, True], ids=["patch", "whole state"])
    def test_two_kilobytes_added_to_two_megabytes_store_about_two_kilobytes(
        self, worker: Worker, house: House, whole: bool
    ) -> None:
        rnd = random.Random(7)
        state: dict[str, Any] = {"talk": {"messages": [words(rnd, 2000) for _ in range(1000)]}, "n": 0}
        worker.commit(checkpoint={"state": state})
        message = words(rnd, 2000)
        if whole:
            state["talk"]["messages"].append(message)
            worker.commit(checkpoint={"state": {**state, "n": 1}})
        else:
            change = [
                {"op": "add", "path": "/talk/messages/-", "value": message},
                {"op": "replace", "path": "/n", "value": 1},
            ]
            worker.commit(checkpoint={"patch": change})
        sizes = stored(house, worker)
        assert sizes[0][1:2] == ("full",)
        assert sizes[1][1] == "patch"
        assert sizes[1][2] < 2300
        assert len(worker.get("/checkpoints/latest")["state"]["talk"]["messages"]) == 1001

    def test_a_long_chain_is_packed_so_that_reading_stays_bounded(self, worker: Worker, house: House) -> None:
        rnd = random.Random(3)
        worker.commit(checkpoint={"state": {"rows": []}})
        for _ in range(60):
            worker.commit(checkpoint={"patch": [{"op": "add", "path": "/rows/-", "value": words(rnd, 4000)}]})
        sizes = stored(house, worker)
        snapshots = [size for _, kind, size in sizes if kind == "snapshot"]
        patches = [size for _, kind, size in sizes if kind == "patch"]
        assert snapshots
        assert sum(snapshots) < 2 * sum(patches)
        with tenant_scope(house.id):
            run = Run.objects.get(id=worker.run)
        assert run.chain_bytes < max(65_536, run.base_bytes)
        assert len(worker.get("/checkpoints/latest")["state"]["rows"]) == 60
        assert worker.get("/verify")["ok"]


@pytest.mark.parametrize("seed", range(5))
def test_the_newest_state_is_what_the_commits_say(worker: Worker, seed: int) -> None:
    rnd = random.Random(seed)
    model: dict[str, Any] = {"rows": [], "n": 0, "deep": {"x": []}}
    worker.commit(checkpoint={"state": model})
    for i in range(40):
        match rnd.randrange(6):
            case 0:
                model["rows"].append({"i": i, "amount": f"{i}.10"})
                change: Any = {"patch": [{"op": "add", "path": "/rows/-", "value": model["rows"][-1]}]}
            case 1:
                model["n"] = i
                change = {"patch": [{"op": "replace", "path": "/n", "value": i}]}
            case 2:
                model["deep"]["x"].append(i)
                change = {"patch": [{"op": "add", "path": "/deep/x/-", "value": i}]}
            case 3:
                model[f"k{i}"] = [i]
                change = {"patch": [{"op": "add", "path": f"/k{i}", "value": [i]}]}
            case 4:
                model["rows"] = model["rows"][1:]
                change = {"state": model}
            case _:
                model["deep"] = {"x": [], "seen": i}
                change = {"state": model}
        worker.commit(checkpoint=change)
        assert worker.get("/checkpoints/latest")["state"] == model


def test_a_checkpoint_has_a_tag_by_which_a_reader_saves_a_transfer(worker: Worker) -> None:
    assert worker.http.get(f"/runs/{worker.run}/checkpoints/latest").status_code == 404
    worker.commit(checkpoint={"state": {"n": 1}})
    answer = worker.http.get(f"/runs/{worker.run}/checkpoints/latest")
    again = worker.http.get(f"/runs/{worker.run}/checkpoints/latest", headers={"If-None-Match": answer.headers["ETag"]})
    assert (answer.status_code, again.status_code, again.content) == (200, 304, b"")


class TestDamage:
    def corrupt(self, worker: Worker, version: int, kind: str) -> None:
        with tamperer() as connection:
            done = connection.execute(
                """update runs_checkpoint set body = set_byte(body, 40, get_byte(body, 40) # 255)
                   where run_id = %s and version = %s and kind = %s""",
                [worker.run, version, kind],
            )
            assert done.rowcount == 1

    def delete(self, worker: Worker, version: int, kind: str) -> None:
        with tamperer() as connection:
            done = connection.execute(
                "delete from runs_checkpoint where run_id = %s and version = %s and kind = %s",
                [worker.run, version, kind],
            )
            assert done.rowcount == 1

    @pytest.mark.parametrize(("gone", "kind", "version", "skipped"), [
        (4, "patch", 3, []), (3, "patch", 2, [4]), (2, "patch", 1, [3, 4]), (1, "full", 0, []),
    ])  # fmt: skip
    def test_what_builds_on_a_missing_row_is_not_used(
        self, worker: Worker, gone: int, kind: str, version: int, skipped: list[int]
    ) -> None:
        worker.commit(checkpoint={"state": {"n": 0, "text": "x" * 100}})
        for n in (1, 2, 3):
            worker.commit(checkpoint={"patch": [{"op": "replace", "path": "/n", "value": n}]})
        lost = next(
            event["seq"] for event in worker.get("/events")["items"][::-1] if self.announces(worker, event, gone)
        )
        self.delete(worker, gone, kind)
        answer = worker.http.get(f"/runs/{worker.run}/checkpoints/latest")
        if not version:
            assert answer.status_code == 404
            return
        found = answer.json()
        assert (found["version"], found["state"]["n"], found["skipped"], found["missing"]) == (
            version, version - 1, skipped, [lost],
        )  # fmt: skip
        assert worker.call(lease=worker.lease, epoch=worker.epoch, head=4, checkpoint={
            "patch": [{"op": "test", "path": "/n", "value": 3}]}).status_code == 409  # fmt: skip

    @staticmethod
    def announces(worker: Worker, event: dict[str, Any], version: int) -> bool:
        with tamperer() as connection:
            row = connection.execute(
                "select seq from runs_checkpoint where run_id = %s and version = %s", [worker.run, version]
            ).fetchone()
        return row is not None and bool(row[0] == event["seq"])

    def test_a_missing_snapshot_is_replaced_by_the_changes_it_was_made_of(self, worker: Worker, house: House) -> None:
        worker.commit(checkpoint={"state": {"rows": []}})
        rnd = random.Random(1)
        while not any(kind == "snapshot" for _, kind, _ in stored(house, worker)):
            worker.commit(checkpoint={"patch": [{"op": "add", "path": "/rows/-", "value": words(rnd, 9000)}]})
        whole = worker.get("/checkpoints/latest")
        self.delete(
            worker, next(version for version, kind, _ in stored(house, worker) if kind == "snapshot"), "snapshot"
        )
        found = worker.get("/checkpoints/latest")
        assert (found["state"], found["missing"]) == (whole["state"], [])

    def test_a_damaged_newest_change_is_skipped_and_reported(self, worker: Worker) -> None:
        worker.commit(checkpoint={"state": {"n": 0, "text": "x" * 100}})
        for n in (1, 2):
            worker.commit(checkpoint={"patch": [{"op": "replace", "path": "/n", "value": n}]})
        self.corrupt(worker, 3, "patch")
        found = worker.get("/checkpoints/latest")
        assert (found["version"], found["state"]["n"], found["skipped"]) == (2, 1, [3])
        plan = worker.http.post(f"/runs/{worker.run}/resume").json()
        assert plan["checkpoint"] == {"version": 2, "seq": found["seq"], "skipped": [3], "missing": []}
        assert worker.get("/verify")["ok"] is False

    def test_a_damaged_snapshot_is_replaced_by_the_changes_it_was_made_of(self, worker: Worker, house: House) -> None:
        worker.commit(checkpoint={"state": {"rows": []}})
        rnd = random.Random(1)
        while not any(kind == "snapshot" for _, kind, _ in stored(house, worker)):
            worker.commit(checkpoint={"patch": [{"op": "add", "path": "/rows/-", "value": words(rnd, 9000)}]})
        whole = worker.get("/checkpoints/latest")
        version = next(version for version, kind, _ in stored(house, worker) if kind == "snapshot")
        self.corrupt(worker, version, "snapshot")
        assert worker.get("/checkpoints/latest")["state"] == whole["state"]

    def test_a_damaged_whole_state_gives_the_one_before_it(self, worker: Worker) -> None:
        worker.commit(checkpoint={"state": {"n": 0, "text": "x" * 100}})
        worker.commit(checkpoint={"patch": [{"op": "replace", "path": "/n", "value": 1}]})
        worker.commit(checkpoint={"state": {"quite": "another", "text": "y" * 100}})
        worker.commit(checkpoint={"patch": [{"op": "replace", "path": "/quite", "value": "late"}]})
        self.corrupt(worker, 3, "full")
        found = worker.get("/checkpoints/latest")
        assert (found["version"], found["state"]["n"], found["skipped"]) == (2, 1, [3])

    def test_when_nothing_opens_nothing_is_invented(self, worker: Worker) -> None:
        worker.commit(checkpoint={"state": {"text": "x" * 100}})
        self.corrupt(worker, 1, "full")
        answer = worker.http.get(f"/runs/{worker.run}/checkpoints/latest")
        assert (answer.status_code, answer.json()["skipped"]) == (404, [1])


def test_versions_can_be_read_and_compared(worker: Worker, house: House) -> None:
    worker.commit(checkpoint={"state": {"n": 1, "rows": [1], "gone": True}})
    change = [
        {"op": "replace", "path": "/n", "value": 2},
        {"op": "add", "path": "/rows/-", "value": 2},
        {"op": "remove", "path": "/gone"},
    ]
    worker.commit(checkpoint={"patch": change})
    with tenant_scope(house.id):
        first = queries.checkpoint(tenant=house.id, run_id=UUID(worker.run), version=1)
        found = queries.checkpoint_diff(tenant=house.id, run_id=UUID(worker.run), old=1, new=2)
    assert first.state == b'{"n":1,"rows":[1],"gone":true}'
    assert {(c.path, c.kind, c.before, c.after) for c in found} == {
        ("/n", "changed", "1", "2"),
        ("/rows/-", "added", None, "2"),
        ("/gone", "removed", "true", None),
    }
