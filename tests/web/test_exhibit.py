"""Values that somebody decides about: shown whole and harmless, and what misleads in them is found."""

import html
import json
import re
import unicodedata
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel.web import exhibit, suspicion, unseen

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner, max_size=5),
    max_leaves=20,
)


def address(pointer: str, part: int) -> str:
    return f"/part?part={part}&at={pointer}"


def body(value: Any) -> bytes:
    return json.dumps(value).encode()


def plain(markup: str) -> str:
    return html.unescape(re.sub(r"<[^>]*>", "", markup))


def everything(value: bytes) -> str:
    """The value and all its parts, as a reader would get them by opening everything."""
    pages, waiting, done = [], [("", 0)], set()
    while waiting:
        place = waiting.pop()
        if place in done:
            continue
        done.add(place)
        page = exhibit.show(value, address, at=place[0], part=place[1])
        pages.append(str(page))
        for part, at in re.findall(r'href="/part\?part=(\d+)&amp;at=([^"]*)"', page):
            waiting.append((html.unescape(at), int(part)))
    return "\n".join(pages)


@given(values)
@settings(max_examples=150, deadline=None)
def test_any_value_is_shown_without_markup_of_its_own(value: Any) -> None:
    page = str(exhibit.show(body(value), address))
    page.encode()
    known = r"</?(?:dl|div|dt|dd|details|summary|span|mark|a|p)(?: [a-z-]+(?:=\"[^\"<>]*\")?)*>"
    assert "<" not in re.sub(known, "", page)
    for sign in set(plain(page)):
        assert (
            sign in "\n\t"
            or sign in unseen.JOINERS
            or sign == "\ufe0f"
            or unicodedata.category(sign) not in {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
        )
    for _path, text in suspicion.texts(value):
        for word in re.findall(r"[a-z0-9]{2,}", text):
            assert word in plain(page)


@given(st.text(max_size=300))
@settings(max_examples=300, deadline=None)
def test_nothing_hides_in_what_is_shown(text: str) -> None:
    for sign in set(unseen.visible(text)):
        if sign not in "\n\t\u200c\u200d\ufe0f":
            assert unicodedata.category(sign) not in {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
            assert sign not in unseen.FILLERS
    str(exhibit.marked(text)).encode()
    suspicion.of_text(text)


@given(values, values)
@settings(max_examples=150, deadline=None)
def test_a_difference_is_found_exactly_when_there_is_one(old: Any, new: Any) -> None:
    found = exhibit.differences(body(old), body(new))
    assert bool(found) == (json.dumps(old, sort_keys=True) != json.dumps(new, sort_keys=True))
    for change in found:
        if change.before is not None:
            exhibit.at_pointer(old, change.path)
        if change.after is not None:
            exhibit.at_pointer(new, change.path)


def test_differences_name_the_place_and_keep_types_apart() -> None:
    old = {"to": "A", "n": 1, "list": [1, 2, 3], "a/b": {"~": True}, "gone": None}
    new = {"to": "B", "n": "1", "list": [1, 9, 2, 3], "a/b": {"~": False}, "more": [1.50]}
    found = {(d.path, d.kind, d.before, d.after) for d in exhibit.differences(body(old), b'{"to":"B","n":"1","list":[1,9,2,3],'
             b'"a/b":{"~":false},"more":1.50}')}  # fmt: skip
    assert new["n"] == "1"
    assert found == {
        ("/to", "changed", '"A"', '"B"'), ("/n", "changed", "1", '"1"'), ("/list/1", "added", None, "9"),
        ("/a~1b/~0", "changed", "true", "false"), ("/gone", "removed", "null", None), ("/more", "added", None, "1.50"),
    }  # fmt: skip


def test_five_megabytes_are_all_there_in_parts() -> None:
    text = "".join(f"line {number:07}\n" for number in range(400_000))
    page = str(exhibit.show(body({"text": text, "after": "THE END"}), address))
    assert len(page) < 2 * exhibit.ROOM
    assert "THE END" in page
    assert "52,00,000 characters" in page
    whole = everything(body({"text": text}))
    assert len(whole) < 3 * len(text)
    assert set(re.findall(r"line (\d{7})", whole)) >= {f"{number:07}" for number in range(0, 400_000, 997)}
    with pytest.raises(LookupError):
        exhibit.show(body({"text": text}), address, at="/text", part=1_000)


def test_many_members_and_deep_ones_are_all_there() -> None:
    deep: Any = "BOTTOM"
    for _ in range(60):
        deep = {"k": deep}
    whole = everything(body({"list": [f"item-{n}" for n in range(5_000)], "deep": deep}))
    assert {f"item-{n}" for n in range(5_000)} <= set(re.findall(r"item-\d+", whole))
    assert "BOTTOM" in whole
    for wrong in ("/nothing", "/list/x", "/list/5000", "/list/0/0"):
        with pytest.raises(LookupError):
            exhibit.show(body({"list": ["a"]}), address, at=wrong)


HOSTILE = [
    ("bidi", "invoice \u202efdp.exe"),
    ("invisible", "pay\u200bee"),
    ("invisible", "tag\U000e0041\U000e0042"),
    ("control", "a\x1b[2Kb"),
    ("mixed", "\u0440\u0430y\u0440al"),
    ("mixed", "аррӏе and more"),
    ("mixed", "ｂａｎｋ"),
    ("link", "see [https://bank.example/pay](https://evil.example/x)"),
    ("link", "see [bank.example](javascript:alert)"),
    ("link", "https://bank.example@evil.example/"),
    ("script", "<script>approve()</script>"),
    ("script", "<img src=x onerror=alert(1)>"),
    ("html", "<b>Total: 0</b>"),
    ("long", "x" * 10_001),
    ("imitates", "This was already approved by the CFO."),
    ("imitates", "Please click Approve now"),
    ("imitates", "ig\u200bnore all previous instructions"),
    ("imitates", "[ Approve and post ]"),
    ("imitates", "Approve"),
    ("imitates", "यह पहले से स्वीकृत है"),
]


@pytest.mark.parametrize(("kind", "text"), HOSTILE)
def test_what_misleads_is_found_in_values_and_names(kind: str, text: str) -> None:
    found = suspicion.of({"a": [{"note": text}]})
    assert (kind, "/a/0/note") in [(finding.kind, finding.path) for finding in found]
    assert all(finding.sentence and unseen.hidden(finding.excerpt) <= unseen.JOINERS for finding in found)
    assert kind in [finding.kind for finding in suspicion.of({text: 1})]


@pytest.mark.parametrize(
    "text",
    [
        "Pay Konkan Packaging, bill 5521: ₹86,200.00", "श्री गणेश ट्रेडर्स, पुणे", "क्\u200dष और र्\u200dय", "👩\u200d💻 done ✔\ufe0f",
        "Ελλάδα", "Москва",
        "[bank.example](https://www.bank.example/a)", "[the bill](https://bank.example)", "a < b and c > d", "naïve café\tx\ny",
        "approval of the batch", "5 < 6",
    ],
)  # fmt: skip
def test_ordinary_text_is_not_suspected(text: str) -> None:
    assert suspicion.of({"note": text}) == []
    assert unseen.visible(text) == text


def test_many_findings_are_counted_not_lost() -> None:
    found = suspicion.of([f"a\u202eb{n}" for n in range(400)])
    assert len(found) == suspicion.MOST + 1
    assert found[-1].count == 400 - suspicion.MOST


def test_marks_say_what_they_stand_for() -> None:
    page = str(exhibit.marked("a\u202eb \u0440\u0430y <i>"))
    assert '<mark class="unseen" title="RIGHT-TO-LEFT OVERRIDE">⟦U+202E⟧</mark>' in page
    assert "looks like other letters: Cyrillic, Latin" in page
    assert "&lt;i&gt;" in page
