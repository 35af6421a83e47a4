"""The entries of a cursor's journal.

A journal is a log (`log.py`), so the code for logs writes, syncs, recovers, deletes and reads it. Each record
is one entry; its fields hold:

    offset, time   number and time of the entry
    flags          PERSISTENT | kind << 1
    priority       outcome of a settlement; 1 for a return that is counted; for SYNCED a `Promise`; for
                   DELIVERED an `Attempt`
    routing key    who: the consumer's name
    exchange       why: the reason of a return, a skip or a dead letter; for SYNCED the exchange that the
                   messages were published to; otherwise empty
    header         not before: u64 (us); for SYNCED the time of the publish; empty for none
    body           ranges of offsets: (start u64, stop u64) each

`Progress.apply` computes the cursor's state from the entries. The rule: they are applied in order.
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
"""Bytes of an entry without its data."""


class Kind(IntEnum):
    """What happened to the messages of an entry."""

    STARTED = 1
    """The cursor begins at the stop of the range. Messages below do not concern it."""
    DELIVERED = 2
    """Put in flight, or, with `Attempt.BEGUN` as the outcome, begun by their consumer."""
    SETTLED = 3
    RETURNED = 4
    MARKED = 5
    """The mark is the stop of the range: any message below it may have been delivered by now."""
    SYNCED = 6
    """For the audit, without effect: the messages were published, with a `Promise` as the outcome. Or, with a
    consumer's name, they went to this one of the several consumers that their delivery was for.
    """
    REOPENED = 7
    """After an unclean stop: any message below the stop of the range may have been delivered before."""
    LEASED = 8
    """In flight, also when the store is opened again, until they are released, returned or settled."""
    RELEASED = 9
    """Leased messages became ready again, without counting an attempt."""
    SOUGHT = 10
    """The cursor continues from the stop of the range, ahead or back, whatever was settled before."""
    RECALLED = 11
    """Settled messages became ready once more."""
    MISSED = 12
    """For the audit, without effect: the consumer did not settle the messages in time."""
    WITHHELD = 13
    """For the audit, without effect: the messages were taken but delivered to no consumer."""


class Promise(IntEnum):
    """How durable published messages were at the time of their entry."""

    SAFE = 0
    """Durable at the entry's time."""
    NONE = 1
    """Transient."""
    FOUND_SAFE = 2
    """Durable when the store was opened again. Since when is unknown."""


class Attempt(IntEnum):
    """When a delivery counts as an attempt to handle the message."""

    WHEN_DELIVERED = 0
    """At delivery: the consumer does not call `Cursor.begin`."""
    WHEN_BEGUN = 1
    """When the consumer has begun. A delivery that is lost before does not count."""
    BEGUN = 2
    """Now, without a delivery: the consumer has begun with the messages."""


class Outcome(IntEnum):
    """How a message was settled."""

    ACKED = 1
    REJECTED = 2
    DEAD_LETTERED = 3
    EXPIRED = 4
    DROPPED = 5
    """Removed to keep a length limit."""
    PURGED = 6
    SENT_TO_REJECTS = 7
    SKIPPED = 8
    RETENTION = 9
    RESTART = 10
    """Not recovered when the store was opened again: transient, or never durable."""
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
        """Return the entry as a message for the journal. The append sets its time."""
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
