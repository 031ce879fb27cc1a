"""The routes of runs that are not hot."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponseBase
from django.views.decorators.csrf import csrf_exempt

from kernel.rest.views import ApiView, Context, endpoint
from runs import operations, queries
from runs.api import hot
from runs.api.answers import (
    CancelIn,
    RecoverAnswer,
    RecoverIn,
    RecoverManyAnswer,
    RecoverManyIn,
    RunAnswer,
    RunsAnswer,
    RunsQuery,
    VerifyAnswer,
)
from runs.operations.refusals import EffectsOpen, NotInDeadLetter, PlanConflict, RunFinished, StepsOpen
from runs.queries import RunFilter


class RunsList(ApiView):
    @endpoint(summary="List runs", scope="runs:read", query=RunsQuery, answer=RunsAnswer)
    def get(self, call: Context) -> Any:
        """Newest first. A key that is bound to an agent or to projects sees theirs."""
        query: RunsQuery = call.query
        filters = RunFilter(
            status=tuple(query.status), workflow=query.workflow, agent=query.agent, project=query.project,
            created_from=query.created_from, created_to=query.created_to, agent_id=call.principal.agent_id,
            projects=call.principal.project_ids,
        )  # fmt: skip
        page = queries.list_runs(tenant=call.tenant, filters=filters, cursor=query.cursor, limit=query.limit)
        return {
            "items": page.rows, "next_cursor": page.next_cursor, "total": page.total, "total_capped": page.total_capped,
        }  # fmt: skip


class RunView(ApiView):
    @endpoint(summary="Read a run", scope="runs:read", answer=RunAnswer)
    def get(self, call: Context, run_id: UUID) -> Any:
        """The run with its steps, attempts, and what it waits for."""
        queries.require_visible(principal=call.principal, run_id=run_id)
        found = queries.get_run(tenant=call.tenant, run_id=run_id, now=call.now)
        return {
            "run": found.run,
            "steps": [{name: getattr(step, name) for name in _STEP} for step in found.steps],
            "attempts": [{"lease": row.id} | {name: getattr(row, name) for name in _ATTEMPT} for row in found.attempts],
            "wait": found.wait,
        }


class CancelView(ApiView):
    @endpoint(
        summary="Cancel a run", scope="runs:operate", body=CancelIn, answer=None, status=204, problems=(RunFinished,)
    )
    def post(self, call: Context, run_id: UUID) -> None:
        """End a run: now, or with a grace for what is leased. Its workers are refused from then on; the reason is kept, sealed."""
        queries.require_visible(principal=call.principal, run_id=run_id)
        operations.cancel_run(
            tenant=call.tenant, run_id=run_id, reason=call.body.reason, grace_seconds=call.body.grace_seconds,
            actor=call.actor, now=call.now,
        )  # fmt: skip


class RecoverView(ApiView):
    @endpoint(
        summary="Move a run out of the dead letter", scope="runs:operate", body=RecoverIn, answer=RecoverAnswer,
        problems=(NotInDeadLetter, PlanConflict, EffectsOpen, StepsOpen, RunFinished),
    )  # fmt: skip
    def post(self, call: Context, run_id: UUID) -> Any:
        """Retry or resume what stopped, skip it, undo what the run did, or cancel."""
        queries.require_visible(principal=call.principal, run_id=run_id)
        status = operations.recover_run(
            tenant=call.tenant, run_id=run_id, action=call.body.action, step=call.body.step, reason=call.body.reason,
            actor=call.actor, now=call.now,
        )  # fmt: skip
        return {"run_status": status}


class RecoverManyView(ApiView):
    @endpoint(
        summary="Move many runs out of the dead letter",
        scope="runs:operate",
        body=RecoverManyIn,
        answer=RecoverManyAnswer,
    )
    def post(self, call: Context) -> Any:
        """The same to the oldest runs of a filter. While `next_after` is not null, go on with it as `after`."""
        request: RecoverManyIn = call.body
        filters = RunFilter(
            status=("dead_letter",), workflow=request.workflow, agent=request.agent, project=request.project,
            created_from=request.created_from, created_to=request.created_to, agent_id=call.principal.agent_id,
            projects=call.principal.project_ids,
        )  # fmt: skip
        ids, left = queries.oldest_runs(tenant=call.tenant, filters=filters, after=request.after, limit=request.limit)
        results = operations.recover_runs(
            tenant=call.tenant,
            run_ids=ids,
            action=request.action,
            reason=request.reason,
            actor=call.actor,
            now=call.now,
        )
        return {"results": results, "left": left, "next_after": ids[-1] if left else None}


class VerifyView(ApiView):
    @endpoint(summary="Verify a run's log", scope="runs:read", answer=VerifyAnswer)
    def get(self, call: Context, run_id: UUID) -> Any:
        """Recompute the chain from what is stored. The byte layout is published: anyone with the log can do the same."""
        queries.require_visible(principal=call.principal, run_id=run_id)
        return queries.verify_run(tenant=call.tenant, run_id=run_id)


_STEP = (
    "name", "status", "depends_on", "queue", "priority", "attempts", "max_attempts", "due_at", "wait", "started_at", "ended_at",
)  # fmt: skip
_ATTEMPT = ("step", "number", "epoch", "worker", "claimed_at", "heartbeat_at", "expires_at", "ended_at", "outcome")

_list: Callable[..., HttpResponseBase] = RunsList.as_view()


@csrf_exempt
def runs(request: HttpRequest) -> HttpResponseBase:
    """One address, two ways: starting a run is typed like the hot paths, listing is not."""
    return hot.create(request) if request.method == "POST" else _list(request)


runs.initkwargs = {}  # type: ignore[attr-defined]
runs.cls = type("Runs", (RunsList,), {"post": hot.create.cls.post})  # type: ignore[attr-defined]  # what the document shows
