"""The books of a publisher: what its receipts say against what is in the queue at the end.

Owns the rules (nothing confirmed is lost, every receipt is true, a duplicate says that it may be one) and
draining a queue with a client that has nothing to do with the toolkit. What went wrong comes back as
sentences, an empty list means that the books are in order. How the messages got there, and which faults were
in the way, is left to the tests.
"""

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pika

from leveret.client.receipt import Receipt, Status

END = b"the end"
DRAIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Found:
    """A message in the queue; `again`: its publisher says that it may be there twice. What the broker says by
    `redelivered` is about deliveries, of which there were none: after a crash it says it to be safe.
    """

    message_id: str
    body: bytes
    again: bool = False


@dataclass(slots=True)
class Books:
    """What was published, in order.

    >>> books.enter(publisher.send(body, queue), body)
    >>> assert books.wrong(drained(url, queue)) == []
    """

    exactly_once: bool = False
    """The queue stores a sequence once: there are no duplicates, marked or not."""
    in_order: bool = True
    """Whether messages must be in the order in which they were published.

    They need not be if bindings change: a first attempt may find no queue, and the next attempt finds one.
    """
    entries: list[tuple[Receipt, bytes]] = field(default_factory=list)

    def enter(self, receipt: Receipt, body: bytes) -> None:
        self.entries.append((receipt, body))

    def count(self, status: Status) -> int:
        return sum(receipt.status is status for receipt, _ in self.entries)

    def wrong(self, found: Sequence[Found]) -> list[str]:
        """What does not add up, each in a sentence."""
        copies: dict[str, list[Found]] = defaultdict(list)
        for message in found:
            copies[message.message_id].append(message)
        sentences = list(self._strangers(copies))
        for receipt, body in self.entries:
            sentences += self._of_one(receipt, body, copies.get(receipt.message_id, []))
        return sentences + (list(self._out_of_order(found)) if self.in_order else [])

    def _strangers(self, copies: Iterable[str]) -> Iterator[str]:
        known = [receipt.message_id for receipt, _ in self.entries]
        if len(set(known)) != len(known):
            yield "two receipts have the same message id"
        for message_id in set(copies) - set(known):
            yield f"{message_id} is in the queue, but nobody published it"

    def _of_one(self, receipt: Receipt, body: bytes, copies: list[Found]) -> Iterator[str]:
        who, count = f"{receipt!r}", len(copies)
        if any(copy.body != body for copy in copies):
            yield f"{who}: its body is another one"
        if receipt.status is Status.PENDING:
            yield f"{who}: nobody ever learnt what became of it"
        elif receipt.status is Status.CONFIRMED and not copies:
            yield f"{who}: it is not in the queue"
        elif copies and self._was_denied(receipt):
            yield f"{who}: it is in the queue"
        if sum(not copy.again for copy in copies) > 1:
            yield f"{who}: {count} copies, and more than one of them claims to be the first"
        elif count > 1 and self.exactly_once:
            yield f"{who}: {count} copies in a queue that stores a message once"
        if receipt.attempts <= 1 and (count > 1 or any(copy.again for copy in copies)):
            yield f"{who}: it was sent once, but the queue says otherwise"
        if copies and not receipt.attempts:
            yield f"{who}: it was never sent, and is there"

    def _was_denied(self, receipt: Receipt) -> bool:
        """Whether the receipt says that the message is not there."""
        return receipt.status in (Status.NACKED, Status.RETURNED)

    def _out_of_order(self, found: Sequence[Found]) -> Iterator[str]:
        """By their first copies: what is sent again is sent in order, before what is new."""
        places = {receipt.message_id: place for place, (receipt, _) in enumerate(self.entries)}
        highest = -1
        for message_id in dict.fromkeys(message.message_id for message in found):
            place = places.get(message_id, highest)
            if place < highest:
                yield f"{message_id} came after messages that were published later"
            highest = max(place, highest)


def declared(url: str, name: str, **arguments: Any) -> str:
    with contextlib.closing(pika.BlockingConnection(pika.URLParameters(url))) as connection:
        connection.channel().queue_declare(name, durable=True, arguments=arguments)
    return name


def drained(url: str, queue: str) -> list[Found]:
    """All messages of a queue, in its order, taken out by pika.

    A last message is published behind them: when it comes out, everything before it has.
    """
    parameters = pika.URLParameters(url)
    parameters.socket_timeout = parameters.blocked_connection_timeout = DRAIN_S
    found: list[Found] = []
    with contextlib.closing(pika.BlockingConnection(parameters)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", queue, END, pika.BasicProperties(delivery_mode=2), mandatory=True)
        channel.basic_qos(prefetch_count=1000)
        for method, properties, body in channel.consume(queue, inactivity_timeout=DRAIN_S):
            if method is None:
                raise TimeoutError(f"{queue} gave {len(found)} messages and then nothing for {DRAIN_S} s")
            if body == END:
                channel.basic_ack(method.delivery_tag, multiple=True)
                return found
            again = bool((properties.headers or {}).get("x-republished"))
            found.append(Found(properties.message_id, body, again))
            if len(found) % 500 == 0:
                channel.basic_ack(method.delivery_tag, multiple=True)
    raise AssertionError("unreachable")


def all_confirmed(books: Books, url: str, queue: str) -> bool:
    """The books are in order, and no message was left to chance."""
    assert books.wrong(drained(url, queue)) == []
    assert books.count(Status.CONFIRMED) == len(books.entries)
    return True
