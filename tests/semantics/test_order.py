"""Order, against a model: whatever channels do with their messages, each goes back to its original place.

The model of a queue is a sorted list. Random commands go to several channels at once; after each get the
broker must have handed out what the model has first, and in the end everything unsettled is in its order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.testing.broker import Broker
from tests.examples import examples
from tests.semantics.client import Channel, Client

NAMES = count()
CHANNELS = 3


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@dataclass
class Model:
    """Messages are (-priority, number): what is first is delivered first."""

    ready: list[tuple[int, int]] = field(default_factory=list)
    held: list[dict[int, tuple[int, int]]] = field(default_factory=lambda: [{} for _ in range(CHANNELS)])
    tags: list[int] = field(default_factory=lambda: [0] * CHANNELS)
    returned: dict[int, int] = field(default_factory=dict)

    def take(self, channel: int) -> tuple[int, int] | None:
        if not self.ready:
            return None
        self.ready.sort()
        message = self.ready.pop(0)
        self.tags[channel] += 1
        self.held[channel][self.tags[channel]] = message
        return message

    def give_back(self, channel: int, tags: list[int]) -> None:
        for tag in tags:
            message = self.held[channel].pop(tag)
            self.returned[message[1]] = self.returned.get(message[1], 0) + 1
            self.ready.append(message)


class Run:
    """Commands, done to the broker and to the model."""

    def __init__(self, broker: Broker, queue: str, priorities: int) -> None:
        self.client = Client(broker.port)
        self.queue = queue
        self.model = Model()
        self.published = 0
        self.control = self.client.channel()
        self.control.declare(queue, arguments={"x-max-priority": priorities} if priorities else {})
        self.channels = [self.client.channel() for _ in range(CHANNELS)]

    def publish(self, priority: int) -> None:
        self.control.publish(self.queue, str(self.published), priority=priority, delivery_mode=1)
        self.control.quiet()
        self.model.ready.append((-priority, self.published))
        self.published += 1

    def get(self, channel: int) -> None:
        expected = self.model.take(channel)
        got = self.channels[channel].get(self.queue)
        if expected is None:
            assert got is None
            return
        assert got is not None
        returns = self.model.returned.get(expected[1])
        assert (got.text, got.tag) == (str(expected[1]), self.model.tags[channel])
        assert (got.delivery_count, got.redelivered) == (returns, returns is not None)

    def settle(self, channel: int, how: str, which: int) -> None:
        held = self.model.held[channel]
        if not held:
            return
        tag = sorted(held)[which % len(held)]
        through = [each for each in sorted(held) if each <= tag]
        on: Channel = self.channels[channel]
        match how:
            case "ack":
                on.ack(tag)
                del held[tag]
            case "ack multiple":
                on.ack(tag, multiple=True)
                for each in through:
                    del held[each]
            case "nack":
                on.nack(tag)
                self.model.give_back(channel, [tag])
            case "nack multiple":
                on.nack(tag, multiple=True)
                self.model.give_back(channel, through)
            case "reject":
                on.reject(tag)
                self.model.give_back(channel, [tag])
            case "drop":
                on.nack(tag, requeue=False)
                del held[tag]
        on.quiet()

    def recover(self, channel: int) -> None:
        self.channels[channel].recover()
        self.model.give_back(channel, sorted(self.model.held[channel]))

    def close(self, channel: int) -> None:
        self.channels[channel].close()
        self.model.give_back(channel, sorted(self.model.held[channel]))
        self.channels[channel] = self.client.channel()
        self.model.tags[channel] = 0

    def finish(self) -> None:
        for channel in range(CHANNELS):
            self.close(channel)
        expected = [str(number) for _, number in sorted(self.model.ready)]
        assert self.control.get_all(self.queue) == expected
        self.control.delete(self.queue)
        self.client.close()


who = st.integers(0, CHANNELS - 1)
commands = st.one_of(
    st.tuples(st.just("publish"), st.integers(0, 3)),
    st.tuples(st.just("get"), who),
    st.tuples(st.just("get"), who),
    st.tuples(
        st.just("settle"),
        who,
        st.sampled_from(["ack", "ack multiple", "nack", "nack multiple", "reject", "drop"]),
        st.integers(0, 10),
    ),
    st.tuples(st.just("recover"), who),
    st.tuples(st.just("close"), who),
)


@pytest.mark.parametrize("priorities", [0, 3])
@given(script=st.lists(commands, min_size=5, max_size=50))
@examples(60)
def test_what_goes_back_goes_to_its_place(
    broker: Broker, priorities: int, script: list[tuple[object, ...]]
) -> None:
    run = Run(broker, f"order-{next(NAMES)}", priorities)
    if not priorities:
        script = [(name, 0) if name == "publish" else (name, *rest) for name, *rest in script]
    for name, *arguments in script:
        getattr(run, str(name))(*arguments)
    run.finish()


@given(
    script=st.lists(
        st.tuples(who, st.sampled_from(["ack", "nack", "reject", "close", "recover"])), max_size=40
    ),
    prefetch=st.integers(1, 5),
)
@examples(40)
def test_with_consumers_everything_unsettled_is_in_its_order_in_the_end(
    broker: Broker, script: list[tuple[int, str]], prefetch: int
) -> None:
    """Who gets what is the broker's choice here; nothing is lost, doubled, or out of place afterwards."""
    client = Client(broker.port)
    control, queue = client.channel(), f"order-{next(NAMES)}"
    control.declare(queue)
    with client.together():
        for number in range(20):
            control.publish(queue, str(number), delivery_mode=1)
    acked: set[str] = set()
    held: list[dict[int, str]] = [{} for _ in range(CHANNELS)]
    channels = [consumer(client, queue, prefetch) for _ in range(CHANNELS)]
    for index, what in script:
        for each, channel in zip(held, channels, strict=True):
            each.update({got.tag: got.text for got in channel.quiet()})
        in_flight = [text for each in held for text in each.values()]
        assert len(in_flight) == len(set(in_flight))
        assert all(len(each) <= prefetch for each in held)
        if what == "close":
            channels[index].close()
            held[index] = {}
            channels[index] = consumer(client, queue, prefetch)
        elif what == "recover":
            channels[index].inbox.clear()
            held[index] = {}
            channels[index].recover()
        elif held[index]:
            tag, text = held[index].popitem()
            getattr(channels[index], what)(tag)
            if what == "ack":
                acked.add(text)
    for channel in channels:
        channel.close()
    assert control.get_all(queue) == [str(number) for number in range(20) if str(number) not in acked]
    control.delete(queue)
    client.close()


def consumer(client: Client, queue: str, prefetch: int) -> Channel:
    channel = client.channel()
    channel.qos(prefetch)
    channel.consume(queue)
    return channel
