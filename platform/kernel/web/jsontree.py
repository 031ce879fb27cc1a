"""JSON as a tree that a person can read. Numbers keep the characters they were stored with; nothing here is trusted as markup.

Invariant: a value too large to show is cut with a note that says how much is left out, never silently.
"""

import json
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext, ngettext

MAX_NODES: Final = 1_000
MAX_ITEMS: Final = 100
MAX_TEXT: Final = 400
MAX_DEPTH: Final = 40
JOINERS: Final = "\u200c\u200d"
_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


class _Number(str):
    """The characters of a number."""

    __slots__ = ()


@dataclass(slots=True)
class _Budget:
    left: int


def parse(body: bytes) -> Any:
    """Stored JSON with its numbers as they stand."""
    return json.loads(body, parse_float=_Number, parse_int=_Number)


def tree(body: bytes, limit: int = MAX_NODES) -> SafeString:
    """Nested lists with the first level open, of at most `limit` values. The caller puts it into `.json`."""
    value = parse(body)
    budget = _Budget(limit)
    if isinstance(value, dict | list) and value:
        return format_html("<ul>{}</ul>", _children(value, budget, 1))
    return format_html("<ul><li>{}</li></ul>", _leaf(value))


def exact(body: bytes) -> str:
    """The whole value as indented text, for somebody who decides about it. Numbers keep their characters; a character that cannot
    be seen, or that turns the text around it, stands escaped. Joiners stay: words of Indian scripts need them."""
    return printed(parse(body))


def printed(value: Any) -> str:
    """The same of a value that was parsed."""
    return "".join(_printed(value, ""))


def _printed(value: Any, margin: str) -> Iterator[str]:
    if isinstance(value, dict | list) and value:
        named = isinstance(value, dict)
        yield "{" if named else "["
        inner = margin + "  "
        items: Iterator[tuple[Any, Any]] = iter(value.items()) if isinstance(value, dict) else enumerate(value)
        for count, (key, item) in enumerate(items):
            yield f"{',' if count else ''}\n{inner}"
            if named:
                yield f"{_quoted(key)}: "
            yield from _printed(item, inner)
        yield f"\n{margin}{'}' if named else ']'}"
    elif isinstance(value, _Number):
        yield str(value)
    elif isinstance(value, str):
        yield _quoted(value)
    else:
        yield json.dumps(value)


def _quoted(text: str) -> str:
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(
        f"\\u{ord(sign):04x}" if sign not in JOINERS and unicodedata.category(sign) in _HIDDEN else sign
        for sign in quoted
    )


def _children(value: "dict[str, Any] | list[Any]", budget: _Budget, depth: int) -> SafeString:
    items: Iterator[tuple[Any, Any]] = iter(value.items() if isinstance(value, dict) else enumerate(value))
    parts: list[SafeString] = []
    for count, (key, item) in enumerate(items):
        if count >= MAX_ITEMS or budget.left <= 0:
            rest = len(value) - count
            note = ngettext("%(count)s more", "%(count)s more", rest) % {"count": rest}
            parts.append(format_html('<li><span class="x">{}</span></li>', note))
            break
        budget.left -= 1
        parts.append(_item(key, item, budget, depth))
    return format_html_join("", "{}", ((part,) for part in parts))


def _item(key: Any, item: Any, budget: _Budget, depth: int) -> SafeString:
    if not isinstance(item, dict | list) or not item:
        return format_html('<li><span class="k">{}</span>: {}</li>', key, _leaf(item))
    if depth >= MAX_DEPTH:
        return format_html('<li><span class="k">{}</span>: <span class="x">{}</span></li>', key, summary(item))
    opened = mark_safe(" open") if depth == 1 and len(item) <= 8 else ""
    return format_html(
        '<li><details{}><summary><span class="k">{}</span>: <span class="x">{}</span></summary><ul>{}</ul></details></li>',
        opened,
        key,
        summary(item),
        _children(item, budget, depth + 1),
    )


def summary(value: "dict[str, Any] | list[Any]") -> str:
    count = len(value)
    if isinstance(value, dict):
        return ngettext("%(count)s key", "%(count)s keys", count) % {"count": count}
    return ngettext("%(count)s item", "%(count)s items", count) % {"count": count}


def _leaf(value: Any) -> SafeString:
    if isinstance(value, _Number):
        return format_html('<span class="n">{}</span>', str(value))
    if isinstance(value, str):
        return format_html('<span class="s">"{}"</span>', _cut(value))
    if value is None or isinstance(value, bool):
        return format_html('<span class="n">{}</span>', json.dumps(value))
    return format_html('<span class="x">{}</span>', "{}" if isinstance(value, dict) else "[]")


def _cut(text: str) -> str:
    if len(text) <= MAX_TEXT:
        return text
    return text[:MAX_TEXT] + "… " + gettext("(%(count)s characters in all)") % {"count": len(text)}
