"""Resuming: six steps as a plan, other workflow versions by registered migrations, and clear refusals."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

import httpx
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from hypothesis import given
from hypothesis import strategies as st

from kernel import clock
from kernel.context import tenant_scope
from runs import queries
from runs.queries.compatibility import find_gap, find_way
from tests.cast import House, client
from tests.runs.driver import Worker, tamperer

Open = Callable[[str | None], httpx.Client]

ONE_TO_TWO = {
    "from": 1,
    "to": 2,
    "patch": [{"op": "move", "from": "/rows", "path": "/invoices"}],
    "description": "named",
}
TWO_TO_THREE = {
    "from": 2, "to": 3,
    "patch": [{"op": "test", "path": "/n", "value": 7.0}, {"op": "add", "path": "/currency", "value": "INR"}],
}  # fmt: skip
SHAPE_3 = {"type": "object", "required": ["invoices", "currency"], "properties": {"invoices": {"type": "array"}}}


class Case:
    """A run of workflow version 1 with a state of schema 1, and a key that registers."""

    def __init__(self, house: House) -> None:
        self.admin = client(house.keys["admin"])
        self.worker = Worker(house)
        self.run = self.worker.start("fetch", "pay")
        self.worker.claim()
        self.worker.commit(
            checkpoint={"state": {"rows": [1, 2], "n": 7, "note": "x" * 200}}, step={"outcome": "succeeded"}
        )

    def register(self, version: str, **definition: Any) -> None:
        answer = self.admin.put(f"/workflows/test/versions/{version}", json=definition)
        assert answer.status_code == 200, answer.text

    def resume(self, **body: Any) -> Any:
        answer = self.worker.http.post(f"/runs/{self.run}/resume", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def refused(self, **body: Any) -> tuple[int, str]:
        answer = self.worker.http.post(f"/runs/{self.run}/resume", json=body)
        return answer.status_code, answer.json()["code"]


@pytest.fixture
def case(house: House) -> Case:
    return Case(house)


class TestThePlan:
    def test_without_a_body_it_is_that_of_the_runs_own_version(self, case: Case) -> None:
        plan = case.worker.http.post(f"/runs/{case.run}/resume").json()
        assert plan == case.resume()
        assert (plan["version_check"]["status"], plan["workflow_version"], plan["applied"]) == (
            "compatible",
            "1",
            False,
        )
        assert plan["checkpoint"] == {"version": 1, "seq": 4, "skipped": [], "missing": []}
        assert plan["since"] == {"step_succeeded": 1}
        [step] = plan["next"]
        assert (step["name"], step["action"], step["attempt"], step["retry"]["max_attempts"]) == ("pay", "claim", 1, 5)
        assert step["advice"] == "Claim it: this is attempt 1 of 5."
        assert plan["advice"].startswith("Load checkpoint 1, claim the step")

    def test_what_a_step_waits_for_and_its_own_policy(self, case: Case) -> None:
        case.worker.claim()
        more = [{"name": "later", "queue": case.worker.queue, "retry": {"initial_seconds": 9}, "deadline_seconds": 60}]
        case.worker.commit(new_steps=more, step={"outcome": "waiting", "wait": {"signal": {"name": "answer"}}})
        waiting, later = case.resume()["next"]
        assert (waiting["action"], waiting["waits_for"]) == ("wait", "signal")
        assert waiting["advice"] == "It goes on with the signal it waits for."
        assert (later["retry"]["initial_seconds"], later["retry"]["deadline_seconds"]) == (9, 60)

    def test_the_effects_since_the_checkpoint(self, case: Case, house: House) -> None:
        case.admin.put("/tools/bank/versions/1", json={"side_effect": "irreversible"})
        case.worker.claim()
        held = {"lease": case.worker.lease, "epoch": case.worker.epoch, "tool": "bank", "input": {}}
        made = {}
        for name in ("done", "failed", "reconcile", "leave"):
            answer = case.worker.http.post(
                f"/runs/{case.run}/effects", json=held | {"business_object": name}, headers={"Idempotency-Key": name}
            )
            assert answer.json()["decision"] == "execute", answer.text
            made[name] = answer.json()["effect"]
        error = {"class": "permanent"}
        for name, outcome in (("done", {"outcome": "succeeded", "output": {}}), ("failed", {"outcome": "failed", "error": error}),
                              ("reconcile", {"outcome": "unknown"})):  # fmt: skip
            case.worker.commit(effects=[{"effect": made[name], **outcome}])
        plan = case.resume()
        assert {effect["effect"]: effect["action"] for effect in plan["effects"]} == {made[n]: n for n in made}
        assert {effect["step"] for effect in plan["effects"]} == {"pay"}
        assert "Learn what became of the effects" in plan["advice"]
        carried = case.admin.post(
            f"/runs/{case.run}/fork", json={"reason": "r"}, headers={"Idempotency-Key": "f"}
        ).json()
        assert carried["carried_effects"] == []  # begun after the checkpoint
        case.worker.commit(checkpoint={"patch": [{"op": "add", "path": "/paid", "value": True}]})
        carried = case.admin.post(
            f"/runs/{case.run}/fork", json={"reason": "r"}, headers={"Idempotency-Key": "g"}
        ).json()
        assert {e["effect"] for e in carried["carried_effects"]} == {made["reconcile"], made["leave"]}
        assert {e["effect"] for e in case.resume()["effects"]} == {made["reconcile"], made["leave"]}

    def test_a_corrupted_latest_checkpoint_is_skipped_and_reported_and_the_one_before_used(self, case: Case) -> None:
        case.worker.claim()
        case.worker.commit(checkpoint={"state": {"rows": [1], "text": "y" * 200}})
        with tamperer() as disks:
            disks.execute(
                """update runs_checkpoint set body = set_byte(body, 40, get_byte(body, 40) # 255)
                   where run_id = %s and version = 2""",
                [case.run],
            )
        plan = case.resume()
        assert (plan["checkpoint"]["version"], plan["checkpoint"]["skipped"], plan["chain_ok"]) == (1, [2], True)
        assert "what they held is lost" in plan["advice"]
        # That it was changed is not hidden: the whole log does not verify.
        assert case.worker.get("/verify")["ok"] is False

    def test_a_missing_latest_checkpoint_is_reported(self, case: Case) -> None:
        case.worker.claim()
        case.worker.commit(checkpoint={"patch": [{"op": "replace", "path": "/n", "value": 8}]})
        seq = case.worker.get("/events")["last_seq"]
        with tamperer() as disks:
            disks.execute("delete from runs_checkpoint where run_id = %s and version = 2", [case.run])
        plan = case.resume()
        assert plan["checkpoint"] == {"version": 1, "seq": 4, "skipped": [], "missing": [seq]}

    def test_a_changed_event_stops_it(self, case: Case) -> None:
        with tamperer() as disks:
            disks.execute("update runs_event set type = 'note' where run_id = %s and seq = 5", [case.run])
        plan = case.resume()
        assert (plan["chain_ok"], plan["bad_seq"]) == (False, 5)
        case.register("2", state_schema=1)
        assert case.refused(workflow_version="2", apply=True) == (409, "chain_broken")

    def test_what_the_tools_are(self, case: Case) -> None:
        case.register("2", state_schema=1, tools={"pay": "1"})
        for version in ("1", "2", "3"):
            case.admin.put(f"/tools/pay/versions/{version}", json={"side_effect": "none"})
        case.admin.patch("/tools/pay/versions/3", json={"enabled": False, "reason": "wrong"})
        found = [
            case.resume(workflow_version="2", tools={"pay": version})["version_check"]["tools"][0]["status"]
            for version in ("1", "2", "3", "4")
        ]
        assert found == ["known", "untested", "disabled", "unregistered"]

    def test_a_plan_costs_a_fixed_number_of_queries(self, case: Case, house: House) -> None:
        def count() -> int:
            with tenant_scope(house.id), CaptureQueriesContext(connection) as made:
                queries.resume_plan(tenant=house.id, run_id=UUID(case.run), now=clock.now())
            return len(made)

        few = count()
        case.worker.claim()
        for number in range(30):
            case.worker.commit(
                events=[{"type": "note"}], new_steps=[{"name": f"s{number}", "queue": case.worker.queue}]
            )
        assert (few, count()) == (14, 14)


class TestOtherVersions:
    def test_version_1_with_schema_1_goes_on_under_version_3_through_two_migrations(self, case: Case) -> None:
        case.register("2", state_schema=2, migrations=[ONE_TO_TWO])
        case.register("3", state_schema=3, migrations=[TWO_TO_THREE], state_json_schema=SHAPE_3)
        before = case.worker.get("/events")["last_seq"]
        check = case.resume(workflow_version="3")["version_check"]
        assert (check["status"], check["from_schema"], check["to_schema"]) == ("migrate", 1, 3)
        assert [(m["from_schema"], m["to_schema"], m["registered_in"]) for m in check["migrations"]] == [
            (1, 2, "2"), (2, 3, "3"),
        ]  # fmt: skip
        assert {(c["path"], c["kind"], c["before"], c["after"]) for c in check["changes"]} == {
            ("/rows", "removed", "[1,2]", None), ("/invoices", "added", None, "[1,2]"), ("/currency", "added", None, '"INR"'),
        }  # fmt: skip
        assert case.worker.get("/events")["last_seq"] == before  # asking changes nothing

        plan = case.resume(workflow_version="3", apply=True)
        assert (plan["applied"], plan["workflow_version"]) == (True, "3")
        assert plan["checkpoint"] == {"version": 2, "seq": before + 2, "skipped": [], "missing": []}
        state = case.worker.get("/checkpoints/latest")
        assert state["state"] == {"n": 7, "note": "x" * 200, "invoices": [1, 2], "currency": "INR"}
        *_, migrated, stored = case.worker.get("/events")["items"]
        assert (migrated["type"], stored["type"]) == ("state_migrated", "checkpoint_created")
        assert migrated["payload"] == {
            "from": {"workflow_version": "1", "state_schema": 1}, "to": {"workflow_version": "3", "state_schema": 3},
            "migrations": [{"from": 1, "to": 2, "registered_in": "2"}, {"from": 2, "to": 3, "registered_in": "3"}],
        }  # fmt: skip
        assert case.worker.get("/verify")["ok"]
        # A repeated request finds it done, and a worker goes on under the new version, on the new head.
        assert case.resume(workflow_version="3", apply=True)["applied"] is False
        work = case.worker.claim()
        assert (work["run"]["workflow_version"], work["run"]["head"]) == ("3", 2)
        case.worker.commit(
            checkpoint={"patch": [{"op": "add", "path": "/invoices/-", "value": 3}]}, step={"outcome": "succeeded"}
        )
        assert case.worker.get("/checkpoints/latest")["state"]["invoices"] == [1, 2, 3]
        audit = case.admin.get("/audit", params={"action": "run.migrated"}).json()["items"]
        assert [entry["content"] for entry in audit] == [{"from": "1", "to": "3"}]

    @pytest.mark.parametrize(("known", "missing"), [
        ([ONE_TO_TWO], (2, 3)), ([TWO_TO_THREE], (1, 2)), ([], (1, 3)),
    ])  # fmt: skip
    def test_a_missing_migration_is_named_with_the_ways_out(
        self, case: Case, known: list[Any], missing: tuple[int, int]
    ) -> None:
        case.register("3", state_schema=3, migrations=known)
        plan = case.resume(workflow_version="3")
        check = plan["version_check"]
        assert (check["status"], check["reason"]) == ("incompatible", "migration_missing")
        assert check["missing"] == {"from_schema": missing[0], "to_schema": missing[1]}
        sentence = f"no migration from {missing[0]} to {missing[1]} is registered"
        assert sentence in check["detail"]
        assert sentence in plan["advice"]
        assert [way["action"] for way in check["ways_out"]] == ["register_migration", "resume_under", "fork"]
        answer = case.worker.http.post(f"/runs/{case.run}/resume", json={"workflow_version": "3", "apply": True})
        assert (answer.status_code, answer.json()["code"]) == (409, "incompatible_version")
        assert answer.json()["version_check"] == check
        # The way out that it names leads out, with any version of the workflow.
        wanted = {"from": missing[0], "to": missing[1], "patch": []}
        case.register("3.1", state_schema=3, migrations=[wanted])
        assert case.resume(workflow_version="3", apply=True)["applied"] is True

    def test_an_unknown_and_a_disabled_version(self, case: Case) -> None:
        assert case.resume(workflow_version="9")["version_check"]["reason"] == "unknown_version"
        case.register("2", state_schema=1)
        case.admin.patch("/workflows/test/versions/2", json={"enabled": False, "reason": "wrong"})
        assert case.resume(workflow_version="2")["version_check"]["reason"] == "version_disabled"
        assert case.refused(workflow_version="2", apply=True) == (409, "incompatible_version")

    def test_a_migration_that_does_not_fit_the_state(self, case: Case) -> None:
        patch = [{"op": "test", "path": "/n", "value": 7}, {"op": "remove", "path": "/absent"}]
        case.register("2", state_schema=2, migrations=[{"from": 1, "to": 2, "patch": patch}])
        check = case.resume(workflow_version="2")["version_check"]
        assert (check["status"], check["reason"]) == ("incompatible", "migration_failed")
        assert "operation 1: '/absent' does not exist" in check["detail"]

    def test_a_state_that_has_not_the_new_shape(self, case: Case) -> None:
        case.register("2", state_schema=2, migrations=[ONE_TO_TWO], state_json_schema=SHAPE_3)
        check = case.resume(workflow_version="2")["version_check"]
        assert (check["status"], check["reason"]) == ("incompatible", "state_invalid")
        assert [(error["path"], error["code"]) for error in check["errors"]] == [("/currency", "missing_field")]

    def test_of_two_migrations_that_of_the_wanted_version_or_else_the_newest_is_taken(self, case: Case) -> None:
        def way(value: str) -> Any:
            return [{"from": 1, "to": 2, "patch": [{"op": "add", "path": "/by", "value": value}]}]

        case.register("2", state_schema=2, migrations=way("2"))
        case.register("2.1", state_schema=2, migrations=way("2.1"))
        case.register("2.2", state_schema=2)
        [used] = case.resume(workflow_version="2")["version_check"]["migrations"]
        assert (used["registered_in"], used["instead_of"]) == ("2", ["2.1"])
        [used] = case.resume(workflow_version="2.2")["version_check"]["migrations"]
        assert (used["registered_in"], used["instead_of"]) == ("2.1", ["2"])
        # A version that is switched off contributes nothing.
        case.admin.patch("/workflows/test/versions/2.1", json={"enabled": False, "reason": "wrong"})
        [used] = case.resume(workflow_version="2.2")["version_check"]["migrations"]
        assert used["registered_in"] == "2"

    def test_a_version_of_the_same_schema_needs_no_migration(self, case: Case) -> None:
        case.register("2", state_schema=1)
        assert case.resume(workflow_version="2")["version_check"]["status"] == "compatible"
        assert case.resume(workflow_version="2", apply=True)["applied"] is True
        assert case.worker.claim()["run"]["workflow_version"] == "2"
        assert case.worker.get("/verify")["ok"]

    def test_a_run_without_a_state(self, house: House) -> None:
        case = Case.__new__(Case)
        case.admin, case.worker = client(house.keys["admin"]), Worker(house)
        case.run = case.worker.start("only")
        case.register("2", state_schema=2)
        plan = case.resume(workflow_version="2", apply=True)
        assert (plan["applied"], plan["checkpoint"]) == (True, None)
        work = case.worker.claim()
        assert (work["run"]["workflow_version"], work["run"]["head"]) == ("2", 0)
        assert case.worker.get("/verify")["ok"]

    def test_nothing_is_taken_from_under_a_worker(self, case: Case) -> None:
        case.register("2", state_schema=1)
        case.worker.claim()
        assert case.refused(workflow_version="2", apply=True) == (409, "run_busy")
        case.worker.commit(step={"outcome": "succeeded"})
        assert case.refused(workflow_version="2", apply=True) == (409, "run_finished")

    def test_a_damaged_newest_state_is_not_what_is_migrated(self, case: Case) -> None:
        case.register("2", state_schema=2, migrations=[ONE_TO_TWO])
        case.worker.claim()
        case.worker.commit(checkpoint={"state": {"rows": [9], "text": "y" * 200}})
        case.worker.commit(step={"outcome": "failed", "error": {"class": "permanent"}})
        with tamperer() as disks:
            disks.execute("update runs_checkpoint set body = '\\x00' where run_id = %s and version = 2", [case.run])
        assert case.resume(workflow_version="2", apply=True)["applied"] is True
        state = case.worker.get("/checkpoints/latest")
        assert (state["version"], state["state"]["invoices"], state["skipped"]) == (3, [1, 2], [])

    def test_who_may(self, case: Case, house: House, other_house: House, api: Open) -> None:
        case.register("2", state_schema=1)
        body = {"workflow_version": "2", "apply": True}
        reader = case.admin.post("/keys", json={"name": "r", "scopes": ["runs:read"]}).json()["secret"]
        assert api(reader).post(f"/runs/{case.run}/resume", json={"workflow_version": "2"}).status_code == 200
        assert api(reader).post(f"/runs/{case.run}/resume", json=body).status_code == 403
        stranger = api(other_house.keys["admin"]).post(f"/runs/{case.run}/resume", json=body)
        assert stranger.status_code == 404
        assert api(house.keys["operator"]).post(f"/runs/{case.run}/resume", json=body).json()["applied"] is True

    def test_migrations_of_another_tenant_do_not_count(self, case: Case, other_house: House) -> None:
        with client(other_house.keys["admin"]) as stranger:
            stranger.put("/workflows/test/versions/2", json={"state_schema": 2, "migrations": [ONE_TO_TWO]})
        assert case.resume(workflow_version="2")["version_check"]["reason"] == "unknown_version"


EDGES = st.sets(st.tuples(st.integers(0, 6), st.integers(0, 6)).filter(lambda edge: edge[0] != edge[1]), max_size=12)


@given(EDGES, st.integers(0, 6), st.integers(0, 6))
def test_a_way_is_found_exactly_when_there_is_one_and_a_gap_closes_it(
    edges: set[tuple[int, int]], start: int, end: int
) -> None:
    reached, grown = {start}, True
    while grown:
        more = {target for source, target in edges if source in reached} - reached
        reached, grown = reached | more, bool(more)
    way = find_way(edges, start, end)
    assert (way is not None) == (end in reached)
    if way is None:
        assert find_way({*edges, find_gap(edges, start, end)}, start, end) is not None
        return
    assert set(way) <= edges
    assert [start, *(target for _, target in way)] == [*(source for source, _ in way), end]
    assert len({source for source, _ in way}) == len(way)
