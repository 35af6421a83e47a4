"""Which messages are in the spool, or were until their window ended: a digest of 16 bytes for each message.

The digest is a hash of message id and body, so no message is lost if a publisher uses an id twice for
different messages. Messages without an id are known in memory only, and only while the broker is expected to
redeliver them; equal messages are counted. Digests lie in sorted runs, in memory and in files. A search looks
into every run, so small runs are merged. `spool` owns the files and deletes them.
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
"""Digests as an array of two rows: the first and the second half of each digest."""
_HALF: Final = np.dtype("<u8")
_MERGED: Final = 32
"""How many runs of a level become one run of the next level: 86,400 batches a day are some 100 runs."""
_LEVEL_MAX: Final = 3
_NAME_BYTES_MAX: Final = 0xFFFF
_COUNTED: Final = frozenset((DELIVERY_COUNT, CONSUMER_LOST, "x-acquired-count"))
"""Headers that a broker changes at each delivery."""


def digest(message_id: str, body: bytes) -> bytes:
    """Return the 16 bytes that stand for a message with an id."""
    name = message_id.encode("utf-8", "surrogateescape")
    if len(name) > _NAME_BYTES_MAX:
        name = xxhash.xxh3_128(name).digest()
    state = xxhash.xxh3_128(len(name).to_bytes(2, "big") + name)
    state.update(body)
    return state.digest()


def digest_without_id(delivery: Delivery) -> bytes:
    """Return the 16 bytes that stand for a message without an id: a hash of all but counters of brokers."""
    properties: object = delivery.header
    with suppress(ConversionError):
        headers = [header for header in delivery.headers.items() if header[0] not in _COUNTED]
        properties = sorted((delivery.properties | {"headers": sorted(headers)}).items())
    return digest(repr((delivery.wire_exchange, delivery.wire_routing_key, properties)), delivery.body)


def ids_of(digests: Sequence[bytes]) -> Ids:
    halves = np.frombuffer(b"".join(digests), _HALF).reshape(-1, 2)
    return np.ascontiguousarray(halves.T).astype(np.uint64, copy=False)


def in_order(ids: Ids) -> Ids:
    return np.ascontiguousarray(ids[:, np.lexsort((ids[1], ids[0]))])


def pack(ids: Ids) -> bytes:
    return ids.astype(_HALF, copy=False).tobytes()


def unpack(data: bytes) -> Ids:
    return np.frombuffer(data, _HALF).reshape(2, -1).astype(np.uint64, copy=False)


def found_in(run: Ids, wanted: Ids) -> npt.NDArray[np.bool_]:
    """Return which wanted ids an ordered run has; ordered wanted ids take a quarter of the time."""
    size = run.shape[1]
    is_found = np.zeros(wanted.shape[1], np.bool_)
    left = np.arange(wanted.shape[1])
    at = np.searchsorted(run[0], wanted[0])
    # A second pass needs two ids with equal first halves, which hardly ever happens.
    while len(left):
        inside = at < size
        left, at = left[inside], at[inside]
        same = run[0][at] == wanted[0][left]
        left, at = left[same], at[same]
        hit = run[1][at] == wanted[1][left]
        is_found[left[hit]] = True
        left, at = left[~hit], at[~hit] + 1
    return is_found


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Ids of settled batches, and the file that holds them."""

    file: str
    level: int
    settled_s: float
    """When the last of these batches was settled."""
    ids: Ids


def to_merge(runs: Sequence[Run], *, window_s: float) -> list[Run]:
    """Return runs to merge into one: `_MERGED` runs of a level, settled within an eighth of the window.

    A merged run is kept until its latest batch expires. So each of the three levels keeps ids for up to an
    eighth of the window longer.
    """
    for level in range(_LEVEL_MAX):
        peers = sorted((run for run in runs if run.level == level), key=lambda run: run.settled_s)
        for index in range(len(peers) - _MERGED + 1):
            near = peers[index : index + _MERGED]
            if near[-1].settled_s - near[0].settled_s <= window_s / 8:
                return near
    return []


def merged(runs: Sequence[Run], file: str) -> Run:
    ids = in_order(np.concatenate([run.ids for run in runs], axis=1))
    return Run(file, runs[0].level + 1, max(run.settled_s for run in runs), ids)


class Returning:
    """Spooled messages without an id whose channel ended before their ack: each is redelivered once.

    >>> returning = Returning(window_s=3600)
    >>> returning.add(b"digest", batch=3)
    >>> returning.take(b"digest"), returning.take(b"digest")
    (3, None)
    """

    def __init__(self, window_s: float) -> None:
        """`window_s` is how long a redelivery is expected after the message's batch was settled."""
        self._window_s = window_s
        self._batches: dict[bytes, list[int]] = {}
        """Batches that hold an expected message, by its digest."""
        self._settled: deque[tuple[float, int]] = deque()
        """Times at which batches were settled, and up to which number."""

    def add(self, digest: bytes, batch: int) -> None:
        self._batches.setdefault(digest, []).append(batch)

    def take(self, digest: bytes) -> int | None:
        """Return the batch that holds the message and expect it once less; None if it is not expected."""
        batches = self._batches.get(digest)
        if batches is None:
            return None
        batch = batches.pop()
        if not batches:
            del self._batches[digest]
        return batch

    def settled(self, number: int, now_s: float) -> None:
        """Note that batches up to `number` are settled, and forget messages that were expected too long."""
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
        for digest, batches in list(self._batches.items()):
            batches[:] = [batch for batch in batches if batch > through]
            if not batches:
                del self._batches[digest]
