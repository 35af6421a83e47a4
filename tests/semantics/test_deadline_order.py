"""Deadlines against a model: every delivery has its own, whatever happens to the others of its channel."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.testing.broker import Broker
from leveret.testing.clock import VirtualClock
from tests.examples import examples
from tests.semantics.client import Client

NAMES = count()
TIMEOUTS_MS = {"hasty": 300, "patient": 1000}


@pytest.fixture(scope="module")
def stage() -> Iterator[tuple[Broker, VirtualClock]]:
    clock = VirtualClock()
    with Broker(clock=clock) as broker:
        yield broker, clock


class Run:
    """One channel with two consumers; late deliveries go to the dead letters, one by one."""

    def __init__(self, broker: Broker, clock: VirtualClock, prefetch: int) -> None:
        self.broker, self.clock, self.now_ms = broker, clock, 0
        self.queue, self.dead = f"late-{next(NAMES)}", f"late-{next(NAMES)}"
        self.client = Client(broker.port)
        self.control, self.channel = self.client.channel(), self.client.channel()
        self.control.declare(self.dead)
        arguments = {
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": self.dead,
            "x-consumer-timeout-action": "dead-letter",
        }
        self.control.declare(self.queue, arguments=arguments)
        self.channel.qos(prefetch)
        for tag, timeout_ms in TIMEOUTS_MS.items():
            self.channel.consume(self.queue, tag, arguments={"x-consumer-timeout": timeout_ms})
        self.held: dict[int, tuple[str, int]] = {}
        """By tag: the message, and when it is late."""
        self.late: dict[int, str] = {}
        self.published = 0
        self.acked: set[str] = set()

    def look(self) -> None:
        for got in self.channel.quiet():
            self.held[got.tag] = (got.text, self.now_ms + TIMEOUTS_MS[got.method.consumer_tag])

    def publish(self, number: int) -> None:
        with self.client.together():
            for _ in range(number):
                self.control.publish(self.queue, str(self.published), delivery_mode=1)
                self.published += 1
        self.control.quiet()

    def settle(self, how: str, which: int) -> None:
        if not self.held:
            return
        tag = sorted(self.held)[which % len(self.held)]
        text, _ = self.held.pop(tag)
        if how == "ack":
            self.acked.add(text)
        getattr(self.channel, how)(tag)

    def settle_late(self, which: int) -> None:
        if self.late:
            tag = sorted(self.late)[which % len(self.late)]
            del self.late[tag]
            self.channel.ack(tag)

    def advance(self, time_ms: int) -> None:
        self.now_ms += time_ms
        self.clock.advance(time_ms / 1000)
        for tag, (text, late_ms) in list(self.held.items()):
            if late_ms <= self.now_ms:
                del self.held[tag]
                self.late[tag] = text

    def compare(self, died: set[str]) -> set[str]:
        """What has died so far, in the model and in the broker."""
        died = died | set(self.late.values())
        assert self.broker.depth(self.dead) == len(died)
        assert self.broker.unacked(self.queue) == len(self.held)
        return died

    def finish(self, died: set[str]) -> None:
        self.channel.close()
        left = set(self.control.get_all(self.queue))
        assert set(self.control.get_all(self.dead)) == died
        assert left == {str(number) for number in range(self.published)} - died - self.acked
        for queue in (self.queue, self.dead):
            self.control.delete(queue)
        self.client.close()


commands = st.one_of(
    st.tuples(st.just("publish"), st.integers(1, 3)),
    st.tuples(st.just("settle"), st.sampled_from(["ack", "nack", "reject"]), st.integers(0, 5)),
    st.tuples(st.just("settle_late"), st.integers(0, 5)),
    st.tuples(st.just("advance"), st.sampled_from([1, 99, 100, 299, 300, 700])),
)


@given(prefetch=st.integers(0, 3), script=st.lists(commands, min_size=5, max_size=40))
@examples(80)
def test_exactly_the_late_deliveries_are_acted_on(
    stage: tuple[Broker, VirtualClock], prefetch: int, script: list[tuple[object, ...]]
) -> None:
    run = Run(*stage, prefetch)
    died: set[str] = set()
    for name, *values in script:
        getattr(run, str(name))(*values)
        run.look()
        died = run.compare(died)
    run.finish(died)
