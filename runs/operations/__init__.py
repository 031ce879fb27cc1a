"""What changes a run. Each is one database function, one transaction; the answers and refusals are the protocol's (PROTOCOL.md)."""

from runs.operations.commit import Committed, commit
from runs.operations.control import anchor_heads, cancel_run, expire_leases
from runs.operations.create import Created, create_run
from runs.operations.lease import Claimed, claim, heartbeat
from runs.operations.registry import register_tool, register_workflow, set_tool_enabled, set_workflow_enabled

__all__ = [
    "Claimed",
    "Committed",
    "Created",
    "anchor_heads",
    "cancel_run",
    "claim",
    "commit",
    "create_run",
    "expire_leases",
    "heartbeat",
    "register_tool",
    "register_workflow",
    "set_tool_enabled",
    "set_workflow_enabled",
]
