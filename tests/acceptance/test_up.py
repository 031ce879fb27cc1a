"""`make up` for real: a copy of the tree in a folder with a space, every process started, killed, and stopped again."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import psycopg
import pytest

from config.embedded import databases, place
from config.embedded.home import Home
from config.embedded.place import EmbeddedError, port_is_free, remembered_port
from config.embedded.postgres import PostgresServer
from config.embedded.provision import url_for
from config.embedded.valkey import ValkeyServer
from kernel.roles import APP, DEFINER, ROLES
from tests.acceptance.live import ROOT, wait_for

COPIED = ("platform", "runs", "memory", "approvals", "compliance", "templates", "manage.py")
READY_SECONDS = 10
PATIENCE = 60


class Machine:
    """A copy of the project, and the commands one gives in it."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self.tree = folder / "a copy"
        self.tree.mkdir()
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, self.tree / name, ignore=shutil.ignore_patterns("__pycache__"))
            elif source.exists():
                shutil.copy(source, self.tree / name)
        self.data = self.tree / ".smriti"
        self.port = remembered_port(folder / "port")
        self.url = f"http://127.0.0.1:{self.port}"
        # The copy comes before the installed tree; nothing of the tests' own environment reaches it.
        self.environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": f"{self.tree}:{self.tree / 'platform'}",
            "PORT": str(self.port),
            **variables,
        }
        self.output = folder / "up.log"
        self.supervisor: subprocess.Popen[bytes] | None = None

    def command(self, name: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """A command run to its end, its two outputs together."""
        return subprocess.run(
            [sys.executable, "-m", "config.embedded", name],
            cwd=self.tree,
            env=self.environment | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )

    def up(self) -> float:
        """Start and wait for the ready line; the seconds it took."""
        begun = time.monotonic()
        with self.output.open("wb") as output:
            self.supervisor = subprocess.Popen(
                [sys.executable, "-m", "config.embedded", "up"],
                cwd=self.tree,
                env=self.environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        supervisor = self.supervisor

        def ready() -> bool:
            assert supervisor.poll() is None, self.said()
            return f"Smriti is ready: {self.url}/" in self.said().splitlines()

        wait_for(ready, patience=180)
        return time.monotonic() - begun

    def said(self) -> str:
        return self.output.read_text()

    def main_process(self, part: str) -> psutil.Process:
        """The supervised process whose command line contains `part`."""
        assert self.supervisor is not None
        for process in psutil.Process(self.supervisor.pid).children():
            if part in " ".join(process.cmdline()):
                return process
        raise LookupError(part)

    def status_of(self, path: str) -> int:
        try:
            return httpx.get(f"{self.url}{path}", timeout=10).status_code
        except httpx.TransportError:
            return 0

    def processes(self) -> list[psutil.Process]:
        """Everything that belongs to the installation: by environment, or by working folder."""
        folders = {str(path.resolve()) for path in (self.data, self.data / "services") if path.exists()}
        found = Home(self.data).processes()
        for process in psutil.process_iter():
            try:
                if any(process.cwd().startswith(folder) for folder in folders):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def remove(self) -> None:
        if self.data.exists():
            self.command("down")
        if self.supervisor is not None:
            self.supervisor.kill()
            self.supervisor.wait()
        place.remove(self.data / "services")


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    found = Machine(tmp_path)
    yield found
    found.remove()


def test_life_of_an_installation(machine: Machine, proof: bool) -> None:
    machine.up()
    said = machine.said()
    assert "killed with SIGKILL" in said, said
    assert str(machine.data / "demo.json") in said.splitlines()[-1]
    assert machine.status_of("/healthz") == machine.status_of("/readyz") == 200
    demo = check_demo(machine)
    check_sample_run(machine, demo["tenants"]["acme"]["keys"]["operator"])

    second = machine.command("up")
    assert second.returncode == 1
    assert machine.supervisor is not None
    assert machine.url in second.stdout
    assert str(machine.supervisor.pid) in second.stdout
    assert len(second.stdout.splitlines()) == 1
    assert machine.command("status").returncode == 0

    database = str((machine.data / "services" / "postgres").resolve())
    for part in ("config.wsgi", "celery -A config worker", database, "valkey-server"):
        check_restart(machine, part)
    check_sample_run(machine, demo["tenants"]["acme"]["keys"]["operator"])
    check_logs(machine, demo)

    # The supervisor itself is killed: all else lives on, and the next start takes over.
    machine.supervisor.kill()
    machine.supervisor.wait()
    left = machine.processes()
    assert left
    machine.up()
    assert not [process for process in left if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]

    down = machine.command("down")
    assert down.returncode == 0
    assert machine.supervisor.wait(30) == 0
    assert machine.processes() == []
    assert port_is_free(machine.port)
    assert "not running" in machine.command("down").stdout
    assert machine.command("status").returncode == 1

    # Nothing to install, to migrate or to seed. Beside other tests the machine is busy, so only the proof is exact.
    seconds = machine.up()
    assert seconds < (READY_SECONDS if proof else 3 * READY_SECONDS)
    assert json.loads((machine.data / "demo.json").read_text()) == demo
    check_sample_run(machine, demo["tenants"]["acme"]["keys"]["operator"])
    machine.supervisor.send_signal(signal.SIGINT)
    assert machine.supervisor.wait(30) == 0
    assert machine.processes() == []


def check_demo(machine: Machine) -> dict[str, dict[str, dict[str, dict[str, str]]]]:
    """demo.json and the secrets are private, and say what they must."""
    path = machine.data / "demo.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert (machine.data / "secrets").stat().st_mode & 0o777 == 0o700
    assert {secret.stat().st_mode & 0o777 for secret in (machine.data / "secrets").iterdir()} == {0o600}
    assert (machine.data / "services").stat().st_mode & 0o777 == 0o700
    demo = json.loads(path.read_text())
    assert demo["base_url"] == machine.url
    assert set(demo["tenants"]) == {"acme", "globex"}
    for tenant in demo["tenants"].values():
        roles = {role for user in tenant["users"] for role in user["roles"]}
        assert roles == {"owner", "admin", "operator", "approver", "compliance", "auditor", "viewer"}
        assert set(tenant["keys"]) == {"agent", "operator", "admin"}
        assert all(user["email"] and user["password"] for user in tenant["users"])
    return demo  # type: ignore[no-any-return]


def check_sample_run(machine: Machine, key: str) -> None:
    """The sample run is there, complete, and its chain verifies."""
    with httpx.Client(
        base_url=f"{machine.url}/api/v1", headers={"Authorization": f"Bearer {key}"}, timeout=30
    ) as client:
        runs = ask(client, "/runs")["items"]
        assert [run["status"] for run in runs] == ["completed"]
        assert ask(client, f"/runs/{runs[0]['id']}/verify")["ok"]


def ask(client: httpx.Client, path: str) -> Any:
    """What the API answers. After a crash of the database it says 503 until each process has connected anew."""
    answers: list[httpx.Response] = []

    def served() -> bool:
        answers.append(client.get(path))
        return answers[-1].status_code != 503

    wait_for(served)
    return answers[-1].raise_for_status().json()


def check_restart(machine: Machine, part: str) -> None:
    """A killed process is replaced, and the platform is ready again."""
    killed = machine.main_process(part)
    killed.kill()

    def replaced() -> bool:
        try:
            return machine.main_process(part) != killed and machine.status_of("/readyz") == 200
        except (LookupError, psutil.Error):
            return False

    wait_for(replaced, patience=PATIENCE)


def check_logs(machine: Machine, demo: dict[str, dict[str, dict[str, dict[str, str]]]]) -> None:
    """No log holds a password or a key."""
    secrets = {path.read_text() for path in (machine.data / "secrets").iterdir()}
    for tenant in demo["tenants"].values():
        secrets |= set(tenant["keys"].values())
        secrets |= {user["password"] for user in tenant["users"]}  # type: ignore[index]
    logs = {log.name: log.read_text(errors="replace") for log in (machine.data / "logs").iterdir()}
    assert {"web.log", "waits.log", "worker.log", "scheduler.log", "postgres.log", "vault.log", "valkey.log"} <= set(
        logs
    )
    assert [name for name, text in logs.items() if any(secret in text for secret in secrets)] == []


@pytest.fixture
def own_servers(tmp_path: Path) -> Iterator[tuple[PostgresServer, ValkeyServer]]:
    """Servers as a user may have them already."""
    postgres = PostgresServer(tmp_path / "postgres", settings={"fsync": "off"})
    valkey = ValkeyServer(tmp_path / "valkey")
    postgres.start()
    valkey.start()
    yield postgres, valkey
    valkey.destroy()
    postgres.destroy()


def test_own_database_and_broker(tmp_path: Path, own_servers: tuple[PostgresServer, ValkeyServer]) -> None:
    postgres, valkey = own_servers
    url = postgres.admin_url.removesuffix("/postgres") + "/mine"
    machine = Machine(tmp_path, DATABASE_URL=url, BROKER_URL=valkey.url, DEMO="0")
    try:
        machine.up()
        assert "backups contain" in machine.said()
        assert machine.status_of("/readyz") == 200
        assert not (machine.data / "services").exists()
        assert not (machine.data / "demo.json").exists()
        with psycopg.connect(postgres.admin_url) as connection:
            names = connection.execute("select datname from pg_database where datname like 'mine%'").fetchall()
            users = connection.execute(
                "select distinct usename from pg_stat_activity where datname like 'mine%'"
            ).fetchall()
        assert set(names) == {("mine",), ("mine_vault",)}
        assert users == [(APP,)]
    finally:
        machine.remove()


def test_a_role_that_may_not_provision(tmp_path: Path, own_servers: tuple[PostgresServer, ValkeyServer]) -> None:
    postgres, valkey = own_servers
    with psycopg.connect(postgres.admin_url, autocommit=True) as connection:
        connection.execute("create role clerk login password 'clerk-password'")
        connection.execute("create database clerk owner clerk")
    url = f"postgresql://clerk:clerk-password@127.0.0.1:{postgres.port}/clerk"
    machine = Machine(tmp_path, DATABASE_URL=url, BROKER_URL=valkey.url)
    assert_refused(machine.command("up"), "may not create roles and databases", "OWNER_DATABASE_URL")
    assert_refused(
        machine.command("up", DATABASE_URL=url.replace("clerk-password", "wrong")), "DATABASE_URL cannot be used"
    )


def test_an_administrator_short_of_superuser(own_servers: tuple[PostgresServer, ValkeyServer]) -> None:
    """As a hosted PostgreSQL gives it; a second start finds everything made, and follows new passwords."""
    postgres, _ = own_servers
    with psycopg.connect(postgres.admin_url, autocommit=True) as connection:
        connection.execute("create role chief login createrole createdb password 'p@ss/word'")
        connection.execute("create database ours owner chief")
    url = url_for(postgres.admin_url, "ours", "chief", "p@ss/word")
    for password in ("first", "second"):
        passwords = {role.name: password for role in ROLES if role.login}
        main, vault = databases.given({"DATABASE_URL": url}, passwords, lambda _: None)
        for cluster, name in ((main, "ours"), (vault, "ours_vault")):
            with psycopg.connect(cluster.app) as connection:
                assert connection.info.dbname == name
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute("create table mine (id int)")
            with psycopg.connect(cluster.owner) as connection:
                connection.execute("create table if not exists ours (id int)")
                connection.execute(f"set role {DEFINER}")


def test_urls_of_owner_and_app_are_taken_as_they_are() -> None:
    urls = {
        name: f"postgresql://{name.lower()}@db/smriti"
        for name in ("DATABASE_URL", "OWNER_DATABASE_URL", "VAULT_DATABASE_URL", "VAULT_OWNER_DATABASE_URL")
    }
    main, vault = databases.given(urls, {}, pytest.fail)
    assert (main.app, main.owner) == (urls["DATABASE_URL"], urls["OWNER_DATABASE_URL"])
    assert (vault.app, vault.owner) == (urls["VAULT_DATABASE_URL"], urls["VAULT_OWNER_DATABASE_URL"])
    del urls["VAULT_DATABASE_URL"]
    with pytest.raises(EmbeddedError, match="VAULT_DATABASE_URL"):
        databases.given(urls, {}, pytest.fail)


def test_port_in_use(machine: Machine) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", machine.port))
        other.listen()
        assert_refused(machine.command("up"), f"Port {machine.port} is in use")
    assert_refused(machine.command("up", PORT="eighty"), "PORT must be a number")


def test_lost_master_key(machine: Machine) -> None:
    """A new key would make what is stored unreadable for good, so it is not made."""
    (place.private_folder(machine.data / "services").folder / "postgres").mkdir()
    assert_refused(machine.command("up"), "MASTER_KEY is missing")


def assert_refused(done: subprocess.CompletedProcess[str], *texts: str) -> None:
    """One clear line on stderr; before it at most lines of progress."""
    assert done.returncode == 1, done.stdout
    last = [line for line in done.stdout.splitlines() if not line.startswith("[")]
    assert [line for line in last if all(text in line for text in texts)] != [], done.stdout
    assert "Traceback" not in done.stdout
    assert "clerk-password" not in done.stdout
