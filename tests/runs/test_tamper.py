"""Whatever is changed in a stored log, `verify` names the first sequence number that is not what was recorded."""

import hashlib
import uuid
from datetime import datetime
from typing import Any

import pytest

from kernel import clock
from runs import operations
from tests.cast import House
from tests.runs.driver import Worker, tamperer


@pytest.fixture
def worker(house: House) -> Worker:
    """A run with every kind of row: seq 4 has labels and a time, 5 and 7 are checkpoints (full, patch)."""
    worker = Worker(house)
    worker.start("first", "second", input={"batch": 7})
    worker.claim()
    event = {
        "type": "tool_called", "input": {"n": 1}, "output": [2.50], "labels": {"tool": "match"},
        "occurred_at": "2026-11-29T10:00:00.123456Z",
    }  # fmt: skip
    worker.commit(events=[event], checkpoint={"state": {"rows": [], "n": 0}})
    worker.commit(events=[{"type": "note"}], checkpoint={"patch": [{"op": "replace", "path": "/n", "value": 1}]})
    worker.commit(step={"outcome": "succeeded", "output": {"ok": True}})
    assert worker.get("/verify") == worker.get("/verify") | {"ok": True, "checked": 8}
    return worker


EVENT_CHANGES = {
    "recorded_at": "recorded_at + interval '1 microsecond'",
    "occurred_at": "occurred_at + interval '1 microsecond'",
    "occurred_at removed": "null",
    "step_id": "gen_random_uuid()",
    "lease_id": "gen_random_uuid()",
    "actor_id": "gen_random_uuid()",
    "schema_version": "2",
    "type": "'tool_calleD'",
    "actor_kind": "'kez'",
    "prev_digest": "set_byte(prev_digest, 31, get_byte(prev_digest, 31) # 1)",
    "digest": "set_byte(digest, 0, get_byte(digest, 0) # 1)",
    "payload_commitment": "set_byte(payload_commitment, 7, get_byte(payload_commitment, 7) # 1)",
    "payload_commitment removed": "null",
    "labels": """'{"tool": "matcH"}'""",
    "labels added": """'{"tool": "match", "more": "x"}'""",
    "labels removed": "null",
    "payload removed": "null",
}


@pytest.mark.parametrize("change", EVENT_CHANGES)
def test_a_changed_column_of_an_event_is_named(worker: Worker, change: str) -> None:
    column, value = change.split()[0], EVENT_CHANGES[change]
    with tamperer() as connection:
        done = connection.execute(
            f"update runs_event set {column} = {value} where run_id = %s and seq = 4".encode(), [worker.run]
        )
        assert done.rowcount == 1
    found = worker.get("/verify")
    assert (found["ok"], found["bad_seq"]) == (False, 4), found


def test_any_changed_byte_of_a_payload_is_named(worker: Worker) -> None:
    with tamperer() as connection:
        row = connection.execute(
            "select payload from runs_event where run_id = %s and seq = 4", [worker.run]
        ).fetchone()
        assert row is not None
        for position in range(0, len(row[0]), 5):
            flipped = bytearray(row[0])
            flipped[position] ^= 0x40
            connection.execute(
                "update runs_event set payload = %s where run_id = %s and seq = 4", [bytes(flipped), worker.run]
            )
            assert worker.get("/verify")["bad_seq"] == 4, position


@pytest.mark.parametrize(("seq", "change"), [
    (5, "body = set_byte(body, 20, get_byte(body, 20) # 1)"),
    (5, "body = null"),
    (7, "commitment = set_byte(commitment, 20, get_byte(commitment, 20) # 1)"),
    (7, "version = 99"),
    (7, "recorded_at = recorded_at + interval '1 second'"),
    (7, "kind = 'full'"),
    (7, "seq = 6"),
])  # fmt: skip
def test_a_changed_checkpoint_is_named_by_its_event(worker: Worker, seq: int, change: str) -> None:
    with tamperer() as connection:
        done = connection.execute(
            f"update runs_checkpoint set {change} where run_id = %s and seq = %s".encode(), [worker.run, seq]
        )
        assert done.rowcount == 1
    assert worker.get("/verify")["bad_seq"] == seq


@pytest.mark.parametrize("seq", range(1, 9))
def test_a_deleted_event_is_named(worker: Worker, seq: int) -> None:
    with tamperer() as connection:
        connection.execute("delete from runs_event where run_id = %s and seq = %s", [worker.run, seq])
    assert worker.get("/verify")["bad_seq"] == seq


def test_an_event_too_many_is_named(worker: Worker) -> None:
    with tamperer() as connection:
        connection.execute(
            """insert into runs_event select tenant_id, run_id, seq + 1, recorded_at, occurred_at, step_id, lease_id, actor_id,
                   schema_version, type, actor_kind, digest, digest, payload_commitment, labels, payload
               from runs_event where run_id = %s and seq = 8""",
            [worker.run],
        )
    assert worker.get("/verify")["bad_seq"] == 9


def test_exchanged_payloads_are_named(worker: Worker) -> None:
    with tamperer() as connection:
        connection.execute(
            """update runs_event e set payload = o.payload from runs_event o
               where e.run_id = %s and o.run_id = e.run_id and e.seq in (4, 6) and o.seq = 10 - e.seq""",
            [worker.run],
        )
    assert worker.get("/verify")["bad_seq"] == 4


def test_a_tail_cut_with_the_end_rewritten_is_found_by_the_anchor(worker: Worker) -> None:
    operations.anchor_heads(now=clock.now())
    with tamperer() as connection:
        connection.execute("delete from runs_event where run_id = %s and seq > 6", [worker.run])
        connection.execute(
            """update runs_run r set last_seq = 6, last_digest = e.digest from runs_event e
               where r.id = %s and e.run_id = r.id and e.seq = 6""",
            [worker.run],
        )
    assert worker.get("/verify")["bad_seq"] == 7


def test_anchors_rewritten_with_the_log_are_found_by_the_audit_entry(worker: Worker) -> None:
    operations.anchor_heads(now=clock.now())
    with tamperer() as connection:
        connection.execute("delete from runs_event where run_id = %s and seq > 6", [worker.run])
        connection.execute(
            """with cut as (select digest from runs_event where run_id = %(run)s and seq = 6), moved as (
                   update runs_anchor set seq = 6, digest = cut.digest from cut where run_id = %(run)s)
               update runs_run set last_seq = 6, last_digest = cut.digest from cut where id = %(run)s""",
            {"run": worker.run},
        )
    found = worker.get("/verify")
    assert (found["ok"], found["bad_seq"]) == (False, 6)


def test_an_outsider_can_follow_the_chain_with_the_published_layout(worker: Worker, house: House) -> None:
    """From the events as the API shows them and PROTOCOL.md, without any code of ours."""
    prev = hashlib.sha256(b"smriti:run:v1\0" + house.id.bytes + uuid.UUID(worker.run).bytes).digest()
    for event in worker.get("/events")["items"]:
        assert event["prev_digest"] == prev.hex()
        prev = _digest(house.id, uuid.UUID(worker.run), event)
        assert event["digest"] == prev.hex()


def _digest(tenant: uuid.UUID, run: uuid.UUID, event: dict[str, Any]) -> bytes:
    def text(value: str) -> bytes:
        return len(value.encode()).to_bytes(4, "big") + value.encode()

    def id_(value: str | None) -> bytes:
        return bytes(16) if value is None else uuid.UUID(value).bytes

    since = datetime.fromisoformat(event["recorded_at"]) - datetime.fromisoformat("1970-01-01T00:00:00+00:00")
    micros = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    return hashlib.sha256(
        b"smriti:event:v1\0" + tenant.bytes + run.bytes + bytes.fromhex(event["prev_digest"])
        + event["seq"].to_bytes(8, "big") + micros.to_bytes(8, "big") + id_(event["lease"]) + id_(event["actor_id"])
        + text(event["actor_kind"]) + id_(event["step_id"]) + event["schema_version"].to_bytes(2, "big") + text(event["type"])
        + bytes.fromhex(event["payload_commitment"] or "")
    ).digest()  # fmt: skip
