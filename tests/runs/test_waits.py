"""Steps that wait: for time, a signal, another run. None misses what it waits for, and none costs an attempt."""

import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from runs import operations
from tests.cast import House, client
from tests.runs.driver import Worker, pass_time, register, settle, tamperer


@pytest.fixture
def worker(house: House) -> Worker:
    worker = Worker(house)
    worker.start("a", "b")
    worker.claim()
    return worker


def wait_for_lock(how_many: int) -> None:
    """Until so many transactions wait for a lock of another."""
    with tamperer() as database:
        for _ in range(1000):
            row = database.execute("select count(*) from pg_locks where not granted").fetchone()
            if row is not None and row[0] >= how_many:
                return
            time.sleep(0.01)
    raise AssertionError("nobody waits")


def operate(house: House, path: str, **body: Any) -> Any:
    with client(house.keys["operator"]) as operator:
        answer = operator.post(path, json={"reason": "because", **body})
    assert answer.is_success, answer.text
    return answer.json() if answer.content else None


class TestTimers:
    def test_a_timer_in_seconds_wakes_the_step_when_it_is_over(self, worker: Worker) -> None:
        assert worker.wait(timer={"seconds": 3600})["run_status"] == "waiting"
        assert worker.status() == ("waiting", "timer")
        step = worker.step("a")
        assert (step["status"], step["wait"], step["attempts"]) == ("waiting", "timer", 0)
        operations.sweep()
        assert worker.idle(), "not before its time"
        pass_time(worker.run)
        assert worker.status() == ("running", None)
        work = worker.claim()
        assert (work["wake"], work["step"]["attempt"], work["epoch"]) == ({"reason": "timer"}, 1, 2)
        assert worker.types()[-3:] == ["step_waiting", "step_woken", "step_leased"]
        assert worker.get("/verify")["ok"]

    def test_a_timer_until_a_moment_is_due_then(self, worker: Worker) -> None:
        until = datetime.now(UTC).replace(microsecond=0) + timedelta(days=40)
        worker.wait(timer={"until": until.isoformat().replace("+00:00", "Z")})
        assert datetime.fromisoformat(worker.step("a")["due_at"]) == until

    def test_a_timer_of_the_past_is_over_at_once(self, worker: Worker) -> None:
        done = worker.wait(timer={"until": "2001-01-01T00:00:00Z"})
        assert done["run_status"] == "running"
        assert worker.claim()["wake"] == {"reason": "timer"}
        worker.wait(timer={"seconds": 0})
        assert worker.claim()["wake"] == {"reason": "timer"}

    def test_waiting_costs_no_attempt(self, house: House) -> None:
        worker = Worker(house)
        worker.run = worker.http.post(
            "/runs",
            json={
                "workflow": "t",
                "workflow_version": "1",
                "steps": [{"name": "a", "queue": worker.queue, "max_attempts": 1}],
            },
            headers={"Idempotency-Key": "k"},
        ).json()["id"]
        for number in range(1, 6):
            work = worker.claim()
            assert (work["step"]["attempt"], work["epoch"]) == (1, number)
            worker.wait(timer={"seconds": 0})
        worker.claim()
        assert worker.commit(step={"outcome": "succeeded"})["run_status"] == "completed"

    def test_a_released_lease_is_runnable_at_once_and_costs_no_attempt(self, worker: Worker) -> None:
        done = worker.commit(step={"outcome": "released"})
        assert done["run_status"] == "running"
        work = worker.claim()
        assert (work["step"]["attempt"], work["epoch"], work["resumed"]) == (1, 2, True)
        assert "lease_released" in worker.types()

    def test_two_sweeps_wake_a_step_once(self, worker: Worker) -> None:
        worker.wait(timer={"seconds": 3600})
        with tamperer() as database:
            database.execute(
                "update runs_step set due_at = clock_timestamp() where run_id = %s and status = 'waiting'", [worker.run]
            )
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda _: operations.sweep(), range(4)))
        assert worker.types().count("step_woken") == 1

    @pytest.mark.parametrize(
        ("step", "path"),
        [
            ({"outcome": "waiting"}, "/step/wait"),
            ({"outcome": "succeeded", "wait": {"timer": {"seconds": 1}}}, "/step/wait"),
            ({"outcome": "waiting", "wait": {}}, "/step/wait"),
            ({"outcome": "waiting", "wait": {"timer": {"seconds": 1}, "signal": {"name": "s"}}}, "/step/wait"),
            ({"outcome": "waiting", "wait": {"timer": {}}}, "/step/wait/timer"),
            (
                {"outcome": "waiting", "wait": {"timer": {"seconds": 1, "until": "2030-01-01T00:00:00Z"}}},
                "/step/wait/timer",
            ),
        ],
    )
    def test_a_wait_that_says_nothing_or_two_things_is_refused(
        self, worker: Worker, step: dict[str, Any], path: str
    ) -> None:
        answer = worker.call(lease=worker.lease, epoch=worker.epoch, step=step)
        assert (answer.status_code, answer.json()["errors"][0]["path"]) == (422, path)


class TestSignals:
    def test_a_signal_wakes_the_step_that_waits_for_it(self, worker: Worker) -> None:
        worker.wait(signal={"name": "answer"})
        assert worker.status() == ("waiting", "signal")
        other = worker.signal("question")
        assert (other.status_code, other.json()["woken"]) == (200, False)
        assert worker.status() == ("waiting", "signal")
        sent = worker.signal(payload={"say": "yes"})
        assert sent.json()["woken"]
        assert worker.status() == ("running", None)
        work = worker.claim()
        assert (work["wake"], work["step"]["attempt"]) == ({"reason": "signal", "payload": {"say": "yes"}}, 1)
        assert worker.get("/verify")["ok"]

    def test_one_that_comes_early_is_kept(self, worker: Worker) -> None:
        assert not worker.signal(payload=1).json()["woken"]
        assert worker.wait(signal={"name": "answer"})["run_status"] == "running"
        assert worker.claim()["wake"] == {"reason": "signal", "payload": 1}

    def test_the_first_of_a_name_wins_and_the_next_is_for_the_next_wait(self, worker: Worker) -> None:
        for number in (1, 2, 3):
            worker.signal(payload=number)
        for number in (1, 2, 3):
            worker.wait(signal={"name": "answer"})
            assert worker.claim()["wake"] == {"reason": "signal", "payload": number}
        worker.wait(signal={"name": "answer"})
        assert worker.status() == ("waiting", "signal")

    def test_a_signal_is_given_again_until_its_step_goes_on_to_wait(self, worker: Worker) -> None:
        worker.wait(signal={"name": "answer"})
        worker.signal(payload={"say": "once"})
        given = {"reason": "signal", "payload": {"say": "once"}}
        assert worker.claim()["wake"] == given
        worker.lose()
        assert worker.claim()["wake"] == given, "the worker died before it could act on it"
        worker.commit(step={"outcome": "failed", "error": {"class": "transient"}})
        pass_time(worker.run)
        assert worker.claim()["wake"] == given
        worker.wait(timer={"seconds": 0})
        assert worker.claim()["wake"] == {"reason": "timer"}

    def test_a_signal_is_given_again_after_a_gate(self, worker: Worker, house: House) -> None:
        register(house, approval="always")
        worker.wait(signal={"name": "answer"})
        worker.signal(payload={"say": "pay"})
        worker.claim()
        gate = worker.reserve()["gate"]
        operate(house, f"/gates/{gate}/satisfy")
        assert worker.claim()["wake"] == {"reason": "gate", "payload": {"say": "pay"}}

    def test_a_wait_for_a_signal_ends_in_time(self, worker: Worker) -> None:
        worker.wait(signal={"name": "answer", "timeout_seconds": 60})
        assert worker.step("a")["due_at"] is not None
        pass_time(worker.run)
        assert worker.claim()["wake"] == {"reason": "timeout"}
        assert not worker.signal().json()["woken"], "it is kept for the next wait"

    def test_two_steps_that_wait_take_turns(self, house: House) -> None:
        worker = Worker(house)
        plan = [{"name": name, "queue": worker.queue} for name in ("a", "b")]
        body = {"workflow": "t", "workflow_version": "1", "steps": plan}
        worker.run = worker.http.post("/runs", json=body, headers={"Idempotency-Key": "k"}).json()["id"]
        for _ in range(2):
            worker.claim()
            worker.wait(signal={"name": "answer"})
        assert worker.status() == ("waiting", "signal")
        worker.signal(payload=1)
        assert (worker.step("a")["status"], worker.step("b")["status"]) == ("runnable", "waiting")
        worker.signal(payload=2)
        found = [worker.claim() for _ in range(2)]
        assert [(work["step"]["name"], work["wake"]["payload"]) for work in found] == [("a", 1), ("b", 2)]

    def test_a_repeated_signal_is_the_same_signal(self, worker: Worker) -> None:
        first = worker.signal(key="k", payload=1)
        again = worker.signal(key="k", payload=1)
        assert first.json() == again.json()
        other = worker.signal(key="k", payload=2)
        assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
        assert worker.types().count("signal_received") == 1

    def test_the_answer_to_a_repeated_signal_does_not_change_when_it_is_taken(self, worker: Worker) -> None:
        first = worker.signal(key="k", payload=1)
        worker.wait(signal={"name": "answer"})
        assert worker.signal(key="k", payload=1).json() == first.json()

    def test_a_signal_raced_sixteen_times_is_one(self, worker: Worker) -> None:
        worker.wait(signal={"name": "answer"})
        with ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(lambda _: worker.signal(key="k").json(), range(16)))
        assert all(answer == {"seq": answers[0]["seq"], "woken": True} for answer in answers)
        assert worker.types().count("signal_received") == 1

    def test_signals_and_waits_at_once_lose_none(self, house: House) -> None:
        """Eight steps wait while eight signals come: each step gets one."""
        worker = Worker(house)
        plan = [{"name": f"s{i}", "queue": worker.queue} for i in range(8)]
        body = {"workflow": "t", "workflow_version": "1", "steps": plan}
        worker.run = worker.http.post("/runs", json=body, headers={"Idempotency-Key": "k"}).json()["id"]
        held = []
        for _ in range(8):
            work = worker.claim()
            held.append((work["lease"], work["epoch"]))
        wait = {"outcome": "waiting", "wait": {"signal": {"name": "answer"}}}

        def do(number: int) -> int:
            if number % 2:
                return worker.signal(payload=number // 2).status_code
            lease, epoch = held[number // 2]
            return worker.call(lease=lease, epoch=epoch, step=wait).status_code

        with ThreadPoolExecutor(16) as threads:
            assert list(threads.map(do, range(16))) == [200] * 16
        assert sorted(worker.claim()["wake"]["payload"] for _ in range(8)) == list(range(8))
        assert worker.get("/verify")["ok"]

    def test_a_run_that_is_over_takes_no_signal(self, house: House, worker: Worker) -> None:
        operate(house, f"/runs/{worker.run}/cancel")
        answer = worker.signal()
        assert (answer.status_code, answer.json()["code"]) == (409, "run_finished")

    def test_a_run_of_another_tenant_is_not_there(self, other_house: House, worker: Worker) -> None:
        stranger = Worker(other_house)
        assert stranger.signal(run=worker.run).status_code == 404
        assert stranger.signal(run=str(uuid.uuid4())).status_code == 404
        assert "signal_received" not in worker.types()

    def test_a_signal_to_the_dead_letter_is_there_when_the_run_goes_on(self, house: House) -> None:
        worker = Worker(house)
        plan = [{"name": name, "queue": worker.queue} for name in ("a", "b")]
        body = {"workflow": "t", "workflow_version": "1", "steps": plan}
        worker.run = worker.http.post("/runs", json=body, headers={"Idempotency-Key": "k"}).json()["id"]
        worker.claim()
        worker.wait(signal={"name": "answer"})
        worker.claim()
        worker.commit(step={"outcome": "failed", "error": {"class": "permanent"}})
        assert worker.status() == ("dead_letter", None)
        assert not worker.signal(payload=1).json()["woken"]
        operate(house, f"/runs/{worker.run}/recover", action="skip")
        work = worker.claim()
        assert (work["step"]["name"], work["wake"]) == ("a", {"reason": "signal", "payload": 1})


class TestChildren:
    @pytest.fixture
    def child(self, house: House) -> Worker:
        child = Worker(house)
        child.start("c")
        child.claim()
        return child

    def test_a_child_that_ended_before_wakes_at_once(self, worker: Worker, child: Worker) -> None:
        child.commit(step={"outcome": "succeeded"})
        assert worker.wait(child={"run_id": child.run})["run_status"] == "running"
        assert worker.claim()["wake"] == {"reason": "child"}

    def test_a_child_that_ends_wakes_who_waits_for_it(self, worker: Worker, child: Worker) -> None:
        worker.wait(child={"run_id": child.run})
        assert worker.status() == ("waiting", "child")
        operations.sweep()
        assert worker.idle()
        child.commit(step={"outcome": "succeeded"})
        operations.sweep()
        work = worker.claim()
        assert (work["wake"], work["step"]["attempt"]) == ({"reason": "child"}, 1)

    @pytest.mark.parametrize("ending", ["business_rejection", "cancelled"])
    def test_a_child_that_fails_or_is_cancelled_is_over_too(
        self, house: House, worker: Worker, child: Worker, ending: str
    ) -> None:
        worker.wait(child={"run_id": child.run})
        if ending == "cancelled":
            operate(house, f"/runs/{child.run}/cancel")
        else:
            child.commit(step={"outcome": "failed", "error": {"class": ending}})
        operations.sweep()
        assert worker.claim()["wake"] == {"reason": "child"}

    @pytest.mark.parametrize("first", ["child", "parent"])
    def test_a_child_in_the_dead_letter_is_not_over(
        self, house: House, worker: Worker, child: Worker, first: str
    ) -> None:
        """An operator can still bring it to its end, whenever it got there."""
        if first == "parent":
            worker.wait(child={"run_id": child.run})
        child.commit(step={"outcome": "failed", "error": {"class": "permanent"}})
        if first == "child":
            worker.wait(child={"run_id": child.run})
        operations.sweep()
        assert worker.status() == ("waiting", "child")
        operate(house, f"/runs/{child.run}/recover", action="skip")
        operations.sweep()
        assert worker.claim()["wake"] == {"reason": "child"}

    def test_a_wait_for_a_child_ends_in_time(self, worker: Worker, child: Worker) -> None:
        worker.wait(child={"run_id": child.run, "timeout_seconds": 60})
        pass_time(worker.run)
        assert worker.claim()["wake"] == {"reason": "timeout"}

    def test_a_wait_of_no_time_says_that_the_child_is_not_over(self, worker: Worker, child: Worker) -> None:
        worker.wait(child={"run_id": child.run, "timeout_seconds": 0})
        operations.sweep()
        assert worker.claim()["wake"] == {"reason": "timeout"}

    def test_ending_and_waiting_at_once_never_miss_each_other(self, house: House, worker: Worker, proof: bool) -> None:
        """Twelve children end while their parents begin to wait, twice as many times with pauses between."""
        register(house)
        pairs = []
        for _ in range(60 if proof else 12):
            pair = []
            for name in ("p", "c"):
                one = Worker(house)
                one.start(name)
                one.claim()
                pair.append(one)
            pairs.append(pair)

        def do(number: int) -> int:
            parent, child = pairs[number // 2]
            if (number + number // 2) % 2:
                step: dict[str, Any] = {"outcome": "succeeded"}
                return child.call(lease=child.lease, epoch=child.epoch, step=step).status_code
            step = {"outcome": "waiting", "wait": {"child": {"run_id": child.run}}}
            return parent.call(lease=parent.lease, epoch=parent.epoch, step=step).status_code

        with ThreadPoolExecutor(8) as threads:
            assert set(threads.map(do, range(2 * len(pairs)))) == {200}
        operations.sweep()
        for parent, _ in pairs:
            assert parent.claim()["wake"] == {"reason": "child"}

    def test_two_runs_that_begin_to_wait_for_each_other_both_wait(self, house: House) -> None:
        """Each is held up at its own run, so that both begin at once."""
        pair = [Worker(house), Worker(house)]
        for one in pair:
            one.start("a")
            one.claim()

        def begin(number: int) -> int:
            one, other = pair[number], pair[1 - number]
            step = {"outcome": "waiting", "wait": {"child": {"run_id": other.run}}}
            return one.call(lease=one.lease, epoch=one.epoch, step=step).status_code

        with ThreadPoolExecutor(2) as threads, tamperer() as database:
            with database.transaction():
                database.execute("select from runs_run where id = %s for update", [pair[1].run])
                second = threads.submit(begin, 1)
                wait_for_lock(1)
                first = threads.submit(begin, 0)
                time.sleep(0.2)
            assert (first.result(), second.result()) == (200, 200)
        assert [one.status() for one in pair] == [("waiting", "child")] * 2

    def test_a_child_is_a_run_that_is_there_and_not_oneself(self, worker: Worker, other_house: House) -> None:
        theirs = Worker(other_house)
        theirs.start("a")
        for run in (str(uuid.uuid4()), theirs.run, worker.run):
            step = {"outcome": "waiting", "wait": {"child": {"run_id": run}}}
            answer = worker.call(lease=worker.lease, epoch=worker.epoch, step=step)
            assert (answer.status_code, answer.json()["code"]) == (422, "unknown_child")
        assert worker.step("a")["status"] == "leased"


class TestReasons:
    """A run that does not go on by itself says what it waits for."""

    def test_the_first_waiting_step_names_the_reason(self, house: House) -> None:
        worker = Worker(house)
        plan = [{"name": name, "queue": worker.queue} for name in ("a", "b", "c")]
        body = {"workflow": "t", "workflow_version": "1", "steps": plan}
        worker.run = worker.http.post("/runs", json=body, headers={"Idempotency-Key": "k"}).json()["id"]
        worker.claim()
        worker.wait(signal={"name": "answer"})
        assert worker.status() == ("running", None)
        worker.claim()
        worker.wait(timer={"seconds": 60})
        assert worker.status() == ("running", None)
        worker.claim()
        worker.commit(step={"outcome": "failed", "error": {"class": "rate_limited", "retry_after": 600}})
        assert worker.status() == ("waiting", "signal")
        worker.signal()
        worker.claim()
        worker.commit(step={"outcome": "succeeded"})
        assert worker.status() == ("waiting", "timer")

    def test_a_retry_is_a_reason(self, worker: Worker) -> None:
        worker.commit(step={"outcome": "failed", "error": {"class": "transient"}})
        assert worker.status() == ("waiting", "retry")
        pass_time(worker.run)
        assert worker.claim()["wake"] == {"reason": "retry"}

    def test_a_gate_is_a_reason(self, house: House, worker: Worker) -> None:
        register(house, approval="always")
        gate = worker.reserve()["gate"]
        assert worker.status() == ("waiting", "gate")
        operate(house, f"/gates/{gate}/refuse")
        assert worker.status() == ("running", None)
        assert worker.claim()["wake"] == {"reason": "gate"}

    def test_a_reconciliation_is_a_reason(self, house: House, worker: Worker) -> None:
        register(house, reconcile={"probe_url": "https://bank.example/{key}"})
        effect = worker.reserve()["effect"]
        worker.commit(step={"outcome": "failed", "error": {"class": "unknown_outcome"}})
        assert worker.status() == ("waiting", "reconciliation")
        assert worker.effects()[0]["owner"] == "probe"
        settle(effect)
        operate(house, f"/effects/{effect}/reconcile", result="failed")
        assert worker.status() == ("running", None)
        assert worker.claim()["wake"] == {"reason": "reconciled"}

    def test_a_run_that_comes_back_to_a_wait_says_so(self, house: House) -> None:
        worker = Worker(house)
        plan = [{"name": name, "queue": worker.queue} for name in ("a", "b")]
        body = {"workflow": "t", "workflow_version": "1", "steps": plan}
        worker.run = worker.http.post("/runs", json=body, headers={"Idempotency-Key": "k"}).json()["id"]
        worker.claim()
        worker.wait(signal={"name": "answer"})
        worker.claim()
        worker.commit(step={"outcome": "failed", "error": {"class": "permanent"}})
        operate(house, f"/runs/{worker.run}/recover", action="skip")
        assert worker.status() == ("waiting", "signal")


class TestManyWaitForOne:
    """Parallel steps of a run share an effect, its gate and its fate."""

    @pytest.fixture
    def pair(self, house: House) -> list[Worker]:
        register(house, approval="always", scope="run")
        first, second = Worker(house), Worker(house)
        plan = [{"name": name, "queue": first.queue} for name in ("a", "b")]
        body = {"workflow": "t", "workflow_version": "1", "steps": plan}
        first.run = first.http.post("/runs", json=body, headers={"Idempotency-Key": "k"}).json()["id"]
        second.run, second.queue = first.run, first.queue
        for worker in (first, second):
            worker.claim()
        return [first, second]

    @pytest.mark.parametrize("what", ["satisfy", "refuse"])
    def test_all_who_wait_for_a_gate_hear_of_it(self, house: House, pair: list[Worker], what: str) -> None:
        gates = {worker.reserve()["gate"] for worker in pair}
        assert len(gates) == 1
        operate(house, f"/gates/{gates.pop()}/{what}")
        assert [worker.claim()["wake"] for worker in pair] == [{"reason": "gate"}] * 2

    def test_a_gate_that_another_action_replaced_is_waited_for_by_nobody(
        self, house: House, pair: list[Worker]
    ) -> None:
        first, second = pair
        old = first.reserve(input={"invoice": "INV-1", "amount": 1})["gate"]
        new = second.reserve(input={"invoice": "INV-1", "amount": 2})["gate"]
        assert old != new
        assert first.claim()["wake"] == {"reason": "gate"}
        assert first.step("a")["status"] == "leased"
        operate(house, f"/gates/{new}/satisfy")
        assert second.claim()["step"]["name"] == "b"

    def test_a_gate_that_was_given_up_is_waited_for_by_nobody(self, house: House, pair: list[Worker]) -> None:
        first, second = pair
        gate = first.reserve()["gate"]
        operate(house, f"/gates/{gate}/refuse")
        first.claim()
        assert second.reserve()["decision"] == "denied"
        assert first.reserve(input={"invoice": "INV-1", "amount": 2})["decision"] == "await_approval"
        second.commit(step={"outcome": "succeeded"})
        gates = client(house.keys["operator"]).get("/gates", params={"status": "open"}).json()["items"]
        assert first.step("a")["status"] == "runnable" or len(gates) == 1
