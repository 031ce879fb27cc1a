"""Platforms of their own for tests that kill.

Invariant: nothing here is shared with other tests, so any process may be killed at any time.
"""

import base64
import json
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self

import psutil

from config.embedded.home import Home
from config.embedded.place import remembered_port, remove
from config.embedded.postgres import PostgresServer
from config.embedded.provision import provision
from config.embedded.service import Service
from kernel.roles import APP, OWNER, ROLES

ROOT: Final = Path(__file__).resolve().parents[2]
HERE: Final = Path(__file__).parent


class Platform:
    """A running platform, as the tests see it: where it listens, a key, and the environment of its processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment: dict[str, str] = {}
        self.port = 0
        self.key = ""

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        try:
            self.set_up()
        except BaseException:
            self.tear_down()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.tear_down()

    def set_up(self) -> None:
        raise NotImplementedError

    def tear_down(self) -> None:
        raise NotImplementedError

    def python(self, *arguments: str, environment: dict[str, str] | None = None) -> str:
        """Run a Python program in the platform's environment; what it printed."""
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=ROOT,
            env=self.environment | (environment or {}),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{arguments}:\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def start(self, *arguments: str, log: str, environment: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start a Python program in the platform's environment, in a session of its own."""
        with (self.folder / log).open("ab") as output:
            return subprocess.Popen(
                [sys.executable, *arguments],
                cwd=ROOT,
                env=self.environment | (environment or {}),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )


class Live(Platform):
    """PostgreSQL, a web server with two processes, and the lease sweep; `folder` receives the database and the logs."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.postgres = PostgresServer(folder / "postgres")
        self.web: Service | None = None
        self.sweeper: Service | None = None
        self.watcher = threading.Thread(target=self.watch, daemon=True)
        self._ended = threading.Event()

    def set_up(self) -> None:
        self.postgres.start()
        self.port = remembered_port(self.folder / "web.port")
        _, self.environment, owner = install(self.postgres, self.folder, self.base_url)
        for alias in ("owner", "vault_owner"):
            self.python("manage.py", "migrate", "--database", alias, "--verbosity", "0", environment=owner)
        self.key = self.python(str(HERE / "make_tenant.py"), "kills").strip()
        web = ["granian", "--interface", "wsgi", "config.wsgi:application", "--workers", "2", "--blocking-threads", "4"]
        web += ["--host", "127.0.0.1", "--port", str(self.port), "--respawn-failed-workers", "--no-ws"]
        self.web = self.service("web", web, probe=f"{self.base_url}/healthz")
        self.sweeper = self.service("sweeper", ["tests.acceptance.sweeper"])
        self.watcher.start()
        wait_for(self.web.ready, patience=60)

    def service(self, name: str, module: list[str], probe: str = "") -> Service:
        """A started process of ours."""
        environment = self.environment | {"PYTHONPATH": f"{ROOT}:{ROOT / 'platform'}"}
        log = self.folder / f"{name}.log"
        service = Service(name, module, environment=environment, folder=self.folder, log=log, probe=probe)
        service.start()
        return service

    def tear_down(self) -> None:
        self._ended.set()
        if self.watcher.is_alive():
            self.watcher.join()
        for service in (self.web, self.sweeper):
            if service is not None:
                service.kill()
        self.postgres.destroy()

    def watch(self) -> None:
        """Start the web server again when it ended: it gives up when its processes are killed too often."""
        while not self._ended.wait(0.1):
            for service in (self.web, self.sweeper):
                assert service is not None
                if not service.running:
                    service.start()

    def web_processes(self) -> list[psutil.Process]:
        """The processes that answer requests; none while the server starts."""
        try:
            assert self.web is not None
            assert self.web.process is not None
            children = psutil.Process(self.web.process.pid).children()
            return [child for child in children if child.status() != psutil.STATUS_ZOMBIE]
        except psutil.NoSuchProcess:
            return []


class Installation(Platform):
    """What `make up` starts: every part, under a supervisor."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.data = folder / "data"
        self.supervisor: subprocess.Popen[bytes] | None = None

    def set_up(self) -> None:
        self.data.mkdir(parents=True)
        self.data.chmod(0o711)
        (self.data / "sample.done").touch()  # the sample agent has tests of its own
        self.port = remembered_port(self.folder / "web.port")
        self.environment = {"PATH": os.environ["PATH"], "DATA_DIR": str(self.data), "PORT": str(self.port)}
        self.up()
        self.key = json.loads((self.data / "demo.json").read_text())["tenants"]["acme"]["keys"]["agent"]

    def tear_down(self) -> None:
        if self.supervisor is not None:
            self.down()
        remove(self.data / "services")

    def up(self) -> None:
        """Start it, and wait until it says that it is ready."""
        said = self.folder / "up.log"
        before = said.stat().st_size if said.exists() else 0
        self.supervisor = self.start("-m", "config.embedded", "up", log="up.log")

        def ready() -> bool:
            text = said.read_text()[before:]
            assert self.supervisor is not None
            assert self.supervisor.poll() is None, text
            return "Smriti is ready" in text

        wait_for(ready, patience=120)

    def down(self) -> None:
        assert self.supervisor is not None
        self.python("-m", "config.embedded", "down")
        self.supervisor.wait(30)

    def kill_everything(self) -> None:
        """SIGKILL to the supervisor and to every process it started, as when the machine fails."""
        assert self.supervisor is not None
        self.supervisor.kill()
        self.supervisor.wait()
        processes = Home(self.data).processes()
        for process in processes:
            process.kill()
        psutil.wait_procs(processes, timeout=10)
        for name in ("postgres", "vault"):
            PostgresServer(self.data / "services" / name).kill()


def install(
    postgres: PostgresServer, folder: Path, base_url: str
) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Databases in a server: the roles' passwords, the environment of the platform's processes, and what its owner adds."""
    passwords = {role.name: secrets.token_urlsafe(24) for role in ROLES if role.login}
    main = provision(postgres.admin_url, database="smriti", passwords=passwords)
    vault = provision(postgres.admin_url, database="smriti_vault", passwords=passwords)
    environment = {
        "PATH": os.environ["PATH"],
        "DJANGO_SETTINGS_MODULE": "config.settings",
        "SECRET_KEY": secrets.token_urlsafe(40),
        "MASTER_KEY": base64.b64encode(secrets.token_bytes(32)).decode(),
        "DATABASE_URL": main[APP],
        "VAULT_DATABASE_URL": vault[APP],
        "BROKER_URL": "redis://127.0.0.1:1/0",  # nothing answers there: the broker is never the truth
        "BASE_URL": base_url,
        "DATA_DIR": str(folder),
    }
    return passwords, environment, {"OWNER_DATABASE_URL": main[OWNER], "VAULT_OWNER_DATABASE_URL": vault[OWNER]}


def wait_for(condition: Callable[[], bool], patience: float = 30) -> None:
    """Wait until it holds; fail when it does not for `patience` seconds."""
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, "nothing happens"
        time.sleep(0.05)
