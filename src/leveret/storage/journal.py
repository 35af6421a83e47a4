"""What a cursor's journal says, entry by entry.

A journal is a log like any other (`log.py`), so that it is written, synced, recovered, rolled, deleted and
read into Arrow by the same code; its records are entries. The fields of a record carry them:

    offset, time   the entry's number, and when it happened
    flags          PERSISTENT | kind << 1
    priority       the outcome of a settlement; 1 for a return that is counted; of SYNCED a `Promise`; of
                   DELIVERED an `Attempt`
    routing key    who: the consumer's name
    exchange       why: the last error of what comes back, the reason for what is skipped or died; of SYNCED
                   the exchange that they were published to; else empty
    header         not before: u64 (us), and of SYNCED when they were published; empty when there is no such
    body           ranges of offsets: (start u64, stop u64) each

State is the fold of the entries in order: `Progress.apply`.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from enum import IntEnum
from itertools import chain
from typing import NamedTuple

from leveret.storage.offset_set import Range
from leveret.storage.records import PERSISTENT, Message, Record

ENTRY_BYTES = 40
"""What an entry takes beside its data."""


class Kind(IntEnum):
    """What an entry tells."""

    STARTED = 1
    """The cursor begins at the stop of the range; what is below does not concern it."""
    DELIVERED = 2
    """Its outcome is an `Attempt`: a second entry of an offset in flight says that its consumer has begun."""
    SETTLED = 3
    RETURNED = 4
    MARKED = 5
    """Anything below the stop of the range may have been delivered by now."""
    SYNCED = 6
    """For the audit, and of no effect: these offsets came in, and what was promised of them is the outcome, a
    `Promise`; or, with a consumer's name, they went to it, where the delivery itself names nobody, because it
    was to several.
    """
    REOPENED = 7
    """After an unclean stop: anything below the stop of the range may have been delivered before."""
    LEASED = 8
    """In flight, and not given back when the store is opened again: somebody keeps account of it."""
    RELEASED = 9
    """What was leased is ready again, as if nobody had had it."""
    SOUGHT = 10
    """The cursor goes on from the stop of the range, whatever was done before: also what lies behind it."""
    RECALLED = 11
    """What was settled is to be delivered once more."""
    MISSED = 12
    """For the audit, and of no effect: who had these did not settle them in time."""
    WITHHELD = 13
    """For the audit, and of no effect: these were taken, and sent to nobody, because they were over."""


class Promise(IntEnum):
    """What is promised of messages that came in."""

    SAFE = 0
    """They were durable at the entry's time."""
    NONE = 1
    """They are transient."""
    FOUND_SAFE = 2
    """They were durable when the store was opened again; since when, nobody has written down."""


class Attempt(IntEnum):
    """When a delivery counts as an attempt to handle the message."""

    WHEN_DELIVERED = 0
    """At once: the consumer does not tell when it begins."""
    WHEN_BEGUN = 1
    """When its consumer has begun; lost before that, the delivery does not count."""
    BEGUN = 2
    """Nothing is delivered: the consumer of these has begun."""


class Outcome(IntEnum):
    """How a message was settled."""

    ACKED = 1
    REJECTED = 2
    DEAD_LETTERED = 3
    EXPIRED = 4
    DROPPED = 5
    """To keep a length limit."""
    PURGED = 6
    SENT_TO_REJECTS = 7
    SKIPPED = 8
    RETENTION = 9
    RESTART = 10
    """A transient message, or one that never became durable, when the store was opened again."""
    DAMAGED = 11


class Entry(NamedTuple):
    """One entry: `Entry(Kind.SETTLED, [(5, 9)], outcome=Outcome.ACKED, who=b"ctag-1")`."""

    kind: Kind
    ranges: Sequence[Range]
    outcome: int = 0
    who: bytes = b""
    not_before_us: int = 0
    time_us: int = 0
    why: bytes = b""

    def message(self) -> Message:
        """As it is appended to a journal; the time is the append's."""
        return Message(
            self.why,
            self.who,
            self.not_before_us.to_bytes(8, "little") if self.not_before_us else b"",
            array("Q", chain.from_iterable(self.ranges)).tobytes(),
            PERSISTENT | self.kind << 1,
            self.outcome,
        )

    @classmethod
    def of(cls, record: Record) -> Entry:
        """As it is read from a journal."""
        flat = array("Q", record.body)
        return cls(
            Kind(record.flags >> 1),
            list(zip(flat[::2], flat[1::2], strict=True)),
            record.priority,
            record.routing_key,
            int.from_bytes(record.header, "little"),
            record.time_us,
            record.exchange,
        )
