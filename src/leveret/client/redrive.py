"""Moving messages back to the queue in which they failed, from parked messages, dead letters or rejects.

Each message is copied to its queue, without the headers of its failures, and acked in the source after the
copy is confirmed. So it is in one of the two queues at every moment. Messages that the filter leaves out, or
whose origin is unknown, stay in the source, in their order. Only messages that are there at the start are
moved, so that one that fails again at once is not moved for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from pamqp import commands

from leveret.amqp.tables import Value
from leveret.client.acks import Ledger, Settled
from leveret.client.channel import Channel, Content
from leveret.client.codecs import Codecs
from leveret.client.connection import Connection
from leveret.client.delivery import ATTEMPTS, GROUP, STREAM, Delivery, Source
from leveret.client.errors import ConnectionLost
from leveret.client.message_copies import copy_of
from leveret.client.passive_checks import depth
from leveret.client.publisher import Publisher
from leveret.client.receipt import Receipt
from leveret.client.recoverers import CAUSE_HEADERS, ORIGINAL_QUEUE
from leveret.client.requeue import ERROR
from leveret.client.retry_delays import give_back_untouched, is_delay_queue

_ROUND: Final = 100
"""Messages that are fetched at a time."""
_CONNECT_S: Final = 10.0
_DEATHS: Final = ("x-death", "x-first-death-queue", "x-first-death-reason", "x-first-death-exchange")
_LATER_DEATHS: Final = ("x-last-death-queue", "x-last-death-reason", "x-last-death-exchange")
_ORIGINS: Final = ("x-original-exchange", "x-original-routingKey", ORIGINAL_QUEUE)
REJECT: Final = "x-reject-"
"""Prefix of the headers that a pipeline adds to the messages it rejects."""
_REJECTED_IN: Final = f"{REJECT}queue"
_REJECTION: Final = tuple(f"{REJECT}{name}" for name in ("pipeline", "batch", "queue", "offset"))
REJECTED_BEFORE: Final = f"{REJECT}before"
"""The rejection that a message has come back from. It tells the message from the rejected one."""
_TRACES: Final = frozenset((*CAUSE_HEADERS, *_DEATHS, *_LATER_DEATHS, *_ORIGINS, ATTEMPTS))
"""Headers of failures, which a message loses when it is moved back."""


@dataclass(slots=True)
class Redriven:
    """Progress of a redrive: `found` messages were in the source at the start."""

    found: int = 0
    moved: int = 0
    kept: int = 0
    """Messages that stay in the source: the filter leaves them out, or their origin is unknown."""


async def redrive(
    connection: Connection,
    source: str,
    *,
    to: str | None = None,
    where: Callable[[Delivery], bool] | None = None,
    limit: int | None = None,
    rate_per_s: float | None = None,
    on_progress: Callable[[Redriven], None] | None = None,
) -> Redriven:
    """Move messages of the queue `source` back to the queues they came from, or all to the queue `to`.

    >>> await redrive(connection, "orders.parked", where=lambda message: message.headers["region"] == "eu")
    """
    if rate_per_s is not None and rate_per_s <= 0:
        raise ValueError(f"rate_per_s must be above 0, not {rate_per_s}")
    session = await connection.connected(_CONNECT_S)
    channel = await session.open_channel()
    try:
        async with Publisher(connection) as publisher:
            round_size = _ROUND if rate_per_s is None else max(1, min(_ROUND, int(rate_per_s / 2)))
            progress = Redriven(found=await depth(channel, source))
            ledger: Ledger[Delivery] = Ledger(channel, stale=lambda delivery: None)
            work = _Redrive(channel, publisher, Source(ledger, source, Codecs()), to, where, progress)
            try:
                await work.run(limit, round_size, rate_per_s, on_progress)
            finally:
                work.give_back_kept()
            return progress
    finally:
        # The broker requeues what was fetched and is unsettled.
        await channel.close()


@dataclass(slots=True)
class _Redrive:
    """One call of `redrive`."""

    channel: Channel
    publisher: Publisher
    source: Source
    to: str | None
    where: Callable[[Delivery], bool] | None
    progress: Redriven
    returned: Receipt | None = None
    """The receipt of the first message whose queue is missing. It raises after the others are moved."""
    kept: list[Delivery] = field(default_factory=list)
    """Messages that are not moved. They stay unacked, or the next fetch would bring them again."""

    async def run(
        self,
        limit: int | None,
        round_size: int,
        rate_per_s: float | None,
        on_progress: Callable[[Redriven], None] | None,
    ) -> None:
        progress = self.progress
        clock_s = asyncio.get_running_loop().time
        while count := self._next_count(limit, round_size):
            started_s = clock_s()
            moved_before = progress.moved
            try:
                if not await self._round(count):
                    break
            finally:
                if on_progress is not None:
                    on_progress(progress)
            if rate_per_s is not None and self._next_count(limit, round_size):
                due_s = started_s + (progress.moved - moved_before) / rate_per_s
                await asyncio.sleep(max(0.0, due_s - clock_s()))
        if self.returned is not None:
            self.returned.check()

    def give_back_kept(self) -> None:
        """Requeue the messages that are not moved. Leveret does not count this as an attempt."""
        for delivery in self.kept:
            give_back_untouched(delivery)

    def _next_count(self, limit: int | None, round_size: int) -> int:
        """Return how many messages to fetch next."""
        progress = self.progress
        remaining = progress.found - progress.moved - progress.kept
        return min(round_size, remaining if limit is None else min(remaining, limit - progress.moved))

    async def _round(self, count: int) -> bool:
        """Fetch messages and move those that may be moved. Return False if there were none."""
        contents = await asyncio.gather(*(self.channel.get(self.source.queue) for _ in range(count)))
        fetched = [self._delivery(content) for content in contents if content is not None]
        targets = [(delivery, self._target(delivery)) for delivery in fetched]
        moving = [(delivery, target) for delivery, target in targets if target is not None]
        self.kept += [delivery for delivery, target in targets if target is None]
        self.progress.kept += len(fetched) - len(moving)
        copies = [
            copy_of(delivery, target, headers=_marks(delivery), without=_traces(delivery))
            for delivery, target in moving
        ]
        receipts = await self.publisher.publish_many(copies)
        copied = [
            delivery for (delivery, _), receipt in zip(moving, receipts, strict=True) if receipt.confirmed
        ]
        returned = [receipt for receipt in receipts if receipt.returned]
        self.progress.kept += len(returned)
        self.returned = self.returned or next(iter(returned), None)
        await self._ack(copied)
        for receipt in receipts:
            if not receipt.returned:
                receipt.check()
        return bool(fetched)

    async def _ack(self, copied: list[Delivery]) -> None:
        """Ack copied messages in the source. The answer to a later question shows that the acks arrived."""
        if not copied:
            return
        results = [await delivery.ack() for delivery in copied]
        self.source.ledger.flush()
        if set(results) != {Settled.SENT}:
            raise ConnectionLost(
                f"the connection was lost: {len(copied)} copied messages are still in '{self.source.queue}'",
                hint="redrive again, and look for duplicates of these messages",
            )
        await depth(self.channel, self.source.queue)
        self.progress.moved += len(copied)

    def _target(self, delivery: Delivery) -> str | None:
        """Return the queue to which a message is moved, or None if it stays."""
        if self.where is not None and not self.where(delivery):
            return None
        return self.to or home(delivery.headers)

    def _delivery(self, content: Content) -> Delivery:
        got = content.method
        assert isinstance(got, commands.Basic.GetOk)
        tag = got.delivery_tag or 0
        self.source.ledger.add(tag)
        return Delivery(
            self.source,
            tag,
            exchange=got.exchange or "",
            routing_key=got.routing_key or "",
            redelivered=bool(got.redelivered),
            header=content.header,
            body=content.body,
        )


def _traces(delivery: Delivery) -> frozenset[str]:
    """Return the headers of a message's failures. A group's headers count only if it failed in a group."""
    traces = _TRACES | {name for name in delivery.headers if name.startswith(REJECT)}
    if STREAM not in delivery.headers:
        return traces
    return traces | {name for name in delivery.headers if name.startswith((STREAM, GROUP))} | {ERROR}


def _marks(delivery: Delivery) -> dict[str, Value]:
    """Return the header that names the rejection a message comes back from, if a pipeline rejected it."""
    headers = delivery.headers
    if _REJECTED_IN not in headers:
        return {}
    return {REJECTED_BEFORE: " ".join(str(headers.get(name, "")) for name in _REJECTION)}


def home(headers: Mapping[str, Value]) -> str | None:
    """Return the queue in which a message was rejected or failed first, or None if it is unknown.

    Delay queues do not count, because a message only waits there.
    """
    if origin := headers.get(_REJECTED_IN) or headers.get(ORIGINAL_QUEUE):
        return str(origin)
    deaths = headers.get("x-death")
    entries = deaths if isinstance(deaths, list) else []
    death_queues = [entry.get("queue") for entry in reversed(entries) if isinstance(entry, dict)]
    queues = [str(name) for name in (headers.get("x-first-death-queue"), *death_queues) if name]
    return next((queue for queue in queues if not is_delay_queue(queue)), None)
