"""What became of each message of one chunk: rows about runs of offsets in, a row for each message out.

`account` gets all rows (`storage.events`) of one chunk of one log: what is in the log, and what each reader's
journal says, in its order. It keeps an array for each thing that is to be known, one place for each offset of
the chunk, and works through the rows of a kind at once: so a message costs some tens of nanoseconds, and
memory is that of a chunk, however many messages there are.

The rule: a message is lost when it was confirmed, and is neither settled nor there; nothing else is.
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
"""A row for each message and reader, which is empty for the queue itself, else a group. `done`: how often it
was settled as done; `copies`: how often it is in the log; `late`: how often a deadline was missed; the state
is one of `STATES`.
"""

READY, IN_FLIGHT, SETTLED, LOST, GONE = "ready", "in flight", "settled", "lost", "gone"
STATES: Final = (READY, IN_FLIGHT, SETTLED, LOST, GONE)
"""`gone`: nobody was promised anything, and it is not there: a transient message, or one not confirmed."""
BEFORE: Final = "before the window"
"""The outcome of what was settled so long ago that nobody knows how."""
_OUTCOMES: Final = {each.value: each.name.lower().replace("_", " ") for each in Outcome}
_ENDS: Final = (Kind.SOUGHT, Kind.RECALLED)
"""Kinds after which what was settled before does not count."""
_TAKEN: Final = (Kind.DELIVERED, Kind.LEASED)
_ALSO_OF_NOTHING: Final = (Outcome.RESTART, Outcome.SKIPPED)
"""Outcomes that also offsets get that no message ever had."""
_MAKE_KNOWN: Final = (Event.PUBLISHED, Kind.SYNCED, *_TAKEN)
"""What only messages have."""
_NOBODY: Final = -1
_SPREAD_MOST: Final = 4 << 20


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
    """How often it happened."""

    def where(self, chosen: Column) -> Rows:
        return Rows(*(getattr(self, each.name)[chosen] for each in fields(self)))

    def of(self, *kinds: int) -> Rows:
        return self.where(np.isin(self.event, kinds))

    def spread(self) -> tuple[Column, Column]:
        """Every offset of every row, and the row it belongs to."""
        sizes = self.stop - self.start
        row = np.repeat(np.arange(len(sizes)), sizes)
        ahead = np.cumsum(sizes) - sizes
        return np.arange(len(row)) - np.repeat(ahead - self.start, sizes), row

    def backwards(self) -> tuple[Column, Column]:
        """The same from the last row to the first: what is set then is what came first."""
        at, row = self.spread()
        return at[::-1], row[::-1]

    def portions(self) -> Iterator[Rows]:
        """The same in the same order, so few at a time that what they spread to is bounded."""
        behind = np.cumsum(self.stop - self.start)
        first = 0
        while first < len(behind):
            before = behind[first - 1] if first else 0
            after = max(first + 1, int(np.searchsorted(behind, before + _SPREAD_MOST, side="right")))
            yield self.where(np.arange(first, after))
            first = after

    def spans(self) -> Iterator[tuple[int, int]]:
        return zip(self.start.tolist(), self.stop.tolist(), strict=True)


class Fates:
    """What one reader's journal says of each message of a chunk; 0 is no time, -1 nobody."""

    def __init__(self) -> None:
        self.published, self.confirmed, self.first, self.last, self.settled = (_zeros() for _ in range(5))
        self.deliveries, self.returns, self.late, self.done, self.outcome = (_zeros() for _ in range(5))
        self.exchange, self.to, self.by, self.why = (_nobody() for _ in range(4))
        self.standing, self.held, self.outside, self.safe = (np.zeros(CHUNK, bool) for _ in range(4))
        """Settled, says the cursor; in flight, says it; none of its business, because it began behind it; on
        disk, somebody has noted."""

    def follow(self, rows: Rows) -> None:
        """All that happened, in its order."""
        ends = np.flatnonzero(np.isin(rows.event, _ENDS))
        begin = 0
        for end in ends.tolist():
            self._happened(rows.where(np.arange(begin, end)))
            self._begin_again(slice(rows.start[end], rows.stop[end]))
            begin = end + 1
        self._happened(rows.where(np.arange(begin, len(rows.event))))

    def _happened(self, rows: Rows) -> None:
        for kind, known in (
            (Event.STANDING, self.standing),
            (Event.HELD, self.held),
            (Kind.STARTED, self.outside),
        ):
            for start, stop in rows.of(kind).spans():
                known[start:stop] = True
        for part in reversed(list(rows.of(Kind.SYNCED).portions())):
            self._arrived(part)
        for work, kinds in (
            (self._taken, _TAKEN),
            (self._named, (*_TAKEN, Event.NAMED)),
            (self._came_back, (Kind.RETURNED,)),
            (self._missed, (Kind.MISSED,)),
            (self._settled, (Kind.SETTLED,)),
        ):
            for part in rows.of(*kinds).portions():
                work(part)
        self._passed(rows.of(Event.PASSED))
        self._withheld(rows.of(Kind.WITHHELD))

    def _arrived(self, rows: Rows) -> None:
        """What was noted twice, after a restart, counts from the first time on."""
        at, row = rows.backwards()
        self.safe[at] = (rows.code != Promise.NONE)[row]
        self.confirmed[at] = np.where(rows.code == Promise.SAFE, rows.time_us, 0)[row]
        self.published[at] = rows.other_us[row]
        self.exchange[at] = np.where(rows.other_us > 0, rows.why, _NOBODY)[row]

    def _taken(self, rows: Rows) -> None:
        at, row = rows.spread()
        new = self.first[at] == 0
        self.first[at[new][::-1]] = rows.time_us[row[new][::-1]]
        self.last[at] = rows.time_us[row]
        self.deliveries += _summed(at, rows.count[row])

    def _named(self, rows: Rows) -> None:
        """To whom it went the last time; where it went to several, that is told by an entry of its own."""
        at, row = rows.spread()
        self.to[at] = rows.who[row]

    def _came_back(self, rows: Rows) -> None:
        at, row = rows.spread()
        self.returns += _summed(at, rows.count[row])

    def _missed(self, rows: Rows) -> None:
        at, row = rows.spread()
        self.late += _summed(at, rows.count[row])

    def _withheld(self, rows: Rows) -> None:
        """What was taken and not sent is no delivery."""
        at, _ = rows.spread()
        self.deliveries -= np.bincount(at, minlength=CHUNK)
        never = at[self.deliveries[at] == 0]
        self.first[never] = self.last[never] = 0
        self.to[never] = _NOBODY

    def _settled(self, rows: Rows) -> None:
        at, row = rows.spread()
        self.settled[at], self.outcome[at] = rows.time_us[row], rows.code[row]
        self.by[at], self.why[at] = rows.who[row], rows.why[row]
        self.done += _summed(at, (rows.code == Outcome.ACKED)[row])

    def _passed(self, rows: Rows) -> None:
        at, row = rows.spread()
        new = (self.outcome[at] == 0) & ~self.outside[at]
        at, row = at[new], row[new]
        self.settled[at], self.outcome[at], self.by[at] = rows.time_us[row], Outcome.SKIPPED, rows.who[row]

    def _begin_again(self, part: slice) -> None:
        """What was settled is to be delivered once more."""
        for known, nothing in (
            (self.settled, 0),
            (self.outcome, 0),
            (self.done, 0),
            (self.by, _NOBODY),
            (self.why, _NOBODY),
            (self.outside, False),
        ):
            known[part] = nothing

    @property
    def in_flight(self) -> Column:
        found: Column = self.held & (self.outcome == 0)
        return found

    @property
    def touched(self) -> Column:
        """Of which the journal tells something."""
        told = (self.outcome > 0) & ~np.isin(self.outcome, _ALSO_OF_NOTHING)
        found: Column = self.safe | (self.published > 0) | (self.deliveries > 0) | told
        return found


def account(rows: pa.Table, log: AuditedLog) -> pa.Table:
    """The messages of one chunk of a log."""
    none = MESSAGES.empty_table()
    if not _tells_of_any(rows):
        return none
    base = rows["chunk"][0].as_py() << CHUNK_BITS
    names, by_reader = _sorted_out(rows, base)
    own = [by_reader[reader.id] for reader in log.readers if reader.own and reader.id in by_reader]
    found = _Found(log, base, names, never=_never_published(own, names))
    there = by_reader.get(0)
    if there is not None:
        found.publish(there)
    tables = []
    for reader in log.readers:
        fates = Fates()
        if reader.id in by_reader:
            fates.follow(by_reader[reader.id])
        tables.append(found.table(reader, fates))
    return pa.concat_tables([none, *tables])


def _never_published(own: Sequence[Rows], names: pa.Array) -> Column:
    """What a batch has written that was aborted: nobody could see it, and nobody was promised anything."""
    found = np.zeros(CHUNK, bool)
    aborted = pc.equal(names, well_known_names.ABORTED).to_numpy(zero_copy_only=False)
    for rows in own:
        dropped = (rows.event == Kind.SETTLED) & (rows.code == Outcome.DROPPED) & aborted[rows.who]
        for start, stop in rows.where(dropped).spans():
            found[start:stop] = True
    return found


def _tells_of_any(rows: pa.Table) -> bool:
    """Many chunks hold no messages: after a power cut, offsets go on far above."""
    event, code = rows["event"].to_numpy(), rows["code"].to_numpy()
    ended = (event == Kind.SETTLED) & ~np.isin(code, _ALSO_OF_NOTHING)
    return bool((np.isin(event, _MAKE_KNOWN) | ended).any())


class _Found:
    """What is in the log, and with what a reader says, the messages."""

    def __init__(self, log: AuditedLog, base: int, names: pa.Array, *, never: Column) -> None:
        """`never`: what counts as never published."""
        self._log, self._base, self._names, self._never = log, base, names, never
        self._time, self._copies = _zeros(), _zeros()
        self._persistent = np.zeros(CHUNK, bool)
        self._exchange = _nobody()

    def publish(self, rows: Rows) -> None:
        at, row = rows.spread()
        self._time[at], self._exchange[at] = rows.time_us[row], rows.why[row]
        self._persistent[at] = rows.code[row] > 0
        self._copies += np.bincount(at, minlength=CHUNK)

    def table(self, reader: Reader, fates: Fates) -> pa.Table:
        there = self._copies > 0
        concerned = reader.own | (fates.outcome > 0) | ~(fates.outside | fates.standing)
        at = np.flatnonzero((fates.touched | (there & concerned)) & ~self._never)
        time = np.where(self._time > 0, self._time, fates.published)[at]
        exchange = np.where(self._exchange >= 0, self._exchange, fates.exchange)[at]
        columns = {
            "vhost": pa.repeat(self._log.vhost, len(at)),
            "queue": pa.repeat(self._log.queue, len(at)),
            "reader": pa.repeat(reader.name, len(at)),
            "offset": at + self._base,
            "published": _times(time),
            "exchange": self._named(exchange),
            "persistent": self._persistent[at] | fates.safe[at],
            "confirmed": _times(fates.confirmed[at]),
            "deliveries": fates.deliveries[at],
            "first_delivered": _times(fates.first[at]),
            "last_delivered": _times(fates.last[at]),
            "delivered_to": self._named(fates.to[at]),
            "returns": fates.returns[at],
            "late": fates.late[at],
            "settled": _times(fates.settled[at]),
            "outcome": _outcomes(fates, at),
            "settled_by": self._named(fates.by[at]),
            "why": self._named(fates.why[at]),
            "done": fates.done[at],
            "copies": self._copies[at],
            "state": _states(fates, there, at, own=reader.own),
        }
        arrays = [
            (each if isinstance(each, pa.Array) else pa.array(each)).cast(MESSAGES.field(name).type)
            for name, each in columns.items()
        ]
        return pa.Table.from_arrays(arrays, schema=MESSAGES)

    def _named(self, codes: Column) -> pa.Array:
        return self._names.take(pa.array(codes, mask=codes < 0))


def _states(fates: Fates, there: Column, at: Column, *, own: bool) -> pa.Array:
    settled = (fates.outcome > 0) | fates.standing
    ended = np.isin(fates.outcome, (Outcome.RESTART, Outcome.DAMAGED))
    states = np.full(CHUNK, STATES.index(READY), np.int8)
    states[~there] = STATES.index(GONE)
    states[fates.in_flight & (there | ~fates.safe)] = STATES.index(IN_FLIGHT)
    states[settled] = STATES.index(SETTLED)
    if own:
        states[fates.safe & (ended | ~(settled | there))] = STATES.index(LOST)
    return pa.array(STATES).take(pa.array(states[at]))


def _outcomes(fates: Fates, at: Column) -> pa.Array:
    codes = fates.outcome[at]
    codes[(codes == 0) & fates.standing[at]] = len(_OUTCOMES) + 1
    names = pa.array([None, *_OUTCOMES.values(), BEFORE])
    return names.take(pa.array(codes))


def _sorted_out(table: pa.Table, base: int) -> tuple[pa.Array, dict[int, Rows]]:
    """The rows by reader, each in the order of its journal; who and why as numbers of a list of names."""
    names, who, why = _names_of(table)
    plain = {
        name: table[name].to_numpy()
        for name in ("reader", "number", "event", "start", "stop", "time_us", "other_us", "code", "count")
    }
    readers = plain["reader"]
    rows = Rows(
        plain["event"],
        plain["start"] - base,
        plain["stop"] - base,
        plain["time_us"],
        plain["other_us"],
        plain["code"],
        who,
        why,
        plain["count"],
    )
    counted = ~((rows.event == Kind.LEASED) & _begin(names, well_known_names.STAGE)[who])
    found = {}
    for reader in np.unique(readers):
        chosen = np.flatnonzero((readers == reader) & counted)
        order = np.argsort(plain["number"][chosen], kind="stable")
        found[int(reader)] = rows.where(chosen[order])
    return names, found


def _begin(names: pa.Array, text: str) -> Column:
    """Which of them begin with it."""
    found: Column = pc.starts_with(names, text).to_numpy(zero_copy_only=False)
    return found


def _names_of(table: pa.Table) -> tuple[pa.Array, Column, Column]:
    both = pa.concat_arrays([chunk for name in ("who", "why") for chunk in table[name].chunks])
    encoded = both.dictionary_encode()
    codes = encoded.indices.to_numpy()
    return encoded.dictionary, codes[: len(table)], codes[len(table) :]


def _summed(at: Column, counts: Column) -> Column:
    """What comes together at each offset of a chunk."""
    found: Column = np.bincount(at, weights=counts, minlength=CHUNK).astype(np.int64)
    return found


def _times(times_us: Column) -> pa.Array:
    return pa.array(times_us, pa.int64(), mask=times_us == 0)


def _zeros() -> Column:
    return np.zeros(CHUNK, np.int64)


def _nobody() -> Column:
    return np.full(CHUNK, _NOBODY, np.int64)
