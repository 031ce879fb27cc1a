"""Scanning: with the real clamd where it is installed, and with servers that fail in every way a socket can."""

import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest
from django.conf import settings

from kernel import clock
from kernel.context import tenant_scope
from runs import operations, scanner
from runs.models import Artifact
from runs.scanner import ClamAV, ScanFailed
from tests.cast import House
from tests.runs.artifacts import announce, upload
from tests.runs.driver import Worker

Open = Callable[[str | None], httpx.Client]
# In two parts, so that no scanner takes this file for the test file.
EICAR = rb"X5O!P%@AP[4\PZX54(P^)7CC)7}$EICAR-STANDARD-" + rb"ANTIVIRUS-TEST-FILE!$H+H*"
SIGNATURE = "44d88612fea8a8f36de82e1278abb02f:68:Eicar-Test-Signature\n"


@pytest.fixture
def agent(house: House, api: Open) -> httpx.Client:
    return api(house.keys["agent"])


def scan(house: House, artifact: UUID) -> str | None:
    return operations.scan_artifact(tenant=house.id, artifact_id=artifact, now=clock.now())


def code(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["code"]


def objects(house: House) -> list[Path]:
    folder = settings.DATA_DIR / "artifacts" / house.id.hex
    return sorted(folder.iterdir()) if folder.exists() else []


# The real one --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def clamd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """clamd with one signature of its own: nothing is downloaded."""
    program = shutil.which("clamd", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
    if program is None:
        pytest.skip("clamd is not installed (Debian: clamav-daemon)")
    folder = tmp_path_factory.mktemp("clamd")
    (folder / "db").mkdir()
    (folder / "db" / "eicar.hdb").write_text(SIGNATURE)
    lines = ("Foreground yes", f"DatabaseDirectory {folder}/db", f"LocalSocket {folder}/s", f"TemporaryDirectory {folder}",
             "StreamMaxLength 3M")  # fmt: skip
    (folder / "clamd.conf").write_text("\n".join(lines) + "\n")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program, "-c", str(folder / "clamd.conf")], stdout=log, stderr=subprocess.STDOUT)
    for _ in range(200):
        with suppress(ScanFailed):
            ClamAV(f"unix://{folder}/s").scan([b""])
            break
        assert process.poll() is None, (folder / "log").read_text()
        time.sleep(0.1)
    yield f"unix://{folder}/s"
    process.terminate()
    process.wait(20)


def test_the_test_file_is_found_and_destroyed(
    clamd: str, house: House, agent: httpx.Client, api: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "CLAMD_URL", clamd)
    worker = Worker(house)
    run = worker.start("a")
    artifact = upload(agent, EICAR, media_type="text/plain", run_id=run)
    assert agent.get(f"/artifacts/{artifact}").json()["status"] == "scanning"
    assert code(agent.post(f"/artifacts/{artifact}/download")) == (409, "artifact_not_ready")
    assert scan(house, artifact) == "infected"
    found = agent.get(f"/artifacts/{artifact}").json()
    assert (found["status"], found["scan"], found["referenced"]) == ("infected", "infected", False)
    assert found["scanner"].startswith("ClamAV")
    assert code(agent.post(f"/artifacts/{artifact}/download")) == (410, "artifact_infected")
    assert objects(house) == []
    [entry] = [
        row for row in api(house.keys["admin"]).get("/audit").json()["items"] if row["action"] == "artifact.infected"
    ]
    assert entry["target_id"] == str(artifact)
    assert scan(house, artifact) == "infected"


def test_the_rest_is_clean(clamd: str, house: House, agent: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "CLAMD_URL", clamd)
    for content in (b"hello", b"", b"x" * 2_500_000):
        artifact = upload(agent, content)
        assert scan(house, artifact) == "ready"
        found = agent.get(f"/artifacts/{artifact}").json()
        assert (found["status"], found["scan"]) == ("ready", "clean")


def test_what_is_larger_than_the_scanners_limit_is_not_readable(
    clamd: str, house: House, agent: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "CLAMD_URL", clamd)
    artifact = upload(agent, b"x" * 5_000_000)
    assert scan(house, artifact) == "scanning"
    assert code(agent.post(f"/artifacts/{artifact}/download")) == (409, "artifact_not_ready")
    # Ours is told before anything is uploaded.
    monkeypatch.setattr(settings, "CLAMD_MAX_BYTES", 1_000_000)
    response = announce(agent, b"x" * 1_000_001)
    assert (*code(response), response.json()["limit"]) == (413, "artifact_too_large", 1_000_000)
    with pytest.raises(ScanFailed):
        scanner.scanner().scan([b"x" * 600_000, b"x" * 600_000])


def test_what_turns_out_infected_takes_its_copies_along(
    clamd: str, house: House, agent: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first was read before there was a scanner."""
    first = upload(agent, EICAR, media_type="text/plain")
    assert agent.post(f"/artifacts/{first}/download").status_code == 200
    monkeypatch.setattr(settings, "CLAMD_URL", clamd)
    second = upload(agent, EICAR, media_type="text/plain")
    assert len(objects(house)) == 1
    assert scan(house, second) == "infected"
    for artifact in (first, second):
        assert code(agent.post(f"/artifacts/{artifact}/download")) == (410, "artifact_infected")
    assert objects(house) == []


# Servers that fail ---------------------------------------------------------------------------------------------------

Behaviour = Callable[[socket.socket], None]


class Odd:
    """A server on a real socket that speaks clamd's protocol up to the scan, and then does what it is told."""

    def __init__(self, behave: Behaviour) -> None:
        self.behave = behave
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"tcp://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.run, daemon=True).start()

    def run(self) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=self.answer, args=(self.listener.accept()[0],), daemon=True).start()

    def answer(self, peer: socket.socket) -> None:
        with peer, suppress(OSError):
            command = b""
            while not command.endswith(b"\n"):
                command += peer.recv(1)
            if command == b"nVERSION\n":
                peer.sendall(b"ClamAV 1.0/1/today\n")
            else:
                self.behave(peer)

    def close(self) -> None:
        self.listener.close()


def swallow(peer: socket.socket) -> None:
    """Take the whole stream."""
    rest = b""
    while not rest.endswith(b"\0\0\0\0"):
        piece = peer.recv(65536)
        if not piece:
            return
        rest = (rest + piece)[-4:]


def say(answer: bytes) -> Behaviour:
    def behave(peer: socket.socket) -> None:
        swallow(peer)
        peer.sendall(answer)

    return behave


def silent(peer: socket.socket) -> None:
    swallow(peer)
    time.sleep(5)


def deaf(peer: socket.socket) -> None:
    time.sleep(5)


def hang_up(peer: socket.socket) -> None:
    peer.recv(1)


FAILURES: dict[str, Behaviour] = {
    "no answer": silent,
    "takes nothing": deaf,
    "hangs up": hang_up,
    "empty": say(b""),
    "blank": say(b"\n"),
    "size limit": say(b"INSTREAM size limit exceeded. ERROR\n"),
    "error": say(b"stream: Can't allocate memory ERROR\n"),
    "nonsense": say(b"HTTP/1.1 200 OK\n"),
    "no text": say(b"\xff\xfe\xfd\n"),
    "cut": say(b"stream: O"),
    "of another": say(b"file: OK\n"),
    "both": say(b"stream: OK FOUND OK\n"),
    "nameless": say(b"stream: FOUND\n"),
}


@pytest.fixture(params=FAILURES)
def failing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Odd]:
    monkeypatch.setattr(scanner, "TIMEOUT", 0.5)
    odd = Odd(FAILURES[request.param])
    yield odd
    odd.close()


def test_no_clear_answer_is_no_verdict(
    failing: Odd, house: House, agent: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "CLAMD_URL", failing.url)
    artifact = upload(agent, b"x" * 3_000_000)
    before = clock.now()
    for tries in (1, 2):
        assert scan(house, artifact) == "scanning"
        with tenant_scope(house.id):
            row = Artifact.objects.get(id=artifact)
        # It is due again, later each time.
        assert row.scans == tries
        assert row.due_at is not None
        assert (row.due_at - before).total_seconds() >= 2**tries
    assert code(agent.post(f"/artifacts/{artifact}/download")) == (409, "artifact_not_ready")
    assert len(objects(house)) == 1
    # The scanner is back.
    good = Odd(say(b"stream: OK\n"))
    monkeypatch.setattr(settings, "CLAMD_URL", good.url)
    assert scan(house, artifact) == "ready"
    assert agent.post(f"/artifacts/{artifact}/download").status_code == 200
    good.close()


def test_nobody_there(house: House, agent: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = Odd(hang_up)
    odd.close()
    monkeypatch.setattr(settings, "CLAMD_URL", odd.url)
    assert scan(house, upload(agent, b"x")) == "scanning"
    monkeypatch.setattr(settings, "CLAMD_URL", "unix:///nowhere/clamd")
    assert scan(house, upload(agent, b"y")) == "scanning"


def test_what_the_scanner_gets_is_the_content(
    house: House, agent: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    got = bytearray()

    def keep(peer: socket.socket) -> None:
        reader = peer.makefile("rb")
        while length := int.from_bytes(reader.read(4), "big"):
            got.extend(reader.read(length))
        peer.sendall(b"stream: OK\n")

    odd = Odd(keep)
    monkeypatch.setattr(settings, "CLAMD_URL", odd.url)
    content = b"0123456789" * 250_000
    assert scan(house, upload(agent, content)) == "ready"
    odd.close()
    assert bytes(got) == content


def test_damaged_content_fails_and_is_said(
    house: House, agent: httpx.Client, api: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = Odd(say(b"stream: OK\n"))
    monkeypatch.setattr(settings, "CLAMD_URL", odd.url)
    artifact = upload(agent, b"x" * 100)
    [path] = objects(house)
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    assert scan(house, artifact) == "failed"
    assert code(agent.post(f"/artifacts/{artifact}/download")) == (410, "artifact_gone")
    audit: list[dict[str, Any]] = api(house.keys["admin"]).get("/audit").json()["items"]
    assert [row["target_id"] for row in audit if row["action"] == "artifact.lost"] == [str(artifact)]
    odd.close()
