"""One process of the outbox's kill tests: a producer, a dispatcher that can die at a named point, or a reader of the books."""

import argparse
import json
import os
import random
import signal
import time
from uuid import UUID

import django

django.setup()

from kernel import clock, context, ids
from kernel.outbox import deliverers, http, operations, queries
from kernel.outbox.deliverers import Message, Outcome


def produce(url: str, seed: int, tenants: int, orders: int, messages: int, pause: float) -> None:
    """Print each message once it is committed: tenant, order, its number in the order, its id."""
    dice = random.Random(seed)
    houses = [ids.uuid7() for _ in range(tenants)]
    plan = [(house, ids.uuid7()) for house in houses for _ in range(orders)]
    for number in range(messages):
        for house, order in plan:
            for rolled_back in [True, False] if dice.random() < 0.1 else [False]:
                try:
                    with context.tenant_scope(house):
                        message_id = put(house, url, order, number, rolled_back=rolled_back)
                        if rolled_back:
                            raise LookupError
                except LookupError:
                    continue
                print(json.dumps([str(house), str(order), number, str(message_id)]), flush=True)
            time.sleep(pause)


def put(house: UUID, url: str, order: UUID, number: int, *, rolled_back: bool) -> UUID:
    content = json.dumps({"order": str(order), "number": number, "never": rolled_back})
    dedup = f"{order}:{number}:{'never' if rolled_back else 'once'}"
    body = {"url": url, "content": content}
    return operations.enqueue(tenant=house, topic=http.TOPIC, body=body, ordering=order, dedup=dedup, now=clock.now())


def dispatch(seed: int, die_before: float, die_after: float) -> None:
    """Send what is due, again and again. The two chances are those of being killed around a request."""
    dice = random.Random(seed)

    def deliver(message: Message) -> Outcome:
        if dice.random() < die_before:
            os.kill(os.getpid(), signal.SIGKILL)
        outcome = http.deliver(message)
        if dice.random() < die_after:
            os.kill(os.getpid(), signal.SIGKILL)
        return outcome

    deliverers._deliverers[http.TOPIC] = deliver
    operations.FIRST_DELAY = 0.2  # type: ignore[misc]  # the tests' receivers recover fast
    while True:
        try:
            operations.dispatch(seconds=5)
        except Exception as error:
            print(f"dispatch: {error!r}", flush=True)
        time.sleep(0.05)


def count(tenants: list[UUID]) -> None:
    """Print how many messages there are by status."""
    total: dict[str, int] = {}
    for tenant in tenants:
        with context.tenant_scope(tenant):
            found = queries.overview(tenant=tenant, statuses=[], topic=None, cursor=None, limit=1).counts
        total = {status: total.get(status, 0) + number for status, number in found.items()}
    print(json.dumps(total))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["produce", "dispatch", "count"])
    parser.add_argument("--url", default="")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tenants", type=int, default=2)
    parser.add_argument("--orders", type=int, default=5)
    parser.add_argument("--messages", type=int, default=10)
    parser.add_argument("--pause", type=float, default=0)
    parser.add_argument("--die-before", type=float, default=0)
    parser.add_argument("--die-after", type=float, default=0)
    parser.add_argument("ids", nargs="*", type=UUID)
    options = parser.parse_args()
    if options.what == "produce":
        produce(options.url, options.seed, options.tenants, options.orders, options.messages, options.pause)
    elif options.what == "dispatch":
        dispatch(options.seed, options.die_before, options.die_after)
    else:
        count(options.ids)
