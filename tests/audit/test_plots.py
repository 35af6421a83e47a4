"""Scales, lines and bars of the report show what was measured."""

from datetime import UTC, datetime
from itertools import pairwise

import pytest

from leveret.audit import plots
from leveret.audit.plots import Bar, Part, Point, Tick

DAY_S = 86_400


def paths(points, *, stretch_s=60.0) -> list[str]:
    span_s = (points[0].at_s, points[-1].at_s + stretch_s)
    chart = plots.percentiles("orders", "publish to confirm", points, span_s=span_s, stretch_s=stretch_s)
    return [path for _, path in chart.lines]


def widths(bar: Bar) -> list[float]:
    return [width for _, _, width in bar.parts]


def test_values_close_to_each_other_have_a_linear_scale_from_zero():
    scale = plots.value_scale([2.0, 7.0])
    assert (scale.low, scale.high, scale.logarithmic) == (0, 8, False)


def test_values_that_span_decades_have_a_logarithmic_scale():
    scale = plots.value_scale([0.0, 2.0, 700.0])
    assert (scale.low, scale.high, scale.logarithmic) == (1, 1000, True)
    places = [scale.place(value) for value in (1, 10, 100, 1000)]
    assert places == pytest.approx([places[0] + step * (places[1] - places[0]) for step in range(4)])
    assert scale.place(0.0) == places[0]


@pytest.mark.parametrize("known", [[], [0.0, 0.0]])
def test_no_values_and_zeros_have_a_scale_too(known):
    scale = plots.value_scale(known)
    assert scale.place(0.0) != scale.place(scale.high)


def test_a_line_is_interrupted_at_a_missing_stretch():
    known = [Point(60.0 * at, (1.0, 2.0, 3.0)) for at in (0, 1, 2, 9, 10)]
    assert [(path.count("M"), path.count("L")) for path in paths(known)] == [(2, 3)] * 3


def test_a_point_without_neighbours_is_a_dot():
    (only, _, _) = paths([Point(0.0, (1.0, 2.0, 3.0))])
    assert only.endswith("h0")


def test_an_unknown_percentile_has_no_line():
    assert len(paths([Point(0.0, (1.0, None, None))])) == 1


def test_many_points_are_thinned_to_the_highest_of_their_neighbours():
    known = [Point(float(at), (1.0, None, 50.0 if at == 7 else 2.0)) for at in range(10)]
    assert plots.thinned(known, 5) == [Point(0.0, (1.0, None, 2.0)), Point(5.0, (1.0, None, 50.0))]


def test_a_long_time_is_drawn_with_few_points():
    known = [Point(60.0 * at, (1.0, 2.0, 3.0)) for at in range(10_000)]
    (path, _, _) = paths(known)
    assert path.count("M") == 1
    assert path.count("L") < 240


def test_labels_do_not_lie_on_each_other():
    labels = [Tick(160.0, "p50"), Tick(158.0, "p95"), Tick(157.0, "p99")]
    places = [label.place for label in plots.spread(labels)]
    assert places == sorted(places)
    assert all(later - earlier >= 12 for earlier, later in pairwise(places))
    assert places[-1] <= 164


@pytest.mark.parametrize(
    ("span_s", "labels"),
    [
        (40, ["09:00:00", "09:00:10", "09:00:20", "09:00:30", "09:00:40"]),
        (2 * 3600, ["09:00", "09:30", "10:00", "10:30", "11:00"]),
        (3 * DAY_S, ["16 Sep", "17 Sep", "18 Sep"]),
        (300 * DAY_S, ["Dec 2026", "Mar 2027", "Jun 2027"]),
    ],
)
def test_times_are_round_and_few(span_s, labels):
    start_s = datetime(2026, 9, 15, 9, tzinfo=UTC).timestamp()
    assert [label for _, label in plots.time_ticks(start_s, start_s + span_s)] == labels


def test_the_parts_of_a_bar_fill_it_and_the_smallest_is_visible():
    parts = [Part("acked", 199_997, "well"), Part("ready", 0, "neutral"), Part("lost", 3, "lost")]
    acked, lost = widths(plots.shares(parts))
    assert acked + lost == pytest.approx(100, abs=0.1)
    assert lost > 0.5


def test_a_bar_of_nothing_is_empty():
    assert widths(plots.shares([])) == []
    assert widths(plots.size(0, 10, "attention")) == [0]
