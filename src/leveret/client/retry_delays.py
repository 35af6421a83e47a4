"""How a message waits in the broker for its next attempt, with its count.

On Leveret the delivery itself is requeued with a delay: there is no copy, and nothing to declare. On other
brokers a copy goes to a delay queue, one for each queue and delay, and the original is acked after the copy
is confirmed. After the delay the broker dead-letters the copy to `<queue>.retries`, from where
`DelayQueueReturns` brings it back. Delay queues are declared while they are needed, and expire later. The
rule: the message is in the broker at every moment (decision 17).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from leveret.amqp.tables import Value
from leveret.client.delivery import ATTEMPTS, Delivery
from leveret.client.internal_queues import EnsuredQueues
from leveret.client.message_copies import copy_of
from leveret.client.publisher import Publisher
from leveret.client.requeue import CAPABILITY, give_back

DELAY_MAX_MS: Final = (1 << 32) - 1 - 120_000
"""RabbitMQ's longest queue TTL, less `_OUTLIVES_MS`."""
_OUTLIVES_MS: Final = 120_000
"""How much longer than its messages a delay queue lives."""
_DECLARED_FOR_S: Final = 60.0
_NAME_BYTES_MAX: Final = 255


class Delays(Protocol):
    """A way to let a message wait in the broker."""

    async def later(self, delivery: Delivery, delay_s: float, error: BaseException | None) -> None:
        """Let a message come back after a delay, with a count one higher. Raises if that fails.

        `error` is the failure of its handler. Leveret stores it.
        """


class DelayedRequeue:
    """On Leveret: requeue the delivery with a delay (docs/guide/retries.md)."""

    async def later(self, delivery: Delivery, delay_s: float, error: BaseException | None) -> None:
        give_back(delivery, delay_ms=_milliseconds(delay_s), error=error)


def give_back_untouched(delivery: Delivery) -> None:
    """Requeue a delivery that no handler has begun with. Leveret does not count it as an attempt."""
    if delivery.ledger.channel.session.has(CAPABILITY):
        give_back(delivery, delay_ms=0, counted=False)
    else:
        delivery.ledger.nack(delivery, requeue=True)


@dataclass(slots=True)
class DelayQueues:
    """On any broker: publish a copy to a queue with a TTL, whose dead letters come back."""

    publisher: Callable[[], Publisher]
    queues: EnsuredQueues
    returning: Callable[[], None]
    """Called when a message is about to wait, and must be brought back later."""

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
            self.returning()
            receipt = (await self.publisher().publish_many([copy]))[0]
            # If the message was returned, the delay queue had just expired.
            if not receipt.reply_code:
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
        await self.queues.ensure(target, for_s=for_s)
        await self.queues.ensure(name, arguments, for_s=for_s)


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


def _named(queue: str, suffix: str) -> str:
    name = f"{queue}.{suffix}"
    if len(name.encode()) <= _NAME_BYTES_MAX:
        return name
    return f"{hashlib.sha256(queue.encode()).hexdigest()[:32]}.{suffix}"


def origin(delivery: Delivery) -> dict[str, str]:
    """Return headers with the address of the first publish. Headers of an earlier copy take precedence."""
    address = {"x-original-exchange": delivery.exchange, "x-original-routingKey": delivery.routing_key}
    return {name: str(delivery.headers.get(name, value)) for name, value in address.items()}


def _milliseconds(delay_s: float) -> int:
    return min(round(delay_s * 1000), DELAY_MAX_MS)
