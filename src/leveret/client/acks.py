"""Acks on their way to the broker: as few frames as possible, and never one for what is not done.

Tags of a channel are dense and grow by one. What is done below the lowest tag that is not goes out as one
ack with `multiple`; what is done above a hole is acked by itself. Everything that is settled in one turn of
the event loop goes out together at its end. When the channel ends, so does its ledger: acks that come later
are *stale*, counted and reported, and nothing is written. The marks of what has begun leave with the acks:
behind them, and only for what is not done.
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
    """What came of an ack, a nack or a reject."""

    SENT = "sent"
    STALE = "stale"
    """The channel it came on has ended; the broker delivers it again."""
    TWICE = "twice"
    """It was settled before."""
    NOT_NEEDED = "not needed"
    """It was settled when it was delivered (ack="none")."""


class Settleable(Protocol):
    """A delivery, as far as its ledger looks at it."""

    tag: int
    settled: bool
    reminder: asyncio.TimerHandle | None


D = TypeVar("D", bound=Settleable)


class Ledger(Generic[D]):
    """What is settled of one channel's deliveries: `ledger.ack(delivery)`."""

    def __init__(self, channel: Channel, *, stale: Callable[[D], None], no_ack: bool = False) -> None:
        """`stale` is told of deliveries that are settled too late."""
        self._channel = channel
        self._stale = stale
        self._no_ack = no_ack
        self._open: set[int] = set()
        """Tags that are not settled: no more than the broker may send unacked."""
        self._low = self._next = 1
        """Below the first all are settled, below the second all have come."""
        self._acked: set[int] = set()
        """Done, and not yet said."""
        self._begun: list[int] = []
        """Begun, and not yet said."""
        self._marked_s = 0.0
        """When marks were last written without waiting for the end of the turn."""
        self._due = False

    @property
    def channel(self) -> Channel:
        return self._channel

    @property
    def broker_counts(self) -> bool:
        """Whether the broker counts attempts; others count deliveries, also those that no handler saw."""
        return self._channel.session.is_leveret

    @property
    def alive(self) -> bool:
        return self._channel.open

    def came(self, tag: int) -> None:
        """There is a delivery with this tag."""
        if not self._no_ack:
            self._open.add(tag)
            self._next = tag + 1

    def settle(self, delivery: D, decision: Decision) -> Settled:
        if decision is Decision.ACK:
            return self.ack(delivery)
        return self.nack(delivery, requeue=decision is Decision.REQUEUE)

    def ack(self, delivery: D) -> Settled:
        if (wrong := self._taken(delivery)) is not None:
            return wrong
        self._acked.add(delivery.tag)
        self._flush_soon()
        return Settled.SENT

    def begin(self, delivery: D) -> None:
        """A handler begins with the delivery, and the broker counts that."""
        self._begun.append(delivery.tag)
        self._flush_soon()

    def write_marks(self, *, at_once: bool) -> None:
        """Writes what has begun before this returns, if that is asked for, or was not done lately."""
        now_s = asyncio.get_running_loop().time()
        if at_once or now_s - self._marked_s >= _MARK_EVERY_S:
            self._marked_s = now_s
            self.flush()
            self._channel.session.flush()

    def nack(self, delivery: D, *, requeue: bool) -> Settled:
        if (wrong := self._taken(delivery)) is not None:
            return wrong
        bits = _REQUEUE if requeue else 0
        number = self._channel.number
        self._channel.session.send(_NACK_FRAME.pack(1, number, 13, 60, _NACK, delivery.tag, bits, END))
        return Settled.SENT

    def settled_otherwise(self, delivery: D) -> Settled:
        """The delivery goes back by other means than a nack: it is only crossed off here."""
        return self._taken(delivery) or Settled.SENT

    def _taken(self, delivery: D) -> Settled | None:
        """Marks it as settled; says why it can't be, if it can't."""
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
        """Write the acks and the begun marks that are due, in one piece."""
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
