"""A generated history of a store, and what must be true of it after any crash.

`History` drives a real `Store` on a `SimulatedDisk` with random changes, keeps its own plain account of what
was asked and which tickets were released, and after each crash opens what the disk still holds and compares.
Everything follows from the seed: `History(seed).run()` is the same every time.

What is checked after a crash (see `check`): everything under a released ticket is there, in order and once;
what was settled under a released ticket stays settled; nothing is there that was not appended; no offset that
was released or delivered is issued twice; each transaction is wholly there or wholly absent; delivery counts,
delays and the redelivered flag survive.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

from leveret.storage.cursor import Cursor
from leveret.storage.errors import WriteFailed
from leveret.storage.journal import Outcome
from leveret.storage.log import Log
from leveret.storage.offset_set import Range
from leveret.storage.records import PERSISTENT, Message
from leveret.storage.recovery import UNFINISHED
from leveret.storage.retention import Retention
from leveret.storage.store import Options, Store
from leveret.testing.disk import CutAt, PowerCut, SimulatedDisk

SMALL = Options(
    wal_bytes=16 << 10,
    segment_bytes=4 << 10,
    memory_bytes=8 << 10,
    snapshot_bytes=600,
    reserve_ahead=50,
    reserve_bytes=0,
)
CURSOR = "reader"
NEVER = 1 << 60


@dataclass
class Sent:
    """A message of the history."""

    body: bytes
    persistent: bool
    ticket: int
    delivered: bool = False
    settled: int = 0
    """Ticket of the settlement; 0 without one."""
    returns: list[int] = field(default_factory=list)
    """Tickets of the returns."""
    not_before_us: int = 0
    """Of the last return."""
    group: int = 0
    """Transaction of the append."""
    settled_by: int = 0
    """Transaction of the settlement."""


@dataclass
class Account:
    """The expected contents of one log."""

    id: int
    created: int
    deleted: int = 0
    messages: dict[int, Sent] = field(default_factory=dict)
    issued: int = 0


class History:
    """`lives` is how often the store is opened, used and crashed."""

    def __init__(self, seed: int, *, lives: int = 3, steps: int = 80) -> None:
        self.random = Random(seed)
        self.seed = seed
        self.lives = lives
        self.steps = steps
        self.clock_us = 1_000_000
        self.disk = SimulatedDisk(seed=seed)
        self.accounts: dict[int, Account] = {}
        self.released = 0
        self.transactions = 0
        self.serial = 0
        self.store: Store | None = None

    def run(self) -> None:
        for _ in range(self.lives):
            self.live()
            self.fall()
        self.open()
        self.check()

    # one life

    def open(self) -> Store:
        self.store = Store(
            self.disk, clock=self.tick, entropy=lambda: self.random.getrandbits(64), options=SMALL
        )
        return self.store

    def tick(self) -> int:
        self.clock_us += self.random.randrange(1, 50)
        return self.clock_us

    def live(self) -> None:
        """Opens, checks, and does random things until the power goes, the process is killed, or it closes."""
        with suppress(PowerCut):
            store = self.open()
            self.check()
            self.forget_what_is_lost()
            while len(store.logs) < 2:
                self.create(store)
            if self.random.random() < 0.9:
                self.disk.before = CutAt(self.random.randrange(1, self.random.choice([12, 50, 150])))
            for _ in range(self.random.randrange(self.steps)):
                self.step(store)
            if self.random.random() < 0.2:
                store.close()

    def fall(self) -> None:
        """Crash, and sometimes cut the power in the middle of the next recovery."""
        self.crash()
        while self.random.random() < 0.3:
            self.disk.before = CutAt(self.random.randrange(1, 40))
            with suppress(PowerCut):
                self.open()
            self.crash()

    def crash(self) -> None:
        self.disk = self.disk.restart() if self.random.random() < 0.2 else self.disk.crash(self.random)

    def step(self, store: Store) -> None:
        chosen = self.random.choices(
            [
                self.append,
                self.take,
                self.settle,
                self.give_back,
                self.transact,
                self.sync,
                self.checkpoint,
                self.create,
                self.delete,
                self.purge,
                self.flush,
            ],
            weights=[8, 8, 6, 3, 3, 6, 2, 1, 0.2, 0.3, 0.5],
        )[0]
        chosen(store)

    # steps

    def create(self, store: Store) -> None:
        retention = Retention(audit_us=self.random.choice([0, 0, 200]))
        log = store.create_log(label=f"log {len(self.accounts)}", retention=retention)
        self.accounts[log.id] = Account(log.id, created=store.ticket)
        store.create_cursor(log, CURSOR, priorities=self.random.choice([0, 0, 3]))

    def delete(self, store: Store) -> None:
        for log in self.pick(store):
            self.accounts[log.id].deleted = store.delete_log(log)

    def append(self, store: Store) -> None:
        for log in self.pick(store):
            messages = self.messages()
            self.note(log, store.append(log, messages)[0], messages, store.ticket)

    def take(self, store: Store) -> None:
        for log in self.pick(store):
            for start, stop in store.cursors(log.id)[CURSOR].take(
                self.random.randrange(1, 20), who=b"consumer"
            ):
                for offset in range(start, stop):
                    sent = self.accounts[log.id].messages[offset]
                    assert not sent.settled, f"{offset} was settled and is delivered again"
                    assert sent.not_before_us <= self.clock_us, f"{offset} is delivered before its time"
                    sent.delivered = True

    def settle(self, store: Store) -> None:
        for log in self.pick(store):
            offsets = self.some(store.cursors(log.id)[CURSOR])
            if offsets:
                ticket = store.cursors(log.id)[CURSOR].settle([(o, o + 1) for o in offsets])
                for offset in offsets:
                    self.accounts[log.id].messages[offset].settled = ticket

    def give_back(self, store: Store) -> None:
        for log in self.pick(store):
            offsets = self.some(store.cursors(log.id)[CURSOR])
            if offsets:
                due = self.random.choice([0, self.clock_us + self.random.randrange(1, 3000)])
                ticket = store.cursors(log.id)[CURSOR].give_back(
                    [(o, o + 1) for o in offsets], not_before_us=due
                )
                for offset in offsets:
                    sent = self.accounts[log.id].messages[offset]
                    sent.returns.append(ticket)
                    sent.not_before_us = due

    def transact(self, store: Store) -> None:
        """Settle messages of one log and append copies to another, in one transaction."""
        self.transactions += 1
        transaction = store.transaction()
        appended = []
        for log in (*self.pick(store), *self.pick(store)):
            messages = self.messages(persistent=True)
            transaction.append(log, messages)
            appended.append((log, messages))
        settled = [(log, self.some(store.cursors(log.id)[CURSOR])) for log in self.pick(store)]
        for log, offsets in settled:
            ranges = [(o, o + 1) for o in offsets]
            transaction.settle(store.cursors(log.id)[CURSOR], ranges, Outcome.DEAD_LETTERED)
        for log in self.pick(store):
            cursor = store.cursors(log.id)[CURSOR]
            waiting = self.sample(cursor.progress.ready_ranges())
            transaction.drop(cursor, [(o, o + 1) for o in waiting], Outcome.EXPIRED)
            settled.append((log, waiting))
        ticket = transaction.commit()
        for (log, messages), (start, _) in zip(appended, transaction.offsets, strict=True):
            self.note(log, start, messages, ticket, group=self.transactions)
        for log, offsets in settled:
            for offset in offsets:
                sent = self.accounts[log.id].messages[offset]
                sent.settled = ticket
                sent.settled_by = self.transactions

    def purge(self, store: Store) -> None:
        for log in self.pick(store):
            cursor = store.cursors(log.id)[CURSOR]
            ready = list(cursor.progress.ready_ranges())
            if ready:
                ticket = cursor.drop(ready, Outcome.PURGED)
                for start, stop in ready:
                    for offset in range(start, stop):
                        self.accounts[log.id].messages[offset].settled = ticket

    def sync(self, store: Store) -> None:
        try:
            self.released = max(self.released, store.sync())
        except WriteFailed:
            return

    def checkpoint(self, store: Store) -> None:
        try:
            store.checkpoint()
        except WriteFailed:
            return
        self.released = max(self.released, store.safe_ticket)

    def flush(self, store: Store) -> None:
        for log in self.pick(store):
            store.flush(log)

    # what there is to choose from

    def pick(self, store: Store) -> Iterator[Log]:
        logs = [log for log in store.logs.values() if CURSOR in store.cursors(log.id)]
        if logs:
            yield self.random.choice(logs)

    def some(self, cursor: Cursor) -> list[int]:
        return self.sample(cursor.progress.in_flight.ranges())

    def sample(self, ranges: Iterable[Range]) -> list[int]:
        offsets = [o for start, stop in ranges for o in range(start, stop)]
        return self.random.sample(offsets, self.random.randrange(len(offsets) + 1))

    def messages(self, *, persistent: bool = False) -> list[Message]:
        made = []
        for _ in range(self.random.randrange(1, 8)):
            self.serial += 1
            flags = PERSISTENT if persistent or self.random.random() < 0.8 else 0
            body = b"%d " % self.serial + self.random.randbytes(self.random.choice([0, 10, 600]))
            made.append(Message(b"exchange", b"key", b"header", body, flags, self.random.randrange(4)))
        return made

    def note(self, log: Log, start: int, messages: list[Message], ticket: int, group: int = 0) -> None:
        account = self.accounts[log.id]
        assert start >= account.issued, f"offset {start} of log {log.id} is issued twice"
        for offset, message in enumerate(messages, start):
            persistent = bool(message.flags & PERSISTENT)
            account.messages[offset] = Sent(message.body, persistent, ticket, group=group)
        account.issued = start + len(messages)

    # the check

    def check(self) -> None:
        assert self.store is not None
        damage = [each for each in self.store.damage if each.what != UNFINISHED]
        assert damage == [], damage
        there: dict[int, bool] = {}
        for account in self.accounts.values():
            log = self.store.logs.get(account.id)
            if account.deleted:
                assert log is None or account.deleted > self.released, f"log {account.id} is back"
            elif log is None:
                assert account.created > self.released, f"log {account.id} is lost"
            if log is not None and CURSOR in self.store.cursors(log.id):
                self.check_log(log, account, there)

    def check_log(self, log: Log, account: Account, there: dict[int, bool]) -> None:
        cursor = self.store.cursors(log.id)[CURSOR]
        records = {r.offset: r for r in log.read([(0, log.next)])} if log.next else {}
        for offset, record in records.items():
            assert offset in account.messages, f"{offset} was never appended"
            assert record.body == account.messages[offset].body
        for offset, sent in account.messages.items():
            if offset >= log.next:
                self.check_that_nobody_has_seen(offset, sent)
                continue
            settled = offset in cursor.progress.settled
            if sent.persistent and sent.ticket <= self.released and not sent.settled:
                assert offset in records, f"{offset} of log {log.id} is lost"
                assert not settled, f"{offset} of log {log.id} was settled by nobody"
            if sent.settled and sent.settled <= self.released:
                assert settled, f"{offset} of log {log.id} was settled and is back"
            if not settled:
                assert offset in records, f"{offset} of log {log.id} can't be read"
                self.check_unsettled(cursor, offset, sent)
            self.check_atomic(sent, settled, offset in records, there)
        assert not cursor.progress.in_flight

    def check_that_nobody_has_seen(self, offset: int, sent: Sent) -> None:
        """It is lost, and the next message may get its offset."""
        assert not sent.delivered, f"{offset} was delivered and would be issued again"
        assert sent.ticket > self.released, f"{offset} was released and would be issued again"
        assert not 0 < sent.settled <= self.released, f"{offset} was settled and would be issued again"

    def check_unsettled(self, cursor: Cursor, offset: int, sent: Sent) -> None:
        if sent.delivered:
            assert cursor.returns.is_redelivered(offset), f"{offset} was delivered and does not say so"
        counted = sum(1 for ticket in sent.returns if ticket <= self.released)
        assert cursor.returns.count(offset) >= counted, f"{offset} has lost count"
        if sent.returns and sent.returns[-1] <= self.released and sent.not_before_us > self.clock_us + 100:
            assert offset in cursor.progress.delayed, f"{offset} has lost its delay"

    def check_atomic(self, sent: Sent, settled: bool, readable: bool, there: dict[int, bool]) -> None:
        """An append happened when it can be read and is unsettled, a settlement when it is settled."""
        if sent.group and not sent.settled:
            happened = readable and not settled
            assert there.setdefault(sent.group, happened) == happened, (
                f"transaction {sent.group} is in pieces"
            )
        if sent.settled_by and sent.persistent and sent.ticket <= self.released:
            assert there.setdefault(sent.settled_by, settled) == settled, f"transaction {sent.settled_by} too"

    def forget_what_is_lost(self) -> None:
        """Stop expecting messages that did not survive, and continue with what the store has."""
        assert self.store is not None
        self.released = self.store.safe_ticket
        for account in list(self.accounts.values()):
            log = self.store.logs.get(account.id)
            if log is None or CURSOR not in self.store.cursors(log.id):
                del self.accounts[account.id]
                continue
            account.deleted = 0
            account.created = 0
            account.issued = log.next
            for offset in [each for each in account.messages if each >= log.next]:
                del account.messages[offset]
            cursor = self.store.cursors(log.id)[CURSOR]
            delays = dict(cursor.progress.delays())
            for offset, sent in list(account.messages.items()):
                if offset in cursor.progress.settled:
                    sent.settled = sent.settled or self.released
                    sent.settled = min(sent.settled, self.released)
                else:
                    sent.settled = 0
                sent.ticket = 0
                sent.group = sent.settled_by = 0
                count = cursor.returns.count(offset)
                sent.returns = [0] * count
                sent.not_before_us = delays.get(offset, 0)
                sent.persistent = sent.persistent or not sent.settled
