"""Live reads for thousands of readers: one shared read for each log that is watched, whoever watches it.

A reader keeps nothing but its cursor; the last frames of a log are kept once, for all its readers. Who falls behind them reads by
itself, a page at a time, until it has caught up. Invariant: a reader gets each frame once and in order, because a cursor only ever
moves by a page that begins where it stands. An idle reader holds no database connection and no thread: every watched log waits for
its hint, and one look every two seconds asks for all of them at once, in case that a hint was lost.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import dropwhile
from typing import Any, Final, Generic, TypeVar
from uuid import UUID

from django.conf import settings

from kernel.hints import Listener
from runs import queries

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")
Cursor = TypeVar("Cursor", int, queries.FeedCursor)

LOOK_AGAIN: Final = 2.0
_AFTER_FAILURE: Final = 1.0
_KEEP_FRAMES: Final = 512
_KEEP_BYTES: Final = 1024 * 1024
_THREADS: Final = 4
_REST: Final = 4.0  # after a read, a log rests so many times as long as it took: hints come faster than pages


@dataclass(frozen=True, slots=True)
class Frame(Generic[Cursor]):
    """One event as it is sent. `about`: what filters and permissions are judged by."""

    cursor: Cursor
    data: bytes
    about: Any = None


@dataclass(frozen=True, slots=True)
class Page(Generic[Cursor]):
    """What stands after a cursor. `through`: everything up to here was read. `over`: nothing can follow, and why."""

    frames: Sequence[Frame[Cursor]]
    through: Cursor
    more: bool = False
    over: str | None = None


@dataclass
class Shared(Generic[Cursor]):
    """One log under watch: its newest frames, from `low` (outside) to `high` (inside)."""

    name: str
    read: Callable[[Cursor], Page[Cursor]]
    low: Cursor
    high: Cursor
    over: str | None = None
    readers: int = 0
    frames: deque[Frame[Cursor]] = field(default_factory=deque)
    bytes: int = 0
    look: asyncio.Event = field(default_factory=asyncio.Event)
    moved: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    def after(self, cursor: Cursor) -> Page[Cursor] | None:
        """The kept frames after a cursor; None when they begin behind it, or it stands behind their end."""
        if not self.low <= cursor <= self.high:
            return None
        frames = list(dropwhile(lambda frame: frame.cursor <= cursor, self.frames)) if cursor < self.high else []
        return Page(frames, self.high, over=self.over)

    def extend(self, page: Page[Cursor]) -> None:
        """Take a page that begins at `high`, and wake every reader."""
        self.frames.extend(page.frames)
        self.bytes += sum(len(frame.data) for frame in page.frames)
        while self.frames and (len(self.frames) > _KEEP_FRAMES or self.bytes > _KEEP_BYTES):
            dropped = self.frames.popleft()
            self.low = dropped.cursor
            self.bytes -= len(dropped.data)
        if page.through != self.high or page.over != self.over:
            self.high, self.over = page.through, page.over
            self.moved.set()
            self.moved = asyncio.Event()


class Hub:
    """All that a process watches. Used from one event loop only."""

    def __init__(self) -> None:
        self._listener = Listener()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="streams")
        self._shared: dict[Any, Shared[Any]] = {}
        self.sending: dict[asyncio.Task[Any], float] = {}  # since when, on the loop's clock
        self._looker: asyncio.Task[None] | None = None

    async def call(self, function: Callable[..., Answer], *arguments: Any) -> Answer:
        """A blocking call, in one of a few threads."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    @asynccontextmanager
    async def watch(
        self,
        tenant: UUID,
        run: UUID | None,
        form: str,
        *,
        name: str,
        at: Cursor,
        read: Callable[[Cursor], Page[Cursor]],
    ) -> AsyncIterator[Shared[Cursor]]:
        """The shared read of a log in one form, begun at `at` when nobody watches it yet."""
        if self._looker is None or self._looker.done():
            self._looker = asyncio.create_task(self._look())
        key = (tenant, run, form)
        shared: Shared[Cursor] | None = self._shared.get(key)
        if shared is None:
            shared = self._shared[key] = Shared(name, read, low=at, high=at)
            shared.task = asyncio.create_task(self._follow(shared))
        shared.readers += 1
        try:
            yield shared
        finally:
            shared.readers -= 1
            if not shared.readers:
                del self._shared[key]
                assert shared.task is not None
                shared.task.cancel()

    async def _follow(self, shared: Shared[Any]) -> None:
        loop = asyncio.get_running_loop()
        async with self._listener.on(shared.name, enter=True) as hint:
            shared.look = hint
            while shared.over is None:
                hint.clear()
                begun = loop.time()
                try:
                    page = await self.call(shared.read, shared.high)
                except Exception as error:
                    logger.warning("live_read_failed", extra={"error": type(error).__name__})
                    await asyncio.sleep(_AFTER_FAILURE)
                    hint.set()
                else:
                    shared.extend(page)
                    if page.more:
                        continue
                    await asyncio.sleep(_REST * (loop.time() - begun))
                await hint.wait()

    async def _look(self) -> None:
        """A hint may be lost: ask how far all logs go, and hint where one goes further than was read."""
        while True:
            await asyncio.sleep(LOOK_AGAIN)
            now = asyncio.get_running_loop().time()
            stalled = now - 2 * settings.STREAM_HEARTBEAT
            for task in [task for task, since in self.sending.items() if since < stalled]:
                task.cancel()  # who takes nothing cannot be told anything
            runs: dict[UUID, list[tuple[UUID, Shared[Any]]]] = {}
            for (tenant, run, _), shared in self._shared.items():
                if run is None:
                    shared.look.set()
                else:
                    runs.setdefault(tenant, []).append((run, shared))
            for tenant, watched in runs.items():
                with suppress(Exception):  # the next look asks again
                    found = await self.call(_last_seqs, tenant, list({run for run, _ in watched}))
                    for run, shared in watched:
                        if found.get(run) != shared.high:
                            shared.look.set()


def _last_seqs(tenant: UUID, runs: list[UUID]) -> dict[UUID, int]:
    return queries.last_seqs(tenant=tenant, run_ids=runs)
