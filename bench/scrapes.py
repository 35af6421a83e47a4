"""What scrapes cost a busy broker with many queues: `python -m bench.scrapes [--rounds 5] [--queues 10000]`.

The broker has 10,000 queues. One connection publishes persistent messages with confirms to another queue,
and one consumes and acks each, both as fast as the broker lets them. Each round measures this traffic alone,
with a scrape of `/metrics` or of `/metrics/per-object` every 5 s, with a client that polls the overview every
second, and with both. The figures are the rate, the broker's processor time
for each message, which a noisy machine disturbs less, and the ratios of both to those alone, taken within a
round. A second part measures for how long scrapes hold others up: the confirm latency
of a client that publishes one message after another, alone and while scrapes follow one another without a
pause. Raw results go to `bench/results/scrapes.json`.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import sys
import time
from base64 import b64encode
from dataclasses import replace
from pathlib import Path

from bench.broker import brief, generate
from bench.fairness import Greedy, beside, latencies
from bench.frames import Shape, make_load
from bench.generator import Figures
from bench.peer import Client
from bench.report import number, table
from bench.scenarios import STREAM
from bench.servers import Leveret, Server

RESULTS = Path(__file__).parent / "results" / "scrapes.json"
INTERVAL_S = 5.0
LOGIN = "Basic " + b64encode(b"guest:guest").decode()
HONEST_MESSAGES_MAX = 50_000


def scrape(*paths: tuple[str, float]) -> Greedy:
    """Ask for each path again and again, with so many seconds from one request to the next."""

    def run(server: Server) -> None:
        due = {path: time.monotonic() + min(1.0, interval_s) for path, interval_s in paths}
        while True:
            path = min(due, key=lambda each: due[each])
            time.sleep(max(0.0, due[path] - time.monotonic()))
            fetch(server, path)
            due[path] += dict(paths)[path]

    return run


def fetch(server: Server, path: str) -> int:
    """Return the size of an answer."""
    connection = http.client.HTTPConnection(server.host, server.http_port, timeout=60)
    connection.request("GET", path, headers={"Authorization": LOGIN})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    if answer.status != 200:
        raise RuntimeError(f"{path}: {answer.status}")
    return len(body)


SUMS, SINGLE, OVERVIEW = "/metrics", "/metrics/per-object", "/api/overview"
BESIDE: dict[str, Greedy | None] = {
    "alone": None,
    "/metrics every 5 s": scrape((SUMS, INTERVAL_S)),
    "/metrics/per-object every 5 s": scrape((SINGLE, INTERVAL_S)),
    "overview every second": scrape((OVERVIEW, 1.0)),
    "/metrics every 5 s, overview every second": scrape((SUMS, INTERVAL_S), (OVERVIEW, 1.0)),
}
WITHOUT_PAUSE: dict[str, Greedy | None] = {
    "alone": None,
    "/metrics": scrape((SUMS, 0.0)),
    "/metrics/per-object": scrape((SINGLE, 0.0)),
}


def declare(server: Server, count: int) -> None:
    client = Client(server.host, server.port)
    for queue in range(count):
        client.declare_queue(f"idle-{queue}")
    client.close()


def throughput(server: Server, rounds: int, seconds: float) -> dict[str, list[Figures]]:
    """Return rate and processor time of all rounds, by what ran beside the traffic."""
    rate = generate(server, STREAM)["rate"]
    run = replace(STREAM, messages=min(1_000_000, int(rate * seconds)))
    runs: dict[str, list[Figures]] = {name: [] for name in BESIDE}
    for turn in range(rounds):
        for name, other in BESIDE.items():
            with beside(server, other):
                measured = generate(server, run)
            runs[name].append({figure: measured[figure] for figure in ("rate", "broker_cpu_us")})
            print(f"  round {turn + 1}, {name}: {brief(measured)}", file=sys.stderr)
    return runs


def holding(server: Server, seconds: float) -> dict[str, Figures]:
    """Return the latencies of confirms in microseconds, by what ran beside the client."""
    load = make_load(Shape(keys=("honest",)), HONEST_MESSAGES_MAX)
    operator = Client(server.host, server.port)
    found = {}
    for name, other in WITHOUT_PAUSE.items():
        operator.declare_queue("honest")
        with beside(server, other):
            samples = sorted(latencies(server, load, seconds))
        operator.delete_queue("honest")
        marks = {"p50": 0.5, "p99": 0.99, "p999": 0.999}
        found[name] = {mark: samples[int(share * len(samples))] for mark, share in marks.items()}
        found[name]["most"] = samples[-1]
    operator.close()
    return found


def durations(server: Server) -> dict[str, dict[str, float]]:
    """Return the time and size of a page of an idle broker, the best of five."""

    def timed(path: str) -> tuple[float, int]:
        began = time.perf_counter()
        size = fetch(server, path)
        return time.perf_counter() - began, size

    found = {path: min(timed(path) for _ in range(5)) for path in (SUMS, SINGLE, OVERVIEW)}
    return {path: {"seconds": seconds, "bytes": size} for path, (seconds, size) in found.items()}


def report(runs: dict[str, list[Figures]], held: dict[str, Figures]) -> str:
    rows = [["beside the traffic", "messages/s", "of that alone", "CPU µs a message", "of that alone"]]
    for name, each in runs.items():
        row = [name]
        for figure in ("rate", "broker_cpu_us"):
            pairs = zip(each, runs["alone"], strict=True)
            ratio = statistics.median(mine[figure] / alone[figure] for mine, alone in pairs)
            row += [f"{statistics.median(run[figure] for run in each):,.2f}", f"{ratio:.1%}"]
        rows.append(row)
    marks = ("p50", "p99", "p999", "most")
    latency_rows = [["scrapes without a pause", *(f"{mark} µs" for mark in marks)]]
    latency_rows += [[name, *(number(each[mark]) for mark in marks)] for name, each in held.items()]
    return f"{table(rows)}\n\n{table(latency_rows)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=12.0, help="of each measurement")
    chosen = parser.parse_args()
    with Leveret() as server:
        declare(server, chosen.queues)
        pages = durations(server)
        print(json.dumps(pages), file=sys.stderr)
        runs = throughput(server, chosen.rounds, chosen.seconds)
        held = holding(server, chosen.seconds / 2)
    print(report(runs, held))
    results = {"queues": chosen.queues, "pages": pages, "runs": runs, "confirm_latency_us": held}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
