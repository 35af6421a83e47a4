"""Assignment of partitions to members in orderly mode, as a pure function.

The assignment is sticky and even: no member has two partitions more than another, and only as many partitions
move as this requires. Equal arguments give equal results.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

P = TypeVar("P", bound=Hashable)
M = TypeVar("M", bound=Hashable)


def assign(partitions: Sequence[P], members: Sequence[M], current: Mapping[P, M]) -> dict[P, M]:
    """Return the owner of each partition; empty if there are no members.

    >>> assign(["a", "b", "c"], [1, 2], {"a": 1, "b": 1, "c": 1})
    {'a': 1, 'b': 1, 'c': 2}
    """
    if not members:
        return {}
    owned_by_member: dict[M, list[P]] = {member: [] for member in members}
    unassigned = []
    for partition in partitions:
        owner = current.get(partition)
        if owner in owned_by_member:
            owned_by_member[owner].append(partition)
        else:
            unassigned.append(partition)
    minimum, remainder = divmod(len(partitions), len(members))
    members_by_count = sorted(members, key=lambda member: -len(owned_by_member[member]))
    quota = {member: minimum + (rank < remainder) for rank, member in enumerate(members_by_count)}
    for member in members:
        unassigned.extend(owned_by_member[member][quota[member] :])
        del owned_by_member[member][quota[member] :]
    for member in members:
        while len(owned_by_member[member]) < quota[member]:
            owned_by_member[member].append(unassigned.pop(0))
    owners = {partition: member for member, owned in owned_by_member.items() for partition in owned}
    return {partition: owners[partition] for partition in partitions}
