"""A run's log: events, checkpoints, accepted commits, and the anchors of its head in the audit chain."""

from django.contrib.postgres.fields import ArrayField
from django.db import models

from kernel.models import TenantModel, TenantRow


class Event(TenantRow):
    """An append-only record in a run's log. Partitioned by hash of the run; the layout of the digests is in PROTOCOL.md."""

    pk = models.CompositePrimaryKey("tenant_id", "run_id", "seq")
    run_id = models.UUIDField()
    seq = models.BigIntegerField()
    type = models.CharField(max_length=64)
    schema_version = models.SmallIntegerField()
    actor_kind = models.CharField(max_length=8)
    actor_id = models.UUIDField(null=True)
    step_id = models.UUIDField(null=True)
    lease_id = models.UUIDField(null=True)
    occurred_at = models.DateTimeField(null=True)
    recorded_at = models.DateTimeField()
    labels = models.JSONField(null=True)
    payload = models.BinaryField(null=True)
    payload_commitment = models.BinaryField(null=True)
    prev_digest = models.BinaryField()
    digest = models.BinaryField()

    class Meta:
        managed = False


class Checkpoint(TenantRow):
    """The state at a version: whole (`full`, or `snapshot` when the platform packed it), or the `patch` from the version before."""

    pk = models.CompositePrimaryKey("tenant_id", "run_id", "version", "kind")
    run_id = models.UUIDField()
    version = models.IntegerField()
    kind = models.CharField(max_length=8)
    seq = models.BigIntegerField()
    recorded_at = models.DateTimeField()
    body = models.BinaryField(null=True)
    commitment = models.BinaryField()

    class Meta:
        managed = False


class Commit(TenantRow):
    """One accepted commit and its answer, by the keyed digest of its idempotency key."""

    pk = models.CompositePrimaryKey("tenant_id", "run_id", "key_digest")
    run_id = models.UUIDField()
    key_digest = models.BinaryField()
    request_digest = models.BinaryField()
    first_seq = models.BigIntegerField()
    last_seq = models.BigIntegerField()
    digest = models.BinaryField()
    head = models.IntegerField()
    run_status = models.CharField(max_length=16)
    runnable = ArrayField(models.TextField(), null=True)

    class Meta:
        managed = False


class Anchor(TenantModel):
    """The head of a run's chain as it was written into the tenant's audit chain."""

    run_id = models.UUIDField()
    seq = models.BigIntegerField()
    digest = models.BinaryField()
    entry_id = models.UUIDField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["tenant_id", "run_id", "seq"], name="runs_anchor_seq_unique")]


class AnchorDue(TenantModel):
    """A run that ended since its head was last anchored; `id` is the run."""
