"""A route: where publishes to one exchange with one routing key go, as a front remembers it.

Finding a route is left to `publishing.resolve`.
"""

from __future__ import annotations

from typing import NamedTuple

from leveret.broker.exchanges.exchange import Exchange
from leveret.broker.vhosts.destination import Destination


class Route(NamedTuple):
    """Where publishes to one exchange with one routing key go."""

    version: int
    """Of the virtual host: with another one, the route must be found again."""
    exchange: Exchange
    exchange_bytes: bytes
    key: str
    key_bytes: bytes
    mandatory: bool
    keys: tuple[str, ...]
    """The routing key and those of copies."""
    queues: tuple[Destination, ...]
    by_headers: bool
    """Each message must be routed on its own."""
    refusing: bool
    """A queue may refuse messages."""
    durable: bool
    """A queue keeps persistent messages."""
    synced: bool
    """A queue confirms transient messages, too, only when they are on disk: a stream, or one that may have
    stored the message already, whatever it was then."""
