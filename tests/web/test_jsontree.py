"""JSON shown to people: exact, escaped, and cut with a note."""

import json

from kernel.web import jsontree


def test_numbers_keep_their_characters() -> None:
    shown = jsontree.tree(b'{"a": 1.10, "b": 12345678901234567890, "c": 1e3, "d": -0.0}')
    for number in ("1.10", "12345678901234567890", "1e3", "-0.0"):
        assert f">{number}<" in shown


def test_nothing_is_trusted_as_markup() -> None:
    shown = jsontree.tree(json.dumps({"<b>": "<script>alert(1)</script>"}).encode())
    assert "<script>" not in shown
    assert "<b>" not in shown


def test_what_is_too_large_is_cut_with_a_count() -> None:
    assert "900 more" in jsontree.tree(json.dumps(list(range(1000))).encode())
    assert "(5000 characters in all)" in jsontree.tree(json.dumps("x" * 5000).encode())
    wide = jsontree.tree(json.dumps([[0] * 50] * 90).encode())
    assert wide.count("<li>") < 2 * jsontree.MAX_NODES
    assert "more" in wide
    deep: object = 1
    for _ in range(200):
        deep = [deep]
    assert "1 item" in jsontree.tree(json.dumps(deep).encode())


def test_empty_and_plain_values() -> None:
    assert "{}" in jsontree.tree(b"{}")
    assert "null" in jsontree.tree(b"null")
    assert "true" in jsontree.tree(b"[true]")


def test_what_is_decided_about_is_shown_whole_and_hides_nothing() -> None:
    body = '{"n": 1.10, "big": 12345678901234567890.000, "hidden": "a\u202eb\u200bc\u0007", "हि": "क्\u200dष", "e": {}, "l": [null]}'
    shown = jsontree.exact(body.replace("\u0007", "\\u0007").encode())
    assert shown == (
        '{\n  "n": 1.10,\n  "big": 12345678901234567890.000,\n  "hidden": "a\\u202eb\\u200bc\\u0007",\n'
        '  "हि": "क्\u200dष",\n  "e": {},\n  "l": [\n    null\n  ]\n}'
    )
    assert json.loads(shown)["hidden"] == "a\u202eb\u200bc\u0007"
    assert "y" * 5000 in jsontree.exact(json.dumps({"x": ["y" * 5000] * 200}).encode())
