"""Runs, their steps and the attempts at them."""

from django.contrib.postgres.fields import ArrayField
from django.db import models

from kernel.models import TenantModel
from runs.states import WAITS


class Run(TenantModel):
    """One execution of a workflow version by an agent version.

    `last_seq` and `last_digest` end the event chain. `head` counts changes of the shared state and plan; `base_version` is the
    newest checkpoint stored whole, and `chain_*` measure the changes stored since. `list_channels` and `value_channels` are keyed
    digests of the state's top-level names, by which a patch is checked without reading the state. `ending` is what the run becomes
    after its last step, when that is not `completed`; `cancel_at` the end of a cancellation's grace. `state_schema` is the schema
    version of the newest state. A fork names the run and the checkpoint that it began with.
    `feed_due`: the log grew since it was last quiet (runs.models.feed).
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

    state_schema = models.IntegerField(db_default=1)
    forked_from = models.UUIDField(null=True)
    forked_version = models.IntegerField(null=True)
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
    ending = models.CharField(max_length=16, null=True)
    parent_run_id = models.UUIDField(null=True)
    deadline_at = models.DateTimeField(null=True)
    cancel_at = models.DateTimeField(null=True)
    feed_due = models.BooleanField(db_default=False, default=False)
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
            models.CheckConstraint(
                condition=models.Q(ending__in=["cancelled", "failed"]), name="runs_run_ending_known"
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
            models.Index(
                "tenant_id", "parent_run_id", condition=models.Q(parent_run_id__isnull=False), name="runs_run_children"
            ),
            models.Index(
                "deadline_at",
                condition=models.Q(completed_at__isnull=True, deadline_at__isnull=False),
                name="runs_run_deadline",
            ),
            models.Index(
                "cancel_at",
                condition=models.Q(completed_at__isnull=True, cancel_at__isnull=False),
                name="runs_run_cancel",
            ),
        ]


class Step(TenantModel):
    """A named unit of a run's plan.

    `epoch` is the fencing number of its current or last lease. A runnable step is due now: one that is to be tried later waits.
    `turn` orders runnable steps of one priority in a queue, so that runs take turns. `due_at` is when a waiting step goes on at the
    latest, null when only what it waits for can wake it. `wait_id` is the child run, gate or effect it waits for. `retry` is its
    policy: `{initial_seconds, factor, max_seconds}`; `compensates` the effect that it is planned to undo.
    """

    run_id = models.UUIDField()
    name = models.CharField(max_length=64)
    position = models.IntegerField()
    status = models.CharField(max_length=16)
    waiting_on = models.IntegerField()
    queue = models.CharField(max_length=64)
    priority = models.SmallIntegerField()
    turn = models.BigIntegerField(default=0)
    requires = ArrayField(models.TextField(), null=True)
    attempts = models.IntegerField()
    max_attempts = models.IntegerField()
    retry = models.JSONField(null=True)
    deadline_seconds = models.FloatField(null=True)
    epoch = models.IntegerField()
    lease_id = models.UUIDField(null=True)
    due_at = models.DateTimeField(null=True)
    wait_kind = models.CharField(max_length=16, null=True)
    wait_name = models.CharField(max_length=64, null=True)
    wait_id = models.UUIDField(null=True)
    wake_reason = models.CharField(max_length=16, null=True)
    wake_seq = models.BigIntegerField(null=True)
    compensates_id = models.UUIDField(null=True)
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(status="leased", lease_id__isnull=False)
                | (~models.Q(status="leased") & models.Q(lease_id__isnull=True)),
                name="runs_step_lease_while_leased",
            ),
            models.CheckConstraint(
                condition=models.Q(status="waiting", wait_kind__isnull=False, wait_kind__in=WAITS)
                | (~models.Q(status="waiting") & models.Q(wait_kind__isnull=True)),
                name="runs_step_waiting_names_reason",
            ),
            models.UniqueConstraint(fields=["tenant_id", "run_id", "name"], name="runs_step_name_unique"),
        ]
        indexes = [
            models.Index(
                "tenant_id",
                "queue",
                models.F("priority").desc(),
                "turn",
                "id",
                condition=models.Q(status="runnable"),
                name="runs_step_next",
            ),
            models.Index(
                "tenant_id", "run_id", "queue", "turn", condition=models.Q(status="runnable"), name="runs_step_line"
            ),
            models.Index("tenant_id", "queue", condition=models.Q(status="leased"), name="runs_step_leased"),
            models.Index(
                "due_at",
                "tenant_id",
                condition=models.Q(status="waiting", due_at__isnull=False),
                name="runs_step_wakes",
            ),
            models.Index(
                "tenant_id",
                "wait_id",
                condition=models.Q(status="waiting", wait_id__isnull=False),
                name="runs_step_waits_for",
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
    claim_key = models.BinaryField(null=True)
    claimed_at = models.DateTimeField()
    heartbeat_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    outcome = models.CharField(max_length=16, null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(outcome__in=["succeeded", "failed", "lost", "cancelled", "released"]),
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
            models.Index(
                "tenant_id", "claim_key", condition=models.Q(claim_key__isnull=False), name="runs_attempt_claim"
            ),
            models.Index("expires_at", condition=models.Q(ended_at__isnull=True), name="runs_attempt_expiry"),
        ]


class Signal(TenantModel):
    """A message to a run, its payload in the event `seq`. A step that waits for its name takes the oldest that was not taken."""

    run_id = models.UUIDField()
    name = models.CharField(max_length=64)
    seq = models.BigIntegerField()
    key_digest = models.BinaryField()
    request_digest = models.BinaryField()
    received_at = models.DateTimeField()
    taken_at = models.DateTimeField(null=True)
    taken_by_id = models.UUIDField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant_id", "run_id", "key_digest"], name="runs_signal_key_unique")
        ]
        indexes = [
            models.Index(
                "tenant_id", "run_id", "name", "seq", condition=models.Q(taken_at__isnull=True), name="runs_signal_kept"
            )
        ]


class Queue(TenantModel):
    """A queue of a tenant, made by its first step; the queue `*` stands for all of them together.

    `turn` is that of the step last taken. `tokens` (at `refilled_at`) is what is left of `rate_per_minute`, at most `burst`.
    """

    name = models.CharField(max_length=64)
    turn = models.BigIntegerField(default=0)
    paused = models.BooleanField(default=False)
    max_leased = models.IntegerField(null=True)
    rate_per_minute = models.FloatField(null=True)
    burst = models.FloatField(null=True)
    tokens = models.FloatField(null=True)
    refilled_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["tenant_id", "name"], name="runs_queue_name_unique")]
