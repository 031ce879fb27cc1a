"""`python -m config.embedded up|down|status`: the whole platform on this machine. Settings come from the environment:
PORT, DATA_DIR, DATABASE_URL, BROKER_URL, DEMO=0."""

import argparse
import os
import sys

from config.embedded.place import EmbeddedError
from config.embedded.supervisor import Supervisor


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m config.embedded", description="Smriti on this machine")
    parser.add_argument("command", choices=["up", "down", "status"])
    command = parser.parse_args().command
    try:
        supervisor = Supervisor(os.environ)
        if command == "status":
            return 0 if supervisor.status() else 1
        supervisor.up() if command == "up" else supervisor.down()
    except EmbeddedError as error:
        print(f"smriti: {error}", file=sys.stderr)
        return 1
    except PermissionError as error:
        print(f"smriti: {error.filename} cannot be used: it belongs to another user.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
