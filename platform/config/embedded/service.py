"""One of Smriti's own processes under supervision: a command in a session of its own, so all of it ends at once."""

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path


class Service:
    """`module`: arguments of `python -m`; `probe`: a URL that answers 200 once the service is ready."""

    def __init__(
        self,
        name: str,
        module: Sequence[str],
        *,
        environment: Mapping[str, str],
        folder: Path,
        log: Path,
        probe: str = "",
    ) -> None:
        self.name = name
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None
        self._probe = probe
        self._environment = environment
        self._folder = folder
        # -P: the working folder is data, nothing is imported from it.
        self._command = [sys.executable, "-P", "-m", *module]

    def start(self) -> None:
        self.kill()  # children may have outlived it, with its port
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=self._folder,
                env=self._environment,
            )

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def ready(self) -> bool:
        """Whether the probe answers 200; without a probe, whether it runs."""
        if not self._probe:
            return self.running
        try:
            with urllib.request.urlopen(self._probe, timeout=5) as answer:  # noqa: S310 - our own http URL
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def stop(self) -> None:
        if self.process is not None:
            if self.running:
                self.process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    self.process.wait(15)
            self.kill()

    def kill(self) -> None:
        """SIGKILL to whatever is left of the session."""
        if self.process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
