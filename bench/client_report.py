"""Medians, spreads and ratios from the raw runs of `bench.client`, the bars, and the tables people read."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench.report import number, ratio, table, times

Results = Mapping[str, Mapping[str, Any]]
"""By the titles of contests."""
FIGURES = ("rate", "client_cpu_us", "broker_cpu_us", "others_cpu_share")
NAMES = {"leveret": "leveret.client", "aio_pika": "aio-pika", "pika": "pika, blocking", "raw": "no library"}
TITLES = {
    "publish": "confirmed publishes, 100 B persistent, at most 1,000 unconfirmed",
    "consume": "consume, ack each",
}
SETTLED_SAMPLE = 2
"""The sample with which memory is compared: what is loaded once and what fills up once is there by then."""


@dataclass(frozen=True)
class Bar:
    """How many times faster than another library the toolkit is to be."""

    task: str
    client: str
    times: float


BARS = [Bar("publish", "aio_pika", 8), Bar("publish", "pika", 20), Bar("consume", "aio_pika", 4)]


def summarize(runs: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """What is known of the runs of one task on one broker; ratios are of runs in the same round."""
    medians = {
        client: {figure: statistics.median(run[figure] for run in good) for figure in FIGURES}
        for client, each in runs.items()
        if (good := [run for run in each if "rate" in run])
    }
    spread = {
        client: [min(rates), max(rates)]
        for client, each in runs.items()
        if (rates := [run["rate"] for run in each if "rate" in run])
    }
    against = {
        client: {
            "rate": ratio(runs, "leveret", client, "rate"),
            "client_cpu_us": ratio(runs, client, "leveret", "client_cpu_us"),
        }
        for client in runs
        if client != "leveret" and "leveret" in medians and client in medians
    }
    return {"runs": runs, "medians": medians, "rate_spread": spread, "leveret_against": against}


def of_libraries(results: Results) -> str:
    note = (
        "ours/theirs: the median over the rounds of leveret.client's rate over that library's; theirs/ours:\n"
        "of that library's CPU time per message over leveret.client's; no library: frames encoded before,\n"
        "which shows what the broker can do; beyond the broker: not even without a library is it that much\n"
        "faster; others busy: cores used by other processes"
    )
    return "\n\n".join([*map(comparison, results.values()), note, *failed(results)])


def comparison(found: Mapping[str, Any]) -> str:
    task = found["task"]
    rows = [
        [
            *("", "messages/s", "from", "to", "ours/theirs"),
            *("client CPU µs", "theirs/ours", "broker CPU µs", "others busy", "bar"),
        ]
    ]
    for client, medians in found["medians"].items():
        low, high = found["rate_spread"][client]
        against = found["leveret_against"].get(client, {})
        way = next(run["way"] for run in found["runs"][client] if "way" in run)
        rows.append(
            [
                f"{NAMES[client]}: {way}",
                *(number(medians["rate"]), number(low), number(high)),
                times(against.get("rate")),
                number(medians["client_cpu_us"], 2),
                times(against.get("client_cpu_us")),
                number(medians["broker_cpu_us"], 2),
                number(medians["others_cpu_share"], 2),
                next((verdict(bar, found) for bar in BARS if (bar.task, bar.client) == (task, client)), ""),
            ]
        )
    return f"{TITLES[task]}; broker: {found['broker']}\n\n{table(rows)}"


def verdict(bar: Bar, found: Mapping[str, Any]) -> str:
    """Whether a bar is met, by rate and by CPU time; what no client gets of the broker is beyond it."""
    against = found["leveret_against"].get(bar.client)
    if against is None:
        return f"{bar.times:.0f}x: not measured"
    ceiling = ratio(found["runs"], "raw", bar.client, "rate")
    rate = "met" if against["rate"] >= bar.times else "NOT met"
    if rate != "met" and ceiling is not None and ceiling < bar.times:
        rate = "beyond the broker"
    cpu = "met" if against["client_cpu_us"] >= bar.times else "NOT met"
    return f"{bar.times:.0f}x: rate {rate}, CPU {cpu}"


def failed(results: Results) -> list[str]:
    return [
        f"FAILED {title}, {name}: {run['error']}"
        for title, found in results.items()
        for name, runs in found.get("runs", {}).items()
        for run in runs
        if "error" in run
    ]


def of_ways(results: Results) -> str:
    """The ways of one library beside each other, the fastest first."""
    parts = []
    for title, found in results.items():
        rows = [[title, "messages/s", "from", "to", "client CPU µs"]]
        for way, medians in sorted(found["medians"].items(), key=lambda item: -item[1]["rate"]):
            rates = [medians["rate"], *found["rate_spread"][way]]
            rows.append([way, *map(number, rates), number(medians["client_cpu_us"], 2)])
        parts.append(table(rows))
    return "\n\n".join([*parts, *failed(results)])


def of_memory(results: Results) -> str:
    """Resident memory on the way, and how much it grew after the first messages."""
    parts = []
    for broker, found in results.items():
        samples = found["resident_bytes"]
        step = found["messages"] // len(samples)
        rows = [[f"messages, out and in; broker: {broker}", "resident MiB"]]
        rows += [[f"{(i + 1) * step:,}", mebibytes(size)] for i, size in enumerate(samples)]
        grown = samples[-1] - samples[SETTLED_SAMPLE - 1]
        since = SETTLED_SAMPLE * step
        parts.append(
            f"{table(rows)}\ngrown by {mebibytes(grown)} MiB since message {since:,}; "
            f"{found['rate']:,.0f} messages/s, {found['client_cpu_us']:.2f} CPU µs each"
        )
    return "\n\n".join(parts)


def mebibytes(size: int) -> str:
    return f"{size / 2**20:.1f}"
