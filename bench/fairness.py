"""What a greedy client costs a well-behaved one: `python -m bench.fairness [--rounds 3] [--beside DIR]`.

The well-behaved client publishes one persistent message after another, each when the one before is
confirmed. It does so alone, and then beside a client that takes what it can get, or that runs into a limit.
The figure is the latency of
its confirms, and the ratio to what it was when it was alone. RabbitMQ, Leveret and, with `--beside`, older
code of Leveret take turns in each round. Raw results go to `bench/results/fairness.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Thread

from bench.frames import BODY, CONTENT_HEADER, HEADER, TRANSIENT, Load, Shape, frame, make_load, method, short
from bench.generator import confirm_of
from bench.peer import Client, Unexpected
from bench.report import number, table
from bench.servers import Leveret, Missing, RabbitMQ, Server

RESULTS = Path(__file__).parent / "results" / "fairness.json"
DECLARES = 10_000
HONEST_MESSAGES_MAX = 20_000
SILENT_MAX = 500
GREEDY_MESSAGES = 2_000
GREEDY_LIMIT_S = 60.0
Greedy = Callable[[Server], None]
Samples = dict[str, list[float]]


def flood(shape: Shape) -> Greedy:
    """Publish without confirms, as fast as the broker reads."""

    def run(server: Server) -> None:
        load = make_load(shape, GREEDY_MESSAGES)
        client = Client(server.host, server.port)
        client.socket.settimeout(GREEDY_LIMIT_S)
        while True:
            client.socket.sendall(load.publishes)

    return run


def declare(server: Server) -> None:
    """Send thousands of declarations at once, again and again, and read the answers."""
    client = Client(server.host, server.port)
    nothing = b"\0\0\0\0"
    frames = [method(50, 10, b"\0\0" + short(f"declared-{n}") + b"\x02" + nothing) for n in range(DECLARES)]
    while True:
        client.socket.sendall(b"".join(frames))
        for _ in range(DECLARES):
            client.expect(50, 11)


def leave_bodies_unfinished(server: Server) -> None:
    """Begin messages of 64 MiB, send almost all of each, and leave it: from one connection after another."""
    frame_bytes = 120 << 10
    begin = method(60, 40, b"\0\0" + short("") + short("greedy") + b"\0")
    begin += frame(HEADER, CONTENT_HEADER.pack(60, 0, 64 << 20, 0, 0)[:14])
    piece = frame(BODY, bytes(frame_bytes))
    clients = []
    while True:
        client = Client(server.host, server.port)
        clients.append(client)
        with suppress(OSError):  # the broker closes the channel at its limit, or stops reading
            client.socket.settimeout(5.0)
            client.socket.sendall(begin)
            for _ in range((63 << 20) // frame_bytes):
                client.socket.sendall(piece)


def connect_and_say_nothing(port: str, hello: bytes = b"") -> Greedy:
    """Open connections to a port of the server, send a beginning, and open others when they are closed."""

    def run(server: Server) -> None:
        clients: deque[socket.socket] = deque()
        while True:
            with suppress(OSError):
                client = socket.create_connection((server.host, getattr(server, port)), timeout=1.0)
                clients.append(client)
                client.sendall(hello)
            if len(clients) > SILENT_MAX:
                clients.popleft().close()

    return run


def send_to_flight(server: Server) -> None:
    """Send Flight calls of 16 MiB without a login, from several threads."""
    from pyarrow import flight

    def call() -> None:
        while True:
            with suppress(flight.FlightError, OSError):
                client = flight.FlightClient(f"grpc://{server.host}:{server.flight_port}")
                list(client.do_action(flight.Action("leveret", bytes(16 << 20))))

    threads = [Thread(target=call, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    threads[0].join()


GREEDY: dict[str, Greedy | None] = {
    "alone": None,
    "beside a flood of persistent 1 KiB messages": flood(Shape(keys=("greedy",), body_bytes=1 << 10)),
    "beside a flood of transient 100 B messages": flood(Shape(keys=("greedy",), mode=TRANSIENT)),
    f"beside {DECLARES:,} declarations at once": declare,
    "beside bodies of 64 MiB that are left unfinished": leave_bodies_unfinished,
    "beside AMQP connections that say nothing": connect_and_say_nothing("port", b"AMQP\0\0\x09\x01"),
}
ON_LEVERET: dict[str, Greedy | None] = {
    "beside HTTP requests that do not end": connect_and_say_nothing(
        "http_port", b"GET /api/overview HTTP/1.1\r\n"
    ),
    "beside Flight calls of 16 MiB without a login": send_to_flight,
}
"""RabbitMQ has no such ports here."""


@contextmanager
def beside(server: Server, greedy: Greedy | None) -> Iterator[None]:
    """Run a greedy client in a process of its own."""
    child = os.fork() if greedy else 0
    if greedy and not child:
        try:
            signal.alarm(int(GREEDY_LIMIT_S))
            greedy(server)
        finally:
            os._exit(0)
    try:
        yield
    finally:
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def latencies(server: Server, load: Load, seconds: float) -> list[float]:
    """Publish one message after another; return how long each confirm took, in microseconds."""
    client = Client(server.host, server.port)
    client.confirm_select()
    texts = [load.publishes[: load.publish_ends[0]]] + [
        load.publishes[load.publish_ends[i - 1] : load.publish_ends[i]] for i in range(1, load.count)
    ]
    found: list[float] = []
    end = time.perf_counter() + seconds
    for tag, text in enumerate(texts, 1):
        began = time.perf_counter()
        client.socket.sendall(text)
        if client.receive(len(confirm_of(tag)[0])) not in confirm_of(tag):
            raise Unexpected(f"message {tag} was not confirmed")
        found.append((time.perf_counter() - began) * 1e6)
        if time.perf_counter() > end:
            break
    client.close()
    return found[len(found) // 10 :]


def measure(server: Server, seconds: float) -> Samples:
    load = make_load(Shape(keys=("honest",)), HONEST_MESSAGES_MAX)
    samples: Samples = {}
    greedy_clients = GREEDY | (ON_LEVERET if server.http_port else {})
    for name, greedy in greedy_clients.items():
        operator = Client(server.host, server.port)
        for queue in ("honest", "greedy"):
            operator.declare_queue(queue)
        with beside(server, greedy):
            time.sleep(0.5 if greedy else 0.0)
            samples[name] = latencies(server, load, seconds)
        for queue in ("honest", "greedy"):
            operator.delete_queue(queue)
        operator.close()
    return samples


def summarize(rounds: list[Samples]) -> dict[str, dict[str, float]]:
    """Medians over the rounds; ratios are taken within a round."""
    summary = {}
    for name in rounds[0]:
        p50 = [statistics.median(each[name]) for each in rounds]
        p99 = [sorted(each[name])[int(0.99 * len(each[name]))] for each in rounds]
        alone = [statistics.median(each["alone"]) for each in rounds]
        summary[name] = {
            "p50_us": statistics.median(p50),
            "p99_us": statistics.median(p99),
            "p50_ratio": statistics.median(a / b for a, b in zip(p50, alone, strict=True)),
        }
    return summary


def report(results: dict[str, dict[str, dict[str, float]]]) -> str:
    rows = [["confirm of a well-behaved client", "", "p50 µs", "p99 µs", "p50 / alone"]]
    for name in GREEDY | ON_LEVERET:
        for server, summary in results.items():
            if name not in summary:
                continue
            found = summary[name]
            ratio = f"{found['p50_ratio']:.1f}x"
            rows.append([name, server, number(found["p50_us"]), number(found["p99_us"]), ratio])
    return table(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--beside", type=Path, metavar="DIR", help="measure the leveret in this folder, too")
    chosen = parser.parse_args()
    wanted: list[Callable[[], Server]] = [RabbitMQ, Leveret]
    if chosen.beside:
        wanted.append(lambda: Leveret(source=chosen.beside))
    rounds: dict[str, list[Samples]] = {}
    for turn in range(chosen.rounds):
        for make in wanted:
            with ExitStack() as stack:
                try:
                    server = stack.enter_context(make())
                except Missing as reason:
                    print(f"  without it: {reason}", file=sys.stderr)
                    continue
                print(f"  round {turn + 1}, {server.name}", file=sys.stderr)
                rounds.setdefault(server.name, []).append(measure(server, chosen.seconds))
    results = {name: summarize(each) for name, each in rounds.items()}
    print(report(results))
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
