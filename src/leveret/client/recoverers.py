"""Recoverers: what happens to a message when its attempts are used up.

A recoverer is a class with one method, which gets the failure and returns a decision. A recoverer that sends
the message elsewhere waits for the confirm before it decides to ack. When a recoverer fails, the message is
requeued, so that it is not lost.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol

from leveret.amqp.names import to_bytes, to_text
from leveret.amqp.tables import Timestamp, Value
from leveret.client.callbacks import describe
from leveret.client.decisions import Decision
from leveret.client.delivery import ATTEMPTS, Delivery
from leveret.client.message_copies import copy_of
from leveret.client.publisher import Publisher
from leveret.client.receipt import Receipt
from leveret.client.retry_delays import origin

ORIGINAL_QUEUE: Final = "x-original-queue"
CAUSE_HEADERS: Final = (
    "x-exception-type",
    "x-exception-message",
    "x-exception-stacktrace",
    "x-failed-attempts",
    "x-failed-at",
)
_TEXT_BYTES_MAX: Final = 16_000
_HEADERS_BYTES_MAX: Final = 128_000
"""The most that all headers may take, because a content header must fit into one frame."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The last failure of a message, for its recoverer."""

    delivery: Delivery
    error: BaseException
    attempts: int
    publisher: Publisher
    """A publisher with confirms, for recoverers that send the message elsewhere."""
    ensure_queue: Callable[[str], Awaitable[None]]
    """Declares a durable queue."""

    def headers(self) -> dict[str, Value]:
        """Return headers with cause, stack trace and origin, named as in Spring AMQP where it has them."""
        error = self.error
        room = max(0, _HEADERS_BYTES_MAX - len(self.delivery.header))
        came_from = self.delivery.partition if self.delivery.source.group else self.delivery.queue
        trace = "".join(traceback.format_exception(error))
        return {
            **origin(self.delivery),
            ORIGINAL_QUEUE: str(self.delivery.headers.get(ORIGINAL_QUEUE, came_from)),
            "x-exception-type": f"{type(error).__module__}.{type(error).__qualname__}",
            "x-exception-message": _cut(message_of(error), min(room // 4, _TEXT_BYTES_MAX)),
            "x-exception-stacktrace": _cut(trace, min(room // 2, _TEXT_BYTES_MAX)),
            "x-failed-attempts": self.attempts,
            "x-failed-at": Timestamp(time.time()),
        }


class Recoverer(Protocol):
    """Decides about a message whose attempts are used up."""

    async def recover(self, failure: Failure) -> Decision: ...


class RejectAndDontRequeue:
    """Reject the message: it is dead-lettered, or dropped if its queue has no dead letters."""

    async def recover(self, failure: Failure) -> Decision:
        return Decision.REJECT


class ImmediateRequeue:
    """Requeue the message at its place. A redelivery loop is slowed down."""

    async def recover(self, failure: Failure) -> Decision:
        return Decision.REQUEUE


@dataclass(frozen=True, slots=True)
class Republish:
    """Publish the message to an exchange, with cause, stack trace and origin in its headers, then ack it."""

    exchange: str
    key: str | None = None
    """The routing key. None: the message's own."""

    async def recover(self, failure: Failure) -> Decision:
        (await self.publish(failure)).check()
        return Decision.ACK

    async def publish(self, failure: Failure) -> Receipt:
        delivery = failure.delivery
        key = delivery.routing_key if self.key is None else self.key
        copy = copy_of(delivery, key, self.exchange, headers=failure.headers(), without=(ATTEMPTS,))
        (receipt,) = await failure.publisher.publish_many([copy])
        return receipt


@dataclass(frozen=True, slots=True)
class Park:
    """Publish the message to a queue for people to look at. `redrive` brings it back."""

    queue: str | None = None
    """The queue, which is declared when it is needed. None: `<queue>.parked`, in a group `<group>.parked`."""

    async def recover(self, failure: Failure) -> Decision:
        name = self.queue or parking_place(failure.delivery.source.group or failure.delivery.queue)
        place = Republish("", name)
        receipt = await place.publish(failure)
        if receipt.reply_code:
            # There is no such queue, so no earlier attempt stored a copy there either.
            await failure.ensure_queue(name)
            return await place.recover(failure)
        receipt.check()
        return Decision.ACK


def parking_place(queue: str) -> str:
    return f"{queue}.parked"


def message_of(error: BaseException) -> str:
    try:
        return str(error)
    # A user's `__str__` may raise anything.
    except Exception:  # noqa: BLE001
        return describe(error)


def _cut(text: str, bytes_max: int) -> str:
    """Cut a text to a number of bytes. Escape characters that a table can't hold."""
    try:
        data = to_bytes(text)
    except UnicodeEncodeError:
        data = text.encode("utf-8", "backslashreplace")
    return to_text(data) if len(data) <= bytes_max else to_text(data[:bytes_max]) + "..."
