"""Data principals. A subject is known by a reference that the tenant chose; it is stored as a keyed digest beside ciphertext."""

from django.db import models

from kernel.models import TenantModel


class Subject(TenantModel):
    """One data principal of a tenant.

    `key_epoch` is raised before an erasure, so that a writer with a cached data key is refused; `erased_at` is the tombstone.
    """

    ref_digest = models.BinaryField(max_length=32)
    ref_sealed = models.BinaryField(null=True)
    key_id = models.UUIDField()
    key_epoch = models.IntegerField(default=1)
    created_at = models.DateTimeField()
    erased_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["tenant_id", "ref_digest"], name="privacy_subject_ref_unique")]


class HoldKind(models.TextChoices):
    SUBJECT = "subject"
    RUN = "run"
    PROJECT = "project"


class LegalHold(TenantModel):
    """Something that must not be deleted while a dispute or an order lasts. It beats every other rule."""

    kind = models.CharField(max_length=8, choices=HoldKind.choices)
    target_id = models.UUIDField()
    reason_sealed = models.BinaryField(null=True)
    review_on = models.DateField()
    placed_at = models.DateTimeField()
    released_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=models.Q(kind__in=HoldKind.values), name="privacy_legalhold_kind_known"),
        ]
        indexes = [
            models.Index(
                "tenant_id", "target_id", condition=models.Q(released_at__isnull=True), name="privacy_legalhold_active"
            ),
        ]
