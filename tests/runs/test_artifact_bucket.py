"""Artifacts in an S3-compatible store: a real server process, with the platform's process before it."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import boto3
import httpx
import pytest
from django.conf import settings
from django.core.files.storage import storages

from config.embedded.place import remembered_port
from config.settings import artifact_storage
from kernel import clock
from kernel.context import tenant_scope
from kernel.ids import uuid7
from privacy.stream import CHUNK
from runs import operations
from runs.models import Artifact
from runs.storage import ObjectMissing, bucket, store
from tests.cast import House
from tests.runs.artifacts import Waits, announced, upload, waits

Open = Callable[[str | None], httpx.Client]
CONTENT = os.urandom(18 * CHUNK + 5)  # three parts

pytestmark = pytest.mark.xdist_group("artifact_care")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A store of its own, with a bucket, and the settings that name it."""
    port = remembered_port(tmp_path_factory.mktemp("moto") / "port")
    endpoint = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(200):
            try:
                httpx.get(f"{endpoint}/moto-api/")
                break
            except httpx.TransportError:
                time.sleep(0.1)
        found = {
            "ARTIFACTS_S3_BUCKET": "artifacts",
            "ARTIFACTS_S3_ENDPOINT": endpoint,
            "ARTIFACTS_S3_REGION": "ap-south-1",
            "ARTIFACTS_S3_ACCESS_KEY": "key",
            "ARTIFACTS_S3_SECRET_KEY": "secret",
        }
        client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            region_name="ap-south-1",
            aws_access_key_id="key",
            aws_secret_access_key="secret",
        )
        client.create_bucket(Bucket="artifacts", CreateBucketConfiguration={"LocationConstraint": "ap-south-1"})
        client.close()
        yield found
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture
def s3(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The store, in this process, as the environment would set it up."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    everything = settings.STORAGES | {"artifacts": artifact_storage()}
    monkeypatch.setattr(settings, "STORAGES", everything)
    monkeypatch.setattr(storages, "_backends", everything)
    storages.__dict__.pop("backends", None)
    storages.__dict__["_storages"].pop("artifacts", None)
    found = store()
    yield found
    found._client.close()  # type: ignore[attr-defined]
    storages.__dict__.pop("backends", None)
    storages.__dict__["_storages"].pop("artifacts", None)


@pytest.fixture(scope="module")
def server(_database: None, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waits]:
    with waits(tmp_path_factory.mktemp("waits"), **environment) as found:
        yield found


@pytest.fixture
def agent(house: House, api: Open) -> httpx.Client:
    return api(house.keys["agent"])


def test_it_is_the_bucket(s3: Any) -> None:
    assert isinstance(s3, bucket.Bucket)


def test_up_and_down_through_the_process(server: Waits, s3: Any, agent: httpx.Client, house: House) -> None:
    artifact, url = announced(agent, CONTENT)
    pieces = (CONTENT[at : at + 200_000] for at in range(0, len(CONTENT), 200_000))
    assert server.put(url, pieces).status_code == 200
    get = agent.post(f"/artifacts/{artifact}/download").json()["url"]
    assert server.get(get).content == CONTENT
    end = 11 * CHUNK + 7
    ranged = server.get(get, Range=f"bytes={9 * CHUNK - 3}-{end}")
    assert (ranged.status_code, ranged.content) == (206, CONTENT[9 * CHUNK - 3 : end + 1])
    [object_id] = s3.page(house.id, None)
    reader = s3.open(house.id, object_id, offset=0, length=10**9)
    stored = reader.read(10**9)
    reader.close()
    assert CONTENT[:64] not in stored
    # Nothing of it lies on this machine's disk.
    assert not (settings.DATA_DIR / "artifacts" / house.id.hex).exists()


@pytest.mark.parametrize("size", [0, 1, 3 * CHUNK])
def test_small_ones(server: Waits, s3: Any, agent: httpx.Client, size: int) -> None:
    content = CONTENT[:size]
    artifact = upload(agent, content)
    got = server.get(agent.post(f"/artifacts/{artifact}/download").json()["url"])
    assert (got.status_code, got.content) == (200, content)


def test_what_is_refused_leaves_nothing(server: Waits, s3: Any, agent: httpx.Client, house: House) -> None:
    _, url = announced(agent, CONTENT)
    assert server.put(url, CONTENT[:-1] + b"?").json()["code"] == "content_mismatch"
    assert s3.page(house.id, None) == []
    assert uploads(s3) == []


def uploads(s3: Any) -> list[str]:
    found = s3._client.list_multipart_uploads(Bucket="artifacts").get("Uploads", [])
    return [upload["Key"] for upload in found]


def test_lost_objects_get_an_answer(server: Waits, s3: Any, agent: httpx.Client, house: House) -> None:
    artifact = upload(agent, b"x")
    url = agent.post(f"/artifacts/{artifact}/download").json()["url"]
    [object_id] = s3.page(house.id, None)
    s3.remove(house.id, object_id)
    s3.remove(house.id, object_id)
    with pytest.raises(ObjectMissing):
        s3.open(house.id, object_id, offset=0, length=1)
    assert server.get(url).json()["code"] == "artifact_unreadable"


def test_sweep_and_comparison(s3: Any, agent: httpx.Client, house: House) -> None:
    gone, lost, kept = upload(agent, b"gone"), upload(agent, b"lost"), upload(agent, b"kept")
    with tenant_scope(house.id):
        objects = dict(Artifact.objects.values_list("id", "object_id"))
    assert s3.page(house.id, None) == sorted(objects.values())
    assert agent.delete(f"/artifacts/{gone}").status_code == 204
    while operations.sweep_artifacts(now=clock.now()):
        pass
    assert s3.page(house.id, None) == sorted([objects[lost], objects[kept]])
    s3.remove(house.id, objects[lost])
    old, young = UUID(int=uuid7().int - (25 * 3600 * 1000 << 80)), uuid7()
    for orphan in (old, young):
        writer = s3.create(house.id, orphan)
        writer.write(b"x")
        writer.finish()
    begun = s3.create(house.id, uuid7())
    begun.write(b"x" * bucket.PART)
    assert len(uploads(s3)) == 1
    removed, missing = operations.reconcile_objects(now=clock.now(), only=house.id)
    assert (removed, missing) == (1, 1)
    assert s3.page(house.id, None) == sorted([objects[kept], young])
    assert agent.get(f"/artifacts/{lost}").json()["status"] == "failed"
    # What a killed writer left is given up when it is old; this server says of every upload that it began in 2010.
    assert uploads(s3) == []


def test_pages_of_a_listing(s3: Any, house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket, "PAGE", 2)
    wanted = sorted(uuid7() for _ in range(5))
    for object_id in wanted:
        writer = s3.create(house.id, object_id)
        writer.finish()
    found: list[UUID] = []
    while page := s3.page(house.id, found[-1] if found else None):
        assert len(page) <= 2
        found += page
    assert found == wanted
    assert house.id in s3.tenants()


def test_a_store_that_is_away(agent: httpx.Client, environment: dict[str, str], tmp_path: Path) -> None:
    """Nothing is lost, and it is said what to do."""
    artifact, url = announced(agent, CONTENT)
    with waits(tmp_path, **environment | {"ARTIFACTS_S3_ENDPOINT": "http://127.0.0.1:9"}) as server:
        answer = server.put(url, CONTENT)
        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    assert agent.get(f"/artifacts/{artifact}").json()["status"] == "uploading"
