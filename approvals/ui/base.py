"""What the pages of approvals share: the member as a principal, the list beside a request, and refusals in words."""

from typing import Any, Final
from uuid import UUID

from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.translation import gettext

from approvals.queries import deciding, inbox, policies, pulse
from approvals.queries.inbox import Filters
from approvals.states import RISKS
from approvals.ui.words import RISKS as RISK_WORDS
from approvals.ui.words import VIEWS, progress, refusal
from kernel import clock
from kernel.errors import DomainError
from kernel.web import paging
from kernel.web.door import Visitor
from kernel.web.paging import Chip
from kernel.web.views import TenantPage
from tenancy import queries as tenancy_queries
from tenancy.queries import Principal

PAGE_SIZE: Final = 50
# Parameters of the list, which every link of it keeps.
LISTED: Final = ("view", "risk", "tool", "policy", "cursor")


def principal_of(visitor: Visitor) -> Principal:
    """The member as the domain knows it, its roles as they are now."""
    member = tenancy_queries.get_member(tenant=visitor.tenant_id, member_id=visitor.member_id)
    return Principal(
        kind="member", id=visitor.member_id, tenant_id=visitor.tenant_id, tenant_slug=visitor.slug, name=visitor.name,
        actions=visitor.actions, roles=frozenset(member.roles), user_id=member.user_id,
    )  # fmt: skip


def nav_count(visitor: Visitor) -> int:
    """On how many requests the visitor may decide now."""
    return deciding.decidable(tenant=visitor.tenant_id, member=visitor.member_id)


class ApprovalsPage(TenantPage):
    action = "approvals:read"
    section = "approvals"
    # Requests are payload.
    secret = True

    def refused(self, error: DomainError) -> HttpResponseBase:
        error.detail = refusal(error)
        return super().refused(error)

    def filters(self) -> Filters:
        query = self.request.GET
        view = query.get("view", "")
        policy = query.get("policy", "")
        return Filters(
            view=view if view in dict(VIEWS) else "mine",  # type: ignore[arg-type]
            risk=tuple(risk for risk in RISKS if risk in query.getlist("risk")),
            tool=paging.clean(query, "tool", 64) or None,
            policy_id=uuid_or_none(policy),
        )

    def listed(self) -> str:
        """The list's part of the address, for links that keep it."""
        query = self.request.GET.copy()
        for name in list(query):
            if name not in LISTED:
                query.pop(name)
        encoded = query.urlencode()
        return f"?{encoded}" if encoded else ""

    def version(self, selected: UUID | None = None) -> str:
        return pulse.of_page(
            tenant=self.visitor.tenant_id, member=self.visitor.member_id, filters=self.filters(),
            cursor=self.request.GET.get("cursor") or None, limit=PAGE_SIZE, also=selected,
        )  # fmt: skip

    def list_context(self, version: str, selected: UUID | None = None) -> dict[str, Any]:
        tenant, member, query = self.visitor.tenant_id, self.visitor.member_id, self.request.GET.copy()
        query.pop("selected", None)
        filters, path = self.filters(), reverse("approvals:inbox", args=[self.visitor.slug])
        page = inbox.page(
            tenant=tenant, member=member, filters=filters, cursor=query.get("cursor") or None, limit=PAGE_SIZE
        )
        counts = inbox.counts(tenant=tenant, member=member)
        numbers = {"mine": counts.mine, "open": counts.open, "stale": counts.stale}
        known = policies.list_policies(tenant=tenant)
        rows = [
            (
                row,
                progress(sum(min(g.got, g.needed) for g in row.groups), sum(g.needed for g in row.groups), row.status),
            )
            for row in page.rows
        ]
        return {
            "rows": rows,
            "pager": paging.pager(
                path, query, shown=len(rows), total=pulse.total(tenant=tenant, member=member, filters=filters),
                next_cursor=page.next_cursor,
            ),
            "counts": counts,
            "views": [(name, word, name == filters.view, numbers.get(name), _view(path, name, query)) for name, word in VIEWS],
            "filters": filters,
            "chips": self._chips(path, filters, {policy.id: policy.name for policy in known}),
            "policies": [(policy.id, policy.name) for policy in known],
            "risks": [(risk, RISK_WORDS[risk], counts.by_risk[risk]) for risk in RISKS],
            "risk_words": RISK_WORDS,
            "alike": _alike([row for row, _word in rows]),
            "listed": self.listed(),
            # News of the list come without the request beside it, so that following the list is no look at a request.
            "live": paging.link(path, query, selected=selected),
            "back": reverse("approvals:request", args=[self.visitor.slug, selected]) if selected else path,
            "selected": selected,
            "list_version": version,
            "now": clock.now(),
            "soon": clock.now() + inbox.SOON,
        }  # fmt: skip

    def _chips(self, path: str, filters: Filters, names: dict[UUID, str]) -> list[Chip]:
        query = self.request.GET
        chips = [
            Chip(gettext("Risk"), str(RISK_WORDS[risk]), paging.without_value(path, query, "risk", risk)) for risk in filters.risk
        ]  # fmt: skip
        for name, label, value in (
            ("tool", gettext("Tool"), filters.tool),
            ("policy", gettext("Policy"), names.get(filters.policy_id) if filters.policy_id else None),
        ):
            if value:
                chips.append(Chip(label, value, paging.link(path, query, without=[name, "cursor"])))
        return chips


def uuid_or_none(value: str) -> UUID | None:
    try:
        return UUID(value)
    except ValueError:
        return None


def _view(path: str, name: str, query: Any) -> str:
    return paging.link(path, query, without=["cursor", "selected"], view=None if name == "mine" else name)


def _alike(rows: list[inbox.Row]) -> set[UUID]:
    """Those of the page that can be decided together: of the kind that most of them are."""
    kinds: dict[tuple[str, str, UUID], set[UUID]] = {}
    for row in rows:
        if row.bulk and row.mine.allowed and row.status == "open":
            kinds.setdefault((row.tool, row.risk, row.policy_id), set()).add(row.id)
    most = max(kinds.values(), key=len, default=set())
    return most if len(most) > 1 else set()
