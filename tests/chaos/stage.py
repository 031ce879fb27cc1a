"""The platform under attack: every part as a real process of its own, PgBouncer and a proxy that breaks connections between
it and PostgreSQL, and clocks that can be stepped.

Invariant: nothing here is shared with other tests, so anything may be killed at any time.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, ClassVar, Final

import psutil
import psycopg

from config.embedded.place import remembered_port
from config.embedded.postgres import PostgresServer
from config.embedded.server import Server
from config.embedded.service import Service
from config.embedded.supervisor import CELERY, SCHEDULER, WAITS, WEB
from config.embedded.valkey import ValkeyServer
from tests.acceptance.live import ROOT, Platform, install, wait_for

HERE: Final = Path(__file__).parent
PGBOUNCER: Final = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")
COMPILER: Final = shutil.which("cc")  # for the clock
HOUR: Final = 3600


class PgBouncer(Server):
    """Debian's, in transaction mode: a client has a connection of the server for one transaction at a time."""

    name = "pgbouncer"
    stop_signals: ClassVar[tuple[tuple[signal.Signals, float], ...]] = ((signal.SIGTERM, 5),)

    def __init__(self, folder: Path, *, postgres: int, passwords: dict[str, str]) -> None:
        super().__init__(folder)
        self.postgres, self.passwords = postgres, passwords

    def prepare(self) -> None:
        self.data.mkdir(mode=0o700, exist_ok=True)
        self.place.give(self.data)

    def command(self) -> list[str]:
        users = "".join(f'"{name}" "{password}"\n' for name, password in self.passwords.items())
        settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": self.port,
            "unix_socket_dir": "",
            "auth_type": "scram-sha-256",
            "auth_file": self.place.write("users.txt", users),
            "pool_mode": "transaction",
            "max_client_conn": 400,
            "default_pool_size": 20,
            "server_login_retry": 0.2,
            "query_wait_timeout": 10,
            "log_connections": 0,
            "log_disconnections": 0,
        }
        lines = [f"{name} = {value}" for name, value in settings.items()]
        databases = f"[databases]\n* = host=127.0.0.1 port={self.postgres}\n[pgbouncer]\n"
        return [str(PGBOUNCER), str(self.place.write("pgbouncer.ini", databases + "\n".join(lines) + "\n"))]

    def answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True


class Clock:
    """The wall clock of a group of processes, off by as many seconds as it was stepped; elapsed time is true (clock.c)."""

    def __init__(self, file: Path, library: Path | None) -> None:
        self.file, self.library = file, library
        self.file.write_bytes(bytes(8))

    def step(self, seconds: int) -> None:
        with self.file.open("r+b", buffering=0) as file:
            file.write(seconds.to_bytes(8, sys.byteorder, signed=True))

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self.library), "CHAOS_CLOCK": str(self.file)} if self.library else {}


class Stage(Platform):
    """PostgreSQL, PgBouncer, the proxy, Valkey, web, waits, worker and scheduler; `folder` receives the data and the logs."""

    def __init__(self, folder: Path, *, pooled: bool = True) -> None:
        super().__init__(folder)
        self.pooled = pooled and PGBOUNCER is not None
        self.postgres = PostgresServer(folder / "postgres", settings={"max_connections": 60})
        self.valkey = ValkeyServer(folder / "valkey")
        self.pooler: PgBouncer | None = None
        self.services: dict[str, Service] = {}
        self.clocks: dict[str, Clock] = {}
        self.tenant, self.operator_key, self.waits_url = "", "", ""
        self._ended = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._held: set[str] = set()
        self._clockwork: Path | None = None

    def set_up(self) -> None:
        if COMPILER is not None:
            self._clockwork = self.folder / "clock.so"
            command = [COMPILER, "-shared", "-fPIC", "-O2", "-o", str(self._clockwork), str(HERE / "clock.c"), "-ldl"]
            subprocess.run(command, check=True)
        self.postgres.start()
        self.valkey.start()
        self.port, waits = (remembered_port(self.folder / f"{name}.port") for name in ("web", "waits"))
        self.waits_url = f"http://127.0.0.1:{waits}"
        passwords, self.environment, owner = install(self.postgres, self.folder, self.base_url)
        self.environment |= {"BROKER_URL": self.valkey.url, "WAITS_URL": self.waits_url}
        for alias in ("owner", "vault_owner"):
            self.python("manage.py", "migrate", "--database", alias, "--verbosity", "0", environment=owner)
        made = json.loads(self.python("-m", "tests.chaos.tenant"))
        self.tenant, self.key, self.operator_key = made["tenant"], made["agent"], made["operator"]

        behind = self.postgres.port
        if self.pooled:
            self.pooler = PgBouncer(self.folder / "pgbouncer", postgres=behind, passwords=passwords)
            self.pooler.start()
            behind = self.pooler.port
            self.environment["TRANSACTION_POOLER"] = "1"
        front = remembered_port(self.folder / "proxy.port")
        for name in ("DATABASE_URL", "VAULT_DATABASE_URL"):
            self.environment[name] = self.environment[name].replace(f":{self.postgres.port}/", f":{front}/")
        self.start_service("proxy", ["tests.chaos.proxy", "--listen", str(front), "--to", str(behind)])
        self.start_service("web", [*WEB, "--port", str(self.port)], probe=f"{self.base_url}/healthz")
        self.start_service("waits", [*WAITS, "--port", str(waits)], probe=f"{self.waits_url}/healthz")
        worker = ["worker", "--concurrency", "1", "--without-gossip", "--without-mingle", "--loglevel", "WARNING"]
        self.start_service("worker", [*CELERY, *worker])
        self.start_service("scheduler", list(SCHEDULER))
        self._watcher.start()
        wait_for(lambda: all(service.ready() for service in self.services.values()), patience=90)

    def start_service(
        self, name: str, module: list[str], *, probe: str = "", environment: dict[str, str] | None = None
    ) -> None:
        """Start a process of ours, and again whenever it ends. Its wall clock is `clocks[name]`."""
        self.clocks[name] = clock = Clock(self.folder / f"{name}.clock", self._clockwork)
        path = {"PYTHONPATH": f"{ROOT}:{ROOT / 'platform'}"}
        service = Service(
            name, module, environment=self.environment | path | clock.environment | (environment or {}), folder=self.folder,
            log=self.folder / f"{name}.log", probe=probe,
        )  # fmt: skip
        service.start()
        self.services[name] = service

    def stop_service(self, name: str) -> None:
        """SIGKILL to all of it; it stays down until `resume_service`."""
        self._held.add(name)
        self.services[name].kill()

    def resume_service(self, name: str) -> None:
        self._held.discard(name)

    def tear_down(self) -> None:
        self._ended.set()
        if self._watcher.is_alive():
            self._watcher.join()
        for service in self.services.values():
            service.kill()
        for server in (self.pooler, self.valkey, self.postgres):
            if server is not None:
                server.destroy()

    def processes(self, name: str) -> list[psutil.Process]:
        """The children of a service: those that do its work."""
        try:
            process = self.services[name].process
            assert process is not None
            return [child for child in psutil.Process(process.pid).children() if child.status() != psutil.STATUS_ZOMBIE]
        except psutil.NoSuchProcess:
            return []

    def superuser(self, database: str = "smriti") -> psycopg.Connection[Any]:
        """Whoever holds the disks: past the pooler, above every policy, with triggers off."""
        connection = psycopg.connect(self.postgres.admin_url, dbname=database, autocommit=True, connect_timeout=5)
        connection.execute("set session_replication_role = replica")
        return connection

    def _watch(self) -> None:
        while not self._ended.wait(0.1):
            for name, service in list(self.services.items()):
                if not service.running and name not in self._held:
                    service.start()
