import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from django.test import Client
from django.utils import translation
from pytest_django.plugin import DjangoDbBlocker

if TYPE_CHECKING:
    from tests.browser.story import Story
    from tests.cast import House

BACKEND = "allauth.account.auth_backends.AuthenticationBackend"
BASELINE = Path(__file__).with_name("query_counts.json")
Visit = Callable[["House", str], Client]
CountQueries = Callable[[str], AbstractContextManager[None]]


@pytest.fixture(autouse=True)
def _english() -> Iterator[None]:
    """A request in another language leaves it switched on in the thread, as it does in a server."""
    with translation.override("en"):
        yield


@pytest.fixture
def visit() -> Visit:
    """`visit(house, role)`: a browser in which the house's member of that role is signed in."""

    def make(house: "House", role: str) -> Client:
        client = Client()
        client.force_login(house.users[role], backend=BACKEND)
        return client

    return make


@pytest.fixture(scope="session")
def story(_database: None, django_db_blocker: DjangoDbBlocker) -> "Story":
    """A tenant with runs in every state; only read by tests that share it."""
    from tests.browser.story import tell
    from tests.cast import make_house

    return tell(make_house("Acme"))


@pytest.fixture
def count_queries() -> CountQueries:
    """`with count_queries("name")`: the number of queries must be the recorded one. SMRITI_RECORD=1 records anew."""
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    @contextmanager
    def counted(name: str) -> Iterator[None]:
        with CaptureQueriesContext(connection) as queries:
            yield
        recorded = json.loads(BASELINE.read_text())
        if os.environ.get("SMRITI_RECORD"):
            recorded[name] = len(queries)
            BASELINE.write_text(json.dumps(dict(sorted(recorded.items())), indent=2) + "\n")
        assert len(queries) == recorded.get(name), "\n".join(query["sql"] for query in queries.captured_queries)

    return counted
