"""A process that records: `python -m tests.audit.writer <tenant> <how many>`."""

import sys
from uuid import UUID

import django

if __name__ == "__main__":
    django.setup()
    from kernel import pool
    from tests.audit.log import record

    record(UUID(sys.argv[1]), int(sys.argv[2]))
    pool.close_all()
