"""The rules of a queue or of a group's partition that a deliverer asks before it acts.

Owns the contract and the defaults. By default no message is held back or expires, a requeued message is ready
at once, and a message that dies leaves no dead letter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from leveret.broker.queues.consumer import Consumer, Wish
from leveret.broker.queues.consumer_turns import share_in_turns
from leveret.broker.queues.death_headers import Reason
from leveret.broker.vhosts.destination import Destination
from leveret.storage.records import Message, Record


class ReturnSettings(Protocol):
    """Settings that apply to messages that come back."""

    @property
    def delivery_limit(self) -> int | None:
        """How often a message may be requeued; None for no limit."""

    @property
    def delays_returns(self) -> bool:
        """Whether messages requeued by `basic.nack` or `basic.reject` wait for the retry delay."""

    @property
    def timeout_action(self) -> str:
        """What happens to a delivery after its deadline: `cancel`, `retry` or `dead-letter`."""

    def retry_delay_after(self, returns: int) -> int:
        """Return the retry delay in milliseconds of a message that was requeued `returns` times before."""


class DeliveryRules:
    """Subclasses override what differs from the defaults, and always `settings` and `wake`."""

    lost_reason = b"its consumer was lost"
    """Reason noted for a message whose consumer had begun with it and was lost before it settled it."""

    @property
    def settings(self) -> ReturnSettings:
        raise NotImplementedError

    # turns

    def wake(self) -> None:
        """Schedule a run of the deliverer."""
        raise NotImplementedError

    def before_turn(self) -> None:
        """Do what is due before messages are delivered in this turn."""

    @property
    def is_open(self) -> bool:
        """Whether messages may be delivered to consumers at present."""
        return True

    def after_turn(self) -> None:
        """Do what is due after messages were delivered in this turn."""

    # consumers

    def room_again(self) -> None:
        """React to a settlement: a consumer may have credit again."""

    def consumer_left(self) -> None:
        """React to the removal of a consumer."""

    def shares(
        self, chosen: Sequence[tuple[Consumer, int]], records: Sequence[Record]
    ) -> Iterable[tuple[Consumer, Sequence[Record]]]:
        """Return which consumer gets which records; their credit is enough for all records."""
        shared = len({consumer.channel for consumer, _ in chosen}) < len(chosen)
        return share_in_turns(chosen, records, whole=not shared)

    # which messages are delivered, and with which headers

    def reach(self, count: int) -> tuple[int, int | None]:
        """Return how many of the next `count` messages may be taken, and an offset they must be below."""
        return count, None

    @property
    def awaits_sync(self) -> bool:
        """Whether more messages can be taken after the next sync."""
        return False

    def deliverable(self, records: list[Record]) -> list[Record]:
        """Dead-letter expired records among those just taken; return the others."""
        return records

    def must_inspect(self, count: int) -> bool:
        """Return whether a rule must look at each of the next `count` messages when they are taken."""
        return False

    def headers(self, records: Sequence[Record], plain: tuple[bytes, ...]) -> Sequence[bytes]:
        """Return the content headers for delivery; `plain` holds the headers as published."""
        return plain

    # requeues and dead letters

    def why(self, wish: Wish | None, *, delayed: bool, late: bool) -> bytes:
        """Return the reason to note for requeued messages, or an empty string."""
        if wish is not None and wish.lost:
            return self.lost_reason if wish.counted else b""
        return b"no answer in time" if late else b""

    def count_late_settlements(self, count: int) -> None:
        """Count settlements that came too late and had no effect."""

    def leaves_dead_letters(self) -> bool:
        """Return whether messages that die may leave a dead letter."""
        return False

    def dead_letters_of(
        self, record: Record, reason: Reason, *, why: bytes, attempted: bool
    ) -> Sequence[tuple[Destination, Message]]:
        """Return the dead letters of a message with their destinations; `attempted` if just delivered."""
        return ()
