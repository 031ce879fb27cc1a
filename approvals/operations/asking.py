"""Asking people: opening a request, asking again, editing what is asked for, withdrawing, and talking about it.

Lock order, everywhere: the run, then its gate, then the request. `locked` takes it.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal
from uuid import UUID

from django.db import connection, transaction

from approvals import sealing
from approvals.models import Activity, Alarm, Comment, Evidence, Policy, PolicyVersion, Request, RequestGroup
from approvals.operations import evidence as evidence_ops
from approvals.operations import notices
from approvals.operations.refusals import DigestChanged, MayNotDecide, PolicyDenies, RequestNotOpen, StillStale
from approvals.queries import deciding, standing
from approvals.queries import request as requests
from approvals.rules import Candidate, Matched, parse
from approvals.states import WAITING
from audit import operations as audit_ops
from kernel import codec, hints, ids
from kernel.actor import Actor
from kernel.errors import NotFound
from privacy import guard
from runs.models import Gate, Run
from runs.operations import gates
from runs.ports import ProposedAction, Supporting
from runs.queries import registry
from runs.wire import EvidenceIn, TargetIn
from tenancy.models import Agent, ApiKey
from tenancy.queries import Principal

MAX_ARGUMENTS: Final = 32 * 1024 * 1024  # bytes
NOW: Final = "select clock_timestamp()"


@dataclass(frozen=True, slots=True)
class Asked:
    """What asking again, editing or renewing came to: the request that waits now, None when there is nothing left to ask."""

    request_id: UUID | None
    status: str
    digest: str | None


def database_now() -> datetime:
    """The clock by which deadlines are judged."""
    with connection.cursor() as cursor:
        cursor.execute(NOW)
        now: datetime = cursor.fetchone()[0]
    return now


def locked(*, request_id: UUID, principal: Principal | None = None) -> Request:
    """The request, under the lock of its run and its own. Raises NotFound, also for what the key may not see."""
    run_id = requests.visible(principal).filter(id=request_id).values_list("run_id", flat=True).first()
    if run_id is None:
        raise NotFound("There is no such request.")
    gates.lock_run(run_id=run_id)
    row: Request = Request.objects.select_for_update(no_key=True).defer("action").get(id=request_id)
    return row


def open_request(
    *,
    tenant: UUID,
    gate_id: UUID,
    action: ProposedAction,
    matched: Matched,
    now: datetime,
    evidence: list[evidence_ops.Item],
    summary: sealing.Summary,
    supersedes: Request | None = None,
    editors: Collection[UUID] = (),
) -> Request:
    """One request for an open gate, which it governs from here on. The caller holds the run."""
    gate = Gate.objects.get(id=gate_id)
    run = Run.objects.only("id", "project_id", "data_key_id", "agent_id").get(id=action.run_id)
    assert gate.expires_at is not None, "what is asked has a deadline"
    rules, version = matched.policy.rules, 1 if supersedes is None else supersedes.version + 1
    row = Request(
        id=ids.uuid7(), gate_id=gate_id, run_id=gate.run_id, step_id=gate.step_id, effect_id=gate.effect_id,
        project_id=run.project_id,
        agent_id=action.agent_id or run.agent_id, requester_id=action.requester, data_key_id=run.data_key_id,
        tool_id=action.tool.id,
        tool=action.tool.name, tool_version=action.tool.version, status="open", version=version, round=1,
        action_digest=action.digest, policy_id=matched.policy.policy_id, policy_version_id=matched.policy.version_id,
        risk=matched.risk,
        risk_rule=matched.risk_rule, amount=action.amount, currency=action.currency, action_size=len(action.arguments),
        editors=sorted(set(editors)), self_approval=rules.self_approval, step_up=matched.step_up, bulk=matched.bulk,
        grant_seconds=rules.grant_seconds, supersedes_id=None if supersedes is None else supersedes.id, opened_at=gate.opened_at,
        deadline_at=gate.expires_at,
    )  # fmt: skip
    row.excluded = _behind(row)
    row.action = sealing.seal(tenant=tenant, key_id=row.data_key_id, row=row.id, body=action.arguments)
    row.summary = sealing.seal_summary(tenant=tenant, key_id=row.data_key_id, row=row.id, summary=summary)
    row.digest = _digest(tenant, row, action.arguments, summary, evidence)
    row.save(force_insert=True)
    Gate.objects.filter(id=gate_id).update(governed=True)
    _groups(row, matched.policy)
    evidence_ops.store(tenant=tenant, request=row, round=1, items=evidence)
    _alarms(row, matched.policy)
    detail = {} if supersedes is None else {"supersedes": str(supersedes.id)}
    note(row, "opened", _requester(row), now, policy=matched.policy.name, version=matched.policy.version, **detail)
    notices.to_deciders(tenant=tenant, kind="approval.requested", request=row, now=now)
    tell_waiting(tenant, row.id)
    return row


def supersede(*, tenant: UUID, request: Request, by: UUID, actor: Actor, now: datetime) -> None:
    """A request makes place for its successor, which is named in the timeline. Before the gate closes."""
    Request.objects.filter(id=request.id).update(status="superseded", decided_at=request.decided_at or now)
    note(request, "superseded", actor, now, by=str(by))
    tell_waiting(tenant, request.id)


def make_stale(*, tenant: UUID, request: Request, reason: str, now: datetime, actor: Actor | None = None) -> None:
    """What it rests on has changed: it cannot be approved until it was asked again. The caller holds it."""
    request.status, request.stale_reason = "stale", reason
    Request.objects.filter(id=request.id).update(status="stale", stale_reason=reason)
    note(request, "stale", actor, now, reason=reason)
    notices.to_requester(tenant=tenant, kind="approval.stale", request=request, now=now)
    tell_waiting(tenant, request.id)


def revalidate(
    *, tenant: UUID, request_id: UUID, actor: Actor, now: datetime, principal: Principal | None = None,
    evidence: list[EvidenceIn] | None = None,
) -> Asked:  # fmt: skip
    """Ask anew what became stale, on what holds now; earlier votes do not count. `evidence` takes the place of the old.

    A request that another policy would decide, or whose target has changed, is superseded; when no approval is needed any more, or
    the policy denies, it is withdrawn and the agent goes on to hear so. Raises NotFound, RequestNotOpen, StillStale.
    """
    request = locked(request_id=request_id, principal=principal)
    if request.status == "open":
        return _asked(request)
    if request.status != "stale":
        raise RequestNotOpen(f"It is {request.status}.", extra={"request_status": request.status})
    tool = registry.tool_version(tenant=tenant, name=request.tool, version=request.tool_version)
    matched = standing.matched(
        tenant=tenant, tool=tool, run_id=request.run_id, amount=request.amount, currency=request.currency
    )
    if matched is None or matched.denies or not tool.enabled:
        gates.withdraw_gate(tenant=tenant, gate_id=request.gate_id, reason=None, actor=actor)
        tell_waiting(tenant, request.id)
        return Asked(None, "withdrawn", None)
    run = Run.objects.only("id", "project_id", "data_key_id").get(id=request.run_id)
    summary = sealing.open_summary(
        tenant=tenant, key_id=request.data_key_id, row=request.id, blob=bytes(request.summary)
    )
    items = _evidence_now(tenant, run, request, evidence, now)
    arguments = arguments_of(tenant, request)
    target = _reported(request, items)
    if target is not None:
        return _asked(_replace(
            tenant, request, arguments, matched, items, sealing.Summary(summary.business_object, summary.explanation, target),
            actor, now, list(request.editors),
        ))  # fmt: skip
    request.round += 1
    request.policy_id, request.policy_version_id = matched.policy.policy_id, matched.policy.version_id
    rules = matched.policy.rules
    request.digest = _digest(tenant, request, arguments, summary, items)
    request.risk, request.risk_rule, request.step_up, request.bulk = (
        matched.risk,
        matched.risk_rule,
        matched.step_up,
        matched.bulk,
    )
    request.self_approval, request.grant_seconds = rules.self_approval, rules.grant_seconds
    request.status, request.stale_reason = "open", None
    request.save(update_fields=[
        "round", "policy_id", "policy_version_id", "digest", "risk", "risk_rule", "step_up", "bulk", "self_approval",
        "grant_seconds",
        "status", "stale_reason",
    ])  # fmt: skip
    _groups(request, matched.policy)
    evidence_ops.store(tenant=tenant, request=request, round=request.round, items=items)
    reason = standing.stale_reason(tenant=tenant, request=request, now=now)
    if reason is not None:
        raise StillStale("Bring evidence that holds.", extra={"reason": reason})
    note(request, "revalidated", actor, now, round=request.round)
    notices.to_deciders(tenant=tenant, kind="approval.requested", request=request, now=now)
    tell_waiting(tenant, request.id)
    return _asked(request)


def report_target(
    *, tenant: UUID, request_id: UUID, target: TargetIn, actor: Actor, now: datetime, principal: Principal | None = None
) -> str:
    """The target has another version than when it was asked: the request becomes stale. Its status then. Raises NotFound."""
    request = locked(request_id=request_id, principal=principal)
    summary = sealing.open_summary(
        tenant=tenant, key_id=request.data_key_id, row=request.id, blob=bytes(request.summary)
    )
    if request.status not in WAITING or summary.target_version == target.version:
        return str(request.status)
    if bytes(target.content):
        guard.inspect(bytes(target.content))
    items = evidence_ops.capture(
        tenant=tenant, run=Run.objects.only("id", "project_id").get(id=request.run_id),
        supporting=Supporting(target=target), now=now,
    )  # fmt: skip
    evidence_ops.store(tenant=tenant, request=request, round=request.round + 1, items=items)
    note(request, "target_reported", actor, now)
    if request.status == "open":
        make_stale(tenant=tenant, request=request, reason="target_changed", now=now, actor=actor)
    return "stale"


def edit(
    *, tenant: UUID, member: UUID, request_id: UUID, digest: str, arguments: bytes, reason: str | None, actor: Actor,
    now: datetime,
) -> Asked:  # fmt: skip
    """Ask for other arguments (JSON) in the place of those that were shown under `digest`: a new request, which somebody
    else decides.

    Only who could decide may edit. What is approved then executes to the letter. Raises NotFound, RequestNotOpen, DigestChanged,
    MayNotDecide, PolicyDenies, Invalid, InvalidToolInput.
    """
    value = codec.decode(arguments, max_bytes=MAX_ARGUMENTS)
    guard.inspect(arguments)
    request = locked(request_id=request_id)
    if request.status != "open" or request.deadline_at <= database_now():
        raise RequestNotOpen(f"It is {request.status}.", extra={"request_status": request.status})
    if bytes(request.digest).hex() != digest:
        raise DigestChanged(extra={"digest": bytes(request.digest).hex()})
    verdict = deciding.may_decide(tenant=tenant, member=member, request_id=request_id)
    if not verdict.allowed and verdict.rule not in ("already_voted", "group_complete", "editor"):
        raise MayNotDecide(verdict.sentence, extra={"rule": verdict.rule})
    canonical = codec.canonical(value)
    summary = sealing.open_summary(
        tenant=tenant, key_id=request.data_key_id, row=request.id, blob=bytes(request.summary)
    )
    action = _amended(tenant, request, canonical, summary)
    matched = standing.matched(
        tenant=tenant, tool=action.tool, run_id=request.run_id, amount=action.amount, currency=action.currency
    ) or _as_before(request)
    if matched.denies:
        raise PolicyDenies(extra={"policy": matched.policy.name})
    items = evidence_ops.reopen(tenant=tenant, request=request, round=request.round)
    note(request, "edited", actor, now)
    new = _replace(
        tenant, request, canonical, matched, items, summary, actor, now, [*request.editors, member], action=action
    )
    if reason:
        add_comment(tenant=tenant, request=new, actor=actor, kind="comment", text=reason, answers_id=None, now=now)
    content = {"superseded": str(request.id), "digest": bytes(new.digest).hex(), "was": digest, "reason": reason}
    record(tenant, actor, "approval.edited", new.id, content, now)
    return _asked(new)


def withdraw(
    *,
    tenant: UUID,
    request_id: UUID,
    reason: str | None,
    actor: Actor,
    now: datetime,
    principal: Principal | None = None,
) -> Asked:
    """Ask nobody any more. Whoever waits goes on and may ask anew. Raises NotFound, RequestNotOpen."""
    if reason:
        guard.inspect(codec.dumps(reason))
    request = locked(request_id=request_id, principal=principal)
    if request.status == "withdrawn":
        return _asked(request)
    if request.status not in WAITING:
        raise RequestNotOpen(f"It is {request.status}.", extra={"request_status": request.status})
    gates.withdraw_gate(tenant=tenant, gate_id=request.gate_id, reason=reason, actor=actor)
    record(tenant, actor, "approval.withdrawn", request.id, {"reason": reason}, now)
    tell_waiting(tenant, request.id)
    return Asked(request.id, "withdrawn", bytes(request.digest).hex())


def renew(*, tenant: UUID, request_id: UUID, reason: str, actor: Actor, now: datetime, principal: Principal) -> Asked:
    """Ask again what nobody decided in time. Raises NotFound, GateDecided."""
    request = locked(request_id=request_id, principal=principal)
    seconds = _as_before(request).policy.rules.deadline_seconds
    new_gate = gates.renew_gate(
        tenant=tenant,
        principal=principal,
        gate_id=request.gate_id,
        reason=reason,
        actor=actor,
        now=now,
        seconds=seconds,
    )
    return _asked(Request.objects.defer("action").get(gate_id=new_gate))


def renewed(*, tenant: UUID, request: Request, gate_id: UUID, actor: Actor, now: datetime) -> None:
    """The request of a gate that lapsed, asked again at the new one. By the policy in force; when none asks, as before."""
    tool = registry.tool_version(tenant=tenant, name=request.tool, version=request.tool_version)
    matched = standing.matched(
        tenant=tenant, tool=tool, run_id=request.run_id, amount=request.amount, currency=request.currency
    )
    if matched is None:
        matched = _as_before(request)
    if matched.denies:
        raise PolicyDenies(extra={"policy": matched.policy.name})
    summary = sealing.open_summary(
        tenant=tenant, key_id=request.data_key_id, row=request.id, blob=bytes(request.summary)
    )
    action = _amended(tenant, request, arguments_of(tenant, request), summary)
    items = evidence_ops.reopen(tenant=tenant, request=request, round=request.round)
    new = open_request(
        tenant=tenant, gate_id=gate_id, action=action, matched=matched, now=now, evidence=items, summary=summary,
        supersedes=request, editors=request.editors,
    )  # fmt: skip
    supersede(tenant=tenant, request=request, by=new.id, actor=actor, now=now)


def comment(
    *, tenant: UUID, request_id: UUID, kind: Literal["comment", "question", "answer"], text: str, actor: Actor, now: datetime,
    answers_id: UUID | None = None, principal: Principal | None = None,
) -> UUID:  # fmt: skip
    """Say, ask or answer something about a request; the comment's id. Raises NotFound, CredentialRefused."""
    request = requests.visible(principal).filter(id=request_id).defer("action").first()
    if request is None:
        raise NotFound("There is no such request.")
    questions = Comment.objects.filter(request_id=request_id, kind="question")
    if answers_id is not None and not questions.filter(id=answers_id).exists():
        raise NotFound("There is no such question.")
    found = add_comment(
        tenant=tenant, request=request, actor=actor, kind=kind, text=text, answers_id=answers_id, now=now
    )
    heard = "approval.question" if kind == "question" else "approval.comment"
    said = set(questions.filter(author_kind="member").values_list("author_id", flat=True)) - {actor.id}
    notices.to_requester(tenant=tenant, kind=heard, request=request, now=now, also=said if kind == "answer" else ())
    tell_waiting(tenant, request.id)
    return found


def add_comment(
    *, tenant: UUID, request: Request, actor: Actor, kind: str, text: str, answers_id: UUID | None, now: datetime
) -> UUID:
    guard.inspect(codec.dumps(text))
    assert actor.id is not None
    row = Comment(
        id=ids.uuid7(), request_id=request.id, author_kind=actor.kind, author_id=actor.id, kind=kind, answers_id=answers_id, at=now
    )  # fmt: skip
    row.text = sealing.seal(tenant=tenant, key_id=request.data_key_id, row=row.id, body=text.encode())
    row.save(force_insert=True)
    kinds = {"comment": "commented", "question": "asked", "answer": "answered"}
    note(request, kinds[kind], actor, now, comment=str(row.id))
    return row.id


def viewed(*, tenant: UUID, request_id: UUID, member: UUID, now: datetime) -> None:
    """That a member saw a request, once. The caller holds the tenant scope."""
    row = Activity(request_id=request_id, kind="viewed", actor_kind="member", actor_id=member, at=now)
    Activity.objects.bulk_create([row], ignore_conflicts=True)


def note(request: Request, kind: str, actor: Actor | None, now: datetime, **detail: object) -> None:
    """A line of the request's timeline. `detail`: ids and words of ours."""
    Activity(
        request_id=request.id, kind=kind, actor_kind="system" if actor is None else actor.kind,
        actor_id=None if actor is None else actor.id, at=now, detail=detail,
    ).save(force_insert=True)  # fmt: skip


def record(tenant: UUID, actor: Actor, action: str, request_id: UUID, content: dict[str, Any], now: datetime) -> None:
    audit_ops.record(
        tenant=tenant,
        actor=actor,
        action=action,
        target_kind="approval",
        target_id=request_id,
        content=content,
        now=now,
    )


def arguments_of(tenant: UUID, request: Request) -> bytes:
    """The arguments of a request, canonical JSON."""
    return sealing.open_(tenant=tenant, key_id=request.data_key_id, row=request.id, blob=bytes(request.action))


def waiting_hint(tenant: UUID) -> str:
    """Wakes who waits for a decision."""
    return f"approvals:{tenant}"


def tell_waiting(tenant: UUID, request_id: UUID) -> None:
    """After commit, so that who wakes sees what happened."""
    transaction.on_commit(lambda: hints.publish(f"{waiting_hint(tenant)}/{request_id}"))


def _replace(
    tenant: UUID, request: Request, arguments: bytes, matched: Matched, items: list[evidence_ops.Item], summary: sealing.Summary,
    actor: Actor, now: datetime, editors: list[UUID], action: ProposedAction | None = None,
) -> Request:  # fmt: skip
    """A request for another action of the same effect, at a gate of its own."""
    action = action or _amended(tenant, request, arguments, summary)
    # First, so that the gate's closing finds a request that made place already.
    Request.objects.filter(id=request.id).update(status="superseded", decided_at=now)
    gate_id = gates.amend(
        tenant=tenant, gate_id=request.gate_id, action=action, rule=matched.policy.name,
        seconds=matched.policy.rules.deadline_seconds, actor=actor,
    )  # fmt: skip
    new = open_request(
        tenant=tenant, gate_id=gate_id, action=action, matched=matched, now=now, evidence=items, summary=summary,
        supersedes=request, editors=editors,
    )  # fmt: skip
    note(request, "superseded", actor, now, by=str(new.id))
    tell_waiting(tenant, request.id)
    return new


def _amended(tenant: UUID, request: Request, arguments: bytes, summary: sealing.Summary) -> ProposedAction:
    target = None if summary.target_version is None else TargetIn(version=summary.target_version)
    return gates.amended_action(
        tenant=tenant, gate_id=request.gate_id, input=arguments, business_object=summary.business_object,
        requester=request.requester_id, agent_id=request.agent_id, tool_version=request.tool_version,
        supporting=Supporting(summary.explanation, target),
    )  # fmt: skip


def _evidence_now(
    tenant: UUID, run: Run, request: Request, given: list[EvidenceIn] | None, now: datetime
) -> list[evidence_ops.Item]:
    """What a request that is asked anew rests on: what was given, or what is left of the old; and the target as reported last."""
    reported = evidence_ops.reopen(tenant=tenant, request=request, round=request.round + 1)
    old = list(Evidence.objects.filter(request_id=request.id, round=request.round).defer("snapshot"))
    gone = {(item.event_run_id, item.event_seq, item.artifact_id) for item in old if item.id in standing.gone(old)}
    kept = [
        item for item in evidence_ops.reopen(tenant=tenant, request=request, round=request.round)
        if (item.run_id, item.seq, item.artifact_id) not in gone or (item.seq is None and item.artifact_id is None)
    ]  # fmt: skip
    targets = reported[-1:] or [item for item in kept if item.kind == "target"]
    if given is not None:
        kept = evidence_ops.capture(tenant=tenant, run=run, supporting=Supporting(evidence=tuple(given)), now=now)
    return [*targets, *(item for item in kept if item.kind != "target")]


def _reported(request: Request, items: list[evidence_ops.Item]) -> str | None:
    """The version that the target has by now, when that is why the request is stale."""
    target = next((item for item in items if item.kind == "target"), None)
    return target.title if target is not None and request.stale_reason == "target_changed" else None


def _as_before(request: Request) -> Matched:
    """The policy that asked, when none would now: what was asked once is not let through by a change."""
    policy = Policy.objects.get(id=request.policy_id)
    version = PolicyVersion.objects.get(id=request.policy_version_id)
    rules = parse(version.rules)
    candidate = Candidate(policy.id, version.id, policy.name, version.version, policy.priority, rules)
    return Matched(candidate, request.risk, request.risk_rule)  # type: ignore[arg-type]


def _digest(
    tenant: UUID, request: Request, arguments: bytes, summary: sealing.Summary, items: list[evidence_ops.Item]
) -> bytes:
    return sealing.digest(
        tenant=tenant, run_id=request.run_id, tool=request.tool, tool_version=request.tool_version, arguments=arguments,
        summary=summary, requester=request.agent_id or request.requester_id, policy_version=request.policy_version_id,
        round=request.round, evidence=[(item.kind, item.digest) for item in items],
    )  # fmt: skip


def _behind(request: Request) -> list[UUID]:
    """The members behind a request: who issued the key that asks, and whom the agent acts for."""
    issuer = ApiKey.objects.filter(id=request.requester_id).values_list("issued_by", flat=True).first()
    owner = Agent.objects.filter(id=request.agent_id).values_list("owner_id", flat=True).first()
    return sorted({person for person in (issuer, owner) if person is not None})


def _groups(request: Request, policy: Candidate) -> None:
    RequestGroup.objects.bulk_create(
        RequestGroup(
            id=ids.uuid7(), request_id=request.id, round=request.round, position=position, name=group.name, needed=group.count,
            roles=[] if group.role is None else [group.role], approvers=group.approvers, keys=list(group.keys),
        )
        for position, group in enumerate(policy.rules.groups)
    )  # fmt: skip


def _alarms(request: Request, policy: Candidate) -> None:
    due = [("reminder", request.deadline_at - timedelta(seconds=seconds)) for seconds in sorted(policy.rules.reminders)]
    due += [
        ("escalation", request.opened_at + timedelta(seconds=step.after_seconds)) for step in policy.rules.escalation
    ]
    counts = {"reminder": 0, "escalation": 0}
    for kind, moment in due:
        if moment > request.opened_at:
            Alarm(request_id=request.id, round=1, kind=kind, ordinal=counts[kind], due_at=moment).save(
                force_insert=True
            )
        counts[kind] += 1


def _requester(request: Request) -> Actor:
    return Actor(kind="key", id=request.requester_id, label="")


def _asked(request: Request) -> Asked:
    return Asked(request.id, request.status, bytes(request.digest).hex())
