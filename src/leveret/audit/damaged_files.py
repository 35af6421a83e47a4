"""Damaged files as sentences: one for each file, however many places in it are damaged.

`storage` finds damage while several workers read pieces, and each of them may find the same file.
The rule: a file is named once, so that their number is the number of damaged files.
"""

from __future__ import annotations

from collections.abc import Iterable

from leveret.storage.errors import Damage
from leveret.storage.offset_set import OffsetSet

_OFFSETS_MAX = 3
"""So many runs of offsets are named; `lost.parquet` has them all."""


def by_file(damage: Iterable[Damage]) -> list[str]:
    """Return one sentence for each damaged file.

    >>> gone = [Damage("logs/1/msgs.0", 64 + n, n, "a record is lost") for n in (7, 8, 11)]
    >>> by_file([*gone, Damage("wal/3", 0, None, "it is missing")])
    ['logs/1/msgs.0, byte 71: a record is lost (3 times, offsets 7-8, 11)', 'wal/3, byte 0: it is missing']
    """
    files: dict[str, list[Damage]] = {}
    for each in sorted(set(damage), key=lambda found: (found.file, found.position, found.what)):
        files.setdefault(each.file, []).append(each)
    return [f"{file}, byte {places[0].position}: {_told(places)}" for file, places in files.items()]


def _told(places: Iterable[Damage]) -> str:
    kinds: dict[str, list[Damage]] = {}
    for each in places:
        kinds.setdefault(each.what, []).append(each)
    return "; ".join(what + _where(found) for what, found in kinds.items())


def _where(found: list[Damage]) -> str:
    offsets = OffsetSet((each.offset, each.offset + 1) for each in found if each.offset is not None)
    runs = [f"{start}" if stop - start == 1 else f"{start}-{stop - 1}" for start, stop in offsets.ranges()]
    said = [f"{len(found):,} times"] if len(found) > 1 else []
    if runs:
        more = ", ..." if len(runs) > _OFFSETS_MAX else ""
        noun = "offset" if len(found) == 1 else "offsets"
        said.append(f"{noun} {', '.join(runs[:_OFFSETS_MAX])}{more}")
    return f" ({', '.join(said)})" if said else ""
