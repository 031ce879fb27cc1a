"""Canonical JSON (RFC 8785): one value, one byte string, so that a digest can be checked by anyone in any language.

Invariant: keys in UTF-16 code unit order, numbers as ECMAScript writes them, nothing that I-JSON (RFC 7493) cannot
hold. Numbers are doubles: 1e20 becomes the twenty-one digits that `decode` would refuse as an integer, so canonical
text is for digests, not for sending back.
"""

import math
import re
from typing import Final

import orjson

# A float in compact JSON, outside a string or (a false alarm) in one; first a quick look, then a closer one.
_DIGITS_TO_ZERO: Final = bytes.maketrans(b"123456789", b"000000000")
_MAYBE_FLOAT: Final = re.compile(rb"(?:^|[\[:,])-?[0-9]++[.e]")
_ASTRAL: Final = re.compile(rb"[\xf0-\xf4]")


def canonical(value: object) -> bytes:
    """The RFC 8785 form.

    Raises ValueError for NaN, Infinity, integers beyond ±(2^53-1), lone surrogates and foreign types.
    """
    try:
        text = orjson.dumps(
            value, option=orjson.OPT_SORT_KEYS | orjson.OPT_STRICT_INTEGER | orjson.OPT_PASSTHROUGH_SUBCLASS
        )
    except orjson.JSONEncodeError as error:
        raise ValueError(f"no canonical JSON: {error}") from error
    if b"null" in text:
        _refuse_not_finite(value)
    # orjson sorts by code points and writes floats its own way; only then the slow way is needed.
    if _has_float(text) or (not text.isascii() and _ASTRAL.search(text)):
        return _encode(orjson.loads(text)).encode()
    return text


def _has_float(text: bytes) -> bool:
    shape = text.translate(_DIGITS_TO_ZERO)
    return (b"0." in shape or b"0e" in shape) and _MAYBE_FLOAT.search(text) is not None


def _refuse_not_finite(value: object) -> None:
    """orjson writes NaN and Infinity as null."""
    waiting = [value]
    while waiting:
        match waiting.pop():
            case float() as number if not math.isfinite(number):
                raise ValueError("no canonical JSON: a number is not finite")
            case dict() as members:
                waiting.extend(members.values())
            case list() | tuple() as items:
                waiting.extend(items)


def _encode(value: object) -> str:
    # The depth is bounded: orjson has written and read the value before.
    match value:
        case dict():
            keys = sorted(value, key=_utf16)
            return "{" + ",".join(f"{_string(key)}:{_encode(value[key])}" for key in keys) + "}"
        case list():
            return "[" + ",".join(map(_encode, value)) + "]"
        case float():
            return number(value)
        case _:
            return _string(value)


def _string(value: object) -> str:
    return orjson.dumps(value).decode()


def _utf16(key: str) -> bytes:
    return key.encode("utf-16-be")


def number(value: float) -> str:
    """A finite double as ECMAScript's Number::toString writes it (ECMA-262, 6.1.6.1.20)."""
    if value == 0:
        return "0"
    mantissa, _, exponent = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    # The decimal point stands after `point` digits.
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    sign = "-" if value < 0 else ""
    if len(digits) <= point <= 21:
        return sign + digits + "0" * (point - len(digits))
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    power = f"e{point - 1:+d}"
    return sign + digits[0] + ("." + digits[1:] if len(digits) > 1 else "") + power
