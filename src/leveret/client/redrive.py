"""Bringing messages back: from a parking place, dead letters or a pipeline's rejects to where they failed.

Each message is copied to its queue, without the traces of its failures, and taken off the source after the
copy is confirmed: whatever happens in between, it is in one of the two. Messages that a filter leaves out,
or whose origin nobody knows, stay where they are, in their order. Only what is there at the start is looked
at, so that a message that fails again at once is not moved for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
"""So many are fetched at a time."""
_CONNECT_S: Final = 10.0
_DEATHS: Final = ("x-death", "x-first-death-queue", "x-first-death-reason", "x-first-death-exchange")
_LATER_DEATHS: Final = ("x-last-death-queue", "x-last-death-reason", "x-last-death-exchange")
_ORIGINS: Final = ("x-original-exchange", "x-original-routingKey", ORIGINAL_QUEUE)
REJECT: Final = "x-reject-"
"""How the headers begin that a pipeline gives to what it rejects."""
_REJECTED_IN: Final = f"{REJECT}queue"
_REJECTION: Final = tuple(f"{REJECT}{name}" for name in ("pipeline", "batch", "queue", "offset"))
REJECTED_BEFORE: Final = f"{REJECT}before"
"""Which rejection a message has come back from, so that nobody takes it for the one that was rejected."""
_TRACES: Final = frozenset((*CAUSE_HEADERS, *_DEATHS, *_LATER_DEATHS, *_ORIGINS, ATTEMPTS))
"""What a message forgets when it starts anew."""


@dataclass(slots=True)
class Redriven:
    """How far it is: `found` were there at the start."""

    found: int = 0
    moved: int = 0
    kept: int = 0
    """Left where they are: the filter does not want them, or nobody knows where they belong."""


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
    """Moves messages of the queue `source` back to the queues they came from, or all of them to queue `to`.

    >>> await redrive(connection, "orders.parked", where=lambda message: message.headers["region"] == "eu")
    """
    if rate_per_s is not None and rate_per_s <= 0:
        raise ValueError("the rate is above 0 messages a second")
    session = await connection.connected(_CONNECT_S)
    channel = await session.open_channel()
    try:
        async with Publisher(connection) as publisher:
            round_size = _ROUND if rate_per_s is None else max(1, min(_ROUND, int(rate_per_s / 2)))
            move = _Move(channel, publisher, source, to, where, Redriven(found=await depth(channel, source)))
            try:
                await move.run(limit, round_size, rate_per_s, on_progress)
            finally:
                move.give_back_kept()
            return move.progress
    finally:
        await channel.close()  # what was fetched and is still open goes back to its place


class _Move:
    """One run of it."""

    def __init__(
        self,
        channel: Channel,
        publisher: Publisher,
        source: str,
        to: str | None,
        where: Callable[[Delivery], bool] | None,
        progress: Redriven,
    ) -> None:
        self._channel = channel
        self._publisher = publisher
        self._source = source
        self._to = to
        self._where = where
        self._ledger: Ledger[Delivery] = Ledger(channel, stale=lambda delivery: None)
        self._origin = Source(self._ledger, source, Codecs())
        self.progress = progress
        self._homeless: Receipt | None = None
        """Of the first message whose queue is not there: the others are moved before that is said."""
        self._kept: list[Delivery] = []
        """Looked at and not wanted: they stay in hand, or the next fetch would bring them again."""

    async def run(
        self,
        limit: int | None,
        round_size: int,
        rate_per_s: float | None,
        on_progress: Callable[[Redriven], None] | None,
    ) -> None:
        progress = self.progress
        clock_s = asyncio.get_running_loop().time
        while wanted := self._wanted(limit, round_size):
            started_s = clock_s()
            before = progress.moved
            try:
                if not await self._round(wanted):
                    break
            finally:
                if on_progress is not None:
                    on_progress(progress)
            if rate_per_s is not None and self._wanted(limit, round_size):
                due_s = started_s + (progress.moved - before) / rate_per_s
                await asyncio.sleep(max(0.0, due_s - clock_s()))
        if self._homeless is not None:
            self._homeless.check()

    def give_back_kept(self) -> None:
        """Return what was only looked at to its place, on Leveret without counting an attempt."""
        for delivery in self._kept:
            give_back_untouched(delivery)

    def _wanted(self, limit: int | None, round_size: int) -> int:
        """How many to fetch next."""
        progress = self.progress
        left = progress.found - progress.moved - progress.kept
        return min(round_size, left if limit is None else min(left, limit - progress.moved))

    async def _round(self, wanted: int) -> bool:
        """Fetches so many and moves those that may be; False if there were none."""
        contents = await asyncio.gather(*(self._channel.get(self._source) for _ in range(wanted)))
        fetched = [self._delivery(content) for content in contents if content is not None]
        places = [(delivery, self._place(delivery)) for delivery in fetched]
        moving = [(delivery, place) for delivery, place in places if place is not None]
        self._kept += [delivery for delivery, place in places if place is None]
        self.progress.kept += len(fetched) - len(moving)
        copies = [
            copy_of(delivery, place, headers=_marks(delivery), without=_traces(delivery))
            for delivery, place in moving
        ]
        receipts = await self._publisher.publish_many(copies)
        copied = [
            delivery for (delivery, _), receipt in zip(moving, receipts, strict=True) if receipt.confirmed
        ]
        homeless = [receipt for receipt in receipts if receipt.returned]
        self.progress.kept += len(homeless)
        self._homeless = next(iter(homeless), None) if self._homeless is None else self._homeless
        await self._take_off(copied)
        for receipt in receipts:
            if not receipt.returned:
                receipt.check()
        return bool(fetched)

    async def _take_off(self, copied: list[Delivery]) -> None:
        """Off the source; they are moved when the broker has answered what was asked behind the acks."""
        if not copied:
            return
        sent = [await delivery.ack() for delivery in copied]
        self._ledger.flush()
        if set(sent) != {Settled.SENT}:
            raise ConnectionLost(
                f"the connection was lost: {len(copied)} messages are copied, and still in '{self._source}'",
                hint="move the rest, and look for what is there twice",
            )
        await depth(self._channel, self._source)
        self.progress.moved += len(copied)

    def _place(self, delivery: Delivery) -> str | None:
        """The queue it belongs to; None if it stays."""
        if self._where is not None and not self._where(delivery):
            return None
        return self._to or home(delivery.headers)

    def _delivery(self, content: Content) -> Delivery:
        got = content.method
        assert isinstance(got, commands.Basic.GetOk)
        tag = got.delivery_tag or 0
        self._ledger.came(tag)
        return Delivery(
            self._origin,
            tag,
            exchange=got.exchange or "",
            routing_key=got.routing_key or "",
            redelivered=bool(got.redelivered),
            header=content.header,
            body=content.body,
        )


def _traces(delivery: Delivery) -> frozenset[str]:
    """Those of a group are only so if it failed in one; otherwise they are the message's own."""
    traces = _TRACES | {name for name in delivery.headers if name.startswith(REJECT)}
    if STREAM not in delivery.headers:
        return traces
    return traces | {name for name in delivery.headers if name.startswith((STREAM, GROUP))} | {ERROR}


def _marks(delivery: Delivery) -> dict[str, Value]:
    """What it takes along instead."""
    headers = delivery.headers
    if _REJECTED_IN not in headers:
        return {}
    return {REJECTED_BEFORE: " ".join(str(headers.get(name, "")) for name in _REJECTION)}


def home(headers: Mapping[str, Value]) -> str | None:
    """Where it was rejected, or failed first; a delay queue, where it has only waited, is not that."""
    if origin := headers.get(_REJECTED_IN) or headers.get(ORIGINAL_QUEUE):
        return str(origin)
    deaths = headers.get("x-death")
    known = (
        [each.get("queue") for each in deaths if isinstance(each, dict)] if isinstance(deaths, list) else []
    )
    places = (str(each) for each in (headers.get("x-first-death-queue"), *reversed(known)) if each)
    return next((each for each in places if not is_delay_queue(each)), None)
