"""Which messages are in the spool already, or were not long ago: their ids, sixteen bytes each.

What stands for a message is the hash of its id and its body: publishers that use an id twice for different
messages lose none of them. A message without an id is known in memory only, and only while it is expected
to come again; of those that are alike as many are expected as there are. Runs of ids are sorted, in memory
and in files; a few large ones rather than many small ones, because each is searched. Where the files are,
and when they go, is left to `spool`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import xxhash

from leveret.client.delivery import CONSUMER_LOST, DELIVERY_COUNT, Delivery
from leveret.client.errors import ConversionError

Numbers = npt.NDArray[np.uint64]
Ids = Numbers
"""Two rows: the first and the second half of each id."""
_HALF: Final = np.dtype("<u8")
_MERGED: Final = 32
"""So many runs of a level become one of the next: 86,400 batches a day are some 100 runs."""
_LEVEL_MAX: Final = 3
_NAME_BYTES_MAX: Final = 0xFFFF
_COUNTED: Final = frozenset((DELIVERY_COUNT, CONSUMER_LOST, "x-acquired-count"))
"""Headers that a broker changes whenever it delivers a message."""


def digest(message_id: str, body: bytes) -> bytes:
    """What stands for a message: 16 bytes."""
    name = message_id.encode("utf-8", "surrogateescape")
    if len(name) > _NAME_BYTES_MAX:
        name = xxhash.xxh3_128(name).digest()
    said = xxhash.xxh3_128(len(name).to_bytes(2, "big") + name)
    said.update(body)
    return said.digest()


def digest_without_id(delivery: Delivery) -> bytes:
    """What stands for a message that has no id: all of it, but not what brokers count."""
    said: object = delivery.header
    with suppress(ConversionError):
        headers = [each for each in delivery.headers.items() if each[0] not in _COUNTED]
        said = sorted((delivery.properties | {"headers": sorted(headers)}).items())
    return digest(repr((delivery.wire_exchange, delivery.wire_routing_key, said)), delivery.body)


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
    """Runs that should be one: many of a level, and not so far apart that one keeps the others for long. No
    id is kept longer than the window and three eighths of it, an eighth for each level."""
    for level in range(_LEVEL_MAX):
        same = sorted((run for run in runs if run.level == level), key=lambda run: run.settled_s)
        for index in range(len(same) - _MERGED + 1):
            near = same[index : index + _MERGED]
            if near[-1].settled_s - near[0].settled_s <= window_s / 8:
                return near
    return []


def merged(runs: Sequence[Run], file: str) -> Run:
    ids = in_order(np.concatenate([run.ids for run in runs], axis=1))
    return Run(file, runs[0].level + 1, max(run.settled_s for run in runs), ids)


class Returning:
    """Messages without an id that were lost before their ack, with their channel: each comes once more.

    >>> returning = Returning(window_s=3600)
    >>> returning.add(b"what stands for it", batch=3)
    >>> returning.take(b"what stands for it"), returning.take(b"what stands for it")
    (3, None)
    """

    def __init__(self, window_s: float) -> None:
        """`window_s` is how long one is expected after its batch was settled."""
        self._window_s = window_s
        self._batches: dict[bytes, list[int]] = {}
        self._settled: deque[tuple[float, int]] = deque()
        """When batches were, up to which number."""

    def add(self, said: bytes, batch: int) -> None:
        self._batches.setdefault(said, []).append(batch)

    def take(self, said: bytes) -> int | None:
        """The batch that it is in, if it is expected; it is not, after that."""
        batches = self._batches.get(said)
        if batches is None:
            return None
        batch = batches.pop()
        if not batches:
            del self._batches[said]
        return batch

    def settled(self, number: int, now_s: float) -> None:
        """Batches up to this one are; what should have come long ago was taken by somebody else."""
        if not self._batches:
            self._settled.clear()
            return
        if not self._settled or number > self._settled[-1][1]:
            self._settled.append((now_s, number))
        through = None
        while self._settled and self._settled[0][0] + self._window_s <= now_s:
            through = self._settled.popleft()[1]
        if through is not None:
            self._forget(through)

    def _forget(self, through: int) -> None:
        for said, batches in list(self._batches.items()):
            batches[:] = [batch for batch in batches if batch > through]
            if not batches:
                del self._batches[said]
