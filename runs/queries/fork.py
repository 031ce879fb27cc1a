"""Where a run can be forked: the state of a checkpoint, and the plan as it stood in the transaction that wrote it."""

from dataclasses import dataclass
from typing import Final
from uuid import UUID

import msgspec
from msgspec import Raw

from kernel.errors import DomainError, NotFound
from privacy import keys
from privacy.keys import DataKey
from runs import sealing
from runs.models import Commit, Effect, Event, Run, Step
from runs.queries import compatibility
from runs.queries.checkpoints import CheckpointView, checkpoint
from runs.queries.compatibility import Compatibility
from runs.queries.resume import OPEN, PlanEffect, plan_effects
from runs.wire import StepIn

_DONE: Final = ("step_succeeded", "step_skipped")

_members: Final = msgspec.json.Decoder(dict[str, Raw])
_steps: Final = msgspec.json.Decoder(list[StepIn])


class CheckpointUnreadable(DomainError):
    """The wanted checkpoint does not open, or builds on what is gone; `readable` is the newest before it that opens."""

    code = "checkpoint_unreadable"
    status = 409
    title = "This checkpoint cannot be read"


@dataclass(frozen=True, slots=True)
class ForkPoint:
    """What a fork begins with. `state` is as the wanted version reads it; None when it cannot (`check` says why).

    `steps` is the plan at the checkpoint, `carried` are the names of its steps that were done by then. `created` holds the
    members of the source's first event; `digest` ends the source's chain at the checkpoint.
    """

    checkpoint: CheckpointView
    check: Compatibility
    state: bytes | None
    steps: list[StepIn]
    carried: list[str]
    created: dict[str, Raw]
    digest: bytes
    effects: list[PlanEffect]


def fork_point(*, tenant: UUID, run: Run, version: int | None, workflow_version: str | None) -> ForkPoint:
    """The point of a checkpoint (None: the newest that opens). Raises NotFound, CheckpointUnreadable."""
    view = checkpoint(tenant=tenant, run_id=run.id, version=version)
    if version is None and not view.version:
        raise CheckpointUnreadable("No checkpoint of this run opens.", extra={"readable": None})
    if version is not None and view.version != version:
        if view.skipped or view.missing:
            raise CheckpointUnreadable("Fork from one before it.", extra={"readable": view.version})
        raise NotFound("There is no such checkpoint.")
    written = (run.workflow_version, run.state_schema)
    if version is not None or view.skipped or view.missing:
        written = compatibility.written_under(tenant=tenant, run=run, seq=view.seq)
    check, state = compatibility.check(
        tenant=tenant, run=run, state=view.state, written=written, wanted=workflow_version or written[0], tools={}
    )
    # A step's last checkpoint and its success are one commit, of which the checkpoint's event comes first.
    covering = Commit.objects.filter(run_id=run.id, first_seq__lte=view.seq, last_seq__gte=view.seq)
    end = covering.values_list("last_seq", flat=True).first() or view.seq
    key = keys.data_key(tenant=tenant, key_id=run.data_key_id)
    created, steps, carried = _plan(key, run.id, end)
    digest = Event.objects.filter(run_id=run.id, seq=view.seq).values_list("digest", flat=True)[0]
    effects = unresolved_effects(tenant=tenant, run_id=run.id, seq=end)
    return ForkPoint(view, check, state, steps, carried, created, bytes(digest), effects)


def unresolved_effects(*, tenant: UUID, run_id: UUID, seq: int) -> list[PlanEffect]:
    """The effects that were begun up to an event and of whose outcome nothing is known, oldest first."""
    return plan_effects(Effect.objects.filter(run_id=run_id, input_seq__lte=seq, status__in=OPEN))


def _plan(key: DataKey, run_id: UUID, end: int) -> tuple[dict[str, Raw], list[StepIn], list[str]]:
    """The members of the first event, the plan up to a sequence number, and the names of the steps that were done by then."""
    kinds = ("run_created", "run_forked", "steps_added")
    rows = Event.objects.filter(run_id=run_id, seq__lte=end, type__in=kinds).order_by("seq")
    created: dict[str, Raw] = {}
    steps: list[StepIn] = []
    done: set[str] = set()
    for kind, payload in rows.values_list("type", "payload"):
        members = _members.decode(sealing.open_event(key, run_id, bytes(payload)))
        if kind == "run_created":
            created = members
        if kind == "run_forked":
            done |= set(msgspec.json.decode(_members.decode(members["payload"])["carried"], type=list[str]))
        else:
            steps += _steps.decode(members["steps"])
    names = Event.objects.filter(run_id=run_id, seq__lte=end, type__in=_DONE, step_id__isnull=False)
    done |= set(Step.objects.filter(id__in=names.values("step_id")).values_list("name", flat=True))
    return created, steps, [step.name for step in steps if step.name in done]
