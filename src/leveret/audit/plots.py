"""Geometry of the report's charts and bars: percentiles over time, parts of a whole, sizes of one column.

This module computes scales, ticks, paths and widths. `templates/elements.html` draws them, and the style
sheet colours them. Lines differ by dashes and carry a name at their end, and the parts of a bar are named
below it: no information depends on colour alone. A count above zero is always wide enough to be seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

from leveret.audit.wording import PERCENTILES, Tone, duration

Percentiles: TypeAlias = tuple[float | None, float | None, float | None]

_WIDTH, _HEIGHT = 360.0, 190.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 52.0, 328.0, 10.0, 164.0
_POINTS_MAX: Final = 240
_LOGARITHMIC_RATIO: Final = 30
"""From this ratio of the highest to the lowest value on, a linear scale would show a flat line."""
_LABEL_DISTANCE: Final = 12.0
_TIME_STEPS_MAX: Final = 4
_TIME_STEPS_S: Final = tuple(
    unit_s * count
    for unit_s, counts in (
        (1, (1, 2, 5, 10, 15, 30)),
        (60, (1, 2, 5, 10, 15, 30)),
        (3600, (1, 2, 3, 6, 12)),
        (86_400, (1, 2, 7, 14, 30, 90, 365, 1825)),
    )
    for count in counts
)
_TIME_FORMATS: Final = (("%H:%M:%S", 60), ("%H:%M", 86_400), ("%d %b", 90 * 86_400), ("%b %Y", math.inf))
"""Formats of time labels, each for steps shorter than its number of seconds."""
_NARROWEST_PERCENT: Final = 0.8
"""Least width of a part of a bar, so that it can be seen."""


class Point(NamedTuple):
    """Percentiles of one stretch of time."""

    at_s: float
    values: Percentiles


class Part(NamedTuple):
    """A part of a whole: a name and a number of messages."""

    name: str
    messages: int
    tone: Tone


class Tick(NamedTuple):
    """A labelled place on an axis."""

    place: float
    label: str


class Scale(NamedTuple):
    """A mapping from values to places in the chart."""

    low: float
    high: float
    begin: float
    end: float
    logarithmic: bool = False

    def place(self, value: float) -> float:
        low, high, value = self.low, self.high, max(value, self.low)
        if self.logarithmic:
            low, high, value = math.log10(low), math.log10(high), math.log10(value)
        return self.begin + (value - low) / (high - low) * (self.end - self.begin)


class Chart(NamedTuple):
    """Percentiles over time, ready to be drawn."""

    queue: str
    stage: str
    description: str
    value_ticks: list[Tick]
    time_ticks: list[Tick]
    lines: list[tuple[str, str]]
    """Names of the percentiles, and their lines as the `d` of an SVG path."""
    labels: list[Tick]
    """Names of the lines, at their ends."""
    width: float = _WIDTH
    height: float = _HEIGHT
    left: float = _LEFT
    right: float = _RIGHT
    bottom: float = _BOTTOM


class Bar(NamedTuple):
    """A horizontal bar with one or more parts."""

    title: str
    parts: list[tuple[Part, float, float]]
    """Each part with its begin and its width, as percentages of the bar."""
    has_keys: bool = False
    """Whether the parts are named below the bar."""


# percentiles over time


def percentiles(
    queue: str, stage: str, points: Sequence[Point], *, span_s: tuple[float, float], stretch_s: float
) -> Chart:
    """Return a chart of three lines; a line is interrupted where a stretch of time has no value."""
    group_size = math.ceil(len(points) / _POINTS_MAX)
    shown = thinned(points, group_size)
    known = [value for point in shown for value in point.values if value is not None]
    times = Scale(*span_s, _LEFT, _RIGHT)
    values = value_scale(known)
    lines, ends = [], []
    for index, name in enumerate(PERCENTILES):
        line = [(point.at_s, value) for point in shown if (value := point.values[index]) is not None]
        if line:
            lines.append((name, _path(line, times, values, gap_s=1.5 * group_size * stretch_s)))
            ends.append(Tick(values.place(line[-1][1]), name))
    return Chart(
        queue,
        stage,
        f"p50, p95 and p99 over time, between {duration(min(known))} and {duration(max(known))}.",
        _value_ticks(values),
        [Tick(times.place(at_s), label) for at_s, label in time_ticks(*span_s)],
        lines,
        spread(ends),
    )


def thinned(points: Sequence[Point], group_size: int) -> list[Point]:
    """Merge each group of neighbours into one point with their highest values."""
    if group_size <= 1:
        return list(points)
    merged = []
    for begin in range(0, len(points), group_size):
        group = points[begin : begin + group_size]
        highest = [
            max((value for value in column if value is not None), default=None)
            for column in zip(*(point.values for point in group), strict=True)
        ]
        merged.append(Point(group[0].at_s, (highest[0], highest[1], highest[2])))
    return merged


def value_scale(known: Sequence[float]) -> Scale:
    """Return a linear scale from zero, or a logarithmic one between powers of ten."""
    above_zero = [value for value in known if value > 0]
    if not above_zero:
        return Scale(0, 1, _BOTTOM, _TOP)
    low, high = min(above_zero), max(above_zero)
    if high / low < _LOGARITHMIC_RATIO:
        step = _step(high)
        return Scale(0, step * math.ceil(high / step), _BOTTOM, _TOP)
    lowest, highest = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return Scale(10.0**lowest, 10.0**highest, _BOTTOM, _TOP, logarithmic=True)


def _step(high: float) -> float:
    """Return the round distance between the grid lines of a linear scale with three to five lines.

    >>> _step(0.34), _step(7.0), _step(130)
    (0.1, 2.0, 50.0)
    """
    unit = 10.0 ** math.floor(math.log10(high / 4))
    return next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= high / 4)


def _value_ticks(scale: Scale) -> list[Tick]:
    if scale.logarithmic:
        lowest, highest = round(math.log10(scale.low)), round(math.log10(scale.high))
        step_decades = math.ceil((highest - lowest) / 5)
        values = [10.0**exponent for exponent in range(lowest, highest + 1, step_decades)]
    else:
        step = _step(scale.high)
        values = [step * number for number in range(round(scale.high / step) + 1)]
    return [Tick(scale.place(value), _axis_label(value)) for value in values]


def _axis_label(value_ms: float) -> str:
    """
    >>> _axis_label(0), _axis_label(2.5), _axis_label(100_000)
    ('0', '2.5 ms', '100 s')
    """
    if not value_ms:
        return "0"
    return f"{value_ms:g} ms" if value_ms < 1000 else f"{value_ms / 1000:,g} s"


def time_ticks(start_s: float, stop_s: float) -> list[tuple[float, str]]:
    """Return a few round times in UTC between two times, with their labels.

    >>> [label for _, label in time_ticks(1_789_462_800, 1_789_462_800 + 3600)]
    ['09:00', '09:15', '09:30', '09:45', '10:00']
    """
    step_s = next(
        (step_s for step_s in _TIME_STEPS_S if (stop_s - start_s) / step_s <= _TIME_STEPS_MAX),
        _TIME_STEPS_S[-1],
    )
    time_format = next(text for text, below_s in _TIME_FORMATS if step_s < below_s)
    first_s = math.ceil(start_s / step_s) * step_s
    times = range(first_s, math.floor(stop_s) + 1, step_s)
    return [(at_s, datetime.fromtimestamp(at_s, UTC).strftime(time_format)) for at_s in times]


def _path(line: Sequence[tuple[float, float]], times: Scale, values: Scale, *, gap_s: float) -> str:
    """Return an SVG path. A point without neighbours is a line of no length, shown as a dot."""
    places = [f"{times.place(at_s):.1f} {values.place(value):.1f}" for at_s, value in line]
    gaps = [True, *(right[0] - left[0] > gap_s for left, right in pairwise(line)), True]
    path = []
    for index, place in enumerate(places):
        path.append(f"{'M' if gaps[index] else 'L'}{place}")
        if gaps[index] and gaps[index + 1]:
            path.append("h0")
    return "".join(path)


def spread(labels: Sequence[Tick]) -> list[Tick]:
    """Move labels apart so that none covers another and all stay inside the chart, from top to bottom."""
    placed: list[Tick] = []
    for y, name in sorted(labels, key=lambda label: (label.place, -PERCENTILES.index(label.label))):
        placed.append(Tick(max(y, placed[-1].place + _LABEL_DISTANCE) if placed else y, name))
    excess = max(0.0, placed[-1].place - _BOTTOM) if placed else 0.0
    return [Tick(y - excess, name) for y, name in placed]


# bars


def shares(parts: Sequence[Part]) -> Bar:
    """Return a bar that shows what a whole consists of."""
    shown = [part for part in parts if part.messages > 0]
    whole = sum(part.messages for part in shown)
    widths = [max(_NARROWEST_PERCENT, 100 * part.messages / whole) for part in shown]
    scale = 100 / sum(widths) if widths else 0
    x = 0.0
    drawn = []
    for part, width in zip(shown, widths, strict=True):
        drawn.append((part, x, width * scale))
        x += width * scale
    title = ", ".join(f"{part.name} {part.messages:,}" for part in shown) or "nothing"
    return Bar(title, drawn, has_keys=True)


def size(count: int, most: int, tone: Tone) -> Bar:
    """Return a bar that compares one number with the largest of its column."""
    width = max(_NARROWEST_PERCENT, 100 * count / most) if count else 0.0
    return Bar(f"{count:,}; the largest is {most:,}", [(Part("messages", count, tone), 0.0, width)])
