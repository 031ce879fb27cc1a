"""A step that waits goes on when it is due."""

from runs import operations
from tests.cast import House
from tests.runs.driver import Worker, tamperer


def test_a_retry_goes_on_by_the_sweep(house: House) -> None:
    worker = Worker(house)
    worker.start("a")
    worker.claim()
    worker.commit(step={"outcome": "failed", "error": {"class": "transient"}})
    with tamperer() as database:
        database.execute("update runs_step set due_at = clock_timestamp() where run_id = %s", [worker.run])
    assert operations.sweep() >= 1
    work = worker.claim()
    assert (work["step"]["attempt"], work["wake"]) == (2, {"reason": "retry"})
    assert worker.get("/verify")["ok"]
