"""Approving something else than was asked: the editor says what, and somebody else decides on exactly that."""

from typing import Any

from django.contrib import messages
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.translation import gettext

from approvals.operations import asking
from approvals.queries.request import Detail
from approvals.ui import fields, words
from approvals.ui.requests import MAX_REASON, RequestPage
from kernel import clock
from kernel.errors import DomainError, Forbidden
from kernel.web import jsontree
from runs.queries import registry


class Edit(RequestPage):
    template_name = "approvals/edit.html"

    def get(self, request: HttpRequest) -> HttpResponseBase:
        detail = self.detail()
        self.record("approval.viewed", {"digest": detail.row.digest, "edit": True})
        return self.render(self._form(detail))

    def post(self, request: HttpRequest) -> HttpResponseBase:
        detail, post = self.detail(), request.POST
        schema = self._schema(detail)
        found: list[fields.Field] | None = None
        arguments: bytes | None
        if "raw" in post:
            arguments = post["raw"].replace("\r\n", "\n").encode(errors="replace")
        elif detail.action is not None and fields.fields(detail.action, schema) is not None:
            arguments, found = fields.assemble(
                detail.action, schema, {name: str(value) for name, value in post.items()}
            )
        else:
            arguments = None
        if arguments is None:
            return self.render(
                {**self._form(detail), "fields": found, "refusal": gettext("Some values cannot be as they are.")},
                status=422,
            )
        asked = asking.edit(
            tenant=self.visitor.tenant_id, member=self.visitor.member_id, request_id=self.request_id, digest=post.get("digest", ""),
            arguments=arguments, reason=post.get("reason", "").strip()[:MAX_REASON] or None, actor=self.visitor.actor,
            now=clock.now(),
        )  # fmt: skip
        messages.success(request, gettext("Asked with your values. You edited it, so somebody else decides."))
        target = asked.request_id or self.request_id
        return redirect(reverse("approvals:request", args=[self.visitor.slug, target]) + self.listed())

    def refused(self, error: DomainError) -> HttpResponseBase:
        if self.request.method != "POST" or error.status in {404, 500, 503} or isinstance(error, Forbidden):
            return super().refused(error)
        problems = [f"{field.path}: {field.message}" for field in error.fields]
        return self.render(
            {**self._form(self.detail()), "refusal": words.refusal(error), "problems": problems}, status=error.status
        )  # fmt: skip

    def _schema(self, detail: Detail) -> bytes:
        return registry.tool_version(
            tenant=self.visitor.tenant_id, name=detail.row.tool, version=detail.row.tool_version
        ).input_schema

    def _form(self, detail: Detail) -> dict[str, Any]:
        posted = {name: str(value) for name, value in self.request.POST.items()}
        action = detail.action or b"{}"
        raw = posted.get("raw")
        large = len(action) > fields.MAX_EDITABLE
        return {
            "detail": detail, "row": detail.row, "digest": detail.row.digest, "large": large,
            "fields": None if large else fields.fields(action, self._schema(detail), posted or None),
            "raw": raw if raw is not None else "" if large else jsontree.exact(action),
            "editable": detail.editable, "reason": posted.get("reason", ""), "max_reason": MAX_REASON,
            "listed": self.listed(),
        }  # fmt: skip
