"""The connection pool of the hot paths: one function call is one round trip and, in autocommit, one transaction.

Django's own connections serve everything else. Values travel as binary parameters bound on the server, so that none can
reach the server's log as part of a statement.
"""

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, LiteralString

from django.conf import settings
from django.db import connections
from psycopg import Connection, OperationalError
from psycopg.rows import TupleRow
from psycopg_pool import ConnectionPool, PoolTimeout

_OF_LIBPQ: Final = frozenset(
    [
        "dbname",
        "user",
        "password",
        "host",
        "port",
        "sslmode",
        "sslrootcert",
        "sslcert",
        "sslkey",
        "channel_binding",
        "connect_timeout",
    ]
)
_lock = threading.Lock()
_pools: dict[str, ConnectionPool[Connection[TupleRow]]] = {}


def one(statement: LiteralString, parameters: Sequence[Any], *, alias: str = "default") -> TupleRow:
    """The one row of a statement, in one round trip and one transaction."""
    return rows(statement, parameters, alias=alias)[0]


def rows(statement: LiteralString, parameters: Sequence[Any], *, alias: str = "default") -> list[TupleRow]:
    """The rows of a statement, in one round trip and one transaction."""
    source = pool(alias)
    try:
        with source.connection() as connection:
            return connection.execute(statement, parameters, binary=True).fetchall()
    except (OperationalError, PoolTimeout):
        # The server went away: its other connections are as dead as this one. They are replaced here, not one failing
        # request after the other.
        with suppress(PoolTimeout, OperationalError):
            source.check()
        raise


def pool(alias: str = "default") -> ConnectionPool[Connection[TupleRow]]:
    """The process's pool to a database alias, opened at first use (after any fork)."""
    found = _pools.get(alias)
    if found is None:
        with _lock:
            found = _pools.get(alias)
            if found is None:
                found = _pools[alias] = _open(alias)
    return found


def _open(alias: str) -> ConnectionPool[Connection[TupleRow]]:
    params = connections[alias].get_connection_params()
    kwargs: dict[str, Any] = {name: params[name] for name in params if name in _OF_LIBPQ}
    return ConnectionPool(
        kwargs={
            **kwargs,
            "autocommit": True,
            "application_name": "smriti-hot",
            "prepare_threshold": None if settings.TRANSACTION_POOLER else 0,
        },
        min_size=1,
        max_size=settings.HOT_POOL_SIZE,
        timeout=10,
        open=True,
        name=f"hot-{alias}",
    )


def close_all() -> None:
    """Close every pool; for tests and orderly stops."""
    with _lock:
        while _pools:
            _pools.popitem()[1].close()
