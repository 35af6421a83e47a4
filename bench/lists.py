"""What lists of queues cost over HTTP: `python -m bench.lists [--queues 10000] [--rounds 7]`.

Both brokers hold as many queues, a twentieth of them with messages. In each round they take turns. Each
is asked for the whole list, for a page by name, for a page by number of messages, and for two columns of all
queues, on a connection of its own. The figures are milliseconds to the last byte. `ratios` are within rounds:
a page against the whole list, and Leveret's whole list against RabbitMQ's. Raw results go to
`bench/results/lists.json`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path

from bench.peer import Client
from bench.report import number
from bench.report import table as printed
from bench.servers import Leveret, Missing, RabbitMQ, Server

RESULTS = Path(__file__).parent / "results" / "lists.json"
GUEST = "Basic " + b64encode(b"guest:guest").decode()
TIMEOUT_S = 120.0
PUBLISH = "/api/exchanges/%2F/amq.default/publish"
ASKED = {
    "all": "/api/queues",
    "page by name": "/api/queues?page=1&page_size=100",
    "page by messages": "/api/queues?page=1&page_size=100&sort=messages&sort_reverse=true",
    "two columns": "/api/queues?columns=name,messages",
}
STATISTICS_S = 8.0
"""RabbitMQ collects statistics every 5 s."""

Runs = dict[str, dict[str, list[float]]]


def prepare(server: Server, queues: int) -> None:
    client = Client(server.host, server.port)
    for position in range(queues):
        client.declare_queue(f"queue-{position:05}")
    client.close()
    connection = HTTPConnection(server.host, server.http_port, timeout=TIMEOUT_S)
    for position in range(0, queues, 20):
        message = {"properties": {}, "payload": "x", "payload_encoding": "string"}
        body = json.dumps({**message, "routing_key": f"queue-{position:05}"})
        connection.request("POST", PUBLISH, body, {"Authorization": GUEST})
        if connection.getresponse().read() != b'{"routed":true}':
            raise RuntimeError(f"{server.name} has not taken a message for queue {position}")
    connection.close()


def ask(server: Server, path: str) -> tuple[float, int]:
    """Return the milliseconds to the last byte of an answer, and the number of its bytes."""
    connection = HTTPConnection(server.host, server.http_port, timeout=TIMEOUT_S)
    connection.connect()
    began = time.perf_counter()
    connection.request("GET", path, headers={"Authorization": GUEST})
    response = connection.getresponse()
    body = response.read()
    took_ms = (time.perf_counter() - began) * 1000
    connection.close()
    if response.status != 200:
        raise RuntimeError(f"{server.name}: {path} was answered with {response.status}: {body[:200]!r}")
    return took_ms, len(body)


def measure(servers: Sequence[Server], rounds: int) -> Runs:
    runs: Runs = {server.name: {name: [] for name in ASKED} for server in servers}
    for position in range(rounds):
        order = servers if position % 2 else list(reversed(servers))
        for name, path in ASKED.items():
            for server in order:
                runs[server.name][name].append(ask(server, path)[0])
    return runs


def ratios(runs: Runs) -> Iterator[tuple[str, float]]:
    """Yield medians of ratios within rounds."""
    for server, figures in runs.items():
        for name in ("page by name", "page by messages"):
            yield f"{server}: {name} / all", _ratio(figures[name], figures["all"])
    if "rabbitmq" in runs:
        for name in ASKED:
            yield f"leveret / rabbitmq: {name}", _ratio(runs["leveret"][name], runs["rabbitmq"][name])


def _ratio(over: Sequence[float], under: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(over, under, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    with ExitStack() as stack:
        servers: list[Server] = [stack.enter_context(Leveret())]
        try:
            servers.append(stack.enter_context(RabbitMQ(management=True)))
        except Missing as error:
            print(f"RabbitMQ is left out: {error}")
        for server in servers:
            prepare(server, options.queues)
        time.sleep(STATISTICS_S)
        sizes = {
            server.name: {name: ask(server, path)[1] for name, path in ASKED.items()} for server in servers
        }
        runs = measure(servers, options.rounds)
    found = dict(ratios(runs))
    results = {"queues": options.queues, "milliseconds": runs, "bytes": sizes, "ratios": found}
    options.output.write_text(json.dumps(results, indent=1) + "\n")
    rows = [[name, *(number(statistics.median(runs[server][name])) for server in runs)] for name in ASKED]
    print(printed([[f"ms, {options.queues} queues", *runs], *rows]))
    for name, value in found.items():
        print(f"{name}: {value:.3f}")


if __name__ == "__main__":
    main()
