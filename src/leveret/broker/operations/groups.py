"""Groups by hand: making, changing, moving and deleting them.

The rules for moves are `groups.moving`'s. Whoever changes a group needs the right to read what it reads, and
owns the group or has a right on its name (`ownership`). A name may read several subjects; where `subject` is
None, there must be one group of the name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from leveret.broker.errors import AccessRefused
from leveret.broker.groups import moving, topics
from leveret.broker.groups.group import DEAD_LETTERS

if TYPE_CHECKING:
    from leveret.broker.access.accounts import User
    from leveret.broker.broker import Broker
    from leveret.broker.groups.group import Group
    from leveret.broker.streams.positions import Position


class Target(NamedTuple):
    """The group that is meant, and who asks."""

    user: User
    vhost: str
    name: str
    subject: str | None = None


def put(
    broker: Broker, target: Target, wanted: Mapping[str, Any], *, start: Position, begin: Callable[[], None]
) -> bool:
    """Make a group, or change the settings of one; return whether it is new. The subject must be given."""
    host, subject = broker.vhosts[target.vhost], target.subject
    assert subject is not None
    streams = [stream.name for stream in topics.streams_of(host, subject)]
    _check_rights(target, {subject, *streams})
    is_new = not any(each.name == target.name and each.subject == subject for each in host.groups)
    begin()
    broker.flush()
    host.groups.open(subject, target.name, wanted, user=target.user, start=start)
    return is_new


def change(broker: Broker, target: Target, wanted: Mapping[str, Any], *, begin: Callable[[], None]) -> str:
    """Change settings, at once; return what the group reads."""
    group = _find(broker, target)
    moving.check_not_a_query(group)
    begin()
    broker.vhosts[target.vhost].groups.change(group, wanted)
    return group.subject


def check(broker: Broker, target: Target) -> None:
    """Raise what an operation would raise that the user may not do, or that is for no group."""
    _find(broker, target)


def delete(broker: Broker, target: Target, *, begin: Callable[[], None]) -> None:
    """Delete a group with its progress."""
    group = _find(broker, target)
    begin()
    broker.vhosts[target.vhost].groups.delete(group)


def seek(
    broker: Broker,
    target: Target,
    to: Position,
    *,
    partition: str | None,
    why: str,
    begin: Callable[[], None],
) -> dict[str, int]:
    """Let partitions go on from another place; return where each is then."""
    group = _find(broker, target)
    begin()
    return moving.seek(group, to, partition=partition, who=target.user.name, why=why)


def skip(
    broker: Broker,
    target: Target,
    offset: int,
    *,
    partition: str | None,
    why: str,
    begin: Callable[[], None],
) -> tuple[str, int]:
    """Settle one message, whoever has it; return its partition, and the watermark there."""
    group = _find(broker, target)
    begin()
    found = moving.skip(group, offset, partition=partition, who=target.user.name, why=why)
    return found.name, found.watermark


def redrive(broker: Broker, target: Target, *, limit: int | None) -> moving.Redrive:
    """Begin to deliver dead letters once more: see `moving.Redrive`."""
    group = _find(broker, target)
    _check_rights(target, {DEAD_LETTERS + group.name})
    return moving.Redrive(group, limit=limit, who=target.user.name)


def _find(broker: Broker, target: Target) -> Group:
    """The only group of this name, or the one on the subject that is given."""
    groups = broker.vhosts[target.vhost].groups
    group = groups.named(target.name) if target.subject is None else groups.get(target.subject, target.name)
    _check_rights(target, {group.subject, *group.partitions})
    groups.check_operate(group, target.user)
    return group


def _check_rights(target: Target, names: Iterable[str]) -> None:
    if not all(target.user.may("read", target.vhost, name) for name in names):
        raise AccessRefused("Access refused.")
