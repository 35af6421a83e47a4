"""The report's section on time: how long messages took to be confirmed, delivered and settled.

Owns which queues are drawn, in which order, and the table of their slowest stretches; lines and scales are
left to `plots`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from leveret.audit import plots
from leveret.audit.elements import Figure, Row, Section, folded, lead, none, section
from leveret.audit.findings import Findings, Latency
from leveret.audit.markup import Safe, joined, tag
from leveret.audit.wording import (
    PERCENTILES,
    STAGES,
    Names,
    Stage,
    counted,
    duration,
    in_utc,
    moment,
    slowest,
)

_QUEUES_DRAWN: Final = 12


def latencies(findings: Findings, names: Names) -> Section:
    title = "How long it took"
    found = [(place, some) for place, some in _by_place(findings.latencies) if _known(some)]
    if not found:
        return section("latencies", title, none("Nothing is known of times."))
    span_s = _span(findings)
    first = moment(min(each.at for each in findings.latencies))
    about = (
        f"Percentiles of the messages published in each stretch of {duration(findings.stretch_s * 1000)}, "
        f"from {first} on. Times are UTC. Where the values differ much, the scale is logarithmic."
    )
    drawn = (
        _panels(names.queue(place), some, span_s=span_s, stretch_s=findings.stretch_s)
        for place, some in found[:_QUEUES_DRAWN]
    )
    rest = len(found) - _QUEUES_DRAWN
    more = (
        [
            tag(
                "p",
                f"{counted(rest, 'queue')} with fewer messages {'is' if rest == 1 else 'are'} not drawn.",
                class_="note",
            )
        ]
        if rest > 0
        else []
    )
    return section("latencies", title, lead(about), *drawn, *more, _slowest(findings, names))


def _by_place(latencies: Sequence[Latency]) -> list[tuple[Latency, list[Latency]]]:
    """The stretches of each queue, in time; the queue with most messages first."""
    places: dict[tuple[str, str, str], list[Latency]] = defaultdict(list)
    for each in latencies:
        places[each.vhost, each.queue, each.reader].append(each)
    found = [sorted(some, key=lambda each: in_utc(each.at)) for some in places.values()]
    found.sort(key=lambda some: -sum(each.messages for each in some))
    return [(some[0], some) for some in found]


def _known(some: Sequence[Latency]) -> bool:
    return any(value is not None for each in some for stage in STAGES for value in stage.of(each))


def _span(findings: Findings) -> tuple[float, float]:
    times_s = [in_utc(each.at).timestamp() for each in findings.latencies]
    return min(times_s), max(times_s) + findings.stretch_s


def _panels(name: str, some: Sequence[Latency], *, span_s: tuple[float, float], stretch_s: int) -> Safe:
    figures = (_panel(name, stage, some, span_s=span_s, stretch_s=stretch_s) for stage in STAGES)
    return joined([tag("h3", name), tag("div", *figures, class_="panels")])


def _panel(
    name: str, stage: Stage, some: Sequence[Latency], *, span_s: tuple[float, float], stretch_s: int
) -> Safe:
    points = [plots.Point(in_utc(each.at).timestamp() + stretch_s / 2, stage.of(each)) for each in some]
    caption = tag("figcaption", f"From {stage.name}")
    if not any(value is not None for point in points for value in point.values):
        return tag("figure", caption, none("Nothing is known."))
    title = f"{name}: from {stage.name}"
    return tag("figure", caption, plots.percentiles(title, points, span_s=span_s, stretch_s=stretch_s))


def _slowest(findings: Findings, names: Names) -> Safe:
    rows: list[Row] = [
        (
            names.queue(each.latency),
            each.stage.name,
            *(Figure(duration(value)) for value in each.percentiles),
            moment(each.latency.at),
            each.latency.messages,
        )
        for each in slowest(findings)
    ]
    columns = ("queue", "from", *PERCENTILES, "in the stretch from", "messages")
    return folded("The slowest stretch of each queue as a table", columns, rows)
