"""Due work, found in the database. Every task may run late, twice or at the same time as itself."""

from typing import Any
from uuid import UUID

from celery import shared_task

from kernel import clock
from runs import operations
from runs.operations import schedules


@shared_task(name="runs.sweep")
def sweep(**_: Any) -> int:
    return operations.sweep()


@shared_task(name="runs.fire_schedules")
def fire_schedules(**_: Any) -> int:
    return schedules.fire_schedules()


@shared_task(name="runs.count_metrics")
def count_metrics(**_: Any) -> int:
    return operations.count_metrics(seconds=8)


@shared_task(name="runs.anchor_heads")
def anchor_heads(**_: Any) -> int:
    return operations.anchor_heads(now=clock.now())


@shared_task(name="runs.scan_artifact")
def scan_artifact(*, tenant: str, artifact_id: str, **_: Any) -> str | None:
    return operations.scan_artifact(tenant=UUID(tenant), artifact_id=UUID(artifact_id), now=clock.now())


@shared_task(name="runs.sweep_artifacts")
def sweep_artifacts(**_: Any) -> int:
    return operations.sweep_artifacts(now=clock.now())


@shared_task(name="runs.sweep_offloads")
def sweep_offloads(**_: Any) -> int:
    return operations.sweep_offloads()


@shared_task(name="runs.reconcile_objects")
def reconcile_objects(**_: Any) -> tuple[int, int]:
    return operations.reconcile_objects(now=clock.now())


@shared_task(name="runs.send_probes")
def send_probes(**_: Any) -> int:
    return operations.send_probes()
