"""Topics: an exchange that spreads messages over streams by routing key.

`topic` declares a topic, as part of a topology. To publish, name it as the exchange:
`publisher.publish(order, customer, exchange="orders")`. Messages with the same routing key are in one
partition, in their order. With `partition`, the caller chooses the partition. Groups that read a topic are
left to `App.group_listener`.
"""

from __future__ import annotations

from typing import Final

from leveret.amqp.tables import Value
from leveret.client.declarations import Binding, Exchange, Queue
from leveret.client.topology import Topology

PARTITIONS_MAX: Final = 1024
_TYPE: Final = "x-consistent-hash"
_WEIGHT: Final = "1"


def topic(
    name: str, *, partitions: int, max_age: str | None = None, max_bytes: int | None = None
) -> Topology:
    """Declare a topic. Each partition keeps messages up to `max_age` (`7D`) or `max_bytes`.

    >>> topology = Topology(topic("orders", partitions=8, max_age="7D"))
    """
    if isinstance(partitions, bool) or not 1 <= partitions <= PARTITIONS_MAX:
        raise ValueError(f"a topic has 1 to {PARTITIONS_MAX} partitions, not {partitions!r}")
    arguments: dict[str, Value] = {} if max_age is None else {"x-max-age": max_age}
    streams = [
        Queue(partition(name, number), type="stream", max_length_bytes=max_bytes, arguments=arguments)
        for number in range(partitions)
    ]
    bindings = [Binding(name, stream.name, _WEIGHT) for stream in streams]
    return Topology(Exchange(name, _TYPE), *streams, *bindings)


def partition(topic: str, number: int) -> str:
    """Return the name of the stream that is this partition of a topic. Publish to it like to a queue.

    >>> await publisher.publish(order, partition("orders", 3))
    """
    if isinstance(number, bool) or not 0 <= number < PARTITIONS_MAX:
        raise ValueError(f"a partition is a number from 0 to {PARTITIONS_MAX - 1}, not {number!r}")
    return f"{topic}-{number}"
