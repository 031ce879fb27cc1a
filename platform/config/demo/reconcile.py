"""The sample agent's arithmetic: which payment settles which invoice. Pure functions of two files, no platform here.

Invariant: the outcome of an invoice depends on the files only, never on its neighbours or on the order of the work. So
a run that was killed and resumed must report exactly what an undisturbed one does. Money is Decimal, in JSON a string.
"""

import csv
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

CURRENCY: Final = "INR"
ROUNDING: Final = Decimal("1.00")  # less than a rupee off is rounding, not a debt

Status = Literal["matched", "partially_paid", "overpaid", "unmatched"]
STATUSES: Final[tuple[Status, ...]] = ("matched", "partially_paid", "overpaid", "unmatched")
Json = dict[str, Any]


class CannotReconcile(Exception):
    """The files or the sums so far do not allow a report; trying again would not help."""


class Invoice(NamedTuple):
    number: str
    customer: str
    issued: date
    amount: Decimal


class Payment(NamedTuple):
    utr: str
    day: date
    payer: str
    reference: str
    amount: Decimal
    balance: Decimal


@dataclass(frozen=True, slots=True)
class Match:
    invoice: Invoice
    payments: tuple[Payment, ...]

    @property
    def received(self) -> Decimal:
        return sum((payment.amount for payment in self.payments), Decimal("0.00"))

    @property
    def difference(self) -> Decimal:
        return self.received - self.invoice.amount

    @property
    def status(self) -> Status:
        if abs(self.difference) < ROUNDING:
            return "matched"
        if self.received <= 0:
            return "unmatched"
        return "overpaid" if self.difference > 0 else "partially_paid"

    def exception(self) -> Json:
        """What a person has to look at."""
        return {
            "invoice": self.invoice.number,
            "customer": self.invoice.customer,
            "status": self.status,
            "invoiced": str(self.invoice.amount),
            "received": str(self.received),
            "difference": str(self.difference),
            "utrs": [payment.utr for payment in self.payments],
        }


@dataclass(frozen=True, slots=True)
class Books:
    """Both files, read and indexed. `unmatched` are the payments that belong to no invoice for certain."""

    invoices: tuple[Invoice, ...]
    payments: tuple[Payment, ...]
    repeated_lines: int
    missing: tuple[Json, ...]
    by_invoice: Mapping[str, tuple[Payment, ...]]
    unmatched: tuple[Payment, ...]

    def match(self, start: int, end: int) -> list[Match]:
        return [Match(i, self.by_invoice.get(number_key(i.number), ())) for i in self.invoices[start:end]]


@dataclass(frozen=True, slots=True)
class Sums:
    count: int = 0
    payments: int = 0
    invoiced: Decimal = Decimal("0.00")
    received: Decimal = Decimal("0.00")


class Totals(dict[Status, Sums]):
    """Sums by status of the invoices done so far. This is what a run keeps in its state and adds to, chunk by chunk."""

    @classmethod
    def empty(cls) -> "Totals":
        return cls({status: Sums() for status in STATUSES})

    @classmethod
    def from_json(cls, value: Json) -> "Totals":
        return cls(
            {
                status: Sums(v["count"], v["payments"], Decimal(v["invoiced"]), Decimal(v["received"]))
                for status, v in value.items()
            }
        )

    def to_json(self) -> Json:
        return {
            status: {"count": s.count, "payments": s.payments, "invoiced": str(s.invoiced), "received": str(s.received)}
            for status, s in self.items()
        }

    def add(self, matches: Iterable[Match]) -> None:
        for match in matches:
            old = self[match.status]
            self[match.status] = Sums(
                old.count + 1,
                old.payments + len(match.payments),
                old.invoiced + match.invoice.amount,
                old.received + match.received,
            )

    def overall(self) -> Sums:
        return Sums(
            sum(sums.count for sums in self.values()),
            sum(sums.payments for sums in self.values()),
            sum((sums.invoiced for sums in self.values()), Decimal()),
            sum((sums.received for sums in self.values()), Decimal()),
        )


def read_books(folder: Path) -> Books:
    invoices = tuple(
        Invoice(row["Invoice No"], row["Customer"], to_date(row["Invoice Date"]), to_amount(row["Amount (INR)"]))
        for row in _rows(folder / "invoices.csv")
    )
    lines = [
        Payment(
            row["UTR"],
            to_date(row["Value Date"]),
            " ".join(row["Payer"].split()),
            row["Reference"].strip(),
            to_amount(row["Amount"]),
            to_amount(row["Balance"]),
        )
        for row in _rows(folder / "bank_statement.csv")
    ]
    # The bank gives every transfer one UTR: a second line with it is the same line, exported twice.
    payments = tuple({line.utr: line for line in lines}.values())
    by_invoice, unmatched = _assign(invoices, payments)
    return Books(invoices, payments, len(lines) - len(payments), tuple(_gaps(payments)), by_invoice, unmatched)


def _assign(
    invoices: Sequence[Invoice], payments: Sequence[Payment]
) -> tuple[dict[str, tuple[Payment, ...]], tuple[Payment, ...]]:
    """Payments by invoice, and the rest.

    A reference decides. Without one, payer and amount do, if exactly one such payment and one such open invoice exist.
    """
    numbers = {number_key(invoice.number) for invoice in invoices}
    found: dict[str, list[Payment]] = defaultdict(list)
    nameless: list[Payment] = []
    for payment in payments:
        key = number_key(payment.reference)
        (found[key] if key in numbers else nameless).append(payment)
    candidates: dict[tuple[str, Decimal], list[str]] = defaultdict(list)
    for invoice in invoices:
        if (key := number_key(invoice.number)) not in found:
            candidates[name_key(invoice.customer), invoice.amount].append(key)
    wanted = Counter((name_key(payment.payer), payment.amount) for payment in nameless)
    unmatched = []
    for payment in nameless:
        asked = name_key(payment.payer), payment.amount
        if wanted[asked] == 1 and len(candidates.get(asked, ())) == 1:
            found[candidates[asked][0]].append(payment)
        else:
            unmatched.append(payment)
    return {key: tuple(group) for key, group in found.items()}, tuple(unmatched)


def _gaps(payments: Sequence[Payment]) -> Iterable[Json]:
    """Where the running balance jumps, a line is missing between two neighbours; the jump is its amount."""
    for before, after in pairwise(payments):
        if jump := after.balance - before.balance - after.amount:
            yield {"after": before.utr, "before": after.utr, "amount": str(jump)}


def report(books: Books, totals: Totals, exceptions: Sequence[Json]) -> Json:
    """The whole result. Raises CannotReconcile when an invoice or a payment was counted twice or not at all."""
    overall = totals.overall()
    if overall.count != len(books.invoices):
        raise CannotReconcile(f"{overall.count} invoices counted, {len(books.invoices)} in the file")
    if overall.payments + len(books.unmatched) != len(books.payments):
        raise CannotReconcile(
            f"{overall.payments} payments matched, {len(books.unmatched)} not, {len(books.payments)} in the file"
        )
    still_open = [totals["partially_paid"], totals["unmatched"]]
    days = [payment.day for payment in books.payments]
    return {
        "currency": CURRENCY,
        "period": {"from": min(days).isoformat(), "to": max(days).isoformat()},
        "invoices": {"count": overall.count, "invoiced": str(overall.invoiced), "received": str(overall.received)},
        "by_status": totals.to_json(),
        "open": {
            "count": sum(sums.count for sums in still_open),
            "amount": str(sum((sums.invoiced - sums.received for sums in still_open), Decimal())),
        },
        "payments": {
            "count": len(books.payments),
            "amount": str(_sum(books.payments)),
            "matched": overall.payments,
            "unmatched": len(books.unmatched),
            "unmatched_amount": str(_sum(books.unmatched)),
            "repeated_lines": books.repeated_lines,
        },
        "missing_lines": list(books.missing),
        "exceptions": list(exceptions),
        "unmatched_payments": [
            {
                "utr": p.utr,
                "day": p.day.isoformat(),
                "payer": p.payer,
                "reference": p.reference,
                "amount": str(p.amount),
            }
            for p in books.unmatched
        ],
    }


def undisturbed(folder: Path) -> Json:
    """The report as one uninterrupted loop computes it: what every run must come to, however often it was killed."""
    books, totals = read_books(folder), Totals.empty()
    matches = books.match(0, len(books.invoices))
    totals.add(matches)
    return report(books, totals, exceptions(matches))


def exceptions(matches: Iterable[Match]) -> list[Json]:
    return [match.exception() for match in matches if match.status != "matched"]


def number_key(text: str) -> str:
    """An invoice number without what payers do to it: case, spaces, separators, digits of another script."""
    plain = unicodedata.normalize("NFKC", text).upper()
    return "".join(str(unicodedata.decimal(c)) if c.isdecimal() else c for c in plain if c.isalnum())


def name_key(text: str) -> str:
    """A name without case, spacing and punctuation. Vowel signs of Indian scripts are marks, not letters, and stay."""
    return "".join(c for c in unicodedata.normalize("NFKC", text).casefold() if unicodedata.category(c)[0] in "LMN")


def to_date(text: str) -> date:
    """An ISO date, or DD/MM/YYYY."""
    text = text.strip()
    return datetime.strptime(text, "%d/%m/%Y").date() if "/" in text else date.fromisoformat(text)  # noqa: DTZ007 - a day


def to_amount(text: str) -> Decimal:
    """`4,12,500.00` as Decimal: the grouping differs by country and says nothing."""
    return Decimal(text.replace(",", "").strip())


def _sum(payments: Iterable[Payment]) -> Decimal:
    return sum((payment.amount for payment in payments), Decimal("0.00"))


def _rows(path: Path) -> Iterable[dict[str, str]]:
    # Spreadsheets put a byte order mark before the first heading.
    with path.open(encoding="utf-8-sig", newline="") as file:
        yield from csv.DictReader(file)
