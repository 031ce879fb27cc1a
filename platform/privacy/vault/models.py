"""Two levels of wrapped keys: a tenant key under the master key, data keys under the tenant key. Nothing else is stored here."""

from django.db import models
from django.db.models.functions import Now

from kernel.models import TenantModel, TenantRow


class TenantKey(TenantRow):
    tenant_id = models.UUIDField(primary_key=True)
    wrapped = models.BinaryField()
    created_at = models.DateTimeField(db_default=Now())


class DataKey(TenantModel):
    """`wrapped` is null once the key was shredded; the row stays, so that a shredded key is never made anew."""

    wrapped = models.BinaryField(null=True)
    created_at = models.DateTimeField(db_default=Now())
    shredded_at = models.DateTimeField(null=True)
