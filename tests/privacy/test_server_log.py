"""No value reaches PostgreSQL's log: not from statements, not from parameters, not from the text of an error."""

import os
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import DatabaseError, connection

from kernel import actor, clock
from kernel.context import tenant_scope
from kernel.pool import pool
from tenancy import operations as tenancy_ops
from tests.cast import House
from tests.runs.driver import Worker

CANARY = "canary4711"


def test_values_stay_out_of_the_log(house: House) -> None:
    worker = Worker(house)
    worker.start("only", subject=CANARY, input={"name": CANARY}, correlation_id=CANARY)
    worker.claim()
    worker.commit(events=[{"type": "note", "payload": CANARY}], checkpoint={"state": {CANARY: CANARY}})
    project: dict[str, Any] = {"slug": CANARY, "name": CANARY, "actor": actor.system("tests"), "now": clock.now()}
    with tenant_scope(house.id):
        tenancy_ops.create_project(tenant=house.id, **project)
        with pytest.raises(tenancy_ops.SlugTaken):
            tenancy_ops.create_project(tenant=house.id, **project)
    with pytest.raises(DatabaseError), connection.cursor() as cursor:
        cursor.execute("select %s::text::int", [CANARY])
    with pytest.raises(psycopg.Error), pool().connection() as hot:
        hot.execute("select %b::text::int", [CANARY])

    log = Path(os.environ["SMRITI_TEST_SERVER_LOG"]).read_text(errors="replace")
    assert "database system is ready" in log
    assert CANARY not in log
