"""DATA_DIR: everything an embedded installation keeps, and the lock that says whether it is running.

Invariant: the lock is held by the supervisor for as long as it lives, so whoever gets it may clean up what a killed one
left. Its processes carry DATA_DIR in their environment, by which they are found without a pid file that could lie.
"""

import fcntl
import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TextIO

import psutil

from config.embedded import place

MARK: Final = "SMRITI_SUPERVISED_IN"
LOG_BYTES: Final = 10 * 1024 * 1024
OLD_LOGS: Final = 3


@dataclass(frozen=True, slots=True)
class Running:
    """What the supervisor wrote into its lock."""

    pid: int
    url: str


class Home:
    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.services = self.folder / "services"
        self.secrets = self.folder / "secrets"
        self.logs = self.folder / "logs"
        self.demo = self.folder / "demo.json"
        self.sample_done = self.folder / "sample.done"
        self._lock: TextIO | None = None

    def make(self) -> None:
        """Make the folders. DATA_DIR itself may be passed through by root's service account, but not listed."""
        if not self.folder.is_dir():
            self.folder.mkdir(parents=True)
            self.folder.chmod(0o711 if os.geteuid() == 0 else 0o700)
        self.logs.mkdir(mode=0o700, exist_ok=True)

    def rotate_logs(self) -> None:
        for log in self.logs.glob("*.log"):
            _rotate(log)

    def lock(self) -> bool:
        """Take the lock; False when a supervisor holds it."""
        path = self.folder / "lock"
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return False
        file.truncate(0)
        self._lock = file
        return True

    def announce(self, url: str) -> None:
        """Say in the lock who holds it."""
        if self._lock is None:
            raise RuntimeError("the lock is not held")
        self._lock.seek(0)
        json.dump({"pid": os.getpid(), "url": url}, self._lock)
        self._lock.flush()

    def running(self) -> Running | None:
        """Who holds the lock; waits for a holder that is about to say so."""
        for _ in range(40):
            with suppress(FileNotFoundError, ValueError):
                return Running(**json.loads((self.folder / "lock").read_text()))
            time.sleep(0.05)
        return None

    def processes(self) -> list[psutil.Process]:
        """Every living process that a supervisor of this folder started, and its children; not the embedded servers."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.pid != os.getpid() and process.environ().get(MARK) == str(self.folder):
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    def stop_processes(self, *, patience: float = 10) -> int:
        """Stop whatever `processes` finds; their number."""
        found = self.processes()
        _signal(found, "terminate")
        _, stubborn = psutil.wait_procs(found, timeout=patience)
        _signal(stubborn, "kill")
        psutil.wait_procs(stubborn, timeout=5)
        return len(found)

    def port(self, name: str) -> int:
        """The remembered port of a process of ours, or a new one."""
        return place.remembered_port(self.folder / f"{name}.port")


def _signal(processes: list[psutil.Process], method: str) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            getattr(process, method)()


def _rotate(log: Path) -> None:
    if log.stat().st_size < LOG_BYTES:
        return
    names = [log, *(log.with_name(f"{log.name}.{number}") for number in range(1, OLD_LOGS + 1))]
    for older, newer in zip(reversed(names[1:]), reversed(names[:-1]), strict=True):
        if newer.exists():
            newer.replace(older)
