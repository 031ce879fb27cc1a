"""Who gets work when: priorities, turns, capabilities, limits, and claims that are repeated."""

import random
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kernel.context import tenant_scope
from runs import operations
from runs.models import Queue
from tests.cast import House, client
from tests.runs.driver import Worker, expire, tamperer


class Crew:
    """Workers of one tenant that share a client."""

    def __init__(self, house: House, *, key: str = "agent") -> None:
        self.house = house
        self.http = client(house.keys[key])

    def start(self, *steps: Any, **extra: Any) -> str:
        """A run of parallel steps, each a name or its definition."""
        plan = [{"queue": "q", **(step if isinstance(step, dict) else {"name": step})} for step in steps]
        body = {"workflow": "t", "workflow_version": "1", "steps": plan, **extra}
        answer = self.http.post("/runs", json=body, headers={"Idempotency-Key": uuid.uuid4().hex})
        assert answer.status_code == 201, answer.text
        run: str = answer.json()["id"]
        return run

    def claim(self, *queues: str, key: str | None = None, **extra: Any) -> Any:
        body = {"worker": "w", "queues": queues or ("q",), "lease_seconds": 600, **extra}
        answer = self.http.post("/work/claim", json=body, headers={} if key is None else {"Idempotency-Key": key})
        assert answer.status_code in (200, 204), answer.text
        return answer.json() if answer.status_code == 200 else None

    def take(self, count: int, *queues: str) -> list[str]:
        return [self.claim(*queues)["step"]["name"] for _ in range(count)]

    def end(self, work: Any, **step: Any) -> None:
        body = {"lease": work["lease"], "epoch": work["epoch"], "step": {"outcome": "succeeded", **step}}
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        answer = self.http.post(f"/runs/{work['run']['id']}/commit", json=body, headers=headers)
        assert answer.status_code == 200, answer.text

    def limit(self, name: str = "q", **limits: Any) -> None:
        with tenant_scope(self.house.id):
            Queue.objects.update_or_create(name=name, defaults=limits)


@pytest.fixture
def crew(house: House) -> Crew:
    return Crew(house)


class TestOrder:
    def test_priority_comes_before_turns(self, crew: Crew) -> None:
        crew.start("a", "b", {"name": "urgent", "priority": 1})
        crew.start({"name": "most", "priority": 100}, {"name": "least", "priority": -100})
        assert crew.take(5) == ["most", "urgent", "a", "b", "least"]

    def test_steps_of_one_run_keep_their_order(self, crew: Crew) -> None:
        crew.start(*[f"s{i}" for i in range(20)])
        assert crew.take(20) == [f"s{i}" for i in range(20)]

    def test_a_later_run_takes_turns_with_a_large_one(self, crew: Crew) -> None:
        crew.start(*[f"big{i}" for i in range(50)])
        crew.take(10)
        crew.start("one", "two", "three")
        assert crew.take(7) == ["big10", "one", "big11", "two", "big12", "three", "big13"]

    def test_ten_thousand_steps_do_not_hold_up_a_run_with_one(self, crew: Crew, proof: bool) -> None:
        crew.start(*[f"big{i}" for i in range(10_000 if proof else 2_000)])
        crew.take(5)
        for number in range(5):
            crew.start(f"small{number}")
            assert f"small{number}" in crew.take(2)

    def test_three_runs_share_a_queue_evenly(self, crew: Crew) -> None:
        for name in ("x", "y", "z"):
            crew.start(*[f"{name}{i}" for i in range(10)])
        order = crew.take(30)
        for start in range(0, 30, 3):
            assert {name[0] for name in order[start : start + 3]} == {"x", "y", "z"}

    def test_nobody_starves_under_a_steady_stream_of_new_runs(self, crew: Crew) -> None:
        """For every claim a new run comes, so that there is ever more to do. What came first ends in its share of the turns."""
        crew.start(*[f"old{i}" for i in range(8)])
        order = []
        for number in range(45):
            crew.start(f"new{number}")
            order += crew.take(1)
        assert sum(name.startswith("old") for name in order) == 8
        assert order.index("new0") < 4, "and the new ones are not held up by it"

    def test_a_step_that_follows_one_of_a_busier_queue_does_not_starve(self, crew: Crew) -> None:
        """The turns of one queue say nothing about another."""
        crew.start(*[f"busy{i}" for i in range(40)])
        crew.take(40)
        crew.start({"name": "first"}, {"name": "then", "queue": "calm", "depends_on": ["first"]})
        crew.end(crew.claim())
        order = []
        for number in range(6):
            crew.start({"name": f"new{number}", "queue": "calm"})
            order += crew.take(1, "calm")
        assert "then" in order[:2]

    def test_a_large_run_in_one_queue_is_not_last_in_another(self, crew: Crew) -> None:
        crew.start(*[f"busy{i}" for i in range(40)], {"name": "other", "queue": "calm"})
        order = []
        for number in range(6):
            crew.start({"name": f"new{number}", "queue": "calm"})
            order += crew.take(1, "calm")
        assert "other" in order[:2]

    def test_a_retried_step_comes_behind_its_run_and_not_before_others(self, crew: Crew) -> None:
        crew.start("a", "b", "c")
        crew.start("other")
        work = crew.claim()
        crew.end(work, outcome="released")
        assert crew.take(4) == ["other", "b", "c", "a"]


class TestQueues:
    def test_the_most_urgent_of_several_queues_is_taken(self, crew: Crew) -> None:
        crew.start({"name": "calm", "queue": "one"}, {"name": "urgent", "queue": "two", "priority": 9})
        assert crew.take(2, "one", "two") == ["urgent", "calm"]

    def test_several_queues_of_one_priority_share(self, crew: Crew) -> None:
        """An old queue, whose turns are far ahead, and a young one that always has work."""
        crew.start(*[{"name": f"old{i}", "queue": "one"} for i in range(30)])
        crew.take(20, "one")
        crew.start(*[{"name": f"young{i}", "queue": "two"} for i in range(30)])
        order = crew.take(40, "two", "one")
        assert len(set(order)) == 40
        assert {name.rstrip("0123456789") for name in order[:20]} == {"old", "young"}

    def test_the_same_queue_twice_is_one(self, crew: Crew) -> None:
        crew.start("a")
        assert crew.take(1, "q", "q") == ["a"]
        assert crew.claim("q", "q") is None

    def test_a_step_is_given_to_who_can_do_it(self, crew: Crew) -> None:
        crew.start({"name": "both", "requires": ["gpu", "pdf"]}, {"name": "gpu", "requires": ["gpu"]}, "any")
        assert crew.claim(capabilities=["pdf"])["step"]["name"] == "any"
        assert crew.claim(capabilities=["pdf"]) is None
        assert crew.claim(capabilities=["gpu"])["step"]["name"] == "gpu"
        assert crew.claim(capabilities=["gpu"]) is None
        assert crew.claim(capabilities=["x", "pdf", "gpu"])["step"]["name"] == "both"

    def test_a_claim_for_one_run_takes_of_it_alone(self, crew: Crew) -> None:
        crew.start("a", "b")
        wanted = crew.start("c", "d")
        found = [crew.claim(run_id=wanted) for _ in range(3)]
        assert [work and work["step"]["name"] for work in found] == ["c", "d", None]

    def test_a_run_of_another_tenant_cannot_be_claimed(self, crew: Crew, other_house: House) -> None:
        run = crew.start("a")
        assert Crew(other_house).claim(run_id=run) is None
        assert Crew(other_house).claim() is None


class TestLimits:
    def test_a_paused_queue_gives_nothing_and_others_do(self, crew: Crew) -> None:
        crew.start("a", {"name": "b", "queue": "other"})
        crew.limit(paused=True)
        assert crew.claim() is None
        assert crew.take(1, "q", "other") == ["b"]
        crew.limit(paused=False)
        assert crew.take(1) == ["a"]

    def test_what_is_leased_is_limited_and_comes_back(self, crew: Crew) -> None:
        crew.start(*[f"s{i}" for i in range(5)])
        crew.limit(max_leased=2)
        held = [crew.claim(), crew.claim()]
        assert crew.claim() is None
        crew.end(held[0])
        assert crew.claim()
        assert crew.claim() is None
        crew.end(held[1], outcome="waiting", wait={"timer": {"seconds": 60}})
        assert crew.claim(), "who waits holds no lease"
        assert crew.claim() is None

    def test_a_lost_lease_makes_room(self, crew: Crew) -> None:
        crew.start("a", "b")
        crew.limit(max_leased=1)
        expire(crew.claim()["lease"])
        assert crew.claim() is None, "until the sweep has judged its effects"
        operations.sweep()
        assert crew.claim()

    def test_thirty_two_claimers_never_hold_more_than_the_limit(self, crew: Crew) -> None:
        for _ in range(8):
            crew.start(*[f"s{i}" for i in range(8)])
        crew.limit(max_leased=5)
        with ThreadPoolExecutor(32) as threads:
            found = [work for work in threads.map(lambda _: crew.claim(), range(64)) if work]
        assert 1 <= len(found) <= 5
        while work := crew.claim():
            found.append(work)
        assert len(found) == 5

    def test_a_rate_has_its_burst_and_refills(self, crew: Crew) -> None:
        crew.start(*[f"s{i}" for i in range(9)])
        crew.limit(rate_per_minute=1, burst=3)
        assert [bool(crew.claim()) for _ in range(5)] == [True, True, True, False, False]
        with tamperer() as database:
            database.execute(
                "update runs_queue set refilled_at = refilled_at - interval '2 minutes' where tenant_id = %s and name = 'q'",
                [crew.house.id],
            )
        assert [bool(crew.claim()) for _ in range(3)] == [True, True, False]

    def test_a_rate_is_kept_by_many_at_once(self, crew: Crew) -> None:
        for _ in range(16):
            crew.start("a", "b")
        crew.limit(rate_per_minute=1, burst=4)
        with ThreadPoolExecutor(16) as threads:
            found = [work for work in threads.map(lambda _: crew.claim(), range(32)) if work]
        while work := crew.claim():
            found.append(work)
        assert len(found) == 4

    def test_a_claim_that_finds_nothing_costs_nothing_of_the_rate(self, crew: Crew) -> None:
        crew.start("a")
        crew.limit(rate_per_minute=1, burst=2)
        assert crew.claim()
        assert [crew.claim() for _ in range(3)] == [None] * 3
        crew.start("b")
        assert crew.claim()

    def test_all_queues_of_a_tenant_are_limited_together(self, crew: Crew, other_house: House) -> None:
        crew.start(*[{"name": f"s{i}", "queue": f"q{i % 3}"} for i in range(9)])
        crew.limit("*", max_leased=4)
        names = ("q0", "q1", "q2")
        with ThreadPoolExecutor(16) as threads:
            found = [work for work in threads.map(lambda n: crew.claim(names[n % 3]), range(32)) if work]
        while work := crew.claim(*names):
            found.append(work)
        assert len(found) == 4
        other = Crew(other_house)
        other.start("a")
        assert other.claim(), "another tenant has limits of its own"
        crew.limit("*", max_leased=None, paused=True)
        assert crew.claim(*names) is None
        crew.limit("*", paused=False, rate_per_minute=1, burst=1)
        assert crew.claim(*names)
        assert crew.claim(*names) is None

    def test_limited_queues_in_any_order_do_not_lock_each_other_out(self, crew: Crew) -> None:
        """Full queues are asked for in every order by many at once; each claim is answered."""
        names = [f"q{i}" for i in range(4)]
        crew.start(*[{"name": f"s{i}", "queue": names[i % 4]} for i in range(40)])
        for name in names:
            crew.limit(name, max_leased=1)
        for name in names[:3]:
            assert crew.claim(name)

        def ask(seed: int) -> Any:
            order = names.copy()
            random.Random(seed).shuffle(order)
            return crew.claim(*order)

        with ThreadPoolExecutor(16) as threads:
            found = [work for work in threads.map(ask, range(96)) if work]
        assert len(found) <= 1

    def test_the_limit_of_one_queue_is_not_charged_to_another(self, crew: Crew) -> None:
        crew.start({"name": "b", "queue": "free"})
        crew.start({"name": "a", "priority": 5, "requires": ["gpu"]})
        crew.limit(rate_per_minute=60, burst=5)
        assert crew.take(1, "q", "free") == ["b"]
        with tenant_scope(crew.house.id):
            assert Queue.objects.get(name="free").tokens is None


class TestRepeatedClaims:
    def test_the_same_key_is_given_the_same_lease_while_it_is_held(self, crew: Crew) -> None:
        crew.start("a", "b")
        first = crew.claim(key="k")
        assert crew.claim(key="k") == first
        assert crew.claim(key="l")["lease"] != first["lease"]
        crew.end(first)
        assert crew.claim(key="k") is None

    def test_raced_it_is_one_lease(self, crew: Crew) -> None:
        for _ in range(8):
            crew.start("a", "b")
        with ThreadPoolExecutor(16) as threads:
            found = list(threads.map(lambda _: crew.claim(key="k"), range(16)))
        assert len({work["lease"] for work in found}) == 1
        assert sum(1 for _ in iter(crew.claim, None)) == 15

    def test_an_expired_lease_is_not_given_again(self, crew: Crew) -> None:
        crew.start("a", "b")
        first = crew.claim(key="k")
        expire(first["lease"])
        assert crew.claim(key="k")["lease"] != first["lease"]

    def test_another_worker_or_key_does_not_get_it(self, house: House, crew: Crew) -> None:
        crew.start("a")
        assert crew.claim(key="k")
        assert crew.claim(key="k", worker="v") is None
        assert Crew(house, key="admin").claim(key="k") is None

    def test_what_woke_the_step_is_said_again(self, crew: Crew) -> None:
        run = crew.start("a")
        work = crew.claim()
        crew.http.post(f"/runs/{run}/signals", json={"name": "s", "payload": 7}, headers={"Idempotency-Key": "s"})
        crew.end(work, outcome="waiting", wait={"signal": {"name": "s"}})
        first = crew.claim(key="k")
        assert first["wake"] == {"reason": "signal", "payload": 7}
        assert crew.claim(key="k") == first


def test_thirty_two_workers_share_one_run_and_each_step_is_taken_once(house: House) -> None:
    crew = Crew(house)
    crew.start(*[f"s{i}" for i in range(64)])
    with ThreadPoolExecutor(32) as threads:
        found = [work for work in threads.map(lambda _: crew.claim(), range(64)) if work]
    while work := crew.claim():
        found.append(work)
    assert sorted(work["step"]["name"] for work in found) == sorted(f"s{i}" for i in range(64))
    worker = Worker(house)
    worker.run = found[0]["run"]["id"]
    assert worker.get("/verify")["ok"]
