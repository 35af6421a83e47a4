"""Where a message waits before it is tried again: in the broker, with its count, taking nobody's place.

On Leveret the delivery itself goes back with a delay: no copy, nothing to declare. On other brokers a copy
goes to a delay queue, one per queue and delay; the original is acked after the copy is confirmed. When its
time is over it goes on to `<queue>.retries`, which takes everything, and from there `Returns` brings it back.
A delay queue is declared when it is needed and again while it is, and vanishes when it is not. The rule: at
every moment the message is in the broker (decision 17).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Final, Protocol

from leveret.amqp.tables import Value
from leveret.client.delivery import ATTEMPTS, Delivery
from leveret.client.internal_queues import EnsuredQueues
from leveret.client.message_copies import copy_of
from leveret.client.publisher import Publisher
from leveret.client.requeue import CAPABILITY, give_back

DELAY_MAX_MS: Final = (1 << 32) - 1 - 120_000
"""RabbitMQ's bound for a queue's TTL, less what the queue outlives it."""
_OUTLIVES_MS: Final = 120_000
_DECLARED_FOR_S: Final = 60.0
_NAME_BYTES_MAX: Final = 255


class Delays(Protocol):
    """Something that can make a message wait."""

    async def later(self, delivery: Delivery, delay_s: float, error: BaseException | None) -> None:
        """It comes back after the delay, its count one higher; raises if that can't be arranged. `error` is
        what went wrong, where the broker takes note of it."""


class DelayedRequeue:
    """Leveret: the delivery goes back with a delay (docs/guide/retries.md)."""

    async def later(self, delivery: Delivery, delay_s: float, error: BaseException | None) -> None:
        give_back(delivery, delay_ms=_milliseconds(delay_s), error=error)


def give_back_untouched(delivery: Delivery) -> None:
    """Nobody has begun with it: it goes back, on Leveret without counting as a try."""
    if delivery.ledger.channel.session.has(CAPABILITY):
        give_back(delivery, delay_ms=0, counted=False)
    else:
        delivery.ledger.nack(delivery, requeue=True)


class DelayQueues:
    """Any broker: queues with a TTL whose dead letters are on their way back."""

    def __init__(
        self, publisher: Callable[[], Publisher], queues: EnsuredQueues, *, returning: Callable[[], None]
    ) -> None:
        """`returning` is called when there will be something to bring back."""
        self._publisher = publisher
        self._queues = queues
        self._returning = returning

    async def later(self, delivery: Delivery, delay_s: float, error: BaseException | None) -> None:
        delay_ms = max(1, _milliseconds(delay_s))
        name = delay_queue(delivery.queue, delay_ms)
        copy = copy_of(
            delivery,
            name,
            headers={ATTEMPTS: delivery.attempt, **origin(delivery)},
        )
        for renewed in (False, True):
            await self._ensure(name, return_queue(delivery.queue), delay_ms, renewed=renewed)
            self._returning()
            receipt = (await self._publisher().publish_many([copy]))[0]
            if not receipt.reply_code:  # otherwise the queue had just expired
                break
        receipt.check()
        delivery.ledger.ack(delivery)

    async def _ensure(self, name: str, target: str, delay_ms: int, *, renewed: bool) -> None:
        arguments: dict[str, Value] = {
            "x-message-ttl": delay_ms,
            "x-expires": delay_ms + _OUTLIVES_MS,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": target,
        }
        for_s = 0.0 if renewed else _DECLARED_FOR_S
        await self._queues.ensure(target, for_s=for_s)
        await self._queues.ensure(name, arguments, for_s=for_s)


def delay_queue(queue: str, delay_ms: int) -> str:
    """
    >>> delay_queue("orders", 5000)
    'orders.retry.5000'
    """
    return _named(queue, f"retry.{delay_ms}")


def is_delay_queue(name: str) -> bool:
    return re.search(r"\.retry\.\d+\Z", name) is not None


def return_queue(queue: str) -> str:
    """
    >>> return_queue("orders")
    'orders.retries'
    """
    return _named(queue, "retries")


def _named(queue: str, what: str) -> str:
    name = f"{queue}.{what}"
    if len(name.encode()) <= _NAME_BYTES_MAX:
        return name
    return f"{hashlib.sha256(queue.encode()).hexdigest()[:32]}.{what}"


def origin(delivery: Delivery) -> dict[str, str]:
    """Where a message was first, for whoever sees a copy; what an earlier copy says counts."""
    first = {"x-original-exchange": delivery.exchange, "x-original-routingKey": delivery.routing_key}
    said = delivery.headers
    return {name: str(said.get(name, value)) for name, value in first.items()}


def _milliseconds(delay_s: float) -> int:
    return min(round(delay_s * 1000), DELAY_MAX_MS)
