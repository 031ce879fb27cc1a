"""What runs asks of apps above it, and of the world.

`GatePolicy` decides which effects need a grant. The server asks it in the transaction that reserves, whatever the agent says.
Until an app installs its own, the tool's definition decides.
"""

from dataclasses import dataclass
from decimal import Decimal
from typing import Final, Protocol
from uuid import UUID

from runs.registry import ToolVersion

GATE_SECONDS: Final = 72 * 3600.0  # how long a gate stays open, when its policy does not say


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


@dataclass(frozen=True, slots=True)
class Requirement:
    """A grant is needed, by `rule`; its gate lapses after `seconds`."""

    rule: str
    seconds: float = GATE_SECONDS


class GatePolicy(Protocol):
    def decide(self, *, tenant: UUID, action: ProposedAction) -> Requirement | None:
        """What the action needs; None: it may go on. In the reserving transaction."""

    def revalidate(self, *, tenant: UUID, action: ProposedAction, gate_id: UUID, grant_id: UUID) -> bool:
        """Whether a grant that is about to be used still stands. In the transaction that uses it."""


class ToolPolicy:
    """The tool's `approval`: "never", "always" or the name of a rule."""

    def decide(self, *, tenant: UUID, action: ProposedAction) -> Requirement | None:
        return None if action.tool.approval == "never" else Requirement(action.tool.approval)

    def revalidate(self, *, tenant: UUID, action: ProposedAction, gate_id: UUID, grant_id: UUID) -> bool:
        return True


_policy: GatePolicy = ToolPolicy()


def gate_policy() -> GatePolicy:
    return _policy


def install_gate_policy(policy: GatePolicy) -> None:
    global _policy
    _policy = policy
