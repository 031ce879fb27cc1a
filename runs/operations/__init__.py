"""What changes a run. Each is one database function, one transaction; the answers and refusals are the protocol's (PROTOCOL.md)."""

from runs.operations.artifacts import (
    attach_artifact,
    create_artifact,
    delete_artifact,
    download_address,
    upload_address,
)
from runs.operations.care import reconcile_objects, scan_artifact, sweep_artifacts, sweep_offloads
from runs.operations.commit import Committed, commit
from runs.operations.control import Action, anchor_heads, cancel_run, recover_run, recover_runs, sweep
from runs.operations.create import Created, create_run
from runs.operations.effects import Decided, Reconciled, reconcile, reserve
from runs.operations.feed import advance_feed, feed_hint, log_hint
from runs.operations.fork import Forked, fork_run
from runs.operations.gates import GRANT_SECONDS, decide_gate, renew_gate
from runs.operations.lease import Claimed, Kept, claim, heartbeat
from runs.operations.metrics import count_metrics, count_tenant, recount
from runs.operations.probes import send_probes
from runs.operations.queues import set_queue
from runs.operations.registry import register_tool, register_workflow, set_tool_enabled, set_workflow_enabled
from runs.operations.resume import resume_run
from runs.operations.signals import Signalled, signal

__all__ = [
    "GRANT_SECONDS",
    "Action",
    "Claimed",
    "Committed",
    "Created",
    "Decided",
    "Forked",
    "Kept",
    "Reconciled",
    "Signalled",
    "advance_feed",
    "anchor_heads",
    "attach_artifact",
    "cancel_run",
    "claim",
    "commit",
    "count_metrics",
    "count_tenant",
    "create_artifact",
    "create_run",
    "decide_gate",
    "delete_artifact",
    "download_address",
    "feed_hint",
    "fork_run",
    "heartbeat",
    "log_hint",
    "reconcile",
    "reconcile_objects",
    "recount",
    "recover_run",
    "recover_runs",
    "register_tool",
    "register_workflow",
    "renew_gate",
    "reserve",
    "resume_run",
    "scan_artifact",
    "send_probes",
    "set_queue",
    "set_tool_enabled",
    "set_workflow_enabled",
    "signal",
    "sweep",
    "sweep_artifacts",
    "sweep_offloads",
    "upload_address",
]
