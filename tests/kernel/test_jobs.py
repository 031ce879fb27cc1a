"""Jobs go out after commit, and a broker that is down or silent costs the caller nothing but a moment."""

import base64
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import orjson
import pytest
import redis
from celery import Celery
from django.conf import settings
from django.db import transaction

from config.celery import app
from kernel import jobs
from kernel.context import tenant_scope
from kernel.ids import uuid7

QUEUE = "celery"


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    jobs._forget()
    yield
    jobs._forget()


@contextmanager
def broker(url: str) -> Iterator[None]:
    other = Celery("other", broker=url)
    other.conf.broker_transport_options = settings.CELERY_BROKER_TRANSPORT_OPTIONS
    other.set_current()
    try:
        yield
    finally:
        app.set_current()


def sent(name: str) -> list[dict[str, str]]:
    with redis.Redis.from_url(settings.BROKER_URL) as client:
        messages = [orjson.loads(message) for message in client.lrange(QUEUE, 0, -1)]
    return [
        orjson.loads(base64.b64decode(message["body"]))[1] for message in messages if message["headers"]["task"] == name
    ]


def test_is_sent_at_commit_and_not_before() -> None:
    tenant, name = uuid7(), f"test.{uuid7()}"
    with tenant_scope(tenant):
        jobs.enqueue(name, tenant=tenant, run_id=tenant)
        assert sent(name) == []
    assert sent(name) == [{"tenant": str(tenant), "run_id": str(tenant)}]


def test_is_not_sent_when_the_transaction_is_rolled_back() -> None:
    tenant, name = uuid7(), f"test.{uuid7()}"
    with tenant_scope(tenant):
        jobs.enqueue(name, tenant=tenant)
        transaction.set_rollback(True)
    assert sent(name) == []


def test_a_broker_that_is_down_fails_nothing() -> None:
    with broker("redis://127.0.0.1:1/0"):
        start = time.monotonic()
        with tenant_scope(uuid7()):
            jobs.enqueue("test.down", tenant=uuid7())
        assert time.monotonic() - start < 2


def test_a_broker_that_does_not_answer_delays_one_request_only() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, broker(f"redis://127.0.0.1:{silent.getsockname()[1]}/0"):
        start = time.monotonic()
        jobs.enqueue("test.silent", tenant=uuid7())
        first = time.monotonic()
        jobs.enqueue("test.silent", tenant=uuid7())
        assert first - start < 4
        assert time.monotonic() - first < 0.1
