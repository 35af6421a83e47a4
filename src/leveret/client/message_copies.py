"""Copies of deliveries: the message for another queue, with a few more headers.

Delay queues, recoverers and redrive use them. A copy leaves out headers of one publish or one delivery
(`x-seq`, `x-republished`, delivery counts): with `x-seq`, a queue that deduplicates would drop the copy. It
leaves out `CC` and `BCC`, because those queues have their copies, and would hide that this one is unroutable.
It also leaves out the user id, because only that user may send it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, cast

from leveret.amqp.tables import Value
from leveret.client.delivery import CONSUMER_LOST, DELIVERY_COUNT, Delivery
from leveret.client.message import PERSISTENT, PRODUCER, REPUBLISHED, SEQ, Message, Properties

FURTHER_ADDRESSES: Final = ("CC", "BCC")
_LEFT_BEHIND: Final = frozenset(
    (PRODUCER, SEQ, REPUBLISHED, DELIVERY_COUNT, CONSUMER_LOST, *FURTHER_ADDRESSES)
)
_KEPT: Final = (
    "content_type",
    "content_encoding",
    "priority",
    "correlation_id",
    "reply_to",
    "message_id",
    "timestamp",
    "type",
    "app_id",
)


def copy_of(
    delivery: Delivery,
    routing_key: str,
    exchange: str = "",
    *,
    headers: Mapping[str, Value],
    without: Collection[str] = (),
) -> Message:
    """Return a message like the delivery, for another address, without the headers in `without`."""
    originals = delivery.properties
    properties: dict[str, object] = {name: originals[name] for name in _KEPT if name in originals}
    kept = {
        name: value
        for name, value in delivery.headers.items()
        if name not in _LEFT_BEHIND and name not in without
    }
    properties["headers"] = {**kept, **headers}
    properties["persistent"] = originals.get("delivery_mode") == PERSISTENT
    return Message(delivery.body, routing_key, exchange, True, properties=cast(Properties, properties))
