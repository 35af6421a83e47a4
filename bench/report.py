"""Medians and ratios from the raw runs of `bench.broker`, and the tables that people read."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import Any

Runs = Mapping[str, list[dict[str, Any]]]
FIGURES = ("rate", "behind", "broker_cpu_us", "generator_cpu_us", "others_cpu_share")
LATENCIES = tuple(f"{of}_{mark}_us" for of in ("confirm", "delivery") for mark in ("p50", "p99", "p999"))
THROUGHPUT = [
    *("messages/s", "RabbitMQ", "Leveret", "ratio", "ceiling"),
    *("CPU µs: RabbitMQ", "Leveret", "ratio", "generator", "others busy"),
]


def summarize(runs: Runs) -> dict[str, object]:
    medians = {
        name: {
            figure: statistics.median(values)
            for figure in (*FIGURES, *LATENCIES)
            if (values := [run[figure] for run in each if figure in run])
        }
        for name, each in runs.items()
    }
    ratios = {
        "rate": ratio(runs, "leveret", "rabbitmq", "rate"),
        "broker_cpu_us": ratio(runs, "rabbitmq", "leveret", "broker_cpu_us"),
    }
    return {"medians": medians, "leveret_against_rabbitmq": {k: v for k, v in ratios.items() if v}}


def ratio(runs: Runs, over: str, under: str, figure: str) -> float | None:
    """The median of the ratios of runs in the same round."""
    pairs = zip(runs.get(over, ()), runs.get(under, ()), strict=False)
    found = [a[figure] / b[figure] for a, b in pairs if figure in a and b.get(figure)]
    return statistics.median(found) if found else None


def factor(results: Mapping[str, Any], over: str, under: str, broker: str) -> float | None:
    """How much faster one scenario is than another, on the same broker, within rounds."""
    if over not in results or under not in results:
        return None
    runs = {name: results[name]["runs"].get(broker, []) for name in (over, under)}
    return ratio(runs, over, under, "rate")


def report(results: Mapping[str, Any]) -> str:
    parts = [
        throughput(results),
        beside(results),
        balance(results),
        transactions(results),
        latency(results),
        failures(results),
    ]
    return "\n\n".join(part for part in parts if part)


def throughput(results: Mapping[str, Any]) -> str:
    rows = [THROUGHPUT]
    for each in results.values():
        rate, cpu = each_of(each, "rate"), each_of(each, "broker_cpu_us")
        against = each["leveret_against_rabbitmq"]
        busy = [m["others_cpu_share"] for n, m in each["medians"].items() if n != "sink" and m]
        rows.append(
            [
                each["title"],
                number(rate["rabbitmq"]),
                number(rate["leveret"]),
                times(against.get("rate")),
                number(rate["sink"]),
                number(cpu["rabbitmq"], 2),
                number(cpu["leveret"], 2),
                times(against.get("broker_cpu_us")),
                number(each_of(each, "generator_cpu_us")["sink"], 2),
                number(max(busy, default=None), 2),
            ]
        )
    note = "ceiling: against a sink; generator: its CPU µs there; others busy: cores used by other processes"
    return f"{table(rows)}\n{note}"


def beside(results: Mapping[str, Any]) -> str:
    """Leveret against the older code of `--beside`, in the same rounds."""
    rows = [["Leveret against the code before", "rate", "CPU"]]
    for each in results.values():
        runs = each["runs"]
        rate = ratio(runs, "leveret", "before", "rate")
        cpu = ratio(runs, "before", "leveret", "broker_cpu_us")
        if rate and cpu:
            rows.append([each["title"], f"{rate:.2f}x", f"{cpu:.2f}x"])
    return table(rows) if len(rows) > 1 else ""


def balance(results: Mapping[str, Any]) -> str:
    rows = [["time of the last ack / of the last confirm", "RabbitMQ", "Leveret", "before"]]
    for each in results.values():
        found = [each["medians"].get(name, {}).get("behind") for name in ("rabbitmq", "leveret", "before")]
        if any(found):
            rows.append([each["title"], *(number(value, 2) for value in found)])
    return table(rows) if len(rows) > 1 else ""


def transactions(results: Mapping[str, Any]) -> str:
    rows = [["20 channels, factor over one message per tx", "RabbitMQ", "Leveret"]]
    for title, over in (
        ("confirms, one at a time", "one-at-a-time"),
        ("confirms, streamed (1 connection)", "persistent"),
    ):
        found = [factor(results, over, "transactions", broker) for broker in ("rabbitmq", "leveret")]
        if any(found):
            rows.append([title, *map(times, found)])
    return table(rows) if len(rows) > 1 else ""


def latency(results: Mapping[str, Any]) -> str:
    rows = [["latency, µs", "", "confirm p50", "p99", "p99.9", "delivery p50", "p99", "p99.9"]]
    for each in results.values():
        for broker, medians in each["medians"].items():
            if "confirm_p50_us" in medians:
                rows.append([each["title"], broker, *(number(medians.get(name)) for name in LATENCIES)])
    return table(rows) if len(rows) > 1 else ""


def failures(results: Mapping[str, Any]) -> str:
    found = [
        f"FAILED {name}, {broker}: {run['error']}"
        for name, each in results.items()
        for broker, runs in each["runs"].items()
        for run in runs
        if "error" in run
    ]
    return "\n".join(found)


def each_of(result: Mapping[str, Any], figure: str) -> dict[str, float | None]:
    medians = result["medians"]
    return {name: medians.get(name, {}).get(figure) for name in ("rabbitmq", "leveret", "sink")}


def number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def times(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}x"


def table(rows: Iterable[list[str]]) -> str:
    """Columns as wide as they need be; the first to the left, numbers to the right."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])
