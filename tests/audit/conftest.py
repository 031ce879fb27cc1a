"""Tenants of their own for the audit tests, and the hand of an attacker. Imports wait until Django is set up."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

if TYPE_CHECKING:
    from tests.audit.log import Attack


@pytest.fixture
def tenant() -> UUID:
    """A tenant without entries; the log needs no row of its tenant."""
    from kernel import ids

    return ids.uuid7()


@pytest.fixture
def attack() -> "Iterator[Attack]":
    """Runs a statement for which no trigger, foreign key or policy exists; returns the number of rows."""
    from tests.audit.log import superuser

    with superuser() as connection:
        connection.execute("set session_replication_role = replica")

        def run(statement: str, *parameters: Any) -> int:
            return connection.execute(statement.encode(), parameters).rowcount

        yield run
