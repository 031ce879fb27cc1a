"""Standing in for one another, and being away. A delegation gives away no more than one has, and never longer than it says."""

from datetime import date, datetime, time, timedelta
from typing import Final
from uuid import UUID
from zoneinfo import ZoneInfo

from approvals.models import Delegation, Policy
from approvals.queries import policies as queries
from approvals.queries.policies import DelegationRow
from audit import operations as audit_ops
from kernel import codec, ids, ports
from kernel.actor import Actor
from kernel.errors import FieldError, Invalid, NotFound
from privacy import guard
from tenancy.models import Member

LONGEST: Final = timedelta(days=366)


def window(first: date, last: date, zone: ZoneInfo) -> tuple[datetime, datetime]:
    """From the beginning of the first day to the end of the last one, as those days are in `zone`, clock changes included."""
    starts = datetime.combine(first, time.min, zone)
    return starts, datetime.combine(last + timedelta(days=1), time.min, zone)


def delegate(
    *, tenant: UUID, from_member: UUID, to_member: UUID | None, starts_at: datetime, ends_at: datetime, away: bool,
    reason: str | None, actor: Actor, now: datetime, policy_id: UUID | None = None,
) -> DelegationRow:  # fmt: skip
    """Let `to_member` decide in one's place, for one policy or all; with `away` one does not decide oneself meanwhile.

    Raises Invalid, NotFound. The caller holds the tenant scope, and has made sure that `actor` may speak for `from_member`.
    """
    if reason:
        guard.inspect(codec.dumps(reason))
    if to_member is None and not away:
        raise _invalid("to", "Say who stands in, or that you are away.")
    if to_member == from_member:
        raise _invalid("to", "Nobody stands in for themselves.")
    if not starts_at < ends_at or ends_at <= now:
        raise _invalid("ends_at", "The end lies after the beginning, and in the future.")
    if ends_at - starts_at > LONGEST:
        raise _invalid("ends_at", f"At most {LONGEST.days} days.")
    people = {from_member} | ({to_member} if to_member else set())
    if Member.objects.filter(id__in=people).count() != len(people):
        raise NotFound("There is no such member.")
    if policy_id is not None and not Policy.objects.filter(id=policy_id).exists():
        raise NotFound("There is no such policy.")
    row = Delegation(
        id=ids.uuid7(), from_member_id=from_member, to_member_id=to_member, policy_id=policy_id, away=away, starts_at=starts_at,
        ends_at=ends_at, created_at=now, created_by=actor.label,
    )  # fmt: skip
    if reason:
        row.reason = ports.codec().seal(tenant=tenant, context=row.id.bytes, plaintext=reason.encode())
    row.save(force_insert=True)
    content: dict[str, object] = {
        "from": str(from_member), "to": None if to_member is None else str(to_member), "away": away, "reason": reason,
        "policy": None if policy_id is None else str(policy_id), "starts_at": starts_at.isoformat(), "ends_at": ends_at.isoformat(),
    }  # fmt: skip
    _record(tenant, actor, "delegation.created", row.id, content, now)
    return queries.get_delegation(tenant=tenant, delegation_id=row.id, now=now)


def revoke(*, tenant: UUID, delegation_id: UUID, actor: Actor, now: datetime, member: UUID | None = None) -> None:
    """End a delegation now; what was decided under it stays. `member`: only one of theirs. Raises NotFound."""
    rows = Delegation.objects.filter(id=delegation_id)
    row = (rows if member is None else rows.filter(from_member_id=member)).select_for_update().first()
    if row is None:
        raise NotFound("There is no such delegation.")
    if row.revoked_at is None:
        row.revoked_at = now
        row.save(update_fields=["revoked_at"])
        _record(tenant, actor, "delegation.revoked", row.id, {}, now)


def _invalid(path: str, message: str) -> Invalid:
    return Invalid(message, fields=(FieldError(path=f"/{path}", code="invalid_delegation", message=message),))


def _record(
    tenant: UUID, actor: Actor, action: str, delegation_id: UUID, content: dict[str, object], now: datetime
) -> None:
    audit_ops.record(
        tenant=tenant,
        actor=actor,
        action=action,
        target_kind="delegation",
        target_id=delegation_id,
        content=content,
        now=now,
    )
