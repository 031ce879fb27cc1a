"""What looks for malware in artifacts. A port with two adapters: none, and ClamAV's daemon.

Invariant: a scan answers a verdict or raises. Whatever is not a clear answer is no verdict, and the artifact is not readable.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal, Protocol
from urllib.parse import urlsplit

from clamav_client.clamd import ClamdError, ClamdNetworkSocket, ClamdUnixSocket
from django.conf import settings

_PIECE: Final = 128 * 1024
TIMEOUT = 60.0  # seconds without an answer or without taking data


class ScanFailed(Exception):
    """There is no verdict: the scanner is away, too slow, refuses the size, or answers nonsense."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`version` names the scanner and its signatures, `signature` what was found."""

    status: Literal["clean", "infected", "unscanned"]
    version: str = ""
    signature: str = ""


class Scanner(Protocol):
    def scan(self, stream: Iterable[bytes]) -> Verdict:
        """The verdict on a plaintext. Raises ScanFailed."""


def scanner() -> Scanner:
    """The scanner that the settings name."""
    return ClamAV(settings.CLAMD_URL, timeout=TIMEOUT) if settings.CLAMD_URL else Unscanned()


def max_bytes() -> int:
    """How large an artifact may be: nothing is taken that the scanner would not look at."""
    limit: int = settings.ARTIFACT_MAX_BYTES
    return min(limit, settings.CLAMD_MAX_BYTES) if settings.CLAMD_URL else limit


class Unscanned:
    def scan(self, stream: Iterable[bytes]) -> Verdict:
        return Verdict("unscanned")


class ClamAV:
    """`url`: `tcp://host:port` or `unix:///path` of clamd. What is sent to it goes over that socket in clear.

    clamd calls clean what it does not look at, such as a file above its MaxFileSize: beyond CLAMD_MAX_BYTES there is no verdict.
    """

    def __init__(self, url: str, *, timeout: float = TIMEOUT) -> None:
        self._url, self._timeout = urlsplit(url), timeout

    def scan(self, stream: Iterable[bytes]) -> Verdict:
        client = self._client()
        try:
            version = client.version().strip()
            answer = client.instream(_Pieces(stream))  # type: ignore[arg-type]  # only `read` is used
        except (ClamdError, OSError, ValueError) as error:
            client.clamd_socket.close()  # it leaves a socket open that did not connect
            raise ScanFailed(type(error).__name__) from error
        match answer.get("stream"):
            case ("OK", None):
                return Verdict("clean", version[:200])
            case ("FOUND", str(signature)):
                return Verdict("infected", version[:200], signature[:200])
        raise ScanFailed("unclear answer")

    def _client(self) -> ClamdNetworkSocket:
        if self._url.scheme == "unix":
            return ClamdUnixSocket(self._url.path, timeout=self._timeout)  # type: ignore[arg-type]
        return ClamdNetworkSocket(self._url.hostname or "", self._url.port or 3310, timeout=self._timeout)


class _Pieces:
    """As a file for the client, which sends each `read` as one frame; its own 1 KiB frames would be slow."""

    def __init__(self, stream: Iterable[bytes]) -> None:
        self._pieces = self._cut(stream)

    def read(self, size: int) -> bytes:
        return next(self._pieces, b"")

    @staticmethod
    def _cut(stream: Iterable[bytes]) -> Iterator[bytes]:
        sent = 0
        for chunk in stream:
            sent += len(chunk)
            if sent > settings.CLAMD_MAX_BYTES:
                raise ValueError("larger than CLAMD_MAX_BYTES")
            for start in range(0, len(chunk), _PIECE):
                yield chunk[start : start + _PIECE]
