"""`manage.py recount_metrics 019a… --from 2026-11-01 --to 2026-11-30`: count a tenant's metrics anew, from its logs."""

from argparse import ArgumentParser
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand

from runs import operations


class Command(BaseCommand):
    help = "Count a tenant's metrics anew, from its logs; says how many numbers were other than they should be."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("tenant", type=UUID, help="its id")
        parser.add_argument("--from", dest="start", required=True, type=_moment, help="a date or a time, UTC")
        parser.add_argument("--to", dest="end", required=True, type=_moment, help="the first hour that is left out")

    def handle(self, *, tenant: UUID, start: datetime, end: datetime, **_: Any) -> None:
        changed = operations.recount(tenant=tenant, start=start, end=end)
        self.stdout.write(f"{changed} numbers were corrected.")


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
