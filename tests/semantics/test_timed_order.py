"""A queue with every rule of time at once, against a model: delays, expiry, delivery limit, length limit.

The model is a list of messages with their times. After each command, and each move of the clock, the broker
must hold the same messages in the same order, and have dead-lettered the same ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.testing.broker import Broker
from leveret.testing.clock import VirtualClock
from tests.examples import examples
from tests.semantics.client import Channel, Client

NAMES = count()
CHANNELS = 2


@pytest.fixture(scope="module")
def stage() -> Iterator[tuple[Broker, VirtualClock]]:
    clock = VirtualClock()
    with Broker(clock=clock) as broker:
        yield broker, clock


@dataclass
class Message:
    number: int
    expires_ms: int | None
    count: int = 0
    due_ms: int = 0


@dataclass
class Model:
    """What the queue should do; times are milliseconds since the beginning."""

    arguments: dict[str, int]
    now_ms: int = 0
    ready: list[Message] = field(default_factory=list)
    delayed: list[Message] = field(default_factory=list)
    held: list[dict[int, Message]] = field(default_factory=lambda: [{} for _ in range(CHANNELS)])
    tags: list[int] = field(default_factory=lambda: [0] * CHANNELS)
    dead: list[int] = field(default_factory=list)

    def move(self) -> None:
        """Lets happen what is due."""
        for message in [each for each in self.delayed if each.due_ms <= self.now_ms]:
            self.delayed.remove(message)
            self.ready.append(message)
        self.ready.sort(key=lambda message: message.number)
        while self.ready and (self.is_expired(self.ready[0]) or self.is_too_long()):
            self.dead.append(self.ready.pop(0).number)

    def is_expired(self, message: Message) -> bool:
        return message.expires_ms is not None and message.expires_ms <= self.now_ms

    def is_too_long(self) -> bool:
        limit = self.arguments.get("x-max-length")
        return limit is not None and len(self.ready) > limit

    def give_back(self, messages: list[Message], *, plain_nack: bool) -> None:
        limit, delay_ms = self.arguments.get("x-delivery-limit"), self.arguments.get("x-retry-delay-ms")
        for message in messages:
            if limit is not None and message.count >= limit:
                self.dead.append(message.number)
            elif plain_nack and delay_ms is not None:
                message.due_ms = self.now_ms + delay_ms * 2**message.count
                message.count += 1
                self.delayed.append(message)
            else:
                message.count += 1
                self.ready.append(message)


class Run:
    """Commands, done to the broker and to the model."""

    def __init__(self, broker: Broker, clock: VirtualClock, arguments: dict[str, int]) -> None:
        self.broker, self.clock = broker, clock
        self.model = Model(arguments)
        self.queue, self.dead = f"timed-{next(NAMES)}", f"timed-{next(NAMES)}"
        self.client = Client(broker.port)
        self.control = self.client.channel()
        self.control.declare(self.dead)
        dead_letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": self.dead}
        self.control.declare(self.queue, arguments={**arguments, **dead_letters})
        self.channels = [self.client.channel() for _ in range(CHANNELS)]
        self.published = 0

    def publish(self, expiration_ms: int | None) -> None:
        options = {} if expiration_ms is None else {"expiration": str(expiration_ms)}
        self.control.publish(self.queue, str(self.published), delivery_mode=1, **options)
        self.control.quiet()
        times = [
            each for each in (expiration_ms, self.model.arguments.get("x-message-ttl")) if each is not None
        ]
        expires_ms = self.model.now_ms + min(times) if times else None
        self.model.ready.append(Message(self.published, expires_ms))
        self.published += 1

    def get(self, index: int) -> None:
        got = self.channels[index].get(self.queue)
        if not self.model.ready:
            assert got is None
            return
        expected = self.model.ready.pop(0)
        assert got is not None
        assert (int(got.text), got.delivery_count or 0) == (expected.number, expected.count)
        self.model.tags[index] += 1
        self.model.held[index][self.model.tags[index]] = expected
        self.channels[index].quiet()

    def settle(self, index: int, how: str, which: int) -> None:
        held = self.model.held[index]
        if not held:
            return
        tag = sorted(held)[which % len(held)]
        message = held.pop(tag)
        channel: Channel = self.channels[index]
        if how == "ack":
            channel.ack(tag)
        elif how == "drop":
            channel.nack(tag, requeue=False)
            self.model.dead.append(message.number)
        else:
            getattr(channel, how)(tag)
            self.model.give_back([message], plain_nack=True)
        channel.quiet()

    def recover(self, index: int) -> None:
        self.channels[index].recover()
        self.channels[index].quiet()
        self.take_all_back(index)

    def close(self, index: int) -> None:
        self.channels[index].close()
        self.control.quiet()
        self.take_all_back(index)
        self.channels[index] = self.client.channel()
        self.model.tags[index] = 0

    def take_all_back(self, index: int) -> None:
        messages = list(self.model.held[index].values())
        self.model.held[index].clear()
        self.model.give_back(messages, plain_nack=False)

    def advance(self, time_ms: int) -> None:
        self.model.now_ms += time_ms
        self.clock.advance(time_ms / 1000)
        self.control.quiet()

    def compare(self) -> None:
        self.model.move()

        def look() -> tuple[list[int], int, int]:
            queue = self.broker.server.broker.vhosts["/"].queue(self.queue)
            ready = queue.log.read(list(queue.cursor.progress.ready_ranges()))
            return [int(record.body) for record in ready], queue.delayed, queue.unacked

        held = sum(map(len, self.model.held))
        expected = [each.number for each in self.model.ready], len(self.model.delayed), held
        assert self.broker.call(look) == expected

    def finish(self) -> None:
        found = sorted(map(int, self.control.get_all(self.dead)))
        assert found == sorted(self.model.dead)
        for queue in (self.queue, self.dead):
            self.control.delete(queue)
        self.client.close()


who = st.integers(0, CHANNELS - 1)
commands = st.one_of(
    st.tuples(st.just("publish"), st.none() | st.sampled_from([0, 50, 200, 1000])),
    st.tuples(st.just("publish"), st.none()),
    st.tuples(st.just("get"), who),
    st.tuples(st.just("settle"), who, st.sampled_from(["ack", "nack", "reject", "drop"]), st.integers(0, 5)),
    st.tuples(st.just("recover"), who),
    st.tuples(st.just("close"), who),
    st.tuples(st.just("advance"), st.sampled_from([1, 49, 50, 100, 400, 5000])),
)
rules = st.fixed_dictionaries(
    {},
    optional={
        "x-message-ttl": st.sampled_from([100, 1000]),
        "x-retry-delay-ms": st.sampled_from([0, 50, 300]),
        "x-delivery-limit": st.integers(0, 2),
        "x-max-length": st.integers(1, 4),
    },
)


@given(arguments=rules, script=st.lists(commands, min_size=8, max_size=40))
@examples(150)
def test_a_queue_does_what_its_arguments_say(
    stage: tuple[Broker, VirtualClock], arguments: dict[str, int], script: list[tuple[object, ...]]
) -> None:
    run = Run(*stage, arguments)
    for name, *values in script:
        getattr(run, str(name))(*values)
        run.compare()
    run.finish()
