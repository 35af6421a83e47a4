"""Which messages are in the spool already, or were not long ago: their ids, sixteen bytes each.

What stands for a message is the hash of its id and its body: publishers that use an id twice for different
messages lose none of them. Runs of ids are sorted, in memory and in files; a few large ones rather than many
small ones, because each is searched. Where the files are, and when they go, is left to `spool`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import xxhash

Numbers = npt.NDArray[np.uint64]
Ids = Numbers
"""Two rows: the first and the second half of each id."""
_HALF: Final = np.dtype("<u8")
_MERGED: Final = 32
"""So many runs of a level become one of the next: 86,400 batches a day are some 100 runs."""
_LEVEL_MAX: Final = 3


def digest(message_id: str, body: bytes) -> bytes:
    """What stands for a message: 16 bytes."""
    name = message_id.encode("utf-8", "surrogateescape")
    said = xxhash.xxh3_128(len(name).to_bytes(2, "big") + name)
    said.update(body)
    return said.digest()


def ids_of(digests: Sequence[bytes]) -> Ids:
    """In their order."""
    halves = np.frombuffer(b"".join(digests), _HALF).reshape(-1, 2)
    return np.ascontiguousarray(halves.T).astype(np.uint64, copy=False)


def in_order(ids: Ids) -> Ids:
    return np.ascontiguousarray(ids[:, np.lexsort((ids[1], ids[0]))])


def pack(ids: Ids) -> bytes:
    return ids.astype(_HALF, copy=False).tobytes()


def unpack(data: bytes) -> Ids:
    return np.frombuffer(data, _HALF).reshape(2, -1).astype(np.uint64, copy=False)


def found_in(run: Ids, wanted: Ids) -> npt.NDArray[np.bool_]:
    """Which of the wanted ids are in a run that is in order."""
    size = run.shape[1]
    found = np.zeros(wanted.shape[1], np.bool_)
    left = np.arange(wanted.shape[1])
    at = np.searchsorted(run[0], wanted[0])
    while len(left):  # a second turn needs two ids with the same first half: hardly ever
        inside = at < size
        left, at = left[inside], at[inside]
        same = run[0][at] == wanted[0][left]
        left, at = left[same], at[same]
        hit = run[1][at] == wanted[1][left]
        found[left[hit]] = True
        left, at = left[~hit], at[~hit] + 1
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Ids of batches that are settled, and the file they are in."""

    file: str
    level: int
    settled_s: float
    """When the last of them was."""
    ids: Ids


def to_merge(runs: Sequence[Run], *, window_s: float) -> list[Run]:
    """Runs that should be one: many of a level, and not so far apart that one keeps the others for long."""
    for level in range(_LEVEL_MAX):
        same = sorted((run for run in runs if run.level == level), key=lambda run: run.settled_s)
        if len(same) >= _MERGED:
            first = same[:_MERGED]
            if level == 0 or first[-1].settled_s - first[0].settled_s <= window_s / 8:
                return first
    return []


def merged(runs: Sequence[Run], file: str) -> Run:
    ids = in_order(np.concatenate([run.ids for run in runs], axis=1))
    return Run(file, runs[0].level + 1, max(run.settled_s for run in runs), ids)
