"""The servers of a test session, and the environment that points at them."""

import base64
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import psycopg
from psycopg import sql

from config.embedded.postgres import PostgresServer
from config.embedded.provision import provision, url_for
from config.embedded.valkey import ValkeyServer
from kernel.roles import APP, OWNER, ROLES

ROOT = Path(__file__).resolve().parents[1]
TEMPLATE = "smriti_template"
VAULT = "smriti_vault"
PASSWORD = "only-in-tests"


class Servers:
    """One PostgreSQL (main and vault databases) and one Valkey, in a folder that goes with them."""

    def __init__(self, settings: dict[str, str | int] | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="smriti-tests-", ignore_cleanup_errors=True)
        os.chmod(self._folder.name, 0o755)  # as root, the services run as another user
        folder = Path(self._folder.name)
        fast = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off", "shared_buffers": "256MB"}
        self.postgres = PostgresServer(folder / "postgres", settings=fast if settings is None else settings)
        self.valkey = ValkeyServer(folder / "valkey")

    def start(self) -> None:
        data = Path(self._folder.name) / "data"
        (data / "static").mkdir(parents=True)
        os.environ["DATA_DIR"] = str(data)
        self.postgres.start()
        self.valkey.start()
        os.environ["SMRITI_TEST_SERVER_LOG"] = str(self.postgres.log)
        passwords = {role.name: PASSWORD for role in ROLES if role.login}
        for database in (TEMPLATE, VAULT):
            provision(self.postgres.admin_url, database=database, passwords=passwords)
        os.environ |= environment(self.postgres.admin_url, TEMPLATE, broker=self.valkey.url)
        admin = self.postgres.admin_url
        owner = {
            "OWNER_DATABASE_URL": url_for(admin, TEMPLATE, OWNER, PASSWORD),
            "VAULT_OWNER_DATABASE_URL": url_for(admin, VAULT, OWNER, PASSWORD),
        }
        for alias in ("owner", "vault_owner"):
            command = [sys.executable, "manage.py", "migrate", "--database", alias, "--skip-checks", "--verbosity", "0"]
            subprocess.run(command, cwd=ROOT, env=os.environ | owner, check=True)

    def stop(self) -> None:
        self.valkey.destroy()
        self.postgres.destroy()
        self._folder.cleanup()


def environment(admin_url: str, database: str, *, broker: str) -> dict[str, str]:
    """The variables of a process that serves `database`."""
    return {
        "DJANGO_SETTINGS_MODULE": "config.settings",
        "SECRET_KEY": "only-in-tests-" + "x" * 50,
        "MASTER_KEY": base64.b64encode(b"only-in-tests".ljust(32)).decode(),
        "DATABASE_URL": url_for(admin_url, database, APP, PASSWORD),
        "VAULT_DATABASE_URL": url_for(admin_url, VAULT, APP, PASSWORD),
        "BROKER_URL": broker,
        "BASE_URL": "http://testserver",
        "ALLOWED_HOSTS": "testserver,127.0.0.1,localhost",
        "SMRITI_TEST_ADMIN_URL": admin_url,
        # More threads than a server has call the API in process, for tenants that come and go within a second.
        "WEB_THREADS": "64",
    }


def clone(admin_url: str, name: str) -> str:
    """A copy of the migrated database; the app role's URL of it."""
    with psycopg.connect(admin_url, autocommit=True) as connection:
        connection.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))
        copy = sql.SQL("create database {} template {} owner {} strategy file_copy")
        connection.execute(copy.format(*map(sql.Identifier, (name, TEMPLATE, OWNER))))
        connection.execute(sql.SQL("revoke all on database {} from public").format(sql.Identifier(name)))
        grant = sql.SQL("grant connect on database {} to smriti_app, smriti_eraser, smriti_verifier")
        connection.execute(grant.format(sql.Identifier(name)))
    return url_for(admin_url, name, APP, PASSWORD)


def owner_url() -> str:
    """The owner role's URL of this worker's database: for what only a migration or an attacker with the owner's password does."""
    name = os.environ["DATABASE_URL"].rpartition("/")[2]
    return url_for(os.environ["SMRITI_TEST_ADMIN_URL"], name, OWNER, PASSWORD)
