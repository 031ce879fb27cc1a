"""Artifacts from the outside: announced over REST, carried by signed addresses through the real process, read back."""

import asyncio
import hashlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import httpx
import pytest
from django.conf import settings

from kernel import clock
from kernel.context import tenant_scope
from kernel.ids import uuid7
from privacy.stream import CHUNK
from runs import addresses
from runs.models import Artifact
from tests.cast import House
from tests.runs.artifacts import Waits, announce, announced, upload, waits
from tests.runs.driver import Worker

Open = Callable[[str | None], httpx.Client]
CONTENT = os.urandom(2 * CHUNK + 333)


@pytest.fixture(scope="module")
def server(_database: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waits]:
    with waits(tmp_path_factory.mktemp("waits")) as found:
        yield found


@pytest.fixture
def agent(house: House, api: Open) -> httpx.Client:
    return api(house.keys["agent"])


def code(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["code"]


def objects(house: House) -> list[Path]:
    folder = settings.DATA_DIR / "artifacts" / house.id.hex
    return sorted(folder.iterdir()) if folder.exists() else []


def download(agent: httpx.Client, artifact: UUID) -> str:
    response = agent.post(f"/artifacts/{artifact}/download")
    assert response.status_code == 200, response.text
    return str(response.json()["url"])


def test_what_is_uploaded_is_downloaded(server: Waits, agent: httpx.Client, house: House) -> None:
    artifact, url = announced(agent, CONTENT, name="umsätze 2026.bin")
    found = agent.get(f"/artifacts/{artifact}").json()
    assert (found["status"], found["scan"], found["referenced"]) == ("uploading", None, False)
    assert found["expires_at"] is not None
    assert code(agent.post(f"/artifacts/{artifact}/download")) == (409, "artifact_not_ready")

    answer = server.put(url, CONTENT)
    assert answer.status_code == 200, answer.text
    assert answer.json() == {"id": str(artifact), "status": "ready", "size": len(CONTENT)}
    found = agent.get(f"/artifacts/{artifact}").json()
    assert (found["status"], found["scan"], found["scanner"]) == ("ready", "unscanned", None)
    assert (found["name"], found["sha256"]) == ("umsätze 2026.bin", hashlib.sha256(CONTENT).hexdigest())

    got = server.get(download(agent, artifact))
    assert (got.status_code, got.content) == (200, CONTENT)
    assert got.headers["content-disposition"] == "attachment; filename*=utf-8''ums%C3%A4tze%202026.bin"
    assert got.headers["x-content-type-options"] == "nosniff"
    assert got.headers["cache-control"] == "private, no-store"
    # At rest there is ciphertext of that length, under a name that says nothing.
    [path] = objects(house)
    stored = path.read_bytes()
    assert CONTENT[:64] not in stored
    assert CONTENT[-64:] not in stored
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("size", [0, 1, CHUNK, 2 * CHUNK])
def test_sizes_at_the_edges(server: Waits, agent: httpx.Client, size: int) -> None:
    content = os.urandom(size)
    artifact, url = announced(agent, content)
    assert server.put(url, content).status_code == 200
    assert server.get(download(agent, artifact)).content == content


def test_a_body_without_a_length(server: Waits, agent: httpx.Client) -> None:
    artifact, url = announced(agent, CONTENT)
    pieces = (CONTENT[at : at + 70_000] for at in range(0, len(CONTENT), 70_000))
    assert server.put(url, pieces).status_code == 200
    assert server.get(download(agent, artifact)).content == CONTENT


@pytest.fixture
def stored(server: Waits, agent: httpx.Client) -> str:
    """The address of a stored artifact with CONTENT."""
    return download(agent, upload(agent, CONTENT))


SIZE = len(CONTENT)


@pytest.mark.parametrize(
    ("wanted", "start", "end"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=0-", 0, SIZE),
        ("bytes=-1", SIZE - 1, SIZE),
        (f"bytes=-{SIZE * 2}", 0, SIZE),
        (f"bytes={CHUNK - 1}-{CHUNK}", CHUNK - 1, CHUNK + 1),
        (f"bytes={CHUNK}-{2 * CHUNK - 1}", CHUNK, 2 * CHUNK),
        (f"bytes={2 * CHUNK}-", 2 * CHUNK, SIZE),
        (f"bytes=5-{SIZE * 9}", 5, SIZE),
        (f"bytes={SIZE - 1}-{SIZE - 1}", SIZE - 1, SIZE),
    ],
)
def test_ranges(server: Waits, stored: str, wanted: str, start: int, end: int) -> None:
    got = server.get(stored, Range=wanted)
    assert (got.status_code, got.content) == (206, CONTENT[start:end])
    assert got.headers["content-range"] == f"bytes {start}-{end - 1}/{SIZE}"


@pytest.mark.parametrize("wanted", [f"bytes={SIZE}-", "bytes=-0", f"bytes={10**17}-"])
def test_ranges_with_nothing_in_them(server: Waits, stored: str, wanted: str) -> None:
    got = server.get(stored, Range=wanted)
    assert code(got) == (416, "range_not_satisfiable")
    assert got.headers["content-range"] == f"bytes */{SIZE}"


@pytest.mark.parametrize(
    "wanted", ["bytes=0-0,5-9", "bytes=9-5", "bytes=-", "lines=1-2", "bytes=a-b", "bytes=1", "bytes=" + "9" * 30 + "-"]
)
def test_ranges_that_are_not_understood_get_the_whole(server: Waits, stored: str, wanted: str) -> None:
    got = server.get(stored, Range=wanted)
    assert (got.status_code, len(got.content)) == (200, SIZE)


def test_conditions_and_head(server: Waits, stored: str) -> None:
    whole = server.get(stored)
    etag = whole.headers["etag"]
    assert server.get(stored, **{"If-None-Match": etag}).status_code == 304
    assert server.get(stored, Range="bytes=0-9", **{"If-Range": etag}).status_code == 206
    assert server.get(stored, Range="bytes=0-9", **{"If-Range": '"other"'}).status_code == 200
    head = server.http.head(server.path(stored))
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", str(SIZE))


@pytest.mark.parametrize("sent", [CONTENT[:-1], CONTENT + b"x", b"", CONTENT[:-1] + bytes([CONTENT[-1] ^ 1])])
@pytest.mark.parametrize("chunked", [False, True])
def test_another_content_than_announced_is_refused(
    server: Waits, agent: httpx.Client, house: House, sent: bytes, chunked: bool
) -> None:
    artifact, url = announced(agent, CONTENT)
    body = (sent[at : at + 65_536] for at in range(0, len(sent), 65_536)) if chunked else sent
    assert code(server.put(url, body)) == (422, "content_mismatch")
    assert objects(house) == []
    assert agent.get(f"/artifacts/{artifact}").json()["status"] == "uploading"
    # The address may be used again.
    assert server.put(url, CONTENT).status_code == 200


def test_an_address_is_good_for_one_upload(server: Waits, agent: httpx.Client, house: House) -> None:
    artifact, url = announced(agent, CONTENT)
    assert server.put(url, CONTENT).status_code == 200
    assert code(server.put(url, CONTENT)) == (409, "artifact_uploaded")
    assert code(agent.post(f"/artifacts/{artifact}/upload")) == (409, "artifact_uploaded")
    assert len(objects(house)) == 1


def test_two_uploads_at_once_leave_one_object(server: Waits, agent: httpx.Client, house: House) -> None:
    artifact, url = announced(agent, CONTENT)

    async def both() -> list[int]:
        async with httpx.AsyncClient(timeout=60) as http:
            answers = await asyncio.gather(*(http.put(server.path(url), content=CONTENT) for _ in range(4)))
            return sorted(answer.status_code for answer in answers)

    assert asyncio.run(both()) == [200, 409, 409, 409]
    assert len(objects(house)) == 1
    assert server.get(download(agent, artifact)).content == CONTENT


def test_a_new_address_for_a_lost_answer(server: Waits, agent: httpx.Client) -> None:
    body = {"name": "a", "media_type": "text/plain", "size": 1, "sha256": hashlib.sha256(b"x").hexdigest()}
    first = agent.post("/artifacts", json=body, headers={"Idempotency-Key": "one"})
    again = agent.post("/artifacts", json=body, headers={"Idempotency-Key": "one"})
    # An address is a secret: a replay does not tell it.
    assert again.json() == {"id": first.json()["id"], "upload": None}
    transfer = agent.post(f"/artifacts/{first.json()['id']}/upload").json()
    assert transfer["method"] == "PUT"
    assert server.put(transfer["url"], b"x").status_code == 200


# Addresses -----------------------------------------------------------------------------------------------------------


def changed(url: str, **members: str | None) -> str:
    parts = urlsplit(url)
    query = dict(part.split("=", 1) for part in parts.query.split("&")) | members
    return f"{parts.path}?" + "&".join(f"{name}={value}" for name, value in query.items() if value is not None)


def test_a_changed_address_is_refused(server: Waits, agent: httpx.Client, other_house: House) -> None:
    artifact, url = announced(agent, CONTENT)
    other, _ = announced(agent, CONTENT)
    upload(agent, CONTENT)
    get = download(agent, upload(agent, CONTENT))
    later = str(int((clock.now() + timedelta(days=1)).timestamp()))
    bad = [
        changed(url, tenant=other_house.id.hex),
        changed(url, expires=later),
        changed(url, key="2"),
        changed(url, key=None),
        changed(url, signature="A" * 43),
        changed(url, signature=""),
        changed(url, signature="%C3%A4"),
        changed(url, signature=None),
        changed(url, extra="1"),
        changed(url, tenant=str(other_house.id)),
        changed(url, expires="-1"),
        changed(url, expires="9" * 40),
        changed(url).replace(str(artifact), str(other)),
        changed(url) + "&tenant=" + other_house.id.hex,
        changed(url).partition("?")[0],
        changed(get),
    ]
    for path in bad:
        assert code(server.http.put(path, content=CONTENT)) == (403, "address_refused"), path
    # What is signed for one method is good for that one.
    assert code(server.http.get(changed(url))) == (403, "address_refused")
    assert code(server.http.post(changed(url))) == (405, "method_not_allowed")
    assert agent.get(f"/artifacts/{artifact}").json()["status"] == "uploading"


def test_an_expired_address_is_refused(server: Waits, agent: httpx.Client, house: House) -> None:
    artifact = upload(agent, CONTENT)
    long_ago = clock.now() - timedelta(seconds=settings.ARTIFACT_URL_SECONDS + 2)
    address = addresses.sign(method="GET", tenant=house.id, artifact_id=artifact, now=long_ago)
    assert code(server.get(address.url)) == (403, "address_expired")


def test_an_address_of_a_deleted_artifact_leads_nowhere(server: Waits, agent: httpx.Client) -> None:
    artifact = upload(agent, CONTENT)
    url = download(agent, artifact)
    assert agent.delete(f"/artifacts/{artifact}").status_code == 204
    assert code(server.get(url)) == (404, "not_found")
    assert code(agent.get(f"/artifacts/{artifact}")) == (404, "not_found")


def test_a_key_is_no_address(server: Waits, agent: httpx.Client, house: House) -> None:
    artifact = upload(agent, CONTENT)
    path = f"{server.base}/api/v1/artifacts/{artifact}/content"
    response = server.http.get(path, headers={"Authorization": f"Bearer {house.keys['admin']}"})
    assert code(response) == (403, "address_refused")


# What may be announced -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["../../etc/passwd", "a/b", "a\\b", "..", ".", " a", "a ", "a.", "a\nb", "gpj.\u202eexe", "a\u200fb", "\u2066x",
     "a\x7f", "\ufeffa"],
)  # fmt: skip
def test_hostile_names_are_refused(agent: httpx.Client, name: str) -> None:
    response = announce(agent, b"x", name=name)
    assert code(response) == (422, "invalid")
    assert response.json()["errors"][0]["path"] == "/name"


@pytest.mark.parametrize("name", ["a\x00b", "", "x" * 256])
def test_names_that_are_no_names(agent: httpx.Client, name: str) -> None:
    assert announce(agent, b"x", name=name).status_code == 422


@pytest.mark.parametrize("name", ["日本語.pdf", "a b;c\"d'e%20.txt", "x" * 255, "🦉", "con", ".env"])
def test_odd_names_come_back(server: Waits, agent: httpx.Client, name: str) -> None:
    artifact = upload(agent, b"x", name=name)
    assert agent.get(f"/artifacts/{artifact}").json()["name"] == name
    assert server.get(download(agent, artifact)).headers["content-disposition"].startswith("attachment; filename")


@pytest.mark.parametrize(
    ("change", "path", "status"),
    [
        ({"size": -1}, "/size", 422),
        ({"size": 10 * 1024**3 + 1}, "/size", 413),
        ({"size": "1"}, "/size", 422),
        ({"sha256": "0" * 63}, "/sha256", 422),
        ({"sha256": "A" * 64}, "/sha256", 422),
        ({"media_type": "text"}, "/media_type", 422),
        ({"media_type": "text/plain; charset=utf-8"}, "/media_type", 422),
        ({"media_type": "Text/Plain"}, "/media_type", 422),
        ({"project": "nowhere"}, "/project", 422),
        ({"extra": 1}, "/extra", 422),
    ],
)
def test_wrong_values_are_named(agent: httpx.Client, change: dict[str, Any], path: str, status: int) -> None:
    response = announce(agent, b"x", **change)
    assert response.status_code == status
    assert response.json()["errors"][0]["path"] == path


def test_a_credential_in_a_name_is_refused(agent: httpx.Client) -> None:
    assert code(announce(agent, b"x", name="AKIAABCDEFGHIJKLMNOP")) == (422, "credential_refused")


HTML = b"\xef\xbb\xbf \n<!DOCTYPE html><script>alert(1)</script>"
SVG = b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"/>'


@pytest.mark.parametrize(
    ("media_type", "content"),
    [
        ("image/png", HTML),
        ("text/plain", HTML),
        ("text/plain", "<html>".encode("utf-16")),
        ("image/png", SVG),
        ("application/pdf", b"\x7fELF" + b"\0" * 2000),
        ("text/plain", b"#!/bin/sh\nrm -rf /\n"),
        ("application/octet-stream", b"MZ" + b"\0" * 100),
        ("image/jpeg", b"\x89PNG\r\n\x1a\n" + b"\0" * 100),
        ("application/zip", b"x" * 5000),
    ],
)
def test_a_content_of_another_type_is_refused(
    server: Waits, agent: httpx.Client, house: House, media_type: str, content: bytes
) -> None:
    _, url = announced(agent, content, media_type=media_type)
    assert code(server.put(url, content)) == (422, "media_type_refused")
    assert objects(house) == []


@pytest.mark.parametrize(("media_type", "content"), [("text/html", HTML), ("image/svg+xml", SVG)])
def test_a_page_is_never_served_as_one(server: Waits, agent: httpx.Client, media_type: str, content: bytes) -> None:
    got = server.get(download(agent, upload(agent, content, media_type=media_type)))
    assert got.headers["content-type"] == "application/octet-stream"
    assert got.headers["content-security-policy"] == "default-src 'none'; sandbox"
    assert got.headers["content-disposition"].startswith("attachment")


def test_types_that_a_deployment_does_not_take(agent: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "ARTIFACT_TYPES_DENIED", ["text/html", "video/*"])
    for media_type in ("text/html", "video/mp4"):
        assert code(announce(agent, b"x", media_type=media_type)) == (422, "media_type_refused")
    monkeypatch.setattr(settings, "ARTIFACT_TYPES_ALLOWED", ["image/*"])
    assert announce(agent, b"x", media_type="image/png").status_code == 201
    assert code(announce(agent, b"x", media_type="text/csv")) == (422, "media_type_refused")


# Runs, references, tenants -------------------------------------------------------------------------------------------


def test_a_runs_artifact_stands_in_its_log(house: House, agent: httpx.Client) -> None:
    worker = Worker(house)
    run = worker.start("a", subject="customer-1")
    artifact = upload(agent, b"evidence", run_id=run)
    [event] = [event for event in worker.get("/events")["items"] if event["type"] == "artifact_attached"]
    assert event["actor_kind"] == "system"
    assert event["artifact"] == {
        "id": str(artifact), "name": "report.bin", "media_type": "application/octet-stream", "size": 8,
        "sha256": hashlib.sha256(b"evidence").hexdigest(),
    }  # fmt: skip
    found = agent.get(f"/runs/{run}/artifacts").json()
    assert [row["id"] for row in found["items"]] == [str(artifact)]
    assert (found["items"][0]["referenced"], found["items"][0]["expires_at"]) == (True, None)
    assert code(agent.delete(f"/artifacts/{artifact}")) == (409, "artifact_referenced")
    assert agent.get(f"/runs/{run}/verify").json()["ok"]


def test_a_run_can_refer_to_an_artifact(house: House, agent: httpx.Client) -> None:
    worker = Worker(house)
    run = worker.start("a")
    artifact, _ = announced(agent, b"x")
    refer = {"artifact_id": str(artifact)}
    assert code(agent.post(f"/runs/{run}/artifacts", json=refer)) == (409, "artifact_not_ready")
    artifact = upload(agent, b"x")
    refer = {"artifact_id": str(artifact)}
    first = agent.post(f"/runs/{run}/artifacts", json=refer)
    assert first.status_code == 200, first.text
    assert agent.post(f"/runs/{run}/artifacts", json=refer).json() == first.json()
    events = [event for event in worker.get("/events")["items"] if event["type"] == "artifact_attached"]
    assert [(event["seq"], event["actor_kind"]) for event in events] == [(first.json()["seq"], "key")]
    assert [row["id"] for row in agent.get(f"/runs/{run}/artifacts").json()["items"]] == [str(artifact)]


def test_a_run_that_is_over_refers_without_an_event(house: House, agent: httpx.Client) -> None:
    worker = Worker(house)
    run = worker.start("a")
    worker.claim()
    last = worker.commit(step={"outcome": "succeeded"})["last_seq"]
    artifact = upload(agent, b"late", run_id=run)
    assert agent.get(f"/artifacts/{artifact}").json()["referenced"]
    assert worker.get("/events")["last_seq"] == last


def test_subjects_are_kept_apart(house: House, agent: httpx.Client) -> None:
    one, two = Worker(house), Worker(house)
    one.start("a", subject="customer-1")
    two.start("a", subject="customer-2")
    artifact = upload(agent, b"of one", run_id=one.run)
    refer = {"artifact_id": str(artifact)}
    assert code(agent.post(f"/runs/{two.run}/artifacts", json=refer)) == (409, "other_subject")


def test_the_same_content_is_stored_once_for_each_subject(
    server: Waits, house: House, other_house: House, agent: httpx.Client, api: Open
) -> None:
    workers = [Worker(house) for _ in range(3)]
    for worker, subject in zip(workers, ("customer-1", "customer-1", "customer-2"), strict=True):
        worker.start("a", subject=subject)
    found = [upload(agent, CONTENT, run_id=worker.run) for worker in workers]
    assert len(objects(house)) == 2
    found += [upload(agent, CONTENT), upload(agent, CONTENT)]
    assert len(objects(house)) == 3
    theirs = upload(api(other_house.keys["agent"]), CONTENT)
    assert len(objects(other_house)) == 1
    for artifact in found:
        assert server.get(download(agent, artifact)).content == CONTENT
    with tenant_scope(house.id):
        digests = set(map(bytes, Artifact.objects.values_list("content_digest", flat=True)))
    with tenant_scope(other_house.id):
        digests |= {bytes(Artifact.objects.get(id=theirs).content_digest)}
    assert len(digests) == 4
    assert hashlib.sha256(CONTENT).digest() not in digests


def test_a_bound_key_sees_its_own(house: House, api: Open, agent: httpx.Client) -> None:
    admin = api(house.keys["admin"])
    assert admin.post("/projects", json={"slug": "side", "name": "Side"}).status_code == 201
    side = admin.get("/projects").json()["items"][-1]["id"]
    scopes = ["artifacts:read", "artifacts:write"]
    key = admin.post("/keys", json={"name": "side", "scopes": scopes, "project_ids": [side]}).json()["secret"]
    bound = api(key)
    mine = upload(bound, b"mine")
    assert bound.get(f"/artifacts/{mine}").status_code == 200
    for theirs in (upload(admin, b"x", project="main"), upload(agent, b"x", project="main")):
        for call in (bound.get(f"/artifacts/{theirs}"), bound.post(f"/artifacts/{theirs}/download")):
            assert code(call) == (404, "not_found")
        assert bound.delete(f"/artifacts/{theirs}").status_code == 404
    # The agent's key sees what the agent made.
    assert agent.get(f"/artifacts/{mine}").status_code == 404


# Damage and breaks ---------------------------------------------------------------------------------------------------


def test_damage_is_never_served(server: Waits, agent: httpx.Client, house: House) -> None:
    first, second = upload(agent, CONTENT), upload(agent, CONTENT[::-1])
    one, two = objects(house)
    good = one.read_bytes()
    url = download(agent, first)
    for damage in (good[: CHUNK // 2], b"", two.read_bytes(), good[:100] + b"x" + good[101:]):
        one.write_bytes(damage)
        assert code(server.get(url)) == (409, "artifact_unreadable")
    # Later on the head is sent already: the answer breaks off.
    for damage in (good[:-1], good[: CHUNK + 500] + b"x" + good[CHUNK + 501 :]):
        one.write_bytes(damage)
        with pytest.raises(httpx.RemoteProtocolError):
            server.get(url)
    one.unlink()
    assert code(server.get(url)) == (409, "artifact_unreadable")
    one.write_bytes(good)
    assert server.get(url).content == CONTENT
    assert server.get(download(agent, second)).content == CONTENT[::-1]


def test_a_connection_that_breaks_leaves_nothing(server: Waits, agent: httpx.Client, house: House) -> None:
    artifact, url = announced(agent, CONTENT)
    parts = urlsplit(server.path(url))
    for _ in range(3):
        with socket.create_connection((parts.hostname or "", parts.port or 0)) as connection:
            head = f"PUT {parts.path}?{parts.query} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(CONTENT)}\r\n\r\n"
            connection.sendall(head.encode() + CONTENT[: CHUNK + 5])
    assert steadily(house, 0) == []
    assert server.put(url, CONTENT).status_code == 200
    assert server.get(download(agent, artifact)).content == CONTENT
    assert not any(path.name.endswith(".part") for path in steadily(house, 1))


def steadily(house: House, count: int) -> list[Path]:
    """What lies in the store once there were so many for a second: the server may not have begun with what was sent to it."""
    steady = 0
    for _ in range(600):
        steady = steady + 1 if len(objects(house)) == count else 0
        if steady == 20:
            break
        threading.Event().wait(0.05)
    return objects(house)


def test_idle_peers_hold_no_thread(server: Waits, agent: httpx.Client) -> None:
    """More slow uploads than there are threads, and others are served."""
    held = []
    try:
        for number in range(20):
            content = CONTENT[number:]
            _, url = announced(agent, content)
            parts = urlsplit(server.path(url))
            connection = socket.create_connection((parts.hostname or "", parts.port or 0))
            held.append(connection)
            head = f"PUT {parts.path}?{parts.query} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n"
            connection.sendall(head.encode() + content[:1000])
        artifact, url = announced(agent, CONTENT)
        assert server.put(url, CONTENT).status_code == 200
        assert server.get(download(agent, artifact)).content == CONTENT
    finally:
        for connection in held:
            connection.close()


def test_too_many_transfers_are_told_to_come_again(agent: httpx.Client, tmp_path: Path) -> None:
    with waits(tmp_path, ARTIFACT_TRANSFERS="1") as small:
        _, url = announced(agent, CONTENT)
        parts = urlsplit(small.path(url))
        with socket.create_connection((parts.hostname or "", parts.port or 0)) as connection:
            head = f"PUT {parts.path}?{parts.query} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(CONTENT)}\r\n\r\n"
            connection.sendall(head.encode() + CONTENT[:1000])
            artifact, second = announced(agent, b"x")
            for _ in range(100):
                answer = small.put(second, b"x")
                if answer.status_code == 503:
                    break
                artifact, second = announced(agent, b"x")
            assert code(answer) == (503, "too_many_transfers")
            assert answer.headers["retry-after"] == "1"
        assert agent.get(f"/artifacts/{artifact}").json()["status"] == "uploading"


def test_unknown_addresses_and_ids(server: Waits, agent: httpx.Client, house: House) -> None:
    nowhere = uuid7()
    address = addresses.sign(method="GET", tenant=house.id, artifact_id=nowhere, now=clock.now())
    assert code(server.get(address.url)) == (404, "not_found")
    assert server.http.get("/api/v1/artifacts/x/content").status_code == 404
