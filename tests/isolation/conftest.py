"""Two tenants with rows in every table: `home` is attacked by whoever holds the credentials of `other`."""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.isolation.story import Story


@pytest.fixture(scope="session")
def home(_database: None) -> "Story":
    from tests.isolation.story import tell

    return tell("Homeland")


@pytest.fixture(scope="session")
def other(_database: None) -> "Story":
    from tests.isolation.story import tell

    return tell("Strangers")
