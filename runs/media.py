"""What an artifact may be called, and what its first bytes say that it is.

A declared type that is contradicted by the content is refused: what calls itself an image and is a page with scripts is an attack.
Only contents that a person's machine would run, and those with an unmistakable beginning, are told apart.
"""

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final

from kernel.errors import DomainError, FieldError

MAX_NAME: Final = 255
SNIFFED: Final = 1024  # bytes from the beginning
UNKNOWN: Final = "application/octet-stream"

# Characters that break lines or paths, or make a name read otherwise than it is.
_HOSTILE: Final = re.compile("[\x00-\x1f\x7f-\x9f/\\\\\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]")
_RESERVED: Final = re.compile(r"\.{1,2}|\s.*|.*[\s.]", re.DOTALL)

_EXECUTABLE: Final = "application/x-executable"
_HTML: Final = "text/html"
_SVG: Final = "image/svg+xml"
# The kinds that run something where they are opened, with the names under which they may be declared.
_ACTIVE: Final = {
    _EXECUTABLE: {
        _EXECUTABLE, "application/x-elf", "application/x-msdownload", "application/vnd.microsoft.portable-executable",
        "application/x-mach-binary", "application/x-sharedlib", "application/x-sh", "text/x-shellscript", "application/wasm",
        "application/java-vm", "text/x-python", "text/x-script",
    },
    _HTML: {_HTML, "application/xhtml+xml"},
    _SVG: {_SVG},
}  # fmt: skip
_MAGIC: Final = (
    (b"\x7fELF", _EXECUTABLE), (b"MZ", _EXECUTABLE), (b"#!", _EXECUTABLE), (b"\0asm", _EXECUTABLE),
    (b"\xca\xfe\xba\xbe", _EXECUTABLE), (b"\xfe\xed\xfa\xce", _EXECUTABLE), (b"\xfe\xed\xfa\xcf", _EXECUTABLE),
    (b"\xce\xfa\xed\xfe", _EXECUTABLE), (b"\xcf\xfa\xed\xfe", _EXECUTABLE),
    (b"\x89PNG\r\n\x1a\n", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"GIF87a", "image/gif"), (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"), (b"PK\x03\x04", "application/zip"), (b"\x1f\x8b", "application/gzip"),
)  # fmt: skip
_MARKUP: Final = re.compile(
    rb"<(?:!doctype\s+(html|svg)|(html|head|body|script|iframe|svg|img|object|embed|meta|link|form)[\s>/])",
    re.IGNORECASE,
)
# A declaration of one of these is believed only with its beginning.
_MUST_MATCH: Final = {"image/png", "image/jpeg", "image/gif", "application/pdf", "application/zip", "application/gzip"}


class MediaTypeRefused(DomainError):
    """This deployment does not take this type, or the content is of another type than was declared."""

    code = "media_type_refused"
    status = 422
    title = "This media type is not accepted"


def name_error(name: str) -> str | None:
    """Why a name is refused; None when it is not."""
    if _HOSTILE.search(name):
        return "A name has no control or direction characters and no slashes."
    if _RESERVED.fullmatch(name):
        return "A name does not begin with a blank or end with a blank or dot."
    return None


def check_declared(media_type: str, *, allowed: Sequence[str], denied: Sequence[str]) -> None:
    """Raise MediaTypeRefused unless this deployment takes the type. Patterns may hold `*`."""
    if any(fnmatchcase(media_type, pattern) for pattern in denied) or (
        allowed and not any(fnmatchcase(media_type, pattern) for pattern in allowed)
    ):
        raise _refused(f"This deployment does not take {media_type}.")


def check_content(media_type: str, beginning: bytes) -> None:
    """Raise MediaTypeRefused when the first bytes contradict the declared type."""
    found = sniff(beginning)
    if found in _ACTIVE and media_type not in _ACTIVE[found]:
        raise _refused(f"The content is {found}, not {media_type}.")
    if media_type in _MUST_MATCH and found != media_type:
        raise _refused(f"The content does not begin as {media_type} does.")


def sniff(beginning: bytes) -> str:
    """The type that the first bytes show, UNKNOWN for most."""
    for magic, kind in _MAGIC:
        if beginning.startswith(magic):
            return kind
    text = beginning[:SNIFFED]
    if text[:2] in (b"\xff\xfe", b"\xfe\xff"):
        text = text.replace(b"\0", b"")
    text = text.lstrip(b"\xef\xbb\xbf\xff\xfe \t\r\n\f")
    if text.startswith(b"<"):
        match = _MARKUP.search(text)
        if match:
            return _SVG if (match[1] or match[2]).lower() == b"svg" else _HTML
    return UNKNOWN


def served_as(media_type: str) -> str:
    """The type to send along: never one that a browser runs."""
    return (
        UNKNOWN if any(media_type in names for names in _ACTIVE.values()) or media_type.endswith("xml") else media_type
    )


def _refused(message: str) -> MediaTypeRefused:
    return MediaTypeRefused(message, fields=(FieldError("/media_type", "media_type_refused", message),))
