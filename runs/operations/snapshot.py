"""Packing a long chain of changes into one whole checkpoint, so that a resume reads a bounded amount.

A snapshot is derived: it may be made late, twice or never, without any loss. It is due when the changes since have grown
to its own size, so that all snapshots together cost about as much as the changes.
"""

from typing import Final
from uuid import UUID

from kernel.call import Call
from privacy import keys
from runs import offload, patch, sealing
from runs.queries import state as stored

SNAPSHOT: Final = Call("runs_snapshot", "uuid uuid int4 bytea bytea", "bool")


def snapshot(*, tenant: UUID, run_id: UUID) -> bool:
    """Pack the newest state. False when that is not needed, or when the stored chain does not open (resume reports that)."""
    state = stored.load(tenant=tenant, run_id=run_id)
    if state.damaged or state.version == state.base_version or not state.version:
        return False
    key = keys.data_key(tenant=tenant, key_id=state.data_key_id)
    sealed = sealing.seal_checkpoint(key, run_id, state.version, "snapshot", patch.dump(state.state))
    (done,) = SNAPSHOT.one(
        (tenant, run_id, state.version, offload.store(tenant, run_id, sealed.blob), sealed.commitment)
    )
    return bool(done)
