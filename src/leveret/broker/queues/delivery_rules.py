"""What a deliverer does not decide by itself: the rules of the queue, or of the group, that has it.

Owns the contract. Whoever has no other rule inherits the one that is here: nothing is held back, nothing
expires, a message that comes back goes to its place at once, and leaves nothing when it dies.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from leveret.broker.queues.consumer import Consumer, Wish
from leveret.broker.queues.consumer_turns import in_turns
from leveret.broker.queues.death_headers import Reason
from leveret.broker.vhosts.destination import Destination
from leveret.storage.records import Message, Record


class ReturnSettings(Protocol):
    """What is set of messages that come back."""

    @property
    def delivery_limit(self) -> int | None:
        """How often a message may come back; None for no limit."""

    @property
    def delays_returns(self) -> bool:
        """Whether a plain requeue waits before it comes again."""

    @property
    def timeout_action(self) -> str:
        """What becomes of a delivery whose deadline has passed."""

    def retry_delay_after(self, returns: int) -> int:
        """Return how many milliseconds a message waits that has come back so often before."""


class DeliveryRules:
    """Subclasses override what differs; `settings` and `wake` are always their own."""

    lost_reason = b"its consumer was lost"
    """Why a message came back that a consumer had begun with, and said no more about."""

    @property
    def settings(self) -> ReturnSettings:
        raise NotImplementedError

    # turns

    def wake(self) -> None:
        """Something changed that may let messages move."""
        raise NotImplementedError

    def before_turn(self) -> None:
        """A turn begins: nothing is handed out yet."""

    @property
    def is_open(self) -> bool:
        """Whether consumers are served at present."""
        return True

    def after_turn(self) -> None:
        """Consumers have had what they had credit for."""

    # consumers

    def room_again(self) -> None:
        """A consumer has settled something: there may be credit for more."""

    def consumer_left(self) -> None:
        """A consumer is gone."""

    def shares(
        self, chosen: Sequence[tuple[Consumer, int]], records: Sequence[Record]
    ) -> Iterable[tuple[Consumer, Sequence[Record]]]:
        """Return who gets which of the records; there is credit for all of them."""
        shared = len({consumer.channel for consumer, _ in chosen}) < len(chosen)
        return in_turns(chosen, records, whole=not shared)

    # which messages are handed out, and how they look

    def reach(self, count: int) -> tuple[int, int | None]:
        """Return how many of the next `count` messages may be taken, and below which offset; None for any."""
        return count, None

    @property
    def awaits_sync(self) -> bool:
        """Whether more can be taken once something is synced."""
        return False

    def living(self, records: list[Record]) -> list[Record]:
        """Bury those of the records just taken that are dead; return the others."""
        return records

    def looks_at(self, count: int) -> bool:
        """Return whether a rule must look at the next so many messages when they are taken."""
        return False

    def headers(self, records: Sequence[Record], plain: tuple[bytes, ...]) -> Sequence[bytes]:
        """Return the content headers as consumers see them; `plain` is as they were published."""
        return plain

    # what comes back, and what dies

    def why(self, wish: Wish | None, *, delayed: bool, late: bool) -> bytes:
        """Return the reason that is written down for messages that come back, if any."""
        if wish is not None and wish.lost:
            return self.lost_reason if wish.counted else b""
        return b"no answer in time" if late else b""

    def stale(self, count: int) -> None:
        """So many settlements came too late, and had no effect."""

    def has_letters(self) -> bool:
        """Return whether messages that die may leave something."""
        return False

    def letters(
        self, record: Record, reason: Reason, *, why: bytes, tried: bool
    ) -> Sequence[tuple[Destination, Message]]:
        """Return what a message leaves, and where; `tried` if it was delivered just now."""
        return ()
