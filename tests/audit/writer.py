"""A process that records: `python -m tests.audit.writer <tenant> <threads> <entries of each thread>`."""

import sys
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import django

if __name__ == "__main__":
    django.setup()
    from django.db import connection

    from kernel import pool
    from tests.audit.log import record

    tenant, threads, each = UUID(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])

    def work(_: int) -> None:
        try:
            record(tenant, each)
        finally:
            connection.close()

    with ThreadPoolExecutor(threads) as workers:
        list(workers.map(work, range(threads)))
    pool.close_all()
