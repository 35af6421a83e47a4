"""Who may no longer read: consumers and members of groups that have lost their right are ended.

A running consumer asks for no right again, so it is ended as if its queue had been deleted: `basic.cancel`
from the broker. When to look is left to `revocation` and to the groups. The rule: what was delivered stays
with the consumer's channel, which may still settle it.
"""

from __future__ import annotations

from collections.abc import Iterable

from leveret.broker.access.accounts import User
from leveret.broker.errors import AccessRefused
from leveret.broker.groups.group import Group
from leveret.broker.queues.consumer import Consumer, Source


def end_if_forbidden(consumer: Consumer, user: User) -> None:
    """Cancel a consumer if the user may not read what it consumes from.

    The channel is closed where the client does not understand `basic.cancel`.
    """
    refusal = _refusal(user, consumer.source)
    if refusal is None:
        return
    told = consumer.channel.consumer_lost(consumer)
    consumer.source.remove_consumer(consumer)
    if not told:
        consumer.channel.outlet.fail(refusal)


def end_forbidden_members(group: Group) -> None:
    """Cancel the members of a group whose topic has got a partition that they may not read."""
    for member in list(group.members):
        end_if_forbidden(member, member.channel.user)


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
