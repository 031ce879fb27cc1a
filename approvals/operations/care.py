"""What time makes due: reminders and escalations, each once, and telling of what closed by itself.

The deadline itself is the gate's, which `runs.sweep` lets lapse; the database moves the request with it.
"""

import logging
from typing import Final
from uuid import UUID

from django.db import Error

from approvals import rules
from approvals.models import Alarm, PolicyVersion, Request, RequestGroup
from approvals.operations import asking, notices
from kernel import clock, pool
from kernel.context import tenant_scope
from kernel.errors import DomainError

logger = logging.getLogger(__name__)

# Alarms of every tenant that are due: ids only.
DUE: Final = "select tenant, alarm from approvals_due(%s)"


def sweep(*, limit: int = 500) -> int:
    """Do what is due; how many. Each is a transaction of its own, and one that fails stops no other."""
    done = 0
    for tenant, alarm in pool.rows(DUE, (limit,)):
        try:
            with tenant_scope(tenant):
                done += _fire(tenant, alarm)
        except (Error, DomainError):
            logger.exception("approvals_sweep_failed", extra={"tenant": str(tenant), "alarm": str(alarm)})
    return done


def _fire(tenant: UUID, alarm_id: UUID) -> bool:
    """One alarm, under the locks of its run and request: whoever comes second finds it over."""
    found = Alarm.objects.filter(id=alarm_id).values_list("request_id", flat=True).first()
    if found is None:
        return False
    request = asking.locked(request_id=found)
    alarm = Alarm.objects.get(id=alarm_id)
    now = asking.database_now()
    if alarm.due_at is None or alarm.due_at > now:
        return False
    alarm.due_at, fired = None, False
    if alarm.kind == "closed":
        # What another request took the place of, needs no telling.
        if fired := request.status in ("expired", "withdrawn"):
            notices.to_requester(tenant=tenant, kind=f"approval.{request.status}", request=request, now=clock.now())
    elif fired := request.status == "open" and request.deadline_at > now:
        _remind(tenant, request) if alarm.kind == "reminder" else _escalate(tenant, request, alarm.ordinal)
    alarm.fired_at = now if fired else None
    alarm.save(update_fields=["due_at", "fired_at"])
    return fired


def _remind(tenant: UUID, request: Request) -> None:
    now = clock.now()
    asking.note(request, "reminded", None, now)
    notices.to_deciders(tenant=tenant, kind="approval.reminder", request=request, now=now)


def _escalate(tenant: UUID, request: Request, ordinal: int) -> None:
    now = clock.now()
    version = PolicyVersion.objects.get(id=request.policy_version_id)
    step = rules.parse(version.rules).escalation[ordinal]
    if step.decides:
        for group in RequestGroup.objects.filter(request_id=request.id, round=request.round):
            if step.role not in group.roles:
                group.roles = [*group.roles, step.role]
                group.save(update_fields=["roles"])
    asking.note(request, "escalated", None, now, role=step.role, decides=step.decides)
    notices.to_role(tenant=tenant, kind="approval.escalated", request=request, role=step.role, now=now)
