"""The charts of the report's section on time: how long messages took to be confirmed, delivered and settled.

This module chooses which queues are drawn, in which order, and over which span of time. Lines and scales are
left to `plots`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from leveret.audit import plots
from leveret.audit.findings import Findings, Latency
from leveret.audit.wording import STAGES, Names, in_utc

_QUEUES_MAX: Final = 12


class Charts(NamedTuple):
    """The charts of the queues with most messages, and how many queues have no chart."""

    charts: list[plots.Chart]
    queues_left_out: int


def charts(findings: Findings, names: Names) -> Charts:
    by_queue = [latencies for latencies in _by_queue(findings.latencies) if _is_known(latencies)]
    drawn = [
        chart
        for latencies in by_queue[:_QUEUES_MAX]
        for chart in _charts(names.queue(latencies[0]), latencies, stretch_s=findings.stretch_s)
    ]
    return Charts(drawn, max(0, len(by_queue) - _QUEUES_MAX))


def _by_queue(latencies: Sequence[Latency]) -> list[list[Latency]]:
    """Return the latencies of each queue in order of time; the queue with most messages comes first."""
    by_queue: dict[tuple[str, str, str], list[Latency]] = defaultdict(list)
    for latency in latencies:
        by_queue[latency.vhost, latency.queue, latency.reader].append(latency)
    queues = [sorted(queue, key=lambda latency: in_utc(latency.at)) for queue in by_queue.values()]
    return sorted(queues, key=lambda queue: -sum(latency.messages for latency in queue))


def _is_known(latencies: Sequence[Latency]) -> bool:
    return any(value is not None for latency in latencies for stage in STAGES for value in stage.of(latency))


def _charts(queue: str, latencies: Sequence[Latency], *, stretch_s: float) -> Iterator[plots.Chart]:
    """Yield a chart for each stage with known times.

    A chart spans the time from its first to its last point, so a queue that was busy for one minute of a day
    fills its chart too.
    """
    for stage in STAGES:
        points = [
            plots.Point(in_utc(latency.at).timestamp() + stretch_s / 2, stage.of(latency))
            for latency in latencies
        ]
        known = [point for point in points if any(value is not None for value in point.values)]
        if known:
            margin_s = stretch_s / 2 if len(known) == 1 else 0.0
            span_s = (known[0].at_s - margin_s, known[-1].at_s + margin_s)
            yield plots.percentiles(queue, stage.name, known, span_s=span_s, stretch_s=stretch_s)
