"""Topics by hand: making them, giving them more partitions, deleting them.

What a topic is, and what can't be done with one, is `groups.topics`' to say. Rights are those that the same
declarations need over AMQP: to configure the exchange and the streams, to read the one and write the others
for the bindings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from leveret.broker import arguments
from leveret.broker.errors import NotFound, PreconditionFailed
from leveret.broker.groups import topics
from leveret.broker.names import check_not_default, check_not_reserved, cleaned

if TYPE_CHECKING:
    from leveret.broker.accounts import User
    from leveret.broker.broker import Broker

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
    names = [f"{name}-{number}" for number in range(min(count, topics.PARTITIONS_MAX))]
    _check_rights(user, vhost, name, names, binding=True)
    begin()
    topics.create(host, name, count=count, table=table)
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
    topics.delete(host, name)


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
