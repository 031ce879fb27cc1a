"""Whether a request still stands: the policy that speaks for its action, what it rests on, who agreed."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from django.db import connection

from approvals import rules
from approvals.models import Evidence, Request
from approvals.queries import policies
from approvals.rules import Facts, Matched
from privacy.models import Subject
from runs.models import Artifact, Event, Run
from runs.queries import registry
from runs.registry import ToolVersion
from tenancy.models import Agent, Project

STILL_AGREED: Final = "select approvals_still_agreed(%s, %s)"


def matched(*, tenant: UUID, tool: ToolVersion, run_id: UUID, amount: object, currency: str | None) -> Matched | None:
    """The policy that speaks for an action now. One query for a tenant without policies."""
    candidates = policies.active(tenant=tenant)
    if not candidates:
        return None
    run = Run.objects.only("labels", "agent_id", "project_id").get(id=run_id)
    facts = Facts(
        tool=tool.name, approval=tool.approval, side_effect=tool.side_effect, amount=amount, currency=currency,  # type: ignore[arg-type]
        labels=run.labels, agent=Agent.objects.filter(id=run.agent_id).values_list("slug", flat=True).first(),
        project=Project.objects.values_list("slug", flat=True).get(id=run.project_id),
    )  # fmt: skip
    return rules.judge(candidates, facts)


def stale_reason(*, tenant: UUID, request: Request, now: datetime) -> str | None:
    """Why a request cannot be approved as it was asked: policy_changed, tool_disabled, evidence_changed, evidence_too_old,
    subject_erased."""
    tool = registry.tool_version(tenant=tenant, name=request.tool, version=request.tool_version)
    if not tool.enabled:
        return "tool_disabled"
    found = matched(tenant=tenant, tool=tool, run_id=request.run_id, amount=request.amount, currency=request.currency)
    if found is None or found.denies or found.policy.version_id != request.policy_version_id:
        return "policy_changed"
    subject = Run.objects.values_list("subject_id", flat=True).get(id=request.run_id)
    if subject is not None and Subject.objects.filter(id=subject, erased_at__isnull=False).exists():
        return "subject_erased"
    evidence = list(Evidence.objects.filter(request_id=request.id, round=request.round).defer("snapshot"))
    if gone(evidence):
        return "evidence_changed"
    limit = found.policy.rules.evidence_max_age_seconds
    if limit is not None and any(now - item.observed_at > timedelta(seconds=limit) for item in evidence):
        return "evidence_too_old"
    return None


def gone(evidence: Sequence[Evidence]) -> set[UUID]:
    """Which evidence is no longer what it was: an event whose payload was erased, an artifact that is not ready any more."""
    missing: set[UUID] = set()
    artifacts = {item.artifact_id: item.id for item in evidence if item.artifact_id is not None}
    ready = Artifact.objects.filter(id__in=artifacts, status="ready").values_list("id", flat=True) if artifacts else ()
    missing |= {item for artifact, item in artifacts.items() if artifact not in set(ready)}
    events = {(item.event_run_id, item.event_seq): item for item in evidence if item.event_seq is not None}
    if events:
        rows = Event.objects.filter(run_id__in={run for run, _ in events}, seq__in={seq for _, seq in events})
        digests = {
            (run, seq): (bytes(digest), kept)
            for run, seq, digest, kept in rows.extra(select={"kept": "payload is not null or payload_commitment is null"})
            .values_list("run_id", "seq", "digest", "kept")
        }  # fmt: skip
        for place, item in events.items():
            if place not in digests or digests[place][0] != bytes(item.digest) or not digests[place][1]:
                missing.add(item.id)
    return missing


def still_agreed(*, tenant: UUID, request_id: UUID) -> bool:
    """Whether those who approved have their right still. Locks them and the policy until the transaction ends."""
    with connection.cursor() as cursor:
        cursor.execute(STILL_AGREED, [tenant, request_id])
        agreed: bool = cursor.fetchone()[0]
    return agreed
