"""Makes the roles and a database in a cluster, or brings them up to date.

Invariant: after it, PUBLIC can do nothing in the database, its owner is `smriti_owner`, and no password was sent to the
server, whose log may hold statements: it receives the SCRAM verifier.
"""

from collections.abc import Mapping
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg
from psycopg import sql

from config.embedded.place import EmbeddedError
from kernel.roles import APP, DEFINER, ERASER, OWNER, ROLES, VERIFIER, DatabaseRole

Connection = psycopg.Connection[tuple[object, ...]]


def provision(admin_url: str, *, database: str, passwords: Mapping[str, str]) -> dict[str, str]:
    """Make every role of `kernel.roles` and `database`; return the URL of each role that logs in.

    `admin_url` is of a role that may make roles and databases. `passwords` by role name; they are set anew each time,
    so that a cluster follows the secrets it is used with.
    """
    with psycopg.connect(admin_url, autocommit=True) as connection:
        if connection.info.server_version < 160_000:
            raise EmbeddedError("Smriti needs PostgreSQL 16 or newer.")
        for role in ROLES:
            _make_role(connection, role, passwords.get(role.name))
        connection.execute(_sql("grant {definer} to {owner} with inherit false, set true"))
        if not _one(connection, "select rolsuper from pg_roles where rolname = current_user"):
            # To make objects of another role, an administrator short of a superuser must be a member of it.
            connection.execute(_sql("grant {owner} to current_user"))
        if not _one(connection, "select exists (select from pg_database where datname = %s)", database):
            connection.execute(_sql("create database {database} owner {owner} template template0", database))
        connection.execute(_sql("alter database {database} owner to {owner}", database))
        connection.execute(_sql("revoke all on database {database} from public", database))
        connection.execute(_sql("grant connect on database {database} to {app}, {eraser}, {verifier}", database))
    with psycopg.connect(admin_url, dbname=database, autocommit=True) as connection:
        connection.execute(_sql("alter schema public owner to {owner}"))
        connection.execute(_sql("revoke all on schema public from public"))
        connection.execute(_sql("grant usage on schema public to {app}, {definer}, {eraser}, {verifier}"))
    return {role.name: url_for(admin_url, database, role.name, passwords[role.name]) for role in ROLES if role.login}


def can_provision(url: str) -> bool:
    """Whether the role of `url` may make roles and databases."""
    with psycopg.connect(url, connect_timeout=10) as connection:
        may = "select rolsuper or (rolcreaterole and rolcreatedb) from pg_roles where rolname = current_user"
        return bool(_one(connection, may))


def url_for(url: str, database: str, user: str, password: str) -> str:
    """`url` with another database, user and password; host, port and options such as sslmode stay."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(
        parts._replace(netloc=f"{quote(user)}:{quote(password, safe='')}@{host}", path=f"/{quote(database)}")
    )


def _make_role(connection: Connection, role: DatabaseRole, password: str | None) -> None:
    state = connection.execute(
        "select rolsuper or rolbypassrls from pg_roles where rolname = %s", [role.name]
    ).fetchone()
    name = sql.Identifier(role.name)
    if state is None:
        attributes = sql.SQL("login" if role.login else "nologin")
        connection.execute(
            sql.SQL("create role {} nosuperuser nobypassrls nocreatedb nocreaterole {}").format(name, attributes)
        )
    elif state[0]:
        raise EmbeddedError(
            f"Role {role.name} of this cluster could bypass row-level security. Take SUPERUSER and BYPASSRLS from it."
        )
    if role.login:
        if password is None:
            raise KeyError(role.name)
        verifier = connection.pgconn.encrypt_password(password.encode(), role.name.encode(), b"scram-sha-256")
        connection.execute(sql.SQL("alter role {} password {}").format(name, sql.Literal(verifier.decode())))


def _sql(statement: str, database: str = "") -> sql.Composed:
    names = {
        "owner": OWNER,
        "app": APP,
        "definer": DEFINER,
        "eraser": ERASER,
        "verifier": VERIFIER,
        "database": database,
    }
    return sql.SQL(statement).format(**{key: sql.Identifier(name) for key, name in names.items() if name})


def _one(connection: Connection, query: str, *parameters: object) -> object:
    row = connection.execute(query, parameters).fetchone()
    return None if row is None else row[0]
