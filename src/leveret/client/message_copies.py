"""Copies of deliveries: the same message for another queue, with a few headers more.

Used where a message leaves its queue through the toolkit: delay queues, recoverers, redrive. What belonged
to one publish or one delivery (`x-seq`, `x-republished`, delivery counts) stays behind: with it a queue
that deduplicates would take the copy for what it has stored already. So do the further addresses (`CC`,
`BCC`), which have theirs, and would hide that the copy went nowhere; and the user id, because only that user
may send it.
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
    """A message like the delivery, for another place; `without` names headers that it does not take along."""
    found = delivery.properties
    said: dict[str, object] = {name: found[name] for name in _KEPT if name in found}
    kept = {
        name: value
        for name, value in delivery.headers.items()
        if name not in _LEFT_BEHIND and name not in without
    }
    said["headers"] = {**kept, **headers}
    said["persistent"] = found.get("delivery_mode") == PERSISTENT
    return Message(delivery.body, routing_key, exchange, True, properties=cast(Properties, said))
