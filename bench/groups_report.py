"""Medians, ratios and extremes from the raw runs of `bench.groups`, the bars, and the tables people read."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bench.report import number, ratio, table

Runs = Mapping[str, list[dict[str, Any]]]
"""By contender, in the order in which they were made."""
Results = Mapping[str, Runs]
"""By part."""
TITLES = {
    "rate": "one member beside a queue's consumer",
    "groups": "a topic of 4 partitions, one group and four",
    "holes": "1M holes, 100k in flight, 100k delayed",
    "movement": "64 partitions, members that come and go",
    "lateness": "deadlines of 100k deliveries in flight",
}
COLUMNS: dict[str, tuple[tuple[str, str, int], ...]] = {
    "rate": (
        ("messages/s", "rate", 0),
        ("broker CPU µs", "broker_cpu_us", 2),
        ("generator", "generator_cpu_us", 2),
        ("others busy", "others_cpu_share", 2),
    ),
    "groups": (
        ("broker CPU µs a delivery", "broker_cpu_us", 2),
        ("deliveries/s", "rate", 0),
        ("others busy", "others_cpu_share", 2),
    ),
    "holes": (
        ("delivers/s", "deliver_rate", 0),
        ("settles/s", "settle_rate", 0),
        ("CPU µs: deliver", "deliver_cpu_us", 2),
        ("settle", "settle_cpu_us", 2),
        ("others busy", "others_cpu_share", 2),
    ),
    "movement": (("ms until all flows", "flow_ms", 0), ("in flight", "in_flight", 0)),
    "lateness": (
        ("p50 ms", "p50_ms", 1),
        ("p99", "p99_ms", 1),
        ("max", "max_ms", 1),
        ("in flight", "in_flight_most", 0),
        ("messages", "messages", 0),
    ),
}
MEMORY = {
    "hole_bytes": "all that is kept, over all holes",
    "in_flight_bytes": "in flight, sent in large batches",
    "in_flight_one_by_one_bytes": "in flight, sent one by one",
    "come_back_bytes": "come back with a member that was lost",
    "sent_back_bytes": "sent back with a delay",
}


@dataclass(frozen=True)
class Bar:
    """What is asked of a figure: `least` so much, or else at most."""

    part: str
    title: str
    asked: float
    found: Callable[[Runs], float | None]
    least: bool = False
    digits: int = 2
    unit: str = "x"

    def is_met(self, found: float) -> bool:
        return found >= self.asked if self.least else found <= self.asked

    def row(self, runs: Runs) -> list[str]:
        found = self.found(runs)
        asked = f"{'≥' if self.least else '≤'} {self.asked:.{2 if self.asked < 2 else 0}f} {self.unit}"
        verdict = "not measured" if found is None else "met" if self.is_met(found) else "NOT met"
        return [f"{self.part}: {self.title}", number(found, self.digits), f"{asked}: {verdict}"]


def over(above: str, below: str, figure: str) -> Callable[[Runs], float | None]:
    """The median of the ratios within rounds."""
    return lambda runs: ratio(runs, above, below, figure)


def worst(prefix: str, figure: str) -> Callable[[Runs], float | None]:
    """The highest of all runs of the contenders of this name."""
    return lambda runs: max(values_of(runs, prefix, figure), default=None)


def values_of(runs: Runs, prefix: str, figure: str) -> list[float]:
    chosen = [run for name, each in runs.items() if name.startswith(prefix) for run in each]
    return [run[figure] for run in chosen if figure in run]


def more_than_in_flight(runs: Runs) -> float | None:
    """By how much the duplicates after an event exceed what was in flight, at worst."""
    events = [run for each in runs.values() for run in each if "duplicates" in run]
    return max((run["duplicates"] - run["in_flight"] for run in events), default=None)


def moved(mode: str) -> Bar:
    events = (f"{mode}, {event}" for event in ("join", "leave", "die"))
    figures = [worst(name, "flow_ms") for name in events]

    def found(runs: Runs) -> float | None:
        return max((value for each in figures if (value := each(runs)) is not None), default=None)

    return Bar("movement", f"{mode}, the slowest", 200, found, digits=0, unit="ms")


def weighed(figure: str) -> Bar:
    return Bar("holes", MEMORY[figure], 100, worst("memory", figure), digits=1, unit="bytes")


BARS = [
    Bar("rate", "group / queue", 0.7, over("group", "queue", "rate"), least=True),
    Bar(
        "groups",
        "four / one, with publishing",
        1.1,
        over("four with publishing", "one with publishing", "broker_cpu_us"),
    ),
    Bar("groups", "four / one, reading", 1.1, over("four reading", "one reading", "broker_cpu_us")),
    Bar("holes", "delivers behind / empty", 2 / 3, over("behind", "empty", "deliver_rate"), least=True),
    Bar("holes", "settles behind / empty", 2 / 3, over("behind", "empty", "settle_rate"), least=True),
    Bar("holes", "delivers among / few", 2 / 3, over("among", "few", "deliver_rate"), least=True),
    Bar("holes", "settles among / few", 2 / 3, over("among", "few", "settle_rate"), least=True),
    *map(weighed, MEMORY),
    moved("concurrent"),
    moved("orderly"),
    Bar("movement", "duplicates beyond what was in flight", 0, more_than_in_flight, digits=0, unit=""),
    Bar("lateness", "p99", 100, worst("paced", "p99_ms"), digits=1, unit="ms"),
    Bar("lateness", "p99, time changed while running", 100, worst("changed", "p99_ms"), digits=1, unit="ms"),
]


def medians(runs: list[dict[str, Any]]) -> dict[str, float]:
    figures = {name for run in runs for name, value in run.items() if isinstance(value, int | float)}
    return {
        figure: statistics.median(run[figure] for run in runs if figure in run) for figure in sorted(figures)
    }


def summarize(part: str, runs: Runs) -> dict[str, Any]:
    """As it is kept: the raw runs, medians, and what the bars ask for."""
    return {
        "title": TITLES[part],
        "runs": runs,
        "medians": {name: medians(each) for name, each in runs.items() if each},
        "bars": {bar.title: bar.found(runs) for bar in BARS if bar.part == part},
    }


def report(results: Results) -> str:
    note = (
        "medians over the rounds (movement: the median and the slowest); CPU: of the broker; others busy:\n"
        "cores used by other processes; ratios: medians of the ratios within a round"
    )
    parts = [shown(part, runs) for part, runs in results.items()]
    return "\n\n".join([*parts, verdicts(results), note, *failed(results)])


def shown(part: str, runs: Runs) -> str:
    rows = [[TITLES[part], *(title for title, _, _ in COLUMNS[part])]]
    if part == "movement":
        rows[0] += ["slowest", "most in flight", "most duplicates"]
    for name, each in runs.items():
        if name == "memory" or not each:
            continue
        middle = medians(each)
        cells = [number(middle.get(figure), digits) for _, figure, digits in COLUMNS[part]]
        if part == "movement":
            cells += [number(worst(name, of)(runs)) for of in ("flow_ms", "in_flight", "duplicates")]
        rows.append([name, *cells])
    return table(rows)


def verdicts(results: Results) -> str:
    rows = [["bars", "found", "asked"]]
    rows += [bar.row(results[bar.part]) for bar in BARS if bar.part in results]
    return table(rows)


def failed(results: Results) -> list[str]:
    return [
        f"FAILED {part}, {name}: {run['error']}"
        for part, runs in results.items()
        for name, each in runs.items()
        for run in each
        if "error" in run
    ]
