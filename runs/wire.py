"""The bodies that agents send to the hot paths, typed. Payloads stay raw: what is stored is what was sent, byte for byte."""

from typing import Annotated, Final, Literal
from uuid import UUID

from msgspec import Meta, Raw, Struct, field

from kernel.moments import Moment

MAX_EVENTS: Final = 1000
MAX_STEPS: Final = 10_000
MAX_SECONDS: Final = 366 * 86_400

Identifier = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:@/+-]{0,63}\Z", max_length=64)]
EventType = Annotated[
    str,
    Meta(
        pattern=r"^(?!run_|step_|steps_|lease_|checkpoint_|effect_|gate_|signal_|state_|artifact_|migration_)[a-z][a-z0-9_.]{0,63}\Z",
        max_length=64,
    ),
]
LeaseSeconds = Annotated[float, Meta(ge=1, le=3600)]
Text = Annotated[str, Meta(min_length=1, max_length=256)]
Labels = Annotated[dict[Identifier, Identifier], Meta(max_length=16)]


class Usage(Struct, forbid_unknown_fields=True):
    model: Identifier
    input_tokens: Annotated[int, Meta(ge=0)] = 0
    output_tokens: Annotated[int, Meta(ge=0)] = 0
    cost: Annotated[str, Meta(pattern=r"^\d{1,12}(\.\d{1,9})?\Z")] | None = None
    currency: Annotated[str, Meta(pattern=r"^[A-Z]{3}\Z")] | None = None


class EventIn(Struct, forbid_unknown_fields=True):
    type: EventType
    step: Identifier | None = None
    occurred_at: Moment | None = None
    labels: Labels | None = None
    input: Raw = field(default_factory=Raw)
    output: Raw = field(default_factory=Raw)
    payload: Raw = field(default_factory=Raw)
    usage: Usage | None = None
    trace_id: Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")] | None = None
    span_id: Annotated[str, Meta(pattern=r"^[0-9a-f]{16}\Z")] | None = None


class CheckpointIn(Struct, forbid_unknown_fields=True):
    """The whole state (an object), or a patch (RFC 6902) from the state at the presented head. Exactly one."""

    state: Raw = field(default_factory=Raw)
    patch: Raw = field(default_factory=Raw)


class ErrorIn(Struct, forbid_unknown_fields=True):
    class_: Literal["transient", "rate_limited", "permanent", "business_rejection", "unknown_outcome"] = field(
        name="class"
    )
    message: Annotated[str, Meta(max_length=4096)] = ""
    retry_after: Annotated[float, Meta(ge=0, le=86_400)] | None = None


class TimerIn(Struct, forbid_unknown_fields=True):
    """Either of them."""

    seconds: Annotated[float, Meta(ge=0, le=MAX_SECONDS)] | None = None
    until: Moment | None = None


class SignalWaitIn(Struct, forbid_unknown_fields=True):
    name: Identifier
    timeout_seconds: Annotated[float, Meta(ge=0, le=MAX_SECONDS)] | None = None


class ChildWaitIn(Struct, forbid_unknown_fields=True):
    run_id: UUID
    timeout_seconds: Annotated[float, Meta(ge=0, le=MAX_SECONDS)] | None = None


class WaitIn(Struct, forbid_unknown_fields=True):
    """Exactly one."""

    timer: TimerIn | None = None
    signal: SignalWaitIn | None = None
    child: ChildWaitIn | None = None


class StepResultIn(Struct, forbid_unknown_fields=True):
    outcome: Literal["succeeded", "failed", "waiting", "released"]
    output: Raw = field(default_factory=Raw)
    error: ErrorIn | None = None
    wait: WaitIn | None = None


class EffectOutcomeIn(Struct, forbid_unknown_fields=True):
    """What became of an effect that this lease has in flight. `failed`: it certainly did not happen, for the reason `error`."""

    effect: UUID
    outcome: Literal["succeeded", "failed", "unknown"]
    output: Raw = field(default_factory=Raw)
    external_id: Text | None = None
    error: ErrorIn | None = None


class RunResultIn(Struct, forbid_unknown_fields=True):
    outcome: Literal["completed", "failed"]
    output: Raw = field(default_factory=Raw)


class RetryIn(Struct, forbid_unknown_fields=True):
    """Before attempt n + 1 a random time up to `initial_seconds` times `factor` to the power n - 1, at most `max_seconds`."""

    initial_seconds: Annotated[float, Meta(ge=0, le=86_400)] = 2.0
    factor: Annotated[float, Meta(ge=1, le=10)] = 2.0
    max_seconds: Annotated[float, Meta(ge=0, le=86_400)] = 900.0


class StepIn(Struct, forbid_unknown_fields=True):
    """`requires`: capabilities of the worker. `deadline_seconds` counts from the first claim: no retry begins after it.

    What is left out of `max_attempts`, `retry` and `deadline_seconds` is as the workflow registered it; without that 5 attempts.
    """

    name: Identifier
    depends_on: Annotated[list[Identifier], Meta(max_length=100)] = []
    queue: Identifier = "default"
    priority: Annotated[int, Meta(ge=-100, le=100)] = 0
    max_attempts: Annotated[int, Meta(ge=1, le=1000)] | None = None
    requires: Annotated[list[Identifier], Meta(max_length=16)] | None = None
    retry: RetryIn | None = None
    deadline_seconds: Annotated[float, Meta(ge=1, le=MAX_SECONDS)] | None = None


Steps = Annotated[list[StepIn], Meta(min_length=1, max_length=MAX_STEPS)]


class CommitIn(Struct, forbid_unknown_fields=True):
    lease: str | None = None
    epoch: Annotated[int, Meta(ge=1, le=2_147_483_647)] | None = None
    head: Annotated[int, Meta(ge=0, le=2_147_483_647)] | None = None
    events: Annotated[list[EventIn], Meta(max_length=MAX_EVENTS)] = []
    effects: Annotated[list[EffectOutcomeIn], Meta(max_length=100)] = []
    checkpoint: CheckpointIn | None = None
    step: StepResultIn | None = None
    new_steps: Steps | None = None
    run: RunResultIn | None = None


class RunIn(Struct, forbid_unknown_fields=True):
    """`steps` may be left out when the workflow version registered them."""

    workflow: Identifier
    workflow_version: Identifier
    steps: Steps | None = None
    project: Identifier | None = None
    agent: Identifier | None = None
    agent_version: Identifier = "0"
    subject: Text | None = None
    correlation_id: Text | None = None
    task_id: Text | None = None
    parent_run_id: UUID | None = None
    deadline_seconds: Annotated[float, Meta(ge=1, le=MAX_SECONDS)] | None = None
    labels: Labels = {}
    versions: Labels = {}
    input: Raw = field(default_factory=Raw)


class ClaimIn(Struct, forbid_unknown_fields=True):
    worker: Identifier
    queues: Annotated[list[Identifier], Meta(min_length=1, max_length=32)] = field(default_factory=lambda: ["default"])
    capabilities: Annotated[list[Identifier], Meta(max_length=64)] = []
    lease_seconds: LeaseSeconds = 30.0
    run_id: str | None = None
    wait_seconds: Annotated[float, Meta(ge=0, le=60)] = 0.0


class HeartbeatIn(Struct, forbid_unknown_fields=True):
    epoch: Annotated[int, Meta(ge=1, le=2_147_483_647)]
    lease_seconds: LeaseSeconds = 30.0


class TargetIn(Struct, forbid_unknown_fields=True):
    """What is acted on, as the agent found it: its version, and its state (any JSON). Another version is another action."""

    version: Text
    content: Raw = field(default_factory=Raw)


class EvidenceIn(Struct, forbid_unknown_fields=True):
    """What supports an action: an `event` (`seq` of this run, or of `run_id`), an `artifact` (`artifact_id`), or a `fact` (`ref`
    with its `content`). `observed_at`: when it was so.
    """

    kind: Literal["event", "artifact", "fact"]
    seq: Annotated[int, Meta(ge=1, le=2**53 - 1)] | None = None
    run_id: UUID | None = None
    artifact_id: UUID | None = None
    ref: Text | None = None
    content: Raw = field(default_factory=Raw)
    observed_at: Moment | None = None


class ReserveIn(Struct, forbid_unknown_fields=True):
    """Ask before a side effect. `business_object` names what it is done to, when the tool's `business_key` does not.

    `explanation`, `target` and `evidence` are shown to whoever decides, when the action needs approval.
    """

    lease: UUID
    epoch: Annotated[int, Meta(ge=1, le=2_147_483_647)]
    tool: Identifier | None = None
    tool_version: Identifier | None = None
    input: Raw = field(default_factory=Raw)
    business_object: Text | None = None
    compensates: UUID | None = None
    explanation: Annotated[str, Meta(min_length=1, max_length=4000)] | None = None
    target: TargetIn | None = None
    evidence: Annotated[list[EvidenceIn], Meta(max_length=50)] = []


class OutcomeIn(Struct, forbid_unknown_fields=True):
    lease: UUID
    epoch: Annotated[int, Meta(ge=1, le=2_147_483_647)]
    outcome: Literal["succeeded", "failed", "unknown"]
    output: Raw = field(default_factory=Raw)
    external_id: Text | None = None
    error: ErrorIn | None = None


class ReconcileIn(Struct, forbid_unknown_fields=True):
    """What became of an unknown effect: under a lease by its worker, or without one, with a `reason`, by an operator."""

    result: Literal["succeeded", "failed"]
    lease: UUID | None = None
    epoch: Annotated[int, Meta(ge=1, le=2_147_483_647)] | None = None
    reason: Annotated[str, Meta(min_length=1, max_length=2000)] | None = None
    output: Raw = field(default_factory=Raw)
    external_id: Text | None = None
    evidence: Raw = field(default_factory=Raw)
    error: ErrorIn | None = None


class SignalIn(Struct, forbid_unknown_fields=True):
    name: Identifier
    payload: Raw = field(default_factory=Raw)
