"""A store with a bit of everything in its files, and what it holds, for tests that damage them.

`SampleStore` builds it on a `SimulatedDisk`: several logs and segments, one of them rewritten, two
generations of snapshots, two checkpoints, recycled WAL files, returns, delays and counts, and rounds that are
nowhere but in the WAL; `clean` closes it at the end, and without `states` its checkpoints have no progress of
cursors. `look` is everything that a reader can see of a store, and `SampleStore.entries` what each journal
entry was about, so that a test can tell what a lost entry may change.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random

from leveret.storage.cursor import Cursor
from leveret.storage.errors import Damage
from leveret.storage.journal import Entry, Kind, Outcome
from leveret.storage.log import Log
from leveret.storage.records import PERSISTENT, Message, Record
from leveret.storage.retention import Retention
from leveret.storage.store import Options, Store
from leveret.testing.disk import SimulatedDisk

SMALL = Options(
    wal_bytes=6 << 10,
    segment_bytes=1500,
    memory_bytes=8 << 10,
    snapshot_bytes=500,
    reserve_ahead=50,
    reserve_bytes=0,
)
LARGE_BYTES = 3000  # more than is mended by trying


@dataclass
class View:
    """What can be seen of a store."""

    records: dict[int, dict[int, Record]] = field(default_factory=dict)
    cursors: dict[int, dict[int, tuple[int, int]]] = field(default_factory=dict)
    """By the journal's id: unsettled offsets with delivery count and the end of their delay."""
    redelivered: dict[int, set[int]] = field(default_factory=dict)
    next: dict[int, int] = field(default_factory=dict)
    damage: list[Damage] = field(default_factory=list)


def look(store: Store) -> View:
    view = View()
    for log in store.logs.values():
        view.next[log.id] = log.next
        view.records[log.id] = {r.offset: r for r in log.read([(0, log.next)])} if log.next else {}
        for cursor in store.cursors(log.id).values():
            delays = dict(cursor.progress.delays())
            unsettled = {o for start, stop in cursor.progress.ready_ranges() for o in range(start, stop)}
            unsettled |= delays.keys()
            view.cursors[cursor.journal.id] = {
                offset: (cursor.returns.count(offset), delays.get(offset, 0)) for offset in unsettled
            }
            view.redelivered[cursor.journal.id] = set(filter(cursor.returns.is_redelivered, unsettled))
            assert not cursor.progress.in_flight
    view.damage = list(store.damage)
    return view


def open_store(disk: SimulatedDisk) -> Store:
    clock, random = count(1_000_000_000), Random(5)
    return Store(disk, clock=lambda: next(clock), entropy=lambda: random.getrandbits(64), options=SMALL)


class SampleStore:
    """The damaged variants are made of copies of `disk`."""

    def __init__(self, *, clean: bool, states: bool = True) -> None:
        self.options = SMALL if states else replace(SMALL, state_bytes=0)
        self.random = Random(11)
        self.disk = SimulatedDisk()
        self.sent: dict[int, dict[int, bytes]] = defaultdict(dict)
        self.entries: dict[int, dict[int, set[int]]] = defaultdict(dict)
        """By journal and number: the offsets an entry is about."""
        self.delivered: dict[int, set[int]] = defaultdict(set)
        self.parents: dict[int, int] = {}
        self.serial = 0
        self.clock = count(1_000)
        self.build(clean)
        store = open_store(self.disk.copy())
        store.checkpoint()  # drops messages that are settled
        self.truth = look(store)

    def open(self) -> Store:
        return Watched(self)

    def note(self, cursor: Cursor, entry: Entry) -> None:
        if entry.kind in (Kind.DELIVERED, Kind.SETTLED, Kind.RETURNED):
            offsets = {o for start, stop in entry.ranges for o in range(start, stop)}
            self.entries[cursor.journal.id][cursor.journal.next] = offsets
            if entry.kind is Kind.DELIVERED:
                self.delivered[cursor.journal.id] |= offsets

    def build(self, clean: bool) -> None:
        store = self.open()
        plain = self.create(store, "plain")
        shared = self.create(store, "shared", priorities=3)
        stream = self.create(store, "stream", stream=True)
        self.append(store, shared, 9)
        self.add_cursor(store, shared, "late", start=shared.next)
        for _ in range(5):
            for log in (plain, shared, stream):
                self.append(store, log, 12)
                self.work(store, log)
                store.sync()
            store.checkpoint()
        self.thin_out(store, self.create(store, "thin"))
        self.append(store, plain, 1, size=LARGE_BYTES)
        store.checkpoint()
        self.disk = self.disk.restart()
        store = self.open()
        plain, shared, stream, _ = store.logs.values()
        self.work(store, stream)
        self.append(store, shared, 5)
        store.sync()
        store.checkpoint()
        self.recent(store, plain, shared)
        if clean:
            store.close()

    def recent(self, store: Store, plain: Log, shared: Log) -> None:
        """Rounds that are only in the WAL."""
        fresh = self.create(store, "fresh")
        self.append(store, fresh, 3)
        store.sync()
        self.append(store, plain, 1, size=LARGE_BYTES)
        self.append(store, plain, 2)
        store.sync()
        for log in (plain, shared, fresh):
            self.work(store, log)
            store.sync()
        transaction = store.transaction()
        taken = store.cursors(plain.id)["reader"].take(2)
        transaction.append(fresh, [self.message()])
        transaction.settle(store.cursors(plain.id)["reader"], taken, Outcome.DEAD_LETTERED)
        transaction.commit()
        ((start, _),) = transaction.offsets
        self.sent[fresh.id][start] = transaction.appends[0][1][0].body
        self.append(store, shared, 2)
        store.sync()

    # what it does

    def create(self, store: Store, label: str, *, stream: bool = False, priorities: int = 0) -> Log:
        log = store.create_log(label=label, retention=Retention(keep_settled=stream))
        self.add_cursor(store, log, "reader", priorities=priorities)
        return log

    def add_cursor(self, store: Store, log: Log, name: str, *, start: int = 0, priorities: int = 0) -> None:
        cursor = store.create_cursor(log, name, start=start, priorities=priorities)
        self.parents[cursor.journal.id] = log.id
        store.sync()  # the mark

    def append(self, store: Store, log: Log, n: int, *, size: int | None = None) -> None:
        messages = [self.message(size) for _ in range(n)]
        start, _ = store.append(log, messages)
        self.sent[log.id].update({o: m.body for o, m in enumerate(messages, start)})

    def message(self, size: int | None = None) -> Message:
        self.serial += 1
        body = b"%d " % self.serial + self.random.randbytes(size or self.random.choice([0, 20, 90]))
        return Message(b"exchange", b"key", b"header", body, PERSISTENT, self.random.randrange(4))

    def work(self, store: Store, log: Log) -> None:
        """Takes some; settles, returns and delays some of it, and leaves the rest in flight."""
        for cursor in store.cursors(log.id).values():
            cursor.take(6, who=b"consumer")
            store.sync()
            for what in ("settle", "settle", "return", "delay"):
                flying = [o for start, stop in cursor.progress.in_flight.ranges() for o in range(start, stop)]
                if not flying:
                    break
                offset = self.random.choice(flying)
                ranges = [(offset, offset + 1)]
                if what == "settle":
                    cursor.settle(ranges)
                else:
                    cursor.give_back(ranges, not_before_us=(1 << 50) + offset if what == "delay" else 0)

    def thin_out(self, store: Store, log: Log) -> None:
        """A full segment of which two messages are left, so that it is rewritten."""
        self.append(store, log, 30)
        store.checkpoint()
        cursor = store.cursors(log.id)["reader"]
        for _ in range(28):
            cursor.settle(cursor.take(1))
            store.sync()
        store.checkpoint()
        assert log.segments[0].info.edition == 1


class Watched(Store):
    """A store whose journal entries the sample knows of."""

    def __init__(self, sample: SampleStore) -> None:
        self.sample = sample
        super().__init__(
            sample.disk,
            clock=lambda: next(sample.clock),
            entropy=lambda: sample.random.getrandbits(64),
            options=sample.options,
        )

    def record(self, cursor: Cursor, entry: Entry) -> int:
        self.sample.note(cursor, entry)
        return super().record(cursor, entry)
