"""The report's section on time: how long messages took to be confirmed, delivered and settled.

Owns which queues are drawn, in which order, and the table of their slowest stretches; lines and scales are
left to `plots`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from leveret.audit import plots
from leveret.audit.findings import Findings, Latency
from leveret.audit.markup import Safe, tag
from leveret.audit.page_elements import Figure, Row, Section, folded, lead, none, section
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
    first = moment(min(each.at for each in findings.latencies))
    about = (
        f"Percentiles of the messages published in each stretch of {duration(findings.stretch_s * 1000)}, "
        f"from {first} on. Times are UTC. Where the values differ much, the scale is logarithmic."
    )
    drawn = [
        panel
        for place, some in found[:_QUEUES_DRAWN]
        for panel in _panels(names.queue(place), some, stretch_s=findings.stretch_s)
    ]
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
    return section(
        "latencies", title, lead(about), tag("div", *drawn, class_="panels"), *more, _slowest(findings, names)
    )


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


def _panels(name: str, some: Sequence[Latency], *, stretch_s: float) -> Iterator[Safe]:
    """A chart for each stage of which something is known."""
    for stage in STAGES:
        points = [plots.Point(in_utc(each.at).timestamp() + stretch_s / 2, stage.of(each)) for each in some]
        known = [point for point in points if any(value is not None for value in point.values)]
        if known:
            yield _panel(name, stage, known, stretch_s=stretch_s)


def _panel(name: str, stage: Stage, points: Sequence[plots.Point], *, stretch_s: float) -> Safe:
    """From the first point to the last: a queue that was busy for a minute of a day fills its chart too."""
    first_s, last_s = points[0].at_s, points[-1].at_s
    wider_s = stretch_s / 2 if first_s == last_s else 0
    span_s = (first_s - wider_s, last_s + wider_s)
    caption = tag("figcaption", tag("strong", name), f" from {stage.name}")
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
