"""Logs as JSON lines with ids and without payloads.

Invariant: a value that a client sent does not reach the log. Events are short names; fields are scalars, cut when long;
an exception is logged as its type and the way it took, because its message may quote the value it choked on
(LOG_LEVEL=DEBUG adds the message).
"""

import logging
import sys
import traceback
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from datetime import date
from types import TracebackType
from typing import Any, Final, TextIO
from uuid import UUID

import orjson
import structlog

_LONGEST: Final = 300
_SCALARS: Final = (bool, int, float, type(None))
_TEXTS: Final = (str, UUID, date)

Event = MutableMapping[str, Any]


def configure(level: str = "INFO") -> None:
    """Send all logs of this process, of structlog and the standard library, to stderr as JSON lines. Once, at start."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _Exceptions(messages=level == "DEBUG"),
        _scalars,
    ]
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.JSONRenderer(_dumps),
        ],
    )
    handler = _Stderr()
    handler.setFormatter(formatter)
    logging.getLogger("django").handlers.clear()
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    # These log request lines, which carry names that tenants chose, or what only their developers ask.
    for noisy in ("django.request", "django.server", "httpx", "httpcore", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *(step for step in shared if not isinstance(step, structlog.stdlib.ExtraAdder)),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )


class _Stderr(logging.StreamHandler[TextIO]):
    """Writes to what is standard error now, not to what it was at start."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


@contextmanager
def bound(**ids: object) -> Iterator[None]:
    """Put ids (request_id, tenant, run, ...) on every log line of this context."""
    with structlog.contextvars.bound_contextvars(**{name: str(value) for name, value in ids.items()}):
        yield


class _Exceptions:
    def __init__(self, *, messages: bool) -> None:
        self.messages = messages

    def __call__(self, logger: Any, method: str, event: Event) -> Event:
        info = event.pop("exc_info", None)
        error = sys.exc_info()[1] if info is True else info[1] if isinstance(info, tuple) else info
        if isinstance(error, BaseException):
            event["exception"] = _describe(error, messages=self.messages)
            record = event.get("_record")
            if isinstance(record, logging.LogRecord) and not self.messages:
                event["event"] = str(record.msg)  # libraries write the exception's message into their own
        return event


def _describe(error: BaseException, *, messages: bool) -> list[dict[str, Any]]:
    """The error and what caused it, the outermost first: type, SQL state, way."""
    chain: list[dict[str, Any]] = []
    found: BaseException | None = error
    while found is not None and len(chain) < 5:
        link: dict[str, Any] = {
            "type": f"{type(found).__module__}.{type(found).__qualname__}",
            "at": _way(found.__traceback__),
        }
        state = getattr(found, "sqlstate", None)
        if state is not None:
            link["sqlstate"] = state
        if messages:
            link["message"] = str(found)[:_LONGEST]
        chain.append(link)
        found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)
    return chain


def _way(trace: TracebackType | None) -> list[str]:
    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(trace)[-12:]]


def _scalars(logger: Any, method: str, event: Event) -> Event:
    """Fields are scalars; anything else is named by its type, and a long text is cut."""
    for name, value in event.items():
        if name.startswith("_") or name == "exception" or isinstance(value, _SCALARS):
            continue
        text = str(value) if isinstance(value, _TEXTS) else f"<{type(value).__name__}>"
        event[name] = text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
    return event


def _dumps(value: Any, **_: Any) -> str:
    return orjson.dumps(value, default=str).decode()
