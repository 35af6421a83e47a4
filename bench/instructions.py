"""What a message costs the broker in processor instructions: `python -m bench.instructions [--beside DIR]`.

Time differs by a third from one run to the next on a shared machine, instructions by less than 1 %. The core
and its AMQP front run in this process, without sockets, under valgrind (`apt-get install valgrind`), twice
for each case: the difference between the two lengths is what the messages cost. `--beside` takes the
checkout of another version and shows what it takes there, and the ratio. Nothing is asserted. Raw results go
to `bench/results/instructions.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pamqp import commands

from tests.amqp.session import Core, channel_open, handshake, published, sent, settlement

HERE = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "instructions.json"
_REFERENCES = re.compile(r"I\s+refs:\s+([\d,]+)")


@dataclass(frozen=True)
class Case:
    """Messages come in, go out and, where they are confirmed, are acked: `turns` times so many of them."""

    name: str
    messages: int
    turns: int
    queues: int = 1
    confirmed: bool = False
    """Persistent, confirmed, and each acked on its own; else transient, without confirms and acks."""


CASES = (
    Case("transient, one queue", 500, 20),
    Case("transient, ten keys in turns", 500, 8, queues=10),
    Case("transient, one at a time", 1, 300),
    Case("confirmed and acked each", 200, 15, confirmed=True),
    Case("confirmed and acked, one at a time", 1, 150, confirmed=True),
)


def play(case: Case) -> None:
    """Let the messages of a case through a broker."""
    core = Core()
    publisher, consumer = (core.session(prefix=handshake() + channel_open(1)) for _ in range(2))
    keys = [f"q{number}" for number in range(case.queues)]
    consumer.feed(sent(1, commands.Basic.Qos, prefetch_count=5000))
    for key in keys:
        consumer.feed(sent(1, commands.Queue.Declare, queue=key, durable=case.confirmed))
    for key in keys:
        consumer.feed(sent(1, commands.Basic.Consume, queue=key, no_ack=not case.confirmed))
    properties: dict[str, Any] = {}
    if case.confirmed:
        publisher.feed(sent(1, commands.Confirm.Select))
        properties = {"delivery_mode": 2}
    publishes = b"".join(
        published(1, b"x" * 100, key=keys[number % case.queues], **properties)
        for number in range(case.messages)
    )
    for turn in range(case.turns):
        first_tag = 1 + turn * case.messages
        acks = [settlement(1, 80, tag) for tag in range(first_tag, first_tag + case.messages)]
        _turn(core, publisher, consumer, publishes, b"".join(acks) if case.confirmed else b"")
    core.close()


def _turn(core: Core, publisher: Any, consumer: Any, publishes: bytes, acks: bytes) -> None:
    broker = core.broker
    core.clock.advance(0.1)
    broker.begin_turn()
    publisher.connection.receive(publisher.connection.scanner.feed(publishes))
    while publisher.connection.backlog:
        broker.end_turn()
        broker.begin_turn()
        publisher.connection.receive(())
    broker.end_turn()
    consumer.connection.take_out()
    if acks:
        core.store.sync()
        broker.synced()
        broker.end_turn()
        publisher.connection.take_out()
        broker.begin_turn()
        consumer.connection.receive(consumer.connection.scanner.feed(acks))
        broker.end_turn()
    while broker.has_more:
        broker.end_turn()
        consumer.connection.take_out()
    broker.flushed.clear()


def instructions(checkout: Path, case: Case) -> int:
    """Return how many instructions a process takes that plays the case with the code of a checkout."""
    command = [sys.executable, "-P", __file__, "--play", json.dumps(asdict(case))]
    valgrind = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
    path = os.pathsep.join(map(str, (checkout / "src", checkout)))
    done = subprocess.run(
        [*valgrind, *command],
        env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
    )
    found = _REFERENCES.search(done.stderr)
    if done.returncode or found is None:
        sys.exit(f"{case.name} did not run in {checkout}: {done.stderr[-2000:]}")
    return int(found[1].replace(",", ""))


def per_message(checkout: Path, case: Case) -> float:
    """Return the instructions for one message, without what it takes to begin."""
    long = replace(case, turns=3 * case.turns)
    extra = instructions(checkout, long) - instructions(checkout, case)
    return extra / (2 * case.turns * case.messages)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--beside", type=Path, metavar="DIR", help="the checkout of another version")
    parser.add_argument("--only", default="", metavar="WORD", help="cases with this word in their name")
    parser.add_argument("--play", metavar="CASE", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.play:
        play(Case(**json.loads(given.play)))
        return
    checkouts = [HERE] if given.beside is None else [HERE, given.beside.resolve()]
    results: dict[str, dict[str, float]] = {}
    print(f"{'instructions per message':36} {'here':>10} {'beside':>10} {'ratio':>6}")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        cases = [case for case in CASES if given.only in case.name]
        counts = {case: [pool.submit(per_message, each, case) for each in checkouts] for case in cases}
        for case, futures in counts.items():
            here, *beside = (future.result() for future in futures)
            results[case.name] = {"here": here, **({"beside": beside[0]} if beside else {})}
            shown = f"{beside[0]:10,.0f} {here / beside[0]:6.3f}" if beside else ""
            print(f"{case.name:36} {here:10,.0f} {shown}", flush=True)
    if not given.only:
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
        print(f"written to {RESULTS.relative_to(HERE)}")


if __name__ == "__main__":
    main()
