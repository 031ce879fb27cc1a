"""Legal holds: what they keep, and that placing one and deleting cannot miss each other."""

from datetime import date

import pytest

from kernel import actor, clock, ids
from kernel.context import tenant_scope
from kernel.errors import NotFound
from privacy import operations, queries
from privacy.models import HoldKind, LegalHold
from tests.cast import House

WHO = actor.system("tests")
REVIEW = date(2027, 6, 1)


def test_a_hold_keeps_its_target_until_it_is_released(house: House) -> None:
    target, other = ids.uuid7(), ids.uuid7()
    with tenant_scope(house.id):
        hold = operations.place_hold(
            tenant=house.id,
            kind=HoldKind.RUN,
            target_id=target,
            reason="Case 12",
            review_on=REVIEW,
            actor=WHO,
            now=clock.now(),
        )
        queries.require_no_hold(tenant=house.id, targets=[other])
        with pytest.raises(queries.Held) as refused:
            queries.require_no_hold(tenant=house.id, targets=[other, target])
        operations.release_hold(tenant=house.id, hold_id=hold.id, reason="Settled", actor=WHO, now=clock.now())
        queries.require_no_hold(tenant=house.id, targets=[target])
    assert refused.value.extra == {"holds": [str(hold.id)]}


def test_the_reason_is_stored_as_ciphertext(house: House) -> None:
    with tenant_scope(house.id):
        hold = operations.place_hold(
            tenant=house.id,
            kind=HoldKind.SUBJECT,
            target_id=ids.uuid7(),
            reason="about Asha",
            review_on=REVIEW,
            actor=WHO,
            now=clock.now(),
        )
        stored = LegalHold.objects.get(id=hold.id).reason_sealed
    assert stored is not None
    assert b"Asha" not in bytes(stored)


def test_another_tenant_neither_sees_nor_releases_a_hold(house: House, other_house: House) -> None:
    target = ids.uuid7()
    with tenant_scope(house.id):
        hold = operations.place_hold(
            tenant=house.id,
            kind=HoldKind.PROJECT,
            target_id=target,
            reason="Order",
            review_on=REVIEW,
            actor=WHO,
            now=clock.now(),
        )
    with tenant_scope(other_house.id):
        assert queries.active_holds(tenant=other_house.id, targets=[target]) == []
        with pytest.raises(NotFound):
            operations.release_hold(tenant=other_house.id, hold_id=hold.id, reason="x", actor=WHO, now=clock.now())
