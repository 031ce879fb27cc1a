"""Where notices go: the tenant's webhook endpoints with what was sent to them, and what each member wants by e-mail."""

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from kernel.models import TenantModel
from kernel.outbox.models import TOPIC


class Endpoint(TenantModel):
    """`url` and `secrets` are sealed. `kinds`: those it takes; none: all. `failing_since`: no request got through since.

    The secret before the last one signs too until `previous_until`.
    """

    url = models.BinaryField()
    secrets = models.BinaryField()
    kinds = ArrayField(models.CharField(max_length=64))
    status = models.CharField(max_length=16)
    disabled_reason = models.CharField(max_length=16, null=True)
    previous_until = models.DateTimeField(null=True)
    failing_since = models.DateTimeField(null=True)
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(status="active", disabled_reason__isnull=True)
                | Q(
                    status="disabled", disabled_reason__in=["gone", "failing", "by_hand"], disabled_reason__isnull=False
                ),
                name="notices_endpoint_disabled_for_a_reason",
            ),
        ]


class Delivery(TenantModel):
    """A notice for an endpoint. `notice_id` is the `webhook-id` that the receiver sees, however often it is sent; `message_id` the
    outbox's message of the last sending, whose status says what is to come. `last_status` is of HTTP, `last_error` a word of ours.
    """

    endpoint_id = models.UUIDField()
    notice_id = models.UUIDField()
    kind = models.CharField(max_length=64)
    body = models.BinaryField()
    message_id = models.UUIDField()
    sendings = models.IntegerField()
    attempts = models.IntegerField()
    last_at = models.DateTimeField(null=True)
    last_status = models.SmallIntegerField(null=True)
    last_error = models.CharField(max_length=64, null=True)
    latency_ms = models.IntegerField(null=True)
    delivered_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant_id", "endpoint_id", "notice_id"], name="notices_delivery_once"),
            models.CheckConstraint(condition=Q(kind__regex=TOPIC), name="notices_delivery_kind_identifier"),
            models.CheckConstraint(
                condition=Q(last_error__isnull=True) | Q(last_error__regex=TOPIC),
                name="notices_delivery_error_identifier",
            ),
            models.CheckConstraint(
                condition=Q(delivered_at__isnull=True) | Q(last_error__isnull=True),
                name="notices_delivery_delivered_or_failed",
            ),
        ]
        indexes = [
            models.Index("tenant_id", "endpoint_id", "id", name="notices_delivery_endpoint"),
            models.Index("tenant_id", "created_at", name="notices_delivery_age"),
        ]


class Preference(TenantModel):
    """A member's: the language of the e-mails, and the kinds that are not wanted by e-mail. Ends with the membership."""

    member_id = models.UUIDField()
    language = models.CharField(max_length=8)
    unwanted = ArrayField(models.CharField(max_length=64))

    class Meta:
        constraints = [models.UniqueConstraint(fields=["tenant_id", "member_id"], name="notices_preference_member")]
