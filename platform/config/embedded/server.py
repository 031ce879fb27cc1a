"""What the two embedded servers share: a private folder, a password, a remembered port, a process to start and stop.

Invariant: a server never starts beside a living process of the same data folder. Both make their data folder the
working folder, so processes left behind by a killed supervisor are found by it, without a pid file that could lie.
"""

import os
import secrets
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import psutil

from config.embedded import place
from config.embedded.place import EmbeddedError, Place


class Server(ABC):
    """`folder` becomes private; `port` 0 is the remembered or a free one; `log` defaults to a file in the folder."""

    name: ClassVar[str]
    stop_signals: ClassVar[tuple[tuple[signal.Signals, float], ...]]

    def __init__(
        self, folder: Path, *, port: int = 0, settings: Mapping[str, str | int] | None = None, log: Path | None = None
    ) -> None:
        self.folder = folder.absolute()
        self.port = port
        self.settings = dict(settings or {})
        self.process: subprocess.Popen[bytes] | None = None
        self._chosen = port != 0
        self._log = log
        self._place: Place | None = None

    @property
    def place(self) -> Place:
        if self._place is None:
            self._place = place.private_folder(self.folder)
        return self._place

    @property
    def data(self) -> Path:
        return self.place.folder / "data"

    @property
    def log(self) -> Path:
        return self._log or self.place.folder / f"{self.name}.log"

    @property
    def password(self) -> str:
        """The password of the server's administrator, made at first use; readable by the calling user only."""
        path = self.place.folder / "password"
        if not path.exists():
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secrets.token_urlsafe(32))
        return path.read_text()

    def start(self, *, timeout: float = 60) -> None:
        """Start the server and wait until it answers. Leftovers of the same folder are stopped first."""
        if self.running:
            return
        self.stop()
        self.prepare()
        deadline = time.monotonic() + timeout
        while True:
            self.port = self.port or place.remembered_port(self.place.folder / "port")
            with self.log.open("ab") as log:
                self.process = subprocess.Popen(
                    self.command(),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    cwd=self.data,
                    env={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"},
                    **self.place.popen_arguments(),
                )
            while self.process.poll() is None and time.monotonic() < deadline:
                if self.answers():
                    self._chosen = True
                    return
                time.sleep(0.05)
            # It ended. Before others know the port, another one is as good when it was taken in between.
            if time.monotonic() >= deadline:
                self.kill()
                raise EmbeddedError(f"{self.name} did not start within {timeout:.0f} s. See {self.log}.")
            if self._chosen or place.port_is_free(self.port):
                raise EmbeddedError(f"{self.name} did not start. See {self.log}.")
            self.port = 0

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def stop(self) -> bool:
        """Stop the server in order, and with force when it does not follow. False when it was not running."""
        was_running = bool(self._processes())
        for number, patience in self.stop_signals:
            found = self._leader()
            if found is None:
                break
            with suppress(psutil.NoSuchProcess):
                found.send_signal(number)
            self._wait(patience)
        self.kill()
        return was_running

    def kill(self) -> None:
        """SIGKILL to every process of the server."""
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._wait(10)

    def destroy(self) -> None:
        """Stop the server and remove its folder with everything in it."""
        self.kill()
        place.remove(self.folder)
        self._place = None

    def _wait(self, patience: float) -> None:
        # A zombie does not work in the folder: orphans stay zombies where process 1 reaps late or never.
        deadline = time.monotonic() + patience
        while self._processes() and time.monotonic() < deadline:
            time.sleep(0.02)
        if self.process is not None:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(max(0, deadline - time.monotonic()))

    def _leader(self) -> psutil.Process | None:
        """The server's main process: the one whose parent is not of the server."""
        found = self._processes()
        pids = {process.pid for process in found}
        return next((process for process in found if process.ppid() not in pids), None)

    def _processes(self) -> list[psutil.Process]:
        """Every living process that works in the data folder with the server's program."""
        if not self.folder.exists():
            return []
        data, found = str(self.data), []
        for process in psutil.process_iter():
            try:
                if process.cwd() == data and process.name().startswith(self.name):
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    @abstractmethod
    def prepare(self) -> None:
        """Make the data folder and the configuration."""

    @abstractmethod
    def command(self) -> list[str]: ...

    @abstractmethod
    def answers(self) -> bool: ...
