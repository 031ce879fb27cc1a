"""Calls of database functions on the hot paths, in PostgreSQL's binary protocol and without a cursor.

A call is one round trip and, in autocommit, one transaction. It costs a fraction of the Python that a cursor does, which at
full load is a fifth of a commit. Values are bound on the server and travel as binary.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from struct import Struct
from typing import Any, Final
from uuid import UUID

import orjson
from django.conf import settings
from django.db import connections
from psycopg import OperationalError
from psycopg.errors import error_from_result
from psycopg.pq import ConnStatus, DiagnosticField, ExecStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg_pool import PoolTimeout

from kernel.pool import pool

Encoder = Callable[[Any], bytes]
Decoder = Callable[[bytes], Any]

_INT4: Final = Struct("!i")
_INT8: Final = Struct("!q")
_FLOAT8: Final = Struct("!d")
_ARRAY: Final = Struct("!iiIii")
_NO_ITEMS: Final = Struct("!iiI")
_NOT_PREPARED: Final = b"26000"
_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

# Type: its oid, the oid of its array, and how values become bytes and back.
_TYPES: Final[dict[str, tuple[int, int, Encoder, Decoder]]] = {
    "bool": (16, 1000, lambda value: b"\1" if value else b"\0", lambda data: data == b"\1"),
    "bytea": (17, 1001, bytes, bytes),
    "int8": (20, 1016, _INT8.pack, lambda data: _INT8.unpack(data)[0]),
    "int4": (23, 1007, _INT4.pack, lambda data: _INT4.unpack(data)[0]),
    "int2": (21, 1005, Struct("!h").pack, lambda data: int.from_bytes(data, "big", signed=True)),
    "text": (25, 1009, str.encode, bytes.decode),
    "float8": (701, 1022, _FLOAT8.pack, lambda data: _FLOAT8.unpack(data)[0]),
    "timestamptz": (
        1184,
        1185,
        lambda value: _INT8.pack((value - _EPOCH) // _MICROSECOND),
        lambda data: _EPOCH + timedelta(microseconds=_INT8.unpack(data)[0]),
    ),
    "uuid": (2950, 2951, lambda value: value.bytes, lambda data: UUID(bytes=data)),
    "jsonb": (3802, 3807, lambda value: b"\1" + orjson.dumps(value), lambda data: orjson.loads(data[1:])),
}


class Call:
    """A function of the database: its name, and the types of its arguments and of the columns it answers.

    `Call("f", "uuid text[]", "int8 bytea")` is called with a sequence of Python values in that order, None for null. One that
    only `reads` is sent once more when its connection turns out to be lost, as all are after a restart of the server.
    """

    def __init__(self, function: str, arguments: str, results: str, *, reads: bool = False) -> None:
        types = arguments.split()
        places = ", ".join(f"${number}" for number in range(1, len(types) + 1))
        self._name = f"call_{function}".encode()
        self._statement = f"select * from {function}({places})".encode()  # noqa: S608  a name of our own
        self._reads = reads
        self._oids = [_oid(name) for name in types]
        self._formats = [1] * len(types)
        self._encoders = [_encoder(name) for name in types]
        self._decoders = [_decoder(name) for name in results.split()]

    def one(self, values: Sequence[Any], *, alias: str = "default") -> tuple[Any, ...]:
        """The one row that the function answers."""
        return self.rows(values, alias=alias)[0]

    def rows(self, values: Sequence[Any], *, alias: str = "default") -> list[tuple[Any, ...]]:
        """All rows that the function answers. Raises psycopg.Error."""
        data = [None if v is None else encode(v) for encode, v in zip(self._encoders, values, strict=True)]
        try:
            return self._rows(self._execute(data, alias))
        except OperationalError as error:
            if not self._reads or isinstance(error, PoolTimeout):
                raise
            return self._rows(self._execute(data, alias))

    def within(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """As `one`, in the transaction that is open on Django's connection. Raises psycopg.Error."""
        connections["default"].ensure_connection()
        server = connections["default"].connection.pgconn
        data = [None if v is None else encode(v) for encode, v in zip(self._encoders, values, strict=True)]
        result = _check(server, server.exec_params(self._statement, data, self._oids, self._formats, 1))
        return self._rows(result)[0]

    def _rows(self, result: PGresult) -> list[tuple[Any, ...]]:
        get, decoders = result.get_value, self._decoders
        return [
            tuple([None if (v := get(row, i)) is None else decode(v) for i, decode in enumerate(decoders)])
            for row in range(result.ntuples)
        ]

    def _execute(self, data: list[Any], alias: str) -> PGresult:
        source = pool(alias)
        try:
            connection = source.getconn()
            try:
                server = connection.pgconn
                if settings.TRANSACTION_POOLER:
                    return _check(server, server.exec_params(self._statement, data, self._oids, self._formats, 1))
                prepared = connection.__dict__.setdefault("_prepared_calls", set())
                if self._name in prepared:
                    result = server.exec_prepared(self._name, data, self._formats, 1)
                    if result.error_field(DiagnosticField.SQLSTATE) != _NOT_PREPARED:
                        return _check(server, result)
                # Not prepared yet, or no longer: a cursor on this connection, or a pooler, may have dropped it.
                _check(server, server.prepare(self._name, self._statement, self._oids))
                prepared.add(self._name)
                return _check(server, server.exec_prepared(self._name, data, self._formats, 1))
            finally:
                source.putconn(connection)
        except (OperationalError, PoolTimeout):
            # The server went away: its other connections are as dead as this one. They are replaced here, not one failing
            # request after the other.
            with suppress(PoolTimeout, OperationalError):
                source.check()
            raise


def _check(server: PGconn, result: PGresult) -> PGresult:
    if result.status in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
        return result
    if server.status != ConnStatus.OK:
        raise OperationalError("the connection was lost")
    raise error_from_result(result)


def _oid(name: str) -> int:
    oid, of_array, _, _ = _TYPES[name.removesuffix("[]")]
    return of_array if name.endswith("[]") else oid


def _encoder(name: str) -> Encoder:
    if not name.endswith("[]"):
        return _TYPES[name][2]
    oid, _, encode, _ = _TYPES[name.removesuffix("[]")]
    empty = _NO_ITEMS.pack(0, 0, oid)

    def array(values: Sequence[Any]) -> bytes:
        if not values:
            return empty
        parts = [_ARRAY.pack(1, None in values, oid, len(values), 1)]
        for value in values:
            if value is None:
                parts.append(b"\xff\xff\xff\xff")
            else:
                item = encode(value)
                parts += (_INT4.pack(len(item)), item)
        return b"".join(parts)

    return array


def _decoder(name: str) -> Decoder:
    if not name.endswith("[]"):
        return _TYPES[name][3]
    decode = _TYPES[name.removesuffix("[]")][3]

    def array(data: bytes) -> list[Any]:
        if not _INT4.unpack_from(data)[0]:
            return []
        values: list[Any] = []
        at, end = 20, len(data)
        while at < end:
            (length,) = _INT4.unpack_from(data, at)
            at += 4
            values.append(None if length < 0 else decode(data[at : at + length]))
            at += max(length, 0)
        return values

    return array
