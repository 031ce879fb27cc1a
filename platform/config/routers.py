"""The vault is a database cluster of its own: its tables live there and nowhere else."""

from typing import Any

from django.db.models import Model

VAULT = frozenset({"vault", "vault_owner"})


class VaultRouter:
    def db_for_read(self, model: type[Model], **hints: Any) -> str | None:
        return "vault" if model._meta.app_label == "vault" else None

    db_for_write = db_for_read

    def allow_relation(self, obj1: Model, obj2: Model, **hints: Any) -> bool | None:
        return (obj1._meta.app_label == "vault") == (obj2._meta.app_label == "vault")

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool:
        # The kernel owns no tables, only the function that sets the tenant: both clusters need it.
        return app_label == "kernel" or (app_label == "vault") == (db in VAULT)
