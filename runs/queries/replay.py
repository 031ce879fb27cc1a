"""Replaying a run: what its log and its checkpoints alone say of any moment, beside what is stored. It changes nothing.

The log does not say when a step that waited for a time, a signal or another run could go on, only when it was leased next: for such
a step `waiting` and `runnable` are the same. Names of steps are taken from the plan; only the log decides what became of them.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec import Raw

from kernel.errors import FieldError, Invalid, NotFound
from kernel.ports import Corrupt
from privacy import keys
from privacy.keys import DataKey
from runs import patch, sealing
from runs.models import Checkpoint, Event, Run, Step
from runs.queries import state as stored
from runs.queries.state import StoredState
from runs.states import RUN_ENDS
from runs.wire import StepIn

MAX_EVENTS: Final = 250_000
MAX_DIFFERENCES: Final = 100
_BATCH: Final = 2000
_PLANNING: Final = ("run_created", "run_forked", "steps_added")

_members: Final = msgspec.json.Decoder(dict[str, Raw])
_plan: Final = msgspec.json.Decoder(list[StepIn])
_names: Final = msgspec.json.Decoder(list[str])


@dataclass(frozen=True, slots=True)
class ReplayedStep:
    name: str
    status: str
    attempts: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Difference:
    """Where what is stored is not what the log says: `what` is log, run, step or state."""

    what: str
    name: str
    replayed: str
    stored: str


@dataclass(frozen=True, slots=True)
class Replay:
    """The run after event `upto`. `steps` is one page in the order of the plan; `state` is JSON text, None without a checkpoint.

    `differences` are looked for at the end of the log only.
    """

    upto: int
    last_seq: int
    run_status: str
    steps_total: int
    steps: list[ReplayedStep]
    next_after: int | None
    state_version: int
    state: bytes | None
    differences: list[Difference]


@dataclass(slots=True)
class _Step:
    name: str
    needs: set[str]
    status: str = "blocked"
    attempts: int = 0
    epoch: int = 0


@dataclass(slots=True)
class _Machine:
    """What the events said so far."""

    steps: dict[str, _Step] = field(default_factory=dict)
    needed_by: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    status: str = "pending"
    cancelling: bool = False

    def plan(self, steps: Iterable[StepIn]) -> None:
        for step in steps:
            needs = {name for name in step.depends_on if self.steps[name].status not in ("succeeded", "skipped")}
            self.steps[step.name] = _Step(step.name, needs)
            for name in needs:
                self.needed_by[name].append(step.name)
            self._ready(self.steps[step.name])

    def done(self, step: _Step, status: str) -> None:
        step.status = status
        for name in self.needed_by.pop(step.name, ()):
            self.steps[name].needs.discard(step.name)
            if self.steps[name].status == "blocked":
                self._ready(self.steps[name])

    def event(self, kind: str, step: _Step | None, labels: dict[str, str]) -> None:
        if kind.startswith("run_"):
            self._run(kind.removeprefix("run_"), labels)
        if step is None:
            return
        match kind:
            case "step_leased":
                step.status, step.attempts, step.epoch = "leased", step.attempts + 1, step.epoch + 1
                self.status = "running"
            case "step_succeeded" | "step_skipped":
                self.done(step, kind.removeprefix("step_"))
            case "step_failed" | "step_dead_letter":
                step.status = kind.removeprefix("step_")
            case "step_retry_scheduled":
                step.status = "waiting"
            case "step_waiting":
                step.status, step.attempts = "waiting", step.attempts - 1
            case "lease_released":
                step.attempts -= 1
                self._ready(step)
            case "lease_lost" | "step_woken":
                self._ready(step)
            case "gate_satisfied" | "gate_refused" | "gate_withdrawn" if step.status == "waiting":
                self._ready(step)

    def _run(self, kind: str, labels: dict[str, str]) -> None:
        match kind:
            case "started":
                self.status = "running"
            case "cancel_requested":
                self.cancelling = True
                self._turn({"runnable", "waiting"}, "blocked")
            case "dead_letter":
                self.status = kind
                self._turn({"runnable", "leased"}, "blocked")
            case "completed" | "failed" | "cancelled":
                self.status = kind
                self._turn({"blocked", "runnable", "leased", "waiting"}, "skipped")
            case "recovered":
                self.status, self.cancelling = "pending", False
                self._recover(labels.get("action", ""))

    def _recover(self, action: str) -> None:
        if action == "compensate":
            self._turn({"blocked", "waiting", "dead_letter", "failed"}, "skipped")
            return
        for step in self.steps.values():
            if step.status == "blocked":
                self._ready(step)
            elif step.status in ("dead_letter", "failed") and action != "skip":
                step.attempts = 0
                self._ready(step)

    def _ready(self, step: _Step) -> None:
        stopped = self.cancelling or self.status in RUN_ENDS
        step.status = "blocked" if step.needs or stopped else "runnable"

    def _turn(self, before: set[str], after: str) -> None:
        for step in self.steps.values():
            if step.status in before:
                step.status = after


def replay(
    *, tenant: UUID, run_id: UUID, upto: int | None = None, after: int = 0, limit: int = 200, with_state: bool = True
) -> Replay:
    """The run after event `upto` (None: the last). `after`: steps of the plan to pass over. Raises NotFound, Invalid."""
    run = Run.objects.filter(id=run_id).first()
    if run is None:
        raise NotFound("There is no such run.")
    end = run.last_seq if upto is None else upto
    if end > run.last_seq:
        raise _invalid(f"The log ends with event {run.last_seq}.", run.last_seq)
    if end > MAX_EVENTS:
        raise _invalid(f"At most {MAX_EVENTS} events are replayed.", MAX_EVENTS)
    key = keys.data_key(tenant=tenant, key_id=run.data_key_id)
    rows = {row.id: row for row in Step.objects.filter(run_id=run_id).order_by("position")}
    machine, differences = _run_log(key, run_id, end, {id: row.name for id, row in rows.items()})
    found = _state(key, run, end)
    if end == run.last_seq:
        differences += _compare(machine, run, list(rows.values()))
        differences += _compare_state(tenant, run, found)
    steps = list(machine.steps.values())
    page = [ReplayedStep(step.name, step.status, step.attempts, step.epoch) for step in steps[after : after + limit]]
    return Replay(
        upto=end, last_seq=run.last_seq, run_status=machine.status, steps_total=len(steps), steps=page,
        next_after=after + limit if after + limit < len(steps) else None, state_version=found.version,
        state=patch.dump(found.state) if with_state and found.version else None, differences=differences[:MAX_DIFFERENCES],
    )  # fmt: skip


def _run_log(key: DataKey, run_id: UUID, end: int, names: dict[UUID, str]) -> tuple[_Machine, list[Difference]]:
    """The machine after an event, and what the log lacks."""
    machine, differences, last = _Machine(), list[Difference](), 0
    while last < end:
        events = Event.objects.filter(run_id=run_id, seq__gt=last, seq__lte=end).order_by("seq")[:_BATCH]
        batch = list(events.values_list("seq", "type", "step_id", "labels"))
        planning = [seq for seq, kind, _, _ in batch if kind in _PLANNING]
        payloads = dict(Event.objects.filter(run_id=run_id, seq__in=planning).values_list("seq", "payload"))
        for seq, kind, step_id, labels in batch:
            if seq != last + 1:
                differences.append(Difference("log", str(last + 1), "an event", "missing"))
            last = seq
            if kind in _PLANNING:
                _take_plan(machine, kind, _open(key, run_id, payloads[seq]))
            machine.event(kind, machine.steps.get(names.get(step_id, "")), labels or {})
        if len(batch) < _BATCH and last < end:
            differences.append(Difference("log", str(last + 1), "an event", "missing"))
            break
    return machine, differences


def _take_plan(machine: _Machine, kind: str, members: dict[str, Raw]) -> None:
    if kind != "run_forked":
        machine.plan(_plan.decode(members["steps"]))
        return
    for name in _names.decode(_members.decode(members["payload"])["carried"]):
        machine.done(machine.steps[name], "skipped")


def _open(key: DataKey, run_id: UUID, payload: bytes | None) -> dict[str, Raw]:
    try:
        body = sealing.open_event(key, run_id, bytes(payload or b""))
    except Corrupt:
        return {"steps": Raw(b"[]"), "payload": Raw(b'{"carried":[]}')}
    return _members.decode(body)


def _state(key: DataKey, run: Run, end: int) -> StoredState:
    """The state after an event from what was sent alone: the newest whole state and every change since, without snapshots."""
    rows = Checkpoint.objects.filter(run_id=run.id, seq__lte=end)
    base = rows.filter(kind="full").order_by("-version").values_list("version", flat=True).first() or 0
    chain = rows.filter(version__gte=base, kind__in=["full", "patch"]).order_by("version")
    found = StoredState(head=run.head, last_seq=run.last_seq, data_key_id=run.data_key_id)
    stored.assemble(found, key, run.id, chain.values_list("version", "seq", "kind", "body").iterator(_BATCH))
    return found


def _compare(machine: _Machine, run: Run, rows: list[Step]) -> list[Difference]:
    """Run and steps as the log has them and as they are stored."""
    found = []
    if run.status not in (
        {machine.status, "waiting"} if machine.status in ("pending", "running") else {machine.status}
    ):
        found.append(Difference("run", "status", machine.status, run.status))
    stopped = run.status in RUN_ENDS or run.cancel_at is not None
    # A step that takes an effect back is planned by an operator's action, which the log names without the plan.
    there = {row.name: row for row in rows if row.compensates_id is None}
    for name in there.keys() ^ machine.steps.keys():
        words = ("planned", "missing") if name in machine.steps else ("not planned", "there")
        found.append(Difference("step", name, *words))
    for name, step in machine.steps.items():
        row = there.get(name)
        if row is None:
            continue
        allowed = {step.status} | ({"runnable", "waiting"} if step.status in ("waiting", "runnable") else set())
        if row.status not in allowed | ({"blocked"} if stopped and step.status in ("waiting", "runnable") else set()):
            found.append(Difference("step", f"{name}/status", step.status, row.status))
        for member in ("attempts", "epoch"):
            if getattr(step, member) != getattr(row, member):
                found.append(
                    Difference("step", f"{name}/{member}", str(getattr(step, member)), str(getattr(row, member)))
                )
    return found


def _compare_state(tenant: UUID, run: Run, found: StoredState) -> list[Difference]:
    """The state from all changes, beside the one that readers get, which may come from a snapshot."""
    read = stored.load(tenant=tenant, run_id=run.id)
    if read.damaged or found.damaged:
        names = sorted({*read.damaged, *found.damaged})
        return [Difference("state", f"version {version}", "readable", "damaged") for version in names]
    if read.last_seq != run.last_seq:
        return []  # somebody wrote meanwhile
    if read.version != found.version:
        return [Difference("state", "version", str(found.version), str(read.version))]
    same = patch.diff(found.state, read.state) == b"[]"
    return (
        [] if same else [Difference("state", f"version {found.version}", "by its changes", "another by its snapshot")]
    )


def _invalid(message: str, limit: Any) -> Invalid:
    return Invalid(f"upto: {message}", fields=(FieldError("upto", "out_of_range", message, limit),))
