"""The slow, exact reading of a JSON text: finds the first value that may not pass, and says where it stands.

Invariant: iterative and linear. Ten thousand levels or megabytes of hostile text cost time in proportion to their size,
and never the stack. Values are never repeated in messages, only where they stand.
"""

import math
import re
from json import JSONDecodeError
from json.decoder import scanstring  # type: ignore[attr-defined]  # not in the stubs; what JSONDecoder itself uses
from typing import ClassVar, Final

from kernel.errors import DomainError, FieldError

MAX_INTEGER: Final = 2**53 - 1
_SEGMENT: Final = 120  # characters of a key that a path repeats

_SPACE: Final = re.compile(r"[ \t\n\r]*+")
_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]*+)((?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?)")
_WORD: Final = re.compile(r"-?[A-Za-z]++")
_LITERALS: Final = frozenset({"true", "false", "null"})
_NOT_FINITE: Final = frozenset({"NaN", "-NaN", "Infinity", "-Infinity"})
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_UNSAFE: Final = re.compile("[\ud800-\udfff\x00-\x1f]")


class JsonError(DomainError):
    """A JSON text that may not pass; `fields` holds the one place."""

    message: ClassVar[str]
    limit: ClassVar[int | None] = None

    def __init__(
        self, path: str, message: str | None = None, limit: int | None = None, offset: int | None = None
    ) -> None:
        field = FieldError(path=path, code=self.code, message=message or self.message, limit=limit or self.limit)
        super().__init__(field.message, fields=(field,), extra={} if offset is None else {"offset": offset})


class EmptyBody(JsonError):
    code = "empty_body"
    status = 400
    title = "The body is empty"
    message = "Send a JSON value."

    def __init__(self) -> None:
        super().__init__("")


class InvalidEncoding(JsonError):
    code = "invalid_encoding"
    status = 400
    title = "The body is not UTF-8"
    message = "These bytes are not UTF-8."


class InvalidJson(JsonError):
    """`offset` counts characters from the start of the body."""

    code = "invalid_json"
    status = 400
    title = "The body is not JSON"
    message = "This is not valid JSON."

    def __init__(self, path: str, offset: int) -> None:
        super().__init__(path, f"This is not valid JSON (at character {offset}).", offset=offset)


class NotFinite(JsonError):
    code = "number_not_finite"
    status = 422
    title = "A number is not finite"
    message = "Numbers must be finite doubles: no NaN, no Infinity, nothing beyond about 1.8e308."


class IntegerOutOfRange(JsonError):
    code = "integer_out_of_range"
    status = 422
    title = "An integer is out of range"
    message = f"Integers must lie within ±{MAX_INTEGER} (2^53 - 1); send larger ones as strings."
    limit = MAX_INTEGER


class DuplicateKey(JsonError):
    code = "duplicate_key"
    status = 422
    title = "A key stands twice in one object"
    message = "This key stands twice in its object."


class NulCharacter(JsonError):
    code = "nul_character"
    status = 422
    title = "A string holds a NUL character"
    message = "Strings and keys must not hold the NUL character (\\u0000)."


class LoneSurrogate(JsonError):
    code = "lone_surrogate"
    status = 422
    title = "A string holds half a character"
    message = "A surrogate escape (\\ud800 to \\udfff) stands without its other half."


class TooDeep(JsonError):
    code = "too_deep"
    status = 422
    title = "The body is nested too deeply"
    message = "Arrays and objects are nested too deeply here."


def pointer(*segments: str | int) -> str:
    """A JSON pointer (RFC 6901). Overlong keys are shortened, and what cannot be printed is replaced."""
    parts = []
    for segment in segments:
        text = _UNSAFE.sub("\ufffd", str(segment))
        text = text if len(text) <= _SEGMENT else text[:_SEGMENT] + "…"
        parts.append("/" + text.replace("~", "~0").replace("/", "~1"))
    return "".join(parts)


def walk(text: str, *, max_depth: int, cut: bool = False) -> None:
    """Raise the JsonError of the first offending value, or return. `cut`: what follows `text` was not UTF-8."""
    _Walk(text, max_depth, cut).run()


class _Walk:
    """One pass over a text. `names` is the way to the current value (None in an object whose first key is to come);
    `keys` are the keys seen in each open object, None for an array."""

    def __init__(self, text: str, max_depth: int, cut: bool) -> None:
        self.text, self.max_depth, self.cut = text, max_depth, cut
        self.pos = 0
        self.names: list[str | int | None] = []
        self.keys: list[set[str] | None] = []

    def run(self) -> None:
        while True:
            opened = self.value()
            if opened and not self.empty():
                if self.keys[-1] is not None:
                    self.key()
                continue
            if self.after():
                return

    def value(self) -> bool:
        """Read a scalar, or open a container and say so."""
        sign = self.peek()
        if sign in ("{", "["):
            if len(self.names) >= self.max_depth:
                raise TooDeep(self.path(), f"At most {self.max_depth} levels of nesting.", self.max_depth)
            self.pos += 1
            self.names.append(0 if sign == "[" else None)
            self.keys.append(set() if sign == "{" else None)
            return True
        if sign == '"':
            self.string()
        else:
            self.scalar()
        return False

    def empty(self) -> bool:
        """Close a container that was just opened and holds nothing."""
        if self.peek() != ("]" if self.keys[-1] is None else "}"):
            return False
        self.close()
        return True

    def after(self) -> bool:
        """Close what ends here and go to the next value; true at the end of the text."""
        while self.names:
            sign, keys = self.peek(), self.keys[-1]
            if sign == ",":
                self.pos += 1
                if keys is None:
                    self.names[-1] = int(self.names[-1] or 0) + 1
                else:
                    self.key()
                return False
            if sign != ("]" if keys is None else "}"):
                raise self.malformed()
            self.close()
        if self.peek(end=True):
            raise self.malformed()
        return True

    def close(self) -> None:
        self.pos += 1
        self.names.pop()
        self.keys.pop()

    def key(self) -> None:
        self.names[-1] = None
        if self.peek() != '"':
            raise self.malformed()
        self.names[-1] = name = self.string(key=True)
        keys = self.keys[-1]
        assert keys is not None
        if name in keys:
            raise DuplicateKey(self.path())
        keys.add(name)
        if self.peek() != ":":
            raise self.malformed()
        self.pos += 1

    def string(self, *, key: bool = False) -> str:
        start = self.pos
        try:
            value, self.pos = scanstring(self.text, start + 1, True)
        except JSONDecodeError as error:
            self.pos = len(self.text) if error.msg.startswith("Unterminated") else error.pos
            raise self.malformed() from None
        # Raw text is UTF-8 without control characters, so both can come from escapes only.
        if self.text.find("\\u", start, self.pos) >= 0:
            if "\x00" in value:
                raise NulCharacter(self.path(value if key else None))
            if _SURROGATE.search(value):
                raise LoneSurrogate(self.path(value if key else None))
        return str(value)

    def scalar(self) -> None:
        match = _NUMBER.match(self.text, self.pos)
        if match is None:
            word = _WORD.match(self.text, self.pos)
            found = word.group() if word else ""
            if found in _NOT_FINITE:
                raise NotFinite(self.path())
            if found not in _LITERALS:
                raise self.malformed()
            self.pos += len(found)
            return
        digits, rest = match.groups()
        if rest:
            if math.isinf(float(match.group())):
                raise NotFinite(self.path())
        elif len(digits) > 16 or int(digits) > MAX_INTEGER:
            raise IntegerOutOfRange(self.path())
        self.pos = match.end()

    def peek(self, *, end: bool = False) -> str:
        match = _SPACE.match(self.text, self.pos)
        self.pos = match.end() if match else self.pos
        if self.pos < len(self.text):
            return self.text[self.pos]
        if end and not self.cut:
            return ""
        raise self.malformed()

    def malformed(self) -> JsonError:
        if self.cut and self.pos >= len(self.text):
            return InvalidEncoding(self.path())
        return InvalidJson(self.path(), self.pos)

    def path(self, key: str | None = None) -> str:
        return pointer(*(name for name in (*self.names, key) if name is not None))
