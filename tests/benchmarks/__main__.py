"""`make bench`: Smriti over HTTP beside the floor, alternating in one run, so that ratios mean something on a shared machine."""

import argparse
import functools
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg

from tests.benchmarks.payloads import Step, make_run
from tests.servers import PASSWORD, Servers, clone

SETTINGS: dict[str, str | int] = {"shared_buffers": "1GB", "max_wal_size": "4GB", "max_connections": 150}


@dataclass(frozen=True)
class Result:
    steps_s: float
    p50_ms: float
    p95_ms: float
    bytes_step: float
    cpu_ms_step: float
    resume_ms: float


def measure(contender: Any, runs: list[list[Step]], clients: int, size: Callable[[], int]) -> Result:
    """All runs by `clients` threads; then resume six of them."""
    warm = contender.start_run(make_run(9_999))
    for seq in range(len(warm.run)):
        warm.step(seq)
    started = [contender.start_run(run) for run in runs]

    def work(run: Any) -> list[float]:
        times = []
        for seq in range(len(run.run)):
            begin = time.perf_counter()
            run.step(seq)
            times.append((time.perf_counter() - begin) * 1e3)
        return times

    before, cpu = size(), getattr(contender, "cpu_seconds", time.process_time)
    cpu_before, begin = cpu(), time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        times = [ms for run in pool.map(work, started) for ms in run]
    wall, used = time.perf_counter() - begin, cpu() - cpu_before
    grown = size() - before
    resumes = []
    for run in started[:6]:
        run.resume()
        begin = time.perf_counter()
        state = run.resume()
        resumes.append((time.perf_counter() - begin) * 1e3)
        assert state == run.run[-1].state, "the resumed state differs"
    times.sort()
    count = len(times)
    return Result(
        count / wall,
        times[count // 2],
        times[int(count * 0.95)],
        grown / count,
        used / count * 1e3,
        statistics.median(resumes),
    )


def table_bytes(admin_url: str) -> int:
    with psycopg.connect(admin_url, autocommit=True) as connection:
        connection.execute("checkpoint")
        row = connection.execute(
            """select coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint from pg_class c
               join pg_namespace n on n.oid = c.relnamespace
               where c.relkind = 'r' and n.nspname not in ('pg_catalog', 'information_schema')"""
        ).fetchone()
    assert row is not None
    return int(row[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--clients", default="1,4,16")
    parser.add_argument("--runs", default="24,32,64", help="runs of 20 steps for each number of clients")
    parser.add_argument("--claims", action="store_true", help="measure taking work instead")
    parser.add_argument("--seconds", type=float, default=4, help="of each measurement of claims")
    parser.add_argument("--report", type=Path, help="also write the table to this file")
    options = parser.parse_args()
    servers = Servers(settings=SETTINGS)
    servers.start()
    try:
        os.environ["DATABASE_URL"] = clone(servers.postgres.admin_url, "bench_smriti")
        import django

        django.setup()
        (bench_claims if options.claims else bench)(options, servers)
    finally:
        servers.stop()


def bench_claims(options: argparse.Namespace, servers: Servers) -> None:
    from tests.benchmarks import claims
    from tests.benchmarks.product import Product
    from tests.cast import make_house

    admin_url = servers.postgres.admin_url
    house = make_house("Bench", roles=())
    with psycopg.connect(admin_url, autocommit=True) as connection:
        connection.execute("create database bench_floor")
    smriti, floor_url = (admin_url.rpartition("/")[0] + f"/{name}" for name in ("bench_smriti", "bench_floor"))
    pid = int((servers.postgres.data / "postmaster.pid").read_text().split()[0])
    product, waits = Product(house.keys["agent"]), claims.Waits(house.keys["agent"])
    try:
        text = claims.report(product, waits, smriti, floor_url, house.id, pid, options.seconds)
    finally:
        waits.close()
        product.close()
    print(text, flush=True)
    if options.report is not None:
        note = f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores. By `make bench`."
        options.report.write_text(f"# Taking work\n\n{claims.__doc__}\n{note}\n\n{text}\n")


def bench(options: argparse.Namespace, servers: Servers) -> None:
    from tests.benchmarks.floor import Floor
    from tests.benchmarks.product import Product
    from tests.cast import make_house

    admin_url = servers.postgres.admin_url
    key = make_house("Bench", roles=()).keys["agent"]
    with psycopg.connect(admin_url, autocommit=True) as connection:
        connection.execute("create database bench_floor owner smriti_owner")
    address = f"127.0.0.1:{urlsplit(admin_url).port}"
    floor_owner, floor_app = (
        f"postgresql://{role}:{PASSWORD}@{address}/bench_floor" for role in ("smriti_owner", "smriti_app")
    )
    floor_admin, smriti_admin = (admin_url.rpartition("/")[0] + f"/{name}" for name in ("bench_floor", "bench_smriti"))
    floor, product = Floor(floor_owner, floor_app, 16), Product(key)
    tables = [HEAD]
    print(HEAD, flush=True)
    try:
        for clients, count in zip(map(int, options.clients.split(",")), map(int, options.runs.split(",")), strict=True):
            results: dict[str, list[Result]] = {floor.name: [], product.name: []}
            for rep in range(options.reps):
                # Never the same run twice: the floor stores equal payloads of a tenant once.
                first = clients * 100_000 + rep * count
                runs = [make_run(seed) for seed in range(first, first + count)]
                for contender, url in ((floor, floor_admin), (product, smriti_admin)):
                    results[contender.name].append(
                        measure(contender, runs, clients, functools.partial(table_bytes, url))
                    )
            tables.append(report(clients, results))
    finally:
        product.close()
        floor.close()
    if options.report is not None:
        note = f"Medians of {options.reps} alternating runs, {time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores. By `make bench`."
        text = "\n".join(tables)
        options.report.write_text(f"# Benchmark beside its floor\n\n{__doc__}\n{note}\n\n{text}\n")


COLUMNS = ("steps_s", "p50_ms", "p95_ms", "bytes_step", "cpu_ms_step", "resume_ms")
HEAD = "| clients | | steps/s | p50 ms | p95 ms | bytes/step | server CPU ms/step | resume ms |\n|---|---|---|---|---|---|---|---|"


def _middle(column: str, values: list[float]) -> float:
    """The median; of bytes the mean, because files grow by many pages at a time and a single run sees too many or none."""
    return statistics.fmean(values) if column == "bytes_step" else statistics.median(values)


def report(clients: int, results: dict[str, list[Result]]) -> str:
    """The rows of one number of clients: medians of each contender, and the ratios of the pairs that ran side by side."""
    medians = {name: [_middle(c, [getattr(r, c) for r in found]) for c in COLUMNS] for name, found in results.items()}
    rows = [
        f"| {clients} | {name} | {row[0]:.0f} | {row[1]:.2f} | {row[2]:.2f} | {row[3]:.0f} | {row[4]:.2f} | {row[5]:.2f} |"
        for name, row in medians.items()
    ]
    floor, product = medians.values()
    pairs = list(zip(*results.values(), strict=True))
    ratio = statistics.median(own.steps_s / base.steps_s for base, own in pairs)
    rows.append(
        f"| {clients} | ratio | {ratio:.2f} | | | {product[3] / floor[3]:.2f} | | {product[5] / floor[5]:.2f} |"
    )
    text = "\n".join(rows)
    print(text, flush=True)
    return text


if __name__ == "__main__":
    main()
