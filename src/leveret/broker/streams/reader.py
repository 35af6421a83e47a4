"""The reader of a stream for one consumer: a position that moves up, and that is not stored.

An ack only gives credit for more messages. Nothing is requeued: a client that wants a message again begins at
its offset, and a client that wants its progress stored consumes as the member of a group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from leveret.broker.canonical import split_for_fields, with_headers
from leveret.broker.queues.deliverer import TURN_BYTES, TURN_MESSAGES_MAX
from leveret.broker.queues.read_only import ReadOnlySource
from leveret.broker.streams.readable import Readable
from leveret.storage.records import Record

OFFSET = "x-stream-offset"
_OFFSET_FIELD = bytes([len(OFFSET)]) + OFFSET.encode() + b"l"
_SPLITS_MAX = 64
_SPLIT_BYTES_MAX = 1024


class OffsetHeaders:
    """Adds fields to content headers: some fixed ones, and the offset of each record."""

    def __init__(self, fields: bytes = b"") -> None:
        self._fields = fields + _OFFSET_FIELD
        self._splits: dict[bytes, tuple[bytes, bytes]] = {}

    def add_to(self, records: Sequence[Record], headers: Sequence[bytes]) -> list[bytes]:
        """Return these headers, each with the offset of its record. 0.4 us where headers repeat."""
        added = []
        splits, added_bytes = self._splits, len(self._fields) + 8
        for record, header in zip(records, headers, strict=True):
            split = splits.get(header)
            if split is None:
                split = self._split(header, added_bytes)
                if len(header) <= _SPLIT_BYTES_MAX:
                    if len(splits) >= _SPLITS_MAX:
                        splits.clear()
                    splits[header] = split
            added.append(split[0] + record.offset.to_bytes(8, "big") + split[1])
        return added

    def _split(self, header: bytes, added_bytes: int) -> tuple[bytes, bytes]:
        # The publisher has set a header of this name; it is replaced.
        if OFFSET.encode() in header:
            header = with_headers(header, {}, (OFFSET,))
        before, after = split_for_fields(header, added_bytes)
        return before + self._fields, after


class Reader(ReadOnlySource):
    """`stream.reader(position)` makes one; the caller sets `consumer` afterwards."""

    def __init__(self, stream: Readable, position: int, *, ended: Callable[[], object]) -> None:
        super().__init__(stream.broker, stream.vhost, stream.name, ended=ended)
        self.stream = stream
        self.position = position
        self.counters = stream.counters
        self._offset_headers = OffsetHeaders()
        self._batch = 1

    def __str__(self) -> str:
        return str(self.stream)

    @property
    def is_open(self) -> bool:
        return not self.stream.deleted

    def next(self, count: int) -> list[Record]:
        limit, waiting = self.stream.readable(), self.stream.cursor.waiting
        while (first := waiting.first_ready(self.position)) is not None and first < limit:
            max_count = min(count, self._batch)
            self.position = min(limit, first + max_count, self.stream.log.reach(first, TURN_BYTES))
            records = self.stream.log.read(waiting.ready_within([(first, self.position)]))
            if records:
                self._batch = min(TURN_MESSAGES_MAX, 2 * self._batch)
                return records
        if self.stream.awaits_sync:
            self.broker.ledger.stall(self)
        return []

    def headers(self, records: Sequence[Record], plain: tuple[bytes, ...]) -> Sequence[bytes]:
        return self._offset_headers.add_to(records, plain)

    def check_recover(self) -> None:
        raise self.stream.not_supported("basic.recover")

    def check_return(self, *, requeue: bool) -> None:
        raise self.stream.not_supported("basic.nack and basic.reject")
