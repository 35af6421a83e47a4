"""What AMQP clients notice of a Spark read: confirms of one publisher, while nobody, Flight or Spark reads.

The publisher is the generator of `bench.broker`, in a process of its own: one message, its confirm, the next.
Of each confirm it says when it was at its socket, and when it had it: in between it waits for a processor.
`while_spark_reads` runs a query with large batches meanwhile, `while_flight_reads` a client that does nothing
but read (`python -m bench.spark_latency '{...}'`). Spark wants all processors for itself: what that alone
does to the publisher is seen when the query reads rows from memory, and the broker has no part in it; what
it does where there is no broker at all, with `probe_of_nothing`; and what busy processors alone do, with
`while_others_compute`. A probe counts only if the read went on until its end.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict

from pyarrow import flight
from pyspark.sql import DataFrame

from bench.broker import generate
from bench.generator import Run
from bench.servers import Server, Sink
from bench.spark_queue import QUEUE, VHOST, calls_to, fill, url_of
from bench.spark_reads import Measured, Reads
from bench.spark_session import scratch
from leveret.flight import actions, tickets
from leveret.spark import ranges

START_S = 120.0
LOOK_S = 0.05
READ_MESSAGES = 250_000
"""As many as a task of Spark reads, about."""
QUERY = "bench-latency"
LONGEST_READ_BATCHES = 6
ANSWER_S = 0.0003
"""About as long as a broker takes whose disk is as this one's."""


class ReadEnded(Exception):
    """The read was over before the probe."""


def probe(server: Server, samples: int) -> Measured:
    return generate(server, stamped(samples))


def probe_of_nothing(samples: int) -> Measured:
    """Each confirm comes after a time that is always the same, from a process that waits for no processor."""
    run = stamped(samples)
    with Sink(json.dumps(asdict(run)), wait_s=ANSWER_S, realtime=True) as sink:
        return generate(sink, run)


def stamped(samples: int) -> Run:
    return Run("stamped", messages=samples, connections=1)


def while_spark_reads(stream: DataFrame, measure: Callable[[], Measured]) -> Measured:
    """From the second batch on; the stream has more than is read meanwhile."""
    with scratch() as place:
        writer = stream.writeStream.format("noop").option("checkpointLocation", str(place))
        query = writer.trigger(availableNow=True).start()
        try:
            deadline_s = time.monotonic() + START_S
            while not query.recentProgress:
                if not query.isActive or time.monotonic() > deadline_s:
                    raise ReadEnded(
                        f"no batch in {START_S:.0f} s: {query.exception() or 'it takes too long'}"
                    )
                time.sleep(LOOK_S)
            found = measure()
            if not query.isActive:
                raise ReadEnded("everything was read before the probe ended")
        finally:
            query.stop()
        rows = sum(progress.numInputRows for progress in query.recentProgress)
    return {**found, "rows_read": rows}


def queue_stream(reads: Reads, depth: int) -> DataFrame:
    """With enough for another probe. What the last query held comes first: its name is the same."""
    refill(reads, depth)
    return reads.queue_stream(QUERY, reads.batch_rows)


def refill(reads: Reads, depth: int) -> None:
    wanted = LONGEST_READ_BATCHES * reads.batch_rows
    fill(reads.leveret, max(0, wanted - depth))


def while_others_compute(server: Server, samples: int) -> Measured:
    """As many processes as there are processors, which do nothing else."""
    command = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(command) for _ in range(os.cpu_count() or 1)]
    try:
        return probe(server, samples)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def while_flight_reads(server: Server, samples: int) -> Measured:
    with _flight_reader(server) as process:
        found = probe(server, samples)
        if process.poll() is not None:
            raise ReadEnded("the Flight client has ended")
        assert process.stdout
        process.terminate()
        said = process.stdout.readlines()
    return {**found, "read_rate": json.loads(said[-1])["rate"] if said else None}


@contextmanager
def _flight_reader(server: Server) -> Iterator[subprocess.Popen[str]]:
    """A process that reads the queue again and again; it has begun."""
    command = [sys.executable, "-m", "bench.spark_latency", json.dumps({"url": url_of(server)})]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.wait()


def read_for_ever(url: str) -> None:
    """A line of JSON for each time that it has read the first messages of the queue; nothing is consumed."""
    with calls_to(url) as calls:
        planned = calls.ask(actions.Snapshot(VHOST, QUEUE), actions.Planned)
        some = ranges.first(planned.portions[0].ranges, READ_MESSAGES)
        ticket = tickets.ReadTicket(VHOST, QUEUE, planned.log_id, some)
        while True:
            began_s = time.perf_counter()
            rows = sum(batch.num_rows for batch in calls.read(ticket))
            seconds = time.perf_counter() - began_s
            print(json.dumps({"rows": rows, "rate": round(rows / seconds, 1)}), flush=True)


if __name__ == "__main__":
    try:
        read_for_ever(**json.loads(sys.argv[1]))
    except (KeyboardInterrupt, flight.FlightError):
        sys.exit(1)
