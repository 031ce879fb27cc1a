"""The floor `floor_delta_full`: plain psycopg in process. Changes only (a list element by element), zstd and AES-256-GCM
on every payload, forced row-level security as a role that owns nothing, one function call for a step.
"""

import hashlib
import os
import threading
import uuid
from typing import Any

import orjson
import psycopg
import zstandard
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from psycopg_pool import ConnectionPool

from tests.benchmarks.payloads import Step

TENANT = uuid.UUID(int=7)
SCHEMA = """
create table event (tenant uuid not null, run_id uuid not null, seq int not null, kind text not null, input bytea, output bytea,
    hash bytea not null, at timestamptz not null default now(), primary key (tenant, run_id, seq));
create table blob (tenant uuid not null, sha bytea not null, body bytea not null, primary key (tenant, sha));
create table checkpoint (tenant uuid not null, run_id uuid not null, seq int not null, manifest jsonb not null,
    primary key (tenant, run_id, seq));
alter table event alter input set storage external, alter output set storage external;
alter table blob alter body set storage external;
grant usage on schema public to smriti_app;
grant select, insert on event, blob, checkpoint to smriti_app;
alter table event enable row level security, force row level security;
alter table blob enable row level security, force row level security;
alter table checkpoint enable row level security, force row level security;
create policy p on event using (tenant = (select current_setting('app.tenant_id')::uuid));
create policy p on blob using (tenant = (select current_setting('app.tenant_id')::uuid));
create policy p on checkpoint using (tenant = (select current_setting('app.tenant_id')::uuid));
create function rec_step(t uuid, r uuid, s int, i bytea, o bytea, h bytea, shas bytea[], bodies bytea[], man jsonb)
returns void language plpgsql as $$
begin
    perform set_config('app.tenant_id', t::text, true);
    insert into event (tenant, run_id, seq, kind, input, output, hash) values (t, r, s, 'tool', i, o, h);
    insert into blob (tenant, sha, body) select t, * from unnest(shas, bodies) on conflict do nothing;
    insert into checkpoint (tenant, run_id, seq, manifest) values (t, r, s, man);
end $$;
create function load_ckpt(t uuid, r uuid, out man jsonb, out blobs bytea[]) language plpgsql as $$
begin
    perform set_config('app.tenant_id', t::text, true);
    select manifest into man from checkpoint where tenant = t and run_id = r order by seq desc limit 1;
    select array_agg(sha || body) into blobs from blob where tenant = t and sha in
        (select decode(v #>> '{}', 'hex') from jsonb_path_query(man, 'strict $.** ? (@.type()=="string")') v);
end $$;
"""


class Floor:
    name = "floor_delta_full"

    def __init__(self, owner_url: str, app_url: str, clients: int) -> None:
        with psycopg.connect(owner_url, autocommit=True) as connection:
            connection.execute(SCHEMA)
        self._pool = ConnectionPool(
            app_url, min_size=clients, max_size=clients, open=True, kwargs={"autocommit": True, "prepare_threshold": 0}
        )
        self._pool.wait()
        self._aes = AESGCM(b"k" * 32)
        self._local = threading.local()

    def start_run(self, run: list[Step]) -> "FloorRun":
        return FloorRun(self, run)

    def close(self) -> None:
        self._pool.close()

    def seal(self, raw: bytes) -> bytes:
        nonce = os.urandom(12)
        return nonce + self._aes.encrypt(nonce, self._codec()[0].compress(raw), b"tenant")

    def unseal(self, raw: bytes) -> bytes:
        return self._codec()[1].decompress(self._aes.decrypt(raw[:12], raw[12:], b"tenant"))

    def _codec(self) -> tuple[zstandard.ZstdCompressor, zstandard.ZstdDecompressor]:
        if not hasattr(self._local, "codec"):
            self._local.codec = zstandard.ZstdCompressor(level=3), zstandard.ZstdDecompressor()
        found: tuple[zstandard.ZstdCompressor, zstandard.ZstdDecompressor] = self._local.codec
        return found


class FloorRun:
    def __init__(self, floor: Floor, run: list[Step]) -> None:
        self.floor, self.run = floor, run
        self.id = uuid.uuid4()
        self._known: dict[Any, Any] = {}
        self._chain = b""

    def step(self, seq: int) -> None:
        step = self.run[seq]
        tool_in, tool_out = orjson.dumps(step.input), orjson.dumps(step.output)
        self._chain = hashlib.sha256(self._chain + tool_in + tool_out).digest()
        manifest, new = self._parts(step.state)
        seal = self.floor.seal
        row = (
            TENANT, self.id, seq, seal(tool_in), seal(tool_out), self._chain, list(new), [seal(value) for value in new.values()],
            orjson.dumps(manifest).decode(),
        )  # fmt: skip
        with self.floor._pool.connection() as connection:
            connection.execute("select rec_step(%s,%s,%s,%b,%b,%b,%b,%b,%s)", row)

    def resume(self) -> dict[str, Any]:
        with self.floor._pool.connection() as connection:
            row = connection.execute("select * from load_ckpt(%s,%s)", (TENANT, self.id), binary=True).fetchone()
        assert row is not None
        manifest, found = row
        blobs = {bytes(blob[:32]).hex(): blob[32:] for blob in found}

        def get(digest: str) -> Any:
            return orjson.loads(self.floor.unseal(blobs[digest]))

        return {
            key: [get(d) for d in value] if isinstance(value, list) else get(value) for key, value in manifest.items()
        }

    def _parts(self, state: dict[str, Any]) -> tuple[dict[str, Any], dict[bytes, bytes]]:
        """The manifest, and the blobs that this run has not stored before."""
        manifest: dict[str, Any] = {}
        new: dict[bytes, bytes] = {}
        for key, value in state.items():
            if isinstance(value, list):
                manifest[key] = [self._digest((key, id(item)), item, new).hex() for item in value]
            else:
                manifest[key] = self._digest(None, value, new).hex()
        return manifest, new

    def _digest(self, memo: Any, value: Any, new: dict[bytes, bytes]) -> bytes:
        if memo is not None and memo in self._known:
            remembered: bytes = self._known[memo]
            return remembered
        raw = orjson.dumps(value)
        digest = hashlib.sha256(raw).digest()
        if digest not in self._known:
            new[digest] = raw
            self._known[digest] = True
        if memo is not None:
            self._known[memo] = digest
        return digest
