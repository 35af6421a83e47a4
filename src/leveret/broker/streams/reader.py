"""One consumer's way through a stream: a position that moves up, and nothing that is kept of it.

An ack is credit for more. Nothing ever goes back: whoever wants to see a message again begins at its offset,
and whoever wants progress to be kept consumes as the member of a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from leveret.broker.canonical import split_for_fields, with_headers
from leveret.broker.feed import TURN_BYTES, TURN_MESSAGES_MAX
from leveret.broker.read_only import ReadOnlySource
from leveret.storage.records import Record

if TYPE_CHECKING:
    from leveret.broker.consumer import Consumer
    from leveret.broker.streams.stream import Stream

OFFSET = "x-stream-offset"
_OFFSET_FIELD = bytes([len(OFFSET)]) + OFFSET.encode() + b"l"
_SPLITS_MAX = 64
_SPLIT_BYTES_MAX = 1024


class Stamps:
    """Content headers with further fields: some that stay, and the offset."""

    def __init__(self, fields: bytes = b"") -> None:
        self._fields = fields + _OFFSET_FIELD
        self._splits: dict[bytes, tuple[bytes, bytes]] = {}

    def put(self, records: Sequence[Record], headers: Sequence[bytes]) -> list[bytes]:
        """These headers, each with the offset of its record. 0.4 us where headers repeat."""
        stamped = []
        splits, size = self._splits, len(self._fields) + 8
        for record, header in zip(records, headers, strict=True):
            split = splits.get(header)
            if split is None:
                split = self._split(header, size)
                if len(header) <= _SPLIT_BYTES_MAX:
                    if len(splits) >= _SPLITS_MAX:
                        splits.clear()
                    splits[header] = split
            stamped.append(split[0] + record.offset.to_bytes(8, "big") + split[1])
        return stamped

    def _split(self, header: bytes, size: int) -> tuple[bytes, bytes]:
        if OFFSET.encode() in header:  # a publisher's own
            header = with_headers(header, {}, (OFFSET,))
        before, behind = split_for_fields(header, size)
        return before + self._fields, behind


class Reader(ReadOnlySource):
    """`Reader(stream, position)`; the consumer is attached when it is there."""

    def __init__(self, stream: Stream, position: int) -> None:
        super().__init__(stream.broker, stream.vhost, stream.name)
        self.stream = stream
        self.counters = stream.counters
        self.position = position
        self.consumer: Consumer | None = None
        self._stamps = Stamps()
        self._batch = 1

    def __str__(self) -> str:
        return str(self.stream)

    def run(self) -> None:
        handed_bytes = 0
        while self.consumer is not None and not self.stream.deleted:
            credit = self.consumer.credit
            if not credit:
                return
            if handed_bytes >= TURN_BYTES:
                self.broker.wake_later(self)
                return
            records = self._next(min(credit, self._batch))
            if not records:
                if self.stream.awaits_sync:
                    self.broker.stall(self)
                return
            size = sum(len(record.body) + len(record.header) for record in records)
            handed_bytes += size
            self.counters.bytes_out += size
            self._batch = min(TURN_MESSAGES_MAX, 2 * self._batch)
            self.consumer.channel.deliver(self.consumer, records)

    def _next(self, count: int) -> list[Record]:
        limit, waiting = self.stream.readable(), self.stream.cursor.waiting
        while (first := waiting.first_ready(self.position)) is not None and first < limit:
            stop = min(limit, first + count, self.stream.log.reach(first, TURN_BYTES))
            self.position = stop
            records = self.stream.log.read(self.stream.visible(first, stop))
            if records:
                return records
        return []

    def headers(self, records: Sequence[Record], plain: tuple[bytes, ...]) -> Sequence[bytes]:
        return self._stamps.put(records, plain)

    def remove_consumer(self, consumer: Consumer) -> None:
        self.consumer = None
        self.stream.remove_consumer(consumer)

    def check_return(self, *, requeue: bool) -> None:
        raise self.stream.not_supported("basic.nack and basic.reject")
