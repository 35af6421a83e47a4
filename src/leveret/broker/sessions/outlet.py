"""The front's end of a channel: the interface through which the broker sends to a client.

Each front implements `Outlet` once for its protocol. The broker knows a front only by its `Outlet`s and
`Peer`s. The rule: an outlet is called within a turn, and neither waits nor calls the broker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from leveret.broker.errors import BrokerError
from leveret.broker.queues.consumer import Consumer
from leveret.broker.sessions.route import Route


class Deliveries(NamedTuple):
    """A run of deliveries to one consumer, in columns; their tags count up from `first_tag`."""

    first_tag: int
    exchanges: Sequence[bytes]
    keys: Sequence[bytes]
    headers: Sequence[bytes]
    bodies: Sequence[bytes]
    redelivered: Sequence[bool]


class Outlet(Protocol):
    """The front's end of a channel: sends deliveries, answers and confirms in the client's protocol."""

    @property
    def has_room(self) -> bool:
        """Return whether the client takes more deliveries at present."""

    def has_room_for_reply(self, size_bytes: int) -> bool:
        """Return whether the client may be sent one more direct reply; direct replies need no credit."""

    def deliver(self, consumer_tag: bytes, run: Deliveries) -> None: ...

    def answer(self, data: bytes) -> None:
        """Send an answer whose changes are durable."""

    def confirm(self, last: int, *, nack: bool, multiple: bool) -> None:
        """Ack or nack the publish with the number `last`; with `multiple`, also all publishes before it."""

    def return_messages(self, route: Route, contents: Sequence[tuple[bytes, bytes]]) -> None:
        """Return unroutable mandatory messages, as headers and bodies, to their publisher."""

    def cancel(self, consumer: Consumer) -> bool:
        """Tell the client that the broker has ended a consumer; return False if the client can't be told."""

    def fail(self, error: BrokerError) -> None:
        """Close the channel for a reason other than a request of the client."""
