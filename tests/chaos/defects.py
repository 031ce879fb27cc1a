"""Mistakes, made on purpose for one run of the chaos, to see that it finds them: `python -m tests.chaos --defect NAME`."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from psycopg import sql

if TYPE_CHECKING:
    from tests.chaos.stage import Stage


@dataclass(frozen=True)
class Defect:
    """`changes`: in the text of a database function, old text becomes new. `settings` are statements of the superuser's, `tools` a
    change of tools' definitions, `agent` a mistake that the agent knows by name.
    """

    changes: tuple[tuple[str, str, str], ...] = ()
    settings: tuple[sql.SQL, ...] = ()
    tools: dict[str, dict[str, Any]] = field(default_factory=dict)
    agent: str = ""

    def apply(self, stage: "Stage") -> None:
        with stage.superuser() as connection:
            for function, old, new in self.changes:
                query = "select pg_get_functiondef(p.oid) from pg_proc p where p.proname = %s"
                ((text,),) = connection.execute(query, [function]).fetchall()
                assert old in text, f"{function} has no text {old!r}"
                connection.execute(sql.SQL(text.replace(old, new)))
            for statement in self.settings:
                connection.execute(statement)
            connection.execute("select pg_reload_conf()")


DEFECTS: Final[dict[str, Defect]] = {
    "agent-calls-again": Defect(agent="agent-calls-again"),
    "agent-calls-late": Defect(agent="agent-calls-late"),
    "execute-is-replayed": Defect(
        changes=(
            (
                "runs_reserve",
                "x.key_digest = p_idempotency and x.lease_id = p_lease;",
                "x.key_digest = p_idempotency and x.decision = 'execute' limit 1;",
            ),
            (
                "runs_reserve",
                "d.decision = 'execute' and d.epoch = p_epoch and e.status = 'in_flight' and e.lease_id = p_lease",
                "d.decision = 'execute' and e.status in ('in_flight', 'unknown')",
            ),
            ("runs_reserve", "greatest(0, extract(epoch from e.deadline_at - v_at))", "3"),
        )
    ),
    "lost-lease-means-failed": Defect(
        changes=(
            (
                "runs_lose_effects",
                "set status = 'unknown', owner = case when e.probed then 'probe' else p_owner end",
                "set status = 'failed', owner = null",
            ),
        )
    ),
    "lost-lease-forgets-effects": Defect(
        changes=(("runs_lose_effects", "and x.status = 'in_flight' and", "and false and"),)
    ),
    "stale-workers-write": Defect(
        changes=(
            (
                "runs_commit",
                "a.epoch <> p_epoch or s.epoch <> p_epoch or s.lease_id is distinct from p_lease",
                "a.epoch <> p_epoch",
            ),
            ("runs_commit", "elsif code is null and a.expires_at <= v_at then", "elsif false then"),
        )
    ),
    "commits-are-not-durable": Defect(
        settings=(
            sql.SQL("alter system set synchronous_commit = off"),
            sql.SQL("alter system set wal_writer_delay = '10s'"),
        )
    ),
    "each-run-pays": Defect(tools={"pay_invoice": {"scope": "run"}}),
}
