"""What follows when a user loses rights: consumers that may not read any more end at once.

`administration` changes the rights and calls `end_forbidden_consumers`. Everything that a client does after
that is checked where it is done: methods, publishes, Flight and HTTP ask for the right each time. Only a
running consumer asks for nothing, so it is ended here, as if its queue had been deleted: `basic.cancel` from
the broker. The rule: what was delivered stays with the consumer's channel, which may still settle it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from leveret.broker.errors import AccessRefused
from leveret.broker.groups.group import Group

if TYPE_CHECKING:
    from leveret.broker.accounts import User
    from leveret.broker.broker import Broker
    from leveret.broker.channel import Channel
    from leveret.broker.consumer import Consumer, Receiver, Source


def end_forbidden_consumers(broker: Broker, vhost: str, user: User) -> None:
    """Cancel the consumers of a user that read from what the user may not read."""
    for session in list(broker.sessions):
        if session.peer.is_open and session.is_of(user.name) and session.vhost.name == vhost:
            for channel in list(session.channels):
                _end_consumers(channel, user)


def end_forbidden_members(group: Group) -> None:
    """Cancel the members of a group whose topic has got a partition that they may not read."""
    for member in list(group.members):
        refusal = _refusal(member.channel.user, group)
        if refusal is not None:
            _end(member.channel, member, refusal)


def _end_consumers(channel: Channel, user: User) -> None:
    for consumer in list(channel.consumers.values()):
        if channel.closed:
            return
        refusal = _refusal(user, consumer.source)
        if refusal is not None:
            _end(channel, consumer, refusal)


def _refusal(user: User, source: Source) -> AccessRefused | None:
    """Return why the user may not read from a source, or None if that is allowed."""
    try:
        for name in _names(source):
            user.check("read", source.vhost.name, "queue", name)
    except AccessRefused as error:
        return error
    return None


def _names(source: Source) -> Iterable[str]:
    """Return the names for which a consumer of this source needs the right to read."""
    return (source.subject, *source.partitions) if isinstance(source, Group) else (source.name,)


def _end(channel: Receiver, consumer: Consumer, refusal: AccessRefused) -> None:
    """Tell the client, or close the channel of a client that does not understand `basic.cancel`."""
    told = channel.consumer_lost(consumer)
    consumer.source.remove_consumer(consumer)
    if not told:
        channel.outlet.fail(refusal)
