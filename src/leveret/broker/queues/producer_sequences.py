"""Sequences of producers: the known numbers of each producer, exactly and in bounded memory.

A publisher that may have to send a message twice gives it a producer name (`x-producer`) and a number
(`x-seq`). Known numbers are kept as a set of ranges per producer, not as the highest one: a 5 that was
refused after a 6 was taken is not known. Two bounds apply: numbers more than `window` below a producer's
highest are forgotten, and so are the producers heard of longest ago. Forgotten numbers count as unknown: a
message may then be stored twice, none is ever lost. Storage is left to `deduplication`.

    entries    for each producer, the one heard of longest ago first:
               u16 bytes of the name | u32 bytes of the set | name, UTF-8 | set (`storage.offset_set`)
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final

from leveret.broker import canonical
from leveret.broker.canonical import headers_of, peek, to_bytes
from leveret.broker.queues.erlang_terms import is_integer
from leveret.storage.offset_set import OFFSET_LIMIT, OffsetSet, Range

PRODUCERS_MAX: Final = 10_000
PRODUCER_BYTES_MAX: Final = 255
_ENTRY: Final = Struct("<HI")
_PRODUCER: Final = b"\x0ax-producerS"
"""Key and type as encoded in a table."""
_SEQ: Final = b"\x05x-seql"
_ID_BYTES: Final = 16
"""Bytes at the end of a message id in which messages of one producer may differ."""
_BEHIND_THE_ID: Final = (
    canonical.TIMESTAMP | canonical.TYPE | canonical.USER_ID | canonical.APP_ID | canonical.CLUSTER_ID
)


def sequence_of(header: bytes) -> tuple[bytes, int] | None:
    """Return the producer and the number in a content header; None if it has no valid ones.

    None also for a dead letter (`x-death`): a client that moves it back sends it again on purpose.
    """
    span = peek(header).headers
    if span is None or b"\x07x-death" in header:
        return None
    leading = leading_sequence(header, *span)
    if leading is not None:
        producer, number, _ = leading
    else:
        headers = headers_of(header)
        name, value = headers.get("x-producer"), headers.get("x-seq")
        if not isinstance(name, str) or not isinstance(value, int) or not is_integer(value):
            return None
        producer, number = to_bytes(name), value
    if not 0 <= number < OFFSET_LIMIT or not 0 < len(producer) <= PRODUCER_BYTES_MAX:
        return None
    return producer, number


def leading_sequence(header: bytes, start: int, stop: int) -> tuple[bytes, int, int] | None:
    """Return the producer, the number and where they end, if a headers table begins with them; else None.

    Leveret's client toolkit puts them first: 0.6 us, to decode the table takes 3.5. Later fields can't
    contradict them: of equal keys the first counts.
    """
    if not header.startswith(_PRODUCER, start):
        return None
    name_start = start + len(_PRODUCER) + 4
    name_stop = name_start + int.from_bytes(header[name_start - 4 : name_start], "big")
    number_start = name_stop + len(_SEQ)
    number_stop = number_start + 8
    if number_stop > stop or not header.startswith(_SEQ, name_stop):
        return None
    number = int.from_bytes(header[number_start:number_stop], "big", signed=True)
    return header[name_start:name_stop], number, number_stop


def shape_of(header: bytes) -> bytes:
    """Return the shape of a header: all but the number and the end of the message id.

    If `is_like_others` holds for one header, all headers of this shape have one meaning: they differ only in
    two values whose places and lengths are in the shape. The shape is empty if the header has no number. A
    shape is never mistaken for a header, which begins with the class. 0.4 us; to read the header takes 2.
    """
    key = header.find(_SEQ)
    number = key + len(_SEQ)
    return b"\xff" + header[12:number] + header[number + 8 : -_ID_BYTES] if key >= 0 else b""


def is_like_others(header: bytes) -> bool:
    """Return whether the number is where `shape_of` expects it, before a message id at the very end."""
    span = canonical.peek(header).headers
    sequence = leading_sequence(header, *span) if span is not None else None
    if sequence is None or sequence[2] != header.find(_SEQ) + len(_SEQ) + 8:
        return False
    message_id = canonical.decode(header).get("message_id")
    is_last = isinstance(message_id, str) and header.endswith(to_bytes(message_id))
    is_long = len(to_bytes(str(message_id))) >= _ID_BYTES
    return is_last and is_long and not int.from_bytes(header[12:14], "big") & _BEHIND_THE_ID


class Sequences:
    """`known.add(b"orders-7", [(0, 5), (6, 7)])`; then `known.has(b"orders-7", 5)` is False."""

    def __init__(self, *, window: int, producers_max: int = PRODUCERS_MAX) -> None:
        self._window = window
        self._producers_max = producers_max
        self._known: OrderedDict[bytes, OffsetSet] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of known producers."""
        return len(self._known)

    def has(self, producer: bytes, number: int) -> bool:
        known = self._known.get(producer)
        return known is not None and number in known

    def add(self, producer: bytes, ranges: Sequence[Range]) -> None:
        """Remember numbers of a producer, and forget what exceeds the bounds."""
        known = self._known.get(producer)
        if known is None:
            known = self._known[producer] = OffsetSet()
        self._known.move_to_end(producer)
        known.add_many(ranges)
        highest = known.last()
        assert highest is not None
        if highest > self._window:
            known.remove(0, highest - self._window)
        if len(self._known) > self._producers_max:
            self._known.popitem(last=False)

    def remove(self, producer: bytes, ranges: Sequence[Range]) -> None:
        """Forget numbers of a producer."""
        known = self._known.get(producer)
        if known is not None:
            known.remove_many(ranges)
            if not known:
                del self._known[producer]

    def clear(self) -> None:
        self._known.clear()

    def encode(self) -> bytes:
        """Return all known sequences as entries."""
        return b"".join(encode_entry(producer, known) for producer, known in self._known.items())


def encode_entry(producer: bytes, known: OffsetSet) -> bytes:
    data = known.encode()
    return b"".join((_ENTRY.pack(len(producer), len(data)), producer, data))


def decode_entries(data: bytes) -> Iterator[tuple[bytes, list[Range]]]:
    """Yield producers with their ranges from entries that `encode_entry` made."""
    position = 0
    while position < len(data):
        name_bytes, set_bytes = _ENTRY.unpack_from(data, position)
        start = position + _ENTRY.size + name_bytes
        position = start + set_bytes
        known = OffsetSet.decode(data[start:position])
        yield data[start - name_bytes : start], list(known.ranges())
