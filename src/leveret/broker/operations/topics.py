"""Operations on topics: create them, add partitions, delete them.

`groups.topics` defines what a topic is. The streams of a topic are named `<topic>-<number>`. A user needs the
permissions that the declarations need over AMQP: configure for the exchange and the streams and, to bind
them, read for the exchange and write for the streams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from leveret.broker.access.accounts import User
from leveret.broker.broker import Broker
from leveret.broker.canonical import Value
from leveret.broker.errors import NotFound, PreconditionFailed
from leveret.broker.exchanges.exchange import Exchange
from leveret.broker.groups import topics
from leveret.broker.queues import arguments
from leveret.broker.streams.stream import Stream
from leveret.broker.usage_limits import check_queue_limit
from leveret.broker.vhosts.reserved_names import check_not_default, check_not_reserved, cleaned
from leveret.broker.vhosts.vhost import VirtualHost

PARTITIONS_MAX: Final = 1024
_NAME_BYTES_MAX: Final = 250
"""Leaves room for a partition's number in a stream's name, which has at most 255 bytes."""


def put(
    broker: Broker,
    user: User,
    vhost: str,
    name: str,
    *,
    count: int | None,
    max_age: str | None,
    max_bytes: int | None,
    begin: Callable[[], None],
) -> tuple[str, bool]:
    """Create a topic, or add partitions to one; with None, `count` and limits stay as they are.

    Return the topic's name without line ends, and whether the topic is new.
    """
    host = broker.vhosts[vhost]
    name = _checked(name)
    retention = {"x-max-age": max_age, "x-max-length-bytes": max_bytes}
    table: dict[str, Any] = {argument: value for argument, value in retention.items() if value is not None}
    present = topics.partitions(host, name)
    if count is None:
        count = max(1, len(present))
    if present:
        table = {**present[0].table, **table}
        arguments.check_equivalent(present[0].table, table, kind="queue", name=present[0].name, vhost=vhost)
    names = [f"{name}-{number}" for number in range(min(count, PARTITIONS_MAX))]
    _check_permissions(user, vhost, name, names, binding=True)
    check_queue_limit(broker, host, *(stream for stream in names if stream not in host.queues))
    begin()
    _create(host, name, count=count, table=table)
    return name, not present


def delete(broker: Broker, user: User, vhost: str, name: str, *, begin: Callable[[], None]) -> None:
    """Delete a topic's exchange and streams with their messages; no group may read the topic any more."""
    host = broker.vhosts[vhost]
    streams = topics.partitions(host, name)
    if not streams:
        raise NotFound(f"no topic '{name}' in vhost '{vhost}'")
    check_not_reserved("exchange", name)
    _check_permissions(user, vhost, name, [stream.name for stream in streams], binding=False)
    begin()
    broker.flush()
    host.groups.check_unread(name)
    host.delete_exchange(host.exchanges[name])
    for stream in streams:
        host.delete_queue(stream)


def _checked(name: str) -> str:
    """Return a topic's name without line ends; raise if it is reserved or too long."""
    check_not_default(cleaned(name))
    check_not_reserved("exchange", name)
    size = len(name.encode("utf-8", "surrogateescape"))
    if size > _NAME_BYTES_MAX:
        raise PreconditionFailed(f"A topic's name has at most {_NAME_BYTES_MAX} bytes, not {size}.")
    return cleaned(name)


def _check_permissions(user: User, vhost: str, name: str, streams: Iterable[str], *, binding: bool) -> None:
    user.check("configure", vhost, "exchange", name)
    if binding:
        user.check("read", vhost, "exchange", name)
    for stream in streams:
        user.check("configure", vhost, "queue", stream)
        if binding:
            user.check("write", vhost, "queue", stream)


def _create(vhost: VirtualHost, name: str, *, count: int, table: dict[str, Value]) -> None:
    """Create a topic with `count` partitions, or add missing ones; `table` has each stream's arguments."""
    if not 1 <= count <= PARTITIONS_MAX:
        raise PreconditionFailed(f"a topic has 1 to {PARTITIONS_MAX} partitions, not {count}")
    exchange = vhost.exchanges.get(name)
    present = topics.partitions(vhost, name)
    _check_exchange(vhost, name, exchange, count=count)
    table = {**table, "x-queue-type": "stream"}
    kept_bytes = table.get("x-max-length-bytes", 0)
    if isinstance(kept_bytes, int) and kept_bytes.bit_length() > 63:
        raise PreconditionFailed(f"a topic can't keep {kept_bytes} bytes: the number exceeds 63 bits")
    names = [f"{name}-{number}" for number in range(count)]
    _check_names(vhost, name, names, present)
    for queue in [vhost.queues[stream] for stream in names if stream in vhost.queues]:
        if queue not in present:
            arguments.check_equivalent(queue.table, table, kind="queue", name=queue.name, vhost=vhost.name)
    settings = {
        stream: arguments.declared_settings(table, queue=stream, vhost=vhost.name) for stream in names
    }
    if exchange is None:
        exchange = vhost.add_exchange(
            name, topics.TYPE, durable=True, auto_delete=False, internal=False, table={}
        )
    for stream, declared in settings.items():
        queue = vhost.queues.get(stream) or vhost.add_queue(
            stream, durable=True, auto_delete=False, owner=None, table=table, declared=declared
        )
        if queue not in present:
            vhost.bind(exchange, queue, "1", {})


def _check_names(vhost: VirtualHost, name: str, names: Sequence[str], present: Sequence[Stream]) -> None:
    """Raise if the partitions of this topic can't have these names."""
    others = [stream.name for stream in present if stream.name not in names]
    if others:
        raise PreconditionFailed(
            f"'{others[0]}' is a partition of topic '{name}' in vhost '{vhost.name}': it can grow only by "
            "binding further streams"
        )
    taken = [queue for queue in names if queue in vhost.queues and queue not in vhost.streams]
    if taken:
        raise PreconditionFailed(f"{vhost.queues[taken[0]]} is no stream")


def _check_exchange(vhost: VirtualHost, name: str, exchange: Exchange | None, *, count: int) -> None:
    """Raise unless the name is free or its exchange can be a topic with `count` partitions."""
    if name in vhost.queues:
        raise PreconditionFailed(f"{vhost.queues[name]} exists: a topic can't have its name")
    if exchange is None:
        return
    if exchange.type != topics.TYPE:
        raise PreconditionFailed(
            f"{vhost.describe(exchange)} is of type '{exchange.type}', not '{topics.TYPE}'"
        )
    present = len(topics.partitions(vhost, name))
    if count < present:
        raise PreconditionFailed(
            f"topic '{name}' in vhost '{vhost.name}' has {present} partitions: they can't become fewer"
        )
    if exchange.auto_delete or exchange.internal or not exchange.durable:
        raise PreconditionFailed(
            f"{vhost.describe(exchange)} can't be a topic: it must be durable, not auto-delete, not internal"
        )
