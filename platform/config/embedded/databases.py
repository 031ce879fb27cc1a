"""The four database URLs of an installation, from embedded servers or from URLs that the user gave.

Invariant: only the migrating process is given an owner's URL, and no message shows a password.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

import psycopg

from config.embedded.place import EmbeddedError
from config.embedded.provision import can_provision, provision
from kernel.roles import APP, OWNER

MAIN, VAULT = "smriti", "smriti_vault"


@dataclass(frozen=True, slots=True)
class Cluster:
    """One database, as the application sees it and as its owner does."""

    app: str
    owner: str


def embedded(admin_url: str, name: str, passwords: Mapping[str, str]) -> Cluster:
    """The database `name` in a server of ours."""
    urls = provision(admin_url, database=name, passwords=passwords)
    return Cluster(app=urls[APP], owner=urls[OWNER])


def given(
    environment: Mapping[str, str], passwords: Mapping[str, str], warn: Callable[[str], None]
) -> tuple[Cluster, Cluster]:
    """The main database and the vault from DATABASE_URL and its companions. Raises EmbeddedError."""
    url, owner = environment["DATABASE_URL"], environment.get("OWNER_DATABASE_URL")
    vault, vault_owner = environment.get("VAULT_DATABASE_URL"), environment.get("VAULT_OWNER_DATABASE_URL")
    if not vault and owner:
        raise EmbeddedError("With OWNER_DATABASE_URL, set VAULT_DATABASE_URL and VAULT_OWNER_DATABASE_URL too.")
    main = _cluster("DATABASE_URL", url, owner, MAIN, passwords)
    if not vault:
        name = _database(url) or MAIN
        vault = urlunsplit(urlsplit(url)._replace(path=f"/{name}_vault"))
        warn(
            "The keys stand in the cluster of DATABASE_URL, so its backups contain them. Set VAULT_DATABASE_URL apart."
        )
    return main, _cluster("VAULT_DATABASE_URL", vault, vault_owner, VAULT, passwords)


def _cluster(name: str, url: str, owner: str | None, default: str, passwords: Mapping[str, str]) -> Cluster:
    if owner:
        return Cluster(app=url, owner=owner)
    try:
        admin = _existing(url)
        if not can_provision(admin):
            raise EmbeddedError(
                f"The role of {name} may not create roles and databases. Give one that may, or set "
                f"{'VAULT_' if name.startswith('VAULT') else ''}OWNER_DATABASE_URL as well."
            )
        return embedded(admin, _database(url) or default, passwords)
    except psycopg.Error as error:
        raise EmbeddedError(f"{name} cannot be used: {' '.join(str(error).split())}") from error


def _existing(url: str) -> str:
    """`url`, or the maintenance database of its cluster while the one it names is still to be made."""
    try:
        psycopg.connect(url, connect_timeout=10).close()
    except psycopg.OperationalError as error:
        maintenance = urlunsplit(urlsplit(url)._replace(path="/postgres"))
        try:
            psycopg.connect(maintenance, connect_timeout=10).close()
        except psycopg.OperationalError:
            raise error from None
        return maintenance
    return url


def _database(url: str) -> str | None:
    name = urlsplit(url).path.strip("/")
    return None if name in ("", "postgres") else name
