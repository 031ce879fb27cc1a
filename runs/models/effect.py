"""The effect ledger: external side effects, the gates before them, and what limits count.

Payloads (inputs, results, evidence) are in the run's log; a row names their sequence numbers. `Effect.key` is a keyed digest: two
live rows with one key cannot exist, and that is what "no duplicate effect" rests on.
"""

from django.db import models

from kernel.models import TenantModel, TenantRow
from runs.states import EFFECT_MOVES


class Effect(TenantModel):
    """One external side effect. `lease_id` and `epoch` are the holder's: the only ones under which `execute` is replayed.

    `amount` was taken from the tool's limits on `counted_on`, until it is certain that nothing happened. When people changed
    what is to be done, `amended_seq` is the event with the input that takes the place of the one whose digest is `amended_from`.
    """

    run_id = models.UUIDField()
    step_id = models.UUIDField()
    project_id = models.UUIDField()
    tool_id = models.UUIDField()
    tool = models.CharField(max_length=64)
    key = models.CharField(max_length=64)
    status = models.CharField(max_length=24)
    attempts = models.IntegerField()
    lease_id = models.UUIDField(null=True)
    epoch = models.IntegerField(null=True)
    owner = models.CharField(max_length=8, null=True)
    failure_class = models.CharField(max_length=24, null=True)
    rule = models.CharField(max_length=64, null=True)
    input_digest = models.BinaryField()
    input_seq = models.BigIntegerField()
    amended_seq = models.BigIntegerField(null=True)
    amended_from = models.BinaryField(null=True)
    outcome_seq = models.BigIntegerField(null=True)
    amount = models.DecimalField(max_digits=18, decimal_places=6, null=True)
    currency = models.CharField(max_length=3, null=True)
    counted_on = models.DateField(null=True)
    gate_id = models.UUIDField(null=True)
    compensates_id = models.UUIDField(null=True)
    deadline_at = models.DateTimeField(null=True)
    give_up_at = models.DateTimeField(null=True)
    settle_at = models.DateTimeField(null=True)
    retry = models.JSONField(null=True)
    probed = models.BooleanField(default=False)
    retry_at = models.DateTimeField(null=True)
    probe_at = models.DateTimeField(null=True)
    probes = models.IntegerField(default=0)
    created_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    updated_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(status="unknown", owner__isnull=False, owner__in=["worker", "probe", "operator"])
                | (~models.Q(status="unknown") & models.Q(owner__isnull=True)),
                name="runs_effect_unknown_has_owner",
            ),
            models.CheckConstraint(
                condition=models.Q(status="in_flight", lease_id__isnull=False, deadline_at__isnull=False)
                | ~models.Q(status="in_flight"),
                name="runs_effect_in_flight_has_holder",
            ),
            models.CheckConstraint(condition=models.Q(status__in=list(EFFECT_MOVES)), name="runs_effect_status_known"),
            models.UniqueConstraint(
                fields=["tenant_id", "key"], condition=~models.Q(status="cancelled"), name="runs_effect_key_unique"
            ),
        ]
        indexes = [
            models.Index("tenant_id", "run_id", "id", name="runs_effect_run"),
            models.Index(
                "tenant_id", "status", models.F("updated_at").desc(), models.F("id").desc(), name="runs_effect_status"
            ),
            models.Index("tenant_id", "tool", condition=models.Q(status="in_flight"), name="runs_effect_in_flight"),
            models.Index("give_up_at", condition=models.Q(owner__in=["worker", "probe"]), name="runs_effect_give_up"),
            models.Index("probe_at", condition=models.Q(owner="probe"), name="runs_effect_probe"),
            models.Index(
                "tenant_id",
                "compensates_id",
                condition=models.Q(compensates_id__isnull=False),
                name="runs_effect_undoes",
            ),
        ]


class Decision(TenantRow):
    """What was answered to a reservation, by the keyed digest of its idempotency key and the lease. Another is judged anew."""

    pk = models.CompositePrimaryKey("tenant_id", "run_id", "key_digest", "lease_id")
    run_id = models.UUIDField()
    key_digest = models.BinaryField()
    request_digest = models.BinaryField()
    lease_id = models.UUIDField()
    epoch = models.IntegerField()
    effect_id = models.UUIDField(null=True)
    decision = models.CharField(max_length=16)
    detail = models.JSONField()
    decided_at = models.DateTimeField()

    class Meta:
        managed = False


class Evidence(TenantModel):
    """What somebody knows about an effect without deciding it: an outcome that came too late, or a probe's answer."""

    effect_id = models.UUIDField()
    run_id = models.UUIDField()
    lease_id = models.UUIDField(null=True)
    kind = models.CharField(max_length=16)
    outcome = models.CharField(max_length=16)
    seq = models.BigIntegerField()
    recorded_at = models.DateTimeField()

    class Meta:
        indexes = [models.Index("tenant_id", "effect_id", "seq", name="runs_evidence_effect")]


class Gate(TenantModel):
    """What must be satisfied before an effect goes on. `action_digest` is what exactly is asked for.

    A `governed` gate is decided by the app that installed the policy, by nobody else.
    """

    run_id = models.UUIDField()
    step_id = models.UUIDField()
    effect_id = models.UUIDField()
    rule = models.CharField(max_length=64)
    status = models.CharField(max_length=16)
    action_digest = models.BinaryField()
    opened_at = models.DateTimeField()
    expires_at = models.DateTimeField(null=True)
    decided_at = models.DateTimeField(null=True)
    decided_by = models.UUIDField(null=True)
    governed = models.BooleanField(default=False, db_default=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["tenant_id", "effect_id"], condition=models.Q(status="open"), name="runs_gate_one_open"
            )
        ]
        indexes = [
            models.Index(
                "tenant_id", "status", models.F("opened_at").desc(), models.F("id").desc(), name="runs_gate_status"
            ),
            models.Index(
                "expires_at", condition=models.Q(status="open", expires_at__isnull=False), name="runs_gate_expiry"
            ),
        ]


class Grant(TenantModel):
    """The permission that satisfies a gate: for one execution, of one action, until it expires."""

    gate_id = models.UUIDField()
    effect_id = models.UUIDField()
    run_id = models.UUIDField()
    action_digest = models.BinaryField()
    status = models.CharField(max_length=16)
    minted_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["tenant_id", "gate_id"], name="runs_grant_gate_unique")]
        indexes = [
            models.Index("tenant_id", "effect_id", condition=models.Q(status="unused"), name="runs_grant_unused"),
        ]


class ToolUsage(TenantModel):
    """What a tool did on a day (of its own time zone), for its limits. `currency` is empty for the calls of a tool."""

    tool = models.CharField(max_length=64)
    day = models.DateField()
    currency = models.CharField(max_length=3)
    calls = models.IntegerField(default=0)
    amount = models.DecimalField(max_digits=24, decimal_places=6, default=0)
    tokens = models.FloatField(null=True)
    refilled_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant_id", "tool", "day", "currency"], name="runs_toolusage_day_unique")
        ]
