"""What a queue with an audit window writes into its journal beside the rest: when what came in was safe.

One entry for each run of messages that came in together, once they are on disk: their offsets, when they were
published, through which exchange, and, as the entry's time, when they could be confirmed. So the audit knows
of a message whatever became of it: one that has an entry here, and is neither settled nor in the log, is
lost. Entries of transient messages say that they are: nothing is promised of them beyond a restart. What is
noted only after a restart was safe at a time that nobody knows, and its entry says that.
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

_TOGETHER_US: Final = 1000
"""What comes in so soon after something else is noted with it, at the time of the first."""
_LOOK_BACK: Final = 4096
_NEVER_SAFE: Final = (Outcome.RESTART, Outcome.SKIPPED)
"""Outcomes of what was not on disk, or never was."""

_exchange_of = itemgetter(Message._fields.index("exchange"))


class _Arrived(NamedTuple):
    """Messages that came in, and the ticket under which they are safe."""

    ticket: int
    start: int
    stop: int
    time_us: int
    exchange: bytes
    promise: Promise = Promise.SAFE


class Trail:
    """`trail.arrived(...)` when messages come in; `trail.synced(safe_ticket)` when the disk has them."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._waiting: deque[_Arrived] = deque()

    def arrived(self, messages: Sequence[Message], stop: int, *, time_us: int, ticket: int) -> None:
        """They have the offsets below `stop`."""
        start = stop - len(messages)
        for first, after, exchange, promise in _runs(messages):
            self._add(_Arrived(ticket, start + first, start + after, time_us, exchange, promise))

    def _add(self, new: _Arrived) -> None:
        if self._waiting:
            last = self._waiting[-1]
            near = new.time_us - last.time_us < _TOGETHER_US and new.ticket == last.ticket
            same = new.exchange == last.exchange and new.promise == last.promise
            if near and same and new.start == last.stop:
                self._waiting[-1] = last._replace(stop=new.stop)
                return
        self._waiting.append(new)

    def forget(self, ranges: Sequence[Range]) -> None:
        """These could not be written, and their publishers were told so."""
        left = OffsetSet((each.start, each.stop) for each in self._waiting)
        left.remove_many(ranges)
        self._waiting = deque(
            each._replace(start=start, stop=stop)
            for each in self._waiting
            for start, stop in left.ranges(each.start, each.stop)
        )

    def synced(self, safe_ticket: int) -> bool:
        """Notes what is safe now; whether all is."""
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
        """After a restart: what was safe, and was not noted before the process ended."""
        noted, gone = self._recent()
        noted = noted or self._noted_long_ago()
        if noted:
            gone.remove(0, noted)
        present = [(max(start, noted), stop) for start, stop in self._cursor.log.present() if stop > noted]
        found = list(self._present(present))
        if noted or found:  # or it may be that all are transient
            gone.remove_many(present)
            found += [_Arrived(0, start, stop, 0, b"") for start, stop in gone.ranges()]
        for each in sorted(found, key=attrgetter("start")):
            self._note(each._replace(promise=Promise.FOUND_SAFE))

    def _present(self, ranges: Sequence[Range]) -> Iterator[_Arrived]:
        for start, stop in ranges:
            for first in range(start, stop, _LOOK_BACK):  # there may be millions, with their bodies
                records = self._cursor.log.read([(first, min(stop, first + _LOOK_BACK))])
                for run in _stretches(record for record in records if record.flags & PERSISTENT):
                    head = run[0]
                    yield _Arrived(0, head.offset, run[-1].offset + 1, head.time_us, head.exchange)

    def _recent(self) -> tuple[int, OffsetSet]:
        """Behind the last message that was noted; and what was settled in the last moments.

        It was on disk, or its settlement were not. The log may not have it any more, so nobody knows when and
        through what it was published.
        """
        noted, since_us, settled = 0, 0, OffsetSet()
        for entry in self._backwards():
            if entry.time_us < since_us:
                break
            if entry.kind is Kind.SYNCED and not entry.who and not noted:
                noted = max(stop for _, stop in entry.ranges)
                since_us = entry.not_before_us or entry.time_us
            elif entry.kind is Kind.SETTLED and not _was_never_safe(entry):
                settled.add_many(entry.ranges)
        return noted, settled

    def _noted_long_ago(self) -> int:
        """What is older than all that the journal still tells was noted, though the entry is gone by now."""
        journal = self._cursor.journal
        oldest = self._cursor.entries(journal.first, journal.first + 1) if journal.first else []
        return self._cursor.log.first_at(oldest[0].time_us) if oldest else 0

    def _backwards(self) -> Iterator[Entry]:
        """The entries of the journal, the last one first."""
        journal = self._cursor.journal
        stop = journal.next
        while stop > journal.first:
            start = max(journal.first, stop - _LOOK_BACK)
            yield from reversed(self._cursor.entries(start, stop))
            stop = start


def _was_never_safe(entry: Entry) -> bool:
    """It was not on disk, or never was; a publish that could not be written is dropped without a reason."""
    return entry.outcome in _NEVER_SAFE or (entry.outcome == Outcome.DROPPED and not entry.why)


def _runs(messages: Sequence[Message]) -> Iterator[tuple[int, int, bytes, Promise]]:
    """Messages by exchange and whether they are transient: positions from and to. As a rule it is one run."""
    exchanges = list(map(_exchange_of, messages))
    same = exchanges.count(exchanges[0]) == len(exchanges)
    if same and not flags_of(messages).translate(None, PERSISTENT_FLAGS):
        yield 0, len(messages), exchanges[0], Promise.SAFE
        return
    position = 0
    for (exchange, kept), group in groupby(messages, key=lambda m: (m.exchange, m.flags & PERSISTENT)):
        count = len(list(group))
        yield position, position + count, exchange, Promise.SAFE if kept else Promise.NONE
        position += count


def _stretches(records: Iterator[Record]) -> Iterator[list[Record]]:
    """Records one behind the other, of one time and one exchange."""
    run: list[Record] = []
    for record in records:
        last = run[-1] if run else record
        if run and (record.offset, record.time_us, record.exchange) != (
            last.offset + 1,
            last.time_us,
            last.exchange,
        ):
            yield run
            run = []
        run.append(record)
    if run:
        yield run
