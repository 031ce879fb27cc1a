"""Everything that leaves the platform is first a row here, written in the transaction that decided it.

A message is delivered at least once, under an id that stays the same, and in the order of its `ordering` key. Higher apps
register how a topic is delivered: `outbox.register(topic, deliver)` in their `ready()`.
"""

from kernel.outbox.deliverers import Dead, Deliver, Delivered, Message, Outcome, Retry, register

__all__ = ["Dead", "Deliver", "Delivered", "Message", "Outcome", "Retry", "register"]
