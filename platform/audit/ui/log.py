"""The audit log: what was done, by whom, to what; and whether the chain still holds."""

from typing import Any, Final
from uuid import UUID

import orjson
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from audit import queries
from audit.queries import AuditFilter
from kernel import clock
from kernel.web import paging
from kernel.web.paging import Chip
from kernel.web.text import short_id
from kernel.web.views import TenantPage

PAGE_SIZE: Final = 50

# The beginnings of actions, as groups that a person would look for.
GROUPS: Final[dict[str, str | Promise]] = {
    "run": _("Runs"),
    "runs": _("Anchors of runs"),
    "effect": _("Effects"),
    "gate": _("Gates"),
    "queue": _("Queues"),
    "tool": _("Tools"),
    "workflow": _("Workflows"),
    "member": _("Members"),
    "key": _("API keys"),
    "project": _("Projects"),
    "agent": _("Agents"),
    "tenant": _("Tenant"),
}

WORDS: Final[dict[str, str | Promise]] = {
    "run.cancelled": _("cancelled the run"),
    "run.recovered": _("recovered the run"),
    "run.forked": _("forked the run"),
    "run.migrated": _("moved the run to another workflow version"),
    "runs.payloads_viewed": _("looked at messages of failures"),
    "effect.reconciled": _("said what became of an effect"),
    "gate.satisfied": _("satisfied a gate"),
    "gate.refused": _("refused a gate"),
    "queue.set": _("paused or limited a queue"),
    "tool.registered": _("registered a tool version"),
    "tool.enabled": _("enabled a tool version"),
    "tool.disabled": _("disabled a tool version"),
    "workflow.registered": _("registered a workflow version"),
    "workflow.enabled": _("enabled a workflow version"),
    "workflow.disabled": _("disabled a workflow version"),
    "run.payload_viewed": _("looked at a payload"),
    "run.state_viewed": _("looked at a state"),
    "runs.anchored": _("anchored the ends of runs"),
    "member.added": _("added a member"),
    "member.roles_changed": _("changed roles"),
    "member.removed": _("removed a member"),
    "key.issued": _("created an API key"),
    "key.rotated": _("rotated an API key"),
    "key.revoked": _("revoked an API key"),
    "project.created": _("created a project"),
    "agent.registered": _("registered an agent"),
    "tenant.created": _("created the tenant"),
}


def _id(value: str) -> UUID | None:
    try:
        return UUID(value)
    except ValueError:
        return None


class AuditLog(TenantPage):
    action = "audit:read"
    section = "audit"
    template_name = "audit/list.html"

    def context(self) -> dict[str, Any]:
        query, path = self.request.GET, self.request.path
        filters, chips = self._filters()
        page = queries.page(
            tenant=self.visitor.tenant_id, filters=filters, cursor=query.get("cursor") or None, limit=PAGE_SIZE
        )
        return {
            "rows": [(row, WORDS.get(row.action, row.action), orjson.dumps(dict(row.content))) for row in page.rows],
            "pager": paging.pager(path, query, shown=len(page.rows), total=None, next_cursor=page.next_cursor),
            "filters": filters,
            "group": query.get("group", ""),
            "groups": GROUPS,
            "chips": chips,
        }

    def _filters(self) -> tuple[AuditFilter, list[Chip]]:
        query, path, zone = self.request.GET, self.request.path, timezone.get_current_timezone()
        group = query.get("group", "")
        actor, target = _id(query.get("actor", "")), _id(query.get("target", ""))
        filters = AuditFilter(
            action=f"{group}." if group in GROUPS else None,
            actor_id=actor,
            target_id=str(target) if target else None,
            recorded_from=paging.day(query.get("from", ""), zone),
            recorded_to=paging.day(query.get("to", ""), zone, after=True),
        )
        found = (
            ("group", gettext("About"), str(GROUPS[group]) if group in GROUPS else ""),
            ("actor", gettext("By"), actor and short_id(actor)),
            ("target", gettext("Done to"), target and short_id(target)),
            ("from", gettext("From"), filters.recorded_from and query["from"]),
            ("to", gettext("Until"), filters.recorded_to and query["to"]),
        )
        return filters, [
            Chip(label, str(value), paging.link(path, query, without=[name, "cursor"]))
            for name, label, value in found
            if value
        ]


class Verify(AuditLog):
    """Recomputes the tenant's chain. A POST, because it is work; it changes nothing."""

    http_method_names = ["post"]

    def post(self, request: HttpRequest) -> HttpResponseBase:
        shown = {"verification": queries.verify(tenant=self.visitor.tenant_id), "verified_at": clock.now()}
        if request.headers.get("HX-Request"):
            return self.render(shown, template="audit/verification.html")
        return self.render({**self.context(), **shown})
