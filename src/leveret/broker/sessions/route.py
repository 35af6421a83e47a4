"""A route: the destinations of publishes to one exchange with one routing key.

`publishing.resolve` makes routes; fronts cache them.
"""

from __future__ import annotations

from typing import NamedTuple

from leveret.broker.exchanges.exchange import Exchange
from leveret.broker.vhosts.destination import Destination


class Route(NamedTuple):
    """The destinations of publishes to one exchange with one routing key."""

    version: int
    """Version of the virtual host's topology; the route is valid only for this version."""
    exchange: Exchange
    exchange_bytes: bytes
    key: str
    key_bytes: bytes
    mandatory: bool
    by_headers: bool
    """Whether each message must be routed on its own."""
    keys: tuple[str, ...] = ()
    """The routing key and the keys of CC and BCC copies."""
    queues: tuple[Destination, ...] = ()
    refusing: bool = False
    """Whether a queue may refuse messages."""
    durable: bool = False
    """Whether a queue keeps persistent messages."""
    synced: bool = False
    """Whether a queue confirms even transient messages only after a sync: a stream or a queue with
    deduplication."""
