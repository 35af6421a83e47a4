"""Everything at once, and then the power goes: what was promised is there, what was settled is not.

A random history of publishes, gets, settlements, delays and transactions on two queues, cut off at a random
moment, several times over on what the loss before left. A model knows for each message what was promised: a
confirm or a commit-ok is a promise; an ack is one once a later confirm shows that it was synced.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random

import pytest
from pamqp import commands

from leveret.testing.broker import Broker
from leveret.testing.clock import VirtualClock
from tests.semantics.client import Channel, Client

QUEUES = {
    "q": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", "x-delivery-limit": 4},
    "dead": {"x-retry-delay-ms": 1000, "x-retry-multiplier": 1},
}


@dataclass
class Known:
    """What is certain about one message."""

    promised: bool = False
    """Confirmed or committed: it must be somewhere, unless it was settled."""
    settled: bool = False
    gone: bool = False
    """Settled, and that was synced: it must be nowhere."""


class History:
    """Does something random to the broker, and remembers what may be relied upon."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.clock = VirtualClock()
        self.broker = Broker(clock=self.clock)
        self.broker.start()
        self.known: dict[str, Known] = {}
        self.connect()
        for queue, arguments in QUEUES.items():
            self.work.declare(queue, arguments=arguments)

    def connect(self) -> None:
        client = Client(self.broker.port)
        self.publisher = client.channel().confirm_select()
        self.work = client.channel()
        self.tx = client.channel().tx_select()
        self.sent: list[str] = []
        self.held: dict[int, tuple[str, str]] = {}

    def new(self) -> str:
        name = f"m{len(self.known)}"
        self.known[name] = Known()
        return name

    # what may happen

    def publish(self) -> None:
        with self.publisher.client.together():
            for _ in range(self.random.randint(1, 4)):
                self.sent.append(self.new())
                self.publisher.publish(self.random.choice(list(QUEUES)), self.sent[-1])

    def sync(self) -> None:
        """Waits for the last confirm: everything that was done on this connection before it is on disk."""
        settled = [each for each in self.known.values() if each.settled]
        self.sent.append(self.new())
        self.publisher.publish("q", self.sent[-1])
        while self.publisher.next(commands.Basic.Ack).tag < len(self.sent):
            pass
        for name in self.sent:
            self.known[name].promised = True
        for each in settled:
            each.gone = True

    def get(self) -> None:
        queue = self.random.choice(list(QUEUES))
        got = self.work.get(queue)
        if got is not None:
            self.held[got.tag] = (queue, got.text)

    def settle(self) -> None:
        if not self.held:
            return
        tag = self.random.choice(list(self.held))
        queue, name = self.held.pop(tag)
        how = self.random.choice(("ack", "nack", "reject", "drop"))
        if how == "ack" or (how == "drop" and queue == "dead"):
            self.known[name].settled = True
        if how == "drop":
            self.work.nack(tag, requeue=False)
        else:
            getattr(self.work, how)(tag)

    def commit(self) -> None:
        """Takes from one queue and puts into both, as one."""
        got = self.tx.get("q")
        if got is not None:
            self.tx.ack(got.tag)
        names = [self.new() for _ in QUEUES]
        for queue, name in zip(QUEUES, names, strict=True):
            self.tx.publish(queue, name)
        self.tx.tx_commit()
        for name in names:
            self.known[name].promised = True
        if got is not None:
            self.known[got.text].settled = self.known[got.text].gone = True

    def wait(self) -> None:
        self.clock.advance(self.random.choice((0.1, 1)))

    # the end of a life

    def lose_power(self) -> None:
        self.broker.crash(self.random if self.random.random() < 0.8 else None)
        self.broker.start()
        there = Counter(self.broker.call(self.everything))
        assert not [name for name, times in there.items() if times > 1], "a message is there twice"
        for name, known in self.known.items():
            if known.gone:
                assert name not in there, f"{name} was settled and is back"
            elif known.promised and not known.settled:
                assert name in there, f"{name} was promised and is lost"
            known.promised = name in there
            known.gone = known.settled = name not in there
        self.connect()

    def everything(self) -> list[str]:
        """Looked at from inside, so that nothing is delivered by it."""
        found = []
        for name in QUEUES:
            queue = self.broker.server.broker.vhosts["/"].queue(name)
            progress = queue.cursor.progress
            ranges = [*progress.ready_ranges(), *progress.delayed.ranges(), *progress.in_flight.ranges()]
            found += [record.body.decode() for record in queue.log.read(sorted(ranges))]
        return found


@pytest.mark.histories(sample=6, full=30)
def test_power_losses_break_no_promise(seed: int) -> None:
    history = History(seed)
    things = ["publish", "sync", "get", "get", "settle", "settle", "commit", "wait"]
    try:
        for _ in range(4):
            for _ in range(history.random.randint(1, 40)):
                getattr(history, history.random.choice(things))()
            history.lose_power()
    finally:
        history.broker.stop()


def test_the_model_would_notice_a_loss() -> None:
    """A message that is taken away behind the broker's back is missed."""
    history = History(1)
    try:
        history.publish()
        history.sync()
        other: Channel = Client(history.broker.port).channel()
        other.purge("q")
        history.sync()
        with pytest.raises(AssertionError, match="was promised and is lost"):
            history.lose_power()
    finally:
        history.broker.stop()
