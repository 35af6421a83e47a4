"""Topics: an exchange that spreads messages over streams by their keys, seen as one thing.

There is nothing more to a topic than that: an `x-consistent-hash` exchange with streams bound to it, so that
any AMQP client can make one and publish to it. `create` makes the exchange, and streams called after it and
their number. The partitions of a topic are in the natural order of their names (`orders-2` before
`orders-10`), whatever the order in which they were bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.broker.arguments import check_equivalent, declared_settings
from leveret.broker.canonical import Value
from leveret.broker.errors import NotFound, PreconditionFailed
from leveret.broker.exchanges.consistent_hash import ConsistentHashRouter
from leveret.broker.streams.stream import Stream

if TYPE_CHECKING:
    from leveret.broker.exchange import Exchange
    from leveret.broker.vhost import VirtualHost

TYPE: Final = "x-consistent-hash"
PARTITIONS_MAX: Final = 1024


def streams_of(vhost: VirtualHost, subject: str) -> list[Stream]:
    """What a group on this name reads: the stream, or the streams of the topic."""
    stream, queue = vhost.streams.get(subject), vhost.queues.get(subject)
    if stream is not None:
        return [stream]
    found = partitions(vhost, subject)
    if found:
        return found
    if queue is not None:
        raise PreconditionFailed(f"{queue} is no stream: groups read streams and topics")
    raise NotFound(f"no stream or topic '{subject}' in vhost '{vhost.name}'")


def partitions(vhost: VirtualHost, name: str) -> list[Stream]:
    """Those of a topic, in order; none for an exchange that is no topic."""
    exchange = vhost.exchanges.get(name)
    if exchange is None or not isinstance(exchange.router, ConsistentHashRouter):
        return []
    bound = ((each, vhost.streams.get(each.name)) for each in exchange.router.partitions)
    return [stream for each, stream in bound if stream is not None and stream is each]


def all_topics(vhost: VirtualHost) -> dict[str, list[Stream]]:
    found = {name: partitions(vhost, name) for name in vhost.exchanges}
    return {name: streams for name, streams in found.items() if streams}


def create(vhost: VirtualHost, name: str, *, count: int, table: dict[str, Value]) -> int:
    """A topic with so many partitions, or more of them for one that is there.

    `table` are the arguments of each stream. Returns the number of the definition change to wait for.
    """
    if not 1 <= count <= PARTITIONS_MAX:
        raise PreconditionFailed(f"a topic has 1 to {PARTITIONS_MAX} partitions, not {count}")
    exchange = vhost.exchanges.get(name)
    present = partitions(vhost, name)
    _check_exchange(vhost, name, exchange, count=count)
    table = {**table, "x-queue-type": "stream"}
    kept_bytes = table.get("x-max-length-bytes", 0)
    if isinstance(kept_bytes, int) and kept_bytes.bit_length() > 63:
        raise PreconditionFailed(f"a topic can't keep {kept_bytes} bytes: that is no number of 64 bits")
    names = [f"{name}-{number}" for number in range(count)]
    others = [stream.name for stream in present if stream.name not in names]
    if others:
        raise PreconditionFailed(
            f"'{others[0]}' is a partition of topic '{name}' in vhost '{vhost.name}': it can grow only by "
            "binding further streams"
        )
    taken = [each for each in names if each in vhost.queues and each not in vhost.streams]
    if taken:
        raise PreconditionFailed(f"{vhost.queues[taken[0]]} is no stream")
    for each in [each for each in names if each in vhost.queues]:
        if vhost.queues[each] not in present:
            check_equivalent(vhost.queues[each].table, table, kind="queue", name=each, vhost=vhost.name)
    wanted = {each: declared_settings(table, queue=each, vhost=vhost.name) for each in names}
    if exchange is None:
        exchange = vhost.add_exchange(name, TYPE, durable=True, auto_delete=False, internal=False, table={})
    defined = exchange.defined
    for each, declared in wanted.items():
        queue = vhost.queues.get(each) or vhost.add_queue(
            each, durable=True, auto_delete=False, owner=None, table=table, declared=declared
        )
        if queue not in present:
            defined = max(defined, vhost.bind(exchange, queue, "1", {}))
    return defined


def _check_exchange(vhost: VirtualHost, name: str, exchange: Exchange | None, *, count: int) -> None:
    """Raise if this exchange, or a queue of this name, keeps a topic from having `count` partitions."""
    if name in vhost.queues:
        raise PreconditionFailed(f"{vhost.queues[name]} exists: a topic can't have its name")
    if exchange is None:
        return
    if exchange.type != TYPE:
        raise PreconditionFailed(f"{vhost.describe(exchange)} is of type '{exchange.type}', not '{TYPE}'")
    present = len(partitions(vhost, name))
    if count < present:
        raise PreconditionFailed(
            f"topic '{name}' in vhost '{vhost.name}' has {present} partitions: they can't become fewer"
        )
    if exchange.auto_delete or exchange.internal or not exchange.durable:
        raise PreconditionFailed(f"{vhost.describe(exchange)} does not last: a topic needs one that does")


def delete(vhost: VirtualHost, name: str) -> int:
    """The exchange, its streams and all that is in them; its groups must be gone."""
    exchange = vhost.exchanges.get(name)
    found = partitions(vhost, name)
    if exchange is None or not found:
        raise NotFound(f"no topic '{name}' in vhost '{vhost.name}'")
    vhost.groups.check_unread(name)
    defined = vhost.delete_exchange(exchange)
    for stream in found:
        defined = max(defined, vhost.delete_queue(stream))
    return defined
