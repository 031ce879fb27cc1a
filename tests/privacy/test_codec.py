"""Payloads at rest: they come back to the letter, at their place and under their key only."""

import os
import subprocess
import sys
from collections.abc import Iterator

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel import ids
from kernel.ports import Corrupt
from privacy import codec, keys
from privacy.keys import DataKey, KeyShredded
from tests.servers import ROOT, VAULT

TENANT = ids.uuid7()
KEY = DataKey(tenant=TENANT, key_id=TENANT, secret=b"s" * 32)


@given(st.binary(max_size=4000), st.binary(max_size=40))
def test_what_was_sealed_comes_back_with_its_commitment(body: bytes, meta: bytes) -> None:
    sealed = codec.seal(KEY, context=b"run", label=b"event", body=body, meta=meta)
    opened = codec.unseal(KEY, context=b"run", label=b"event", blob=sealed.blob)
    assert opened.body == body
    assert codec.commitment(salt=opened.salt, meta=meta, body=opened.body) == sealed.commitment


def test_equal_payloads_have_unlike_ciphertexts_and_commitments() -> None:
    one, two = (codec.seal(KEY, context=b"run", label=b"event", body=b"{}") for _ in range(2))
    assert one.blob != two.blob
    assert one.commitment != two.commitment


@pytest.mark.parametrize("place", [
    {"context": b"other"},
    {"label": b"other"},
    {"key": DataKey(tenant=ids.uuid7(), key_id=TENANT, secret=b"s" * 32)},
    {"key": DataKey(tenant=TENANT, key_id=TENANT, secret=b"t" * 32)},
])  # fmt: skip
def test_a_ciphertext_opens_only_at_its_place(place: dict[str, object]) -> None:
    sealed = codec.seal(KEY, context=b"run", label=b"event", body=b'{"a":1}' * 40)
    where: dict[str, object] = {"key": KEY, "context": b"run", "label": b"event", "blob": sealed.blob, **place}
    with pytest.raises(Corrupt):
        codec.unseal(where.pop("key"), **where)  # type: ignore[arg-type]


@given(st.data())
def test_any_flipped_bit_is_found(data: st.DataObject) -> None:
    blob = bytearray(codec.seal(KEY, context=b"run", label=b"event", body=b'{"a":1}' * 30).blob)
    blob[data.draw(st.integers(0, len(blob) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(Corrupt):
        codec.unseal(KEY, context=b"run", label=b"event", blob=bytes(blob))


@pytest.mark.parametrize("size", range(0, 40, 7))
def test_a_cut_ciphertext_is_found(size: int) -> None:
    blob = codec.seal(KEY, context=b"run", label=b"event", body=b"{}").blob
    with pytest.raises(Corrupt):
        codec.unseal(KEY, context=b"run", label=b"event", blob=blob[:size])


def test_a_key_does_not_show_itself() -> None:
    assert "s" * 8 not in repr(KEY)
    assert not hasattr(KEY, "__dict__")


class TestVault:
    @pytest.fixture
    def vault(self) -> Iterator[psycopg.Connection[object]]:
        url = os.environ["SMRITI_TEST_ADMIN_URL"].rpartition("/")[0] + f"/{VAULT}"
        with psycopg.connect(url, autocommit=True) as connection:
            yield connection

    def test_two_processes_that_race_to_make_a_key_get_one(self) -> None:
        tenant, key = ids.uuid7(), ids.uuid7()
        program = (
            "import django, uuid; django.setup(); from privacy import keys;"
            f"k = keys.data_key(tenant=uuid.UUID('{tenant}'), key_id=uuid.UUID('{key}')); print(k.derive(b'x').hex())"
        )
        racers = [
            subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True)
            for _ in range(4)
        ]
        found = {racer.communicate(timeout=60)[0].strip() for racer in racers}
        assert found == {keys.data_key(tenant=tenant, key_id=key).derive(b"x").hex()}

    def test_a_shredded_key_is_gone_and_never_made_anew(self, vault: psycopg.Connection[object]) -> None:
        tenant, key = ids.uuid7(), ids.uuid7()
        keys.data_key(tenant=tenant, key_id=key)
        vault.execute("update vault_datakey set wrapped = null, shredded_at = now() where id = %s", [key])
        keys.forget(tenant=tenant, key_id=key)
        for _ in range(2):
            with pytest.raises(KeyShredded):
                keys.data_key(tenant=tenant, key_id=key)

    def test_a_key_moved_to_another_tenant_does_not_open(self, vault: psycopg.Connection[object]) -> None:
        tenant, thief, key = ids.uuid7(), ids.uuid7(), ids.uuid7()
        keys.data_key(tenant=tenant, key_id=key)
        keys.data_key(tenant=thief, key_id=thief)
        vault.execute("update vault_datakey set tenant_id = %s where id = %s", [thief, key])
        with pytest.raises(keys.VaultCorrupt):
            keys.data_key(tenant=thief, key_id=key)

    def test_the_vault_holds_no_key_in_clear(self, vault: psycopg.Connection[object]) -> None:
        tenant = ids.uuid7()
        secret = keys.data_key(tenant=tenant, key_id=tenant)
        row = vault.execute("select wrapped from vault_datakey where id = %s", [tenant]).fetchone()
        assert row is not None
        assert secret._secret not in bytes(row[0])  # type: ignore[index]

    def test_digests_of_one_value_differ_by_tenant_and_label(self) -> None:
        one, two = ids.uuid7(), ids.uuid7()
        found = {
            keys.keyed_digest(tenant=tenant, label=label, value="asha")
            for tenant in (one, two)
            for label in (b"a", b"b")
        }
        assert len(found) == 4
        assert keys.keyed_digest(tenant=one, label=b"a", value="asha") in found
