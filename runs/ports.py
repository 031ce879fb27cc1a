"""What runs asks of apps above it, and of the world.

`GatePolicy` decides which effects need a grant. The server asks it in the transaction that reserves, whatever the agent says.
Until an app installs its own, the tool's definition decides.
"""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Final, Protocol
from uuid import UUID

from kernel.actor import Actor
from runs.registry import ToolVersion
from runs.wire import EvidenceIn, TargetIn

GATE_SECONDS: Final = 72 * 3600.0  # how long a gate stays open, when its policy does not say


@dataclass(frozen=True, slots=True)
class Supporting:
    """What the agent says beside the action, for whoever decides. `target`: the thing that is acted on, as the agent found it."""

    explanation: str | None = None
    target: TargetIn | None = None
    evidence: tuple[EvidenceIn, ...] = ()


@dataclass(frozen=True, slots=True)
class ProposedAction:
    """What exactly is to be done. `arguments` is the input as canonical JSON; `digest` covers all of it."""

    tool: ToolVersion
    arguments: bytes
    business_object: str
    amount: Decimal | None
    currency: str | None
    run_id: UUID
    effect_id: UUID
    requester: UUID
    agent_id: UUID | None
    digest: bytes
    supporting: Supporting = Supporting()


@dataclass(frozen=True, slots=True)
class Requirement:
    """A grant is needed, by `rule`; its gate lapses after `seconds`. `basis` is the policy's own, and comes back in `opened`."""

    rule: str
    seconds: float = GATE_SECONDS
    basis: object = None


@dataclass(frozen=True, slots=True)
class Denied:
    """The action is forbidden, by `rule`."""

    rule: str


class GatePolicy(Protocol):
    def decide(self, *, tenant: UUID, action: ProposedAction) -> Requirement | Denied | None:
        """What the action needs; None: it may go on. In the reserving transaction."""

    def opened(self, *, tenant: UUID, gate_id: UUID, action: ProposedAction, required: Requirement) -> None:
        """An action waits at an open gate, perhaps not for the first time. In the reserving transaction, which holds the run."""

    def revalidate(self, *, tenant: UUID, action: ProposedAction, gate_id: UUID, grant_id: UUID) -> str | None:
        """Why a grant that is about to be used no longer stands; None: it does. In the transaction that uses it."""

    def renewed(self, *, tenant: UUID, gate_id: UUID, new_gate_id: UUID, actor: Actor, now: datetime) -> None:
        """A gate that lapsed was opened anew. In the renewing transaction, which holds the run."""


class ToolPolicy:
    """The tool's `approval`: "never", "always" or the name of a rule."""

    def decide(self, *, tenant: UUID, action: ProposedAction) -> Requirement | Denied | None:
        return None if action.tool.approval == "never" else Requirement(action.tool.approval)

    def opened(self, *, tenant: UUID, gate_id: UUID, action: ProposedAction, required: Requirement) -> None:
        """An operator decides."""

    def revalidate(self, *, tenant: UUID, action: ProposedAction, gate_id: UUID, grant_id: UUID) -> str | None:
        return None

    def renewed(self, *, tenant: UUID, gate_id: UUID, new_gate_id: UUID, actor: Actor, now: datetime) -> None:
        """An operator decides."""


_policy: GatePolicy = ToolPolicy()


def gate_policy() -> GatePolicy:
    return _policy


def install_gate_policy(policy: GatePolicy) -> None:
    global _policy
    _policy = policy
