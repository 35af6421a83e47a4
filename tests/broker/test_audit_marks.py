"""When what came in was safe: runs of messages that wait for the disk, and what is noted of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from leveret.broker.queues.audit_marks import Trail
from leveret.storage.journal import Entry, Kind, Outcome, Promise
from leveret.storage.offset_set import Range
from leveret.storage.records import PERSISTENT, Message, Record


class Noted(NamedTuple):
    ranges: list[Range]
    published_us: int
    exchange: bytes
    promise: Promise = Promise.SAFE


class Notes:
    """A cursor, as far as a trail needs one."""

    def __init__(self) -> None:
        self.noted: list[Noted] = []

    def note_synced(self, ranges: Sequence[Range], **noted: Any) -> None:
        self.noted.append(Noted(list(ranges), **noted))


def some(count: int, exchange: bytes = b"x", flags: int = PERSISTENT) -> list[Message]:
    return [Message(exchange, b"key", b"", b"body", flags, 0)] * count


def trail() -> tuple[Trail, Notes]:
    notes = Notes()
    return Trail(notes), notes  # type: ignore[arg-type]


def test_nothing_is_noted_before_it_is_safe():
    found, notes = trail()
    found.arrived(some(3), 3, time_us=10, ticket=5)
    found.arrived(some(2), 5, time_us=20, ticket=6)
    assert not found.synced(4)
    assert notes.noted == []
    assert not found.synced(5)
    assert notes.noted == [Noted([(0, 3)], 10, b"x")]
    assert found.synced(6)
    assert notes.noted[1:] == [Noted([(3, 5)], 20, b"x")]


def test_what_comes_in_together_is_noted_together():
    found, notes = trail()
    for stop in range(1, 5):
        found.arrived(some(1), stop, time_us=10 + stop, ticket=5)
    found.arrived(some(1), 5, time_us=2000, ticket=5)
    found.arrived(some(1, b"y"), 6, time_us=2000, ticket=5)
    found.synced(5)
    assert notes.noted == [
        Noted([(0, 4)], 11, b"x"),
        Noted([(4, 5)], 2000, b"x"),
        Noted([(5, 6)], 2000, b"y"),
    ]


def test_of_transient_messages_it_is_said_that_they_are():
    found, notes = trail()
    found.arrived([*some(2), *some(3, flags=0), *some(1)], 16, time_us=10, ticket=5)
    found.synced(5)
    assert notes.noted == [
        Noted([(10, 12)], 10, b"x"),
        Noted([(12, 15)], 10, b"x", Promise.NONE),
        Noted([(15, 16)], 10, b"x"),
    ]


def test_what_could_not_be_written_is_forgotten_and_the_rest_is_not():
    found, notes = trail()
    found.arrived(some(4), 4, time_us=10, ticket=5)
    found.arrived(some(6), 10, time_us=3000, ticket=6)
    found.forget([(2, 6), (8, 9)])
    assert found.synced(6)
    assert notes.noted == [
        Noted([(0, 2)], 10, b"x"),
        Noted([(6, 8)], 3000, b"x"),
        Noted([(9, 10)], 3000, b"x"),
    ]


def test_what_the_journal_is_too_young_to_tell_was_noted_long_ago():
    """Of a queue that has been emptied for longer than its window the notes are gone, the messages not."""
    messages = [
        Record(offset, 100 + offset, b"x", b"key", b"", b"body", PERSISTENT, 0) for offset in range(20)
    ]

    class Log:
        def present(self) -> list[Range]:
            return [(0, 20)]

        def first_at(self, time_us: int) -> int:
            return next(each.offset for each in messages if each.time_us >= time_us)

        def read(self, ranges: Sequence[Range]) -> list[Record]:
            ((start, stop),) = ranges
            assert start >= 17, "what is older need not be read again"
            return messages[start:stop]

    class Journal:
        first, next = 5, 7

    class Cut(Notes):
        log, journal = Log(), Journal()

        def entries(self, start: int, stop: int) -> list[Entry]:
            told = [Entry(Kind.SETTLED, [(n, n + 1)], Outcome.ACKED, time_us=112 + n) for n in (5, 6)]
            return told[start - 5 : stop - 5]

    notes = Cut()
    Trail(notes).catch_up()  # type: ignore[arg-type]
    assert [each.ranges for each in notes.noted] == [[(17, 18)], [(18, 19)], [(19, 20)]]
