"""Mistakes, made on purpose in the database or in the agent of one run of the chaos, to see that it finds them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from psycopg import sql

if TYPE_CHECKING:
    from tests.chaos.stage import Stage


@dataclass(frozen=True)
class Defect:
    """In the text of a database function `old` becomes `new`; `agent` is a mistake that the agent knows by name."""

    function: str = ""
    old: str = ""
    new: str = ""
    agent: str = ""

    def apply(self, stage: "Stage") -> None:
        if not self.function:
            return
        with stage.superuser() as connection:
            query = "select pg_get_functiondef(p.oid) from pg_proc p where p.proname = %s"
            ((text,),) = connection.execute(query, [self.function]).fetchall()
            assert self.old in text, f"{self.function} has no such text"
            connection.execute(sql.SQL(text.replace(self.old, self.new)))


DEFECTS: Final[dict[str, Defect]] = {
    "the agent calls again when it is told to reconcile": Defect(agent="agent calls again"),
}
