"""Messages that leave the platform. Rows are written by the database functions of `sql/outbox.sql` only."""

from typing import Final

from django.db import models
from django.db.models import Q

from kernel.models import TenantModel
from kernel.outbox.states import FINAL, MOVES, OPEN

TOPIC: Final = r"^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*$"
DEDUP: Final = r"^[A-Za-z0-9][A-Za-z0-9._:/-]*$"


class Message(TenantModel):
    """`topic`, `dedup` and `last_error` are words and ids of ours, in clear; `body` is sealed, and null once it is over.

    `position`: the place in the order of `ordering`. `due_at`: when it may be taken, which for one that is being sent is the end
    of its lease; null while an earlier one of its order is not over. `queued_at`: since when it is tried.
    """

    topic = models.CharField(max_length=64)
    ordering = models.UUIDField(null=True)
    position = models.BigIntegerField()
    dedup = models.CharField(max_length=200)
    body = models.BinaryField(null=True)
    status = models.CharField(max_length=16)
    attempts = models.IntegerField()
    due_at = models.DateTimeField(null=True)
    lease_id = models.UUIDField(null=True)
    last_error = models.CharField(max_length=64, null=True)
    created_at = models.DateTimeField()
    queued_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(topic__regex=TOPIC), name="outbox_message_topic_identifier"),
            models.CheckConstraint(condition=Q(dedup__regex=DEDUP), name="outbox_message_dedup_identifier"),
            models.CheckConstraint(
                condition=Q(last_error__isnull=True) | Q(last_error__regex=TOPIC),
                name="outbox_message_error_identifier",
            ),
            models.CheckConstraint(condition=Q(status__in=sorted(MOVES)), name="outbox_message_status_known"),
            models.CheckConstraint(
                condition=Q(status__in=FINAL, body__isnull=True) | (~Q(status__in=FINAL) & Q(body__isnull=False)),
                name="outbox_message_body_until_over",
            ),
            models.CheckConstraint(
                condition=Q(status__in=OPEN, ended_at__isnull=True) | (~Q(status__in=OPEN) & Q(ended_at__isnull=False)),
                name="outbox_message_ended_at_end",
            ),
            models.CheckConstraint(
                condition=Q(status="sending", lease_id__isnull=False, due_at__isnull=False)
                | (~Q(status="sending") & Q(lease_id__isnull=True)),
                name="outbox_message_lease_while_sending",
            ),
            models.UniqueConstraint(fields=["tenant_id", "topic", "dedup"], name="outbox_message_dedup"),
            models.UniqueConstraint(
                fields=["tenant_id", "ordering", "position"],
                condition=Q(ordering__isnull=False),
                name="outbox_message_position",
            ),
        ]
        indexes = [
            models.Index(
                "tenant_id",
                "topic",
                "due_at",
                condition=Q(status__in=OPEN, due_at__isnull=False),
                name="outbox_message_due",
            ),
            models.Index(
                "tenant_id",
                "ordering",
                "position",
                condition=Q(status__in=OPEN, ordering__isnull=False),
                name="outbox_message_open",
            ),
            models.Index("tenant_id", "ended_at", condition=Q(status__in=FINAL), name="outbox_message_over"),
            models.Index("tenant_id", "status", "id", name="outbox_message_status"),
        ]
