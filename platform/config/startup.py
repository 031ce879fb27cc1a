"""What every serving process checks before it serves."""

from kernel import roles


def refuse_unsafe_roles() -> None:
    """Stop the start when a database connection could see beyond one tenant."""
    for alias in ("default", "vault"):
        roles.refuse_unsafe(alias)
