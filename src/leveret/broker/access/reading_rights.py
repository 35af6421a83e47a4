"""Ends consumers and members of groups whose user has lost the read permission.

Permissions are checked when a consumer starts and not for each delivery. A consumer that has lost its
permission is ended as if its queue had been deleted: the broker sends `basic.cancel`. `revocation` and the
groups decide when to check. The rule: the channel keeps its unacked deliveries and may still settle them.
"""

from __future__ import annotations

from collections.abc import Iterable

from leveret.broker.access.accounts import User
from leveret.broker.errors import AccessRefused
from leveret.broker.groups.group import Group
from leveret.broker.queues.consumer import Consumer, Source


def end_if_forbidden(consumer: Consumer, user: User) -> None:
    """Cancel a consumer if the user may not read from its source.

    If the client does not support `basic.cancel`, its channel is closed instead.
    """
    refusal = _refusal(user, consumer.source)
    if refusal is None:
        return
    is_client_told = consumer.channel.consumer_lost(consumer)
    consumer.source.remove_consumer(consumer)
    if not is_client_told:
        consumer.channel.outlet.fail(refusal)


def end_forbidden_members(group: Group) -> None:
    """Cancel the members of a group that may not read a partition which its topic has gained."""
    for member in list(group.members):
        end_if_forbidden(member, member.channel.user)


def _refusal(user: User, source: Source) -> AccessRefused | None:
    """Return the refusal if the user may not read from a source, or None."""
    try:
        for name in _names(source):
            user.check("read", source.vhost.name, "queue", name)
    except AccessRefused as error:
        return error
    return None


def _names(source: Source) -> Iterable[str]:
    """Return the names for which a consumer of this source needs the read permission."""
    return (source.subject, *source.partitions) if isinstance(source, Group) else (source.name,)
