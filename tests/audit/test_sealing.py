"""Sealing follows the commit, loses nothing when it fails, and never forks a chain however many do it at once."""

import logging
import subprocess
import sys
from contextlib import suppress
from uuid import UUID

import psycopg
import pytest

from audit import operations, queries, tasks
from audit.models import Entry, Link, Pending
from kernel import ids
from kernel.context import tenant_scope
from tests.audit.log import Attack, page, record, record_here, verify
from tests.servers import ROOT


class Abandoned(Exception):
    pass


def rows(tenant: UUID) -> tuple[int, int, int]:
    with tenant_scope(tenant):
        return Entry.objects.count(), Link.objects.count(), Pending.objects.count()


@pytest.fixture
def unsealed(tenant: UUID, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> UUID:
    """A tenant with three committed entries whose sealing failed."""

    def fail(*, tenant: UUID) -> int:
        raise psycopg.OperationalError("the server went away")

    with monkeypatch.context() as patch, caplog.at_level(logging.CRITICAL):
        patch.setattr(operations, "seal", fail)
        record(tenant, 3)
    return tenant


def test_an_abandoned_transaction_leaves_nothing(tenant: UUID) -> None:
    record(tenant)
    with suppress(Abandoned), tenant_scope(tenant):
        record_here(tenant)
        raise Abandoned
    assert rows(tenant) == (1, 1, 0)
    assert verify(tenant).ok


def test_entries_of_one_transaction_are_sealed_after_its_commit(tenant: UUID) -> None:
    with tenant_scope(tenant):
        for _ in range(3):
            record_here(tenant)
        assert (Link.objects.count(), Pending.objects.count()) == (0, 3)
        assert queries.verify(tenant=tenant).ok  # waiting is no fault
    assert rows(tenant) == (3, 3, 0)


def test_failed_sealing_fails_no_commit(unsealed: UUID) -> None:
    assert rows(unsealed) == (3, 0, 3)
    assert verify(unsealed).ok
    assert [(row.position, row.digest) for row in page(unsealed).rows] == [(None, None)] * 3


def test_the_sweep_seals_what_was_missed(unsealed: UUID) -> None:
    assert unsealed in queries.unsealed_tenants()
    tasks.seal_all()
    assert rows(unsealed) == (3, 3, 0)
    assert unsealed not in queries.unsealed_tenants()
    assert verify(unsealed).entries == 3


def test_more_than_a_batch_is_sealed(unsealed: UUID, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "SEAL_BATCH", 2)
    assert operations.seal(tenant=unsealed) == 3
    assert verify(unsealed).entries == 3


def test_a_damaged_chain_does_not_hold_up_the_others(
    unsealed: UUID, attack: Attack, caplog: pytest.LogCaptureFixture
) -> None:
    damaged = ids.uuid7()
    record(damaged, 2)
    attack("update audit_head set position = 1 where tenant_id = %s", damaged)
    with caplog.at_level(logging.CRITICAL):
        record(damaged)
        operations.seal_all()
    assert rows(damaged) == (3, 2, 1)
    assert rows(unsealed) == (3, 3, 0)
    attack("delete from audit_pending where tenant_id = %s", damaged)


@pytest.mark.timeout(1800)
@pytest.mark.proof
def test_concurrent_writers_and_sealers_never_fork_a_chain(tenant: UUID, proof: bool) -> None:
    """Processes record and seal at once while this one sweeps and verifies."""
    processes, threads, each = (8, 4, 1000) if proof else (8, 1, 100)
    command = [sys.executable, "-m", "tests.audit.writer", str(tenant), str(threads), str(each)]
    running = [subprocess.Popen(command, cwd=ROOT) for _ in range(processes)]
    try:
        while any(process.poll() is None for process in running):
            operations.seal_all()
            result = verify(tenant)
            assert result.ok, result
    finally:
        for process in running:
            process.kill()
            process.wait()
    assert [process.returncode for process in running] == [0] * processes
    operations.seal(tenant=tenant)
    total = processes * threads * each
    assert rows(tenant) == (total, total, 0)
    assert verify(tenant).entries == total
