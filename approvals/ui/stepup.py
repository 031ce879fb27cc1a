"""Proving anew who sits before a session, where the policy asks for it. A proof belongs to the session and to one member."""

from datetime import datetime
from typing import Final

from allauth.core import ratelimit
from django.http import HttpRequest

from approvals.operations.decisions import CONFIRMED_FOR
from kernel import clock
from kernel.web.door import Visitor

KEY: Final = "approvals_confirmed"


def confirmed_at(request: HttpRequest, visitor: Visitor) -> datetime | None:
    """When this session last proved it, for this member."""
    member, _, moment = request.session.get(KEY, "").partition(" ")
    return datetime.fromisoformat(moment) if member == str(visitor.member_id) and moment else None


def fresh(request: HttpRequest, visitor: Visitor) -> bool:
    at = confirmed_at(request, visitor)
    return at is not None and clock.now() - at < CONFIRMED_FOR


def confirm(request: HttpRequest, visitor: Visitor) -> bool | None:
    """Take the password of the form; None when there is none, False when it is wrong or there were too many tries."""
    password = request.POST.get("password", "")
    if not password:
        return None
    user = request.user
    assert user.is_authenticated
    if not ratelimit.consume(request, action="reauthenticate", user=user):
        return False
    if not user.check_password(password):
        return False
    request.session[KEY] = f"{visitor.member_id} {clock.now().isoformat()}"
    return True
