"""What can be known of runs. Read models are frozen; the caller of those without a principal holds the tenant scope."""

from runs.queries.checkpoints import (
    Change,
    CheckpointRow,
    CheckpointView,
    checkpoint,
    checkpoint_diff,
    checkpoints_page,
    latest_checkpoint,
)
from runs.queries.inspect import AttemptRow, RunDetail, StepRow, WaitReason, get_run, require_visible
from runs.queries.ledger import (
    EffectDetail,
    EffectFilter,
    EffectPage,
    EffectRow,
    GatePage,
    GateRow,
    effects_of_run,
    get_effect,
    list_effects,
    list_gates,
)
from runs.queries.listing import RunFilter, RunPage, RunRow, list_runs, oldest_runs
from runs.queries.log import EventPage, EventRow, event_payload, events_for_key, events_page
from runs.queries.queues import QueueRow, list_queues
from runs.queries.registry import (
    UnknownTool,
    get_tool,
    get_workflow,
    list_tools,
    list_workflows,
    tool_version,
    tool_versions,
    workflow_version,
    workflow_versions,
)
from runs.queries.replay import Replay, replay
from runs.queries.resume import ResumePlan, resume_plan
from runs.queries.verify import Verification, verify_run

__all__ = [
    "AttemptRow",
    "Change",
    "CheckpointRow",
    "CheckpointView",
    "EffectDetail",
    "EffectFilter",
    "EffectPage",
    "EffectRow",
    "EventPage",
    "EventRow",
    "GatePage",
    "GateRow",
    "QueueRow",
    "Replay",
    "ResumePlan",
    "RunDetail",
    "RunFilter",
    "RunPage",
    "RunRow",
    "StepRow",
    "UnknownTool",
    "Verification",
    "WaitReason",
    "checkpoint",
    "checkpoint_diff",
    "checkpoints_page",
    "effects_of_run",
    "event_payload",
    "events_for_key",
    "events_page",
    "get_effect",
    "get_run",
    "get_tool",
    "get_workflow",
    "latest_checkpoint",
    "list_effects",
    "list_gates",
    "list_queues",
    "list_runs",
    "list_tools",
    "list_workflows",
    "oldest_runs",
    "replay",
    "require_visible",
    "resume_plan",
    "tool_version",
    "tool_versions",
    "verify_run",
    "workflow_version",
    "workflow_versions",
]
