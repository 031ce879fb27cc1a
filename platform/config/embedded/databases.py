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


def made(admin_url: str, name: str, passwords: Mapping[str, str]) -> Cluster:
    """The database `name` of a cluster, made or brought up to date by its administrator."""
    urls = provision(admin_url, database=name, passwords=passwords)
    return Cluster(app=urls[APP], owner=urls[OWNER])


def given(
    environment: Mapping[str, str], passwords: Mapping[str, str], warn: Callable[[str], None]
) -> tuple[Cluster, Cluster]:
    """The main database and the vault from DATABASE_URL and its companions. Raises EmbeddedError."""
    url, owner = environment["DATABASE_URL"], environment.get("OWNER_DATABASE_URL")
    vault, vault_owner = environment.get("VAULT_DATABASE_URL"), environment.get("VAULT_OWNER_DATABASE_URL")
    if owner and not vault:
        raise EmbeddedError("With OWNER_DATABASE_URL, set VAULT_DATABASE_URL and VAULT_OWNER_DATABASE_URL too.")
    name = _database(url) or MAIN
    main = _cluster("DATABASE_URL", url, owner, name, passwords)
    if vault:
        return main, _cluster("VAULT_DATABASE_URL", vault, vault_owner, _database(vault) or VAULT, passwords)
    warn("The keys stand in the cluster of DATABASE_URL, so its backups contain them. Set VAULT_DATABASE_URL apart.")
    return main, _cluster("DATABASE_URL", url, None, f"{name}_vault", passwords)


def _cluster(variable: str, url: str, owner: str | None, database: str, passwords: Mapping[str, str]) -> Cluster:
    """The database: as given when its owner's URL is, else made by the role of `url`."""
    if owner:
        return Cluster(app=url, owner=owner)
    try:
        admin = _existing(url)
        if can_provision(admin):
            return made(admin, database, passwords)
    except psycopg.Error as error:
        raise EmbeddedError(f"{variable} cannot be used: {' '.join(str(error).split())}") from error
    companion = variable.replace("DATABASE_URL", "OWNER_DATABASE_URL")
    raise EmbeddedError(
        f"The role of {variable} may not create roles and databases. Give one that may, or set {companion} as well."
    )


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
