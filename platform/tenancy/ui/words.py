"""Roles, scopes and key states in words."""

from datetime import datetime, timedelta
from typing import Final

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from tenancy.models import ApiKey, Role

ROLES: Final[dict[str, str | Promise]] = {
    Role.OWNER: _("Owner"),
    Role.ADMIN: _("Admin"),
    Role.OPERATOR: _("Operator"),
    Role.APPROVER: _("Approver"),
    Role.COMPLIANCE: _("Compliance"),
    Role.AUDITOR: _("Auditor"),
    Role.VIEWER: _("Viewer"),
}

ROLE_NOTES: Final[dict[str, str | Promise]] = {
    Role.OWNER: _("Everything, and cannot be locked out: a tenant always keeps an owner"),
    Role.ADMIN: _("Members, roles, API keys and runs"),
    Role.OPERATOR: _("Sees runs and acts on them"),
    Role.APPROVER: _("Sees runs; decides what needs approval"),
    Role.COMPLIANCE: _("Sees runs and the audit log; handles people's requests"),
    Role.AUDITOR: _("Sees everything, the audit log and keys too; changes nothing"),
    Role.VIEWER: _("Sees runs and members"),
}

SCOPE_NOTES: Final[dict[str, str | Promise]] = {
    "runs:read": _("See runs, their events and states"),
    "runs:write": _("Start runs and commit to them"),
    "runs:operate": _("Cancel and repair runs"),
    "work:claim": _("Take work from queues"),
    "effects:write": _("Ask before side effects, and bring their outcomes"),
    "schedules:read": _("See schedules"),
    "schedules:write": _("Create, change and pause schedules"),
    "tools:read": _("See tools and workflows"),
    "tools:write": _("Register tools and workflows, switch versions off"),
    "members:read": _("See members and their roles"),
    "members:write": _("Add, change and remove members"),
    "keys:read": _("See keys, never their secrets"),
    "keys:write": _("Create, rotate and revoke keys"),
    "projects:read": _("See projects and agents"),
    "projects:write": _("Create projects and register agents"),
    "audit:read": _("Read and verify the audit log"),
    "metrics:read": _("Read measures"),
    "artifacts:read": _("See and download artifacts"),
    "artifacts:write": _("Upload and delete artifacts"),
    "approvals:read": _("See approval requests and policies"),
    "approvals:decide": _("Decide what a policy names this key for"),
    "policies:write": _("Change approval policies and who decides"),
    "webhooks:read": _("See webhooks and what was sent to them"),
    "webhooks:write": _("Create, change and delete webhooks, send again"),
}

SOON: Final = timedelta(days=7)


def key_state(key: ApiKey, now: datetime) -> str:
    """`active`, `expiring` (within a week, or while its successor takes over), `expired` or `revoked`."""
    if key.revoked_at is not None:
        return "revoked"
    if key.expires_at is None:
        return "active"
    if key.expires_at <= now:
        return "expired"
    return "expiring" if key.replaced_by is not None or key.expires_at - now < SOON else "active"
