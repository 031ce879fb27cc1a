"""The geometry of a timeline."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kernel.web.timeline import MIN_WIDTH, NOW_AT, Chart, Row, Span, layout

START = datetime(2026, 11, 24, 9, 12, tzinfo=UTC)


def at(minutes: float) -> datetime:
    return START + timedelta(minutes=minutes)


def bar(start: float, end: float | None, state: str = "succeeded") -> Span:
    return Span("bar", state, at(start), None if end is None else at(end))


def test_a_finished_run_fills_the_width_in_scale() -> None:
    chart = layout(
        [Row("a", (bar(0, 2.5),)), Row("b", (bar(2.5, 10),))], start=START, now=at(60), live=False, end=at(10)
    )
    first, second = chart.shapes
    assert (first.x, first.width, second.x, second.width) == (0, 25, 25, 75)
    assert chart.now_x is None
    assert chart.bands == ()
    assert chart.height == 28 + 2 * 40


def test_a_live_run_ends_at_now_with_room_for_what_is_ahead() -> None:
    chart = layout([Row("a", (bar(0, None, "leased"),)), Row("b", ahead="blocked")], start=START, now=at(5), live=True)
    assert chart.shapes[0].right == NOW_AT
    assert chart.now_x == NOW_AT
    assert chart.ahead == ((28 + 40 + 20, "blocked"),)


def test_idle_time_is_folded_into_one_band_that_says_how_long_it_was() -> None:
    wait = Span("wait", "waiting", at(10), None)
    chart = layout([Row("a", (bar(0, 10), wait))], start=START, now=at(154), live=True)
    (band,) = chart.bands
    assert band.length == timedelta(minutes=144)
    assert band.width == 11
    # The wait goes through the band up to now.
    assert chart.shapes[1].right == NOW_AT
    assert chart.folded == timedelta(minutes=144)


def test_short_pauses_and_the_true_scale_are_not_folded() -> None:
    rows = [Row("a", (bar(0, 4), bar(5, 10)))]
    assert layout(rows, start=START, now=at(10), live=False).bands == ()
    rows = [Row("a", (bar(0, 4), bar(500, 510)))]
    assert len(layout(rows, start=START, now=at(510), live=False).bands) == 1
    assert layout(rows, start=START, now=at(510), live=False, fold=False).bands == ()


def test_many_idle_stretches_share_a_third_of_the_width() -> None:
    rows = [Row("a", tuple(bar(start, start + 1) for start in range(0, 1000, 100)))]
    chart = layout(rows, start=START, now=at(901), live=False, end=at(901))
    assert len(chart.bands) == 9
    assert abs(sum(band.width for band in chart.bands) - 33) < 0.1


def test_a_run_without_work_and_one_without_length_can_be_drawn() -> None:
    assert layout([], start=START, now=START, live=True).shapes == ()
    chart = layout([Row("a", (bar(0, 0),))], start=START, now=START, live=False, end=START)
    assert chart.shapes[0].width >= MIN_WIDTH


def test_ticks_are_round_and_apart() -> None:
    chart = layout([Row("a", (bar(0, 10),))], start=at(0.1), now=at(10), live=False, end=at(10))
    assert [tick.text for tick in chart.ticks] == ["09:12", "09:14", "09:16", "09:18", "09:20"]
    assert all(b.x - a.x >= 8 for a, b in pairwise(chart.ticks))


moments = st.floats(0, 100_000, allow_nan=False)


@given(st.lists(st.tuples(moments, moments), max_size=12), st.booleans(), st.booleans())
def test_order_is_kept_and_everything_stays_inside(pairs: list[tuple[float, float]], live: bool, fold: bool) -> None:
    spans = [bar(min(pair), max(pair)) for pair in pairs]
    chart: Chart = layout([Row("a", tuple(spans))], start=START, now=at(100_001), live=live, end=at(100_000), fold=fold)
    for shape in chart.shapes:
        assert 0 <= shape.x <= shape.right <= 100.001
        assert shape.width >= MIN_WIDTH
    placed = sorted(chart.shapes, key=lambda shape: shape.span.start)
    assert all(a.x <= b.x + MIN_WIDTH for a, b in pairwise(placed))
    assert len(chart.ticks) < 14
