"""A delivery: a received message, and the methods to settle it.

Properties stay bytes until they are read, because most handlers only need the body. A delivery belongs to
one channel of one session. After that channel has ended, settling the delivery is *stale*: this is reported
and does no harm, because the broker delivers the message again. Listeners decide when to settle a delivery.
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
"""How often the message has failed. Written when it is copied to a delay queue."""
DELIVERY_COUNT: Final = "x-delivery-count"
"""How often the message was delivered before, as Leveret and quorum queues count it."""
CONSUMER_LOST: Final = "x-consumer-lost"
"""Whether the consumer that began with the message before was lost, with an unknown outcome."""
STREAM: Final = "x-stream"
"""The partition of a group's delivery, or of a group's dead letter."""
OFFSET: Final = "x-stream-offset"
MODE: Final = "x-group-mode"
"""The mode of the group; only on deliveries of groups in orderly mode."""
_MODE: Final = MODE.encode()
_CONSUMER_LOST: Final = CONSUMER_LOST.encode()
GROUP: Final = "x-group"
"""The group in which a dead letter failed."""


@dataclass(frozen=True, slots=True)
class Source:
    """Attributes that all deliveries of one consumer share."""

    ledger: Ledger[Delivery]
    queue: str
    codecs: Codecs
    settle: Callable[[Delivery, Decision], Awaitable[Settled]] | None = None
    """How a listener settles: it counts, remembers message ids and slows down loops."""
    group: str | None = None
    """The group as whose member the consumer consumes."""
    marks_begun: bool = False
    """Whether the broker is told when a handler begins with a delivery, which it counts as an attempt."""


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
        """Whether a handler has begun with it, or it was taken from a `Consumer`."""
        self.leaving = False
        """Whether it is requeued after a pause, so that it can't be settled otherwise."""
        self.local_attempts = 0
        """How often it has failed in this process, without going back to the broker."""
        self.reminder: asyncio.TimerHandle | None = None
        self._properties: dict[str, Value] | None = None
        self._value: object = _UNREAD

    # attributes of the message

    @property
    def queue(self) -> str:
        return self.source.queue

    @property
    def partition(self) -> str | None:
        """The partition of a group's delivery: one of the topic's streams."""
        return cast("str | None", self.headers.get(STREAM))

    @property
    def is_in_order(self) -> bool:
        """Whether the group is in orderly mode: the partition's next message waits for this one."""
        # Most deliveries need no decoding.
        return _MODE in self.header and self.headers.get(MODE) == "orderly"

    @property
    def offset(self) -> int | None:
        """The offset of a stream's or a group's delivery."""
        return cast("int | None", self.headers.get(OFFSET))

    @property
    def properties(self) -> dict[str, Value]:
        """All properties by their AMQP names. `ConversionError`: the content header is unreadable."""
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
        """Whether the message may have been processed before.

        It was delivered already, or published again after a lost connection.
        """
        if self.wire_redelivered:
            return True
        if b"x-republished" not in self.header and b"x-attempts" not in self.header:
            return False
        return REPUBLISHED in self.headers or self._was_in_delay_queue

    @property
    def exchange(self) -> str:
        """The exchange of the first publish, also after the message was in a delay queue."""
        return self._original("x-original-exchange", self.wire_exchange)

    @property
    def routing_key(self) -> str:
        """The routing key of the first publish, also after the message was in a delay queue."""
        return self._original("x-original-routingKey", self.wire_routing_key)

    def _original(self, header: str, received: str) -> str:
        if b"x-attempts" not in self.header or not self._was_in_delay_queue:
            return received
        return str(self.headers.get(header, received))

    @property
    def _was_in_delay_queue(self) -> bool:
        """Whether a delay queue held the message. Dead letters of groups have `x-attempts` too."""
        return ATTEMPTS in self.headers and GROUP not in self.headers

    @property
    def attempt(self) -> int:
        """The number of this attempt, 1 for the first.

        It adds up attempts that Leveret counted, failures in this process, and `x-attempts`. The count of
        RabbitMQ's quorum queues is not used: it includes deliveries that no handler saw.
        """
        if (
            not self.wire_redelivered
            and b"x-attempts" not in self.header
            and b"x-delivery-count" not in self.header
        ):
            return 1 + self.local_attempts
        failures = self.headers[ATTEMPTS] if self._was_in_delay_queue else 0
        counts = (failures, self.headers.get(DELIVERY_COUNT) if self.ledger.broker_counts else None)
        return 1 + self.local_attempts + sum(count for count in counts if isinstance(count, int))

    @property
    def is_lost(self) -> bool:
        """Whether the consumer of the previous attempt was lost before it could settle the delivery."""
        return _CONSUMER_LOST in self.header and self.headers.get(CONSUMER_LOST) is True

    def __repr__(self) -> str:
        name = self.message_id or f"tag {self.tag}"
        return f"<Delivery {name} of queue '{self.queue}', attempt {self.attempt}>"

    # settling

    async def ack(self) -> Settled:
        """Ack the delivery: the message is done, and the broker forgets it."""
        return await self._settle(Decision.ACK)

    async def nack(self, *, requeue: bool = True) -> Settled:
        """Requeue the message at its place in the queue, or reject it."""
        return await self._settle(Decision.REQUEUE if requeue else Decision.REJECT)

    async def reject(self) -> Settled:
        """Reject the message: it is dead-lettered, or dropped if its queue has no dead letters."""
        return await self._settle(Decision.REJECT)

    async def _settle(self, decision: Decision) -> Settled:
        if self.source.settle is not None:
            return await self.source.settle(self, decision)
        return self.ledger.settle(self, decision)


_UNREAD: Final = object()


class Reader:
    """Makes deliveries of basic.deliver. Names repeat, so each combination is decoded once.

    deliver   60 60 | consumer tag | delivery tag u64 | redelivered u8 | exchange | routing key
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._addresses: dict[bytes, tuple[str, str]] = {}
        """Exchange and routing key, by their bytes in the method."""

    def read(self, messages: list[tuple[bytes, bytes, bytes]]) -> list[Delivery]:
        deliveries = []
        known_addresses, source = self._addresses, self._source
        add_tag = source.ledger.add
        for method, header, body in messages:
            position = 5 + method[4]
            tag = int.from_bytes(method[position : position + 8], "big")
            add_tag(tag)
            names = method[position + 9 :]
            address = known_addresses.get(names)
            if address is None:
                address = self._read_address(names)
            deliveries.append(
                Delivery(
                    source,
                    tag,
                    exchange=address[0],
                    routing_key=address[1],
                    redelivered=bool(method[position + 8]),
                    header=header,
                    body=body,
                )
            )
        return deliveries

    def _read_address(self, names: bytes) -> tuple[str, str]:
        if len(self._addresses) >= 1024:
            self._addresses.clear()
        stop = 1 + names[0]
        address = self._addresses[names] = (to_text(names[1:stop]), to_text(names[stop + 1 :]))
        return address
