"""Audit marks: journal entries of a queue with an audit window that say when received messages were on disk.

One entry covers a run of messages that came in together: their offsets, the time of publishing, the exchange,
and, as the entry's own time, when they could be confirmed. It is written once the messages are on disk. A
message that has an entry here, but is neither settled nor in the log, is lost. Entries mark transient
messages as such: they are promised only until a restart. Messages found on disk by a restart get an entry
that says that the time of their sync is unknown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Final, NamedTuple

from leveret.storage.cursor import Cursor
from leveret.storage.journal import Entry, Kind, Outcome, Promise
from leveret.storage.offset_set import OffsetSet, Range
from leveret.storage.records import PERSISTENT, PERSISTENT_FLAGS, Message, Record, flags_of

_SAME_ENTRY_US: Final = 1000
"""Messages that arrive this soon after others share their entry, with the time of the first."""
_LOOK_BACK: Final = 4096
_NEVER_SAFE: Final = (Outcome.RESTART, Outcome.SKIPPED)
"""Outcomes of messages that were not on disk."""

_exchange_of = itemgetter(Message._fields.index("exchange"))


class _Arrived(NamedTuple):
    """A run of received messages, and the ticket of the sync that makes them durable."""

    ticket: int
    start: int
    stop: int
    time_us: int
    exchange: bytes
    promise: Promise = Promise.SAFE


class Trail:
    """`trail.arrived(...)` when messages come in; `trail.synced(safe_ticket)` after a sync."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._waiting: deque[_Arrived] = deque()

    def arrived(self, messages: Sequence[Message], stop: int, *, time_us: int, ticket: int) -> None:
        """Remember messages that were appended; the last one has the offset `stop` - 1."""
        start = stop - len(messages)
        for first, after, exchange, promise in _runs(messages):
            self._add(_Arrived(ticket, start + first, start + after, time_us, exchange, promise))

    def _add(self, new: _Arrived) -> None:
        if self._waiting:
            last = self._waiting[-1]
            close = new.time_us - last.time_us < _SAME_ENTRY_US and new.ticket == last.ticket
            mergeable = new.exchange == last.exchange and new.promise == last.promise
            if close and mergeable and new.start == last.stop:
                self._waiting[-1] = last._replace(stop=new.stop)
                return
        self._waiting.append(new)

    def forget(self, ranges: Sequence[Range]) -> None:
        """Forget messages that could not be written; their publishers were told so."""
        remaining = OffsetSet((run.start, run.stop) for run in self._waiting)
        remaining.remove_many(ranges)
        self._waiting = deque(
            run._replace(start=start, stop=stop)
            for run in self._waiting
            for start, stop in remaining.ranges(run.start, run.stop)
        )

    def synced(self, safe_ticket: int) -> bool:
        """Write entries for messages that are durable now; return whether none are left to wait for."""
        waiting = self._waiting
        while waiting and waiting[0].ticket <= safe_ticket:
            self._note(waiting.popleft())
        return not waiting

    def _note(self, arrived: _Arrived) -> None:
        self._cursor.note_synced(
            [(arrived.start, arrived.stop)],
            published_us=arrived.time_us,
            exchange=arrived.exchange,
            promise=arrived.promise,
        )

    def catch_up(self) -> None:
        """Write, after a restart, entries for durable messages that had none before the process ended."""
        noted_stop, gone = self._recent()
        noted_stop = noted_stop or self._noted_long_ago()
        if noted_stop:
            gone.remove(0, noted_stop)
        present = [
            (max(start, noted_stop), stop) for start, stop in self._cursor.log.present() if stop > noted_stop
        ]
        runs = list(self._runs_on_disk(present))
        # Without either, all messages may be transient.
        if noted_stop or runs:
            gone.remove_many(present)
            runs += [_Arrived(0, start, stop, 0, b"") for start, stop in gone.ranges()]
        for run in sorted(runs, key=attrgetter("start")):
            self._note(run._replace(promise=Promise.FOUND_SAFE))

    def _runs_on_disk(self, ranges: Sequence[Range]) -> Iterator[_Arrived]:
        for start, stop in ranges:
            # In pieces: there may be millions of messages, and their bodies are read too.
            for first in range(start, stop, _LOOK_BACK):
                records = self._cursor.log.read([(first, min(stop, first + _LOOK_BACK))])
                for run in _stretches(record for record in records if record.flags & PERSISTENT):
                    head = run[0]
                    yield _Arrived(0, head.offset, run[-1].offset + 1, head.time_us, head.exchange)

    def _recent(self) -> tuple[int, OffsetSet]:
        """Return the offset above the last message with an entry, and the messages settled since."""
        noted_stop, since_us, settled = 0, 0, OffsetSet()
        for entry in self._backwards():
            if entry.time_us < since_us:
                break
            if entry.kind is Kind.SYNCED and not entry.who and not noted_stop:
                noted_stop = max(stop for _, stop in entry.ranges)
                since_us = entry.not_before_us or entry.time_us
            # A settled message was on disk, or its settlement would not be.
            elif entry.kind is Kind.SETTLED and not _was_never_safe(entry):
                settled.add_many(entry.ranges)
        return noted_stop, settled

    def _noted_long_ago(self) -> int:
        """Return the offset below which messages had entries that the journal no longer holds."""
        journal = self._cursor.journal
        oldest = self._cursor.entries(journal.first, journal.first + 1) if journal.first else []
        return self._cursor.log.first_at(oldest[0].time_us) if oldest else 0

    def _backwards(self) -> Iterator[Entry]:
        """Yield the entries of the journal, the last one first."""
        journal = self._cursor.journal
        stop = journal.next
        while stop > journal.first:
            start = max(journal.first, stop - _LOOK_BACK)
            yield from reversed(self._cursor.entries(start, stop))
            stop = start


def _was_never_safe(entry: Entry) -> bool:
    """Return whether settled messages were never on disk; a failed publish is dropped without a reason."""
    return entry.outcome in _NEVER_SAFE or (entry.outcome == Outcome.DROPPED and not entry.why)


def _runs(messages: Sequence[Message]) -> Iterator[tuple[int, int, bytes, Promise]]:
    """Yield runs of messages of one exchange and durability, as positions; usually there is one run."""
    exchanges = list(map(_exchange_of, messages))
    has_one_exchange = exchanges.count(exchanges[0]) == len(exchanges)
    if has_one_exchange and not flags_of(messages).translate(None, PERSISTENT_FLAGS):
        yield 0, len(messages), exchanges[0], Promise.SAFE
        return
    position = 0
    for (exchange, kept), group in groupby(messages, key=lambda m: (m.exchange, m.flags & PERSISTENT)):
        count = len(list(group))
        yield position, position + count, exchange, Promise.SAFE if kept else Promise.NONE
        position += count


def _stretches(records: Iterator[Record]) -> Iterator[list[Record]]:
    """Yield runs of consecutive records with one time and one exchange."""
    run: list[Record] = []
    for record in records:
        last = run[-1] if run else record
        following = (last.offset + 1, last.time_us, last.exchange)
        if run and (record.offset, record.time_us, record.exchange) != following:
            yield run
            run = []
        run.append(record)
    if run:
        yield run
