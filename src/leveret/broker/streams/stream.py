"""A stream: a destination whose messages are kept by age and size, whoever has read them.

To publishers it is like a queue. The stream's own cursor delivers nothing: messages that readers may see are
ready in it, rows of uncommitted batches are leased, and messages removed by retention or an abort are
settled. Each consumer reads with a `Reader`; groups have cursors of their own (`groups.partition`). The rule:
no reader sees an offset that is not synced, or that lies behind one that is undecided.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from leveret.broker.canonical import Value
from leveret.broker.core import Core
from leveret.broker.errors import Unsupported
from leveret.broker.queues.deduplication import Dedup
from leveret.broker.queues.queue_settings import QueueSettings
from leveret.broker.streams.readable import Follower
from leveret.broker.streams.reader import Reader
from leveret.broker.vhosts.destination import Destination, Host
from leveret.storage.cursor import Cursor
from leveret.storage.offset_set import Range
from leveret.storage.records import PERSISTENT, Message
from leveret.storage.retention import Retention

_SEGMENTS_PER_LIMIT = 8
_SEGMENT_BYTES_LEAST = 64 << 10
_SEGMENT_BYTES_MOST = 64 << 20
_RETIRE_US_LEAST = 1_000_000


def retention_of(declared: QueueSettings) -> Retention:
    """Return the retention of a stream, with segments small enough, because whole segments are removed."""
    kept_bytes = declared.kept_bytes
    fitting = 0 if not kept_bytes else max(_SEGMENT_BYTES_LEAST, kept_bytes // _SEGMENTS_PER_LIMIT)
    return Retention(
        keep_settled=True,
        max_age_us=declared.max_age_us,
        max_bytes=kept_bytes,
        segment_bytes=declared.segment_bytes or min(fitting, _SEGMENT_BYTES_MOST),
    )


class Stream(Destination):
    """`stream.readable()` returns the offset up to which messages may be read."""

    confirms_synced = True

    def __init__(
        self,
        broker: Core,
        vhost: Host,
        name: str,
        *,
        cursor: Cursor,
        declared: QueueSettings,
        table: dict[str, Value],
        dedup: Dedup | None = None,
    ) -> None:
        super().__init__(
            broker, vhost, name, cursor=cursor, declared=declared, table=table, durable=True, dedup=dedup
        )
        self.runs = self
        self.readers: dict[Reader, None] = {}
        """Keys: the readers of single consumers, which belong to no group."""
        self._unsynced: deque[tuple[int, int]] = deque()
        """(ticket, offset): the end of readable messages once the ticket's sync is done."""
        self._synced = self.log.next
        self._gaps = tuple(self.log.gaps())
        """Ranges of offsets without messages; only opening a store can add some."""
        self._followers: dict[Follower, None] = {}
        """Keys: the partitions of groups that read the stream."""
        self.retire()

    @property
    def consumer_count(self) -> int:
        return len(self.readers)

    def not_supported(self, operation: str) -> Unsupported:
        return Unsupported(f"{operation} not supported by stream queues {self}")

    def change_settings(self, declared: QueueSettings) -> None:
        super().change_settings(declared)
        self.broker.store.set_retention(self.log, retention_of(self.settings))
        self.broker.timers.cancel((self, "age"))
        self.retire()
        self.wake()

    # arrival of messages

    def as_kept(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Set the persistent flag: all messages of a stream survive a restart."""
        if all(message.flags & PERSISTENT for message in messages):
            return messages
        return [message._replace(flags=message.flags | PERSISTENT) for message in messages]

    def appended(self, messages: Sequence[Message]) -> None:
        ticket = self.broker.store.ticket
        self.note_arrival(messages)
        self._note_synced()
        if self._unsynced and self._unsynced[-1][0] == ticket:
            self._unsynced.pop()
        self._unsynced.append((ticket, self.log.next))
        if self.readers or any(follower.wants_more for follower in self._followers):
            self.broker.ledger.stall(self)
        kept_bytes = self.settings.kept_bytes
        if kept_bytes and self.log.pending_bytes > max(_SEGMENT_BYTES_LEAST, kept_bytes >> 1):
            self.broker.store.hurry()

    def hidden_appended(self, messages: Sequence[Message]) -> None:
        self.appended(messages)

    def untaken(self, ranges: Sequence[Range]) -> Sequence[tuple[Cursor, Sequence[Range]]]:
        """Return which of these messages still wait for a group, by the group's cursor."""
        cursors = (follower.cursor for follower in self._followers)
        waiting = ((cursor, cursor.waiting.ready_within(ranges)) for cursor in cursors)
        return [(cursor, ready) for cursor, ready in waiting if ready]

    def retire(self) -> None:
        """Remove messages above the limits of age and size; called regularly, and after each checkpoint."""
        if self.deleted:
            return
        self.broker.store.retire(self.log)
        age_us = self.settings.max_age_us
        if age_us is not None:
            now_us, pending_us = self.broker.now_us(), self.log.pending_since_us
            if pending_us is not None and pending_us + age_us <= now_us:
                # Retention removes messages only after they were written to a segment.
                self.broker.store.hurry()
            due_us = now_us + max(_RETIRE_US_LEAST, age_us // 16)
            self.broker.timers.set((self, "age"), due_us, self.retire)

    # reading

    def offset_after(self, offset: int, count: int) -> int:
        """Return the offset `count` messages after `offset`; gaps from an unclean stop do not count."""
        stop = offset + count
        for start, end in self._gaps:
            if start >= stop:
                break
            stop += max(0, end - max(start, offset))
        return stop

    def readable(self) -> int:
        self._note_synced()
        return min(self._synced, self.decided())

    def decided(self) -> int:
        # Only rows of uncommitted batches are leased in a stream.
        undecided = self.cursor.in_flight.first_leased
        return self.log.next if undecided is None else undecided

    def _note_synced(self) -> None:
        safe_ticket = self.broker.store.safe_ticket
        while self._unsynced and self._unsynced[0][0] <= safe_ticket:
            self._synced = self._unsynced.popleft()[1]

    @property
    def awaits_sync(self) -> bool:
        return bool(self._unsynced)

    def run(self) -> None:
        for reader in list(self.readers):
            reader.run()
        for follower in self._followers:
            follower.wake()
        if self.awaits_sync and self.readers:
            self.broker.ledger.stall(self)

    @property
    def last(self) -> int | None:
        return self.cursor.waiting.last_ready(self.readable())

    def visible(self, start: int, stop: int) -> list[Range]:
        """Return the offsets in [start, stop) that still have messages to read."""
        return self.cursor.waiting.ready_within([(start, stop)]) if start < stop else []

    # readers

    def reader(self, position: int) -> Reader:
        """Return a source that reads from this offset on."""
        reader = Reader(self, position, ended=lambda: self.readers.pop(reader, None))
        self.readers[reader] = None
        return reader

    def follow(self, follower: Follower) -> None:
        self._followers[follower] = None

    def unfollow(self, follower: Follower) -> None:
        self._followers.pop(follower, None)

    def close(self) -> None:
        self.broker.timers.cancel((self, "age"))
        for reader in list(self.readers):
            reader.end()
