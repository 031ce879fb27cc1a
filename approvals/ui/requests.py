"""The inbox, and one request with everything that a decision rests on.

Invariants: what is shown was written by others and never changes what a button does; a decision carries the digest of what was
shown; looking at a payload is in the audit log.
"""

from typing import Any, Final
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext

from approvals.operations import asking, decisions
from approvals.operations.decisions import Answer
from approvals.operations.refusals import StepUpRequired
from approvals.queries import deciding, inbox, pulse, request
from approvals.queries.request import Detail
from approvals.ui import stepup, words
from approvals.ui.base import ApprovalsPage, principal_of, uuid_or_none
from audit import operations as audit_ops
from kernel import clock, codec
from kernel.errors import DomainError, Forbidden, NotFound
from kernel.web import exhibit, jsontree, suspicion
from kernel.web.exhibit import Difference
from kernel.web.suspicion import Finding

LIVE: Final = "X-Live"
MAX_REASON: Final = 2000


class Inbox(ApprovalsPage):
    template_name = "approvals/inbox.html"

    def get(self, request: HttpRequest) -> HttpResponseBase:
        selected = uuid_or_none(request.GET.get("selected", "")) if request.headers.get(LIVE) else None
        version = self.version(selected)
        if request.headers.get(LIVE) == version:
            return HttpResponse(status=204)
        return self.render(self.list_context(version, selected))


class RequestPage(ApprovalsPage):
    """A page of one request. What is refused of an act is told above the request, which is shown as it is by then."""

    template_name = "approvals/request.html"

    @property
    def request_id(self) -> UUID:
        found: UUID = self.kwargs["request_id"]
        return found

    def here(self) -> str:
        return reverse("approvals:request", args=[self.visitor.slug, self.request_id]) + self.listed()

    def detail(self) -> Detail:
        return request.detail(tenant=self.visitor.tenant_id, request_id=self.request_id, member=self.visitor.member_id)

    def record(self, action: str, content: dict[str, Any]) -> None:
        audit_ops.record(
            tenant=self.visitor.tenant_id, actor=self.visitor.actor, action=action, target_kind="approval",
            target_id=self.request_id, content=content, now=clock.now(),
        )  # fmt: skip

    def seen(self) -> None:
        """Once for each look at the whole request."""
        asking.viewed(
            tenant=self.visitor.tenant_id, request_id=self.request_id, member=self.visitor.member_id, now=clock.now()
        )

    def shown(self) -> dict[str, Any]:
        detail = self.detail()
        self.seen()
        self.record("approval.viewed", {"digest": detail.row.digest})
        version = self.version(self.request_id)
        return {
            **self.list_context(version, self.request_id), **_request_context(detail, self.visitor.slug, self.request),
            "fresh": stepup.fresh(self.request, self.visitor),
            "news_version": pulse.of_request(tenant=self.visitor.tenant_id, request_id=self.request_id),
            "reason": self.request.POST.get("reason", "")[:MAX_REASON], "max_reason": MAX_REASON,
        }  # fmt: skip

    def refused(self, error: DomainError) -> HttpResponseBase:
        if self.request.method != "POST" or error.status in {404, 500, 503} or isinstance(error, Forbidden):
            return super().refused(error)
        refusal = words.refusal(error)
        return self.render(
            {**self.shown(), "refusal": refusal, "refusal_code": error.code}, template="approvals/request.html",
            status=error.status,
        )  # fmt: skip


class Request(RequestPage):
    def get(self, request: HttpRequest) -> HttpResponseBase:
        return self.render(self.shown())


class News(RequestPage):
    """Says when a request has changed since it was shown. Reads numbers only."""

    template_name = "approvals/_news.html"

    def get(self, request: HttpRequest) -> HttpResponseBase:
        if pulse.of_request(tenant=self.visitor.tenant_id, request_id=self.request_id) == request.headers.get(LIVE):
            return HttpResponse(status=204)
        return self.render({"address": self.here()})


class Value(RequestPage):
    """A part of a value that is too long for one page."""

    template_name = "approvals/value.html"

    def get(self, request: HttpRequest) -> HttpResponseBase:
        detail, what = self.detail(), request.GET.get("what", "action")
        body = _bodies(detail).get(what)
        try:
            part = int(request.GET.get("part", "0"))
            if body is None:
                raise LookupError(what)
            at = request.GET.get("at", "")
            shown = exhibit.show(body, _address(self.visitor.slug, self.request_id, what), at=at, part=part)
        except (LookupError, ValueError):
            raise NotFound("There is no such part.") from None
        if request.headers.get("HX-Request"):
            return HttpResponse(shown)
        return self.render({"shown": shown, "row": detail.row, "at": at, "part": part + 1, "listed": self.listed()})


class Raw(RequestPage):
    """A value exactly as it is stored, as a file."""

    def get(self, request: HttpRequest) -> HttpResponseBase:
        what = request.GET.get("what", "action")
        body = _bodies(self.detail()).get(what)
        if body is None:
            raise NotFound("There is no such value.")
        self.record("approval.viewed", {"raw": what})
        name = f"{self.request_id}-{what.partition(':')[0]}.json"
        return HttpResponse(
            body, content_type="application/json; charset=utf-8",
            headers={"Content-Disposition": f'attachment; filename="{name}"', "X-Content-Type-Options": "nosniff"},
        )  # fmt: skip


class Decide(RequestPage):
    """Approve, reject or ask. The next request that waits for this member comes after it."""

    http_method_names = ["post"]

    def post(self, request: HttpRequest) -> HttpResponseBase:
        answer, reason = request.POST.get("answer", ""), request.POST.get("reason", "").strip()[:MAX_REASON]
        if answer in {"ask", "comment"}:
            return self._say("question" if answer == "ask" else "comment", reason)
        if answer not in {"approve", "reject"}:
            return self._again(gettext("Say what you decide."))
        if answer == "reject" and not reason:
            return self._again(gettext("Say why you reject it. The agent is told."), "reason_required")
        if stepup.confirm(request, self.visitor) is False:
            return self._again(gettext("That is not your password, or there were too many tries."), "step_up_required")
        decision: Answer = "approve" if answer == "approve" else "reject"
        principal = principal_of(self.visitor)
        done = decisions.decide(
            tenant=self.visitor.tenant_id, principal=principal, request_id=self.request_id,
            digest=request.POST.get("digest", ""), answer=decision, reason=reason or None, actor=self.visitor.actor,
            now=clock.now(), confirmed_at=stepup.confirmed_at(request, self.visitor),
        )  # fmt: skip
        told = words.outcome(done.outcome, progress=done.progress, stale=done.stale_reason)
        if not done.recorded:
            messages.error(request, told)
            return redirect(self.here())
        messages.success(request, told)
        following = inbox.next_mine(tenant=self.visitor.tenant_id, member=self.visitor.member_id, after=self.request_id)
        if following is None:
            return redirect(self.here())
        return redirect(reverse("approvals:request", args=[self.visitor.slug, following]) + self.listed())

    def _say(self, kind: Any, text: str) -> HttpResponseBase:
        if not text:
            return self._again(gettext("Write what you want to say."), "reason_required")
        _require(self, self.request_id, "approvals:decide", "runs:operate")
        answers = self.request.POST.get("answers", "")
        asking.comment(
            tenant=self.visitor.tenant_id, request_id=self.request_id, kind="answer" if answers else kind, text=text,
            actor=self.visitor.actor, now=clock.now(), answers_id=UUID(answers) if answers else None,
        )  # fmt: skip
        told = gettext("Asked. It stays open until somebody decides.") if kind == "question" else gettext("Said.")
        messages.success(self.request, told)
        return redirect(self.here())

    def _again(self, refusal: str, code: str = "") -> HttpResponseBase:
        status = 403 if code == StepUpRequired.code else 422
        return self.render({**self.shown(), "refusal": refusal, "refusal_code": code}, status=status)


class Act(RequestPage):
    """What is done about a request besides deciding: asking again, withdrawing, taking an unused approval back."""

    http_method_names = ["post"]

    def post(self, request: HttpRequest) -> HttpResponseBase:
        act, reason = request.POST.get("act", ""), request.POST.get("reason", "").strip()[:MAX_REASON]
        tenant, actor, now = self.visitor.tenant_id, self.visitor.actor, clock.now()
        target: UUID | None = self.request_id
        if act == "revoke":
            if not reason:
                return self._again()
            decisions.revoke(
                tenant=tenant, principal=principal_of(self.visitor), request_id=self.request_id, reason=reason, actor=actor, now=now
            )  # fmt: skip
            messages.success(request, gettext("Taken back. The agent may not do it; it may ask anew."))
        elif act == "revalidate":
            _require(self, self.request_id, "runs:operate", "approvals:decide")
            target = asking.revalidate(tenant=tenant, request_id=self.request_id, actor=actor, now=now).request_id
            told = gettext("Asked again, on what holds now.") if target else gettext("Nothing is left to ask.")
            messages.success(request, told)
        elif act == "renew":
            _require(self, self.request_id, "runs:operate")
            if not reason:
                return self._again()
            target = asking.renew(
                tenant=tenant, request_id=self.request_id, reason=reason, actor=actor, now=now, principal=principal_of(self.visitor)
            ).request_id  # fmt: skip
            messages.success(request, gettext("Asked again, with a new deadline."))
        elif act == "withdraw":
            _require(self, self.request_id, "runs:operate")
            asking.withdraw(tenant=tenant, request_id=self.request_id, reason=reason or None, actor=actor, now=now)
            messages.success(request, gettext("Withdrawn. Nobody is asked any more."))
        else:
            return self._again()
        return redirect(
            reverse("approvals:request", args=[self.visitor.slug, target or self.request_id]) + self.listed()
        )

    def _again(self) -> HttpResponseBase:
        return self.render(
            {**self.shown(), "refusal": gettext("Say why."), "refusal_code": "reason_required"}, status=422
        )


def _require(page: ApprovalsPage, request_id: UUID, *actions: str) -> None:
    """One of these rights, or the one that the request's policy gives."""
    if any(page.visitor.may(action) for action in actions):
        return
    tenant, member = page.visitor.tenant_id, page.visitor.member_id
    if not deciding.may_decide(tenant=tenant, member=member, request_id=request_id).allowed:
        raise Forbidden(gettext("You need a role that grants %(action)s.") % {"action": actions[0]})


def _bodies(detail: Detail) -> dict[str, bytes]:
    """The values of a request by what they are."""
    found = {"action": detail.action, "previous": detail.previous, "target": detail.target}
    found |= {f"evidence:{item.id}": item.content for item in detail.evidence}
    if detail.explanation is not None:
        found["explanation"] = codec.dumps(detail.explanation)
    return {what: bytes(body) for what, body in found.items() if body is not None}


def _address(slug: str, request_id: UUID, what: str) -> exhibit.Address:
    path = reverse("approvals:value", args=[slug, request_id])
    return lambda at, part: f"{path}?{urlencode({'what': what, 'at': at, 'part': str(part)})}"


def _request_context(detail: Detail, slug: str, page: HttpRequest) -> dict[str, Any]:
    row, bodies = detail.row, _bodies(detail)
    shown: dict[str, SafeString] = {
        what: exhibit.show(body, _address(slug, row.id, what)) for what, body in bodies.items()
    }
    previous, target = _differences(detail.previous, detail.action), _differences(detail.target, detail.action)
    got, needed = sum(min(g.got, g.needed) for g in row.groups), sum(g.needed for g in row.groups)
    return {
        "detail": detail, "row": row, "digest": row.digest,
        "action": shown.get("action"), "explanation": shown.get("explanation"), "target": shown.get("target"),
        "evidence": [
            (item, words.KINDS[item.kind], shown.get(f"evidence:{item.id}"), f"evidence:{item.id}")
            for item in detail.evidence
        ],
        # What it would not touch is no difference.
        "diff_target": [change for change in target if change.kind != "removed"],
        "diff_previous": previous,
        "findings": _findings(detail, bodies),
        "progress": words.progress(got, needed, row.status), "got": got, "needed": needed,
        "stale_word": words.STALE.get(row.stale_reason or "", row.stale_reason or ""),
        "activity_words": words.ACTIVITIES, "comment_words": words.COMMENTS, "grant_words": words.GRANTS,
        "difference_words": words.DIFFERENCES, "finding_words": suspicion.SENTENCES,
        "open": row.status == "open", "expired": row.status == "open" and row.deadline_at <= clock.now(),
        "step_up": detail.requires_step_up,
    }  # fmt: skip


def _differences(before: bytes | None, after: bytes | None) -> list[Difference]:
    return [] if before is None or after is None else exhibit.differences(before, after)


def _findings(detail: Detail, bodies: dict[str, bytes]) -> list[tuple[str, str, Finding]]:
    """What misleads, with where it stands: what the request proposes first, then what others wrote about it."""
    found: list[tuple[str, str, Finding]] = []
    places = {"action": gettext("action"), "explanation": gettext("explanation"), "target": gettext("target")}
    for what, body in bodies.items():
        if what == "previous":
            continue
        place = places.get(what) or gettext("evidence")
        anchor = "ch" if what == "action" else "evi" if what.startswith("evidence") else "why"
        found += [(place, anchor, finding) for finding in suspicion.of(jsontree.parse(body))]
    for finding in suspicion.of_text(detail.row.business_object):
        found.append((gettext("business object"), "d-h", finding))
    for comment in detail.comments:
        if comment.author_kind != "member":
            found += [(gettext("comment"), "talk", finding) for finding in suspicion.of_text(comment.text)]
    return found
