"""How much waits for somebody in each section of a tenant's pages. A port: the kernel knows no app, so the composition
root installs the one function that counts."""

from collections.abc import Callable, Mapping

from kernel.web.door import Visitor

Counter = Callable[[Visitor], Mapping[str, int]]
_counter: Counter | None = None


def install(counter: Counter) -> None:
    global _counter
    _counter = counter


def counts(visitor: Visitor) -> Mapping[str, int]:
    """By the name of the section. The caller holds the tenant scope."""
    return {} if _counter is None else _counter(visitor)
