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
