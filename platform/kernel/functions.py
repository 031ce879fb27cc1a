"""Database functions as files of one app's `sql` folder, of which a migration puts the newest text in place.

A function is code and not schema: it has one text, and every migration that changes a file ends with this operation. What a
file creates with `create function` is dropped first, so that its signature may change; `create or replace` keeps what triggers
depend on.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from django.db import router
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState

_CREATED: Final = re.compile(r"^create function (\w+)", re.MULTILINE)


class SqlFunctions(Operation):
    """Put the functions of all files of `folder` in place. `{name}` in a file stands for `values[name]`."""

    reversible = False

    def __init__(self, folder: Path, values: Mapping[str, str]) -> None:
        self.folder = folder
        self.values = values

    def deconstruct(self) -> tuple[str, Sequence[Any], dict[str, Any]]:
        return ("SqlFunctions", [self.folder, self.values], {})

    def describe(self) -> str:
        return f"Put the functions of {self.folder.parent.name} in place"

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """Functions live in the database only."""

    def database_forwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        if router.allow_migrate(schema_editor.connection.alias, app_label):
            for statement in self.statements():
                schema_editor.execute(statement, params=None)

    def database_backwards(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError("functions are not taken back")

    def statements(self) -> list[str]:
        texts = [path.read_text() for path in sorted(self.folder.glob("*.sql"))]
        for name, value in self.values.items():
            texts = [text.replace("{" + name + "}", value) for text in texts]
        dropped = [
            f"""do $$ declare f regprocedure; begin
                for f in select oid from pg_proc where proname = '{name}' and pronamespace = 'public'::regnamespace loop
                    execute 'drop function ' || f;
                end loop;
            end $$"""  # noqa: S608  names of our own files
            for text in texts
            for name in _CREATED.findall(text)
        ]
        # A body may name tables that a later migration creates.
        return ["set local check_function_bodies = off", *dropped, *texts, "set local check_function_bodies = on"]
