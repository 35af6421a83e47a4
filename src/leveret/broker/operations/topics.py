"""Topics by hand: making them, giving them more partitions, deleting them.

A topic that is made has streams called after it and their number. What a topic is, `groups.topics` says.
Rights are those that the same declarations need over AMQP: to configure the exchange and the streams, to read
the one and write the others for the bindings.
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
from leveret.broker.vhosts.reserved_names import check_not_default, check_not_reserved, cleaned
from leveret.broker.vhosts.vhost import VirtualHost

PARTITIONS_MAX: Final = 1024
_NAME_BYTES_MAX: Final = 250
"""Partitions have a number behind the name, and 255 bytes in all."""


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
    """Make a topic, or give one more partitions; None keeps what is there.

    Return the name that it has, and whether it is new.
    """
    host = broker.vhosts[vhost]
    name = _checked(name)
    given = {"x-max-age": max_age, "x-max-length-bytes": max_bytes}
    table: dict[str, Any] = {argument: value for argument, value in given.items() if value is not None}
    present = topics.partitions(host, name)
    if count is None:
        count = max(1, len(present))
    if present:
        table = {**present[0].table, **table}
        same = {"kind": "queue", "name": present[0].name, "vhost": vhost}
        arguments.check_equivalent(present[0].table, table, **same)
    names = [f"{name}-{number}" for number in range(min(count, PARTITIONS_MAX))]
    _check_rights(user, vhost, name, names, binding=True)
    begin()
    _create(host, name, count=count, table=table)
    return name, not present


def delete(broker: Broker, user: User, vhost: str, name: str, *, begin: Callable[[], None]) -> None:
    """Delete the exchange and its streams with all that is in them; groups that read it must be gone."""
    host = broker.vhosts[vhost]
    streams = topics.partitions(host, name)
    if not streams:
        raise NotFound(f"no topic '{name}' in vhost '{vhost}'")
    check_not_reserved("exchange", name)
    _check_rights(user, vhost, name, [stream.name for stream in streams], binding=False)
    begin()
    broker.flush()
    host.groups.check_unread(name)
    host.delete_exchange(host.exchanges[name])
    for stream in streams:
        host.delete_queue(stream)


def _checked(name: str) -> str:
    """The name as AMQP would have it of an exchange, with room for the numbers."""
    check_not_default(cleaned(name))
    check_not_reserved("exchange", name)
    size = len(name.encode("utf-8", "surrogateescape"))
    if size > _NAME_BYTES_MAX:
        raise PreconditionFailed(f"A topic's name has at most {_NAME_BYTES_MAX} bytes, not {size}.")
    return cleaned(name)


def _check_rights(user: User, vhost: str, name: str, streams: Iterable[str], *, binding: bool) -> None:
    user.check("configure", vhost, "exchange", name)
    if binding:
        user.check("read", vhost, "exchange", name)
    for stream in streams:
        user.check("configure", vhost, "queue", stream)
        if binding:
            user.check("write", vhost, "queue", stream)


def _create(vhost: VirtualHost, name: str, *, count: int, table: dict[str, Value]) -> None:
    """Make a topic with so many partitions, or more of them for one that exists.

    `table` are the arguments of each stream.
    """
    if not 1 <= count <= PARTITIONS_MAX:
        raise PreconditionFailed(f"a topic has 1 to {PARTITIONS_MAX} partitions, not {count}")
    exchange = vhost.exchanges.get(name)
    present = topics.partitions(vhost, name)
    _check_exchange(vhost, name, exchange, count=count)
    table = {**table, "x-queue-type": "stream"}
    kept_bytes = table.get("x-max-length-bytes", 0)
    if isinstance(kept_bytes, int) and kept_bytes.bit_length() > 63:
        raise PreconditionFailed(f"a topic can't keep {kept_bytes} bytes: that is no number of 64 bits")
    names = [f"{name}-{number}" for number in range(count)]
    _check_names(vhost, name, names, present)
    for queue in [vhost.queues[each] for each in names if each in vhost.queues]:
        if queue not in present:
            same = {"kind": "queue", "name": queue.name, "vhost": vhost.name}
            arguments.check_equivalent(queue.table, table, **same)
    wanted = {each: arguments.declared_settings(table, queue=each, vhost=vhost.name) for each in names}
    if exchange is None:
        exchange = vhost.add_exchange(
            name, topics.TYPE, durable=True, auto_delete=False, internal=False, table={}
        )
    for each, declared in wanted.items():
        queue = vhost.queues.get(each) or vhost.add_queue(
            each, durable=True, auto_delete=False, owner=None, table=table, declared=declared
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
    taken = [each for each in names if each in vhost.queues and each not in vhost.streams]
    if taken:
        raise PreconditionFailed(f"{vhost.queues[taken[0]]} is no stream")


def _check_exchange(vhost: VirtualHost, name: str, exchange: Exchange | None, *, count: int) -> None:
    """Raise if this exchange, or a queue of this name, keeps a topic from having `count` partitions."""
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
        raise PreconditionFailed(f"{vhost.describe(exchange)} does not last: a topic needs one that does")
