"""One run: what it waits for, who worked on it and when, every event, every state, and whether the log still verifies.

Invariant: a payload or a state is read only when somebody asks for it, and who asked is in the audit log.
"""

from datetime import datetime
from typing import Any, Final
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils import timezone

from audit import operations as audit_ops
from kernel import clock
from kernel.errors import NotFound
from kernel.web.views import TenantPage
from runs import queries
from runs.queries import EventRow, RunDetail
from runs.states import RUN_ENDS
from runs.ui import chart
from runs.ui.listing import LIVE
from runs.ui.words import event_state, why

WINDOW: Final = 100
LATEST: Final = 12
CHECKPOINTS: Final = 50
NOW_STEP: Final = 15  # seconds after which a page without news moves its line of now


class RunPage(TenantPage):
    """The head that all pages of a run share."""

    action = "runs:read"
    section = "runs"
    tab = ""

    @property
    def run_id(self) -> UUID:
        found: UUID = self.kwargs["run_id"]
        return found

    def detail(self, now: datetime) -> RunDetail:
        return queries.get_run(tenant=self.visitor.tenant_id, run_id=self.run_id, now=now)

    def head(self, detail: RunDetail, now: datetime) -> dict[str, Any]:
        return {
            "detail": detail,
            "run": detail.run,
            "tab": self.tab,
            "ended": detail.run.status in RUN_ENDS,
            "now": now,
        }

    def number(self, name: str) -> int | None:
        """A parameter that is a plain number below a thousand million; anything else counts as absent."""
        value = self.request.GET.get(name, "")
        return int(value) if value.isascii() and value.isdecimal() and len(value) < 10 else None

    def record(self, action: str, content: dict[str, object]) -> None:
        """Write into the audit log that the visitor saw what is inside."""
        audit_ops.record(
            tenant=self.visitor.tenant_id,
            actor=self.visitor.actor,
            action=action,
            target_kind="run",
            target_id=self.run_id,
            content=content,
            now=clock.now(),
        )


class Overview(RunPage):
    template_name = "runs/overview.html"
    tab = "timeline"

    def get(self, request: HttpRequest) -> HttpResponseBase:
        now = clock.now()
        detail = self.detail(now)
        version = _version(detail, now)
        if request.headers.get(LIVE) == version:
            return HttpResponse(status=204)
        return self.render({**self.overview(detail, now), "version": version})

    def overview(self, detail: RunDetail, now: datetime) -> dict[str, Any]:
        zone, run = timezone.get_current_timezone(), detail.run
        true_scale = self.request.GET.get("scale") == "true"
        events = queries.events_page(
            tenant=self.visitor.tenant_id, run_id=run.id, after=max(0, run.last_seq - LATEST), limit=LATEST
        )
        return {
            **self.head(detail, now),
            "why": why(detail, slug=self.visitor.slug, zone=zone, now=now),
            "drawn": chart.draw(detail, now=now, zone=zone, fold=not true_scale, first=self.number("step")),
            "true_scale": true_scale,
            "attempts": [(attempt, chart.attempt_state(attempt)) for attempt in detail.attempts],
            "workers": list(dict.fromkeys(attempt.worker for attempt in detail.attempts))[:8],
            "statuses": {step.status for step in detail.steps},
            "queued": (run.started_at or now) - run.created_at,
            "events": [(event, event_state(event)) for event in reversed(events.rows)],
        }


class Events(RunPage):
    """A window of the log. Whatever the length of the log, a window costs the same."""

    template_name = "runs/events.html"
    tab = "events"

    def context(self) -> dict[str, Any]:
        return self.window(self.number("after") or (self.number("from") or 1) - 1)

    def window(self, after: int) -> dict[str, Any]:
        now = clock.now()
        detail = self.detail(now)
        last = detail.run.last_seq
        after = min(after, max(0, last - 1))
        page = queries.events_page(tenant=self.visitor.tenant_id, run_id=self.run_id, after=after, limit=WINDOW)
        final = max(0, last - WINDOW)

        def address(start: int) -> str:
            base = reverse("runs:events", args=[self.visitor.slug, self.run_id])
            return f"{base}?after={start}" if start else base

        return {
            **self.head(detail, now),
            "page": page,
            "rows": _with_days(page.rows),
            "workers": {attempt.id: attempt for attempt in detail.attempts},
            "after": after,
            "first_page": address(0) if after > 0 else "",
            "previous_page": address(max(0, after - WINDOW)) if after > 0 else "",
            "next_page": address(page.next_after) if page.next_after else "",
            "last_page": address(final) if page.next_after else "",
            "last": page.rows[-1].seq if page.rows else 0,
            "wide": last > 9_999,
        }


class Event(Events):
    """One event beside the window of the log it stands in."""

    def context(self) -> dict[str, Any]:
        seq: int = self.kwargs["seq"]
        context = self.window((seq - 1) // WINDOW * WINDOW)
        event = next((row for row in context["page"].rows if row.seq == seq), None)
        if event is None:
            raise NotFound("There is no such event.")
        attempt = context["workers"].get(event.lease_id)
        return {**context, "event": event, "event_state": event_state(event), "attempt": attempt, "seq": seq}


class Payload(Event):
    """The payload of an event, on demand: a fragment for the page that asked, or the page of the event with it."""

    secret = True

    def get(self, request: HttpRequest) -> HttpResponseBase:
        seq: int = self.kwargs["seq"]
        payload = queries.event_payload(tenant=self.visitor.tenant_id, run_id=self.run_id, seq=seq)
        self.record("run.payload_viewed", {"seq": seq})
        shown = {"payload": payload, "seq": seq}
        if request.headers.get("HX-Request"):
            return self.render({**shown, "run_id": self.run_id}, template="runs/payload.html")
        return self.render({**self.context(), **shown})


class RawPayload(RunPage):
    """The payload's bytes as they were stored, for a tool or another window."""

    secret = True

    def get(self, request: HttpRequest) -> HttpResponseBase:
        seq: int = self.kwargs["seq"]
        payload = queries.event_payload(tenant=self.visitor.tenant_id, run_id=self.run_id, seq=seq)
        self.record("run.payload_viewed", {"seq": seq})
        return HttpResponse(payload, content_type="application/json")


class State(RunPage):
    """The state at a version, and what changed since another. Both are payload: the view is recorded."""

    template_name = "runs/state.html"
    tab = "state"
    secret = True

    def context(self) -> dict[str, Any]:
        tenant, now = self.visitor.tenant_id, clock.now()
        detail = self.detail(now)
        before = self.number("before")
        rows = queries.checkpoints_page(tenant=tenant, run_id=self.run_id, before=before, limit=CHECKPOINTS + 1)
        older, rows = len(rows) > CHECKPOINTS, rows[:CHECKPOINTS]
        context = {**self.head(detail, now), "rows": rows, "older": older and rows[-1].version, "before": before}
        version = self.number("version") or (rows[0].version if rows else 0)
        if not version:
            return context
        against = self.number("against")
        if against is None:
            against = next((row.version for row in rows if row.version < version), None)
        view = queries.checkpoint(tenant=tenant, run_id=self.run_id, version=version)
        changes = None
        if against and against != version:
            changes = queries.checkpoint_diff(tenant=tenant, run_id=self.run_id, old=against, new=version)
        self.record("run.state_viewed", {"version": version, "against": against})
        return {**context, "view": view, "version": version, "against": against, "changes": changes}


class Verify(Overview):
    """Recomputes the chain. A POST, because it is work; it changes nothing."""

    http_method_names = ["post"]

    def post(self, request: HttpRequest) -> HttpResponseBase:
        now = clock.now()
        found = queries.verify_run(tenant=self.visitor.tenant_id, run_id=self.run_id)
        shown = {"verification": found, "verified_at": now, "run_id": self.run_id}
        if request.headers.get("HX-Request"):
            return self.render(shown, template="runs/verification.html")
        return self.render({**self.overview(self.detail(now), now), **shown, "version": ""})


def _version(detail: RunDetail, now: datetime) -> str:
    """Changes with the run and, while it goes on, with the clock: the line of now moves."""
    run = detail.run
    beat = 0 if run.status in RUN_ENDS else int(now.timestamp()) // NOW_STEP
    return f"{run.last_seq}.{run.updated_at.timestamp()}.{beat}"


def _with_days(rows: list[EventRow]) -> list[tuple[EventRow, str, datetime | None]]:
    """Each event with the state it led to, and with its day where a new day begins (in the reader's zone)."""
    found: list[tuple[EventRow, str, datetime | None]] = []
    last = None
    for row in rows:
        day = timezone.localtime(row.recorded_at).date()
        found.append((row, event_state(row), row.recorded_at if day != last else None))
        last = day
    return found
