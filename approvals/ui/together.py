"""Like requests of low risk, decided together: each stands in the list with its digest before anything is decided."""

from uuid import UUID

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.translation import gettext

from approvals.models import Request
from approvals.operations import decisions
from approvals.operations.decisions import MAX_BULK, Answer, Choice
from approvals.queries import inbox
from approvals.ui import stepup, words
from approvals.ui.base import ApprovalsPage, principal_of
from audit import operations as audit_ops
from kernel import clock
from kernel.errors import DomainError, NotFound


class Together(ApprovalsPage):
    template_name = "approvals/together.html"

    def get(self, request: HttpRequest) -> HttpResponseBase:
        return self._look([_id(value) for value in request.GET.getlist("request")][:MAX_BULK])

    def post(self, request: HttpRequest) -> HttpResponseBase:
        answer, reason = request.POST.get("answer", ""), request.POST.get("reason", "").strip()[:2000]
        choices = []
        for value in request.POST.getlist("choice")[:MAX_BULK]:
            found, _colon, digest = value.partition(":")
            choices.append(Choice(_id(found), digest))
        ids = [choice.request_id for choice in choices]
        if answer not in ("approve", "reject") or (answer == "reject" and not reason):
            return self._look(ids, refusal=gettext("Say why you reject them. The agents are told."), status=422)
        decision: Answer = "approve" if answer == "approve" else "reject"
        if stepup.confirm(request, self.visitor) is False:
            return self._look(
                ids, refusal=gettext("That is not your password, or there were too many tries."), status=403
            )
        done = decisions.decide_together(
            tenant=self.visitor.tenant_id, principal=principal_of(self.visitor), choices=choices, answer=decision,
            reason=reason or None, actor=self.visitor.actor, now=clock.now(),
            confirmed_at=stepup.confirmed_at(request, self.visitor),
        )  # fmt: skip
        told = {found: _told(result) for found, result in done.items()}
        return self._look(ids, told=told)

    def _look(
        self, ids: list[UUID], *, told: dict[UUID, tuple[bool, str]] | None = None, refusal: str = "", status: int = 200
    ) -> HttpResponseBase:
        found = {row.id: row for row in Request.objects.filter(id__in=ids).defer("action")}
        rows = inbox.rows_of(
            tenant=self.visitor.tenant_id, requests=[found[i] for i in ids if i in found], member=self.visitor.member_id
        )
        if rows:
            audit_ops.record(
                tenant=self.visitor.tenant_id, actor=self.visitor.actor, action="approval.viewed", target_kind="tenant",
                target_id=self.visitor.tenant_id, content={"together": [str(row.id) for row in rows]}, now=clock.now(),
            )  # fmt: skip
        alike = len({(row.tool, row.risk, row.policy_id) for row in rows}) <= 1 and all(row.bulk for row in rows)
        return self.render({
            "rows": [(row, (told or {}).get(row.id)) for row in rows], "done": told is not None, "refusal": refusal,
            "ready": alike and bool(rows) and told is None, "alike": alike, "listed": self.listed(),
            "step_up": any(row.step_up for row in rows) and not stepup.fresh(self.request, self.visitor),
            "went": sum(ok for ok, _word in (told or {}).values()), "risk_words": words.RISKS, "now": clock.now(),
        }, status=status)  # fmt: skip


def _told(result: decisions.Decision | DomainError) -> tuple[bool, str]:
    if isinstance(result, DomainError):
        return False, words.refusal(result)
    return result.recorded, words.outcome(result.outcome, progress=result.progress, stale=result.stale_reason)


def _id(value: str) -> UUID:
    try:
        return UUID(value)
    except ValueError:
        raise NotFound("There is no such request.") from None
