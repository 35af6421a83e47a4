"""The front's end of a channel: what the broker says to a client, for a front to put into its protocol.

Owns the contract only. A front has one class that fulfils it, for each protocol; nothing else of a front is
known to the broker. The rule: an outlet is called in a turn, and neither waits nor calls back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from leveret.broker.errors import BrokerError
from leveret.broker.queues.consumer import Consumer
from leveret.broker.sessions.route import Route


class Deliveries(NamedTuple):
    """A run of deliveries to one consumer, in columns; the tags follow one another from `first_tag` on."""

    first_tag: int
    exchanges: Sequence[bytes]
    keys: Sequence[bytes]
    headers: Sequence[bytes]
    bodies: Sequence[bytes]
    redelivered: Sequence[bool]


class Outlet(Protocol):
    """The front's end of a channel: it says to the client, in its protocol, what the broker says."""

    @property
    def has_room(self) -> bool:
        """Return whether the client takes more deliveries at present."""

    def has_room_for_reply(self, size_bytes: int) -> bool:
        """Return whether the client may be sent one more direct reply, though it has credit for none."""

    def deliver(self, consumer_tag: bytes, run: Deliveries) -> None: ...

    def answer(self, data: bytes) -> None:
        """Send an answer that has waited until it was durable."""

    def confirm(self, last: int, *, nack: bool, multiple: bool) -> None:
        """Confirm the publish with this number; with `multiple`, those before it, too."""

    def return_messages(self, route: Route, contents: Sequence[tuple[bytes, bytes]]) -> None:
        """Give mandatory messages, as headers and bodies, back to their publisher: no queue took them."""

    def cancel(self, consumer: Consumer) -> bool:
        """Tell the client that the broker has ended its consumer; False if the client can't be told."""

    def fail(self, error: BrokerError) -> None:
        """End the channel for a reason that no request of the client gave."""
