"""Strict JSON in, JSON out. Parsers keep the last of two equal keys or turn 2^70 into a float; nothing passes here
that two readers could understand differently.

Invariant: what `decode` accepts is I-JSON (RFC 7493): UTF-8, unique keys, finite numbers, integers within ±(2^53-1),
no lone surrogates; and no NUL, which PostgreSQL cannot store. `decode` only checks: who must keep a value to the letter
(`-0`, the digits of a decimal) keeps its bytes (`msgspec.Raw`).

The happy path is a few passes at C speed that can have false alarms but miss nothing; only an alarm starts the slow
walk (`kernel.jsonwalk`) that finds the first offending value.
"""

import hashlib
import re
from itertools import accumulate
from typing import Any, Final, TypeVar, cast

import msgspec
import orjson

from kernel import jsonwalk, moments, typed
from kernel.canonical import canonical
from kernel.errors import DomainError, TooLarge
from kernel.jsonwalk import MAX_INTEGER, EmptyBody, InvalidEncoding, InvalidJson

__all__ = ["MAX_INTEGER", "TooLarge", "canonical", "decode", "decode_as", "decode_request", "depth", "dumps"]

T = TypeVar("T")
_decoders: dict[Any, "msgspec.json.Decoder[Any]"] = {}

_NOT_STRUCTURE: Final = bytes(set(range(256)) - set(b'{}[]"\\'))
_NOT_BRACKET: Final = bytes(set(range(256)) - set(b"{}[]"))
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_SQUARE: Final = bytes.maketrans(b"{}", b"[]")


def decode(body: bytes, *, max_bytes: int, max_depth: int = 64) -> object:
    """The value of a JSON text. Raises a DomainError (400 malformed, 413 too large, 422 value) that names the place.

    `max_depth` counts nested arrays and objects.
    """
    return _checked(body, max_bytes, max_depth)[0]


def decode_as(body: bytes, form: type[T], *, max_bytes: int, max_depth: int = 64) -> T:
    """The body as a `msgspec.Struct` (declared with `forbid_unknown_fields`).

    Raises what `decode` raises, and Invalid (422) that names the field.
    """
    return decode_request(body, form, max_bytes=max_bytes, max_depth=max_depth)[0]


def decode_request(body: bytes, form: type[T], *, max_bytes: int, max_depth: int = 64) -> tuple[T, bytes]:
    """`decode_as`, and a SHA-256 of the JSON value: the same whatever the order of members and the white space."""
    text = _checked(body, max_bytes, max_depth)[1]
    decoder = _decoders.get(form) or _decoders.setdefault(form, msgspec.json.Decoder(form, dec_hook=moments.decode))
    try:
        return cast(T, decoder.decode(body)), hashlib.sha256(text).digest()
    except msgspec.ValidationError as error:
        raise typed.explain(error, body=body, decoder=decoder) from error


def dumps(value: object) -> bytes:
    """JSON for a response; times in UTC with `Z`. Takes UUIDs, dataclasses and `orjson.Fragment` (ready JSON) too."""
    return orjson.dumps(value, option=orjson.OPT_UTC_Z)


def _checked(body: bytes, max_bytes: int, max_depth: int) -> tuple[object, bytes]:
    """The value of a body that breaks no rule, and its text with sorted members."""
    if len(body) > max_bytes:
        raise TooLarge(max_bytes)
    try:
        value = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _first_error(body, max_depth) from error
    try:
        text = orjson.dumps(value, option=orjson.OPT_STRICT_INTEGER | orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:
        text = b""
    if _suspicious(body, text, max_depth):
        jsonwalk.walk(body.decode(), max_depth=max_depth)
    return value, text or body


def _suspicious(body: bytes, text: bytes, max_depth: int) -> bool:
    """Might `body`, which was read as the value of `text`, break a rule that the reader does not know?"""
    # An escape of NUL, or of a colon, which would upset the count below.
    if b"\\" in body and b"\\u00" in body and (b"\\u0000" in body or b"\\u003" in body):
        return True
    if body.count(b"{") + body.count(b"[") > max_depth and depth(body) > max_depth:
        return True
    # Every member has one colon outside of strings, and strings keep theirs, so a lost member is a lost colon.
    return not text or body.count(b":") != text.count(b":")


def depth(body: bytes) -> int:
    """The depth of a well-formed JSON text."""
    structure = body.translate(_SQUARE, _NOT_STRUCTURE)
    if b"\\" in structure:
        structure = structure.replace(b"\\\\", b"").replace(b'\\"', b"").replace(b"\\", b"")
    # What is left of a string without brackets is two quotes. If quotes remain, some string has brackets.
    structure = structure.replace(b'""', b"")
    if b'"' in structure:
        structure = _STRING.sub(b"", body).translate(_SQUARE, _NOT_BRACKET)
    if len(structure) > 1024:
        return max(accumulate(1 if sign == ord("[") else -1 for sign in structure))
    levels = 0
    while structure:
        structure = structure.replace(b"[]", b"")
        levels += 1
    return levels


def _first_error(body: bytes, max_depth: int) -> DomainError:
    """Why `body` could not be read."""
    try:
        if not body.strip(b" \t\r\n"):
            return EmptyBody()
        if body.startswith(b"\xef\xbb\xbf"):
            return InvalidEncoding("", "The body begins with a byte order mark; send plain UTF-8.")
        try:
            text = body.decode()
        except UnicodeDecodeError as error:
            jsonwalk.walk(body[: error.start].decode(), max_depth=max_depth, cut=True)
            return InvalidEncoding("")
        jsonwalk.walk(text, max_depth=max_depth)
    except DomainError as found:
        return found
    return InvalidJson("", 0)
