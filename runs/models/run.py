"""Runs, their steps and the attempts at them."""

from django.contrib.postgres.fields import ArrayField
from django.db import models

from kernel.models import TenantModel


class Run(TenantModel):
    """One execution of a workflow version by an agent version.

    `last_seq` and `last_digest` end the event chain. `head` counts changes of the shared state and plan; `base_version` is the
    newest checkpoint stored whole, and `chain_*` measure the changes stored since. `list_channels` and `value_channels` are keyed
    digests of the state's top-level names, by which a patch is checked without reading the state.
    """

    project_id = models.UUIDField()
    workflow = models.CharField(max_length=64)
    workflow_version = models.CharField(max_length=64)
    agent_id = models.UUIDField(null=True)
    agent_version = models.CharField(max_length=64)
    subject_id = models.UUIDField(null=True)
    data_key_id = models.UUIDField()
    labels = models.JSONField(default=dict)
    versions = models.JSONField(default=dict)
    correlation_digest = models.BinaryField(null=True)
    task_digest = models.BinaryField(null=True)
    creation_key = models.BinaryField()
    creation_request = models.BinaryField()

    status = models.CharField(max_length=16)
    waiting_for = models.CharField(max_length=32, null=True)
    last_seq = models.BigIntegerField()
    last_digest = models.BinaryField()
    head = models.IntegerField()
    base_version = models.IntegerField()
    base_bytes = models.BigIntegerField()
    chain_count = models.IntegerField()
    chain_bytes = models.BigIntegerField()
    list_channels = ArrayField(models.BigIntegerField())
    value_channels = ArrayField(models.BigIntegerField())
    steps_total = models.IntegerField()
    steps_open = models.IntegerField()
    anchored_seq = models.BigIntegerField()
    created_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    updated_at = models.DateTimeField()
    completed_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(status="waiting", waiting_for__isnull=False)
                | (~models.Q(status="waiting") & models.Q(waiting_for__isnull=True)),
                name="runs_run_waiting_names_reason",
            ),
            models.UniqueConstraint(fields=["tenant_id", "creation_key"], name="runs_run_creation_key_unique"),
        ]
        indexes = [
            models.Index("tenant_id", models.F("created_at").desc(), models.F("id").desc(), name="runs_run_newest"),
            models.Index(
                "tenant_id",
                "status",
                models.F("created_at").desc(),
                models.F("id").desc(),
                name="runs_run_status_newest",
            ),
            models.Index(
                "tenant_id",
                "workflow",
                models.F("created_at").desc(),
                models.F("id").desc(),
                name="runs_run_workflow_newest",
            ),
        ]


class Step(TenantModel):
    """A named unit of a run's plan. `epoch` is the fencing number of its current or last lease."""

    run_id = models.UUIDField()
    name = models.CharField(max_length=64)
    position = models.IntegerField()
    status = models.CharField(max_length=16)
    waiting_on = models.IntegerField()
    queue = models.CharField(max_length=64)
    priority = models.SmallIntegerField()
    attempts = models.IntegerField()
    max_attempts = models.IntegerField()
    epoch = models.IntegerField()
    lease_id = models.UUIDField(null=True)
    due_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(status="leased", lease_id__isnull=False)
                | (~models.Q(status="leased") & models.Q(lease_id__isnull=True)),
                name="runs_step_lease_while_leased",
            ),
            models.UniqueConstraint(fields=["tenant_id", "run_id", "name"], name="runs_step_name_unique"),
        ]
        indexes = [
            models.Index(
                "tenant_id",
                "queue",
                models.F("priority").desc(),
                "due_at",
                "id",
                condition=models.Q(status="runnable"),
                name="runs_step_due",
            ),
        ]


class StepDependency(TenantModel):
    run_id = models.UUIDField()
    step_id = models.UUIDField()
    depends_on_id = models.UUIDField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["tenant_id", "depends_on_id", "step_id"], name="runs_stepdependency_unique"
            ),
        ]
        indexes = [models.Index("tenant_id", "step_id", name="runs_stepdependency_step")]


class Attempt(TenantModel):
    """One try of a step by one worker under one lease; `id` is the lease. Expiry is judged by the database clock."""

    run_id = models.UUIDField()
    step_id = models.UUIDField()
    number = models.IntegerField()
    epoch = models.IntegerField()
    worker = models.CharField(max_length=64)
    key_id = models.UUIDField()
    claimed_at = models.DateTimeField()
    heartbeat_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    outcome = models.CharField(max_length=16, null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(outcome__in=["succeeded", "failed", "lost", "cancelled"]),
                name="runs_attempt_outcome_known",
            ),
            models.CheckConstraint(
                condition=models.Q(ended_at__isnull=True, outcome__isnull=True)
                | models.Q(ended_at__isnull=False, outcome__isnull=False),
                name="runs_attempt_outcome_at_end",
            ),
            models.UniqueConstraint(fields=["tenant_id", "step_id", "epoch"], name="runs_attempt_epoch_unique"),
        ]
        indexes = [
            models.Index("tenant_id", "run_id", "claimed_at", name="runs_attempt_run"),
            models.Index("expires_at", condition=models.Q(ended_at__isnull=True), name="runs_attempt_expiry"),
        ]
