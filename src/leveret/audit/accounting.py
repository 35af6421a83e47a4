"""The table of messages: rows about runs of offsets in, one row for each message and reader out.

`account` gets all rows (`storage.message_events`) of one chunk of one log: the contents of the log, and the
journal of each reader in order. It keeps an array with one place for each offset of the chunk, and applies
all rows of a kind at once. A message costs some tens of nanoseconds, and a chunk bounds the memory.

The rule: a message is lost when it was confirmed and is neither settled nor in the log. Nothing else is lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from leveret.audit.evidence import AuditedLog, Reader
from leveret.storage import well_known_names
from leveret.storage.journal import Kind, Outcome, Promise
from leveret.storage.message_events import CHUNK, CHUNK_BITS, Event

Column = NDArray[Any]

MESSAGES: Final = pa.schema(
    [
        ("vhost", pa.string()),
        ("queue", pa.string()),
        ("reader", pa.string()),
        ("offset", pa.int64()),
        ("published", pa.timestamp("us", tz="UTC")),
        ("exchange", pa.string()),
        ("persistent", pa.bool_()),
        ("confirmed", pa.timestamp("us", tz="UTC")),
        ("deliveries", pa.int32()),
        ("first_delivered", pa.timestamp("us", tz="UTC")),
        ("last_delivered", pa.timestamp("us", tz="UTC")),
        ("delivered_to", pa.string()),
        ("returns", pa.int32()),
        ("late", pa.int32()),
        ("settled", pa.timestamp("us", tz="UTC")),
        ("outcome", pa.string()),
        ("settled_by", pa.string()),
        ("why", pa.string()),
        ("done", pa.int32()),
        ("copies", pa.int32()),
        ("state", pa.string()),
    ]
)
"""A row for each message and reader. `reader` is empty for the queue itself, else the name of a group.
`done`: how often the message was settled as done; `copies`: how often it is in the log; `late`: missed
deadlines; `state`: one of `STATES`.
"""

READY, IN_FLIGHT, SETTLED, LOST, GONE = "ready", "in flight", "settled", "lost", "gone"
STATES: Final = (READY, IN_FLIGHT, SETTLED, LOST, GONE)
"""`gone`: a transient or unconfirmed message that is no longer in the log; nobody was promised anything."""
BEFORE: Final = "before the window"
"""The outcome of messages that were settled so long ago that the journal has forgotten how."""
_OUTCOMES: Final = {outcome.value: outcome.name.lower().replace("_", " ") for outcome in Outcome}
_RESTARTS: Final = (Kind.SOUGHT, Kind.RECALLED)
"""Kinds after which earlier settlements do not count."""
_TAKEN: Final = (Kind.DELIVERED, Kind.LEASED)
_WITHOUT_MESSAGE: Final = (Outcome.RESTART, Outcome.SKIPPED)
"""Outcomes that offsets without a message can have too."""
_OF_MESSAGES: Final = (Event.PUBLISHED, Kind.SYNCED, *_TAKEN)
"""Kinds that only offsets with a message have."""
_NOBODY: Final = -1
_OFFSETS_AT_ONCE_MAX: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows about one chunk, as columns; offsets count from the chunk's first."""

    event: Column
    start: Column
    stop: Column
    time_us: Column
    other_us: Column
    code: Column
    who: Column
    why: Column
    count: Column
    """How often the event happened."""

    def where(self, chosen: Column) -> Rows:
        return Rows(*(getattr(self, field.name)[chosen] for field in fields(self)))

    def of(self, *kinds: int) -> Rows:
        return self.where(np.isin(self.event, kinds))

    def spread(self) -> tuple[Column, Column]:
        """Return every offset of every row, and the index of its row."""
        sizes = self.stop - self.start
        row = np.repeat(np.arange(len(sizes)), sizes)
        offsets_before = np.cumsum(sizes) - sizes
        return np.arange(len(row)) - np.repeat(offsets_before - self.start, sizes), row

    def spread_backwards(self) -> tuple[Column, Column]:
        """Return offsets and rows in reverse order: an assignment then keeps the value of the first row."""
        at, row = self.spread()
        return at[::-1], row[::-1]

    def portions(self) -> Iterator[Rows]:
        """Yield the rows in order, a bounded number of offsets at a time."""
        ends = np.cumsum(self.stop - self.start)
        first = 0
        while first < len(ends):
            done = ends[first - 1] if first else 0
            next_ = int(np.searchsorted(ends, done + _OFFSETS_AT_ONCE_MAX, side="right"))
            after = max(first + 1, next_)
            yield self.where(np.arange(first, after))
            first = after

    def ranges(self) -> Iterator[tuple[int, int]]:
        return zip(self.start.tolist(), self.stop.tolist(), strict=True)


class JournalFacts:
    """Facts that one reader's journal holds about each message of a chunk; time 0 and name -1 mean none."""

    def __init__(self) -> None:
        self.published, self.confirmed, self.settled = _zeros(), _zeros(), _zeros()
        self.first_delivered, self.last_delivered = _zeros(), _zeros()
        self.deliveries, self.returns, self.late, self.done, self.outcome = (_zeros() for _ in range(5))
        self.exchange, self.delivered_to, self.settled_by, self.why = (_nobody() for _ in range(4))
        self.cursor_settled = np.zeros(CHUNK, bool)
        self.cursor_in_flight = np.zeros(CHUNK, bool)
        self.before_start = np.zeros(CHUNK, bool)
        """Offsets before the one at which the reader began."""
        self.durable = np.zeros(CHUNK, bool)
        """Messages that the journal notes as written to disk."""

    def apply(self, rows: Rows) -> None:
        """Apply all rows in order. After a seek or recall, earlier settlements do not count."""
        begin = 0
        for restart in np.flatnonzero(np.isin(rows.event, _RESTARTS)).tolist():
            self._apply_run(rows.where(np.arange(begin, restart)))
            self._forget_settlements(slice(rows.start[restart], rows.stop[restart]))
            begin = restart + 1
        self._apply_run(rows.where(np.arange(begin, len(rows.event))))

    def _apply_run(self, rows: Rows) -> None:
        for kind, flags in (
            (Event.STANDING, self.cursor_settled),
            (Event.HELD, self.cursor_in_flight),
            (Kind.STARTED, self.before_start),
        ):
            for start, stop in rows.of(kind).ranges():
                flags[start:stop] = True
        for portion in reversed(list(rows.of(Kind.SYNCED).portions())):
            self._synced(portion)
        for apply, kinds in (
            (self._taken, _TAKEN),
            (self._named, (*_TAKEN, Event.NAMED)),
            (self._returned, (Kind.RETURNED,)),
            (self._missed, (Kind.MISSED,)),
            (self._settled, (Kind.SETTLED,)),
        ):
            for portion in rows.of(*kinds).portions():
                apply(portion)
        self._passed(rows.of(Event.PASSED))
        self._withheld(rows.of(Kind.WITHHELD))

    def _synced(self, rows: Rows) -> None:
        """Apply the first note of each message: after a restart, a message can be noted twice."""
        at, row = rows.spread_backwards()
        self.durable[at] = (rows.code != Promise.NONE)[row]
        self.confirmed[at] = np.where(rows.code == Promise.SAFE, rows.time_us, 0)[row]
        self.published[at] = rows.other_us[row]
        self.exchange[at] = np.where(rows.other_us > 0, rows.why, _NOBODY)[row]

    def _taken(self, rows: Rows) -> None:
        at, row = rows.spread()
        new = self.first_delivered[at] == 0
        self.first_delivered[at[new][::-1]] = rows.time_us[row[new][::-1]]
        self.last_delivered[at] = rows.time_us[row]
        self.deliveries += _summed(at, rows.count[row])

    def _named(self, rows: Rows) -> None:
        """Keep the last consumer; a run of deliveries to several consumers has entries with their names."""
        at, row = rows.spread()
        self.delivered_to[at] = rows.who[row]

    def _returned(self, rows: Rows) -> None:
        at, row = rows.spread()
        self.returns += _summed(at, rows.count[row])

    def _missed(self, rows: Rows) -> None:
        at, row = rows.spread()
        self.late += _summed(at, rows.count[row])

    def _withheld(self, rows: Rows) -> None:
        """Take back deliveries that were noted and never sent."""
        at, _ = rows.spread()
        self.deliveries -= np.bincount(at, minlength=CHUNK)
        never = at[self.deliveries[at] == 0]
        self.first_delivered[never] = self.last_delivered[never] = 0
        self.delivered_to[never] = _NOBODY

    def _settled(self, rows: Rows) -> None:
        at, row = rows.spread()
        self.settled[at], self.outcome[at] = rows.time_us[row], rows.code[row]
        self.settled_by[at], self.why[at] = rows.who[row], rows.why[row]
        self.done += _summed(at, (rows.code == Outcome.ACKED)[row])

    def _passed(self, rows: Rows) -> None:
        at, row = rows.spread()
        new = (self.outcome[at] == 0) & ~self.before_start[at]
        at, row = at[new], row[new]
        self.settled[at], self.outcome[at] = rows.time_us[row], Outcome.SKIPPED
        self.settled_by[at] = rows.who[row]

    def _forget_settlements(self, offsets: slice) -> None:
        """Forget how messages were settled, because they are to be delivered again."""
        for column, nothing in (
            (self.settled, 0),
            (self.outcome, 0),
            (self.done, 0),
            (self.settled_by, _NOBODY),
            (self.why, _NOBODY),
            (self.before_start, False),
        ):
            column[offsets] = nothing

    @property
    def in_flight(self) -> Column:
        in_flight: Column = self.cursor_in_flight & (self.outcome == 0)
        return in_flight

    @property
    def is_message(self) -> Column:
        """Offsets of which the journal proves that they had a message."""
        ended = (self.outcome > 0) & ~np.isin(self.outcome, _WITHOUT_MESSAGE)
        is_message: Column = self.durable | (self.published > 0) | (self.deliveries > 0) | ended
        return is_message


def account(rows: pa.Table, log: AuditedLog) -> pa.Table:
    """Return the messages of one chunk of a log."""
    nothing = MESSAGES.empty_table()
    if not _has_messages(rows):
        return nothing
    base = rows["chunk"][0].as_py() << CHUNK_BITS
    names, by_reader = _by_reader(rows, base)
    own = [by_reader[reader.id] for reader in log.readers if reader.own and reader.id in by_reader]
    contents = _LogContents(log, base, names, aborted=_aborted(own, names))
    if 0 in by_reader:
        contents.add(by_reader[0])
    tables = []
    for reader in log.readers:
        facts = JournalFacts()
        if reader.id in by_reader:
            facts.apply(by_reader[reader.id])
        tables.append(contents.messages(reader, facts))
    return pa.concat_tables([nothing, *tables])


def _aborted(own: Sequence[Rows], names: pa.Array) -> Column:
    """Return which offsets an aborted batch has written: nobody could see these messages."""
    aborted = np.zeros(CHUNK, bool)
    is_abort = pc.equal(names, well_known_names.ABORTED).to_numpy(zero_copy_only=False)
    for rows in own:
        dropped = (rows.event == Kind.SETTLED) & (rows.code == Outcome.DROPPED) & is_abort[rows.who]
        for start, stop in rows.where(dropped).ranges():
            aborted[start:stop] = True
    return aborted


def _has_messages(rows: pa.Table) -> bool:
    """Return whether a chunk has messages: after a power cut, offsets continue far above the last message."""
    event, code = rows["event"].to_numpy(), rows["code"].to_numpy()
    ended = (event == Kind.SETTLED) & ~np.isin(code, _WITHOUT_MESSAGE)
    return bool((np.isin(event, _OF_MESSAGES) | ended).any())


class _LogContents:
    """The records of a chunk that are in the log; with a reader's facts, they make the table of messages."""

    def __init__(self, log: AuditedLog, base: int, names: pa.Array, *, aborted: Column) -> None:
        """`base` is the first offset of the chunk; `aborted` offsets count as never published."""
        self._log, self._base, self._names, self._aborted = log, base, names, aborted
        self._time, self._copies = _zeros(), _zeros()
        self._persistent = np.zeros(CHUNK, bool)
        self._exchange = _nobody()

    def add(self, rows: Rows) -> None:
        at, row = rows.spread()
        self._time[at], self._exchange[at] = rows.time_us[row], rows.why[row]
        self._persistent[at] = rows.code[row] > 0
        self._copies += np.bincount(at, minlength=CHUNK)

    def messages(self, reader: Reader, facts: JournalFacts) -> pa.Table:
        stored = self._copies > 0
        concerns_reader = reader.own | (facts.outcome > 0) | ~(facts.before_start | facts.cursor_settled)
        at = np.flatnonzero((facts.is_message | (stored & concerns_reader)) & ~self._aborted)
        time = np.where(self._time > 0, self._time, facts.published)[at]
        exchange = np.where(self._exchange >= 0, self._exchange, facts.exchange)[at]
        columns = {
            "vhost": pa.repeat(self._log.vhost, len(at)),
            "queue": pa.repeat(self._log.queue, len(at)),
            "reader": pa.repeat(reader.name, len(at)),
            "offset": at + self._base,
            "published": _times(time),
            "exchange": self._names_of(exchange),
            "persistent": self._persistent[at] | facts.durable[at],
            "confirmed": _times(facts.confirmed[at]),
            "deliveries": facts.deliveries[at],
            "first_delivered": _times(facts.first_delivered[at]),
            "last_delivered": _times(facts.last_delivered[at]),
            "delivered_to": self._names_of(facts.delivered_to[at]),
            "returns": facts.returns[at],
            "late": facts.late[at],
            "settled": _times(facts.settled[at]),
            "outcome": _outcomes(facts, at),
            "settled_by": self._names_of(facts.settled_by[at]),
            "why": self._names_of(facts.why[at]),
            "done": facts.done[at],
            "copies": self._copies[at],
            "state": _states(facts, stored, at, own=reader.own),
        }
        arrays = [
            (column if isinstance(column, pa.Array) else pa.array(column)).cast(MESSAGES.field(name).type)
            for name, column in columns.items()
        ]
        return pa.Table.from_arrays(arrays, schema=MESSAGES)

    def _names_of(self, codes: Column) -> pa.Array:
        return self._names.take(pa.array(codes, mask=codes < 0))


def _states(facts: JournalFacts, stored: Column, at: Column, *, own: bool) -> pa.Array:
    settled = (facts.outcome > 0) | facts.cursor_settled
    given_up = np.isin(facts.outcome, (Outcome.RESTART, Outcome.DAMAGED))
    states = np.full(CHUNK, STATES.index(READY), np.int8)
    states[~stored] = STATES.index(GONE)
    states[facts.in_flight & (stored | ~facts.durable)] = STATES.index(IN_FLIGHT)
    states[settled] = STATES.index(SETTLED)
    if own:
        states[facts.durable & (given_up | ~(settled | stored))] = STATES.index(LOST)
    return pa.array(STATES).take(pa.array(states[at]))


def _outcomes(facts: JournalFacts, at: Column) -> pa.Array:
    codes = facts.outcome[at]
    codes[(codes == 0) & facts.cursor_settled[at]] = len(_OUTCOMES) + 1
    names = pa.array([None, *_OUTCOMES.values(), BEFORE])
    return names.take(pa.array(codes))


def _by_reader(table: pa.Table, base: int) -> tuple[pa.Array, dict[int, Rows]]:
    """Return all names, and the rows of each reader in the order of its journal; reader 0 is the log.

    `who` and `why` of the rows are indexes into the names.
    """
    names, who, why = _encoded_names(table)
    column = {
        name: table[name].to_numpy()
        for name in ("reader", "number", "event", "start", "stop", "time_us", "other_us", "code", "count")
    }
    rows = Rows(
        column["event"],
        column["start"] - base,
        column["stop"] - base,
        column["time_us"],
        column["other_us"],
        column["code"],
        who,
        why,
        column["count"],
    )
    is_stage = pc.starts_with(names, well_known_names.STAGE).to_numpy(zero_copy_only=False)
    counts = ~((rows.event == Kind.LEASED) & is_stage[who])
    by_reader = {}
    for reader in np.unique(column["reader"]):
        chosen = np.flatnonzero((column["reader"] == reader) & counts)
        order = np.argsort(column["number"][chosen], kind="stable")
        by_reader[int(reader)] = rows.where(chosen[order])
    return names, by_reader


def _encoded_names(table: pa.Table) -> tuple[pa.Array, Column, Column]:
    both = pa.concat_arrays([chunk for name in ("who", "why") for chunk in table[name].chunks])
    encoded = both.dictionary_encode()
    codes = encoded.indices.to_numpy()
    return encoded.dictionary, codes[: len(table)], codes[len(table) :]


def _summed(at: Column, counts: Column) -> Column:
    """Return the sum of the counts at each offset of a chunk."""
    sums: Column = np.bincount(at, weights=counts, minlength=CHUNK).astype(np.int64)
    return sums


def _times(times_us: Column) -> pa.Array:
    return pa.array(times_us, pa.int64(), mask=times_us == 0)


def _zeros() -> Column:
    return np.zeros(CHUNK, np.int64)


def _nobody() -> Column:
    return np.full(CHUNK, _NOBODY, np.int64)
