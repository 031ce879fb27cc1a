"""Writes the sample agent's two files: what Acme invoiced in November 2026, and what its bank says came in.

All names, references and amounts are invented, from a fixed seed: the same bytes each time, and a test compares them.
The dirt is that of real files; `PLAN` says how much there is of each kind.
"""

import csv
import io
import random
from collections.abc import Iterator
from datetime import date, timedelta
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Final, NamedTuple

FOLDER: Final = Path(__file__).parent
SEED: Final = 842
FIRST_DAY: Final = date(2026, 11, 1)
RUPEE, PAISA = Decimal("1.00"), Decimal("0.01")

# What becomes of the 842 invoices.
PLAN: Final = {
    "plain": 572,
    "messy_reference": 121,  # " inv/2026/०१२३", and the like
    "instalments": 57,  # two or three payments that add up
    "rounding": 38,  # off by less than a rupee
    "no_reference": 31,  # found by payer and amount
    "paid_twice": 4,
    "paid_too_much": 2,
    "partial": 9,
    "reversed": 1,  # paid, and the bank took it back
    "lost_row": 1,  # paid, but the row is missing in the statement
    "unpaid": 4,
    "twins": 2,  # same customer, same amount, one payment without reference: nobody can tell which
}
DUPLICATE_ROWS: Final = 12  # the export repeats a row where two of its pages meet
UNKNOWN_REFERENCES: Final = 5
STRAY_PAYMENTS: Final = 5  # no reference, and no invoice of that payer and amount
OPEN_AMOUNT: Final = Decimal("412500.00")  # what partial, reversed, lost and unpaid invoices leave open, together

ENGLISH: Final = (
    ("Nilgiri", "Konkan", "Deccan", "Malabar", "Sahyadri", "Kaveri", "Narmada", "Vindhya", "Coromandel", "Aravalli"),
    ("Tea Traders", "Auto Parts", "Print Works", "Cold Chain", "Textiles Pvt. Ltd.", "Packaging", "Agro Mills"),
)
# In the last name the dot under the first letter is a character of its own; some banks send one character for both.
HINDI: Final = (
    ("नीलगगन", "सूर्योदय", "गंगोत्री", "अमलतास", "चंद्रिका", "ज\u093cमीन"),
    ("ट्रेडर्स", "वस्त्रालय", "किराना भंडार", "मुद्रणालय", "कृषि केंद्र"),
)


class Invoice(NamedTuple):
    number: str
    customer: str
    issued: date
    amount: Decimal


class Payment(NamedTuple):
    day: date
    payer: str
    reference: str
    amount: Decimal


class Generator:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 - reproducible, not secret
        self.customers = [f"{first} {second}" for words in (ENGLISH, HINDI) for first, second in product(*words)]

    def files(self) -> dict[str, bytes]:
        """The content of each file by its name."""
        fates = [fate for fate, count in PLAN.items() for _ in range(count)]
        self.random.shuffle(fates)
        invoices = self.invoices(fates)
        payments = [p for invoice, fate in zip(invoices, fates, strict=True) for p in self.payments(invoice, fate)]
        payments += self.strays(invoices, fates)
        invoices = self.settle_open_amount(invoices, fates, payments)
        lost = invoices[fates.index("lost_row")].number
        return {
            "invoices.csv": self.invoice_file(invoices),
            "bank_statement.csv": self.statement_file(payments, lost=lost),
        }

    def invoices(self, fates: list[str]) -> list[Invoice]:
        made, unique = [], set()
        twin: Invoice | None = None
        for index, fate in enumerate(fates):
            customer = self.random.choice(self.customers)
            most = 45_000_000 if fate in {"plain", "instalments"} else 4_000_000
            amount = Decimal(self.random.randrange(150_000, most)) / 100
            while (customer, amount) in unique:
                amount += PAISA
            unique.add((customer, amount))
            invoice = Invoice(f"INV-2026-{index + 1:04}", customer, FIRST_DAY + timedelta(days=index // 60), amount)
            if fate == "twins":
                twin = invoice if twin is None else twin
                invoice = invoice._replace(customer=twin.customer, amount=twin.amount)
            made.append(invoice)
        return made

    def payments(self, invoice: Invoice, fate: str) -> Iterator[Payment]:
        day = invoice.issued + timedelta(days=self.random.randrange(1, 9))
        whole = Payment(day, self.payer(invoice.customer), invoice.number, invoice.amount)
        if fate in {"plain", "reversed", "lost_row", "paid_twice"}:
            yield whole
        if fate == "messy_reference":
            yield whole._replace(reference=self.messy(invoice.number))
        elif fate == "instalments":
            parts = self.random.randrange(2, 4)
            first = (invoice.amount / parts).quantize(RUPEE)
            for part in range(parts):
                amount = first if part < parts - 1 else invoice.amount - first * (parts - 1)
                yield whole._replace(day=day + timedelta(days=3 * part), amount=amount)
        elif fate == "rounding":
            off = PAISA * self.random.randrange(1, 100) * self.random.choice((1, -1))
            yield whole._replace(amount=invoice.amount + off)
        elif fate == "no_reference":
            yield whole._replace(reference=self.random.choice(("", "", "NEFT", "payment", "-")))
        elif fate == "paid_twice":
            yield whole._replace(day=day + timedelta(days=2))
        elif fate == "paid_too_much":
            yield whole._replace(amount=invoice.amount + Decimal(self.random.randrange(100, 900) * 10))
        elif fate == "partial":
            yield whole._replace(amount=(invoice.amount * self.random.randrange(30, 90) / 100).quantize(PAISA))
        elif fate == "reversed":
            yield whole._replace(day=day + timedelta(days=1), amount=-invoice.amount)

    def strays(self, invoices: list[Invoice], fates: list[str]) -> Iterator[Payment]:
        for index in range(UNKNOWN_REFERENCES):
            yield self.stray(f"INV-2025-{self.random.randrange(7000, 9000) + index:04}")
        for _ in range(STRAY_PAYMENTS):
            yield self.stray("")
        twin = invoices[fates.index("twins")]
        yield Payment(twin.issued + timedelta(days=5), self.payer(twin.customer), "", twin.amount)

    def stray(self, reference: str) -> Payment:
        day = FIRST_DAY + timedelta(days=self.random.randrange(25))
        amount = Decimal(self.random.randrange(200_000, 4_000_000)) / 100
        return Payment(day, self.payer(self.random.choice(self.customers)), reference, amount)

    def settle_open_amount(self, invoices: list[Invoice], fates: list[str], payments: list[Payment]) -> list[Invoice]:
        """The invoices, with the amount of an unpaid one changed so that the open amount is a known one."""
        paid: dict[str, Decimal] = {}
        for payment in payments:
            paid[payment.reference] = paid.get(payment.reference, Decimal()) + payment.amount
        del paid[invoices[fates.index("lost_row")].number]
        still_open = {"partial", "reversed", "lost_row", "unpaid", "twins"}
        pairs = zip(invoices, fates, strict=True)
        left = sum((i.amount - paid.get(i.number, Decimal()) for i, fate in pairs if fate in still_open), Decimal())
        unpaid = fates.index("unpaid")
        amount = invoices[unpaid].amount + OPEN_AMOUNT - left
        if amount < 1000:
            raise ValueError(f"choose another seed: the unpaid invoice would be {amount}")
        return [*invoices[:unpaid], invoices[unpaid]._replace(amount=amount), *invoices[unpaid + 1 :]]

    def invoice_file(self, invoices: list[Invoice]) -> bytes:
        rows = [["Invoice No", "Customer", "Invoice Date", "Amount (INR)"]]
        rows += [[i.number, i.customer, self.day(i.issued), indian(i.amount)] for i in invoices]
        return as_csv(rows, bom=False, line_end="\n")

    def statement_file(self, payments: list[Payment], *, lost: str) -> bytes:
        payments = sorted(payments, key=lambda payment: payment.day)
        repeated = set(self.random.sample(range(20, len(payments)), DUPLICATE_ROWS))
        rows = [["Value Date", "UTR", "Payer", "Reference", "Amount", "Balance"]]
        balance = Decimal("1837264.55")
        for index, payment in enumerate(payments):
            balance += payment.amount
            if payment.reference == lost:
                continue
            utr = f"N{payment.day:%j%y}{index + 1:06}"
            row = [self.day(payment.day), utr, payment.payer, payment.reference]
            row += [indian(payment.amount), indian(balance)]
            rows += [row, row] if index in repeated else [row]
        return as_csv(rows, bom=True, line_end="\r\n")

    def day(self, day: date) -> str:
        return day.isoformat() if self.random.random() < 0.3 else f"{day:%d/%m/%Y}"

    def payer(self, customer: str) -> str:
        """A customer's name as its bank writes it."""
        dice = self.random.random()
        if dice < 0.5:
            return customer
        if dice < 0.8:
            return customer.upper()
        if dice < 0.9:
            return f" {customer.replace(' ', '  ')}"
        return customer.replace("ज\u093c", "\u095b").replace("Pvt. Ltd.", "PVT LTD")

    def messy(self, number: str) -> str:
        """An invoice number as payers type it."""
        year, serial = number.split("-")[1:]
        hindi = str.maketrans("0123456789", "०१२३४५६७८९")
        return self.random.choice(
            (
                number.lower(),
                f"  {number} ",
                f"{number.title()} ",
                f"INV/{year}/{serial}",
                f"inv {year} {serial}",
                f"INV{year}{serial}",
                number.translate(hindi),
                f"INV‑{year}‑{serial}",  # non-breaking hyphens, from a PDF
            )
        )


def indian(amount: Decimal) -> str:
    """412500 as `4,12,500.00`: the last three digits, then pairs."""
    whole, paise = f"{abs(amount):.2f}".split(".")
    head, tail = whole[:-3], whole[-3:]
    pairs = [head[max(0, end - 2) : end] for end in range(len(head), 0, -2)][::-1]
    return f"{'-' if amount < 0 else ''}{','.join([*pairs, tail])}.{paise}"


def as_csv(rows: list[list[str]], *, bom: bool, line_end: str) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator=line_end).writerows(rows)
    return text.getvalue().encode("utf-8-sig" if bom else "utf-8")


if __name__ == "__main__":
    for name, content in Generator(SEED).files().items():
        (FOLDER / name).write_bytes(content)
