"""What a policy would have done with the tenant's last actions, beside what those in force say now. Changes nothing."""

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal
from uuid import UUID

from approvals import rules
from approvals.queries import policies
from approvals.rules import Candidate, Facts, Matched, Rules
from runs.models import Effect, Run, Tool
from runs.queries import registry
from tenancy.models import Agent, Project

MAX_ACTIONS: Final = 1000
Outcome = Literal["allow", "ask", "deny"]


@dataclass(frozen=True, slots=True)
class Tried:
    """One action of the past: what the policies in force say (`now`), and what they would say with the other version (`then`)."""

    effect_id: UUID
    run_id: UUID
    tool: str
    amount: str | None
    currency: str | None
    at: datetime
    now: Outcome
    then: Outcome
    policy: str | None
    risk: str | None
    risk_rule: str | None


@dataclass(frozen=True, slots=True)
class DryRun:
    """`counts` of `then` over all actions; `changed` how many would be judged otherwise. `actions` newest first."""

    actions: list[Tried]
    counts: dict[str, int]
    changed: int


def dry_run(
    *,
    tenant: UUID,
    definition: Rules,
    last: int = 100,
    policy_id: UUID | None = None,
    name: str = "",
    priority: int = 0,
) -> DryRun:
    """`definition` as a new policy, or in the place of an existing one. The caller holds the tenant scope. Raises Invalid."""
    rules.check(definition)
    current = policies.active(tenant=tenant)
    before = next((policy for policy in current if policy.policy_id == policy_id), None)
    tried = Candidate(
        UUID(int=0),
        UUID(int=0),
        before.name if before else name,
        0,
        before.priority if before else priority,
        definition,
    )
    proposed = [policy for policy in current if policy is not before] + [tried]
    effects = list(Effect.objects.order_by("-id")[: min(last, MAX_ACTIONS)])
    runs = {
        run.id: run
        for run in Run.objects.filter(id__in={effect.run_id for effect in effects}).only(
            "labels", "agent_id", "project_id"
        )
    }
    tools = dict(Tool.objects.filter(id__in={effect.tool_id for effect in effects}).values_list("id", "version"))
    agents = dict(Agent.objects.values_list("id", "slug"))
    projects = dict(Project.objects.values_list("id", "slug"))
    found: list[Tried] = []
    for effect in effects:
        run = runs[effect.run_id]
        tool = registry.tool_version(tenant=tenant, name=effect.tool, version=tools[effect.tool_id])
        facts = Facts(
            tool=tool.name, approval=tool.approval, side_effect=tool.side_effect, amount=effect.amount, currency=effect.currency,
            labels=run.labels, agent=agents.get(run.agent_id), project=projects[run.project_id],
        )  # fmt: skip
        then = rules.judge(proposed, facts)
        found.append(Tried(
            effect.id, effect.run_id, effect.tool, None if effect.amount is None else f"{effect.amount.normalize():f}",
            effect.currency,
            effect.created_at, _outcome(rules.judge(current, facts), facts), _outcome(then, facts),
            None if then is None else then.policy.name, None if then is None else then.risk,
            None if then is None else then.risk_rule,
        ))  # fmt: skip
    counts = Counter(tried.then for tried in found)
    return DryRun(
        found,
        {word: counts[word] for word in ("allow", "ask", "deny")},
        sum(tried.now != tried.then for tried in found),
    )


def _outcome(matched: Matched | None, facts: Facts) -> Outcome:
    if matched is None:
        return "allow" if facts.approval == "never" else "ask"
    return "deny" if matched.denies else "ask"
