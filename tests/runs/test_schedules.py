"""Schedules: each planned time is at most one run, in the name of a key that may still start it."""

import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import httpx
import pytest
from django.db import IntegrityError, connection, connections

from kernel import actor, clock
from kernel.context import tenant_scope
from runs.models import Schedule, ScheduleFire
from runs.operations import schedules
from runs.queries.schedules import timetable_of
from tenancy import operations as tenancy_ops

if TYPE_CHECKING:
    from tests.cast import House

Api = Callable[[str | None], httpx.Client]
Json = dict[str, Any]

RUN: Json = {
    "workflow": "nightly", "workflow_version": "1", "subject": "asha@example.com", "input": {"amount": 1.10},
    "steps": [{"name": "a", "queue": "q"}],
}  # fmt: skip


def define(client: httpx.Client, **parts: Any) -> Json:
    body = {"name": "nightly", "run": RUN} | ({"cron": "0 * * * *"} if "every_seconds" not in parts else {}) | parts
    response = client.post("schedules", json=body)
    assert response.status_code == 201, response.text
    found: Json = response.json()
    assert response.headers["Location"] == f"/api/v1/schedules/{found['id']}"
    return found


def fires(client: httpx.Client, schedule: Json) -> list[Json]:
    found: list[Json] = client.get(f"schedules/{schedule['id']}/fires").json()["items"]
    return found


def runs_of(client: httpx.Client) -> list[Json]:
    found: list[Json] = client.get("runs", params={"workflow": "nightly"}).json()["items"]
    return found


def let_pass(house: "House", schedule: Json, hours: float) -> datetime:
    """As if the platform had been down for so long: the next planned time is back then. The planned time."""
    with tenant_scope(house.id):
        row = Schedule.objects.get(id=schedule["id"])
        row.created_at -= timedelta(days=30)
        planned = timetable_of(row).after(clock.now() - timedelta(hours=hours))
        assert planned is not None
        row.next_at = row.due_at = planned
        row.save()
    return planned


def fire_all(house: "House", schedule: Json) -> int:
    count = 0
    while schedules.fire_schedule(tenant=house.id, schedule_id=UUID(schedule["id"])):
        count += 1
    return count


def test_a_schedule_starts_its_runs(house: "House", other_house: "House", api: Api) -> None:
    client, agent = api(house.keys["admin"]), api(house.keys["agent"])
    schedule = define(client)
    planned = let_pass(house, schedule, 1)
    assert fires(client, schedule) == []
    schedules.fire_schedules()
    [fire] = fires(client, schedule)
    assert (fire["outcome"], fire["planned_at"], fire["manual"]) == (
        "started",
        planned.isoformat().replace("+00:00", "Z"),
        False,
    )
    [run] = runs_of(client)
    assert run["id"] == fire["run_id"]
    [created] = client.get(f"runs/{run['id']}/events").json()["items"]
    assert (created["type"], created["actor_kind"], created["actor_id"]) == ("run_created", "system", None)
    assert client.get(f"runs/{run['id']}/verify").json()["ok"]
    work = api(house.keys["admin"]).post("work/claim", json={"worker": "w", "queues": ["q"]}).json()
    assert (work["run"]["id"], work["run"]["input"]) == (run["id"], {"amount": 1.10})
    schedules.fire_schedules()
    assert len(runs_of(client)) == 1
    assert runs_of(api(other_house.keys["admin"])) == []
    assert agent.get("schedules").status_code == 403  # its key has no such scope


@pytest.mark.parametrize(
    ("missed", "outcomes"),
    [("run_once", [("started", 23)]), ("skip", [("missed", 23)]), ("run_all", [("started", 0)] * 24)],
)
def test_after_a_day_of_silence(house: "House", api: Api, missed: str, outcomes: list[tuple[str, int]]) -> None:
    client = api(house.keys["admin"])
    now = datetime.now(UTC)
    half_past = now - timedelta(days=30, minutes=30)  # the newest planned time was half an hour ago
    schedule = define(client, missed=missed, every_seconds=3600, starts_at=half_past.isoformat())
    let_pass(house, schedule, 24)
    fire_all(house, schedule)
    found = [(fire["outcome"], fire["missed"]) for fire in fires(client, schedule)]
    assert found == outcomes
    assert len(runs_of(client)) == sum(outcome == "started" for outcome, _ in outcomes)
    upcoming = client.get(f"schedules/{schedule['id']}/fires").json()["upcoming"]
    assert len(upcoming) == 10
    assert datetime.fromisoformat(upcoming[0]) > now


def test_a_clock_that_steps_back_fires_nothing_twice(house: "House", api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    client = api(house.keys["admin"])
    schedule = define(client, cron="*/10 * * * *", missed="run_all")
    real = schedules._clock
    for shift in (0, 3600, 0, -3600, 3600, 0):
        monkeypatch.setattr(schedules, "_clock", lambda shift=shift: real() + timedelta(seconds=shift))
        fire_all(house, schedule)
    found = [fire["planned_at"] for fire in fires(client, schedule)]
    assert len(found) in (6, 7)
    assert len(set(found)) == len(found) == len(runs_of(client))
    # Not even when someone sets the schedule back.
    with tenant_scope(house.id):
        row = Schedule.objects.get(id=schedule["id"])
        row.next_at = row.due_at = datetime.fromisoformat(found[0])
        row.save()
    monkeypatch.setattr(schedules, "_clock", lambda: real() + timedelta(hours=1))
    with pytest.raises(IntegrityError, match="runs_schedulefire_once"):
        fire_all(house, schedule)
    assert len(runs_of(client)) == len(found)


def test_two_sweeps_at_once_start_one_run(house: "House", api: Api) -> None:
    client = api(house.keys["admin"])
    schedule = define(client)
    let_pass(house, schedule, 1)
    barrier = threading.Barrier(8)

    def sweep() -> None:
        barrier.wait()
        schedules.fire_schedule(tenant=house.id, schedule_id=UUID(schedule["id"]))
        connections.close_all()

    threads = [threading.Thread(target=sweep) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(runs_of(client)) == len(fires(client, schedule)) == 1


def test_a_fire_whose_transaction_fails_leaves_nothing_and_comes_again(
    house: "House", api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = api(house.keys["admin"])
    schedule = define(client)
    let_pass(house, schedule, 1)
    real = ScheduleFire.save

    def fail(*_: Any, **__: Any) -> None:
        raise ConnectionError

    monkeypatch.setattr(ScheduleFire, "save", fail)
    schedules.fire_schedules()
    assert runs_of(client) == []
    monkeypatch.setattr(ScheduleFire, "save", real)
    schedules.fire_schedules()
    assert len(runs_of(client)) == 1


def test_the_run_before_may_hold_up_the_next(house: "House", api: Api) -> None:
    client, operator = api(house.keys["admin"]), api(house.keys["operator"])
    schedule = define(client, overlap="skip", missed="run_all", every_seconds=3600)
    let_pass(house, schedule, 2.5)
    fire_all(house, schedule)
    *later, first = [fire["outcome"] for fire in fires(client, schedule)]
    assert (set(later), first) == ({"overlapped"}, "started")
    [run] = runs_of(client)
    assert operator.post(f"runs/{run['id']}/cancel", json={"reason": "enough"}).status_code == 204
    with tenant_scope(house.id):
        row = Schedule.objects.get(id=schedule["id"])
        assert row.last_planned_at is not None
        row.next_at = row.due_at = row.last_planned_at + timedelta(milliseconds=1)
        row.save()
    fire_all(house, schedule)
    assert fires(client, schedule)[0]["outcome"] == "started"


def test_the_key_it_acts_for_must_still_be_good(house: "House", api: Api) -> None:
    admin = api(house.keys["admin"])
    who, now = actor.system("tests"), clock.now()

    def key(*scopes: str) -> tuple[UUID, httpx.Client]:
        with tenant_scope(house.id):
            issued = tenancy_ops.issue_key(tenant=house.id, name="k", scopes=scopes, actor=who, now=now)
        return issued.key.id, api(issued.secret)

    # Without the power to start runs nobody defines, changes, resumes or triggers what starts them.
    _, weak = key("schedules:read", "schedules:write")
    assert (
        weak.post("schedules", json={"name": "n", "cron": "0 * * * *", "run": RUN}).json()["required"] == "runs:write"
    )
    key_id, client = key("schedules:read", "schedules:write", "runs:write", "runs:read")
    schedule = define(client)
    assert schedule["key_id"] == str(key_id)
    for method, path, body in (("PATCH", "", {"name": "m"}), ("POST", "/run-now", None)):
        assert weak.request(method, f"schedules/{schedule['id']}{path}", json=body).status_code == 403
    assert weak.post(f"schedules/{schedule['id']}/pause").status_code == 200
    assert weak.post(f"schedules/{schedule['id']}/resume").status_code == 403
    assert client.post(f"schedules/{schedule['id']}/resume").json()["status"] == "active"

    # Rotated: the successor goes on.
    with tenant_scope(house.id):
        rotated = tenancy_ops.rotate_key(tenant=house.id, key_id=key_id, overlap=timedelta(0), actor=who, now=now)
    let_pass(house, schedule, 1)
    schedules.fire_schedules()
    assert admin.get(f"schedules/{schedule['id']}").json()["key_id"] == str(rotated.key.id)
    assert len(runs_of(admin)) == 1

    # Revoked: suspended, with the reason, until somebody who may takes it over.
    with tenant_scope(house.id):
        tenancy_ops.revoke_key(tenant=house.id, key_id=rotated.key.id, actor=who, now=now)
    with tenant_scope(house.id):
        row = Schedule.objects.get(id=schedule["id"])
        row.next_at = row.due_at = clock.now() - timedelta(seconds=5)
        row.save()
    schedules.fire_schedules()
    found = admin.get(f"schedules/{schedule['id']}").json()
    assert (found["status"], found["reason"]) == ("suspended", "key_revoked")
    assert (fires(admin, schedule)[0]["outcome"], fires(admin, schedule)[0]["reason"]) == ("refused", "key_revoked")
    assert len(runs_of(admin)) == 1
    [entry] = admin.get("audit", params={"action": "schedule.suspended"}).json()["items"]
    assert (entry["actor_kind"], entry["content"]["reason"]) == ("system", "key_revoked")
    resumed = admin.post(f"schedules/{schedule['id']}/resume").json()
    assert (resumed["status"], resumed["reason"], resumed["key_id"]) == ("active", None, str(house.key_ids["admin"]))


def test_a_key_that_lost_its_project_suspends_it(house: "House", api: Api) -> None:
    client = api(house.keys["admin"])
    schedule = define(client)
    let_pass(house, schedule, 1)
    with tenant_scope(house.id), connection.cursor() as cursor:
        cursor.execute(
            "update tenancy_apikey set project_ids = array[uuidv7()] where id = %s", [house.key_ids["admin"]]
        )
    schedules.fire_schedules()
    with tenant_scope(house.id):
        row = Schedule.objects.get(id=schedule["id"])
        assert (row.status, row.reason) == ("suspended", "key_lacks_scope")
        cursor = connection.cursor()
        cursor.execute("update tenancy_apikey set project_ids = null where id = %s", [house.key_ids["admin"]])


def test_an_erased_subject_suspends_it(house: "House", api: Api) -> None:
    client = api(house.keys["admin"])
    schedule = define(client)
    let_pass(house, schedule, 1)
    with tenant_scope(house.id), connection.cursor() as cursor:
        cursor.execute("update privacy_subject set erased_at = now(), key_epoch = key_epoch + 1")
    schedules.fire_schedules()
    found = client.get(f"schedules/{schedule['id']}").json()
    assert (found["status"], found["reason"]) == ("suspended", "subject_erased")
    assert runs_of(client) == []


def test_a_bound_key_sees_and_defines_its_own(house: "House", api: Api) -> None:
    admin, who, now = api(house.keys["admin"]), actor.system("tests"), clock.now()
    scopes = ("schedules:read", "schedules:write", "runs:write")
    with tenant_scope(house.id):
        issued = tenancy_ops.issue_key(
            tenant=house.id, name="k", scopes=scopes, agent_id=house.agent_id, actor=who, now=now
        )
    bound = api(issued.secret)
    theirs, own = define(admin), define(bound)
    assert own["agent"] == "clerk"
    assert [row["id"] for row in bound.get("schedules").json()["items"]] == [own["id"]]
    assert [row["id"] for row in admin.get("schedules").json()["items"]] == [theirs["id"], own["id"]]
    assert bound.get(f"schedules/{theirs['id']}").status_code == 404
    assert bound.patch(f"schedules/{theirs['id']}", json={"name": "x"}).status_code == 404


def test_a_person_starts_a_run_now(house: "House", api: Api) -> None:
    client = api(house.keys["admin"])
    schedule = define(client)
    client.post(f"schedules/{schedule['id']}/pause")
    answers = [
        client.post(f"schedules/{schedule['id']}/run-now", headers={"Idempotency-Key": "once"}) for _ in range(2)
    ]
    assert {answer.status_code for answer in answers} == {201}
    [run] = runs_of(client)
    assert {answer.json()["id"] for answer in answers} == {run["id"]}
    [fire] = fires(client, schedule)
    assert (fire["manual"], fire["outcome"], fire["run_id"]) == (True, "started", run["id"])
    assert client.get("audit", params={"action": "schedule.run_now"}).json()["items"][0]["content"]["run"] == run["id"]


def test_changes_are_conditional_and_what_was_planned_does_not_come_again(house: "House", api: Api) -> None:
    client = api(house.keys["admin"])
    schedule = define(client)
    path = f"schedules/{schedule['id']}"
    let_pass(house, schedule, 1)
    schedules.fire_schedules()
    tag = client.get(path).headers["ETag"]
    changed = client.patch(path, json={"cron": None, "every_seconds": 60}, headers={"If-Match": tag})
    assert changed.status_code == 200, changed.text
    assert (changed.json()["cron"], changed.json()["every_seconds"]) == (None, 60)
    assert client.patch(path, json={"name": "late"}, headers={"If-Match": tag}).status_code == 412
    text = json.dumps({"name": "new", "run": RUN | {"workflow": "other", "input": {"n": 99}}}).replace("99", "1.50")
    renamed = client.patch(path, content=text, headers={"Content-Type": "application/json"})
    assert (renamed.json()["workflow"], renamed.json()["run"]["input"]) == ("other", {"n": 1.50})
    assert '"n": 1.50' in renamed.text
    assert schedules.fire_schedules() == 0 or len(fires(client, schedule)) == 1
    assert client.delete(path, headers={"If-Match": tag}).status_code == 412
    assert client.delete(path).status_code == 204
    assert client.get(path).status_code == 404
    assert len(runs_of(client)) == 1
    actions = [row["action"] for row in client.get("audit", params={"action": "schedule."}).json()["items"]]
    assert actions == ["schedule.deleted", "schedule.changed", "schedule.changed", "schedule.created"]


def test_an_end(house: "House", api: Api) -> None:
    client = api(house.keys["admin"])
    later = (clock.now() + timedelta(hours=3)).isoformat()
    schedule = define(client, ends_at=later)
    planned = let_pass(house, schedule, 1)
    with tenant_scope(house.id):
        Schedule.objects.filter(id=schedule["id"]).update(ends_at=planned + timedelta(seconds=1))
    schedules.fire_schedules()
    path = f"schedules/{schedule['id']}"
    assert client.get(path).json()["status"] == "ended"
    assert client.get(f"{path}/fires").json()["upcoming"] == []
    assert client.post(f"{path}/pause").json()["code"] == "schedule_ended"
    assert client.post(f"{path}/resume").json()["code"] == "schedule_ended"
    assert client.patch(path, json={"ends_at": None}).json()["status"] == "active"


@pytest.mark.parametrize(
    ("parts", "path"),
    [
        ({"cron": None}, "/cron"),
        ({"every_seconds": 60, "cron": "* * * * *"}, "/cron"),
        ({"cron": "61 * * * *"}, "/cron"),
        ({"cron": "0 0 30 2 *"}, "/cron"),
        ({"time_zone": "Mars/Olympus"}, "/time_zone"),
        ({"time_zone": "../etc/passwd"}, "/time_zone"),
        ({"every_seconds": 10, "cron": None, "jitter_seconds": 11}, "/jitter_seconds"),
        ({"starts_at": "2027-01-01T00:00:00Z", "ends_at": "2026-12-31T00:00:00Z"}, "/ends_at"),
        ({"ends_at": "2020-01-01T00:00:00Z"}, "/ends_at"),
        ({"run": RUN | {"project": "nowhere"}}, "/run/project"),
        ({"run": RUN | {"steps": [{"name": "a"}, {"name": "a"}]}}, "/run/steps/1/name"),
        ({"run": RUN | {"steps": []}}, "/run/steps"),
        ({"overlap": "queue"}, "/overlap"),
        ({"jitter_seconds": 4000}, "/jitter_seconds"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(house: "House", api: Api, parts: Json, path: str) -> None:
    body = {"name": "n", "cron": "0 * * * *", "run": RUN} | parts
    response = api(house.keys["admin"]).post("schedules", json=body)
    assert response.status_code == 422
    assert [error["path"] for error in response.json()["errors"]] == [path]


def test_the_template_is_ciphertext_of_its_subject(house: "House", api: Api) -> None:
    schedule = define(api(house.keys["admin"]), run=RUN | {"input": {"say": "zebra" * 30}})
    with tenant_scope(house.id), connection.cursor() as cursor:
        cursor.execute(
            "select s::text, s.data_key_id = p.key_id from runs_schedule s, privacy_subject p where s.id = %s",
            [schedule["id"]],
        )
        text, of_subject = cursor.fetchone()
    assert of_subject
    assert "asha" not in text
    assert "zebra" not in text
