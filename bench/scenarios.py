"""What the broker benchmark measures. One entry is one kind of traffic; its name is what `--only` takes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bench.frames import TRANSIENT, Shape
from bench.generator import Run

TEN_KEYS = tuple(f"orders.eu.{number}" for number in range(10))


@dataclass(frozen=True)
class Scenario:
    """`run.messages` is the length of the warm-up; the measured runs are as long as their time allows."""

    name: str
    title: str
    run: Run
    most: int = 1_000_000
    """Messages in one run at most: everything is encoded beforehand and kept in memory."""

    def of_length(self, messages: int) -> Run:
        whole = messages - messages % self.run.connections
        return replace(self.run, messages=max(self.run.messages, min(self.most, whole)))


STREAM = Run("stream", messages=20_000)
UNSAFE = replace(STREAM, confirms=False, auto_ack=True, shape=Shape(mode=TRANSIENT))
LARGE = Shape(body_bytes=16 << 10)
KEYED = Shape(exchange="bench", keys=TEN_KEYS)

SCENARIOS = [
    Scenario("persistent", "persistent, confirmed, acked each", STREAM),
    Scenario("varied", "same, ids and sizes differ", replace(STREAM, shape=Shape(varied=True))),
    Scenario("keys", "same, ten routing keys", replace(STREAM, shape=KEYED)),
    Scenario(
        "large",
        "same, 16 KiB bodies",
        replace(STREAM, messages=2_000, shape=LARGE, window=1_000, backlog=2_000, prefetch=500),
        most=15_000,
    ),
    Scenario("transient", "transient, auto-ack", UNSAFE),
    Scenario(
        "transient-varied",
        "same, ids and sizes differ",
        replace(UNSAFE, shape=Shape(mode=TRANSIENT, varied=True)),
    ),
    Scenario(
        "transient-keys", "same, ten routing keys", replace(UNSAFE, shape=replace(KEYED, mode=TRANSIENT))
    ),
    Scenario(
        "transient-confirmed",
        "transient, confirmed, acked each",
        replace(STREAM, shape=Shape(mode=TRANSIENT)),
    ),
    Scenario(
        "apart",
        "same, consumer in a process of its own",
        replace(STREAM, kind="apart", shape=Shape(mode=TRANSIENT), window=1_000, prefetch=300),
    ),
    Scenario("one-at-a-time", "20 clients, persistent, one at a time", Run("one_at_a_time", messages=2_000)),
    Scenario("transactions", "20 clients, persistent, one per tx", Run("transactions", messages=200)),
    Scenario(
        "latency",
        "1 client, persistent, one at a time",
        Run("one_at_a_time", messages=500, connections=1),
    ),
    Scenario("paced", "1,000 a second, persistent", Run("paced", messages=500, connections=1)),
]
