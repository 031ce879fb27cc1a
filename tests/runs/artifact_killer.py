"""Does one thing to artifacts and is killed at a named point of it: `artifact_killer.py <point> <address>`."""

import os
import signal
import sys
from typing import Any, NoReturn
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import django

CONTENT = b"0123456789abcdef" * 200_000


def die(*_: Any, **__: Any) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


class Deadly:
    """In the place of a call of the database."""

    one = rows = staticmethod(die)


def main() -> None:
    point, url = sys.argv[1:]
    django.setup()
    from kernel import clock
    from runs import operations
    from runs.operations import care, transfers
    from runs.storage import folder

    parts = urlsplit(url)
    tenant, artifact = UUID(hex=parse_qs(parts.query)["tenant"][0]), UUID(parts.path.split("/")[4])
    match point:
        case "while writing":
            transfers.Upload.finish = die  # type: ignore[method-assign]
        case "object written, no row":
            transfers.STORED = Deadly  # type: ignore[assignment,misc]
        case "row written, not ready":
            transfers.READY = Deadly  # type: ignore[assignment,misc]
        case "object to remove":
            folder.Folder.remove = die  # type: ignore[method-assign]
        case "object removed, row not written":
            remove = folder.Folder.remove

            def removed(*arguments: Any) -> None:
                remove(*arguments)
                die()

            folder.Folder.remove = removed  # type: ignore[assignment,method-assign]
        case "between two rows":
            tend = care._tend

            def once(*arguments: Any) -> bool:
                tend(*arguments)
                care._tend = die
                return True

            care._tend = once  # type: ignore[assignment]
    if "object to" in point or "removed" in point or "two rows" in point:
        operations.sweep_artifacts(now=clock.now())
        operations.sweep_artifacts(now=clock.now())
    else:
        upload = transfers.Upload(tenant=tenant, artifact_id=artifact, announced=None)
        upload.write(CONTENT)
        upload.finish()
    print("nothing happened")


if __name__ == "__main__":
    main()
