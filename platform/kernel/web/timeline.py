"""The geometry of a timeline: rows of bars over time, with idle stretches folded away. Pure: moments in, per cents out.

Invariants: order is kept (a later moment never lies to the left of an earlier one), no time is lost (a folded stretch is drawn as
a band that says how long it was), and every bar is wide enough to be seen.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

TOP: Final = 28
ROW: Final = 40
BAR: Final = 18
MIN_WIDTH: Final = 0.4
NOW_AT: Final = 92.0
BAND: Final = 11.0
BANDS: Final = 33.0
LABEL_ROOM: Final = 8.0
PHONE_ROOM: Final = 36.0
_STEPS: Final = (
    1,
    2,
    5,
    10,
    15,
    30,
    60,
    120,
    300,
    600,
    900,
    1800,
    3600,
    7200,
    10800,
    21600,
    43200,
    86400,
    172800,
    604800,
)

SpanKind = Literal["bar", "pause", "wait"]


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of one row. `bar`: a worker holds it; `pause`: nobody does; `wait`: a person is awaited. No end: still going on."""

    kind: SpanKind
    state: str
    start: datetime
    end: datetime | None
    name: str = ""
    label: str = ""
    href: str = ""
    # A word at the beginning of the bar, such as "resumed".
    mark: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    spans: tuple[Span, ...] = ()
    # The state of a row that has not begun: drawn dotted to the right of now.
    ahead: str = ""


@dataclass(frozen=True, slots=True)
class Shape:
    """A span in place; `x` and `width` in per cent, the rest in pixels."""

    span: Span
    x: float
    width: float
    y: int

    @property
    def right(self) -> float:
        return round(self.x + self.width, 3)

    @property
    def middle(self) -> int:
        return self.y + BAR // 2

    @property
    def hit(self) -> int:
        """Top of the target around a bar, which is as tall as its row."""
        return self.y - 9


@dataclass(frozen=True, slots=True)
class Tick:
    """A round moment with its place. `minor`: its label is left out where there is little room, as on a phone."""

    x: float
    at: datetime
    text: str
    first: bool
    minor: bool


@dataclass(frozen=True, slots=True)
class Band:
    """A folded stretch in which no worker held a step."""

    x: float
    width: float
    length: timedelta

    @property
    def right(self) -> float:
        return round(self.x + self.width, 3)

    @property
    def middle(self) -> float:
        return round(self.x + self.width / 2, 3)


@dataclass(frozen=True, slots=True)
class Chart:
    start: datetime
    end: datetime
    height: int
    shapes: tuple[Shape, ...]
    ahead: tuple[tuple[int, str], ...]
    ticks: tuple[Tick, ...]
    bands: tuple[Band, ...]
    lines: tuple[int, ...]
    now_x: float | None
    # The last stretch before now is folded: its label stands to the left of the line, that of now to the right.
    folded_to_now: bool
    folded: timedelta


@dataclass(frozen=True, slots=True)
class _Piece:
    """A stretch of time with its place on the axis."""

    start: datetime
    end: datetime
    x: float
    width: float
    folded: bool

    def place(self, moment: datetime) -> float:
        length = (self.end - self.start).total_seconds()
        part = (moment - self.start).total_seconds() / length if length else 0.0
        return self.x + self.width * min(1.0, max(0.0, part))


def layout(
    rows: Sequence[Row], *, start: datetime, now: datetime, live: bool, end: datetime | None = None, fold: bool = True
) -> Chart:
    """Place `rows` between `start` and now (a live run) or `end` (a finished one). Ticks are read in the zone of `start`."""
    last = now if live else (end or now)
    last = max([last, start + timedelta(milliseconds=1), *(s.end or last for r in rows for s in r.spans if not live)])
    pieces = _axis(_busy(rows, last), start, last, NOW_AT if live else 100.0, fold)
    shapes: list[Shape] = []
    for index, row in enumerate(rows):
        y = TOP + index * ROW + (ROW - BAR) // 2
        for span in row.spans:
            x, right = _place(pieces, span.start), _place(pieces, span.end or last)
            width = max(right - x, 0.0 if span.kind == "pause" else MIN_WIDTH)
            if width > 0:
                x = min(x, 100.0 - width)
                shapes.append(Shape(span, round(x, 3), round(width, 3), y))
    bands = tuple(Band(round(p.x, 3), round(p.width, 3), p.end - p.start) for p in pieces if p.folded)
    height = TOP + len(rows) * ROW
    return Chart(
        start=start,
        end=last,
        height=height,
        shapes=tuple(shapes),
        ahead=tuple((TOP + i * ROW + ROW // 2, row.ahead) for i, row in enumerate(rows) if row.ahead and live),
        ticks=tuple(_ticks(pieces, live)),
        bands=bands,
        lines=tuple(TOP + i * ROW for i in range(len(rows))),
        now_x=NOW_AT if live else None,
        folded_to_now=live and pieces[-1].folded,
        folded=sum((band.length for band in bands), timedelta(0)),
    )


def _busy(rows: Iterable[Row], last: datetime) -> list[tuple[datetime, datetime]]:
    """The stretches in which a worker holds at least one step, merged, in order."""
    merged: list[tuple[datetime, datetime]] = []
    for begin, finish in sorted(
        (s.start, min(s.end or last, last)) for row in rows for s in row.spans if s.kind == "bar"
    ):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], finish))
        else:
            merged.append((begin, finish))
    return merged


def _axis(
    busy: Sequence[tuple[datetime, datetime]], start: datetime, last: datetime, room: float, fold: bool
) -> list[_Piece]:
    """Cut the time from `start` to `last` into pieces. An idle stretch longer than half of all work is folded."""
    stretches: list[tuple[datetime, datetime, bool]] = []
    worked = sum(((finish - begin) for begin, finish in busy), timedelta(0))
    threshold = max(worked / 2, timedelta(seconds=1))
    at = start
    for begin, finish in [*busy, (last, last)]:
        if begin > at:
            idle = fold and bool(busy) and begin - at > threshold
            stretches.append((at, begin, idle))
            at = begin
        if finish > at:
            stretches.append((at, finish, False))
            at = finish
    folds = sum(idle for *_, idle in stretches)
    band = min(BAND, BANDS / folds) if folds else 0.0
    open_time = sum(((b - a) for a, b, idle in stretches if not idle), timedelta(0)).total_seconds()
    scale = (room - band * folds) / open_time if open_time else 0.0
    pieces: list[_Piece] = []
    x = 0.0
    for a, b, idle in stretches:
        width = band if idle else (b - a).total_seconds() * scale
        pieces.append(_Piece(a, b, x, width, idle))
        x += width
    return pieces


def _place(pieces: Sequence[_Piece], moment: datetime) -> float:
    for piece in pieces:
        if moment <= piece.end:
            return piece.place(moment)
    return pieces[-1].x + pieces[-1].width


def _ticks(pieces: Sequence[_Piece], live: bool) -> list[Tick]:
    """Round moments, far enough apart to be read, none inside a folded band or under the label of now."""
    # Neighbouring open pieces share one scale, so ticks run through them.
    open_time = sum((p.end - p.start).total_seconds() for p in pieces if not p.folded)
    room = sum(p.width for p in pieces if not p.folded)
    step = next((s for s in _STEPS if open_time and s / open_time * room >= LABEL_ROOM * 1.6), _STEPS[-1])
    ticks: list[Tick] = []
    begin = pieces[0].start
    blocked = [(p.x, p.x + p.width) for p in pieces if p.folded]
    limit = NOW_AT - LABEL_ROOM if live else 100.0 - LABEL_ROOM / 2
    # On a phone there is room for a label or two, the now of a live run among them.
    phone_room = PHONE_ROOM * (1.6 if step < 60 else 1.0)
    phone_limit = 100.0 - phone_room * (1.5 if live else 0.5)
    if not pieces[0].folded:
        ticks.append(Tick(0.0, begin, _label(begin, step), True, phone_limit < phone_room / 2))
    major = 0.0
    midnight = begin.replace(hour=0, minute=0, second=0, microsecond=0)
    for piece in pieces:
        if piece.folded:
            continue
        first = -(-(piece.start - midnight).total_seconds() // step)
        moment = midnight + timedelta(seconds=first * step)
        while moment < piece.end:
            x = piece.place(moment)
            near = ticks and x - ticks[-1].x < LABEL_ROOM
            hidden = any(left - LABEL_ROOM / 2 < x < right + LABEL_ROOM / 2 for left, right in blocked)
            if not near and not hidden and x <= limit:
                minor = x - major < phone_room or x > phone_limit
                ticks.append(Tick(round(x, 3), moment, _label(moment, step), False, minor))
                major = major if minor else x
            moment += timedelta(seconds=step)
    return ticks


def _label(moment: datetime, step: int) -> str:
    """As exact as the distance of the ticks."""
    return f"{moment:%H:%M:%S}" if step < 60 else f"{moment:%H:%M}" if step < 86400 else f"{moment.day}. {moment:%H:%M}"
