"""Medians and ratios from the raw runs of `bench.spark`, the bars, and the tables people read."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench.report import number, ratio, table

Runs = Mapping[str, list[dict[str, Any]]]
"""By contender, one for each round."""
Results = Mapping[str, Mapping[str, Any]]
"""By part."""
RATES = ("rate", "cpu_us", "spark_cpu_us", "broker_cpu_us", "others_cpu_share")
CONFIRMS = ("confirm_p50_us", "confirm_p99_us", "confirm_max_us")
ARRIVALS = ("arrival_p50_us", "arrival_p99_us", "arrival_max_us")
TRIGGERS = ("trigger_p50_ms", "trigger_p95_ms", "trigger_max_ms")
TITLES = {
    "noop": "queue to the noop sink, large batches",
    "parquet": "queue to Parquet, large batches",
    "sink": "DataFrame to queue, with confirms",
    "micro": "a small batch every second to the noop sink",
    "latency": "confirm of one publish at a time, meanwhile (Spark on local[2])",
    "latency-nothing": "same, answers after a fixed time instead of a broker (in SCHED_RR)",
    "latency-realtime": "confirm of one publish at a time, meanwhile (broker in SCHED_RR)",
    "latency-apart": "confirm of one publish at a time, meanwhile (Spark and Flight on another core)",
}


@dataclass(frozen=True)
class Bar:
    """What is asked of the ratio of two contenders; `least` or else at most."""

    part: str
    over: str
    under: str
    figure: str
    times: float
    least: bool = True

    def shown(self, found: float | None) -> str:
        asked = f"{'≥' if self.least else '≤'} {self.times:g}x"
        if found is None:
            return f"{asked}: not measured"
        met = found >= self.times if self.least else found <= self.times
        return f"{asked}: {'met' if met else 'NOT met'}"


BARS = [
    Bar("noop", "leveret", "memory", "rate", 0.5),
    Bar("noop", "leveret", "pika on RabbitMQ", "rate", 20),
    Bar("parquet", "leveret", "memory", "rate", 0.6),
    Bar("sink", "leveret", "pika on Leveret", "rate", 5),
    Bar("micro", "leveret", "memory", "trigger_p95_ms", 1.5, least=False),
    Bar("latency", "Spark reads", "idle", "confirm_p99_us", 2, least=False),
    Bar("latency", "Flight reads", "idle", "confirm_p99_us", 2, least=False),
    Bar("latency-realtime", "Spark reads", "idle", "arrival_p99_us", 2, least=False),
    Bar("latency-apart", "Spark reads", "idle", "confirm_p99_us", 2, least=False),
]


def summarize(part: str, runs: Runs) -> dict[str, Any]:
    """Medians over the rounds; ratios are of runs in the same round, those of small batches of all."""
    good = {name: [run for run in each if "error" not in run] for name, each in runs.items()}
    if part == "micro":
        medians = {name: of_triggers(each) for name, each in good.items() if each}
    else:
        medians = {
            name: {
                figure: statistics.median(values)
                for figure in (*RATES, *CONFIRMS, *ARRIVALS)
                if (values := [run[figure] for run in each if figure in run])
            }
            for name, each in good.items()
            if each
        }
    ratios = {
        f"{bar.over} / {bar.under}, {bar.figure}": found
        for bar in BARS
        if bar.part == part and (found := ratio_of(bar, runs, medians)) is not None
    }
    return {"runs": runs, "medians": medians, "ratios": ratios}


def ratio_of(bar: Bar, runs: Runs, medians: Mapping[str, Mapping[str, float]]) -> float | None:
    if bar.part != "micro":
        return ratio(runs, bar.over, bar.under, bar.figure)
    if bar.over not in medians or bar.under not in medians:
        return None
    return medians[bar.over][bar.figure] / medians[bar.under][bar.figure]


def of_triggers(blocks: list[dict[str, Any]]) -> dict[str, float]:
    """All triggers of all blocks; phases are medians."""
    triggers = [trigger for block in blocks for trigger in block["triggers"]]
    took = sorted(trigger["phases_ms"]["triggerExecution"] for trigger in triggers)
    phases = sorted({name for trigger in triggers for name in trigger["phases_ms"]} - {"triggerExecution"})
    return {
        "trigger_p50_ms": took[len(took) // 2],
        "trigger_p95_ms": took[min(len(took) - 1, int(len(took) * 0.95))],
        "trigger_max_ms": took[-1],
        **{
            f"{name}_ms": statistics.median(trigger["phases_ms"].get(name, 0) for trigger in triggers)
            for name in phases
        },
        "spark_cpu_ms": statistics.median(trigger["cpu"]["spark_s"] for trigger in triggers) * 1e3,
        "broker_cpu_ms": statistics.median(trigger["cpu"]["broker_s"] for trigger in triggers) * 1e3,
        "triggers": len(took),
    }


def report(results: Results) -> str:
    note = (
        "rows/s: by Spark's own time of a batch; CPU µs: a row, of Spark with its Python workers and of the\n"
        "broker; others busy: cores used by other processes meanwhile; came: until the confirm was at the\n"
        "publisher's socket, without its own wait for a core; ratios: medians over the rounds"
    )
    parts = [shown(part, found) for part, found in results.items() if found["medians"]]
    return "\n\n".join([*parts, verdicts(results), note, *failed(results)])


def shown(part: str, found: Mapping[str, Any]) -> str:
    titles = {
        "micro": [*("p50 ms", "p95", "max", "planning", "offsets", "addBatch", "Spark CPU ms", "broker")],
        "latency": ["p50 µs", "p99", "max", "p99/idle", "came: p50 µs", "p99", "max", "p99/idle"],
    }.get(part.partition("-")[0], ["rows/s", "from", "to", "CPU µs", "Spark", "broker", "others busy"])
    rows = [[TITLES[part], *titles]]
    for name, medians in found["medians"].items():
        rows.append([name, *cells(part, medians, found["runs"], name)])
    return table(rows)


def cells(part: str, medians: Mapping[str, float], runs: Runs, name: str) -> list[str]:
    if part == "micro":
        figures = (*TRIGGERS, "queryPlanning_ms", "latestOffset_ms", "addBatch_ms")
        return [number(medians.get(each)) for each in (*figures, "spark_cpu_ms", "broker_cpu_ms")]
    if part.startswith("latency"):
        found: list[str] = []
        for figures in (CONFIRMS, ARRIVALS):
            over_idle = ratio(runs, name, "idle", figures[1])
            found += [*(number(medians.get(each)) for each in figures), number(over_idle, 2)]
        return found
    rates = [run["rate"] for run in runs[name] if "rate" in run]
    spent = [number(medians[each], 2) for each in RATES[1:]]
    return [number(medians["rate"]), number(min(rates)), number(max(rates)), *spent]


def verdicts(results: Results) -> str:
    rows = [["bars", "ratio", ""]]
    for bar in BARS:
        if bar.part not in results:
            continue
        name = f"{bar.over} / {bar.under}, {bar.figure}"
        found = results[bar.part]["ratios"].get(name)
        rows.append([f"{bar.part}: {name}", number(found, 2), bar.shown(found)])
    return table(rows)


def failed(results: Results) -> list[str]:
    return [
        f"FAILED {part}, {name}: {run['error']}"
        for part, found in results.items()
        for name, runs in found["runs"].items()
        for run in runs
        if "error" in run
    ]
