"""Characters that mislead the eye, made visible: those that cannot be seen, that turn text around, that look like others. Pure."""

import re
import unicodedata
from functools import lru_cache
from typing import Final

# What Unicode calls format, control, private, surrogate, separator; line feed and tab are shown as what they do.
_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
# Blank, and called letters or marks.
FILLERS: Final = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0") | frozenset(
    chr(code) for code in (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))
)
BIDI: Final = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
JOINERS: Final = frozenset("\u200c\u200d")
PLAIN: Final = frozenset("\n\t")
# Scripts whose words need joiners.
_JOINED: Final = (
    "DEVANAGARI", "BENGALI", "GURMUKHI", "GUJARATI", "ORIYA", "TAMIL", "TELUGU", "KANNADA", "MALAYALAM", "SINHALA", "ARABIC",
    "SYRIAC", "MYANMAR", "KHMER", "TIBETAN", "MONGOLIAN",
)  # fmt: skip
# Scripts whose letters look like one another's.
_ALIKE: Final = frozenset({"LATIN", "CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE", "COPTIC", "LISU"})
# Cyrillic and Greek letters that cannot be told from Latin ones.
_TWINS: Final = frozenset("асеорхуіѕјһԁԛԝӏАВСЕНІЈКМОРЅТХУΑΒΕΖΗΙΚΜΝΟΡΤΥΧοανι")
WORD: Final = re.compile(r"[^\W\d_]+(?:['’\u200b-\u200d\u2060\ufeff]?[^\W_]+)*")


def hidden(text: str) -> frozenset[str]:
    """The characters of a text that are not shown as they are; joiners among them, which `legitimate` judges by place."""
    if text.isascii() and text.isprintable():
        return frozenset()
    return frozenset(
        sign for sign in set(text) if sign not in PLAIN and (unicodedata.category(sign) in _HIDDEN or sign in FILLERS)
    )


def legitimate(text: str, at: int) -> bool:
    """Whether a joiner or variation selector at `at` does what it is there for: in a word of a joined script, or after an emoji."""
    before = text[at - 1] if at else ""
    if text[at] == "\ufe0f":
        return bool(before) and (unicodedata.category(before) == "So" or before in "#*0123456789")
    if text[at] in JOINERS and before:
        if script(before) in _JOINED:
            return True
        after = text[at + 1] if at + 1 < len(text) else ""
        return bool(after) and before != "\ufe0e" and _pictured(before) and _pictured(after)
    return False


def _pictured(sign: str) -> bool:
    return sign == "\ufe0f" or unicodedata.category(sign) in {"So", "Sk"}


def pattern(signs: frozenset[str]) -> re.Pattern[str]:
    return re.compile("[" + "".join(f"\\U{ord(sign):08x}" for sign in sorted(signs)) + "]")


def code(sign: str) -> str:
    """`⟦U+202E⟧`."""
    return f"⟦U+{ord(sign):04X}⟧"


def name(sign: str) -> str:
    return unicodedata.name(sign, "") or {"\r": "CARRIAGE RETURN", "\0": "NULL"}.get(sign, "WITHOUT A NAME")


def visible(text: str) -> str:
    """The text with a mark in the place of everything that cannot be seen."""
    found = hidden(text)
    if not found:
        return text
    return pattern(found).sub(lambda match: match[0] if legitimate(text, match.start()) else code(match[0]), text)


@lru_cache(maxsize=8192)
def script(sign: str) -> str:
    """The first word of a letter's name, which is its script; empty for what is no letter."""
    if not (sign.isalpha() or unicodedata.category(sign).startswith("M")):
        return ""
    return unicodedata.name(sign, "").partition(" ")[0]


def scripts(word: str) -> frozenset[str]:
    """Of a word: the scripts that are mixed in it although their letters look alike; empty when all is well."""
    if word.isascii():
        return frozenset()
    found = frozenset(script(sign) for sign in set(word)) & (_ALIKE | {"FULLWIDTH", "MATHEMATICAL"})
    if len(found) > 1 or found & {"FULLWIDTH", "MATHEMATICAL"}:
        return found
    letters = {sign for sign in word if sign.isalpha()}
    return found | {"LATIN"} if len(word) > 1 and found - {"LATIN"} and letters <= _TWINS else frozenset()
