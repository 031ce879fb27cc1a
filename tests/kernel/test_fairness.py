"""A process that several tenants want is shared; one that a single tenant wants is all its own."""

from collections import deque
from uuid import UUID, uuid4

from hypothesis import given, settings
from hypothesis import strategies as st

from kernel.fairness import Shares

THREADS = 4


def drive(wishes: dict[UUID, float], *, seconds: float = 20.0, request: float = 0.01) -> dict[UUID, float]:
    """Tenants that each ask for so many threads; what each one got of the second half, in threads.

    Requests stand in one line, as they do before a server's threads; who is refused is gone at once.
    """
    shares, line = Shares(THREADS), deque[UUID]()
    got = dict.fromkeys(wishes, 0.0)
    asked = dict.fromkeys(wishes, 0.0)
    now, tick, free = 0.0, 0.005, 0.0
    while now < seconds:
        for tenant, wish in wishes.items():
            asked[tenant] += wish * tick
            while asked[tenant] >= request:
                asked[tenant] -= request
                if len(line) < 1000:
                    line.append(tenant)
        free = min(free, 0) + THREADS * tick
        while line and free > 0:
            tenant = line.popleft()
            if shares.admits(tenant, now):
                shares.spent(tenant, request, now)
                free -= request
                got[tenant] += request * (now > seconds / 2)
        now += tick
    return {tenant: spent / (seconds / 2) for tenant, spent in got.items()}


def test_a_tenant_alone_has_all_of_it() -> None:
    alone = uuid4()
    assert drive({alone: 100.0})[alone] > 0.9 * THREADS


def test_a_small_wish_is_granted_beside_a_flood() -> None:
    flood, modest = uuid4(), uuid4()
    got = drive({flood: 100.0, modest: 0.5})
    assert got[modest] > 0.45
    assert got[flood] > 2.0


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(0.05, 50), min_size=2, max_size=6))
def test_nobody_gets_less_than_its_share_while_it_wants_it(wishes: list[float]) -> None:
    tenants = {uuid4(): wish for wish in wishes}
    got = drive(tenants)
    for tenant, wish in tenants.items():
        assert got[tenant] > 0.6 * min(wish, THREADS / len(tenants))
