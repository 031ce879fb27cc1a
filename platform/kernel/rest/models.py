"""Answers given under an idempotency key. They are kept for a day, sealed, and without the secrets they showed."""

from django.db import models

from kernel.models import TenantModel


class IdempotencyRecord(TenantModel):
    """`id` is a keyed digest of who called with which key, `request` one of what was called."""

    request = models.BinaryField(max_length=32)
    status = models.SmallIntegerField()
    answer = models.BinaryField()
    created_at = models.DateTimeField()

    class Meta:
        db_table = "kernel_idempotency"
        indexes = [models.Index("tenant_id", "created_at", name="kernel_idempotency_age")]
