"""What needs a person now, in one list: outcomes that nobody knows, gates that wait, runs that stopped for good."""

from collections.abc import Mapping
from typing import Any, Final

from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from audit import operations as audit_ops
from kernel import clock
from kernel.web import paging
from kernel.web.door import Visitor
from kernel.web.paging import Chip
from kernel.web.views import TenantPage
from runs import queries
from runs.ui import ledger
from runs.ui.words import FAILURES

MOST: Final = 50
KINDS: Final = ("unknown", "gate", "dead")
TABS: Final = (
    ("", _("All")),
    ("unknown", _("Unknown outcomes")),
    ("gate", _("Open gates")),
    ("dead", _("Dead letters")),
)


def nav_counts(visitor: Visitor) -> Mapping[str, int]:
    """What stands beside the section in the navigation."""
    return {"attention": queries.counts(tenant=visitor.tenant_id).all} if visitor.may("runs:read") else {}


class Attention(TenantPage):
    action = "runs:read"
    section = "attention"
    template_name = "runs/attention.html"
    # It shows the messages of failures, which are payload.
    secret = True

    def context(self) -> dict[str, Any]:
        now, query, path = clock.now(), self.request.GET, self.request.path
        kind = query.get("kind", "")
        kind = kind if kind in KINDS else ""
        workflow = paging.clean(query, "workflow", 64)
        found = queries.attention(
            tenant=self.visitor.tenant_id,
            kinds=[kind] if kind else KINDS,
            workflow=workflow or None,
            limit=MOST,
            now=now,
        )
        self._record(found, now)
        counts = {
            "": found.counts.all,
            "unknown": found.counts.unknown,
            "gate": found.counts.gates,
            "dead": found.counts.dead,
        }
        zone = timezone.get_current_timezone()
        return {
            "found": found,
            "kind": kind,
            "tabs": [(name, word, counts[name], paging.link(path, query, kind=name or None)) for name, word in TABS],
            "cap": queries.COUNT_CAP,
            "unknown": [(view, ledger.tell(view, zone=zone, now=now)) for view in found.unknown],
            "workflow": workflow,
            "workflows": found.workflows,
            "chips": [Chip(gettext("Workflow"), workflow, paging.link(path, query, workflow=None))] if workflow else [],
            "failures": FAILURES,
            "nothing": not (found.unknown or found.gates or found.dead),
            "now": now,
        }

    def _record(self, found: queries.Attention, now: Any) -> None:
        seen = [
            [str(letter.run.id), letter.failure.seq]
            for letter in found.dead
            if letter.failure and letter.failure.message
        ]
        if seen:
            audit_ops.record(
                tenant=self.visitor.tenant_id, actor=self.visitor.actor, action="runs.payloads_viewed", target_kind="tenant",
                target_id=self.visitor.tenant_id, content={"events": seen}, now=now,
            )  # fmt: skip
