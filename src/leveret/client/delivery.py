"""A delivery: a message that came, and the ways to settle it.

Method and properties stay bytes until somebody asks; most handlers only want the body. A delivery belongs
to one channel of one session: when that has ended, settling it is *stale*, which is reported and harms
nobody, because the broker has given the message to somebody else by then. Who decodes bodies and who
decides what becomes of a delivery is left to the listener.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, cast

from leveret.amqp import properties
from leveret.amqp.errors import AmqpError
from leveret.amqp.names import to_text
from leveret.amqp.tables import Value
from leveret.client.acks import Ledger, Settled
from leveret.client.codecs import Codecs
from leveret.client.decisions import Decision
from leveret.client.errors import ConversionError
from leveret.client.message import REPUBLISHED

ATTEMPTS: Final = "x-attempts"
"""How often it has failed, written by whoever sends it round through a delay queue."""
DELIVERY_COUNT: Final = "x-delivery-count"
"""How often it was delivered before, as Leveret and quorum queues count it."""
CONSUMER_LOST: Final = "x-consumer-lost"
"""The consumer that began with it before was lost, and nobody knows what became of that attempt."""
STREAM: Final = "x-stream"
"""The partition that a group's delivery comes from; a dead letter of a group still says so."""
OFFSET: Final = "x-stream-offset"
MODE: Final = "x-group-mode"
"""Of a delivery of an orderly group: that it is one."""
_MODE: Final = MODE.encode()
_CONSUMER_LOST: Final = CONSUMER_LOST.encode()
GROUP: Final = "x-group"
"""Of a dead letter: the group in which it failed."""


@dataclass(frozen=True, slots=True)
class Source:
    """What deliveries of one consumer have in common."""

    ledger: Ledger[Delivery]
    queue: str
    codecs: Codecs
    settle: Callable[[Delivery, Decision], Awaitable[Settled]] | None = None
    """A listener's own way: it counts, remembers and slows down loops."""
    group: str | None = None
    """As whose member it consumes, if it does so."""
    marks_begun: bool = False
    """Whether the broker is told when a handler begins with a delivery, and counts that as an attempt."""


class Delivery:
    """`await delivery.ack()`; made by a listener, or by `Consumer`."""

    __slots__ = (
        "_properties",
        "_value",
        "begun",
        "body",
        "header",
        "leaving",
        "ledger",
        "local_attempts",
        "reminder",
        "settled",
        "source",
        "tag",
        "wire_exchange",
        "wire_redelivered",
        "wire_routing_key",
    )

    def __init__(
        self,
        source: Source,
        tag: int,
        *,
        exchange: str,
        routing_key: str,
        redelivered: bool,
        header: bytes,
        body: bytes,
    ) -> None:
        self.source = source
        self.ledger = source.ledger
        self.tag = tag
        self.wire_exchange = exchange
        self.wire_routing_key = routing_key
        self.wire_redelivered = redelivered
        self.header = header
        self.body = body
        self.settled = False
        self.begun = False
        """A handler has begun with it, or whoever took it from a `Consumer`."""
        self.leaving = False
        """It goes back in a moment; nobody else decides about it any more."""
        self.local_attempts = 0
        """How often it has failed here, without going back to the broker."""
        self.reminder: asyncio.TimerHandle | None = None
        self._properties: dict[str, Value] | None = None
        self._value: object = _UNREAD

    # what it is

    @property
    def queue(self) -> str:
        return self.source.queue

    @property
    def partition(self) -> str | None:
        """Of a group's delivery: the stream in which it is, a partition of the topic."""
        return cast("str | None", self.headers.get(STREAM))

    @property
    def is_in_order(self) -> bool:
        """Of a group's delivery: whether the next of its partition comes only when this one is settled."""
        return _MODE in self.header and self.headers.get(MODE) == "orderly"  # few need to be decoded

    @property
    def offset(self) -> int | None:
        """Of a stream's or a group's delivery: its number there."""
        return cast("int | None", self.headers.get(OFFSET))

    @property
    def properties(self) -> dict[str, Value]:
        """All of them, by their AMQP names; an unreadable header is a `ConversionError`."""
        if self._properties is None:
            try:
                self._properties = properties.decode(self.header)
            except AmqpError as error:
                raise ConversionError(f"the properties can't be read: {error}") from error
        return self._properties

    @property
    def headers(self) -> dict[str, Value]:
        return cast(dict[str, Value], self.properties.get("headers", {}))

    @property
    def content_type(self) -> str | None:
        return cast("str | None", self.properties.get("content_type"))

    @property
    def content_encoding(self) -> str | None:
        return cast("str | None", self.properties.get("content_encoding"))

    @property
    def message_id(self) -> str | None:
        return cast("str | None", self.properties.get("message_id"))

    @property
    def correlation_id(self) -> str | None:
        return cast("str | None", self.properties.get("correlation_id"))

    @property
    def reply_to(self) -> str | None:
        return cast("str | None", self.properties.get("reply_to"))

    @property
    def value(self) -> Any:
        """The body, decoded by its content type."""
        if self._value is _UNREAD:
            self._value = self.source.codecs.decode(self.body, self.content_type, self.content_encoding)
        return self._value

    @property
    def redelivered(self) -> bool:
        """It may have been processed before: delivered already, or published again because of a lost
        connection.
        """
        if self.wire_redelivered:
            return True
        if b"x-republished" not in self.header and b"x-attempts" not in self.header:
            return False
        return REPUBLISHED in self.headers or self._was_sent_round

    @property
    def exchange(self) -> str:
        """Where it was published, also after it was sent round for another try."""
        return self._first("x-original-exchange", self.wire_exchange)

    @property
    def routing_key(self) -> str:
        """With which key, likewise."""
        return self._first("x-original-routingKey", self.wire_routing_key)

    def _first(self, name: str, wire: str) -> str:
        if b"x-attempts" not in self.header or not self._was_sent_round:
            return wire
        return str(self.headers.get(name, wire))

    @property
    def _was_sent_round(self) -> bool:
        """Through a delay queue. A group's dead letter has attempts too: those before it died."""
        return ATTEMPTS in self.headers and GROUP not in self.headers

    @property
    def attempt(self) -> int:
        """The number of this try, 1 for the first: tries that Leveret counted, that failed in this process,
        and that the message's own headers tell. What quorum queues of RabbitMQ count are deliveries, also
        those that no handler saw, and not tries.
        """
        if (
            not self.wire_redelivered
            and b"x-attempts" not in self.header
            and b"x-delivery-count" not in self.header
        ):
            return 1 + self.local_attempts
        rounds = self.headers[ATTEMPTS] if self._was_sent_round else 0
        counted = (rounds, self.headers.get(DELIVERY_COUNT) if self.ledger.broker_counts else None)
        return 1 + self.local_attempts + sum(each for each in counted if isinstance(each, int))

    @property
    def is_lost(self) -> bool:
        """Whether the consumer that began with it the last time was lost before it could settle it."""
        return _CONSUMER_LOST in self.header and self.headers.get(CONSUMER_LOST) is True

    def __repr__(self) -> str:
        name = self.message_id or f"tag {self.tag}"
        return f"<Delivery {name} of queue '{self.queue}', attempt {self.attempt}>"

    # what becomes of it

    async def ack(self) -> Settled:
        """It is done; the broker forgets it."""
        return await self._settle(Decision.ACK)

    async def nack(self, *, requeue: bool = True) -> Settled:
        """It is not done: back to its place in the queue, or to the dead letters."""
        return await self._settle(Decision.REQUEUE if requeue else Decision.REJECT)

    async def reject(self) -> Settled:
        """It never will be done: to the dead letters, or away if there are none."""
        return await self._settle(Decision.REJECT)

    async def _settle(self, decision: Decision) -> Settled:
        if self.source.settle is not None:
            return await self.source.settle(self, decision)
        return self.ledger.settle(self, decision)


_UNREAD: Final = object()


class Reader:
    """Reads basic.deliver: names repeat, so each combination is decoded once.

    deliver   60 60 | consumer tag | delivery tag u64 | redelivered u8 | exchange | routing key
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._names: dict[bytes, tuple[str, str]] = {}

    def read(self, messages: list[tuple[bytes, bytes, bytes]]) -> list[Delivery]:
        found = []
        names, source = self._names, self._source
        came = source.ledger.came
        for method, header, body in messages:
            at = 5 + method[4]
            tag = int.from_bytes(method[at : at + 8], "big")
            came(tag)
            rest = method[at + 9 :]
            known = names.get(rest)
            if known is None:
                known = self._read_names(rest)
            found.append(
                Delivery(
                    source,
                    tag,
                    exchange=known[0],
                    routing_key=known[1],
                    redelivered=bool(method[at + 8]),
                    header=header,
                    body=body,
                )
            )
        return found

    def _read_names(self, rest: bytes) -> tuple[str, str]:
        if len(self._names) >= 1024:
            self._names.clear()
        stop = 1 + rest[0]
        found = self._names[rest] = (to_text(rest[1:stop]), to_text(rest[stop + 1 :]))
        return found
