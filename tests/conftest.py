"""Tests run on real servers, as the app role: one PostgreSQL and one Valkey for the session, a cloned database for each worker,
a fresh tenant for each test. Nothing is rolled back or truncated: an append-only log could not be.
"""

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from pytest_django.plugin import DjangoDbBlocker

if TYPE_CHECKING:
    from tests.cast import Cast, House
    from tests.servers import Servers

_servers: "list[Servers]" = []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--proof", action="store_true", help="run at the numbers that the issues state")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    from tests.servers import Servers, clone

    if "SMRITI_TEST_ADMIN_URL" not in os.environ:
        servers = Servers()
        _servers.append(servers)
        servers.start()
    workers = getattr(config.option, "numprocesses", None)
    if hasattr(config, "workerinput") or not workers:
        worker = getattr(config, "workerinput", {}).get("workerid", "main")
        name = f"smriti_{worker}"
        os.environ["DATABASE_URL"] = clone(os.environ["SMRITI_TEST_ADMIN_URL"], name)
        from django.db import connections

        # A worker inherits the settings module's name, so pytest-django may have loaded the template's URL already.
        connections.settings["default"]["NAME"] = name
    from django.conf import settings

    # A slow hash is a feature for people and a cost for a thousand tests.
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


def pytest_unconfigure(config: pytest.Config) -> None:
    while _servers:
        _servers.pop().stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Where every tool is installed (SMRITI_NO_SKIPS), a skipped test is a failed one."""
    report = yield
    if report.skipped and os.environ.get("SMRITI_NO_SKIPS") and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped although nothing may be: {report.longrepr}"
    return report


@pytest.fixture(scope="session", autouse=True)
def _database(django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """Open the database to every test; it is this worker's own."""
    from kernel import pool

    with django_db_blocker.unblock():
        yield
        pool.close_all()


@pytest.fixture(scope="session")
def proof(pytestconfig: pytest.Config) -> bool:
    """Whether to run at the numbers that the issues state."""
    return bool(pytestconfig.getoption("--proof"))


@pytest.fixture
def house() -> "House":
    """A fresh tenant, without people."""
    from tests.cast import make_house

    return make_house("Acme", roles=())


@pytest.fixture
def other_house() -> "House":
    """A second tenant, which must never see anything of the first."""
    from tests.cast import make_house

    return make_house("Globex", roles=())


@pytest.fixture
def cast() -> "Cast":
    from tests.cast import Cast, make_house

    return Cast(home=make_house("Acme"), other=make_house("Globex"))


@pytest.fixture
def api() -> "Iterator[Callable[[str | None], httpx.Client]]":
    """`api(credential)`: a client of the API with that key, or with none."""
    from tests.cast import client

    opened: list[httpx.Client] = []

    def make(key: str | None) -> httpx.Client:
        opened.append(client(key))
        return opened[-1]

    yield make
    for found in opened:
        found.close()
