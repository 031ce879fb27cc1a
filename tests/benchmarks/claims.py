"""Taking work: claims a second beside the bare floor of a queue in SQL, their cost with a full house, and how soon a step that was
set free is taken by a worker that waits.

One unit of work is a claim and the commit that ends the step, in a run of one step. The floor does the same to one table, in a loop
for each client: `for update skip locked`, then a second transaction that ends it.
"""

import http.client
import json
import statistics
import subprocess
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import psycopg

from tests.benchmarks.product import Product, free_port
from tests.servers import ROOT

FLOOR = """
create table if not exists floor_job (id bigint generated always as identity primary key, status text not null default 'ready',
                                      worker text, body bytea not null);
create index if not exists floor_job_ready on floor_job (id) where status = 'ready';
"""
TAKE = """update floor_job set status = 'taken', worker = %s
          where id = (select id from floor_job where status = 'ready' order by id limit 1 for update skip locked) returning id"""

# 10,000 tenants with ten runnable steps each; and in the tenant that is measured as many in another queue, and as many that wait.
# The columns are those that `runs_create` and `runs_plan` write.
CROWD = """
set session_replication_role = replica;
create temporary table crowd as
select uuidv7() as tenant, g as n from generate_series(1, 10000) g;
insert into runs_queue (tenant_id, id, name, turn, paused) select tenant, uuidv7(), 'default', 0, false from crowd;
create temporary table crowd_run as
select tenant, uuidv7() as run, 'default' as queue, 'runnable' as status from crowd, generate_series(1, 10)
union all select %(tenant)s, uuidv7(), 'other', 'runnable' from generate_series(1, 100000)
union all select %(tenant)s, uuidv7(), 'bench', 'waiting' from generate_series(1, 100000);
insert into runs_run (tenant_id, id, project_id, workflow, workflow_version, agent_version, data_key_id, labels, versions,
    creation_key,
    creation_request, status, last_seq, last_digest, head, base_version, base_bytes, chain_count, chain_bytes, list_channels,
    value_channels, steps_total, steps_open, anchored_seq, state_schema, created_at, updated_at)
select tenant, run, tenant, 'crowd', '1', '0', tenant, '{}', '{}', uuid_send(run), '', 'running', 1, '', 0, 0, 0, 0, 0, '{}', '{}',
    1, 1, 1, 1, now(), now() from crowd_run;
insert into runs_step (tenant_id, id, run_id, name, position, status, waiting_on, queue, priority, turn, attempts, max_attempts,
    epoch, due_at, wait_kind)
select tenant, uuidv7(), run, 'a', 0, status, 0, queue, 0, 1, 0, 5, 0, now() + interval '1 day',
    case status when 'waiting' then 'timer' end from crowd_run;
set session_replication_role = origin;
analyze;
"""


def throughput(
    product: Product, admin_url: str, tenant: uuid.UUID, workers: int, seconds: float
) -> tuple[float, float]:
    """Units of work a second, and the median milliseconds of a claim, by `workers` that each have enough to do."""
    queue = f"claims-{uuid.uuid4().hex[:8]}"
    enough = int(900 * seconds) + 200

    def start(number: int) -> None:
        body = {"workflow": "bench", "workflow_version": "1", "steps": [{"name": "a", "queue": queue}]}
        product.call("POST", "/runs", body, key=f"{queue}-{number}")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(start, range(enough)))
    stop = time.perf_counter() + seconds
    times: list[float] = []

    def work(number: int) -> int:
        done = 0
        while time.perf_counter() < stop:
            begin = time.perf_counter()
            work = product.call("POST", "/work/claim", {"worker": f"w{number}", "queues": [queue]})
            times.append((time.perf_counter() - begin) * 1e3)
            assert work is not None, "the queue ran dry"
            body = {"lease": work["lease"], "epoch": work["epoch"], "step": {"outcome": "succeeded"}}
            product.call("POST", f"/runs/{work['run']['id']}/commit", body, key=work["lease"])
            done += 1
        return done

    begin = time.perf_counter()
    with ThreadPoolExecutor(workers) as pool:
        done = sum(pool.map(work, range(workers)))
    return done / (time.perf_counter() - begin), statistics.median(times)


def floor(url: str, workers: int, seconds: float) -> float:
    """The same by bare SQL: units of work a second."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(FLOOR)
        connection.execute("truncate floor_job")
        connection.execute(
            "insert into floor_job (body) select decode(repeat('ab', 200), 'hex') from generate_series(1, 60000)"
        )
    stop = time.perf_counter() + seconds

    def work(number: int) -> int:
        done = 0
        with psycopg.connect(url, autocommit=True) as connection:
            while time.perf_counter() < stop:
                row = connection.execute(TAKE, [f"w{number}"]).fetchone()
                assert row is not None, "the queue ran dry"
                connection.execute("update floor_job set status = 'done' where id = %s", row)
                done += 1
        return done

    begin = time.perf_counter()
    with ThreadPoolExecutor(workers) as pool:
        done = sum(pool.map(work, range(workers)))
    return done / (time.perf_counter() - begin)


class Waits:
    """The process for waits."""

    def __init__(self, key: str) -> None:
        self.port, self._key = free_port(), key
        command = [
            "granian",
            "--interface",
            "asginl",
            "--workers",
            "1",
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
        ]
        command += ["--log-level", "error", "config.asgi:application"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", *command], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(3)

    def claim(self, queue: str, seconds: float) -> Any:
        """A claim that waits: the work, or None after that time."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds + 30)
        body = json.dumps({"worker": "w", "queues": [queue], "wait_seconds": seconds})
        headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
        connection.request("POST", "/api/v1/work/claim", body, headers)
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        assert answer.status in (200, 204), text
        return json.loads(text) if text else None

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(20)


def hand_over(product: Product, waits: Waits, count: int) -> list[float]:
    """Milliseconds from the answer to a commit that sets a step free until a waiting worker has it."""
    times = []
    for number in range(count):
        queue = f"hand-{uuid.uuid4().hex[:8]}"
        steps = [{"name": "a", "queue": queue}, {"name": "b", "queue": f"{queue}-b", "depends_on": ["a"]}]
        product.call("POST", "/runs", {"workflow": "bench", "workflow_version": "1", "steps": steps}, key=queue)
        work = product.call("POST", "/work/claim", {"worker": "w", "queues": [queue]})
        taken: list[float] = []

        def wait(waited: str = f"{queue}-b", taken: list[float] = taken) -> None:
            assert waits.claim(waited, 20) is not None
            taken.append(time.perf_counter())

        waiter = threading.Thread(target=wait)
        waiter.start()
        time.sleep(0.15 + 0.01 * (number % 5))
        body = {"lease": work["lease"], "epoch": work["epoch"], "step": {"outcome": "succeeded"}}
        product.call("POST", f"/runs/{work['run']['id']}/commit", body, key=queue)
        committed = time.perf_counter()
        waiter.join()
        times.append(max(0.0, taken[0] - committed) * 1e3)
    return sorted(times)


def idle(waits: Waits, product: Product, postgres_pid: int, workers: int, seconds: float) -> float:
    """CPU seconds a minute that waiting workers cost: the waits process, the web server and PostgreSQL together."""
    processes = [psutil.Process(pid) for pid in (waits.process.pid, product.process.pid, postgres_pid)]

    def used() -> float:
        family = [member for process in processes for member in (process, *process.children(recursive=True))]
        return sum(sum(member.cpu_times()[:2]) for member in family if member.is_running())

    with ThreadPoolExecutor(workers) as pool:
        for _ in range(workers):
            pool.submit(waits.claim, "nothing-comes-here", seconds + 3)
        time.sleep(2)
        before = used()
        time.sleep(seconds)
        cost = used() - before
    return cost * 60 / seconds


def report(
    product: Product, waits: Waits, admin_url: str, floor_url: str, tenant: uuid.UUID, postgres_pid: int, seconds: float
) -> str:
    """The whole table. Pairs of floor and product run side by side, so that their ratio means something."""
    with psycopg.connect(admin_url, autocommit=True) as connection:
        connection.execute("analyze")  # as autovacuum does within a minute of a database's life
    lines = ["| workers | floor units/s | claims/s | ratio | claim p50 ms |", "|---|---|---|---|---|"]
    for workers in (1, 8, 32):
        pairs = [
            (floor(floor_url, workers, seconds), throughput(product, admin_url, tenant, workers, seconds))
            for _ in range(3)
        ]
        bare = statistics.median(base for base, _ in pairs)
        own = statistics.median(found[0] for _, found in pairs)
        ratio = statistics.median(found[0] / base for base, found in pairs)
        p50 = statistics.median(found[1] for _, found in pairs)
        lines.append(f"| {workers} | {bare:.0f} | {own:.0f} | {ratio:.2f} | {p50:.2f} |")
    empty = statistics.median(throughput(product, admin_url, tenant, 1, seconds)[1] for _ in range(3))
    with psycopg.connect(admin_url, autocommit=True) as connection:
        connection.execute(CROWD.replace("%(tenant)s", f"'{tenant}'::uuid"))
    full = statistics.median(throughput(product, admin_url, tenant, 1, seconds)[1] for _ in range(3))
    times = hand_over(product, waits, 60)
    cost = idle(waits, product, postgres_pid, 32, 20)
    lines += [
        "",
        f"A claim by one worker: {empty:.2f} ms; beside 10,000 tenants with 100,000 runnable steps, and 100,000 in another queue "
        f"and 100,000 waiting in its own tenant: {full:.2f} ms ({full / empty:.2f} of it).",
        f"From a commit's answer until a waiting worker has the next step: {times[len(times) // 2]:.1f} ms at the median, "
        f"{times[int(len(times) * 0.95)]:.1f} ms at the 95th percentile ({len(times)} hand-overs).",
        f"32 waiting workers without work cost {cost:.2f} CPU seconds a minute, of all processes together.",
    ]
    return "\n".join(lines)
