"""What failing logins cost a well-behaved client: `python -m bench.logins [--rounds 3] [--beside DIR]`.

The well-behaved client asks for the depth of a queue, again and again: first alone, then while 20 clients log
in with wrong passwords, as guest and as a user who does not exist. Each of the 20 tries again as soon as it
is refused, with another password. The figures are the median and the longest round trip, and their ratios to
the median when the client was alone. RabbitMQ, Leveret and, with `--beside`, older code of Leveret take turns
in each round. Raw results go to `bench/results/logins.json`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from threading import Thread

from bench.fairness import Greedy, Samples, beside
from bench.frames import long, method, short, table
from bench.peer import Client
from bench.report import number
from bench.report import table as printed
from bench.servers import Leveret, Missing, RabbitMQ, Server

RESULTS = Path(__file__).parent / "results" / "logins.json"
CLIENTS = 20
TIMEOUT_S = 30.0
CAPABILITIES = short("capabilities") + b"F" + long(table({"authentication_failure_close": True}))


def fail_logins(name: str) -> Greedy:
    """Log in with wrong passwords, from many clients, without a pause."""

    def run(server: Server) -> None:
        passwords = itertools.count(os.getpid() << 20)
        clients = [Thread(target=keep_failing, args=(server, name, passwords)) for _ in range(CLIENTS)]
        for each in clients:
            each.start()
        for each in clients:
            each.join()

    return run


def keep_failing(server: Server, name: str, passwords: itertools.count[int]) -> None:
    while True:
        with socket.create_connection((server.host, server.port), timeout=TIMEOUT_S) as client:
            client.sendall(b"AMQP\0\0\x09\x01")
            client.recv(1 << 16)
            plain = long(f"\0{name}\0wrong-{next(passwords)}".encode())
            answer = long(CAPABILITIES) + short("PLAIN") + plain + short("en_US")
            client.sendall(method(10, 11, answer, channel=0))
            client.recv(1 << 16)


GREEDY: dict[str, Greedy | None] = {
    "alone": None,
    f"{CLIENTS} wrong passwords of guest": fail_logins("guest"),
    f"{CLIENTS} wrong passwords of nobody": fail_logins("nobody"),
}


def round_trips(client: Client, seconds: float) -> list[float]:
    """Return how long each question took, in microseconds."""
    found: list[float] = []
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        client.depth("honest")
        found.append((time.perf_counter() - began) * 1e6)
    return found


def measure(server: Server, seconds: float) -> Samples:
    samples: Samples = {}
    client = Client(server.host, server.port)
    client.declare_queue("honest")
    round_trips(client, seconds / 4)
    for name, greedy in GREEDY.items():
        with beside(server, greedy):
            samples[name] = round_trips(client, seconds)
    client.close()
    return samples


def summarize(rounds: list[Samples]) -> dict[str, dict[str, float]]:
    """Medians over the rounds; ratios are taken within a round."""
    summary = {}
    for name in GREEDY:
        alone = [statistics.median(each["alone"]) for each in rounds]
        p50 = [statistics.median(each[name]) for each in rounds]
        longest = [max(each[name]) for each in rounds]
        summary[name] = {
            "p50_us": statistics.median(p50),
            "p50_ratio": statistics.median(a / b for a, b in zip(p50, alone, strict=True)),
            "longest_us": statistics.median(longest),
            "longest_ratio": statistics.median(a / b for a, b in zip(longest, alone, strict=True)),
        }
    return summary


def report(results: dict[str, dict[str, dict[str, float]]]) -> str:
    rows = [
        ["round trip of a well-behaved client", "", "p50 µs", "p50 / alone", "longest µs", "longest / alone"]
    ]
    for name in GREEDY:
        for server, summary in results.items():
            found = summary[name]
            p50_ratio, longest_ratio = f"{found['p50_ratio']:.1f}x", f"{found['longest_ratio']:.0f}x"
            rows.append(
                [name, server, number(found["p50_us"]), p50_ratio, number(found["longest_us"]), longest_ratio]
            )
    return printed(rows)


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
