"""Who may decide on a request, and why not. One judge, in the database (`approvals_judge`), for the inbox, its counts and
decisions."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from django.db import connection
from django.utils.translation import gettext as _

from approvals.models import Request, RequestGroup, Vote
from tenancy.models import ApiKey, Member

JUDGE: Final = "select * from approvals_judge(%s, %s::uuid[], %s::uuid[], clock_timestamp())"
# On how many open requests may this member decide?
MINE: Final = "select count(*) from approvals_judge(%s, %s::uuid[], null, clock_timestamp()) where allowed"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`rule` says by what right one may decide (role, permission, delegation, key), or what forbids it; `sentence` says it
    to a person.

    `authority_id` is whose right is used, `authority` their name: of whoever delegated,
    when it is not one's own. `until`: the end of
    an absence.
    """

    allowed: bool
    rule: str
    sentence: str
    group: str | None = None
    authority_id: UUID | None = None
    authority: str | None = None
    path: tuple[UUID, ...] = ()
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Decider:
    """Somebody who may still decide, in `group`; `for_` names whoever delegated it to them."""

    member_id: UUID
    name: str
    group: str
    for_: str | None


def may_decide(*, tenant: UUID, member: UUID, request_id: UUID) -> Verdict:
    """May this member decide on this request, now? Says why not, or by what right. The caller holds the tenant scope."""
    return verdicts(tenant=tenant, member=member, request_ids=[request_id]).get(request_id) or _verdict(
        False, "no_authority"
    )


def verdicts(*, tenant: UUID, member: UUID, request_ids: Collection[UUID]) -> dict[UUID, Verdict]:
    """The same for several requests, in a fixed number of queries."""
    rows = _judge(tenant, [member], list(request_ids))
    names = _names({row[5] for row in rows if row[5] is not None and row[5] != member})
    return {
        request: _verdict(
            allowed, rule, group=group, authority_id=authority, authority=names.get(authority), path=tuple(path or ()), until=until
        )
        for request, _member, allowed, rule, group, authority, path, until in rows
    }  # fmt: skip


def key_verdicts(*, tenant: UUID, key_id: UUID, request_ids: Collection[UUID]) -> dict[UUID, Verdict]:
    """The same for a service's key: it decides only where a group of the policy names it. An agent's key never does."""
    key = ApiKey.objects.filter(id=key_id).first()
    requests = {
        row.id: row
        for row in Request.objects.filter(id__in=request_ids).only(
            "id", "status", "round", "requester_id", "deadline_at"
        )
    }
    groups = list(RequestGroup.objects.filter(request_id__in=request_ids).order_by("position"))
    votes = list(
        Vote.objects.filter(request_id__in=request_ids).values_list(
            "request_id", "round", "voter_id", "group", "decision"
        )
    )
    found: dict[UUID, Verdict] = {}
    for request_id, row in requests.items():
        current = [vote for vote in votes if vote[:2] == (request_id, row.round)]
        named = [g for g in groups if (g.request_id, g.round) == (request_id, row.round) and key_id in g.keys]
        free = [
            g for g in named
            if sum(vote[3] == g.name and vote[4] == "approve" for vote in current) < g.needed
        ]  # fmt: skip
        if key is None or key.agent_id is not None:
            found[request_id] = _verdict(False, "agents_never_decide")
        elif row.status != "open":
            found[request_id] = _verdict(False, "stale" if row.status == "stale" else "not_open")
        elif row.requester_id == key_id:
            found[request_id] = _verdict(False, "requester")
        elif any(vote[2] == key_id for vote in current):
            found[request_id] = _verdict(False, "already_voted")
        elif not named:
            found[request_id] = _verdict(False, "no_authority")
        elif not free:
            found[request_id] = _verdict(False, "group_complete", group=named[0].name)
        else:
            found[request_id] = _verdict(True, "key", group=free[0].name, authority_id=key_id)
    return found


def deciders(*, tenant: UUID, request_id: UUID) -> list[Decider]:
    """Everybody who may still decide on an open request, by name."""
    rows = [row for row in _judge(tenant, None, [request_id]) if row[2]]
    names = _names({row[1] for row in rows} | {row[5] for row in rows})
    found = [
        Decider(member, names.get(member, ""), group, names.get(authority) if authority != member else None)
        for _request, member, _allowed, _rule, group, authority, _path, _until in rows
    ]
    return sorted(found, key=lambda decider: (decider.name, decider.member_id))


def decidable(*, tenant: UUID, member: UUID) -> int:
    """On how many requests this member may decide now."""
    with connection.cursor() as cursor:
        cursor.execute(MINE, [tenant, [member]])
        count: int = cursor.fetchone()[0]
    return count


def _judge(tenant: UUID, members: list[UUID] | None, requests: list[UUID]) -> list[tuple]:  # type: ignore[type-arg]
    with connection.cursor() as cursor:
        cursor.execute(JUDGE, [tenant, members, requests])
        return list(cursor.fetchall())


def _names(ids: Collection[UUID]) -> dict[UUID, str]:
    return dict(Member.objects.filter(id__in=ids).values_list("id", "name")) if ids else {}


def _verdict(
    allowed: bool,
    rule: str,
    *,
    group: str | None = None,
    authority_id: UUID | None = None,
    authority: str | None = None,
    path: tuple[UUID, ...] = (),
    until: datetime | None = None,
) -> Verdict:
    return Verdict(allowed, rule, _sentence(rule, group, authority), group, authority_id, authority, path, until)


def _sentence(rule: str, group: str | None, authority: str | None) -> str:
    match rule:
        case "role":
            return _("You may decide: your role is in the group %(group)s.") % {"group": group}
        case "permission":
            return _("You may decide: you are an approver of this policy (group %(group)s).") % {"group": group}
        case "delegation":
            return _("You may decide for %(name)s (group %(group)s).") % {"name": authority, "group": group}
        case "key":
            return _("This key may decide: the group %(group)s names it.") % {"group": group}
        case "requester":
            return _("You may not decide: you requested it.")
        case "agent_owner":
            return _("You may not decide: the agent acts for you.")
        case "editor":
            return _("You may not decide: you edited it. Somebody else must agree.")
        case "delegate_of_requester":
            return _("You may not decide for %(name)s, who is behind this request.") % {"name": authority}
        case "already_voted":
            return _("You have decided. It waits for somebody else.")
        case "authority_used":
            return _("This right was used already: %(name)s counts once.") % {"name": authority or _("one person")}
        case "group_complete":
            return _("Your group %(group)s has agreed. It waits for another group.") % {"group": group}
        case "absent":
            return _("You are away. End your absence to decide.")
        case "stale":
            return _("It cannot be decided: what it rests on has changed. Check it again first.")
        case "expired":
            return _("The deadline has passed. Nothing was done.")
        case "not_open":
            return _("It is decided already.")
        case "agents_never_decide":
            return _("Agents never decide.")
    return _("You may not decide: you are in none of its groups.")
