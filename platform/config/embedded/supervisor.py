"""Brings the platform up from nothing, keeps every part running, and takes all of it down in order.

Invariant: what the supervisor started ends with it; when it is itself killed, the next one first stops what was left.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Final

import psutil
from django.conf import ENVIRONMENT_VARIABLE

from config.embedded import databases, place, secrets
from config.embedded.databases import MAIN, VAULT, Cluster
from config.embedded.home import MARK, Home
from config.embedded.place import EmbeddedError
from config.embedded.postgres import PostgresServer
from config.embedded.secrets import Secrets
from config.embedded.server import Server
from config.embedded.service import Service
from config.embedded.valkey import ValkeyServer

MIGRATE: Final = ("django", "migrate", "--no-input", "--skip-checks", "--database")
GRANIAN: Final = (
    "granian",
    "--host",
    "127.0.0.1",
    "--respawn-failed-workers",
    "--workers-kill-timeout",
    "10",
    "--interface",
)
WEB: Final = (*GRANIAN, "wsgi", "config.wsgi:application", "--workers", "2", "--blocking-threads", "4")
# Each open connection of this process counts as a request under way, of which granian allows as many as its backlog is long.
WAITS: Final = (
    *GRANIAN,
    "asginl",
    "config.asgi:application",
    "--workers",
    "1",
    "--backlog",
    "4096",
    "--backpressure",
    "20000",
)
CELERY: Final = ("celery", "-A", "config")
WORKER: Final = (
    *CELERY,
    "worker",
    "--concurrency",
    "2",
    "--without-gossip",
    "--without-mingle",
    "--loglevel",
    "WARNING",
)
SCHEDULER: Final = ("config.scheduler",)
# Given by the user or by us; no process inherits more of them than it needs.
PRIVATE: Final = ("DATABASE_URL", "OWNER_DATABASE_URL", "VAULT_DATABASE_URL", "VAULT_OWNER_DATABASE_URL", "BROKER_URL")
READY_SECONDS: Final = 90
SAMPLE_SECONDS: Final = 180
STOP_SECONDS: Final = 60
STEADY_SECONDS: Final = 60  # after so long a service counts as healthy again
MAX_DELAY: Final = 30.0
FAILED_STARTS: Final = 4


class Stop(BaseException):
    """Somebody asked the supervisor to stop."""


@dataclass(slots=True)
class Unit:
    """A part under supervision, with its back-off."""

    name: str
    part: Server | Service
    restarts: int = 0
    started: float = 0
    not_before: float = 0


class Supervisor:
    def __init__(self, environment: Mapping[str, str]) -> None:
        self.given = environment
        self.home = Home(Path(environment.get("DATA_DIR") or ".smriti"))
        self.port = _port(environment.get("PORT") or "8000")
        self.url = f"http://127.0.0.1:{self.port}"
        self.demo = _switch("DEMO", environment.get("DEMO") or "1")
        self.waits_port = 0
        self._begun = time.monotonic()
        self._units: list[Unit] = []
        self._stopping = False

    # ---- the three commands

    def up(self) -> None:
        """Start everything, say so, and supervise until a signal. Raises EmbeddedError."""
        os.umask(0o077)
        self.home.make()
        self._take_lock()
        self.home.rotate_logs()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        try:
            self._start()
            self._supervise()
        except Stop:
            self._say("Stopping ...")
        finally:
            self._stopping = True
            self._stop()
        self._say("Smriti is stopped.")

    def down(self) -> None:
        """Stop the running supervisor, or what a killed one left behind."""
        if not self.home.folder.is_dir():
            print(f"Smriti is not running: there is no {self.home.folder}.")
            return
        running = not self.home.lock()
        if running:
            self._stop_other()
        print("Smriti is stopped." if self._stop_leftovers() or running else "Smriti is not running.")

    def status(self) -> bool:
        """Print whether Smriti runs, and its processes."""
        if not self.home.folder.is_dir() or self.home.lock() or (running := self.home.running()) is None:
            print("Smriti is not running.")
            return False
        print(f"Smriti is running: {running.url}/ (supervisor process {running.pid})")
        for process in psutil.Process(running.pid).children():
            with suppress(psutil.NoSuchProcess):
                seconds = time.time() - process.create_time()
                print(f"  {process.pid:>7}  {seconds:>7.0f} s  {' '.join(process.cmdline())[:100]}")
        return True

    # ---- up

    def _take_lock(self) -> None:
        if not self.home.lock():
            running = self.home.running()
            where = f"{running.url}/ (process {running.pid})" if running else "another process is starting it"
            raise EmbeddedError(f"Smriti is already running in {self.home.folder}: {where}. `make down` stops it.")
        self.home.announce(self.url)

    def _start(self) -> None:
        self._say(f"Smriti starts in {self.home.folder}")
        if self._stop_leftovers():
            self._say("Stopped what a killed supervisor had left running")
        if not place.port_is_free(self.port):
            raise EmbeddedError(f"Port {self.port} is in use. Choose another: make up PORT={self.port + 1}")
        self.waits_port = self.home.port("waits")
        kept = secrets.ensure(self.home.secrets, fresh=not (self.home.services / "postgres").exists())
        main, vault, broker = self._stores(kept)
        self._say("The databases and the broker are ready")

        environment = self._environment(kept, main, vault, broker)
        self._migrate(environment, main, vault)
        self._say("The schema is up to date")

        for service in self._services(environment):
            service.start()
            self._units.append(Unit(service.name, service, started=time.monotonic()))
        if self.demo and not self._is_seeded(environment):
            self._run("seed", ["config.demo.seed"], environment)
            self._say("The demo tenants are there")
        self._wait_until_ready()
        self._say("Web server, waits, worker and scheduler are running")
        if self.demo and not self.home.sample_done.exists():
            self._run_sample(environment)
        self._say(f"Smriti is ready: {self.url}/", bare=True)
        if self.demo:
            self._say(f"Demo users, passwords and API keys: {self.home.demo}", bare=True)

    def _servers(self) -> dict[str, Server]:
        """The embedded servers, by name, in the order in which they start."""
        folder, log = self.home.services, self._log
        small: dict[str, str | int] = {"shared_buffers": "64MB", "max_connections": 50}
        return {
            "postgres": PostgresServer(folder / "postgres", log=log("postgres")),
            "vault": PostgresServer(folder / "vault", settings=small, log=log("vault")),
            "valkey": ValkeyServer(folder / "valkey", log=log("valkey")),
        }

    def _stores(self, kept: Secrets) -> tuple[Cluster, Cluster, str]:
        """The database, the vault and the broker's URL: of the given ones, or of servers that are started here."""
        servers = self._servers()
        if self.given.get("DATABASE_URL"):
            del servers["postgres"], servers["vault"]
        if self.given.get("BROKER_URL"):
            del servers["valkey"]
        if servers:
            place.private_folder(self.home.services)
            self._units += [Unit(name, server, started=time.monotonic()) for name, server in servers.items()]
            with ThreadPoolExecutor() as pool:
                list(pool.map(lambda server: server.start(), servers.values()))
        match servers:
            case {"postgres": PostgresServer() as main_server, "vault": PostgresServer() as vault_server}:
                main = databases.made(main_server.admin_url, MAIN, kept.role_passwords)
                vault = databases.made(vault_server.admin_url, VAULT, kept.role_passwords)
            case _:
                main, vault = databases.given(self.given, kept.role_passwords, self._say)
        valkey = servers.get("valkey")
        return main, vault, valkey.url if isinstance(valkey, ValkeyServer) else self.given["BROKER_URL"]

    def _environment(self, kept: Secrets, main: Cluster, vault: Cluster, broker: str) -> dict[str, str]:
        """What every process of the application is given: nothing that lets it become more than the app role."""
        environment = {name: value for name, value in self.given.items() if name not in PRIVATE}
        environment.setdefault("BASE_URL", self.url)
        environment.setdefault("WAITS_URL", f"http://127.0.0.1:{self.waits_port}")
        return environment | {
            ENVIRONMENT_VARIABLE: "config.settings",
            "DATA_DIR": str(self.home.folder),
            "SECRET_KEY_FILE": str(kept.secret_key_file),
            "MASTER_KEY_FILE": str(kept.master_key_file),
            "DATABASE_URL": main.app,
            "VAULT_DATABASE_URL": vault.app,
            "BROKER_URL": broker,
            "PYTHONUNBUFFERED": "1",
            MARK: str(self.home.folder),
        }

    def _migrate(self, environment: Mapping[str, str], main: Cluster, vault: Cluster) -> None:
        owners = {**environment, "OWNER_DATABASE_URL": main.owner, "VAULT_OWNER_DATABASE_URL": vault.owner}
        with ThreadPoolExecutor() as pool:
            list(
                pool.map(
                    lambda alias: self._run(f"migrate-{alias}", (*MIGRATE, alias), owners), ("owner", "vault_owner")
                )
            )

    def _services(self, environment: Mapping[str, str]) -> list[Service]:
        waits = f"http://127.0.0.1:{self.waits_port}"
        commands = {
            "web": ((*WEB, "--port", str(self.port)), f"{self.url}/readyz"),
            "waits": ((*WAITS, "--port", str(self.waits_port)), f"{waits}/healthz"),
            "worker": (WORKER, ""),
            "scheduler": (SCHEDULER, ""),
        }
        return [
            Service(name, module, environment=environment, folder=self.home.folder, log=self._log(name), probe=probe)
            for name, (module, probe) in commands.items()
        ]

    def _is_seeded(self, environment: Mapping[str, str]) -> bool:
        """Whether demo.json is true still, so that a later start need not ask; of a database of the user's we cannot know."""
        if self.given.get("DATABASE_URL") or not self.home.demo.exists():
            return False
        demo = json.loads(self.home.demo.read_text())
        return (demo["base_url"], demo["waits_url"]) == (environment["BASE_URL"], environment["WAITS_URL"])

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        waiting = [unit.part for unit in self._units if isinstance(unit.part, Service)]
        while waiting := [service for service in waiting if not service.ready()]:
            self._restart_ended()
            failing = next((unit for unit in self._units if unit.restarts >= FAILED_STARTS), None)
            if failing is not None:
                raise EmbeddedError(f"{failing.name} keeps ending: {_last_line(failing.part.log)}")
            if time.monotonic() > deadline:
                names = " and ".join(service.name for service in waiting)
                raise EmbeddedError(f"{names} did not become ready within {READY_SECONDS} s. See {self.home.logs}.")
            time.sleep(0.1)

    def _run_sample(self, environment: Mapping[str, str]) -> None:
        """Run the sample agent once; what it says is shown. A failure is said, but does not take the platform down."""
        self._say("The sample agent reconciles 842 invoices; one of its workers is killed on the way")
        key = json.loads(self.home.demo.read_text())["tenants"]["acme"]["keys"]["agent"]
        command = [sys.executable, "-P", "-m", "config.demo.agent", "--base-url", self.url, "--kill-demo"]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
            cwd=self.home.folder,
            env={**environment, "SMRITI_API_KEY": key},
        )
        shown = threading.Thread(target=self._show, args=(process.stdout,), daemon=True)
        shown.start()
        deadline = time.monotonic() + SAMPLE_SECONDS
        while process.poll() is None:
            self._restart_ended()
            if time.monotonic() > deadline:
                os.killpg(process.pid, signal.SIGKILL)
            time.sleep(0.1)
        shown.join(5)
        if process.returncode == 0:
            self.home.sample_done.touch()
        else:
            self._say("The sample agent failed; it runs again with the next start")

    # ---- supervision

    def _supervise(self) -> None:
        while True:
            self._restart_ended()
            time.sleep(0.25)

    def _restart_ended(self) -> None:
        """Start again, in the order of the first start, whatever has ended; the more often it ends, the later."""
        for unit in self._units:
            moment = time.monotonic()
            if unit.part.running or moment < unit.not_before:
                continue
            if moment - unit.started > STEADY_SECONDS:
                unit.restarts = 0
            code = unit.part.process.returncode if unit.part.process else None
            self._say(f"{unit.name} ended ({_ending(code)}) and is started again")
            unit.not_before = moment + min(MAX_DELAY, 0.5 * 2**unit.restarts)
            unit.restarts += 1
            try:
                unit.part.start()
            except EmbeddedError as error:
                self._say(str(error))
            unit.started = time.monotonic()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self._stopping:
            self._stopping = True
            raise Stop

    # ---- the end

    def _stop(self) -> None:
        for unit in reversed(self._units):
            with suppress(EmbeddedError):
                unit.part.stop()
        self.home.stop_processes()

    def _stop_leftovers(self) -> bool:
        """Stop what a killed supervisor left; the lock is held, so nothing of it is watched over by anybody."""
        found = self.home.stop_processes() > 0
        if self.home.services.exists():
            for server in reversed(self._servers().values()):
                found = server.stop() or found
        return found

    def _stop_other(self) -> None:
        """Ask the supervisor that holds the lock to stop, and wait until it has."""
        running = self.home.running()
        process = _supervisor(running.pid) if running else None
        if process is None:
            raise EmbeddedError(
                f"{self.home.folder} is locked, but not by a supervisor that can be found on this machine."
            )
        print("Stopping ...", flush=True)
        process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        while not self.home.lock():
            if time.monotonic() > deadline:
                process.kill()
            time.sleep(0.1)

    # ---- small things

    def _run(self, name: str, module: Sequence[str], environment: Mapping[str, str]) -> None:
        """Run a command to its end. Raises EmbeddedError with the last thing it said."""
        with self._log(name).open("wb") as log:
            command = [sys.executable, "-P", "-m", *module]
            code = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=self.home.folder,
                env=environment,
                check=False,
            ).returncode
        if code != 0:
            raise EmbeddedError(f"{name} failed: {_last_line(self._log(name))} See {self._log(name)}.")

    def _log(self, name: str) -> Path:
        return self.home.logs / f"{name}.log"

    def _show(self, output: IO[str]) -> None:
        for line in output:
            self._say(f"    {line.rstrip()}", bare=True)

    def _say(self, text: str, *, bare: bool = False) -> None:
        # Whoever read our output may be gone; that is no reason to take the platform down.
        with suppress(OSError):
            print(text if bare else f"[{time.monotonic() - self._begun:6.1f} s] {text}", flush=True)


def _switch(name: str, value: str) -> bool:
    if value not in ("0", "1"):
        raise EmbeddedError(f"{name} must be 0 or 1, not {value!r}.")
    return value == "1"


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65_535:
        raise EmbeddedError(f"PORT must be a number from 1 to 65535, not {text!r}.")
    return int(text)


def _supervisor(pid: int) -> psutil.Process | None:
    try:
        process = psutil.Process(pid)
        return process if "config.embedded" in process.cmdline() else None
    except psutil.Error:
        return None


def _ending(code: int | None) -> str:
    if code is None:
        return "it did not start"
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return lines[-1].strip() if lines else "it said nothing."
