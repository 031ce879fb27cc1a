"""Strict JSON: what passes is what the standard library reads, and every refusal names its place."""

import json
import math
import time
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kernel import codec, errors, jsonwalk

MB = 1_000_000
LIMIT = 60 * MB
BIG = str(2**53)

text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | text
    | st.sampled_from(
        ["[", "}", '"', "\\", '\\"]', ":", "1234567890123456789", ': 12345678901234567, "\\u0000', "\\u003a"]
    )
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=6) | st.dictionaries(text, inner, max_size=6), max_leaves=40
)


def refused(body: bytes | str, **limits: int) -> errors.DomainError:
    with pytest.raises(errors.DomainError) as caught:
        codec.decode(body if isinstance(body, bytes) else body.encode(), **{"max_bytes": LIMIT, **limits})
    return caught.value


@given(values, st.booleans(), st.sampled_from([None, 1, "\t"]))
@example({"a": {"b": [[], {}, [{}]], "c": "]["}}, True, None)
@example(["é", "\x7f", "\u2028"], True, None)
def test_agrees_with_the_standard_library(value: object, escape: bool, indent: int | str | None) -> None:
    body = json.dumps(value, ensure_ascii=escape, indent=indent).encode()
    found = codec.decode(body, max_bytes=LIMIT)
    assert json.dumps(found) == json.dumps(json.loads(body))
    jsonwalk.walk(body.decode(), max_depth=64)


@given(st.binary(max_size=40) | st.text('{}[]",:\\u0019-.eEdDtrunaflsNI \n', max_size=40).map(str.encode))
@settings(max_examples=500)
def test_accepts_nothing_that_the_standard_library_refuses(body: bytes) -> None:
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(items)) != len(items) or any("\x00" in key for key, _ in items):
            raise ValueError
        return dict(items)

    def finite(digits: str) -> float:
        if math.isinf(float(digits)):
            raise ValueError
        return float(digits)

    def whole(digits: str) -> int:
        if abs(int(digits)) > codec.MAX_INTEGER:
            raise ValueError
        return int(digits)

    def constant(name: str) -> None:
        raise ValueError(name)

    try:
        if body.startswith(b"\xef\xbb\xbf"):
            raise ValueError
        expected = json.loads(
            body.decode(), object_pairs_hook=pairs, parse_float=finite, parse_int=whole, parse_constant=constant
        )
        json.dumps(expected, ensure_ascii=False).encode()  # a lone surrogate cannot be encoded
        if "\\u0000" in json.dumps(expected):
            raise ValueError
    except ValueError:
        refused(body)
    else:
        assert json.dumps(codec.decode(body, max_bytes=LIMIT)) == json.dumps(expected)


@pytest.mark.parametrize(
    ("body", "code", "status", "path"),
    [
        ("", "empty_body", 400, ""),
        (" \n\t ", "empty_body", 400, ""),
        (b"\xef\xbb\xbf{}", "invalid_encoding", 400, ""),
        (b'{"a": ["x", "\xff"]}', "invalid_encoding", 400, "/a/1"),
        (b'{"a": ["x", "\xed\xa0\x80"]}', "invalid_encoding", 400, "/a/1"),
        (b'{"\xc3": 1}', "invalid_encoding", 400, ""),
        (b"{} \xff", "invalid_encoding", 400, ""),
        ('{"a": 1} x', "invalid_json", 400, ""),
        ('{"a": 1}{}', "invalid_json", 400, ""),
        ('{"a": [1, 2', "invalid_json", 400, "/a/1"),
        ('{"a": {"b": tru}}', "invalid_json", 400, "/a/b"),
        ('{"a": {"b": 01}}', "invalid_json", 400, "/a/b"),
        ('{"a": [1, ]}', "invalid_json", 400, "/a/1"),
        ('{"a": 1,}', "invalid_json", 400, ""),
        ('{"a" 1}', "invalid_json", 400, "/a"),
        ('{"a": {', "invalid_json", 400, "/a"),
        ('{"a": [', "invalid_json", 400, "/a/0"),
        ('{"a": "\x01"}', "invalid_json", 400, "/a"),
        (b'{"a": "\x00"}', "invalid_json", 400, "/a"),
        ('{"a": "\\x"}', "invalid_json", 400, "/a"),
        ("{'a': 1}", "invalid_json", 400, ""),
        ("[1}", "invalid_json", 400, "/0"),
        ('{"a": [0, NaN]}', "number_not_finite", 422, "/a/1"),
        ("-Infinity", "number_not_finite", 422, ""),
        ('{"a": [0, {"b": 1e400}]}', "number_not_finite", 422, "/a/1/b"),
        ('{"a": -1.5E+9999}', "number_not_finite", 422, "/a"),
        ('{"a": {"b": 1180591620717411303424}}', "integer_out_of_range", 422, "/a/b"),
        (f'{{"a": {BIG}}}', "integer_out_of_range", 422, "/a"),
        (f"[-{BIG}]", "integer_out_of_range", 422, "/0"),
        (BIG, "integer_out_of_range", 422, ""),
        ("1" * 5000, "integer_out_of_range", 422, ""),
        ('{"a": {"x": 1, "x": 2}}', "duplicate_key", 422, "/a/x"),
        ('{"a": 1, "\\u0061": 2}', "duplicate_key", 422, "/a"),
        ('{"a/b~": {"": 1, "": 2}}', "duplicate_key", 422, "/a~1b~0/"),
        ('{"x": 1, "x": ":", "\\u003a": 1}', "duplicate_key", 422, "/x"),
        ('{"x": ":", "x": 1, "\\u003a": 1}', "duplicate_key", 422, "/x"),
        ('{"x": "\\u003a\\u003a", "x": "::"}', "duplicate_key", 422, "/x"),
        ('{"a": ["\\u0000"]}', "nul_character", 422, "/a/0"),
        ('{"a": {"x\\u0000y": 1}}', "nul_character", 422, "/a/x\ufffdy"),
        ('{"a": ["\\ud800"]}', "lone_surrogate", 422, "/a/0"),
        ('{"a": ["\\udc00\\ud800"]}', "lone_surrogate", 422, "/a/0"),
        ('{"a": {"\\udfff": 1}}', "lone_surrogate", 422, "/a/\ufffd"),
        ('{"a": ' + "[" * 64 + "]" * 64 + "}", "too_deep", 422, "/a" + "/0" * 63),
        ('[{"a":' * 33 + "1" + "}]" * 33, "too_deep", 422, "/0/a" * 32),
        ('[["]", "["],' + '[{"a":' * 32 + "1" + "}]" * 32 + "]", "too_deep", 422, "/1" + "/0/a" * 31 + "/0"),
        ("[" + "[]," * 600 + '[{"a":' * 32 + "1" + "}]" * 32 + "]", "too_deep", 422, "/600" + "/0/a" * 31 + "/0"),
        # The first offending value is named, whatever comes after it.
        ('{"a": 1, "a": NaN, "b": ', "duplicate_key", 422, "/a"),
        (b'{"a": 1, "a": 2, "b": "\xff"}', "duplicate_key", 422, "/a"),
    ],
)
def test_refuses_and_names_the_place(body: bytes | str, code: str, status: int, path: str) -> None:
    error = refused(body)
    assert (error.code, error.status, [field.path for field in error.fields]) == (code, status, [path])
    assert error.fields[0].code == code
    codec.dumps(errors.problem(error))


@pytest.mark.parametrize(
    "body",
    [
        f'{{"a": {codec.MAX_INTEGER}, "b": -{codec.MAX_INTEGER}}}',
        '{"trace": "00000000000000000000000000000001", "x": 0.30000000000000004, "y": 1e20, "z": 12345678901234567.5}',
        '{"a": "\\\\u0000", "b": "\\u003a", "c": ": 99999999999999999999"}',
        '{"emoji": "\\ud83d\\ude00"}',
        '["\\"", "[", "\\\\", "]]]"]',
        "[" * 64 + "]" * 64,
        "[" + "[]," * 5000 + "{}]",
        json.dumps(["[" * 100, "}" * 100, [{"a": '"[' * 90}]]),
        "1e-400",
        " \n[1]\t ",
    ],
)
def test_accepts_what_only_looks_wrong(body: str) -> None:
    assert codec.decode(body.encode(), max_bytes=LIMIT) == json.loads(body)


def test_negative_zero_is_kept() -> None:
    assert math.copysign(1, codec.decode(b"-0.0", max_bytes=9)) == -1  # type: ignore[arg-type]
    assert codec.canonical(-0.0) == b"0"


def test_limits_are_said() -> None:
    error = refused("[1,2]", max_bytes=4)
    assert (error.code, error.status, error.extra) == ("body_too_large", 413, {"limit": 4})
    assert refused("[[[]]]", max_depth=2).fields[0].limit == 2
    assert refused(BIG).fields[0].limit == codec.MAX_INTEGER


def test_long_keys_are_shortened_in_paths() -> None:
    key = "k" * 10_000
    assert len(refused(f'{{"{key}": NaN}}').fields[0].path) < 200


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 10_000 + b"]" * 10_000,
        b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
        b"[" * 4 * MB,
        b'{"a":' * MB,
        b'"' + b"\\u0000" * MB + b'"',
        b'["' + b'\\"' * 2 * MB,
        b"1" * 4 * MB,
        b"1" * 4 * MB + b"e5",
        b"0." + b"1" * 4 * MB + b"e999",
        b"-" * 4 * MB,
        b" " * 4 * MB,
        b"[" + b"1," * MB + b"1" * 20 + b"]",
        b"[" + b'{"a":1},' * 200_000 + b'{"a":1,"a":1}]',
        b"[" + b'"' * 4 * MB,
        b"N" * 4 * MB,
        b"\xff" * 4 * MB,
    ],
    ids=lambda body: f"{body[:12]!r}",
)
def test_hostile_bodies_cost_linear_time(body: bytes) -> None:
    start = time.process_time()
    refused(body)
    assert time.process_time() - start < 10


def test_fifty_megabytes_are_refused_before_they_are_read() -> None:
    start = time.process_time()
    refused(b"[" * 50 * MB, max_bytes=MB)
    assert time.process_time() - start < 0.5


@pytest.mark.parametrize(
    ("body", "path"), [("[" * 10_000 + "]" * 10_000, "/0" * 64), ('{"a":' * 10_000 + "1" + "}" * 10_000, "/a" * 64)]
)
def test_ten_thousand_levels_name_the_first_level_too_deep(body: str, path: str) -> None:
    error = refused(body)
    assert (error.code, error.fields[0].path) == ("too_deep", path)


class Item(msgspec.Struct, forbid_unknown_fields=True):
    type: Annotated[str, msgspec.Meta(min_length=2, max_length=5, pattern="^[a-z]+$")]
    n: Annotated[int, msgspec.Meta(ge=1, le=5)] = 1
    labels: dict[Annotated[str, msgspec.Meta(max_length=3)], Annotated[str, msgspec.Meta(max_length=3)]] = {}
    payload: msgspec.Raw = msgspec.Raw(b"")


class Body(msgspec.Struct, forbid_unknown_fields=True):
    events: Annotated[list[Item], msgspec.Meta(max_length=2)]


@pytest.mark.parametrize(
    ("body", "path", "code", "limit"),
    [
        ("[]", "", "wrong_type", None),
        ("{}", "/events", "missing_field", None),
        ('{"events": 1}', "/events", "wrong_type", None),
        ('{"events": [{}]}', "/events/0/type", "missing_field", None),
        ('{"events": [{"type": "ab"}, {"type": "ab", "foo~/": 1}]}', "/events/1/foo~0~1", "unknown_field", None),
        ('{"events": [{"type": 1}]}', "/events/0/type", "wrong_type", None),
        ('{"events": [{"type": null}]}', "/events/0/type", "wrong_type", None),
        ('{"events": [{"type": "abcdef"}]}', "/events/0/type", "too_long", 5),
        ('{"events": [{"type": "a"}]}', "/events/0/type", "too_short", 2),
        ('{"events": [{"type": "AB"}]}', "/events/0/type", "pattern_mismatch", "^[a-z]+$"),
        ('{"events": [{"type": "ab", "n": 0}]}', "/events/0/n", "out_of_range", 1),
        ('{"events": [{"type": "ab", "n": 6}]}', "/events/0/n", "out_of_range", 5),
        ('{"events": [{"type": "ab", "n": 1.5}]}', "/events/0/n", "wrong_type", None),
        (
            '{"events": [{"type": "ab", "labels": {"a": "b", "c": 1, "d": "e"}}]}',
            "/events/0/labels/c",
            "wrong_type",
            None,
        ),
        (
            '{"events": [{"type": "ab", "labels": {"a": "b", "c": "d", "e": "long"}}]}',
            "/events/0/labels/e",
            "too_long",
            3,
        ),
        ('{"events": [{"type": "ab", "labels": {"a": "b", "long": "d"}}]}', "/events/0/labels/long", "too_long", 3),
        ('{"events": [{"type":"ab"},{"type":"ab"},{"type":"ab"}]}', "/events", "too_long", 2),
    ],
)
def test_typed_refusals_name_the_field(body: str, path: str, code: str, limit: int | str | None) -> None:
    with pytest.raises(errors.Invalid) as caught:
        codec.decode_as(body.encode(), Body, max_bytes=LIMIT)
    [field] = caught.value.fields
    assert (field.path, field.code, field.limit) == (path, code, limit)
    assert path in caught.value.detail


def test_typed_bodies_keep_raw_payloads_to_the_letter() -> None:
    body = b'{"events": [{"type": "ab", "payload": {"zero": -0, "d": 1.10, "e": "\\u00e9"}}]}'
    [item] = codec.decode_as(body, Body, max_bytes=LIMIT).events
    assert bytes(item.payload) == b'{"zero": -0, "d": 1.10, "e": "\\u00e9"}'


def test_typed_bodies_are_checked_strictly_first() -> None:
    with pytest.raises(jsonwalk.DuplicateKey):
        codec.decode_as(b'{"events": [{"type": "ab", "payload": {"a": 1, "a": 2}}]}', Body, max_bytes=LIMIT)


def test_refusals_never_repeat_a_value() -> None:
    secret = "s3cr3t"
    for body in (f'{{"events": ["{secret}"]}}', f'{{"events": [{{"type": "{secret}"}}]}}', f'["{secret}", NaN]'):
        with pytest.raises(errors.DomainError) as caught:
            codec.decode_as(body.encode(), Body, max_bytes=LIMIT)
        assert secret not in str(errors.problem(caught.value))


def test_a_three_kilobyte_body_costs_microseconds() -> None:
    event = {
        "type": "tool",
        "labels": {"tool": "bank"},
        "input": {"q": "select 1", "n": 3},
        "output": {"text": "row " * 80},
    }
    body = json.dumps({"epoch": 3, "head": 4, "events": [event] * 6}).encode()
    best = math.inf
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(100):
            codec.decode(body, max_bytes=LIMIT)
        best = min(best, (time.perf_counter() - start) / 100)
    assert best < 100e-6  # about 15 µs; the bound leaves room for a busy machine
