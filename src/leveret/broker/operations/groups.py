"""Operations on consumer groups: create, change, move and delete them.

`groups.moving` implements the moves. A user needs the read permission for everything that the group reads,
and must own the group or have the configure permission for its name (`ownership`). Groups of one name may
read several subjects; if `subject` is None, there must be only one group of the name.
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
    """The group that an operation is for, and the user who requests it."""

    user: User
    vhost: str
    name: str
    subject: str | None = None


def put(
    broker: Broker, target: Target, settings: Mapping[str, Any], *, start: Position, begin: Callable[[], None]
) -> bool:
    """Create a group or change its settings; return whether it is new. The target must have a subject."""
    host, subject = broker.vhosts[target.vhost], target.subject
    assert subject is not None
    streams = [stream.name for stream in topics.streams_of(host, subject)]
    _check_read_permission(target, {subject, *streams})
    is_new = not any(group.name == target.name and group.subject == subject for group in host.groups)
    begin()
    broker.flush()
    host.groups.open(subject, target.name, settings, user=target.user, start=start)
    return is_new


def change(broker: Broker, target: Target, settings: Mapping[str, Any], *, begin: Callable[[], None]) -> str:
    """Change a group's settings at once; return the subject that the group reads."""
    group = _find(broker, target)
    moving.check_not_a_query(group)
    begin()
    broker.vhosts[target.vhost].groups.change(group, settings)
    return group.subject


def check(broker: Broker, target: Target) -> None:
    """Raise unless the group exists and the user may operate it."""
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
    """Move one partition, or all, to another position; return the new offset of each."""
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
    """Settle one message, even if a member has it; return the partition's name and watermark."""
    group = _find(broker, target)
    begin()
    skipped = moving.skip(group, offset, partition=partition, who=target.user.name, why=why)
    return skipped.name, skipped.watermark


def redrive(broker: Broker, target: Target, *, limit: int | None) -> moving.Redrive:
    """Start the redelivery of a group's dead letters: see `moving.Redrive`."""
    group = _find(broker, target)
    _check_read_permission(target, {DEAD_LETTERS + group.name})
    return moving.Redrive(group, limit=limit, who=target.user.name)


def _find(broker: Broker, target: Target) -> Group:
    """Return the target's group; raise if it does not exist or the user may not operate it."""
    groups = broker.vhosts[target.vhost].groups
    group = groups.named(target.name) if target.subject is None else groups.get(target.subject, target.name)
    _check_read_permission(target, {group.subject, *group.partitions})
    groups.check_operate(group, target.user)
    return group


def _check_read_permission(target: Target, names: Iterable[str]) -> None:
    if not all(target.user.may("read", target.vhost, name) for name in names):
        raise AccessRefused("Access refused.")
