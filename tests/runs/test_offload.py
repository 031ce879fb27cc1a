"""Large payloads lie with the artifacts: everybody reads and verifies them as before, and what did not happen leaves nothing."""

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest
from django.conf import settings
from django.db.models.functions import Now

from kernel import clock
from kernel.context import tenant_scope
from runs import offload, operations, queries
from runs.models import Checkpoint, Event, Offload
from tests.cast import House
from tests.runs.driver import Worker

Open = Callable[[str | None], httpx.Client]

pytestmark = pytest.mark.xdist_group("artifact_care")


def large(size: int = 1_200_000) -> str:
    """Text that compresses to more than the limit: random, in hex."""
    return random.randbytes(size).hex()


def objects(house: House) -> list[Path]:
    folder = settings.DATA_DIR / "artifacts" / house.id.hex
    return sorted(folder.iterdir()) if folder.exists() else []


def due(house: House) -> None:
    with tenant_scope(house.id):
        Offload.objects.filter(due_at__isnull=False).update(due_at=Now())


@pytest.fixture
def worker(house: House) -> Worker:
    found = Worker(house)
    found.start("a", "b", input={"document": large()})
    found.claim()
    return found


def test_everything_large_comes_back(house: House, worker: Worker) -> None:
    assert len(objects(house)) == 1
    texts = [large(), large(1_500_000), large(), large()]
    worker.commit(
        events=[{"type": "note", "payload": {"text": texts[0]}}, {"type": "note", "payload": "small"}],
        checkpoint={"state": {"text": texts[1]}},
    )
    worker.commit(checkpoint={"patch": [{"op": "add", "path": "/more", "value": texts[2]}]})
    worker.commit(step={"outcome": "succeeded", "output": {"text": texts[3]}})
    assert len(objects(house)) == 5
    with tenant_scope(house.id):
        sizes = [len(bytes(row.payload or b"")) for row in Event.objects.filter(run_id=worker.run).order_by("seq")]
        bodies = [len(bytes(row.body)) for row in Checkpoint.objects.filter(run_id=worker.run).order_by("version")]
        page = queries.events_page(tenant=house.id, run_id=UUID(worker.run))
    assert max(sizes) < 1000
    assert bodies == [offload.SIZE, offload.SIZE]
    # Who looks at sizes sees what lies there.
    assert max(event.size for event in page.rows) > settings.OFFLOAD_BYTES

    events = {event["seq"]: event for event in worker.get("/events")["items"]}
    notes = [event["payload"] for event in events.values() if event["type"] == "note"]
    assert notes == [{"text": texts[0]}, "small"]
    [done] = [event for event in events.values() if event["type"] == "step_succeeded"]
    assert done["output"] == {"text": texts[3]}
    assert worker.get("/checkpoints/latest")["state"] == {"text": texts[1], "more": texts[2]}
    assert worker.get("/verify")["ok"]
    with tenant_scope(house.id):
        payload = queries.event_payload(tenant=house.id, run_id=UUID(worker.run), seq=done["seq"])
    assert json.loads(payload) == {"output": {"text": texts[3]}}
    assert len(worker.claim()["run"]["input"]["document"]) == 2_400_000


def test_a_large_end_of_a_run(house: House) -> None:
    worker = Worker(house)
    worker.start("a")
    worker.claim()
    text = large()
    worker.commit(step={"outcome": "succeeded"}, run={"outcome": "completed", "output": text})
    assert worker.get("/events")["items"][-1]["output"] == text
    assert worker.get("/verify")["ok"]


def test_small_payloads_stay_in_their_rows(house: House) -> None:
    worker = Worker(house)
    worker.start("a", input={"document": "x" * 5_000_000})  # it is what is stored that counts
    worker.claim()
    worker.commit(events=[{"type": "note", "payload": large(400_000)}], checkpoint={"state": {"a": 1}})
    assert objects(house) == []


def test_a_replay_is_answered_and_a_refusal_is_one(house: House, worker: Worker) -> None:
    event = {"type": "note", "payload": large()}
    first = worker.commit(key="same", events=[event])
    assert worker.commit(key="same", events=[event]) == first
    refused = worker.call(lease=worker.lease, epoch=worker.epoch, head=99, checkpoint={"state": {"text": large()}})
    assert refused.status_code == 409
    assert worker.get("/verify")["ok"]
    # What the replay and the refused commit had written beforehand stays for a day, and goes.
    assert len(objects(house)) == 4
    assert operations.sweep_offloads() == 0
    due(house)
    operations.sweep_offloads()
    assert len(objects(house)) == 2
    assert worker.get("/verify")["ok"]
    with tenant_scope(house.id):
        assert set(Offload.objects.values_list("due_at", flat=True)) == {None}
    due(house)
    operations.sweep_offloads()
    operations.reconcile_objects(now=clock.now(), only=house.id)
    assert len(objects(house)) == 2


def test_two_tenants(house: House, other_house: House, worker: Worker) -> None:
    theirs = Worker(other_house)
    theirs.start("a", input=large())
    due(house)
    due(other_house)
    operations.sweep_offloads()
    assert len(objects(house)) == len(objects(other_house)) == 1
    # A pointer leads into its own tenant's part of the store alone.
    pointer = bytes(_payload(other_house, theirs.run))
    from kernel.ports import Corrupt

    with pytest.raises(Corrupt):
        offload.fetch(house.id, pointer)
    assert len(offload.fetch(other_house.id, pointer)) > settings.OFFLOAD_BYTES


def _payload(house: House, run: str) -> Any:
    with tenant_scope(house.id):
        return Event.objects.get(run_id=run, seq=1).payload


@pytest.mark.parametrize("damage", ["gone", "cut", "flipped", "swapped"])
def test_damage_is_found(house: House, worker: Worker, damage: str) -> None:
    worker.commit(events=[{"type": "note", "payload": large()}])
    one, two = objects(house)
    content = one.read_bytes()
    match damage:
        case "gone":
            one.unlink()
        case "cut":
            one.write_bytes(content[:-1])
        case "flipped":
            one.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        case "swapped":
            one.write_bytes(two.read_bytes())
    assert worker.get("/verify")["bad_seq"] == 1
    # Another payload of the same run may open, as it would in the row: that it is another, its commitment tells.
    if damage != "swapped":
        first = worker.get("/events")["items"][0]
        assert (first["readable"], "input" in first) == (False, False)
    one.write_bytes(content)
    assert worker.get("/verify")["ok"]


def test_a_damaged_checkpoint_is_skipped(house: House, worker: Worker) -> None:
    worker.commit(checkpoint={"state": {"a": 1}})
    worker.commit(checkpoint={"state": {"b": large()}})
    os.unlink(objects(house)[-1])
    found = worker.get("/checkpoints/latest")
    assert (found["state"], found["version"], found["skipped"]) == ({"a": 1}, 1, [2])


def test_snapshots_are_taken_as_before(house: House, worker: Worker) -> None:
    """A pointer counts as much as what it points to, or a large state would be packed again after every few changes."""
    worker.commit(checkpoint={"state": {"text": large(), "list": []}})
    for number in range(10):
        value = random.randbytes(20_000).hex()
        worker.commit(checkpoint={"patch": [{"op": "add", "path": "/list/-", "value": f"{number}{value}"}]})
    with tenant_scope(house.id):
        assert not Checkpoint.objects.filter(run_id=worker.run, kind="snapshot").exists()
    worker.commit(checkpoint={"patch": [{"op": "add", "path": "/list/-", "value": large()}]})
    with tenant_scope(house.id):
        assert Checkpoint.objects.filter(run_id=worker.run, kind="snapshot").exists()
    assert len(worker.get("/checkpoints/latest")["state"]["list"]) == 11


def test_a_fork_of_something_large(house: House, api: Open, worker: Worker) -> None:
    text = large()
    worker.commit(checkpoint={"state": {"text": text}})
    before = len(objects(house))
    operator = api(house.keys["operator"])
    fork = operator.post(f"/runs/{worker.run}/fork", json={"reason": "again"}, headers={"Idempotency-Key": "fork"})
    assert fork.status_code == 201, fork.text
    # Its input and its state are its own, under its own name.
    assert len(objects(house)) == before + 2
    worker.run = fork.json()["id"]
    assert worker.get("/checkpoints/latest")["state"] == {"text": text}
    assert len(worker.get("/events")["items"][0]["input"]["document"]) == 2_400_000
    assert worker.get("/verify")["ok"]
    due(house)
    operations.sweep_offloads()
    assert len(objects(house)) == before + 2
