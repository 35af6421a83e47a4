"""Damaged files as sentences: one for each file, however many places in it are damaged.

Several workers read pieces of a store, and each of them may report damage in the same file. The rule: a file
is named once, so the number of sentences is the number of damaged files.
"""

from __future__ import annotations

from collections.abc import Iterable

from leveret.storage.errors import Damage
from leveret.storage.offset_set import OffsetSet

_OFFSETS_MAX = 3
"""Runs of offsets that a sentence names; `lost.parquet` has all of them."""


def by_file(damage: Iterable[Damage]) -> list[str]:
    """Return one sentence for each damaged file.

    >>> gone = [Damage("logs/1/msgs.0", 64 + n, n, "a record is lost") for n in (7, 8, 11)]
    >>> by_file([*gone, Damage("wal/3", 0, None, "it is missing")])
    ['logs/1/msgs.0, byte 71: a record is lost (3 times, offsets 7-8, 11)', 'wal/3, byte 0: it is missing']
    """
    files: dict[str, list[Damage]] = {}
    for place in sorted(set(damage), key=lambda place: (place.file, place.position, place.what)):
        files.setdefault(place.file, []).append(place)
    return [f"{file}, byte {places[0].position}: {_kinds(places)}" for file, places in files.items()]


def _kinds(places: Iterable[Damage]) -> str:
    kinds: dict[str, list[Damage]] = {}
    for place in places:
        kinds.setdefault(place.what, []).append(place)
    return "; ".join(what + _details(of_kind) for what, of_kind in kinds.items())


def _details(places: list[Damage]) -> str:
    offsets = OffsetSet((place.offset, place.offset + 1) for place in places if place.offset is not None)
    runs = [f"{start}" if stop - start == 1 else f"{start}-{stop - 1}" for start, stop in offsets.ranges()]
    details = [f"{len(places):,} times"] if len(places) > 1 else []
    if runs:
        more = ", ..." if len(runs) > _OFFSETS_MAX else ""
        noun = "offset" if len(places) == 1 else "offsets"
        details.append(f"{noun} {', '.join(runs[:_OFFSETS_MAX])}{more}")
    return f" ({', '.join(details)})" if details else ""
