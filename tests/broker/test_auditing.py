"""When what came in was safe: runs of messages that wait for the disk, and what is noted of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from leveret.broker.auditing import Trail
from leveret.storage.offsets import Range
from leveret.storage.records import PERSISTENT, Message


class Noted(NamedTuple):
    ranges: list[Range]
    published_us: int
    exchange: bytes


class Notes:
    """A cursor, as far as a trail needs one."""

    def __init__(self) -> None:
        self.noted: list[Noted] = []

    def note_synced(self, ranges: Sequence[Range], *, published_us: int, exchange: bytes) -> None:
        self.noted.append(Noted(list(ranges), published_us, exchange))


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


def test_transient_messages_are_left_out():
    found, notes = trail()
    found.arrived([*some(2), *some(3, flags=0), *some(1)], 16, time_us=10, ticket=5)
    found.synced(5)
    assert notes.noted == [Noted([(10, 12)], 10, b"x"), Noted([(15, 16)], 10, b"x")]


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
