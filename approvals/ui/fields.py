"""A field for each value of an action, typed by its tool's JSON Schema, and the action again from what was typed.

Invariant: a value that nobody touched keeps its characters.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import msgspec
from django.utils.translation import gettext
from msgspec import Raw

from kernel import codec
from kernel.errors import DomainError
from kernel.web import jsontree, suspicion, unseen
from kernel.web.suspicion import Finding

MAX_EDITABLE: Final = 256 * 1024  # bytes of an action
_DRAWN: Final = ("bidi", "invisible", "control", "mixed")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
Kind = Literal["text", "long", "number", "choice", "yesno", "json"]


@dataclass(frozen=True, slots=True)
class Field:
    """One value. `name` is the form's, `label` the member's with nothing hidden in it. `text` is what stands in the control."""

    name: str
    key: str
    label: str
    kind: Kind
    text: str
    note: str
    required: bool
    choices: tuple[str, ...] = ()
    error: str = ""
    whole: bool = False

    @property
    def findings(self) -> list[Finding]:
        """What a control would hide: it shows a text as the browser draws it."""
        return [finding for finding in suspicion.of_text(self.text) if finding.kind in _DRAWN]


def fields(action: bytes, schema: bytes, posted: Mapping[str, str] | None = None) -> list[Field] | None:
    """The fields of an action that is an object; None for another one, or one that is too large: it is edited as JSON."""
    if len(action) > MAX_EDITABLE or action.lstrip()[:1] != b"{":
        return None
    values = msgspec.json.decode(action, type=dict[str, Raw])
    described = _properties(schema)
    required = set(described[1])
    found = []
    for index, key in enumerate([*values, *(name for name in described[0] if name not in values)]):
        rule = described[0].get(key)
        rule = rule if isinstance(rule, dict) else {}
        raw = values.get(key)
        kind, text = _shown(raw, rule)
        choices = tuple(str(item) for item in rule["enum"]) if kind == "choice" else ()
        note = rule.get("description")
        name = f"v{index}"
        if posted is not None and name in posted:
            text = posted[name]
        found.append(Field(
            name, key, unseen.visible(key), kind, text, unseen.visible(note) if isinstance(note, str) else "", key in required,
            choices, whole=rule.get("type") == "integer",
        ))  # fmt: skip
    return found


def assemble(action: bytes, schema: bytes, posted: Mapping[str, str]) -> tuple[bytes | None, list[Field]]:
    """The action with what was typed, as JSON; None with the fields that say what is wrong."""
    before = fields(action, schema) or []
    values = msgspec.json.decode(action, type=dict[str, Raw])
    after: list[Field] = []
    result: dict[str, Raw] = {}
    for field in before:
        text = posted.get(field.name, field.text)
        # A browser sends line ends of its own.
        if "\r\n" not in field.text:
            text = text.replace("\r\n", "\n")
        error = ""
        if text == field.text.replace("\r\n", "\n") or text == field.text:
            if field.key in values:
                result[field.key] = values[field.key]
        elif text == "" and field.kind != "text" and field.kind != "long":
            pass  # a value that was taken away
        else:
            try:
                result[field.key] = _typed(field, text)
            except ValueError as wrong:
                error = str(wrong)
        after.append(replace(field, text=text, error=error))
    if any(field.error for field in after):
        return None, after
    return msgspec.json.encode(result), after


def _typed(field: Field, text: str) -> Raw:
    match field.kind:
        case "number":
            if not _NUMBER.fullmatch(text.strip()) or (field.whole and not text.strip().lstrip("-").isdigit()):
                raise ValueError(gettext("This is a whole number.") if field.whole else gettext("This is a number."))
            return Raw(text.strip().encode())
        case "yesno":
            if text not in {"true", "false"}:
                raise ValueError(gettext("Choose yes or no."))
            return Raw(text.encode())
        case "json":
            try:
                codec.decode(text.encode(), max_bytes=MAX_EDITABLE)
            except (DomainError, UnicodeEncodeError):
                raise ValueError(gettext("This is not JSON.")) from None
            return Raw(text.encode())
        case "choice" if text not in field.choices:
            raise ValueError(gettext("Choose one of these."))
    try:
        return Raw(msgspec.json.encode(text))
    except UnicodeEncodeError:
        raise ValueError(gettext("This cannot be stored.")) from None


def _shown(raw: Raw | None, rule: Mapping[str, Any]) -> tuple[Kind, str]:
    """How a value is edited. What does not fit its description is edited as what it is."""
    kind = rule.get("type")
    if raw is None:
        plain: dict[Any, Kind] = {"integer": "number", "number": "number", "boolean": "yesno", "string": "text"}
        return (
            "choice" if _words(rule) and kind == "string" else plain.get(kind if isinstance(kind, str) else "", "json")
        ), ""
    body = bytes(raw)
    first = body[:1]
    if first == b'"':
        text = msgspec.json.decode(body)
        if _words(rule) and text in rule["enum"]:
            return "choice", text
        return ("long" if len(text) > 80 or "\n" in text or "\r" in text else "text"), text
    if first in b"tf":
        return "yesno", body.decode()
    if first in b"-0123456789":
        return "number", body.decode()
    return "json", jsontree.exact(body)


def _words(rule: Mapping[str, Any]) -> bool:
    choices = rule.get("enum")
    return isinstance(choices, list) and bool(choices) and all(isinstance(item, str) for item in choices)


def _properties(schema: bytes) -> tuple[dict[str, Any], list[str]]:
    found = msgspec.json.decode(schema) if schema else {}
    if not isinstance(found, dict):
        return {}, []
    properties, required = found.get("properties"), found.get("required")
    return (properties if isinstance(properties, dict) else {}), (required if isinstance(required, list) else [])
