"""An artifact of any size passes through the real process in memory that stays flat. 5 GB with --proof."""

import hashlib
import platform
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import httpx
import pytest
from django.conf import settings

from kernel import clock
from runs import operations
from tests.cast import House
from tests.runs.artifacts import Waits, announce, waits
from tests.servers import ROOT

pytestmark = [pytest.mark.proof, pytest.mark.xdist_group("scale")]

MB = 1_000_000
PIECE = 4 * MB
FLAT = 100 * MB  # how much the memory may grow at most


@dataclass(frozen=True)
class Measured:
    """What one way took, and the process's memory: before, and at its highest, in bytes."""

    seconds: float
    before: int
    highest: int


def content(size: int) -> Iterator[bytes]:
    """Bytes that do not repeat, piece by piece."""
    block = hashlib.shake_128(b"artifact").digest(PIECE)
    for number in range(-(-size // PIECE)):
        length = min(PIECE, size - number * PIECE)
        yield (number.to_bytes(8, "big") + block[8:])[:length]


def measure(server: Waits, work: Callable[[], None]) -> Measured:
    before = highest = server.rss()
    over = threading.Event()

    def watch() -> None:
        nonlocal highest
        while not over.wait(0.02):
            highest = max(highest, server.rss())

    watcher = threading.Thread(target=watch)
    watcher.start()
    begin = time.perf_counter()
    try:
        work()
    finally:
        seconds = time.perf_counter() - begin
        over.set()
        watcher.join()
    return Measured(seconds, before, highest)


def test_memory_stays_flat(
    house: House, api: Callable[[str | None], httpx.Client], tmp_path: Path, proof: bool
) -> None:
    size = 5_000 * MB if proof else 50 * MB
    agent = api(house.keys["agent"])
    digest = hashlib.sha256()
    for piece in content(size):
        digest.update(piece)

    with waits(tmp_path) as server:
        first = announce(agent, b"warm").json()
        assert server.put(first["upload"]["url"], b"warm").status_code == 200
        created = announce(agent, b"", size=size, sha256=digest.hexdigest()).json()
        artifact, url = UUID(created["id"]), server.path(created["upload"]["url"])

        def up() -> None:
            answer = server.http.put(url, content=content(size), headers={"Content-Length": str(size)})
            assert answer.status_code == 200, answer.text

        uploaded = measure(server, up)
        get = server.path(agent.post(f"/artifacts/{artifact}/download").json()["url"])
        found = hashlib.sha256()

        def down() -> None:
            with server.http.stream("GET", get) as answer:
                assert answer.status_code == 200
                for piece in answer.iter_raw():
                    found.update(piece)

        downloaded = measure(server, down)
        assert found.digest() == digest.digest()
        middle = size // 2
        ranged = server.http.get(get, headers={"Range": f"bytes={middle}-{middle + 99}"})
        assert ranged.status_code == 206

    assert agent.delete(f"/artifacts/{artifact}").status_code == 204
    while operations.sweep_artifacts(now=clock.now()):
        pass
    assert len(list((settings.DATA_DIR / "artifacts" / house.id.hex).iterdir())) == 1
    for way, measured in (("upload", uploaded), ("download", downloaded)):
        assert measured.highest - measured.before < FLAT, way
    text = REPORT.format(
        size=size // MB, date=f"{clock.now():%Y-%m-%d}", python=platform.python_version(), flat=FLAT // MB,
        rows="\n".join(_row(way, size, measured) for way, measured in (("upload", uploaded), ("download", downloaded))),
    )  # fmt: skip
    print(text)
    if proof:
        (ROOT / "tests" / "proof" / "artifacts.md").write_text(text)


def _row(way: str, size: int, measured: Measured) -> str:
    speed = size / MB / measured.seconds
    return (
        f"| {way} | {measured.seconds:.1f} | {speed:.0f} | {measured.before / MB:.0f} | {measured.highest / MB:.0f} |"
    )


REPORT = """# A large artifact

{size:,} MB through the process for waits and streams: received, hashed, encrypted and written to a folder, and back. Written by
`make proof` (`tests/runs/test_artifacts_scale.py`, which fails when the memory grows by {flat} MB).

{date}; Python {python}; client and server on one machine, shared with other work.

| way | seconds | MB/s | memory before, MB | memory at its highest, MB |
|---|---:|---:|---:|---:|
{rows}
"""
