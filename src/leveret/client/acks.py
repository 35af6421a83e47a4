"""Acks on their way to the broker: as few frames as possible, and never one for an unsettled delivery.

Tags of a channel are dense and grow by one. Acks below the lowest unsettled tag go out as one ack with
`multiple`, and each ack above it as a frame of its own. The acks of one turn of the event loop are written
together at its end. When the channel ends, so does its ledger: later acks are *stale*, which is counted and
reported, and nothing is written. Begun marks follow the acks, for deliveries that are not settled yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum
from struct import Struct
from typing import Final, Generic, Protocol, TypeVar

from leveret.amqp.frames import END
from leveret.client.channel import Channel
from leveret.client.decisions import Decision
from leveret.client.requeue_frames import begun_frames

_FRAME: Final = Struct(">BHIHHQ?c")
_ACK: Final = 80
_NACK: Final = 120
_NACK_FRAME: Final = Struct(">BHIHHQBc")
_REQUEUE: Final = 2
_MARK_EVERY_S: Final = 0.001


class Settled(Enum):
    """The result of an ack, a nack or a reject."""

    SENT = "sent"
    STALE = "stale"
    """The delivery's channel has ended. The broker delivers the message again."""
    TWICE = "twice"
    """The delivery was settled before."""
    NOT_NEEDED = "not needed"
    """The broker settled the delivery when it sent it (ack="none")."""


class Settleable(Protocol):
    """The attributes of a delivery that its ledger uses."""

    tag: int
    settled: bool
    reminder: asyncio.TimerHandle | None


D = TypeVar("D", bound=Settleable)


class Ledger(Generic[D]):
    """The unsettled deliveries of one channel, and acks to be written: `ledger.ack(delivery)`."""

    def __init__(self, channel: Channel, *, stale: Callable[[D], None], no_ack: bool = False) -> None:
        """`stale` is called with deliveries that are settled after their channel has ended."""
        self._channel = channel
        self._stale = stale
        self._no_ack = no_ack
        self._open: set[int] = set()
        """Unsettled tags. The prefetch bounds their number."""
        self._low = self._next = 1
        """All tags below `_low` are settled. All tags below `_next` have been delivered."""
        self._acked: set[int] = set()
        """Tags whose ack is to be written."""
        self._begun: list[int] = []
        """Tags whose begun mark is to be written."""
        self._marked_s = 0.0
        """When marks were last written without waiting for the end of the turn."""
        self._due = False
        """Whether `flush` is called at the end of the turn."""

    @property
    def channel(self) -> Channel:
        return self._channel

    @property
    def broker_counts(self) -> bool:
        """Whether the broker counts attempts. Others count deliveries, also those that no handler saw."""
        return self._channel.session.is_leveret

    @property
    def alive(self) -> bool:
        return self._channel.open

    def add(self, tag: int) -> None:
        """Enter the tag of a new delivery."""
        if not self._no_ack:
            self._open.add(tag)
            self._next = tag + 1

    def settle(self, delivery: D, decision: Decision) -> Settled:
        if decision is Decision.ACK:
            return self.ack(delivery)
        return self.nack(delivery, requeue=decision is Decision.REQUEUE)

    def ack(self, delivery: D) -> Settled:
        if (refusal := self._cross_off(delivery)) is not None:
            return refusal
        self._acked.add(delivery.tag)
        self._flush_soon()
        return Settled.SENT

    def begin(self, delivery: D) -> None:
        """Note that a handler begins with the delivery, which the broker counts as an attempt."""
        self._begun.append(delivery.tag)
        self._flush_soon()

    def write_marks(self, *, at_once: bool) -> None:
        """Write the begun marks before this returns if `at_once`, or if the last time was not just now."""
        now_s = asyncio.get_running_loop().time()
        if at_once or now_s - self._marked_s >= _MARK_EVERY_S:
            self._marked_s = now_s
            self.flush()
            self._channel.session.flush()

    def nack(self, delivery: D, *, requeue: bool) -> Settled:
        if (refusal := self._cross_off(delivery)) is not None:
            return refusal
        bits = _REQUEUE if requeue else 0
        number = self._channel.number
        self._channel.session.send(_NACK_FRAME.pack(1, number, 13, 60, _NACK, delivery.tag, bits, END))
        return Settled.SENT

    def settled_otherwise(self, delivery: D) -> Settled:
        """Cross off a delivery that the caller gives back by other means than a nack."""
        return self._cross_off(delivery) or Settled.SENT

    def _cross_off(self, delivery: D) -> Settled | None:
        """Mark a delivery as settled. Return None, or why there is nothing to be sent."""
        if delivery.settled:
            return Settled.TWICE
        delivery.settled = True
        if delivery.reminder is not None:
            delivery.reminder.cancel()
            delivery.reminder = None
        if self._no_ack:
            return Settled.NOT_NEEDED
        if not self._channel.open:
            self._stale(delivery)
            return Settled.STALE
        self._open.discard(delivery.tag)
        return None

    def _flush_soon(self) -> None:
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        """Write the acks and the begun marks that are due, in one write."""
        self._due = False
        if not self._channel.open:
            return
        low, opened = self._low, self._open
        while low < self._next and low not in opened:
            low += 1
        self._low = low
        through = max((tag for tag in self._acked if tag < low), default=0)
        number = self._channel.number
        pieces = []
        if through:
            pieces.append(_FRAME.pack(1, number, 13, 60, _ACK, through, True, END))
        above = sorted(tag for tag in self._acked if tag > low) if len(self._acked) > 1 or not through else ()
        pieces += (_FRAME.pack(1, number, 13, 60, _ACK, tag, False, END) for tag in above)
        self._acked.clear()
        pieces += (begun_frames(number, tag) for tag in self._begun if tag in opened)
        self._begun.clear()
        if pieces:
            self._channel.session.send(b"".join(pieces))
