"""A log with two readers that use every operation of a cursor, and a plain model of each message.

The queue's own reader and a group, which begins later, take, settle, return, drop, lease, release, seek and
recall at random. The store is checkpointed, closed and killed in between. The audit of the disk must agree
with the model. Everything follows from the seed: `CursorHistory(7, path).run()`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from leveret.storage.cursor import Cursor
from leveret.storage.journal import Outcome
from leveret.storage.log import Log
from leveret.storage.offset_set import Range
from leveret.storage.retention import Retention
from leveret.storage.store import Options, Store
from leveret.testing.disk import SimulatedDisk
from tests.audit.reckoning import Reckoned, copy_disk, reckon_directory
from tests.storage.builders import Clock, make_store, messages, offsets, runs

_COMPARED = ("state", "outcome", "deliveries", "delivered_to", "returns", "done", "settled_by", "why")
CONSUMED = ("acked", "rejected", "sent to rejects", "skipped")
WHO, WHY = (b"", b"c", b"d"), (b"", b"broken")
OWN, GROUP = "queue", "group-1"
ENDS = (Outcome.ACKED, Outcome.ACKED, Outcome.REJECTED, Outcome.DEAD_LETTERED, Outcome.SENT_TO_REJECTS)
SMALL = Options(
    wal_bytes=16 << 10, segment_bytes=2 << 10, memory_bytes=8 << 10, snapshot_bytes=200, reserve_ahead=50
)


@dataclass
class Fate:
    """The expected facts of one message for one reader."""

    state: str = "ready"
    leased: bool = False
    outcome: str | None = None
    deliveries: int = 0
    delivered_to: str | None = None
    returns: int = 0
    done: int = 0
    settled_by: str | None = None
    why: str | None = None

    def taken(self, who: bytes, *, leased: bool = False) -> None:
        self.state, self.leased, self.delivered_to = "in flight", leased, who.decode()
        self.deliveries += 1

    def settled(self, outcome: Outcome, who: bytes, why: bytes | None) -> None:
        self.state, self.outcome = "settled", outcome.name.lower().replace("_", " ")
        self.settled_by, self.why = who.decode(), None if why is None else why.decode()
        self.done += outcome is Outcome.ACKED

    def returned(self) -> None:
        self.state = "ready"
        self.returns += 1

    def again(self) -> None:
        self.state, self.outcome, self.done = "ready", None, 0
        self.settled_by = self.why = None

    @property
    def consumed(self) -> bool:
        """Whether a consumer has reached the message."""
        return self.outcome in CONSUMED or (self.outcome == "dead lettered" and self.deliveries > 0)


@dataclass
class Reader:
    cursor: Cursor
    fates: dict[int, Fate] = field(default_factory=dict)
    """The expected facts of the messages that concern the reader, by offset."""

    def of(self, ranges: Iterable[Range]) -> list[Fate]:
        return [self.fates[offset] for offset in offsets(ranges)]


class CursorHistory:
    def __init__(self, seed: int, place: Path) -> None:
        self.random = Random(seed)
        self.disk = SimulatedDisk(seed=seed)
        self.clock = Clock()
        self.offsets: list[int] = []
        self._place = place
        self.store = make_store(self.disk, self.clock, options=SMALL)
        self.log = self.store.create_log(
            label=json.dumps(["/", "topic.0"]), retention=Retention(keep_settled=True)
        )
        self.readers = {OWN: Reader(self._cursor(OWN))}
        self.append()
        start = self.random.randrange(self.log.next + 1)
        self.readers[GROUP] = Reader(self._cursor(GROUP, label="billing", start=start))
        self.readers[GROUP].fates = {offset: Fate() for offset in self.offsets if offset >= start}
        self.store.sync()

    def _cursor(self, name: str, *, label: str = "", start: int | None = None) -> Cursor:
        return self.store.create_cursor(self.log, name, start=start, audit_us=10**15, label=label)

    def run(self, steps: int = 80) -> Reckoned:
        for _ in range(steps):
            self.clock.now_us += self.random.choice([0, 1, 1000])
            changes: list[Callable[[], None]] = [self.append, self.checkpoint, self.reopen]
            if self.random.random() < 0.1:
                self.random.choice(changes)()
            else:
                self.change(self.readers[self.random.choice([OWN, GROUP])])
        self.store.sync()
        audit = reckon_directory(copy_disk(self.disk, self._place))
        self.compare(audit)
        return audit

    # the store

    def append(self) -> None:
        start, stop = self.store.append(self.log, messages(self.random.randrange(1, 20), size=30))
        self.offsets += range(start, stop)
        self.readers[OWN].cursor.note_synced([(start, stop)], published_us=self.clock.now_us)
        for reader in self.readers.values():
            reader.fates |= {offset: Fate() for offset in range(start, stop)}
        self.store.sync()

    def checkpoint(self) -> None:
        self.store.checkpoint()

    def reopen(self) -> None:
        """Close or kill the store and open it: what is in flight returns, unless it is leased."""
        if self.random.random() < 0.5:
            self.store.close()
        else:
            self.store.sync()
            self.disk = self.disk.restart()
        self.store: Store = make_store(self.disk, self.clock, options=SMALL)
        self.log: Log = self.store.log(self.log.id)
        for name, reader in self.readers.items():
            reader.cursor = self.store.cursors(self.log.id)[name]
            for fate in reader.fates.values():
                if fate.state == "in flight" and not fate.leased:
                    fate.returned()

    # a reader

    def change(self, reader: Reader) -> None:
        changes = [self.take, self.take, self.settle, self.settle, self.give_back, self.drop, self.lease]
        changes += [self.hold, self.release, self.seek, self.recall]
        self.random.choice(changes)(reader)

    def some(self, reader: Reader, state: str, *, leased: bool | None = None) -> list[Range]:
        chosen = [
            offset
            for offset, fate in sorted(reader.fates.items())
            if fate.state == state and leased in (None, fate.leased) and self.random.random() < 0.5
        ]
        return runs(chosen)

    def take(self, reader: Reader) -> None:
        who = self.random.choice(WHO)
        for fate in reader.of(reader.cursor.take(self.random.randrange(8), who=who)):
            fate.taken(who)

    def lease(self, reader: Reader) -> None:
        for fate in reader.of(reader.cursor.lease(self.random.randrange(8), who=b"query q")):
            fate.taken(b"query q", leased=True)

    def hold(self, reader: Reader) -> None:
        if ranges := self.some(reader, "ready"):
            reader.cursor.hold(ranges)
            for fate in reader.of(ranges):
                fate.taken(b"", leased=True)

    def release(self, reader: Reader) -> None:
        if ranges := self.some(reader, "in flight", leased=True):
            reader.cursor.release(ranges)
            for fate in reader.of(ranges):
                fate.state = "ready"

    def settle(self, reader: Reader) -> None:
        if ranges := self.some(reader, "in flight"):
            outcome, who = self.random.choice(ENDS), self.random.choice(WHO)
            reader.cursor.settle(ranges, outcome, who=who)
            for fate in reader.of(ranges):
                fate.settled(outcome, who, b"")

    def give_back(self, reader: Reader) -> None:
        if ranges := self.some(reader, "in flight"):
            reader.cursor.give_back(ranges, counted=self.random.random() < 0.8)
            for fate in reader.of(ranges):
                fate.returned()

    def drop(self, reader: Reader) -> None:
        if ranges := self.some(reader, "ready"):
            outcome = self.random.choice([Outcome.EXPIRED, Outcome.PURGED, Outcome.SKIPPED])
            who, why = self.random.choice(WHO), self.random.choice(WHY)
            reader.cursor.drop(ranges, outcome, who=who, why=why)
            for fate in reader.of(ranges):
                fate.settled(outcome, who, why)

    def seek(self, reader: Reader) -> None:
        if self.random.random() < 0.5:
            return
        target = self.random.randrange(self.log.next + 1)
        reader.cursor.seek(target, who=b"somebody")
        for offset in self.offsets:
            if offset >= target:
                reader.fates.setdefault(offset, Fate()).again()
            elif offset in reader.fates and reader.fates[offset].outcome is None:
                reader.fates[offset].settled(Outcome.SKIPPED, b"somebody", None)

    def recall(self, reader: Reader) -> None:
        if ranges := self.some(reader, "settled"):
            reader.cursor.recall(ranges)
            for fate in reader.of(ranges):
                fate.again()

    # the audit

    def compare(self, audit: Reckoned) -> None:
        assert (audit.lost, audit.doubled, audit.damage) == ([], [], [])
        for name, reader in (("", self.readers[OWN]), ("billing", self.readers[GROUP])):
            rows = audit.of("topic.0", name)
            assert rows.keys() == reader.fates.keys(), name
            for offset, row in rows.items():
                fate = reader.fates[offset]
                actual = {column: row[column] for column in _COMPARED}
                expected = {column: getattr(fate, column) for column in _COMPARED}
                assert actual == expected, f"{name}, {offset}: {row}"
        assert all(row["confirmed"] for row in audit.of("topic.0").values())
        assert not any(row["confirmed"] for row in audit.of("topic.0", "billing").values())

    def holes(self) -> list[tuple[str, int, int, str]]:
        """Return messages that are not settled although later ones were read: reader, start, stop, state."""
        holes = []
        for name, reader in (("", self.readers[OWN]), ("billing", self.readers[GROUP])):
            top = max((offset for offset, fate in reader.fates.items() if fate.consumed), default=0)
            held: dict[tuple[str, str], list[int]] = {}
            for offset, fate in sorted(reader.fates.items()):
                if fate.outcome is None and offset < top:
                    by = fate.delivered_to or "" if fate.state == "in flight" else ""
                    held.setdefault((fate.state, by), []).append(offset)
            holes += [
                (name, start, stop, state)
                for (state, _), open_ in held.items()
                for start, stop in runs(open_)
            ]
        return holes
