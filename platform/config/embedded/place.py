"""Where the embedded services live and as whom they run.

PostgreSQL refuses to run as root, and root's folders are often closed to everybody else. So as root the services run as
a system account; when it cannot enter the wanted folder or execute the wheel's files, both get a place of their own
under `/var/lib/smriti`. Invariant: the permissions of folders above the wanted one are never changed.
"""

import functools
import hashlib
import os
import pwd
import random
import secrets
import shutil
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ACCOUNT: Final = "smriti"
ELSEWHERE: Final = Path("/var/lib/smriti")
# Below the range from which systems take the local ports of outgoing connections, so that a remembered port stays free.
PORTS: Final = range(20_000, 32_000)


class EmbeddedError(RuntimeError):
    """The embedded topology cannot go on. The message is one line that says what to do."""


@dataclass(frozen=True, slots=True)
class Account:
    """The user a service runs as; without one it is the calling user."""

    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class Place:
    """A private folder (mode 0700) and the account it belongs to."""

    folder: Path
    account: Account | None

    def popen_arguments(self) -> dict[str, Any]:
        """Arguments that make subprocess run a command as the account."""
        if self.account is None:
            return {}
        return {"user": self.account.uid, "group": self.account.gid, "extra_groups": []}

    def give(self, path: Path) -> None:
        """Make the account the owner of a file made by the calling user."""
        if self.account is not None:
            os.chown(path, self.account.uid, self.account.gid)

    def write(self, name: str, content: str) -> Path:
        """Write a file that only the account can read."""
        path = self.folder / name
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(content)
        self.give(path)
        return path


@functools.cache
def service_account() -> Account | None:
    """None for an ordinary user; for root the system user `smriti`, made when missing, else `nobody`."""
    if os.geteuid() != 0:
        return None
    useradd = shutil.which("useradd", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
    try:
        entry = pwd.getpwnam(ACCOUNT)
    except KeyError:
        command = [
            useradd or "",
            "--system",
            "--no-create-home",
            "--home-dir",
            "/nonexistent",
            "--shell",
            "/usr/sbin/nologin",
            ACCOUNT,
        ]
        made = useradd is not None and subprocess.run(command, capture_output=True, check=False).returncode in (0, 9)
        entry = pwd.getpwnam(ACCOUNT if made else "nobody")
    return Account(entry.pw_uid, entry.pw_gid)


def private_folder(wanted: Path) -> Place:
    """Make `wanted` the private folder of a service.

    For root it may become a link to a folder that the account can enter, and an existing folder of another user keeps
    its owner, who then also runs the service.
    """
    account = service_account()
    if account is None:
        wanted.mkdir(mode=0o700, parents=True, exist_ok=True)
        if wanted.stat().st_uid != os.geteuid():
            raise EmbeddedError(
                f"{wanted} belongs to another user. Start as that user, or set DATA_DIR to another folder."
            )
        wanted.chmod(0o700)
        return Place(wanted.resolve(), None)
    if wanted.is_symlink() and not wanted.exists():
        raise EmbeddedError(
            f"{wanted} points to {wanted.readlink()}, which is gone. Restore it, or remove the link to start empty."
        )
    wanted.parent.mkdir(parents=True, exist_ok=True)
    wanted = wanted.parent.resolve() / wanted.name  # a link may lead past a closed folder
    if not wanted.exists():
        if _can_enter(account, wanted.parent):
            wanted.mkdir(mode=0o700)
        else:
            _link_elsewhere(wanted)
    folder = wanted.resolve()
    owner = folder.stat()
    if owner.st_uid == 0:
        os.chown(folder, account.uid, account.gid)
    else:
        account = Account(owner.st_uid, owner.st_gid)
    folder.chmod(0o700)
    if not _can_enter(account, folder):
        raise EmbeddedError(
            f"The account that runs the services cannot enter {folder}. Set DATA_DIR to a folder it can reach."
        )
    return Place(folder, account)


def remove(wanted: Path) -> None:
    """Remove a private folder, wherever it is."""
    if wanted.exists():
        shutil.rmtree(wanted.resolve())
    if wanted.is_symlink():
        wanted.unlink()


def _link_elsewhere(wanted: Path) -> None:
    # The name is new each time: a folder left from a deleted DATA_DIR of the same path is never taken for this one's.
    _shared_root()
    name = hashlib.sha256(os.fsencode(wanted.absolute())).hexdigest()[:12]
    folder = ELSEWHERE / f"{name}-{secrets.token_hex(4)}"
    folder.mkdir(mode=0o700)
    wanted.symlink_to(folder)


def _shared_root() -> None:
    if not ELSEWHERE.is_dir():
        ELSEWHERE.mkdir(parents=True)
        ELSEWHERE.chmod(0o711)


def _can_enter(account: Account, folder: Path) -> bool:
    # Asked of the system rather than computed from modes: access lists and mounts have a say too.
    place = Place(folder, account)
    command = ["/bin/sh", "-c", 'cd -- "$1"', "sh", str(folder)]
    return subprocess.run(command, cwd="/", capture_output=True, check=False, **place.popen_arguments()).returncode == 0


def executable(place: Place, program: Path, *, root: Path, folders: tuple[str, ...], version: str) -> Path:
    """The path under which the place's account can execute `program` of a wheel installed in `root`.

    That is the program itself, or its twin in a copy of the wheel's `folders` where the original is out of reach.
    """
    if place.account is None or _runs(place, program):
        return program
    _shared_root()
    copy = ELSEWHERE / f"{folders[0]}-{version}"
    if not copy.exists():
        scratch = ELSEWHERE / f".{copy.name}-{secrets.token_hex(4)}"
        for folder in folders:
            shutil.copytree(root / folder, scratch / folder, symlinks=True)
        for path in (scratch, *scratch.rglob("*")):
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        try:
            scratch.rename(copy)
        except OSError:  # another process was faster
            shutil.rmtree(scratch)
    return copy / program.relative_to(root)


def _runs(place: Place, program: Path) -> bool:
    try:
        return (
            subprocess.run(
                [program, "--version"], cwd="/", capture_output=True, check=False, **place.popen_arguments()
            ).returncode
            == 0
        )
    except PermissionError:
        return False


def port_is_free(port: int, host: str = "127.0.0.1") -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def remembered_port(file: Path) -> int:
    """The port noted in `file` while it is free, else a new one, noted there."""
    if file.exists() and port_is_free(port := int(file.read_text())):
        return port
    port = next(port for port in random.SystemRandom().sample(PORTS, len(PORTS)) if port_is_free(port))
    file.write_text(f"{port}\n")
    return port
