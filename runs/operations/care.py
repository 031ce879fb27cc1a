"""What the platform does to artifacts by itself: scan, let go, and compare the store with the table.

Every step may be cut off anywhere and done again: what a row says happens first, what lies in the store follows, and a row
stays due until both are over.
"""

import logging
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from django.db.models import F, Func, IntegerField
from django.db.models.functions import Now

from audit import operations as audit_ops
from kernel import actor as actors
from kernel import jobs, pool
from kernel.context import tenant_scope
from kernel.ports import Corrupt
from privacy import keys
from privacy import queries as privacy
from runs import offload
from runs.models import Artifact, ArtifactReference, Checkpoint, Event, Offload
from runs.operations import artifacts, transfers
from runs.operations.transfers import ArtifactUnreadable
from runs.scanner import ScanFailed, Verdict, scanner
from runs.storage import ObjectStore, store
from tenancy.models import Tenant

logger = logging.getLogger(__name__)

# Artifacts of every tenant that something is due for, the oldest first: ids only.
DUE: Final = "select tenant, artifact from runs_artifacts_due(%s)"
OFFLOADS_DUE: Final = "select tenant, run from runs_offloads_due(%s)"
TENANTS: Final = "select tenant from runs_artifact_tenants() union select tenant from runs_offload_tenants()"

_ENDED: Final = ("deleted", "infected", "failed", "expired")
_SYSTEM: Final = actors.system("artifacts")
_SCAN_SECONDS: Final = 300  # a scan that was not heard of for so long, and the time for its bytes, is begun again
_SCAN_BYTES_PER_SECOND: Final = 10_000_000
_LONGEST_PAUSE: Final = 900  # seconds between scans that fail
_HELD: Final = timedelta(days=1)


def scan_artifact(*, tenant: UUID, artifact_id: UUID, now: datetime) -> str | None:
    """Scan an uploaded artifact; its status afterwards. Without a verdict it stays `scanning` and is due again, later each time."""
    with tenant_scope(tenant):
        row = Artifact.objects.select_for_update(no_key=True).filter(id=artifact_id).first()
        if row is None or row.status != "scanning":
            return None if row is None else row.status
        row.scans += 1
        row.due_at = now + timedelta(seconds=_SCAN_SECONDS + row.size / _SCAN_BYTES_PER_SECOND)
        row.save(update_fields=["scans", "due_at"])
    try:
        key = keys.data_key(tenant=tenant, key_id=row.data_key_id)
        verdict = scanner().scan(transfers.read(tenant, key, row.object_id, size=row.size))
    except ScanFailed as error:
        pause = timedelta(seconds=min(_LONGEST_PAUSE, 2 ** min(row.scans, 20)))
        _log("scan_failed", tenant, artifact_id, reason=str(error), scans=row.scans)
        with tenant_scope(tenant):
            Artifact.objects.filter(id=artifact_id, status="scanning").update(due_at=now + pause)
        return "scanning"
    except ArtifactUnreadable:
        return _lost(tenant, artifact_id, now)
    if verdict.status == "infected":
        return _condemn(tenant, row.object_id, verdict, now)
    transfers.make_ready(tenant=tenant, artifact_id=artifact_id, verdict=verdict)
    return "ready"


def sweep_artifacts(*, now: datetime, limit: int = 200) -> int:
    """Do what is due: begin scans, end uploads that never came, let go of what nothing refers to, remove objects. How many rows."""
    done = 0
    for tenant, artifact in pool.rows(DUE, (limit,)):
        try:
            with tenant_scope(tenant):
                done += _tend(tenant, artifact, now)
        except Exception:  # a store that is away for one must not stop the others; it is due again
            logger.exception("artifact_sweep_failed", extra={"tenant": str(tenant), "artifact": str(artifact)})
    return done


def sweep_offloads(*, limit: int = 1000) -> int:
    """See which commits happened that off-loaded payloads were written for, and remove the others' objects; how many.

    A day lies between writing an object and looking: no commit is under way for so long.
    """
    removed = 0
    for tenant, run_id in pool.rows(OFFLOADS_DUE, (limit,)):
        with tenant_scope(tenant):
            due = Offload.objects.filter(run_id=run_id, due_at__lte=Now())
            rows = {row.id: row for row in due.select_for_update(skip_locked=True)}
            if not rows:
                continue
            kept = _pointed_to(run_id) & set(rows)
            Offload.objects.filter(id__in=kept).update(due_at=None)
            for object_id in set(rows) - kept:
                store().remove(tenant, object_id)
                Offload.objects.filter(id=object_id).delete()
                removed += 1
    return removed


def _pointed_to(run_id: UUID) -> set[UUID]:
    """The objects that a run's events and checkpoints point to."""
    found: set[UUID] = set()
    for rows, column in ((Event.objects, "payload"), (Checkpoint.objects, "body")):
        length = Func(F(column), function="octet_length", output_field=IntegerField())
        pointers = rows.filter(run_id=run_id).annotate(length=length).filter(length=offload.SIZE)
        for pointer in pointers.values_list(column, flat=True):
            with suppress(Corrupt):
                found.add(offload.points_to(bytes(pointer))[0])
    return found


def reconcile_objects(*, now: datetime, only: UUID | None = None) -> tuple[int, int]:
    """Compare the store with the table: how many objects that no row names were removed, and how many rows had lost their object.

    `only`: one tenant's. Objects younger than a day are left alone: what they belong to may be under way.
    """
    source = store()
    source.abandon(older_than=artifacts.GRACE.total_seconds())
    tenants = {only} if only else {tenant for (tenant,) in pool.rows(TENANTS, ())} | set(source.tenants())
    removed = lost = 0
    for tenant in sorted(tenants):
        for page, after, before in _pages(source, tenant):
            with tenant_scope(tenant):
                if not Tenant.objects.filter(id=tenant).exists():
                    break  # another installation's, in the same store
                rows = Artifact.objects.exclude(object_id=None)
                rows = rows if after is None else rows.filter(object_id__gt=after)
                rows = rows if before is None else rows.filter(object_id__lte=before)
                named = dict(rows.exclude(status__in=_ENDED).values_list("object_id", "id"))
                offloaded = Offload.objects.filter(id__in=page).values_list("id", flat=True)
                known = set(rows.values_list("object_id", flat=True)) | set(offloaded)
            for orphan in set(page) - known:
                if _age(orphan, now) > artifacts.GRACE:
                    source.remove(tenant, orphan)
                    removed += 1
            for missing in set(named) - set(page):
                if not source.exists(tenant, missing):
                    lost += _lost(tenant, named[missing], now) == "failed"
    if removed or lost:
        logger.warning("objects_reconciled", extra={"removed": removed, "lost": lost})
    return removed, lost


def _tend(tenant: UUID, artifact_id: UUID, now: datetime) -> bool:
    """One due row, locked. What is being worked on by another sweep is left to it."""
    row = (
        Artifact.objects.select_for_update(no_key=True, skip_locked=True)
        .filter(id=artifact_id, due_at__isnull=False)
        .first()
    )
    if row is None:
        return False
    match row.status:
        case "uploading":
            row.status, row.due_at = "expired", None
        case "scanning":
            row.due_at = now + timedelta(seconds=_SCAN_SECONDS)
            jobs.enqueue("runs.scan_artifact", tenant=tenant, artifact_id=artifact_id)
        case "ready":
            return _let_go(tenant, row, now)
        case _:
            _remove(tenant, row, now)
    row.save(update_fields=["status", "object_id", "due_at"])
    return True


def _let_go(tenant: UUID, row: Artifact, now: datetime) -> bool:
    if ArtifactReference.objects.filter(artifact_id=row.id).exists():
        Artifact.objects.filter(id=row.id).update(due_at=None)
        return False
    try:
        artifacts.retire(tenant=tenant, artifact=row, actor=_SYSTEM, action="artifact.let_go", now=now)
    except privacy.Held:
        Artifact.objects.filter(id=row.id).update(due_at=now + _HELD)
        return False
    return True


def _remove(tenant: UUID, row: Artifact, now: datetime) -> None:
    """Remove the object of a row that is over, unless others share it. Under the row's lock: nobody can begin to share it now."""
    if row.object_id is not None:
        shared = Artifact.objects.filter(object_id=row.object_id).exclude(status__in=_ENDED).exists()
        if row.status == "infected":
            targets = [target for target in (row.subject_id, row.run_id, row.project_id) if target is not None]
            try:
                privacy.require_no_hold(tenant=tenant, targets=targets)
            except privacy.Held:
                row.due_at = now + _HELD
                return
        if not shared:
            store().remove(tenant, row.object_id)
    row.object_id, row.due_at = None, None


def _condemn(tenant: UUID, object_id: UUID | None, verdict: Verdict, now: datetime) -> str:
    """Every artifact with this object is infected from here on, and the object is destroyed."""
    with tenant_scope(tenant):
        rows = list(
            Artifact.objects.select_for_update(no_key=True)
            .filter(object_id=object_id, status__in=["scanning", "ready"])
            .order_by("id")
        )
        for row in rows:
            row.status, row.verdict, row.scanner, row.due_at = "infected", "infected", verdict.version or None, now
            row.save(update_fields=["status", "verdict", "scanner", "due_at"])
            audit_ops.record(
                tenant=tenant, actor=_SYSTEM, action="artifact.infected", target_kind="artifact", target_id=row.id,
                content={"signature": verdict.signature, "scanner": verdict.version}, now=now,
            )  # fmt: skip
    for row in rows:
        with tenant_scope(tenant):
            _tend(tenant, row.id, now)
    return "infected"


def _lost(tenant: UUID, artifact_id: UUID, now: datetime) -> str | None:
    """The object of an artifact is gone or damaged: it fails, and the audit log says so."""
    with tenant_scope(tenant):
        row = Artifact.objects.select_for_update(no_key=True).filter(id=artifact_id).first()
        if row is None or row.status not in ("scanning", "ready"):
            return None if row is None else row.status
        row.status, row.due_at = "failed", now
        row.save(update_fields=["status", "due_at"])
        audit_ops.record(
            tenant=tenant, actor=_SYSTEM, action="artifact.lost", target_kind="artifact", target_id=row.id,
            content={"size": row.size}, now=now,
        )  # fmt: skip
    _log("artifact_lost", tenant, artifact_id)
    return "failed"


def _pages(source: ObjectStore, tenant: UUID) -> Iterator[tuple[list[UUID], UUID | None, UUID | None]]:
    """Objects page by page, each with the ids it lies between: after the first, up to the second; None: no bound."""
    after: UUID | None = None
    while True:
        page = source.page(tenant, after)
        yield page, after, page[-1] if page else None
        if not page:
            return
        after = page[-1]


def _age(object_id: UUID, now: datetime) -> timedelta:
    """Objects have UUIDv7 names: they tell their own age."""
    return now - datetime.fromtimestamp((object_id.int >> 80) / 1000, UTC)


def _log(event: str, tenant: UUID, artifact_id: UUID, **more: object) -> None:
    logger.warning(event, extra={"tenant": str(tenant), "artifact": str(artifact_id), **more})
