"""A declared pipeline beside the same code written by hand: `python -m bench.pipelines`.

Both read a queue of JSON messages, leave out what does not parse and what is not paid for, and write the rest
as Parquet, a directory for each batch. By hand that is `from_json`, a filter and `foreachBatch`; the pipeline
also says what was wrong with the others, counts them, and publishes them, if there are any. Runs are
interleaved, after some that are not counted, and each round goes there and back: Spark gets faster from run
to run, and whoever always came first would pay for it. The first batch of a query is not counted either.
Rows are those that Spark has read: a batch in which something is rejected is read twice. The bar: a pipeline
takes at most a tenth longer, as the median of the ratios within a round. Raw results go to
`bench/results/pipelines.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from array import array
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version
from itertools import accumulate, count
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from bench.client_raw import publish_all
from bench.frames import BODY, CONTENT_HEADER, DELIVERY_MODE_FLAG, HEADER, PERSISTENT, Load, frame, publish
from bench.peer import Client
from bench.report import number, ratio, table
from bench.servers import Leveret, Server
from bench.spark import attempt, brief
from bench.spark_queue import CHUNK, WINDOW, queue_on, url_of
from bench.spark_reads import Measured, Miscounted, figures
from bench.spark_session import QUERY_LIMIT_S, Meter, Unfinished, batches_of, scratch, session
from leveret.spark.pipelines import running
from leveret.spark.pipelines.declaration import parse
from leveret.spark.pipelines.declaration_checks import check

RESULTS = Path(__file__).parent / "results" / "pipelines.json"
QUEUE = "pipelines"
SCHEMA = "id LONG NOT NULL, customer STRING, amount DOUBLE, at TIMESTAMP, note STRING"
PIPELINE, BY_HAND, WITH_REJECTS = "pipeline", "by hand", "pipeline, 1 % rejected"
BAR = 1.1
_runs = count()


@dataclass(frozen=True)
class Sizes:
    rounds: int = 3
    """There and back: each has two runs of everything."""
    messages: int = 1_500_000
    batch: int = 500_000


QUICK = Sizes(1, 100_000, 50_000)


@dataclass(frozen=True)
class Bench:
    spark: SparkSession
    server: Server
    sizes: Sizes

    def contenders(self) -> dict[str, Callable[[], Measured]]:
        return {
            PIPELINE: lambda: self.run(self.pipeline),
            BY_HAND: lambda: self.run(self.by_hand),
            WITH_REJECTS: lambda: self.run(self.pipeline, bad_every=100),
        }

    def run(self, start: Callable[[Path], StreamingQuery], *, bad_every: int = 0) -> Measured:
        """Fills the queue, and reads it to its end; all batches but the first count."""
        messages = self.sizes.messages + self.sizes.batch
        with queue_on(self.server, QUEUE), queue_on(self.server, f"{QUEUE}.rejected"), scratch() as place:
            fill(self.server, messages, bad_every)
            with Meter(self.server.pid) as meter:
                query = start(place)
                if not query.awaitTermination(QUERY_LIMIT_S):
                    query.stop()
                    raise Unfinished(f"a query was not at its end after {QUERY_LIMIT_S} s")
            written = self.spark.read.parquet(str(place / "table")).count()
        wanted = messages - (-(-messages // bad_every) if bad_every else 0)
        if written != wanted:
            raise Miscounted(f"{written:,} rows in the table, not {wanted:,}")
        return figures(batches_of(query, meter)[1:])

    def pipeline(self, place: Path) -> StreamingQuery:
        text = f"""
            name = "bench-{next(_runs)}"
            checkpoint = "{place}/checkpoint"
            [source]
            url = "{url_of(self.server)}"
            queue = "{QUEUE}"
            max_messages = {self.sizes.batch}
            [parse]
            schema = "{SCHEMA}"
            [[expectations]]
            that = "amount > 0"
            [rejects]
            routing_key = "{QUEUE}.rejected"
            [[sinks]]
            name = "table"
            path = "{place}/table"
        """
        declared = parse(text, file="pipeline.toml")
        check(declared)
        return running.start(self.spark, declared, once=True)[0]

    def by_hand(self, place: Path) -> StreamingQuery:
        options = {"url": url_of(self.server), "queue": QUEUE, "cursor": f"bench-{next(_runs)}"}
        options["maxMessagesPerTrigger"] = str(self.sizes.batch)
        stream = self.spark.readStream.format("leveret").options(**options).load()

        def write(messages: DataFrame, batch: int) -> None:
            value = F.from_json(F.col("body").cast("string"), SCHEMA).alias("value")
            rows = messages.select(value, "queue", "partition", "offset").select(
                "value.*", "queue", "partition", "offset"
            )
            rows.where("id IS NOT NULL AND amount > 0").write.mode("overwrite").parquet(
                f"{place}/table/_batch={batch}"
            )

        writer = stream.writeStream.foreachBatch(write).option("checkpointLocation", f"{place}/checkpoint")
        return writer.trigger(availableNow=True).start()


def fill(server: Server, messages: int, bad_every: int) -> None:
    """Returns when everything is confirmed."""
    while messages:
        chunk = min(messages, CHUNK)
        client = Client(server.host, server.port)
        client.confirm_select()
        publish_all(client, orders(chunk, bad_every), WINDOW)
        client.close()
        messages -= chunk


@cache
def orders(messages: int, bad_every: int) -> Load:
    """Orders of about 200 bytes, encoded once; every so many is not paid for."""
    opening, published = publish("", QUEUE), []
    for which in range(messages):
        body = order(which, paid=not bad_every or which % bad_every != 0)
        header = CONTENT_HEADER.pack(60, 0, len(body), DELIVERY_MODE_FLAG, PERSISTENT)
        published.append(opening + frame(HEADER, header) + frame(BODY, body))
    ends = array("Q", accumulate(map(len, published)))
    return Load(b"".join(published), ends, b"", array("Q"), b"")


def order(which: int, *, paid: bool) -> bytes:
    value = {
        "id": which,
        "customer": f"customer-{which % 9973}",
        "amount": (which % 500 + 1) / 4 if paid else 0,
        "at": f"2026-01-{which % 28 + 1:02}T{which % 24:02}:{which % 60:02}:00.000Z",
        "note": f"{which * 2654435761 % 2**64:x} please ring twice, and leave it with a neighbour otherwise",
    }
    return json.dumps(value).encode()


def measure(sizes: Sizes) -> dict[str, list[Measured]]:
    with Leveret() as server, session("local[2]") as spark:
        bench = Bench(spark, server, sizes)
        for start in (bench.pipeline, bench.by_hand):
            Bench(spark, server, replace(sizes, messages=sizes.batch)).run(start)
        raw: dict[str, list[Measured]] = {name: [] for name in bench.contenders()}
        for round_number in range(1, sizes.rounds + 1):
            contenders = bench.contenders()
            for name in [*contenders, *reversed(contenders)]:
                raw[name].append(attempt(contenders[name]))
                print(f"  round {round_number}, {name}: {brief(raw[name][-1])}", file=sys.stderr, flush=True)
    return raw


def report(raw: dict[str, list[Measured]]) -> str:
    rows = [["orders to Parquet", "rows/s", "CPU µs", "time / by hand", "bar"]]
    for name, runs in raw.items():
        good = [run for run in runs if "error" not in run]
        over = None if name == BY_HAND else longer(raw, name)
        bar = ""
        if name == PIPELINE and over is not None:
            bar = f"≤ {BAR:g}: {'met' if over <= BAR else 'NOT met'}"
        middle = sorted(run["rate"] for run in good)[len(good) // 2] if good else None
        cpu = sorted(run["cpu_us"] for run in good)[len(good) // 2] if good else None
        rows.append([name, number(middle), number(cpu, 2), number(over, 3), bar])
    return table(rows)


def longer(raw: dict[str, list[Measured]], name: str) -> float | None:
    """How much longer it takes than by hand, within rounds."""
    return ratio(raw, name, BY_HAND, "seconds")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one small round; results are not kept")
    parser.add_argument("--rounds", type=int, help="3, or 1 with --quick")
    parser.add_argument("--messages", type=int, help="that count, of a run: 1,500,000")
    chosen = parser.parse_args()
    sizes = QUICK if chosen.quick else Sizes()
    given = {"rounds": chosen.rounds, "messages": chosen.messages}
    sizes = replace(sizes, **{name: value for name, value in given.items() if value})
    raw = measure(sizes)
    print(report(raw))
    failed = [
        f"FAILED {name}: {run['error']}" for name, runs in raw.items() for run in runs if "error" in run
    ]
    if failed:
        sys.exit("\n".join(failed))
    if not chosen.quick:
        machine = {"cpus": os.cpu_count(), "kernel": platform.release(), "pyspark": version("pyspark")}
        kept = {"machine": machine, "ratio": longer(raw, PIPELINE), "runs": raw}
        RESULTS.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
