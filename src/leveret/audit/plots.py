"""Drawings of figures as SVG: percentiles over time, shares of a whole, sizes beside each other.

Owns scales, ticks and lines; colours are the style sheet's, by class. Lines differ by dashes and are named at
their end, and the parts of a bar are named beside it: nothing is said by colour alone. A number that is not
nought is always to be seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

from leveret.audit.markup import Safe, tag
from leveret.audit.wording import PERCENTILES, Tone, duration

Percentiles: TypeAlias = tuple[float | None, float | None, float | None]

_WIDTH, _HEIGHT = 360.0, 190.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 52.0, 32.0, 10.0, 26.0
_MOST_POINTS: Final = 240
_LOGARITHMIC_FROM: Final = 30
"""Where the highest is so many times the lowest, a linear scale would show a flat line."""
_LABEL_GAP: Final = 12.0
_MOST_TIMES: Final = 4
_STEPS_S: Final = tuple(
    unit * each
    for unit, several in (
        (1, (1, 2, 5, 10, 15, 30)),
        (60, (1, 2, 5, 10, 15, 30)),
        (3600, (1, 2, 3, 6, 12)),
        (86_400, (1, 2, 7, 14, 30, 90, 365, 1825)),
    )
    for each in several
)
_FORMS: Final = (("%H:%M:%S", 60), ("%H:%M", 86_400), ("%d %b", 90 * 86_400), ("%b %Y", math.inf))
_LEAST_SHARE: Final = 0.8
"""In hundredths of a bar: what is there is to be seen."""


class Point(NamedTuple):
    at_s: float
    values: Percentiles


class Part(NamedTuple):
    """Of a whole."""

    name: str
    messages: int
    tone: Tone


class Scale(NamedTuple):
    """From values to places."""

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


# percentiles over time


def percentiles(
    title: str, points: Sequence[Point], *, span_s: tuple[float, float], stretch_s: float
) -> Safe:
    """Three lines; where a stretch of time is missing, they are interrupted."""
    several = math.ceil(len(points) / _MOST_POINTS)
    shown = thinned(points, several)
    known = [value for point in shown for value in point.values if value is not None]
    times = Scale(*span_s, _LEFT, _WIDTH - _RIGHT)
    values = value_scale(known)
    return tag(
        "svg",
        tag("title", title),
        tag("desc", _described(known)),
        *_value_axis(values),
        *_time_axis(times),
        *_lines(shown, times, values, gap_s=1.5 * several * stretch_s),
        viewBox=f"0 0 {_WIDTH:.0f} {_HEIGHT:.0f}",
        class_="plot",
        role="img",
    )


def thinned(points: Sequence[Point], several: int) -> list[Point]:
    """So many neighbours become one, with the highest of their values."""
    if several <= 1:
        return list(points)
    found = []
    for begin in range(0, len(points), several):
        some = points[begin : begin + several]
        highest = [
            max((value for value in column if value is not None), default=None)
            for column in zip(*(each.values for each in some), strict=True)
        ]
        found.append(Point(some[0].at_s, (highest[0], highest[1], highest[2])))
    return found


def value_scale(known: Sequence[float]) -> Scale:
    """Linear from nought, or logarithmic from power of ten to power of ten."""
    begin, end = _HEIGHT - _BOTTOM, _TOP
    above = [value for value in known if value > 0]
    if not above:
        return Scale(0, 1, begin, end)
    low, high = min(above), max(above)
    if high / low < _LOGARITHMIC_FROM:
        step = _step(high)
        return Scale(0, step * math.ceil(high / step), begin, end)
    lowest, highest = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return Scale(10.0**lowest, 10.0**highest, begin, end, logarithmic=True)


def _step(high: float) -> float:
    """From one line of a linear grid to the next: a round number, so that there are three to five.

    >>> _step(0.34), _step(7.0), _step(130)
    (0.1, 2.0, 50.0)
    """
    unit = 10.0 ** math.floor(math.log10(high / 4))
    return next(unit * each for each in (1, 2, 2.5, 5, 10) if unit * each >= high / 4)


def _value_axis(scale: Scale) -> Iterator[Safe]:
    for value in _value_ticks(scale):
        y = scale.place(value)
        yield tag("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=y, y2=y, class_="grid")
        yield tag("text", _axis_label(value), x=_LEFT - 6, y=y + 3.5, text_anchor="end")


def _value_ticks(scale: Scale) -> list[float]:
    if not scale.logarithmic:
        step = _step(scale.high)
        return [step * each for each in range(round(scale.high / step) + 1)]
    lowest, highest = round(math.log10(scale.low)), round(math.log10(scale.high))
    step_decades = math.ceil((highest - lowest) / 5)
    return [10.0**each for each in range(lowest, highest + 1, step_decades)]


def _axis_label(value_ms: float) -> str:
    """
    >>> _axis_label(0), _axis_label(2.5), _axis_label(100_000)
    ('0', '2.5 ms', '100 s')
    """
    if not value_ms:
        return "0"
    return f"{value_ms:g} ms" if value_ms < 1000 else f"{value_ms / 1000:,g} s"


def _time_axis(scale: Scale) -> Iterator[Safe]:
    bottom = _HEIGHT - _BOTTOM
    for at_s, label in time_ticks(scale.low, scale.high):
        x = scale.place(at_s)
        yield tag("line", x1=x, x2=x, y1=bottom, y2=bottom + 4, class_="tick")
        yield tag("text", label, x=x, y=bottom + 17, text_anchor="middle")
    yield tag("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=bottom, y2=bottom, class_="axis")


def time_ticks(start_s: float, stop_s: float) -> list[tuple[float, str]]:
    """Round times in UTC, a few.

    >>> [label for _, label in time_ticks(1_789_462_800, 1_789_462_800 + 3600)]
    ['09:00', '09:15', '09:30', '09:45', '10:00']
    """
    step = next((each for each in _STEPS_S if (stop_s - start_s) / each <= _MOST_TIMES), _STEPS_S[-1])
    form = next(form for form, below_s in _FORMS if step < below_s)
    first = math.ceil(start_s / step) * step
    count = math.floor((stop_s - first) / step) + 1
    times = [first + each * step for each in range(count)]
    return [(at_s, datetime.fromtimestamp(at_s, UTC).strftime(form)) for at_s in times]


def _lines(points: Sequence[Point], times: Scale, values: Scale, *, gap_s: float) -> Iterator[Safe]:
    ends: list[tuple[float, str]] = []
    for number, name in enumerate(PERCENTILES):
        found = [(point.at_s, point.values[number]) for point in points]
        known = [(at_s, value) for at_s, value in found if value is not None]
        if not known:
            continue
        yield tag("path", d=_path(known, times, values, gap_s=gap_s), class_=f"line {name}")
        ends.append((values.place(known[-1][1]), name))
    for y, name in spread(ends):
        yield tag("text", name, x=_WIDTH - _RIGHT + 5, y=y + 3.5, class_=f"label {name}")


def _path(known: Sequence[tuple[float, float]], times: Scale, values: Scale, *, gap_s: float) -> str:
    """A point that stands alone is a line of no length, which its round end makes a dot."""
    places = [f"{times.place(at_s):.1f} {values.place(value):.1f}" for at_s, value in known]
    apart = [True, *(right[0] - left[0] > gap_s for left, right in pairwise(known)), True]
    drawn = []
    for number, place in enumerate(places):
        drawn.append(f"{'M' if apart[number] else 'L'}{place}")
        if apart[number] and apart[number + 1]:
            drawn.append("h0")
    return "".join(drawn)


def spread(labels: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """The labels from top to bottom, each far enough below the one before, and all inside."""
    found: list[tuple[float, str]] = []
    for y, name in sorted(labels, key=lambda each: (each[0], -PERCENTILES.index(each[1]))):
        found.append((max(y, found[-1][0] + _LABEL_GAP) if found else y, name))
    excess = max(0.0, found[-1][0] - (_HEIGHT - _BOTTOM)) if found else 0.0
    return [(y - excess, name) for y, name in found]


def _described(known: Sequence[float]) -> str:
    if not known:
        return "Nothing is known."
    return f"p50, p95 and p99 over time, between {duration(min(known))} and {duration(max(known))}."


# bars


def shares(parts: Sequence[Part]) -> Safe:
    """What a whole consists of, as one bar."""
    there = [each for each in parts if each.messages > 0]
    whole = sum(each.messages for each in there)
    widths = [max(_LEAST_SHARE, 100 * each.messages / whole) for each in there]
    scale = 100 / sum(widths) if widths else 0
    x = 0.0
    drawn = []
    for part, width in zip(there, widths, strict=True):
        about = tag("title", f"{part.name}: {part.messages:,}")
        drawn.append(tag("rect", about, x=x, width=width * scale, height=10, class_=f"part {part.tone}"))
        x += width * scale
    return _bar(drawn, ", ".join(f"{each.name} {each.messages:,}" for each in there) or "nothing")


def size(count: int, most: int, tone: Tone) -> Safe:
    """One number beside the others of its column."""
    width = max(_LEAST_SHARE, 100 * count / most) if count else 0
    drawn = tag("rect", width=width, height=10, class_=f"part {tone}")
    return _bar([drawn], f"{count:,}; the most are {most:,}")


def _bar(drawn: Sequence[Safe], title: str) -> Safe:
    return tag(
        "svg",
        tag("title", title),
        *drawn,
        viewBox="0 0 100 10",
        preserveAspectRatio="none",
        class_="bar",
        role="img",
    )
