"""The secrets of an installation: made once, each in a file of its own that only the calling user can read.

Invariant: a secret that exists is never replaced. With a new master key every payload of the old one would be lost.
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
    """Read the secrets in `folder`; when `fresh`, make the missing ones. Raises EmbeddedError when one is lost."""
    folder.mkdir(mode=0o700, exist_ok=True)
    secret_key = _ensure(folder / "SECRET_KEY", secrets.token_urlsafe(48), fresh)
    master_key = _ensure(folder / "MASTER_KEY", base64.b64encode(secrets.token_bytes(32)).decode(), fresh)
    passwords = {}
    for role in ROLES:
        if role.login:  # these can be set anew at any time
            passwords[role.name] = _ensure(
                folder / f"{role.name}.password", secrets.token_urlsafe(32), True
            ).read_text()
    return Secrets(secret_key, master_key, passwords)


def _ensure(path: Path, value: str, may_make: bool) -> Path:
    if path.exists():
        return path
    if not may_make:
        raise EmbeddedError(
            f"{path} is missing, and what is stored cannot be read without it. Restore it from your backup."
        )
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
