"""The tables of runs.

Rows are written by the database functions of `runs/sql` only, under the lock of the run's row: that is what makes sequences
gap-free, chains unforked and commits atomic. Foreign keys are composite and laid by the migrations. What a tenant registers is not
part of a run and is written by its operations.
"""

from runs.models.artifact import Artifact, ArtifactReference, Offload
from runs.models.effect import Decision, Effect, Evidence, Gate, Grant, ToolUsage
from runs.models.feed import Feed, FeedDue, FeedHead
from runs.models.log import Anchor, AnchorDue, Checkpoint, Commit, Event
from runs.models.metrics import Rollup, RollupCursor, RollupTotal
from runs.models.registry import Tool, Workflow
from runs.models.run import Attempt, Queue, Run, Signal, Step, StepDependency
from runs.models.schedule import Schedule, ScheduleFire

__all__ = [
    "Anchor",
    "AnchorDue",
    "Artifact",
    "ArtifactReference",
    "Attempt",
    "Checkpoint",
    "Commit",
    "Decision",
    "Effect",
    "Event",
    "Evidence",
    "Feed",
    "FeedDue",
    "FeedHead",
    "Gate",
    "Grant",
    "Offload",
    "Queue",
    "Rollup",
    "RollupCursor",
    "RollupTotal",
    "Run",
    "Schedule",
    "ScheduleFire",
    "Signal",
    "Step",
    "StepDependency",
    "Tool",
    "ToolUsage",
    "Workflow",
]
