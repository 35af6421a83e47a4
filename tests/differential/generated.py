"""Scenarios made up at random from a seed: what nobody thought of writing down.

A walk opens up to three channels and takes a number of steps, each a method that a client might say at that
point, now and then a wrong one. Every step waits until all is quiet (see `play.py`), so that the outcome does
not depend on speed. The same seed takes the same steps as long as a server answers the same. Nothing here
waits for time to pass: TTLs other than 0 belong to written scenarios. What walks leave out, because nobody
promises it or Leveret differs on purpose, is told in `deviations.py`.
"""

import random
from collections.abc import Callable

from tests.differential.channel import Channel
from tests.differential.play import Play

STEPS = 45
QUEUES = ("q0", "q1", "q2")
EXCHANGES = {"x.direct": "direct", "x.fanout": "fanout", "x.topic": "topic"}
KEYS = ("a", "b", "a.b", "q0", "#", "*.b")
DEAD_LETTERS = {"x-dead-letter-exchange": "x.fanout"}
ARGUMENTS = (
    {},
    {},
    {"x-max-length": 3},
    {"x-max-length": 2, "x-overflow": "reject-publish"},
    {"x-max-length": 2} | DEAD_LETTERS,
    {"x-max-length-bytes": 6, "x-overflow": "reject-publish-dlx"} | DEAD_LETTERS,
    {"x-max-priority": 3},
    {"x-single-active-consumer": True},
    {"x-message-ttl": 0} | DEAD_LETTERS,
    {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q1"},
)

NOT_WITH_TX = {"x-overflow", "x-max-priority"}


class Walk:
    """One client that does what comes to its mind."""

    def __init__(self, play: Play, seed: int) -> None:
        self.play = play
        self.random = random.Random(seed)
        self.modes = [self.random.choice(("plain", "plain", "confirm", "tx")) for _ in range(3)]
        possible = [one for one in ARGUMENTS if "tx" not in self.modes or not NOT_WITH_TX & one.keys()]
        self.arguments = {queue: self.random.choice(possible) for queue in QUEUES}
        self.durable = {queue: self.random.random() < 0.3 for queue in QUEUES}
        self.channels = [play.channel(number) for number in range(1, self.random.randint(2, 4))]
        self.settled: dict[Channel, set[int]] = {channel: set() for channel in self.channels}
        self.shared_limits = self.random.random() < 0.3
        self.source = {channel: self.random.choice(QUEUES) for channel in self.channels}
        self.bodies = 0
        self.consumers = 0

    def run(self) -> None:
        for channel, mode in zip(self.channels, self.modes, strict=False):
            self.prepare(channel, mode)
        for name, kind in EXCHANGES.items():
            self.channels[0].exchange_declare(name, kind)
        for queue in QUEUES:
            self.declare(self.channels[0], queue)
        for _ in range(STEPS):
            self.step()

    def prepare(self, channel: Channel, mode: str) -> None:
        if mode == "confirm":
            channel.confirm_select()
        if mode == "tx":
            channel.tx_select()

    def step(self) -> None:
        channel = self.random.choice(self.channels)
        if not channel.peer.is_open:
            return
        if not channel.is_open:
            self.settled[channel].clear()
            channel.channel_open()
            self.prepare(channel, self.modes[self.channels.index(channel)])
            return
        actions = (
            (30, self.publish),
            (6, self.publish_several),
            (8, self.consume),
            (10, self.get),
            (18, self.ack),
            (4, self.ack_several),
            (12, self.nack),
            (4, self.cancel),
            (4, self.qos),
            (2, self.recover),
            (6, self.bind),
            (2, self.unbind),
            (3, self.redeclare),
            (2, self.purge),
            (1, self.delete),
            (4, self.commit),
            (2, self.rollback),
            (1, self.close),
            (1, self.go_wrong),
        )
        weights = [weight for weight, _ in actions]
        action: Callable[[Channel], None] = self.random.choices(actions, weights)[0][1]
        action(channel)

    def declare(self, channel: Channel, queue: str) -> None:
        channel.queue_declare(queue, durable=self.durable[queue], arguments=self.arguments[queue])

    def queue(self) -> str:
        return self.random.choice(QUEUES)

    def publish(self, channel: Channel) -> None:
        self.bodies += 1
        to_queue = self.random.random() < 0.6
        properties = {}
        if self.random.random() < 0.3:
            properties["priority"] = self.random.randint(0, 5)
        if self.random.random() < 0.3:
            properties["delivery_mode"] = 2
        if self.random.random() < 0.1:
            properties["headers"] = {"CC": [self.queue()], "n": self.bodies}
        channel.publish(
            f"m{self.bodies}",
            "" if to_queue else self.random.choice(list(EXCHANGES)),
            self.queue() if to_queue else self.random.choice(KEYS),
            mandatory=self.random.random() < 0.3,
            **properties,
        )

    def publish_several(self, channel: Channel) -> None:
        """In one write, for servers that take what they read at once as one."""
        queue, persistent = self.queue(), self.random.random() < 0.3
        with self.play.at_once():
            for _ in range(self.random.randint(2, 6)):
                self.bodies += 1
                channel.publish(f"m{self.bodies}", key=queue, delivery_mode=1 + persistent)

    def consume(self, channel: Channel) -> None:
        if channel.count_of("basic.consume-ok") > 6:
            return
        self.consumers += 1
        no_ack = self.random.random() < 0.2 and not self.shared_limits
        arguments = {"x-priority": self.random.randint(-1, 2)} if self.random.random() < 0.2 else {}
        tag = f"{'n' if no_ack else 'c'}{self.consumers}"
        exclusive = self.random.random() < 0.05
        channel.basic_consume(
            self.source[channel], tag, no_ack=no_ack, exclusive=exclusive, arguments=arguments
        )

    def cancel(self, channel: Channel) -> None:
        channel.basic_cancel(f"c{self.random.randint(1, max(1, self.consumers))}")

    def get(self, channel: Channel) -> None:
        no_ack = self.random.random() < 0.2
        channel.basic_get(self.queue(), no_ack=no_ack)
        if no_ack and channel.delivered:
            self.settled[channel].add(channel.delivered[-1][0])

    def tag(self, channel: Channel) -> int | None:
        """A delivery that waits for its settlement."""
        waiting = [
            tag
            for tag, consumer in channel.delivered
            if tag not in self.settled[channel] and not consumer.startswith("n")
        ]
        return self.random.choice(waiting) if waiting else None

    def settle(self, channel: Channel, tag: int, *, multiple: bool) -> None:
        covered = {one for one, _ in channel.delivered if one <= tag} if multiple else {tag}
        self.settled[channel] |= covered

    def ack(self, channel: Channel) -> None:
        if (tag := self.tag(channel)) is not None:
            multiple = self.random.random() < 0.25
            self.settle(channel, tag, multiple=multiple)
            channel.basic_ack(tag, multiple)

    def ack_several(self, channel: Channel) -> None:
        with self.play.at_once():
            for _ in range(3):
                self.ack(channel)

    def nack(self, channel: Channel) -> None:
        if (tag := self.tag(channel)) is None:
            return
        requeue = self.random.random() < 0.6
        multiple = self.random.random() < 0.25 and self.may_come_back_at_once(channel)
        if self.random.random() < 0.4:
            self.settle(channel, tag, multiple=False)
            channel.basic_reject(tag, requeue)
        else:
            self.settle(channel, tag, multiple=multiple)
            channel.basic_nack(tag, multiple, requeue)

    def qos(self, channel: Channel) -> None:
        shared = self.shared_limits and self.tag(channel) is None
        channel.basic_qos(0, self.random.choice((0, 1, 2, 3)), shared)

    def may_come_back_at_once(self, channel: Channel) -> bool:
        """Whether all that waits here may be given back at once: it came in one way, to a queue with room."""
        waiting = {source for tag, source in channel.delivered if tag not in self.settled[channel]}
        limited = any(name.startswith("x-max-length") for name in self.arguments[self.source[channel]])
        return len(waiting) == 1 and "" not in waiting and not limited

    def recover(self, channel: Channel) -> None:
        if not self.may_come_back_at_once(channel):
            return
        self.settled[channel] |= {tag for tag, _ in channel.delivered}
        channel.basic_recover(requeue=True)

    def bind(self, channel: Channel) -> None:
        channel.queue_bind(self.queue(), self.random.choice(list(EXCHANGES)), self.random.choice(KEYS))

    def unbind(self, channel: Channel) -> None:
        channel.queue_unbind(self.queue(), self.random.choice(list(EXCHANGES)), self.random.choice(KEYS))

    def redeclare(self, channel: Channel) -> None:
        self.declare(channel, self.queue())

    def purge(self, channel: Channel) -> None:
        channel.queue_purge(self.queue())

    def delete(self, channel: Channel) -> None:
        queue = self.queue()
        channel.queue_delete(queue, if_unused=self.random.random() < 0.5)
        if channel.is_open:
            self.declare(channel, queue)

    def commit(self, channel: Channel) -> None:
        if self.modes[self.channels.index(channel)] == "tx":
            channel.tx_commit()

    def rollback(self, channel: Channel) -> None:
        if self.modes[self.channels.index(channel)] == "tx":
            self.settled[channel].clear()
            channel.tx_rollback()

    def close(self, channel: Channel) -> None:
        channel.channel_close(200, "bye", 0, 0)

    def go_wrong(self, channel: Channel) -> None:
        match self.random.randint(0, 3):
            case 0:
                channel.basic_ack(1_000)
            case 1:
                channel.publish("lost", "no-such-exchange", "k")
            case 2:
                channel.queue_declare("q0", durable=not self.durable["q0"])
            case 3:
                channel.basic_get("no-such-queue")


def walk(seed: int) -> Callable[[Play], None]:
    """The scenario of a seed."""
    return lambda play: Walk(play, seed).run()
