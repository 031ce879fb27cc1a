from collections.abc import Callable, Iterator
from ipaddress import ip_network
from typing import TYPE_CHECKING

import pytest
from pytest_django import Settings

if TYPE_CHECKING:
    from notices.operations import Issued
    from tests.cast import House
    from tests.notices.receiver import Receiver


@pytest.fixture(autouse=True)
def _no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    from kernel import jobs

    monkeypatch.setattr(jobs, "enqueue", lambda *_, **__: None)


@pytest.fixture
def receiver(settings: Settings) -> "Iterator[Receiver]":
    """A real server, on a port and in a network that the operator allows."""
    from tests.notices.receiver import Receiver

    with Receiver() as found:
        settings.OUTBOX_PORTS = frozenset([found.port])
        settings.OUTBOX_ALLOW_PRIVATE = (ip_network("127.0.0.1/32"),)
        yield found


@pytest.fixture
def register() -> "Callable[..., Issued]":
    from kernel import actor, clock
    from kernel.context import tenant_scope
    from notices import operations as notices

    def create(house: "House", url: str, *kinds: str) -> "Issued":
        with tenant_scope(house.id):
            return notices.create_endpoint(
                tenant=house.id, url=url, kinds=kinds, actor=actor.system("tests"), now=clock.now()
            )

    return create


@pytest.fixture
def dispatch() -> "Callable[..., None]":
    """Send what is due. `hours` move what waits in a tenant into the past, in the database."""
    from django.db import connection

    from kernel.context import tenant_scope
    from kernel.outbox import operations as outbox_ops

    def run(house: "House", hours: float = 0) -> None:
        with tenant_scope(house.id), connection.cursor() as cursor:
            cursor.execute(
                """update outbox_message set due_at = due_at - make_interval(secs => %s),
                          queued_at = queued_at - make_interval(secs => %s) where status = 'pending'""",
                [hours * 3600, hours * 3600],
            )
            cursor.execute(
                "update notices_endpoint set failing_since = failing_since - make_interval(secs => %s)", [hours * 3600]
            )
        outbox_ops.dispatch()

    return run
