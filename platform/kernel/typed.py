"""What msgspec found wrong with a typed body, as a problem that names the field by JSON pointer and says the limit.

Invariant: the message never repeats a value of the body, only names.
"""

import re
from collections.abc import Callable
from typing import Any, Final

import msgspec

from kernel.errors import FieldError, Invalid
from kernel.jsonwalk import pointer

_PLACE: Final = re.compile(r"(?P<what>.*?)(?: - at (?P<key>`key` in )?`(?P<path>\$[^`]*)`)?", re.DOTALL)
_SEGMENT: Final = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")

# Each rule of msgspec's messages: a pattern, the code, and the sentence built from the pattern's groups.
_RULES: Final[tuple[tuple[re.Pattern[str], str, str], ...]] = tuple(
    (re.compile(pattern), code, message)
    for pattern, code, message in (
        (r"Object contains unknown field `(?P<name>.*)`", "unknown_field", "There is no such field."),
        (r"Object missing required field `(?P<name>.*)`", "missing_field", "This field is required."),
        (r"Expected `(?P<type>.+)` of length (?P<op>[<>]=?) (?P<limit>\d+)", "length", ""),
        (r"Expected `(?P<type>.+)` matching regex '(?P<limit>.*)'", "pattern_mismatch", "This must match {limit}."),
        (
            r"Expected `(?P<type>.+)` that's a multiple of (?P<limit>.+)",
            "out_of_range",
            "This must be a multiple of {limit}.",
        ),
        (
            r"Expected `(?P<type>.+)` (?P<op>[<>]=?) (?P<limit>-?[\d.e+-]+)",
            "out_of_range",
            "This must be {op} {limit}.",
        ),
        (r"Expected `(?P<type>.+)`, got `(?P<got>.+)`", "wrong_type", "This must be {type}, not {got}."),
        (r"Invalid enum value", "unknown_value", "This is none of the allowed values."),
        (r"Invalid value", "unknown_value", "This is none of the allowed values."),
        (r"Number out of range|Integer value out of range", "out_of_range", "This number is out of range."),
        (r"Invalid UUID", "wrong_format", "This must be a UUID."),
        (r"Invalid time", "wrong_format", "This must be an RFC 3339 time with a zone, such as 2026-01-31T09:30:00Z."),
        (r"Time too precise", "too_precise", "A time may have at most six digits of a second."),
        (r"Time out of range", "out_of_range", "A time must lie between the years 1900 and 2200."),
        (r"Invalid RFC3339 encoded datetime", "wrong_format", "This must be an RFC 3339 time."),
        (r"Invalid RFC3339 encoded date", "wrong_format", "This must be an RFC 3339 date."),
        (r"Expected `datetime` with a timezone component", "wrong_format", "This time needs a time zone."),
        (r"Invalid ISO8601 duration", "wrong_format", "This must be an ISO 8601 duration."),
        (r"Invalid decimal string", "wrong_format", "This must be a decimal string."),
    )
)
_UNITS: Final = {"str": "characters", "array": "items", "object": "members", "bytes": "bytes"}


def explain(error: msgspec.ValidationError, *, body: bytes, decoder: "msgspec.json.Decoder[Any]") -> Invalid:
    """The Invalid that says where `error`, raised by `decoder` for `body`, stands."""
    place = _PLACE.fullmatch(str(error))
    assert place is not None
    names = _resolve(_names(place["path"] or "$"), error, body, decoder, is_key=bool(place["key"]))
    code, message, limit, name = _rule(place["what"])
    path = pointer(*names, name) if name is not None else pointer(*names)
    field = FieldError(path=path, code=code, message=message, limit=limit)
    return Invalid(f"{path or 'The body'}: {message}", fields=(field,))


def _rule(what: str) -> tuple[str, str, int | float | str | None, str | None]:
    """Code, message, limit and field name of msgspec's sentence."""
    for pattern, code, message in _RULES:
        match = pattern.match(what)
        if match is None:
            continue
        groups = match.groupdict()
        if code == "length":
            code, message, groups["limit"] = _length(match)
        return code, message.format(**groups), _number(groups.get("limit")), groups.get("name")
    return "invalid", "This value is not acceptable.", None, None


def _length(match: re.Match[str]) -> tuple[str, str, str]:
    """Code, message and limit of a length rule, whichever way round msgspec puts it."""
    unit, op, limit = _UNITS.get(match["type"], "items"), match["op"], int(match["limit"])
    if "<" in op:
        return "too_long", f"This may have at most {{limit}} {unit}.", str(limit - (op == "<"))
    return "too_short", f"This must have at least {{limit}} {unit}.", str(limit + (op == ">"))


def _number(limit: str | None) -> int | float | str | None:
    for convert in (int, float):
        try:
            return convert(limit) if limit is not None else None
        except ValueError:
            continue
    return limit


def _names(path: str) -> list[str | int]:
    """`$.events[0].labels[...]` as names; `...` stands for a key that msgspec does not tell."""
    return [name or (int(index) if index != "..." else "...") for name, index in _SEGMENT.findall(path)]


def _resolve(
    names: list[str | int],
    error: msgspec.ValidationError,
    body: bytes,
    decoder: "msgspec.json.Decoder[Any]",
    *,
    is_key: bool,
) -> list[str | int]:
    """Put the keys in the place of every `...` (and at the end, when the key itself was refused)."""
    found: list[str | int] = []
    if is_key:
        names = [*names, "..."]
    for index, name in enumerate(names):
        if name != "...":
            found.append(name)
            continue
        key = _offending_key(found, str(error), body, decoder)
        if key is None:
            return found + [part for part in names[index:] if part != "..."]
        found.append(key)
    return found


def _offending_key(way: list[str | int], message: str, body: bytes, decoder: "msgspec.json.Decoder[Any]") -> str | None:
    """The key, in the object at `way`, whose removal heals the error: found by halving."""
    document = msgspec.json.decode(body)
    try:
        mapping = _reach(document, way)
    except (KeyError, IndexError, TypeError):
        return None
    if not isinstance(mapping, dict):
        return None

    def fails(keys: list[str]) -> bool:
        kept = {key: members[key] for key in keys}
        mapping.clear()
        mapping.update(kept)
        try:
            decoder.decode(msgspec.json.encode(document))
        except msgspec.ValidationError as again:
            return str(again) == message
        return False

    members: dict[str, Any] = dict(mapping)
    return _halve(list(members), fails)


def _halve(keys: list[str], fails: Callable[[list[str]], bool]) -> str | None:
    while len(keys) > 1:
        half = keys[: len(keys) // 2]
        keys = half if fails(half) else keys[len(half) :]
    return keys[0] if keys else None


def _reach(document: Any, way: list[str | int]) -> Any:
    for name in way:
        document = document[name]
    return document


def explain_parameter(error: msgspec.ValidationError) -> Invalid:
    """The Invalid of a query parameter; its path is the parameter's name."""
    place = _PLACE.fullmatch(str(error))
    assert place is not None
    code, message, limit, name = _rule(place["what"])
    path = pointer(name if name is not None else _names(place["path"] or "$")[0])[1:]
    message = message.replace("field", "parameter")
    return Invalid(f"{path}: {message}", fields=(FieldError(path=path, code=code, message=message, limit=limit),))
