"""Spark's source and sink beside what else there is: `python -m bench.spark [--only PART]`.

Large batches of a queue, beside rows from memory (no Python source can be faster), Spark's own Parquet
reader and pika on RabbitMQ; a DataFrame as messages, beside pika; a small batch every second, beside rows
from memory; and what publishers notice of a read. Runs are interleaved, after a round that is not counted;
ratios are medians of the ratios within a round. Nothing is asserted about speed; a row that is missing is an
error. Raw results go to `bench/results/spark.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from bench.broker import Failed
from bench.cpu import confine, process_tree
from bench.servers import Leveret, Missing, RabbitMQ, Server
from bench.spark_latency import (
    ReadEnded,
    probe,
    probe_of_nothing,
    queue_stream,
    refill,
    while_flight_reads,
    while_others_compute,
    while_spark_reads,
)
from bench.spark_queue import QUEUE, queue_on
from bench.spark_reads import Measured, Miscounted, Reads, parquet_of, small
from bench.spark_report import failed, report, summarize
from bench.spark_session import Unfinished, session
from bench.spark_writes import by_pika, by_sink, write

RESULTS = Path(__file__).parent / "results" / "spark.json"
PARTS = ("noop", "parquet", "sink", "micro", "latency")
Contenders = dict[str, Callable[[], Measured]]
Runs = dict[str, list[Measured]]


@dataclass(frozen=True)
class Sizes:
    """How much of everything: in rows, triggers and samples."""

    rounds: int = 3
    batch_rows: int = 1_000_000
    pika_rows: int = 50_000
    sink_rows: int = 500_000
    pika_sink_rows: int = 10_000
    micro_rows: int = 1_000
    triggers: int = 10
    """Of a block; there are as many blocks as rounds."""
    samples: int = 4_000

    def for_warm_up(self) -> Sizes:
        """Enough for Java to have compiled what is hot."""
        rows = {name: getattr(self, name) // 2 for name in ("batch_rows", "pika_rows", "sink_rows")}
        return replace(self, pika_sink_rows=self.pika_sink_rows // 4, **rows)


QUICK = Sizes(1, 100_000, 5_000, 20_000, 500, 1_000, 3, 500)


@dataclass(frozen=True)
class Bench:
    """What is there to measure with."""

    leveret: Server
    rabbitmq: Server | None
    files: Path
    sizes: Sizes

    def reads(self, spark: SparkSession) -> Reads:
        sizes = self.sizes
        return Reads(spark, self.leveret, self.rabbitmq, sizes.batch_rows, sizes.pika_rows, self.files)

    def contenders(self, part: str, reads: Reads) -> Contenders:
        """What is compared in a part; Leveret comes first."""
        if part in ("noop", "parquet"):
            sources = {"leveret": reads.leveret_queue, "memory": reads.memory}
            if part == "noop":
                sources["Parquet files"] = reads.parquet_files
                if self.rabbitmq:
                    sources["pika on RabbitMQ"] = reads.pika_queue
            return {name: partial(reads.large, each, part) for name, each in sources.items()}
        if part == "micro":
            rows, triggers = self.sizes.micro_rows, self.sizes.triggers
            return {name: partial(small, reads, name, triggers, rows) for name in ("leveret", "memory")}
        few = self.sizes.pika_sink_rows
        found: Contenders = {
            "leveret": partial(write, reads.spark, self.leveret, by_sink, self.sizes.sink_rows),
            "pika on Leveret": partial(write, reads.spark, self.leveret, by_pika, few),
        }
        if self.rabbitmq:
            found["pika on RabbitMQ"] = partial(write, reads.spark, self.rabbitmq, by_pika, few)
        return found

    def warm_up(self, part: str, spark: SparkSession) -> None:
        """One round that is not counted; small batches follow large ones, and need none."""
        if part == "micro":
            return
        smaller = replace(self, sizes=self.sizes.for_warm_up())
        contenders = smaller.contenders(part, smaller.reads(spark))
        if "Parquet files" in contenders:  # there are no smaller ones
            contenders["Parquet files"] = self.contenders(part, self.reads(spark))["Parquet files"]
        compare(f"{part}, warm-up", contenders, 1)

    def latency(self, reads: Reads, *, title: str, with_flight: bool = False) -> Runs:
        """The reads come from one queue, which is filled up before each."""
        server, samples = self.leveret, self.sizes.samples
        confirms = partial(probe, server, samples)
        with queue_on(server) as operator:

            def queue_read() -> Measured:
                return while_spark_reads(queue_stream(reads, operator.depth(QUEUE)), confirms)

            contenders: Contenders = {"idle": confirms}
            if with_flight:
                contenders["others compute"] = partial(while_others_compute, server, samples)
                refill(reads, operator.depth(QUEUE))
                contenders["Flight reads"] = partial(while_flight_reads, server, samples)
            contenders |= {"Spark reads": queue_read, **from_memory(reads, confirms)}
            return compare(title, contenders, self.sizes.rounds)

    def latency_of_nothing(self, reads: Reads) -> Runs:
        confirms = partial(probe_of_nothing, self.sizes.samples)
        contenders = {"idle": confirms, **from_memory(reads, confirms)}
        return compare("latency without a broker", contenders, self.sizes.rounds)


def from_memory(reads: Reads, confirms: Callable[[], Measured]) -> Contenders:
    def read() -> Measured:
        return while_spark_reads(reads.memory_stream(reads.batch_rows, endless=True), confirms)

    return {"Spark reads memory": read}


def compare(title: str, contenders: Contenders, rounds: int) -> Runs:
    """Rounds outside, contenders inside: what is compared was measured within seconds of each other."""
    raw: Runs = {name: [] for name in contenders}
    for number in range(1, rounds + 1):
        for name, measure in contenders.items():
            result = attempt(measure)
            raw[name].append(result)
            progress(f"{title}, round {number}, {name}: {brief(result)}")
    return raw


def attempt(measure: Callable[[], Measured]) -> Measured:
    try:
        return measure()
    except (Failed, Miscounted, ReadEnded, Unfinished, PySparkException) as reason:
        return {"error": str(reason)}


def brief(result: Measured) -> str:
    if "error" in result:
        return f"FAILED: {result['error']}"
    if "triggers" in result:
        return f"{sorted(trigger['phases_ms']['triggerExecution'] for trigger in result['triggers'])} ms"
    if "confirm_p99_us" in result:
        return f"p50 {result['confirm_p50_us']:,.0f} µs, p99 {result['confirm_p99_us']:,.0f} µs"
    return f"{result['rate']:,.0f}/s, {result['cpu_us']:.2f} µs a row"


def measure_all(bench: Bench, parts: list[str]) -> dict[str, dict[str, Any]]:
    raw: dict[str, Runs] = {}
    with session("local[2]") as spark:
        reads = bench.reads(spark)
        for part in parts:
            if part == "latency":
                raw[part] = bench.latency(reads, title="latency", with_flight=True)
                raw["latency-nothing"] = bench.latency_of_nothing(reads)
            else:
                bench.warm_up(part, spark)
                raw[part] = compare(part, bench.contenders(part, reads), bench.sizes.rounds)
    if "latency" in parts:
        raw["latency-realtime"] = latency_realtime(bench)
        raw["latency-apart"] = latency_apart(bench)
    return {part: summarize(part, runs) for part, runs in raw.items()}


def latency_realtime(bench: Bench) -> Runs:
    """Spark and the publisher want the same processors; the broker need not stand in line."""
    with Leveret(realtime=True) as server, session("local[2]") as spark:
        first = replace(bench, leveret=server)
        return first.latency(first.reads(spark), title="latency, realtime")


def latency_apart(bench: Bench) -> Runs:
    """As with Spark on another machine: the broker and its publisher have a processor, all others another."""
    everywhere = os.sched_getaffinity(0)
    with Leveret(cpus="0") as server, session("local[1]") as spark:
        java = spark.sparkContext._gateway.proc.pid
        confine(process_tree(java), {1})
        os.sched_setaffinity(0, {0})  # the publisher is started from here
        try:
            apart = replace(bench, leveret=server)
            return apart.latency(apart.reads(spark), title="latency apart")
        finally:
            os.sched_setaffinity(0, everywhere)
            confine(process_tree(java), everywhere)


@contextmanager
def benches(sizes: Sizes) -> Iterator[Bench]:
    with ExitStack() as stack:
        leveret = stack.enter_context(Leveret())
        rabbitmq: Server | None = None
        try:
            rabbitmq = stack.enter_context(RabbitMQ())
        except Missing as reason:
            progress(f"without it: {reason}")
        yield Bench(leveret, rabbitmq, stack.enter_context(parquet_of(sizes.batch_rows)), sizes)


def progress(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


def keep(results: dict[str, dict[str, Any]]) -> None:
    """What was not measured this time stays as it was."""
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    kept.setdefault("parts", {}).update(results)
    java = subprocess.run(["java", "-version"], capture_output=True, text=True).stderr.splitlines()
    kept["machine"] = {
        "python": platform.python_version(),
        "java": java[0] if java else "unknown",
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
        **{name: version(name) for name in ("pyspark", "pyarrow", "numpy", "pika")},
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(kept, indent=1) + "\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one small round; results are not kept")
    parser.add_argument("--only", action="append", choices=PARTS, help="a part; may be given several times")
    parser.add_argument("--rounds", type=int, help="3, or 1 with --quick")
    parser.add_argument("--rows", type=int, help="of a large batch: 1,000,000, or 100,000 with --quick")
    return parser.parse_args()


def main() -> None:
    chosen = arguments()
    sizes = QUICK if chosen.quick else Sizes()
    given = {"rounds": chosen.rounds, "batch_rows": chosen.rows}
    sizes = replace(sizes, **{name: value for name, value in given.items() if value})
    with benches(sizes) as bench:
        results = measure_all(bench, chosen.only or list(PARTS))
    print(report(results))
    if failed(results):
        sys.exit(1)
    if not chosen.quick:
        keep(results)


if __name__ == "__main__":
    main()
