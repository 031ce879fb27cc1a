"""The sample agent's arithmetic and files. No server: what a run must come to is a pure function of the two files."""

import random
from datetime import date
from decimal import Decimal

import pytest

from config.demo import reconcile
from config.demo.agent import DATA
from config.demo.data import generate
from config.demo.reconcile import CannotReconcile, Totals


def test_the_files_are_what_the_generator_writes() -> None:
    for name, content in generate.Generator(generate.SEED).files().items():
        assert (DATA / name).read_bytes() == content, f"run platform/config/demo/data/generate.py again: {name}"


def test_the_files_have_the_dirt_of_real_ones() -> None:
    statement = (DATA / "bank_statement.csv").read_bytes()
    text = statement.decode("utf-8-sig")
    assert statement.startswith(b"\xef\xbb\xbf")
    assert text.count("\r\n") == len(text.splitlines())
    assert ',"-38,392.41",' in text
    assert "ट्रेडर्स" in text
    assert "ज\u095b" not in text
    assert "\u095bमीन" in text
    assert "ज\u093cमीन" in text
    assert any(line[4:5] == "-" for line in text.splitlines())
    assert any(line[2:3] == "/" for line in text.splitlines())


def test_every_invoice_and_payment_is_accounted_for_as_planned() -> None:
    plan, report = generate.PLAN, reconcile.undisturbed(DATA)
    counts = {status: sums["count"] for status, sums in report["by_status"].items()}
    unmatched = plan["unpaid"] + plan["twins"] + plan["reversed"] + plan["lost_row"]
    assert report["invoices"]["count"] == sum(plan.values()) == 842
    assert counts == {
        "matched": sum(plan[f] for f in ("plain", "messy_reference", "instalments", "rounding", "no_reference")),
        "partially_paid": plan["partial"],
        "overpaid": plan["paid_twice"] + plan["paid_too_much"],
        "unmatched": unmatched,
    }
    assert report["open"] == {"count": plan["partial"] + unmatched, "amount": str(generate.OPEN_AMOUNT)}
    assert report["payments"]["repeated_lines"] == generate.DUPLICATE_ROWS
    assert report["payments"]["unmatched"] == generate.UNKNOWN_REFERENCES + generate.STRAY_PAYMENTS + 1
    assert len(report["exceptions"]) == 842 - counts["matched"]


def test_the_missing_line_is_told_from_the_balance() -> None:
    report = reconcile.undisturbed(DATA)
    (missing,) = report["missing_lines"]
    unpaid = [item for item in report["exceptions"] if item["invoiced"] == missing["amount"]]
    assert [item["status"] for item in unpaid] == ["unmatched"]


@pytest.mark.parametrize("seed", range(5))
def test_totals_do_not_depend_on_how_the_work_is_cut(seed: int) -> None:
    # As the agent does it: totals go through JSON between chunks, exceptions are appended.
    dice = random.Random(seed)
    books, state, exceptions, start = reconcile.read_books(DATA), Totals.empty().to_json(), list[reconcile.Json](), 0
    while start < len(books.invoices):
        end = start + dice.randrange(1, 200)
        totals, matches = Totals.from_json(state), books.match(start, end)
        totals.add(matches)
        state, start = totals.to_json(), end
        exceptions += reconcile.exceptions(matches)
    assert reconcile.report(books, Totals.from_json(state), exceptions) == reconcile.undisturbed(DATA)


@pytest.mark.parametrize("repeated", [0, 40])
def test_a_chunk_counted_twice_or_not_at_all_is_no_report(repeated: int) -> None:
    books, totals = reconcile.read_books(DATA), Totals.empty()
    totals.add(books.match(40, len(books.invoices)))
    totals.add(books.match(0, repeated))
    totals.add(books.match(0, repeated))
    with pytest.raises(CannotReconcile, match="invoices counted"):
        reconcile.report(books, totals, [])


@pytest.mark.parametrize(
    "typed", ["INV-2026-0042", " inv-2026-0042 ", "Inv/2026/0042", "inv 2026 0042", "INV2026०0४२", "INV‑2026‑0042"]
)
def test_references_are_read_as_people_type_them(typed: str) -> None:
    assert reconcile.number_key(typed) == "INV20260042"


def test_names_are_compared_without_case_spacing_and_encoding() -> None:
    assert reconcile.name_key("NILGIRI  textiles PVT LTD") == reconcile.name_key("Nilgiri Textiles Pvt. Ltd.")
    assert reconcile.name_key("\u095bमीन ट्रेडर्स") == reconcile.name_key("ज\u093cमीन  ट्रेडर्स")
    assert reconcile.name_key("नीलगगन") != reconcile.name_key("नलगगन")


def test_amounts_and_days_are_read_in_both_forms() -> None:
    assert reconcile.to_amount(" -4,12,500.05") == Decimal("-412500.05")
    assert reconcile.to_date("03/11/2026") == reconcile.to_date("2026-11-03") == date(2026, 11, 3)


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        ("5", "5.00"),
        ("999.9", "999.90"),
        ("1000", "1,000.00"),
        ("412500", "4,12,500.00"),
        ("-10000000", "-1,00,00,000.00"),
    ],
)
def test_digits_are_grouped_as_in_india(amount: str, text: str) -> None:
    assert generate.indian(Decimal(amount)) == text
