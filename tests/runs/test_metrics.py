"""Roll-ups against a count of the log by hand, in random orders and under kills; what the API and the operator see of them."""

import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import httpx
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.runs.driver import Worker, tamperer

if TYPE_CHECKING:
    from tests.cast import House

Open = Callable[[str | None], httpx.Client]
USAGE = {"model": "m-1", "input_tokens": 100, "output_tokens": 7, "cost": "0.25", "currency": "USD"}
ENDS = {
    "run_completed": "completed",
    "run_failed": "failed",
    "run_cancelled": "cancelled",
    "run_dead_letter": "dead_letter",
}


def count_all(house: "House", limit: int = 2000) -> None:
    from runs import operations

    operations.advance_feed(tenant=house.id)
    while operations.count_tenant(tenant=house.id, limit=limit)[1]:
        pass


def stored(house: "House") -> tuple[Counter[tuple[str, str]], dict[tuple[str, str], Decimal]]:
    """Counts and sums of the roll-ups by metric and name; checks the totals on the way."""
    from kernel.context import tenant_scope
    from runs.models import Rollup, RollupTotal

    counts, totals = Counter[tuple[str, str]](), Counter[tuple[str, int]]()
    sums: defaultdict[tuple[str, str], Decimal] = defaultdict(Decimal)
    with tenant_scope(house.id):
        for row in Rollup.objects.all():
            counts[row.metric, row.name] += row.count
            sums[row.metric, row.name] += row.total
            totals[row.metric, row.slot] += row.count
        assert {(row.metric, row.slot): row.count for row in RollupTotal.objects.filter(count__gt=0)} == +totals
    return +counts, {key: total for key, total in sums.items() if total}


def by_hand(house: "House", runs: list[str]) -> tuple[Counter[tuple[str, str]], dict[tuple[str, str], Decimal]]:
    """The same from the log as the API gives it, with other code."""
    from tests.cast import client

    counts, sums = Counter[tuple[str, str]](), defaultdict[tuple[str, str], Decimal](Decimal)
    with client(house.keys["admin"]) as http:
        for run in runs:
            detail = http.get(f"/runs/{run}").json()
            queues = {step["name"]: step["queue"] for step in detail["steps"]}
            started: datetime | None = None
            hurt = False
            number = Counter[str]()
            leases: dict[str, datetime] = {}
            items: list[dict[str, Any]] = []
            while page := http.get(f"/runs/{run}/events", params={"limit": 1000, "after": len(items)}).json()["items"]:
                items += page
            for item in items:
                kind, step, at = item["type"], item["step"] or "", datetime.fromisoformat(item["recorded_at"])
                if kind in ("run_created", "run_started"):
                    counts["runs_" + kind.split("_")[1], ""] += 1
                    started = at if kind == "run_started" else started
                elif kind == "step_leased":
                    number[step] += 1
                    leases[item["lease"]] = at
                    counts["step_attempts", step] += 1
                    if number[step] > 1:
                        counts["step_retries", step] += 1
                    else:
                        counts["queue_wait", queues[step]] += 1
                elif kind in ("step_succeeded", "step_failed"):
                    counts["steps_" + kind.split("_")[1], step] += 1
                    sums["steps_" + kind.split("_")[1], step] += Decimal(
                        str((at - leases[item["lease"]]).total_seconds())
                    )
                elif kind in ENDS:
                    counts["runs_ended", ENDS[kind]] += 1
                    if started is not None:
                        sums["runs_ended", ENDS[kind]] += Decimal(str((at - started).total_seconds()))
                    # A run that failed together with its only failing attempt was not disturbed before.
                    if hurt:
                        counts["runs_disturbed", ENDS[kind]] += 1
                elif kind in ("lease_lost", "step_dead_letter"):
                    counts[{"lease_lost": "leases_lost"}.get(kind, "steps_dead_letter"), step] += 1
                elif kind.startswith("effect_") and kind != "effect_duplicate":
                    counts["tool_" + kind.split("_")[1], item["labels"]["tool"]] += 1
                elif kind == "effect_duplicate":
                    counts["incidents", kind] += 1
                hurt = hurt or kind == "step_retry_scheduled" or (kind == "lease_lost" and item is not items[-1])
                if "usage" in item:
                    counts["cost", "USD"] += 1
                    sums["cost", "USD"] += Decimal(item["usage"]["cost"])
                    for way, tokens in (("input_tokens", 100), ("output_tokens", 7)):
                        counts[way, "m-1"] += 1
                        sums[way, "m-1"] += Decimal(tokens)
    return +counts, {key: total for key, total in sums.items() if total}


# As the effect ledger writes them.
EFFECTS = """
with held as (select * from runs_run where id = %s for no key update)
update runs_run r set last_seq = h.last_seq + 4, updated_at = clock_timestamp(), last_digest = runs_append(
    h.tenant_id, h.id, h.last_seq, h.last_digest, clock_timestamp(), 'system', null, null,
    '{effect_reserved,effect_executing,effect_succeeded,effect_duplicate}', null, null,
    array_fill('{"tool": "pay"}'::jsonb, array[4]), null, null)
from held h where r.id = h.id
"""


def lose(worker: Worker) -> None:
    """The worker's lease runs out."""
    from kernel import pool
    from runs.operations.control import SWEEPS

    with tamperer() as connection:
        connection.execute("update runs_attempt set expires_at = now() - interval '1 s' where id = %s", [worker.lease])
        row = connection.execute("select tenant_id from runs_attempt where id = %s", [worker.lease]).fetchone()
    assert row is not None
    assert pool.one(SWEEPS["lease"], (row[0], UUID(worker.lease)))[0]


def due_now(house: "House") -> None:
    """What waits for its next attempt waits no longer."""
    from kernel import pool
    from runs.operations.control import SWEEPS

    with tamperer() as connection:
        steps = connection.execute(
            """update runs_step set due_at = now() - interval '1 ms'
               where tenant_id = %s and status in ('runnable', 'waiting') returning id, status""",
            [house.id],
        ).fetchall()
    for step, status in steps:
        if status == "waiting":
            assert pool.one(SWEEPS["step"], (house.id, step))[0]


def cancel(house: "House", run: str) -> None:
    from kernel import actor, clock
    from kernel.context import tenant_scope
    from runs import operations

    with tenant_scope(house.id):
        operations.cancel_run(
            tenant=house.id, run_id=UUID(run), reason="no", actor=actor.system("tests"), now=clock.now()
        )


def act(worker: Worker, house: "House", what: str) -> None:
    """One thing that happens to a run, if it can."""
    open_run = worker.get("")["run"]["status"] in ("pending", "running", "waiting")
    if what == "cancel" and open_run:
        cancel(house, worker.run)
    if not open_run:
        return
    if what == "note":
        assert (
            worker.call(events=[{"type": "note", "usage": USAGE}, {"type": "other", "payload": {"a": 1}}]).status_code
            == 200
        )
    elif what == "effect":
        with psycopg.connect(os.environ["DATABASE_URL"]) as connection:
            connection.execute("select smriti_enter(%s)", [house.id])
            connection.execute(EFFECTS, [worker.run])
    elif what in ("succeed", "retry", "fail", "bury", "lose"):
        due_now(house)
        worker.claim()
        if what == "lose":
            lose(worker)
            return
        error = {"retry": "transient", "fail": "business_rejection", "bury": "permanent"}.get(what)
        step = {"outcome": "failed", "error": {"class": error}} if error else {"outcome": "succeeded"}
        worker.commit(step=step, events=[{"type": "note", "usage": USAGE}])


THINGS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(
            [
                "succeed",
                "succeed",
                "succeed",
                "retry",
                "note",
                "effect",
                "lose",
                "fail",
                "bury",
                "cancel",
                "count",
                "quiet",
            ]
        ),
        st.integers(1, 7),
    ),
    min_size=10,
    max_size=40,
)


def test_roll_ups_are_what_a_count_by_hand_gives(proof: bool) -> None:
    from runs import operations
    from tests.cast import make_house

    @settings(
        max_examples=60 if proof else 8, deadline=None, database=None, suppress_health_check=list(HealthCheck),
        derandomize=not proof,
    )  # fmt: skip
    @given(things=THINGS)
    def run(things: list[tuple[int, str, int]]) -> None:
        house = make_house("Counting", roles=())
        workers = [Worker(house) for _ in range(3)]
        for worker in workers:
            worker.start("a", "b", workflow="w1" if worker is workers[0] else "w2")
        for index, what, limit in things:
            if what == "count":
                operations.advance_feed(tenant=house.id)
                operations.count_tenant(tenant=house.id, limit=limit)
            elif what == "quiet":
                with tamperer() as connection:
                    connection.execute(
                        "update runs_run set updated_at = now() - interval '1 minute' where tenant_id = %s", [house.id]
                    )
                operations.advance_feed(tenant=house.id)
            else:
                act(workers[index], house, what)
        count_all(house)
        found, hand = stored(house), by_hand(house, [worker.run for worker in workers])
        assert found[0] == hand[0]
        for key, total in hand[1].items():
            assert abs(found[1][key] - total) < Decimal("0.001"), key
        now = datetime.now(UTC)
        assert operations.recount(tenant=house.id, start=now - timedelta(hours=3), end=now + timedelta(hours=1)) == 0

    run()


def kill(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


COUNTER = """
import sys, django
django.setup()
from uuid import UUID
from runs import operations
tenant = UUID(sys.argv[1])
print("ready", flush=True)
while True:
    operations.advance_feed(tenant=tenant)
    operations.count_tenant(tenant=tenant, limit=5)
"""


def test_killed_at_any_moment_nothing_is_lost_or_counted_twice(house: "House", proof: bool) -> None:
    """Two processes count at the same time and are killed again and again, while runs go on."""
    from runs import operations

    dice = random.Random(7)
    workers = [Worker(house) for _ in range(4)]
    for worker in workers:
        worker.start(*(f"s{number}" for number in range(12)))

    def start() -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-c", COUNTER, str(house.id)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return process

    steady = start()
    for _ in range(20 if proof else 4):
        victim = start()
        try:
            for worker in dice.choices(workers, k=6):
                act(worker, house, dice.choice(["succeed", "note", "note", "retry", "effect"]))
            time.sleep(dice.random() / 10)
        finally:
            kill(victim)
    kill(steady)
    count_all(house)
    assert stored(house)[0] == by_hand(house, [worker.run for worker in workers])[0]
    now = datetime.now(UTC)
    assert operations.recount(tenant=house.id, start=now - timedelta(hours=1), end=now + timedelta(hours=1)) == 0


def test_a_recount_puts_wrong_numbers_right_and_keeps_the_cost_of_what_was_erased(house: "House") -> None:
    from kernel.context import tenant_scope
    from runs import operations
    from runs.models import Rollup

    worker = Worker(house)
    worker.start("a")
    act(worker, house, "note")
    act(worker, house, "succeed")
    count_all(house)
    before = stored(house)
    with tenant_scope(house.id):
        Rollup.objects.filter(metric="runs_ended").update(count=9)
        Rollup.objects.filter(metric="step_attempts").delete()
    with tamperer() as connection:
        connection.execute("update runs_event set payload = '\\x00' where run_id = %s and type = 'note'", [worker.run])
    now = datetime.now(UTC)
    times = {"start": now - timedelta(hours=1), "end": now + timedelta(hours=1)}
    assert operations.recount(tenant=house.id, **times) == 2
    assert stored(house) == before
    assert operations.recount(tenant=house.id, **times) == 0


def test_an_empty_tenant_has_no_numbers(house: "House", api: Open) -> None:
    count_all(house)
    for name in ("runs", "steps", "tools", "cost", "queues"):
        assert api(house.keys["admin"]).get(f"/metrics/{name}").json() == {"items": []}


def test_what_the_api_tells(house: "House", other_house: "House", api: Open) -> None:
    worker = Worker(house)
    worker.start("a", "b", "piece-0001", workflow="pay", workflow_version="2", agent_version="1.1")
    for what in ("retry", "lose", "succeed", "succeed", "effect", "note", "succeed"):
        act(worker, house, what)
    Worker(house).start("a", workflow="idle")
    buried = Worker(house)
    buried.start("a", workflow="bury")
    act(buried, house, "bury")
    Worker(other_house).start("a", workflow="theirs")
    count_all(house)
    count_all(other_house)
    client = api(house.keys["admin"])

    def get(path: str, **query: Any) -> list[dict[str, Any]]:
        answer = client.get(f"/metrics/{path}", params=query)
        assert answer.status_code == 200, answer.text
        items: list[dict[str, Any]] = answer.json()["items"]
        return items

    (row,) = get("runs", workflow="pay", group_by=["workflow", "workflow_version", "agent_version"])
    assert (row["workflow"], row["workflow_version"], row["agent_version"]) == ("pay", "2", "1.1")
    assert (row["created"], row["started"], row["completed"], row["completion_rate"]) == (1, 1, 1, 1.0)
    assert (row["resumed"], row["resume_success_rate"]) == (1, 1.0)
    assert 0 < row["duration"]["p50"] == row["duration"]["p99"] < 60
    assert 0.9 < row["duration"]["p50"] / row["duration"]["mean"] < 1.1
    assert row["incidents"] == {"effect_duplicate": 1, "checkpoint_corrupt": 0, "migration_failed": 0}
    assert [row["workflow"] for row in get("runs", group_by="workflow")] == ["bury", "idle", "pay"]
    (every,) = get("runs")
    assert (every["created"], every["dead_letter"], every["completion_rate"]) == (3, 1, 0.5)
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    assert [datetime.fromisoformat(row["bucket"]) for row in get("runs", bucket="hour")] == [hour]
    assert [datetime.fromisoformat(row["bucket"]) for row in get("runs", bucket="day")] == [hour.replace(hour=0)]
    assert get("runs", workflow="theirs") == get("runs", to="2020-01-01T00:00:00Z") == []
    steps = {row["step"]: row for row in get("steps", workflow="pay")}
    assert list(steps) == ["a", "b", "piece-#"]
    assert (steps["a"]["attempts"], steps["a"]["retries"], steps["a"]["leases_lost"], steps["a"]["failed"]) == (
        3,
        2,
        1,
        1,
    )
    (tool,) = get("tools")
    assert (tool["tool"], tool["reserved"], tool["succeeded"], tool["success_rate"]) == ("pay", 1, 1, 1.0)
    (cost,) = get("cost", workflow="pay")
    assert cost["cost"] == [{"currency": "USD", "total": "1.25", "per_completed_run": "1.25"}]
    assert cost["tokens"] == [{"model": "m-1", "input": 500, "output": 35}]
    (queue, *_) = [row for row in get("queues") if row["runnable"]]
    assert (queue["runnable"], queue["leased"], queue["waiting"]) == (1, 0, 0)
    assert queue["oldest_seconds"] >= 0


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"from": "2026-01-02T00:00:00Z", "to": "2026-01-01T00:00:00Z"}, "to"),
        ({"from": "2026-01-01T00:00:00Z", "to": "2026-03-01T00:00:00Z", "bucket": "hour"}, "to"),
        ({"from": "2024-01-01T00:00:00Z", "to": "2026-03-01T00:00:00Z"}, "to"),
        ({"bucket": "minute"}, "bucket"),
        ({"group_by": "tenant"}, "group_by"),
        ({"workflow": "no spaces"}, "workflow"),
    ],
)
def test_wrong_questions_are_refused(house: "House", api: Open, query: dict[str, str], field: str) -> None:
    answer = api(house.keys["admin"]).get("/metrics/runs", params=query)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["path"].startswith(field)


def test_too_many_groups_are_refused(house: "House", api: Open) -> None:
    from kernel.context import tenant_scope
    from runs.models import Rollup
    from runs.queries.metrics import NO_AGENT, NO_SLOT

    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    with tenant_scope(house.id):
        Rollup.objects.bulk_create(
            Rollup(
                hour=hour, project_id=house.project_id, agent_id=NO_AGENT, workflow=f"w{number}", workflow_version="1",
                agent_version="1", metric="runs_created", name="", slot=NO_SLOT, count=1, total=0,
            )
            for number in range(1001)
        )  # fmt: skip
    client = api(house.keys["admin"])
    assert client.get("/metrics/runs", params={"group_by": "workflow"}).status_code == 422
    assert client.get("/metrics/runs").json()["items"][0]["created"] == 1001


def test_a_bound_key_measures_what_it_may_see(house: "House", api: Open) -> None:
    from kernel import actor, clock
    from kernel.context import tenant_scope
    from tenancy import operations as tenancy_ops

    who, now = actor.system("tests"), clock.now()
    with tenant_scope(house.id):
        project = tenancy_ops.create_project(tenant=house.id, slug="second", name="Second", actor=who, now=now)
        bound = tenancy_ops.issue_key(
            tenant=house.id, name="bound", scopes=("metrics:read",), project_ids=[project.id], actor=who, now=now
        )
        bare = tenancy_ops.issue_key(tenant=house.id, name="bare", scopes=("runs:read",), actor=who, now=now)
    Worker(house, key="admin").start("a", project="main", workflow="hidden")
    Worker(house, key="admin").start("a", project="second", workflow="shown")
    count_all(house)
    rows = api(bound.secret).get("/metrics/runs", params={"group_by": "workflow"}).json()["items"]
    assert [row["workflow"] for row in rows] == ["shown"]
    assert [row["runnable"] for row in api(bound.secret).get("/metrics/queues").json()["items"]] == [1]
    assert api(bare.secret).get("/metrics/runs").status_code == 403


def test_quantiles_are_as_near_as_they_say() -> None:
    from runs.queries.metrics import quantile, slot

    dice = random.Random(1)
    for scale in (0.01, 1, 300, 50_000):
        values = sorted(dice.lognormvariate(0, 1) * scale for _ in range(5000))
        slots = Counter(map(slot, values))
        for share in (0.5, 0.95, 0.99):
            exact = values[int(len(values) * share + 0.5) - 1]
            found = quantile(slots, share)
            assert found is not None
            assert 1 / 1.0915 < found / exact < 1.0915, (scale, share)
    assert quantile({}, 0.5) is None


def test_the_operator_sees_sums_and_no_names(house: "House", settings: Any) -> None:
    from django.test import Client

    worker = Worker(house)
    worker.start("secretive-step", workflow="secretive")
    act(worker, house, "succeed")
    count_all(house)
    settings.METRICS_TOKEN = ""
    assert Client().get("/metrics", headers={"Authorization": "Bearer "}).status_code == 404
    settings.METRICS_TOKEN = "operators-token"
    for sent in (
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer é"},
        {"Authorization": f"Bearer {house.keys['admin']}"},
    ):
        assert Client().get("/metrics", headers=sent).status_code == 404
    answer = Client().get("/metrics", headers={"Authorization": "Bearer operators-token"})
    assert answer.status_code == 200
    text = answer.content.decode()
    assert "secretive" not in text
    assert house.slug not in text
    from prometheus_client.parser import text_string_to_metric_families

    found = {sample.name: sample for family in text_string_to_metric_families(text) for sample in family.samples}
    assert found["smriti_runs_created_total"].value >= 1
    assert found["smriti_runs_ended_seconds_count"].value >= 1
    assert found["smriti_incidents_total"].labels == {}
    assert {"smriti_queue_age_seconds", "smriti_audit_entries_unsealed", "smriti_leases_expired"} <= set(found)


def test_many_runs_are_counted_in_bounded_batches(house: "House", proof: bool) -> None:
    from runs import operations

    number = 10_000 if proof else 200
    worker = Worker(house)
    for _ in range(number):
        worker.queue = uuid.uuid4().hex
        worker.start("a")
    operations.advance_feed(tenant=house.id)
    begun = time.monotonic()
    counted, more = operations.count_tenant(tenant=house.id, limit=150)
    assert (counted, more) == (150, True)
    count_all(house)
    print(f"{number - 150} events counted in {time.monotonic() - begun:.1f} s")
    assert stored(house)[0] == {("runs_created", ""): number}


def test_the_task_counts_every_tenant(house: "House", other_house: "House") -> None:
    from runs.tasks import count_metrics

    Worker(house).start("a")
    Worker(other_house).start("a")
    count_metrics()
    assert stored(house)[0] == stored(other_house)[0] == {("runs_created", ""): 1}
