"""A JSON value that somebody decides about: whole, readable, and harmless.

Nothing is cut. What is too much for one page stands in numbered parts, each at an address of its own, and the page says how many
there are. Every text is escaped, and what cannot be seen in it is marked.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from django.utils.html import conditional_escape, format_html
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext, ngettext

from kernel.web import jsontree, text, unseen
from kernel.web.suspicion import pointer

FOLD: Final = 600  # characters of a text from which on it is folded
PART: Final = 48 * 1024  # characters of a text in one part
ITEMS: Final = 200  # members of a container in one part
ROOM: Final = 96 * 1024  # characters of one answer, about
DEPTH: Final = 24
Address = Callable[[str, int], str]


@dataclass(frozen=True, slots=True)
class Difference:
    """`path` is a JSON pointer; `before` and `after` are JSON text, whole."""

    path: str
    kind: Literal["added", "removed", "changed"]
    before: str | None
    after: str | None


@dataclass(slots=True)
class _Room:
    left: int


def marked(value: str) -> SafeString:
    """A text with everything that misleads marked, in the text itself and for screen readers; line ends and tabs are kept."""
    hidden = unseen.hidden(value)
    parts: list[str] = []
    at = 0
    for start, end in _odd_words(value):
        parts += [_signs(value, at, start, hidden), _word(value[start:end], hidden)]
        at = end
    parts.append(_signs(value, at, len(value), hidden))
    return mark_safe("".join(parts))  # noqa: S308  # every part is escaped


def _odd_words(value: str) -> Iterator[tuple[int, int]]:
    if value.isascii():
        return
    for match in unseen.WORD.finditer(value):
        if unseen.scripts(match[0]):
            yield match.span()


def _word(word: str, hidden: frozenset[str]) -> str:
    names = ", ".join(sorted(found.capitalize() for found in unseen.scripts(word)))
    said = gettext("looks like other letters: %(scripts)s") % {"scripts": names}
    inner = mark_safe(_signs(word, 0, len(word), hidden))  # noqa: S308  # escaped there
    return format_html('<mark class="odd" title="{}">{}<span class="vh"> ({})</span></mark>', said, inner, said)


def _signs(value: str, start: int, end: int, hidden: frozenset[str]) -> str:
    piece = value[start:end]
    if not hidden or not piece:
        return str(conditional_escape(piece))
    parts, at = [], start
    for match in unseen.pattern(hidden).finditer(value, start, end):
        if unseen.legitimate(value, match.start()):
            continue
        parts.append(conditional_escape(value[at : match.start()]))
        parts.append(
            format_html('<mark class="unseen" title="{}">{}</mark>', unseen.name(match[0]), unseen.code(match[0]))
        )
        at = match.end()
    parts.append(conditional_escape(value[at:end]))
    return "".join(parts)


def at_pointer(value: Any, path: str) -> Any:
    """What stands at a JSON pointer. Raises LookupError."""
    for token in path.split("/")[1:]:
        key = token.replace("~1", "/").replace("~0", "~")
        if isinstance(value, list):
            if not re.fullmatch(r"0|[1-9][0-9]{0,9}", key):
                raise LookupError(path)
            value = value[int(key)]
        elif isinstance(value, dict):
            value = value[key]
        else:
            raise LookupError(path)
    return value


def show(body: bytes, address: Address, *, at: str = "", part: int = 0) -> SafeString:
    """The value at a place, part `part` of it when it has several. `address(pointer, part)` is where a part is found.

    Raises LookupError for a place or part that does not exist.
    """
    value = at_pointer(jsontree.parse(body), at)
    if not 0 <= part < max(1, parts(value)):
        raise LookupError(part)
    room = _Room(ROOM)
    if isinstance(value, dict | list) and value:
        return _members(value, at, part, address, room, 0)
    if type(value) is str and len(value) > PART:
        return _long(value, at, part, address)
    return format_html('<dl class="exhibit"><div><dd>{}</dd></div></dl>', _leaf(value, at, address, room, opened=True))


def parts(value: Any) -> int:
    """In how many parts a value is shown."""
    if type(value) is str:
        return -(-len(value) // PART)
    return -(-len(value) // ITEMS) if isinstance(value, dict | list) else 1


def _members(value: Any, path: str, part: int, address: Address, room: _Room, depth: int) -> SafeString:
    named = isinstance(value, dict)
    entries = list(value.items() if named else enumerate(value))[part * ITEMS : (part + 1) * ITEMS]
    rows = []
    for key, item in entries:
        place = pointer(path, key)
        label = marked(key) if named else format_html("{}", key)
        room.left -= 60 + (len(key) if named else 4)
        rows.append(format_html(
            "<div><dt>{}</dt><dd>{}</dd></div>", label, _member(item, place, address, room, depth + 1)
        ))  # fmt: skip
    pager = _pager(path, part, parts(value), address)
    return format_html('<dl class="exhibit">{}</dl>{}', mark_safe("".join(rows)), pager)  # noqa: S308


def _member(item: Any, place: str, address: Address, room: _Room, depth: int) -> SafeString:
    if not isinstance(item, dict | list) or not item:
        return _leaf(item, place, address, room)
    if room.left <= 0 or depth >= DEPTH:
        return _elsewhere(jsontree.summary(item), place, 0, address)
    opened = mark_safe(" open") if depth <= 2 else ""
    return format_html(
        '<details{}><summary>{}</summary>{}</details>', opened, jsontree.summary(item),
        _members(item, place, 0, address, room, depth),
    )  # fmt: skip


def _leaf(value: Any, place: str, address: Address, room: _Room, *, opened: bool = False) -> SafeString:
    if type(value) is str:
        size = _characters(value)
        if len(value) > FOLD and room.left < len(value) and not opened:
            return _elsewhere(size, place, 0, address)
        room.left -= len(value)
        if value == "":
            return format_html('<span class="x">{}</span>', gettext("empty text"))
        whole = format_html('<span class="text">{}</span>', marked(value[:PART]))
        if len(value) <= FOLD:
            return whole
        more = _pager(place, 0, parts(value), address)
        return format_html(
            '<details{}><summary><span class="x">{}</span> <span class="text">{}…</span></summary>{}{}</details>',
            mark_safe(" open") if opened or len(value) <= 4 * FOLD else "", size, marked(value[:80].replace("\n", " ")),
            whole, more,
        )  # fmt: skip
    if isinstance(value, dict | list):
        return format_html('<span class="x">{}</span>', gettext("empty"))
    word = {None: gettext("nothing (null)"), True: gettext("yes (true)"), False: gettext("no (false)")}
    shown = word[value] if value is None or isinstance(value, bool) else str(value)
    return format_html('<span class="n">{}</span>', shown)


def _long(value: str, path: str, part: int, address: Address) -> SafeString:
    piece = marked(value[part * PART : (part + 1) * PART])
    return format_html('<p class="text">{}</p>{}', piece, _pager(path, part, parts(value), address))


def _characters(value: str) -> str:
    return ngettext("%(count)s character", "%(count)s characters", len(value)) % {"count": text.grouped(len(value))}


def _elsewhere(words: str, place: str, part: int, address: Address) -> SafeString:
    """A link that a script replaces by what it leads to."""
    href = address(place, part)
    return format_html(
        '<a class="part" href="{}" hx-get="{}" hx-target="this" hx-swap="outerHTML">{}</a>', href, href,
        gettext("Show: %(what)s") % {"what": words},
    )  # fmt: skip


def _pager(path: str, part: int, count: int, address: Address) -> SafeString:
    if count <= 1:
        return mark_safe("")
    words = gettext("Part %(number)s of %(count)s.") % {"number": part + 1, "count": count}
    if part + 1 >= count:
        return format_html('<p class="x">{}</p>', words)
    following = gettext("part %(number)s") % {"number": part + 2}
    return format_html('<p class="x">{}</p>{}', words, _elsewhere(following, path, part + 1, address))


def differences(before: bytes, after: bytes) -> list[Difference]:
    """All that differs between two JSON values. Numbers are compared by their characters, lists place by place between what their
    beginnings and ends have in common."""
    found: list[Difference] = []
    _compare(jsontree.parse(before), jsontree.parse(after), "", found)
    return found


def _compare(old: Any, new: Any, path: str, found: list[Difference]) -> None:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old:
            if key not in new:
                found.append(Difference(pointer(path, key), "removed", _text(old[key]), None))
            else:
                _compare(old[key], new[key], pointer(path, key), found)
        for key in new:
            if key not in old:
                found.append(Difference(pointer(path, key), "added", None, _text(new[key])))
    elif isinstance(old, list) and isinstance(new, list):
        _lists(old, new, path, found)
    elif not _same(old, new):
        found.append(Difference(path, "changed", _text(old), _text(new)))


def _lists(old: list[Any], new: list[Any], path: str, found: list[Difference]) -> None:
    shorter, start = min(len(old), len(new)), 0
    while start < shorter and _same(old[start], new[start]):
        start += 1
    tail = 0
    while tail < shorter - start and _same(old[-1 - tail], new[-1 - tail]):
        tail += 1
    left, right = old[start : len(old) - tail], new[start : len(new) - tail]
    for index in range(max(len(left), len(right))):
        place = pointer(path, start + index)
        if index >= len(right):
            found.append(Difference(place, "removed", _text(left[index]), None))
        elif index >= len(left):
            found.append(Difference(place, "added", None, _text(right[index])))
        else:
            _compare(left[index], right[index], place, found)


def _same(old: Any, new: Any) -> bool:
    return bool(type(old) is type(new) and _text(old) == _text(new))


def _text(value: Any) -> str:
    return jsontree.printed(value)
