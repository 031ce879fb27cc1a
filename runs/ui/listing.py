"""The list of runs. Its address holds every filter, so that a view can be shared and reloaded."""

from typing import Final
from uuid import UUID

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from kernel.web import paging, states
from kernel.web.paging import Chip
from kernel.web.views import TenantPage
from runs import queries
from runs.queries import RunFilter, RunPage
from runs.states import RUN_MOVES
from runs.ui.words import WAITING_FOR
from tenancy import queries as tenancy_queries

PAGE_SIZE: Final = 50
LIVE: Final = "X-Live"

# Views that are one click away: the name and the states.
VIEWS: Final = (
    ("", _("All"), ()),
    ("running", _("Running"), ("running",)),
    ("waiting", _("Waiting"), ("pending", "waiting")),
    ("dead", _("Dead letters"), ("dead_letter",)),
    ("ended", _("Ended"), ("completed", "failed", "cancelled")),
)


class RunList(TenantPage):
    action = "runs:read"
    section = "runs"
    template_name = "runs/list.html"

    def get(self, request: HttpRequest) -> HttpResponseBase:
        wanted = paging.clean(request.GET, "q")
        if wanted:
            return self._search(wanted)
        filters, chips = self._filters()
        page = queries.list_runs(
            tenant=self.visitor.tenant_id, filters=filters, cursor=request.GET.get("cursor") or None, limit=PAGE_SIZE
        )
        version = _version(page)
        if request.headers.get(LIVE) == version:
            return HttpResponse(status=204)
        return self.render(
            {
                "page": page,
                "pager": paging.pager(
                    request.path,
                    request.GET,
                    shown=len(page.rows),
                    total=page.total,
                    next_cursor=page.next_cursor,
                    capped=page.total_capped,
                ),
                "version": version,
                "live": "cursor" not in request.GET,
                "chips": chips,
                "filters": filters,
                "views": [
                    (name, word, set(wanted) == set(filters.status), self._view(wanted)) for name, word, wanted in VIEWS
                ],
                "statuses": list(RUN_MOVES),
                "agents": tenancy_queries.list_agents(tenant=self.visitor.tenant_id),
                "projects": tenancy_queries.list_projects(tenant=self.visitor.tenant_id),
                "waiting_for": WAITING_FOR,
                "base_url": settings.BASE_URL,
            }
        )

    def _search(self, wanted: str) -> HttpResponse:
        """An id leads to its run, anything else is a workflow's name."""
        try:
            return redirect("runs:detail", self.visitor.slug, UUID(wanted))
        except ValueError:
            query = self.request.GET
            return redirect(paging.link(self.request.path, query, without=["q", "cursor"], workflow=wanted))

    def _view(self, wanted: tuple[str, ...]) -> str:
        query = self.request.GET.copy()
        query.pop("cursor", None)
        query.setlist("status", list(wanted))
        encoded = query.urlencode()
        return f"{self.request.path}?{encoded}" if encoded else self.request.path

    def _filters(self) -> tuple[RunFilter, list[Chip]]:
        """The filter of the address, and a chip for each part of it that the views above the list do not name."""
        query, path, zone = self.request.GET, self.request.path, timezone.get_current_timezone()
        status = tuple(found for found in query.getlist("status") if found in RUN_MOVES)
        filters = RunFilter(
            status=status,
            workflow=paging.clean(query, "workflow") or None,
            agent=paging.clean(query, "agent") or None,
            project=paging.clean(query, "project") or None,
            created_from=paging.day(query.get("from", ""), zone),
            created_to=paging.day(query.get("to", ""), zone, after=True),
        )
        chips = []
        if not any(set(wanted) == set(status) for _name, _word, wanted in VIEWS):
            chips += [
                Chip(gettext("Status"), str(states.look(s).word), paging.without_value(path, query, "status", s))
                for s in status
            ]
        for name, label, value in (
            ("workflow", gettext("Workflow"), filters.workflow),
            ("agent", gettext("Agent"), filters.agent),
            ("project", gettext("Project"), filters.project),
            ("from", gettext("Created from"), filters.created_from and query["from"]),
            ("to", gettext("Created until"), filters.created_to and query["to"]),
        ):
            if value:
                chips.append(Chip(label, value, paging.link(path, query, without=[name, "cursor"])))
        return filters, chips


def _version(page: RunPage) -> str:
    """Changes when what the page shows has changed."""
    newest = max((row.updated_at for row in page.rows), default=None)
    return f"{page.total}.{newest.timestamp() if newest else 0}"
