"""What in a value might mislead a person who decides about it. Pure: it finds and says so, and changes nothing.

A finding is a reason to look closely, never a verdict, and a value without findings may still be a lie.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from kernel.web import unseen

LONG: Final = 10_000
ROOM: Final = 40  # characters of an excerpt on each side
# Beyond so many places of one kind only their number is told.
MOST: Final = 25

_HTML: Final = re.compile(r"<[A-Za-z!/?][^<>]{0,400}>?")
_SCRIPT: Final = re.compile(
    r"<\s{0,3}/?\s{0,3}(?:script|iframe|object|embed|svg|form|meta|base)\b|\b(?:javascript|vbscript):|\bdata:text/html|"
    r"\bon[a-z]{3,20}\s{0,3}=\s{0,3}[\"'`(a-z]",
    re.IGNORECASE,
)
_LINK: Final = re.compile(r"\[([^\[\]\n]{1,300})\]\(\s{0,3}<?([^()\s<>]{1,2000})")
_ADDRESS: Final = re.compile(r"(?:[a-z][a-z0-9+.-]{1,20}://)?((?:[\w-]{1,63}\.)+[a-z]{2,24})\b", re.IGNORECASE)
_DISGUISED: Final = re.compile(r"\b[a-z][a-z0-9+.-]{1,20}://[^\s/?#@]{1,200}@[^\s/?#]{1,200}", re.IGNORECASE)
_TELLS: Final = re.compile(
    r"(?:(?:please|must|should|just|now|simply|to)\s+(?:click|press|tap|approve|accept)\b"
    r"|(?:click|press|tap)\s+(?:on\s+)?(?:the\s+)?[\"“'\[]?(?:approve|accept|confirm|reject)"
    r"|[\[\(【<]\s{0,3}(?:approve|reject|accept|confirm|deny)[^\]\)】>\n]{0,30}[\]\)】>]"
    r"|\b(?:pre-?approved|already\s+(?:been\s+)?(?:approved|reviewed|checked)|safe\s+to\s+approve|approved\s+by)\b"
    r"|\b(?:no|without)\s+(?:further\s+)?(?:review|need\s+to\s+(?:review|check|read))\b"
    r"|\bignore\s+(?:the|all|any|previous|this|above)\b|\b(?:do\s+not|don['’]t)\s+(?:read|check|review|reject)\b"
    r"|(?:स्वीकृत|मंज़?ूर|अनुमोदित)\s+(?:करें|करो|कर\s+दें|किया\s+जा\s+चुका)|पहले\s+से\s+(?:स्वीकृत|मंज़?ूर))",
    re.IGNORECASE,
)
_ALONE: Final = re.compile(r"^\s*(?:approve|reject|accept|confirm|स्वीकार|अस्वीकार)[.!]?\s*$", re.IGNORECASE)

SENTENCES: Final[dict[str, str | Promise]] = {
    "bidi": _("Characters turn the text around: what you read may stand in another order."),
    "invisible": _("There are characters that cannot be seen. They are marked."),
    "control": _("There are control characters. They are marked."),
    "mixed": _("A word is written with letters that look like others, so it is not the word that it seems to be."),
    "link": _("A link says that it leads to one place and leads to another."),
    "script": _("It contains what a browser would run. Here it is only text."),
    "html": _("It contains markup. Here it is only text."),
    "long": _("It is very long. Look at all of it: something may be far down."),
    "imitates": _("It speaks to whoever decides, or looks like the page's own words. It was written by the requester."),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """`path` is a JSON pointer (empty: the value itself); `count`: how often, in this text; `name`: found in a member's name."""

    kind: str
    path: str
    excerpt: str
    sentence: str
    count: int = 1


def of(value: Any) -> list[Finding]:
    """Everything suspicious in a JSON value, names of members included, in its order."""
    found: list[Finding] = []
    seen: dict[str, int] = {}
    for path, text in texts(value):
        for finding in of_text(text, path):
            seen[finding.kind] = seen.get(finding.kind, 0) + 1
            if seen[finding.kind] <= MOST:
                found.append(finding)
    for kind, count in seen.items():
        if count > MOST:
            found.append(Finding(kind, "", f"+{count - MOST}", str(SENTENCES[kind]), count - MOST))
    return found


def of_text(text: str, path: str = "") -> list[Finding]:
    """The same for one text."""
    found = [
        finding
        for kind, look in _LOOKS
        if (place := look(text)) is not None and (finding := _finding(kind, path, text, *place))
    ]
    kinds = {finding.kind for finding in found}
    return [finding for finding in found if not (finding.kind == "html" and "script" in kinds)]


def pointer(parent: str, key: str | int) -> str:
    return f"{parent}/{str(key).replace('~', '~0').replace('/', '~1')}"


def texts(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Every string with its place; a member's name at the place of its value. Without recursion: a value may be deep."""
    stack = [(path, value)]
    while stack:
        place, here = stack.pop()
        if type(here) is str:
            yield place, here
        elif isinstance(here, dict):
            for key in here:
                yield pointer(place, key), key
            stack += [(pointer(place, key), item) for key, item in reversed(here.items())]
        elif isinstance(here, list):
            stack += [(pointer(place, index), item) for index, item in reversed(list(enumerate(here)))]


Place = tuple[int, int, int]  # start, end, how often


def _finding(kind: str, path: str, text: str, start: int, end: int, count: int) -> Finding:
    begin, finish = max(0, start - ROOM), min(len(text), end + ROOM, start + 3 * ROOM)
    cut = unseen.visible(text[begin:finish]).replace("\n", "⏎").replace("\t", "⇥")
    excerpt = f"{'…' if begin else ''}{cut}{'…' if finish < len(text) else ''}"
    return Finding(kind, path, excerpt, str(SENTENCES[kind]), count)


def _signs(wanted: Callable[[str], bool]) -> Callable[[str], Place | None]:
    def look(text: str) -> Place | None:
        signs = frozenset(sign for sign in unseen.hidden(text) if wanted(sign))
        if not signs:
            return None
        places = [m.start() for m in unseen.pattern(signs).finditer(text) if not unseen.legitimate(text, m.start())]
        return (places[0], places[0] + 1, len(places)) if places else None

    return look


def _control(sign: str) -> bool:
    return unicodedata.category(sign) in {"Cc", "Cs"}


def _mixed(text: str) -> Place | None:
    if text.isascii():
        return None
    places = [match.span() for match in unseen.WORD.finditer(text) if unseen.scripts(match[0])]
    return (*places[0], len(places)) if places else None


def _first(expression: re.Pattern[str]) -> Callable[[str], Place | None]:
    def look(text: str) -> Place | None:
        first = expression.search(text)
        return (*first.span(), sum(1 for _ in expression.finditer(text))) if first else None

    return look


def _links(text: str) -> Place | None:
    places = [match.span() for match in _LINK.finditer(text) if _lies(match[1], match[2])]
    places += [match.span() for match in _DISGUISED.finditer(text)]
    return (*min(places), len(places)) if places else None


def _lies(words: str, target: str) -> bool:
    """Whether the text of a link names another host than it leads to."""
    if target.split(":", 1)[0].lower() in {"javascript", "data", "vbscript"}:
        return True
    named = _ADDRESS.search(unicodedata.normalize("NFKC", words))
    if named is None:
        return False
    try:
        host = (urlsplit(target if "//" in target else f"//{target}").hostname or "").lower()
    except ValueError:
        return True
    return host.removeprefix("www.") != named[1].lower().removeprefix("www.")


def _imitates(text: str) -> Place | None:
    """Looked for in what a reader would see, so that neither blanks without width nor look-alike forms hide it."""
    shown = text
    if not text.isascii():
        signs = unseen.hidden(text)
        shown = unicodedata.normalize("NFKC", unseen.pattern(signs).sub("", text) if signs else text)
    first = _TELLS.search(shown) or _ALONE.match(shown)
    if first is None:
        return None
    start = first.start() if shown is text else 0
    return start, min(len(text), start + len(first[0])), 1


def _long(text: str) -> Place | None:
    return (0, 1, 1) if len(text) > LONG else None


_LOOKS: Final[tuple[tuple[str, Callable[[str], Place | None]], ...]] = (
    ("bidi", _signs(lambda sign: sign in unseen.BIDI)),
    ("invisible", _signs(lambda sign: sign not in unseen.BIDI and not _control(sign))),
    ("control", _signs(_control)),
    ("mixed", _mixed),
    ("link", _links),
    ("script", _first(_SCRIPT)),
    ("html", _first(_HTML)),
    ("imitates", _imitates),
    ("long", _long),
)
