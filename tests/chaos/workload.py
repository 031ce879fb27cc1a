"""The work: runs of several steps, some beside each other, each with payments; some invoices are paid by two or three runs at
once, and must be paid by one.
"""

import random
from typing import Any, Final

Json = dict[str, Any]

# Step: the steps before it. Beside each other, steps contend for the state of their run.
SHAPES: Final[list[dict[str, list[str]]]] = [
    {"one": [], "two": ["one"], "three": ["two"]},
    {"one": [], "left": ["one"], "right": ["one"], "last": ["left", "right"]},
    {"left": [], "middle": [], "right": [], "last": ["left", "middle", "right"]},
    {"one": [], "two": ["one"]},
]
TOOLS: Final = {"pay_in_run": 48, "pay_in_step": 24, "pay_approved": 12, "pay_reversible": 16}
SHARED: Final = 0.15  # payments whose invoice another run pays as well


class Workload:
    """Runs, as requests, until `size` invoices are in them: as many effects."""

    def __init__(self, dice: random.Random, size: int) -> None:
        self.dice, self.size = dice, size
        self.invoices = 0
        self.shared: list[Json] = []  # payments that more runs are to make
        self.next: Json | None = None

    def peek(self) -> Json:
        """The next run's request; the same one until it is popped."""
        if self.next is None:
            self.next = self.make()
        return self.next

    def pop(self) -> Json:
        made, self.next = self.peek(), None
        return made

    @property
    def left(self) -> bool:
        return self.next is not None or self.invoices < self.size

    def make(self) -> Json:
        shape = self.dice.choice(SHAPES)
        steps: dict[str, list[Json]] = {name: [] for name in shape}
        taken: set[str] = set()
        for number in range(self.dice.randint(len(shape), 3 * len(shape))):
            name = list(shape)[number] if number < len(shape) else self.dice.choice(list(shape))
            steps[name].append(self.payment(taken))
        return {
            "workflow": "pay_invoices",
            "workflow_version": "1",
            "steps": [
                {"name": name, "depends_on": before, "queue": "payments", "max_attempts": 8}
                for name, before in shape.items()
            ],
            "input": {"steps": steps},
        }

    def payment(self, taken: set[str]) -> Json:
        fitting = [payment for payment in self.shared if payment["invoice_id"] not in taken]
        if fitting and self.dice.random() < SHARED:
            payment = self.dice.choice(fitting)
            self.shared.remove(payment)
        else:
            self.invoices += 1
            amount = f"{self.dice.randint(1_00, 99_999_99) / 100:.2f}"
            tool = self.dice.choices(list(TOOLS), list(TOOLS.values()))[0]
            payment = {"tool": tool, "invoice_id": f"INV-{self.invoices}", "amount": amount, "currency": "INR"}
            if self.dice.random() < SHARED:
                payment["tool"] = "pay_invoice"
                self.shared += [payment] * self.dice.choice([1, 1, 2])
        taken.add(payment["invoice_id"])
        return payment
