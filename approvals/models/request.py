"""A proposed action, who decides on it, and everything that was said and done about it.

Free text and payloads are sealed under the run's data key, so they go with the subject's. Votes, comments and activities are only
ever added.
"""

from django.contrib.postgres.fields import ArrayField
from django.db import models

from approvals.states import ACTIVITIES, REQUEST_MOVES, RISKS
from kernel.models import TenantModel


class Request(TenantModel):
    """One question to people: may exactly this happen?

    `round` grows when it is asked again after it was stale; votes of earlier rounds do not count. `version` is its place in the
    chain of requests that superseded one another. `action` is sealed: the arguments as canonical JSON. `summary` is sealed JSON:
    business object, explanation, target version. `excluded`: members who may not decide, by what was known when it was opened.
    `requester_id` is the key that asked. `step_up` and `bulk` follow from policy and risk.
    """

    gate_id = models.UUIDField()
    run_id = models.UUIDField()
    step_id = models.UUIDField()
    effect_id = models.UUIDField()
    project_id = models.UUIDField()
    agent_id = models.UUIDField(null=True)
    requester_id = models.UUIDField()
    data_key_id = models.UUIDField()
    tool_id = models.UUIDField()
    tool = models.CharField(max_length=64)
    tool_version = models.CharField(max_length=64)
    status = models.CharField(max_length=16)
    version = models.IntegerField(default=1)
    round = models.IntegerField(default=1)
    digest = models.BinaryField()
    action_digest = models.BinaryField()
    policy_id = models.UUIDField()
    policy_version_id = models.UUIDField()
    risk = models.CharField(max_length=8)
    risk_rule = models.CharField(max_length=160)
    amount = models.DecimalField(max_digits=18, decimal_places=6, null=True)
    currency = models.CharField(max_length=3, null=True)
    action = models.BinaryField()
    action_size = models.BigIntegerField()
    summary = models.BinaryField()
    excluded = ArrayField(models.UUIDField(), default=list)
    editors = ArrayField(models.UUIDField(), default=list)
    self_approval = models.BooleanField(default=False)
    step_up = models.BooleanField(default=False)
    bulk = models.BooleanField(default=False)
    grant_seconds = models.FloatField()
    supersedes_id = models.UUIDField(null=True)
    stale_reason = models.CharField(max_length=40, null=True)
    opened_at = models.DateTimeField()
    deadline_at = models.DateTimeField()
    decided_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant_id", "gate_id"], name="approvals_request_gate_unique"),
            models.CheckConstraint(
                condition=models.Q(status__in=list(REQUEST_MOVES)), name="approvals_request_status_known"
            ),
            models.CheckConstraint(condition=models.Q(risk__in=RISKS), name="approvals_request_risk_known"),
            models.CheckConstraint(
                condition=~models.Q(status="stale") | models.Q(stale_reason__isnull=False),
                name="approvals_request_stale_says_why",
            ),
        ]
        indexes = [
            models.Index("tenant_id", "status", "deadline_at", "id", name="approvals_request_queue"),
            models.Index(
                "tenant_id", models.F("opened_at").desc(), models.F("id").desc(), name="approvals_request_newest"
            ),
            models.Index("tenant_id", "effect_id", models.F("opened_at").desc(), name="approvals_request_effect"),
            models.Index("tenant_id", "run_id", name="approvals_request_run"),
            models.Index(
                "tenant_id",
                "policy_id",
                condition=models.Q(status__in=["open", "stale"]),
                name="approvals_request_policy",
            ),
            models.Index(
                "tenant_id",
                "supersedes_id",
                condition=models.Q(supersedes_id__isnull=False),
                name="approvals_request_successor",
            ),
        ]


class RequestGroup(TenantModel):
    """Who must agree, as the policy says: `needed` of those with one of `roles`, the policy's approvers, or the named keys."""

    request_id = models.UUIDField()
    round = models.IntegerField()
    position = models.SmallIntegerField()
    name = models.CharField(max_length=64)
    needed = models.SmallIntegerField()
    roles = ArrayField(models.CharField(max_length=20), default=list)
    approvers = models.BooleanField(default=False)
    keys = ArrayField(models.UUIDField(), default=list)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["tenant_id", "request_id", "round", "name"], name="approvals_requestgroup_name_unique"
            ),
            models.CheckConstraint(condition=models.Q(needed__gte=1), name="approvals_requestgroup_needs_somebody"),
        ]


class Evidence(TenantModel):
    """What the decision rests on, as it was when it was shown. `snapshot` is sealed JSON; `digest` that of the thing itself."""

    request_id = models.UUIDField()
    round = models.IntegerField()
    position = models.SmallIntegerField()
    kind = models.CharField(max_length=8)
    event_run_id = models.UUIDField(null=True)
    event_seq = models.BigIntegerField(null=True)
    artifact_id = models.UUIDField(null=True)
    digest = models.BinaryField()
    snapshot = models.BinaryField()
    observed_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(kind__in=["event", "artifact", "fact", "target"]),
                name="approvals_evidence_kind_known",
            )
        ]
        indexes = [
            models.Index("tenant_id", "request_id", "round", "position", name="approvals_evidence_request"),
        ]


class Vote(TenantModel):
    """What one person, or one service, said. `authority_id` is whose right it was: the voter's own, or that of who delegated it.

    `path` are those in between, from the one who delegated to the voter. `digest` is what the voter was shown.
    """

    request_id = models.UUIDField()
    round = models.IntegerField()
    voter_kind = models.CharField(max_length=8)
    voter_id = models.UUIDField()
    authority_id = models.UUIDField()
    path = ArrayField(models.UUIDField(), default=list)
    group = models.CharField(max_length=64)
    decision = models.CharField(max_length=8)
    basis = models.CharField(max_length=16)
    reason = models.BinaryField(null=True)
    digest = models.BinaryField()
    at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["tenant_id", "request_id", "round", "voter_id"], name="approvals_vote_voter_unique"
            ),
            models.UniqueConstraint(
                fields=["tenant_id", "request_id", "round", "authority_id"], name="approvals_vote_authority_unique"
            ),
            models.CheckConstraint(
                condition=models.Q(decision__in=["approve", "reject"]), name="approvals_vote_decision_known"
            ),
            models.CheckConstraint(
                condition=models.Q(voter_kind__in=["member", "key"]), name="approvals_vote_voter_kind_known"
            ),
        ]


class Comment(TenantModel):
    """`answers_id` names the question that an answer belongs to. `text` is sealed."""

    request_id = models.UUIDField()
    author_kind = models.CharField(max_length=8)
    author_id = models.UUIDField()
    kind = models.CharField(max_length=8)
    answers_id = models.UUIDField(null=True)
    text = models.BinaryField()
    at = models.DateTimeField()

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(kind__in=["comment", "question", "answer"]), name="approvals_comment_kind_known"
            ),
        ]
        indexes = [models.Index("tenant_id", "request_id", "id", name="approvals_comment_request")]


class Alarm(TenantModel):
    """What is due by itself for a request, once: a reminder, an escalation, telling that it closed. Without `due_at` it is over."""

    request_id = models.UUIDField()
    round = models.IntegerField()
    kind = models.CharField(max_length=10)
    ordinal = models.SmallIntegerField()
    due_at = models.DateTimeField(null=True)
    fired_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["tenant_id", "request_id", "round", "kind", "ordinal"], name="approvals_alarm_once"
            ),
            models.CheckConstraint(
                condition=models.Q(kind__in=["reminder", "escalation", "closed"]), name="approvals_alarm_kind_known"
            ),
        ]
        indexes = [models.Index("due_at", condition=models.Q(due_at__isnull=False), name="approvals_alarm_due")]


class Activity(TenantModel):
    """Something that happened to a request. `detail` holds ids and words of ours, never text that somebody wrote."""

    request_id = models.UUIDField()
    kind = models.CharField(max_length=16)
    actor_kind = models.CharField(max_length=8)
    actor_id = models.UUIDField(null=True)
    detail = models.JSONField(default=dict)
    at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["tenant_id", "request_id", "actor_id"],
                condition=models.Q(kind="viewed"),
                name="approvals_activity_viewed_once",
            ),
            models.CheckConstraint(condition=models.Q(kind__in=ACTIVITIES), name="approvals_activity_kind_known"),
        ]
        indexes = [models.Index("tenant_id", "request_id", "id", name="approvals_activity_request")]
