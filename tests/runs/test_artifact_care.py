"""What the platform does to artifacts by itself, cut off at every point and done again."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from uuid import UUID, uuid4

import httpx
import pytest
from django.conf import settings

from kernel import clock
from kernel.actor import system
from kernel.context import tenant_scope
from kernel.ids import uuid7
from privacy import operations as privacy_ops
from privacy.models import HoldKind
from runs import operations
from runs.models import Artifact
from tests.cast import House
from tests.runs.artifact_killer import CONTENT
from tests.runs.artifacts import announced, upload, waits
from tests.runs.driver import Worker
from tests.servers import ROOT

Open = Callable[[str | None], httpx.Client]

# A sweep looks at every tenant of the worker's database: the tests of this file take turns.
pytestmark = pytest.mark.xdist_group("artifact_care")


@pytest.fixture
def agent(house: House, api: Open) -> httpx.Client:
    return api(house.keys["agent"])


def folder(house: House) -> Path:
    found: Path = settings.DATA_DIR / "artifacts" / house.id.hex
    return found


def names(house: House) -> list[str]:
    return sorted(path.name for path in folder(house).iterdir()) if folder(house).exists() else []


def row(house: House, artifact: UUID) -> Artifact:
    with tenant_scope(house.id):
        found: Artifact = Artifact.objects.get(id=artifact)
    return found


def age(house: House, artifact: UUID) -> None:
    """Let the artifact's time come."""
    with tenant_scope(house.id):
        Artifact.objects.filter(id=artifact, due_at__isnull=False).update(due_at=clock.now() - timedelta(seconds=1))


def sweep() -> None:
    """Until nothing is due any more: letting go is one step, removing another."""
    while operations.sweep_artifacts(now=clock.now()):
        pass


def test_an_upload_that_never_came_expires(house: House, agent: httpx.Client) -> None:
    artifact, _ = announced(agent, b"x")
    sweep()
    assert row(house, artifact).status == "uploading"
    age(house, artifact)
    sweep()
    assert row(house, artifact).status == "expired"
    assert agent.post(f"/artifacts/{artifact}/upload").json()["code"] == "artifact_uploaded"
    assert agent.post(f"/artifacts/{artifact}/download").json()["code"] == "artifact_gone"


def test_what_nothing_refers_to_goes(house: House, other_house: House, agent: httpx.Client, api: Open) -> None:
    run = Worker(house).start("a")
    kept = upload(agent, b"kept", run_id=run)
    artifact = upload(agent, b"orphan")
    theirs = upload(api(other_house.keys["agent"]), b"orphan")
    sweep()
    assert row(house, artifact).status == "ready"
    age(house, artifact)
    age(house, kept)
    sweep()
    assert (row(house, artifact).status, row(house, artifact).object_id) == ("deleted", None)
    assert row(house, kept).status == row(other_house, theirs).status == "ready"
    assert len(names(house)) == len(names(other_house)) == 1
    assert agent.get(f"/artifacts/{artifact}").status_code == 404
    audit = api(house.keys["admin"]).get("/audit").json()["items"]
    assert [entry["target_id"] for entry in audit if entry["action"] == "artifact.let_go"] == [str(artifact)]


def test_a_shared_object_goes_with_its_last_artifact(house: House, agent: httpx.Client) -> None:
    first, second = upload(agent, b"same"), upload(agent, b"same")
    assert len(names(house)) == 1
    assert agent.delete(f"/artifacts/{first}").status_code == 204
    sweep()
    assert len(names(house)) == 1
    assert agent.post(f"/artifacts/{second}/download").status_code == 200
    assert agent.delete(f"/artifacts/{second}").status_code == 204
    sweep()
    assert names(house) == []
    # And comes anew.
    third = upload(agent, b"same")
    assert agent.post(f"/artifacts/{third}/download").status_code == 200
    assert len(names(house)) == 1


def test_what_refers_to_an_artifact_in_time_keeps_it(house: House, agent: httpx.Client) -> None:
    run, artifact = Worker(house).start("a"), upload(agent, b"x")
    age(house, artifact)
    assert agent.post(f"/runs/{run}/artifacts", json={"artifact_id": str(artifact)}).status_code == 200
    sweep()
    assert row(house, artifact).status == "ready"


def test_a_hold_keeps_it(house: House, agent: httpx.Client) -> None:
    artifact = upload(agent, b"x")
    now = clock.now()
    with tenant_scope(house.id):
        hold = privacy_ops.place_hold(
            tenant=house.id, kind=HoldKind.PROJECT, target_id=house.project_id, reason="dispute",
            review_on=now.date(), actor=system("tests"), now=now,
        )  # fmt: skip
    age(house, artifact)
    sweep()
    assert row(house, artifact).status == "ready"
    assert agent.delete(f"/artifacts/{artifact}").json()["code"] == "legal_hold"
    with tenant_scope(house.id):
        privacy_ops.release_hold(tenant=house.id, hold_id=hold.id, reason="over", actor=system("tests"), now=now)
    age(house, artifact)
    sweep()
    assert row(house, artifact).status == "deleted"
    assert names(house) == []


def test_the_store_is_compared_with_the_table(house: House, other_house: House, agent: httpx.Client, api: Open) -> None:
    artifact, lost = upload(agent, b"here"), upload(agent, b"lost")
    theirs = upload(api(other_house.keys["agent"]), b"theirs")
    (folder(house) / row(house, lost).object_id.hex).unlink()  # type: ignore[union-attr]
    old = UUID(int=uuid7().int - (25 * 3600 * 1000 << 80))
    young = uuid7()
    stranger = uuid4()
    left: list[Path] = []
    for path in (
        folder(house) / young.hex,
        folder(house) / "README",
        folder(house) / f"{old}",
        folder(house) / f".{young.hex}.0a.part",
        settings.DATA_DIR / "artifacts" / stranger.hex / old.hex,
    ):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x")
        left.append(path)
    gone = [folder(house) / old.hex, folder(house) / f".{old.hex}.0a.part"]
    for path in gone:
        path.write_bytes(b"x")
    long_ago = time.time() - 25 * 3600
    os.utime(gone[1], (long_ago, long_ago))

    operations.reconcile_objects(now=clock.now())
    assert [path for path in gone if path.exists()] == []
    assert [path for path in left if not path.exists()] == []
    assert row(house, artifact).status == row(other_house, theirs).status == "ready"
    assert row(house, lost).status == "failed"
    audit = api(house.keys["admin"]).get("/audit").json()["items"]
    assert [entry["target_id"] for entry in audit if entry["action"] == "artifact.lost"] == [str(lost)]
    assert operations.reconcile_objects(now=clock.now()) == (0, 0)
    for path in left:
        path.unlink()


# Kills ---------------------------------------------------------------------------------------------------------------


def killed(point: str, url: str) -> None:
    """A process that did part of it."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.runs.artifact_killer", point, url],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'platform'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, (done.returncode, done.stdout, done.stderr)


def read(house: House, artifact: UUID) -> bytes:
    from runs.operations.transfers import Download

    found = Download(tenant=house.id, artifact_id=artifact)
    return b"".join(found.read(0, found.size))


@pytest.mark.parametrize("point", ["while writing", "object written, no row"])
def test_killed_before_the_row(house: House, agent: httpx.Client, point: str) -> None:
    artifact, url = announced(agent, CONTENT)
    killed(point, url)
    assert row(house, artifact).status == "uploading"
    [left] = names(house)
    assert left.endswith(".part") == (point == "while writing")
    # What may be under way is left alone; the address is good still.
    assert operations.reconcile_objects(now=clock.now())[0] == 0
    assert left in names(house)
    again = upload_again(house, agent, artifact)
    assert read(house, again) == CONTENT
    later = clock.now() + timedelta(hours=25)
    long_ago = time.time() - 25 * 3600
    os.utime(folder(house) / left, (long_ago, long_ago))
    operations.reconcile_objects(now=later)
    assert left not in names(house)
    assert read(house, again) == CONTENT


def upload_again(house: House, agent: httpx.Client, artifact: UUID) -> UUID:
    from runs.operations.transfers import Upload

    assert agent.post(f"/artifacts/{artifact}/upload").status_code == 200
    transfer = Upload(tenant=house.id, artifact_id=artifact, announced=len(CONTENT))
    transfer.write(CONTENT)
    assert transfer.finish() == "ready"
    return artifact


def test_killed_between_the_row_and_its_verdict(house: House, agent: httpx.Client) -> None:
    worker = Worker(house)
    artifact, url = announced(agent, CONTENT, run_id=worker.start("a"))
    killed("row written, not ready", url)
    assert row(house, artifact).status == "scanning"
    assert agent.post(f"/artifacts/{artifact}/download").json()["code"] == "artifact_not_ready"
    # The sweep finds that nobody looked at it, and has it done.
    assert row(house, artifact).due_at <= clock.now()  # type: ignore[operator]
    assert operations.scan_artifact(tenant=house.id, artifact_id=artifact, now=clock.now()) == "ready"
    assert read(house, artifact) == CONTENT
    assert [event["type"] for event in worker.get("/events")["items"]] == ["run_created", "artifact_attached"]


@pytest.mark.parametrize("point", ["object to remove", "object removed, row not written", "between two rows"])
def test_killed_while_sweeping(house: House, other_house: House, agent: httpx.Client, api: Open, point: str) -> None:
    _, url = announced(agent, b"x")
    artifacts = [upload(agent, b"first"), upload(agent, b"second")]
    kept = upload(agent, b"kept")
    theirs = upload(api(other_house.keys["agent"]), b"first")
    sweep()
    for artifact in artifacts:
        age(house, artifact)
    killed(point, url)
    assert len(names(house)) >= 2
    sweep()
    assert [row(house, artifact).status for artifact in artifacts] == ["deleted", "deleted"]
    assert [row(house, artifact).object_id for artifact in artifacts] == [None, None]
    assert names(house) == [row(house, kept).object_id.hex]  # type: ignore[union-attr]
    assert row(other_house, theirs).status == "ready"
    audit = api(house.keys["admin"]).get("/audit").json()["items"]
    assert len([entry for entry in audit if entry["action"] == "artifact.let_go"]) == 2


def test_the_server_killed_during_an_upload(house: House, agent: httpx.Client, tmp_path: Path) -> None:
    artifact, url = announced(agent, CONTENT)
    with waits(tmp_path) as server:

        def slowly() -> object:
            yield CONTENT[:2_000_000]
            while not names(house):
                time.sleep(0.05)
            server.kill()
            yield CONTENT[2_000_000:]

        with pytest.raises(httpx.TransportError):
            server.put(url, slowly())
    assert row(house, artifact).status == "uploading"
    assert [name.endswith(".part") for name in names(house)] == [True]
    with waits(tmp_path) as server:
        assert server.put(url, CONTENT).status_code == 200
    assert read(house, artifact) == CONTENT
