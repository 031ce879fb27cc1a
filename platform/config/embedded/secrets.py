"""The secrets of an installation: made once, each in a file of its own that only the calling user can read.

Invariant: a secret is never replaced. With another master key, every payload of the old one would be lost.
"""

import base64
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from config.embedded.place import EmbeddedError
from kernel.roles import ROLES


@dataclass(frozen=True, slots=True)
class Secrets:
    """Files for the two secrets that processes read, and the passwords of the database roles by role name."""

    secret_key_file: Path
    master_key_file: Path
    role_passwords: dict[str, str]


def ensure(folder: Path, *, fresh: bool) -> Secrets:
    """Read the secrets in `folder` and make those that are missing.

    Raises EmbeddedError when the master key is missing although the installation is not `fresh`.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    master_key = folder / "MASTER_KEY"
    if not fresh and not master_key.exists():
        raise EmbeddedError(
            f"{master_key} is missing. Restore it from your backup: nothing stored can be read without it."
        )
    _ensure(master_key, base64.b64encode(secrets.token_bytes(32)).decode())
    # The others can be made anew at any time: sessions end, and the database roles follow.
    secret_key = _ensure(folder / "SECRET_KEY", secrets.token_urlsafe(48))
    passwords = {role.name: folder / f"{role.name}.password" for role in ROLES if role.login}
    return Secrets(
        secret_key_file=secret_key,
        master_key_file=master_key,
        role_passwords={name: _ensure(path, secrets.token_urlsafe(32)).read_text() for name, path in passwords.items()},
    )


def _ensure(path: Path, value: str) -> Path:
    if not path.exists():
        write_private(path, value)
    return path


def write_private(path: Path, content: str) -> None:
    """Write a file that only the calling user can read; it appears complete or not at all."""
    scratch = path.with_name(f".{path.name}.new")
    scratch.unlink(missing_ok=True)
    with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)
