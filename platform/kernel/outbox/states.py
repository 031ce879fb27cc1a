"""The allowed moves of a message. The database refuses every other move (`sql/outbox.sql`)."""

from typing import Final

# pending: to be sent at due_at. sending: a dispatcher has it until due_at. dead: given up. skipped: an operator gave it up.
MOVES: Final = {
    "pending": ("sending", "skipped"),
    "sending": ("sent", "pending", "dead"),
    "dead": ("pending", "skipped"),
    "sent": (),
    "skipped": (),
}
OPEN: Final = ("pending", "sending")
# What is over for good: its body is gone, and the row goes after the retention time.
FINAL: Final = tuple(status for status, moves in MOVES.items() if not moves)
