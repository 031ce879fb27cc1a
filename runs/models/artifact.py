"""Artifacts: what was named and uploaded, and what refers to it."""

from django.db import models

from kernel.models import TenantModel


class Artifact(TenantModel):
    """A named content. Several may share one object: the same bytes under the same data key are stored once.

    `content_digest` is keyed with the data key. `due_at` is when the sweep has to look at it: an upload that was not made, a
    scan, an artifact that nothing refers to, an object to remove; null when there is nothing to do.
    """

    project_id = models.UUIDField()
    agent_id = models.UUIDField(null=True)
    subject_id = models.UUIDField(null=True)
    data_key_id = models.UUIDField()
    run_id = models.UUIDField(null=True)
    size = models.BigIntegerField()
    content_digest = models.BinaryField()
    meta_sealed = models.BinaryField()
    object_id = models.UUIDField(null=True)
    status = models.CharField(max_length=16)
    verdict = models.CharField(max_length=16, null=True)
    scanner = models.CharField(max_length=200, null=True)
    scans = models.IntegerField(default=0)
    created_at = models.DateTimeField()
    ready_at = models.DateTimeField(null=True)
    due_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=models.Q(size__gte=0), name="runs_artifact_size_positive"),
            models.CheckConstraint(
                condition=~models.Q(status__in=["scanning", "ready"]) | models.Q(object_id__isnull=False),
                name="runs_artifact_stored_has_object",
            ),
        ]
        indexes = [
            models.Index("due_at", condition=models.Q(due_at__isnull=False), name="runs_artifact_due"),
            models.Index("tenant_id", "run_id", "id", name="runs_artifact_run"),
            models.Index("tenant_id", "content_digest", name="runs_artifact_content"),
            models.Index("tenant_id", "object_id", name="runs_artifact_object"),
        ]


class ArtifactReference(TenantModel):
    """Why an artifact is kept: a run's event, state or off-loaded payload refers to it, at sequence number `seq` of its log."""

    artifact_id = models.UUIDField()
    run_id = models.UUIDField()
    kind = models.CharField(max_length=8)
    seq = models.BigIntegerField()

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(kind__in=["event", "state", "payload"]), name="runs_artifactreference_kind_known"
            ),
            models.UniqueConstraint(
                fields=["tenant_id", "artifact_id", "run_id", "kind", "seq"], name="runs_artifactreference_unique"
            ),
        ]
        indexes = [models.Index("tenant_id", "run_id", "artifact_id", name="runs_artifactreference_run")]


class Offload(TenantModel):
    """Sealed bytes of a run's event or checkpoint that lie in the store; `id` is the object. The run may be about to be made.

    `due_at` is when the sweep has to see whether the commit happened that points to it; null once that is known.
    """

    run_id = models.UUIDField()
    size = models.BigIntegerField()
    created_at = models.DateTimeField()
    due_at = models.DateTimeField(null=True)

    class Meta:
        indexes = [
            models.Index("due_at", condition=models.Q(due_at__isnull=False), name="runs_offload_due"),
            models.Index("tenant_id", "run_id", name="runs_offload_run"),
        ]
