"""What becomes of a message when its attempts are used up.

A recoverer has one method: it gets the failure and gives back a decision; own ones are classes with that
method. Those that send the message elsewhere wait for the confirm before they say that it may be acked.
When a recoverer itself fails, the message goes back to its queue: nothing is lost because nobody knew what
to do with it.
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
"""They must fit into one frame with everything else."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A message that could not be processed."""

    delivery: Delivery
    error: BaseException
    attempts: int
    publisher: Publisher
    """One with confirms, for recoverers that send the message elsewhere."""
    ensure_queue: Callable[[str], Awaitable[None]]
    """Declares a durable queue, if it is not there."""

    def headers(self) -> dict[str, Value]:
        """Cause, stack trace and origin, under the names that Spring AMQP uses where it has one."""
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
    """Decides about a message that could not be processed."""

    async def recover(self, failure: Failure) -> Decision: ...


class RejectAndDontRequeue:
    """Rejects it: to the dead letters of its queue, or away if it has none."""

    async def recover(self, failure: Failure) -> Decision:
        return Decision.REJECT


class ImmediateRequeue:
    """Puts it back where it was; a loop that comes of it is slowed down."""

    async def recover(self, failure: Failure) -> Decision:
        return Decision.REQUEUE


@dataclass(frozen=True, slots=True)
class Republish:
    """Sends it to an exchange, with cause, stack trace and origin in its headers; acked after the confirm."""

    exchange: str
    key: str | None = None
    """Its own routing key if not given."""

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
    """Puts it into a queue where people look at it, and from where `redrive` brings it back."""

    queue: str | None = None
    """`<queue>.parked` if not given, in a group `<group>.parked`; declared when it is needed."""

    async def recover(self, failure: Failure) -> Decision:
        name = self.queue or parking_place(failure.delivery.source.group or failure.delivery.queue)
        place = Republish("", name)
        receipt = await place.publish(failure)
        if receipt.reply_code:  # there is no such queue, and so no copy from an earlier attempt either
            await failure.ensure_queue(name)
            return await place.recover(failure)
        receipt.check()
        return Decision.ACK


def parking_place(queue: str) -> str:
    return f"{queue}.parked"


def message_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  # a `__str__` of users may raise anything
        return describe(error)


def _cut(text: str, bytes_max: int) -> str:
    """No longer than so many bytes, and without what can't be written in a table."""
    try:
        data = to_bytes(text)
    except UnicodeEncodeError:
        data = text.encode("utf-8", "backslashreplace")
    return to_text(data) if len(data) <= bytes_max else to_text(data[:bytes_max]) + "..."
