"""Who has which partition, in orderly mode: a pure function.

Sticky and even: nobody has two more than another, and of those that someone has only as many move as that
takes. Given the same, it says the same.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

P = TypeVar("P", bound=Hashable)
M = TypeVar("M", bound=Hashable)


def assign(partitions: Sequence[P], members: Sequence[M], current: Mapping[P, M]) -> dict[P, M]:
    """The owner of each partition; empty when there are no members.

    >>> assign(["a", "b", "c"], [1, 2], {"a": 1, "b": 1, "c": 1})
    {'a': 1, 'b': 1, 'c': 2}
    """
    if not members:
        return {}
    kept: dict[M, list[P]] = {member: [] for member in members}
    homeless = []
    for partition in partitions:
        owner = current.get(partition)
        if owner in kept:
            kept[owner].append(partition)
        else:
            homeless.append(partition)
    least, more = divmod(len(partitions), len(members))
    richest = sorted(members, key=lambda member: -len(kept[member]))
    room = {member: least + (place < more) for place, member in enumerate(richest)}
    for member in members:
        homeless.extend(kept[member][room[member] :])
        del kept[member][room[member] :]
    for member in members:
        while len(kept[member]) < room[member]:
            kept[member].append(homeless.pop(0))
    owners = {partition: member for member, mine in kept.items() for partition in mine}
    return {partition: owners[partition] for partition in partitions}
