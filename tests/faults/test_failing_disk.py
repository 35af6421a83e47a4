"""A disk that fails: every write and every sync of a scripted history, one after the other.

`Script` is a history with everything in it: appends, deliveries, settlements, transactions, syncs,
checkpoints with snapshots and rewritten segments, flushes, deletions, a close and an open. It is run once for
each operation on the disk, and that operation fails; `make test` takes one operation of five. A step whose
write fails says so and changes nothing, or nothing that counts; it is then made again, and works. A sync that
fails poisons the store: nothing is changed or promised any more, but everything can be read. Afterwards the
power is cut, and what was promised must be there, once.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from random import Random

import pytest

from leveret.storage.errors import (
    BadRequest,
    DirectoryLocked,
    StorageError,
    StorageFull,
    StorePoisoned,
    WriteFailed,
)
from leveret.storage.journal import Outcome
from leveret.storage.log import Log
from leveret.storage.records import PERSISTENT, Message
from leveret.storage.recovery import UNFINISHED
from leveret.storage.retention import Retention
from leveret.storage.store import Options, Store
from leveret.testing.disk import FailAt, Kind, Operation, SimulatedDisk, TornWrite

OPTIONS = Options(
    wal_bytes=4 << 10,
    segment_bytes=1000,
    memory_bytes=4 << 10,
    snapshot_bytes=300,
    reserve_ahead=20,
    reserve_bytes=0,
)
WRITES: tuple[Kind, ...] = ("create", "write", "truncate", "allocate", "rename", "mkdir", "unlink", "rmdir")
TORN: tuple[Kind, ...] = ("write", "allocate")
SYNCS: tuple[Kind, ...] = ("sync", "sync_directory")
READER = "reader"


@pytest.fixture
def stride(full_run: bool) -> int:
    """How many operations further the next one is that fails."""
    return 1 if full_run else 5


@dataclass
class Account:
    """What was asked of one log. Tickets tell when it was promised."""

    sent: dict[int, tuple[bytes, int]] = field(default_factory=dict)
    settled: dict[int, int] = field(default_factory=dict)
    deleted: int = 0


class Script:
    """Runs its steps on a disk; a step that fails for a write is made again."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.clock = count(1)
        self.random = Random(3)
        self.accounts: dict[int, Account] = {}
        self.failures: list[StorageError] = []
        self.released = 0
        self.serial = 0
        self.store = self.retried(self.open)

    def open(self) -> Store:
        return Store(
            self.disk,
            clock=lambda: next(self.clock),
            entropy=lambda: self.random.getrandbits(64),
            options=OPTIONS,
        )

    def run(self) -> None:
        for step in self.steps():
            self.retried(step)
            self.released = max(self.released, self.store.safe_ticket)

    def retried(self, step: Callable[[], Store | None]) -> Store:
        """A step may fail twice: an append after a failed sync repeats why, until a sync succeeds."""
        for _ in range(3):
            try:
                return step() or self.store
            except WriteFailed as failed:
                self.failures.append(failed)
            if self.is_open:
                self.check()
                with suppress(WriteFailed):
                    self.store.sync()
        pytest.fail("a step does not work when the disk works again")

    @property
    def is_open(self) -> bool:
        try:
            self.disk.lock("lock").release()
        except DirectoryLocked:
            return True
        return False

    # the history

    def steps(self) -> Iterator[Callable[[], Store | None]]:
        yield lambda: self.create("queue")
        yield lambda: self.create("stream", keep_settled=True)
        for _ in range(3):
            yield lambda: self.append(0, 12)
            yield lambda: self.append(1, 5)
            yield self.sync
            yield lambda: self.take_and_settle(0)
            yield lambda: self.take_and_settle(1)
            yield self.sync
            yield lambda: self.store.flush(self.log(1))
            yield self.checkpoint
            yield self.move
            yield self.sync
        yield lambda: self.create("doomed")
        yield lambda: self.append(2, 3)
        yield self.checkpoint
        yield self.delete
        yield self.checkpoint
        yield self.checkpoint
        yield lambda: self.append(1, 2)
        yield self.sync
        yield self.close  # which lets go of the directory in any case
        yield self.reopen
        yield lambda: self.append(0, 3)
        yield self.sync

    def log(self, number: int) -> Log:
        return list(self.store.logs.values())[number]

    def create(self, label: str, *, keep_settled: bool = False) -> None:
        if not any(log.spec.label == label for log in self.store.logs.values()):
            log = self.store.create_log(label=label, retention=Retention(keep_settled=keep_settled))
            self.accounts[log.id] = Account()
            self.store.create_cursor(log, READER)
        self.sync()

    def append(self, number: int, n: int) -> None:
        log = self.log(number)
        messages = [self.message() for _ in range(n)]
        start, _ = self.store.append(log, messages)
        self.note(log, start, messages)

    def note(self, log: Log, start: int, messages: list[Message]) -> None:
        account = self.accounts[log.id]
        assert start > max(account.sent, default=-1), "an offset is issued twice"
        account.sent.update({o: (m.body, self.store.ticket) for o, m in enumerate(messages, start)})

    def message(self) -> Message:
        self.serial += 1
        return Message(b"", b"key", b"", b"%d" % self.serial * self.random.randrange(1, 20), PERSISTENT)

    def take_and_settle(self, number: int) -> None:
        log = self.log(number)
        cursor = self.store.cursors(log.id)[READER]
        cursor.take(11)
        flying = [o for start, stop in cursor.progress.in_flight.ranges() for o in range(start, stop)]
        for offset in flying[:-1]:
            self.accounts[log.id].settled[offset] = cursor.settle([(offset, offset + 1)])
        if flying:
            cursor.give_back([(flying[-1], flying[-1] + 1)])

    def move(self) -> None:
        """A transaction: a message leaves the first log and enters the second."""
        source, target = self.log(0), self.log(1)
        cursor = self.store.cursors(source.id)[READER]
        taken = cursor.take(1) or list(cursor.progress.in_flight.ranges())[:1]
        transaction = self.store.transaction()
        messages = [self.message()]
        transaction.append(target, messages)
        transaction.settle(cursor, taken, Outcome.DEAD_LETTERED)
        ticket = transaction.commit()
        self.note(target, transaction.offsets[0][0], messages)
        for start, stop in taken:
            self.accounts[source.id].settled.update(dict.fromkeys(range(start, stop), ticket))

    def sync(self) -> None:
        self.store.sync()

    def checkpoint(self) -> None:
        self.store.checkpoint()

    def delete(self) -> None:
        log = self.log(2)
        self.accounts[log.id].deleted = self.store.delete_log(log)

    def close(self) -> None:
        self.store.close()

    def reopen(self) -> Store:
        self.store = self.open()
        self.check()
        return self.store

    # what must be true

    def check(self, store: Store | None = None) -> None:
        """Of the store as it is, or as it is after a crash, when only what was released must be there."""
        released = self.released if store else 1 << 60
        store = store or self.store
        for log_id, account in self.accounts.items():
            log = store.logs.get(log_id)
            if account.deleted:
                assert log is None or account.deleted > released
                continue
            if log is None:
                assert not any(ticket <= released for _, ticket in account.sent.values())
                continue
            self.check_log(log, account, released)

    def check_log(self, log: Log, account: Account, released: int) -> None:
        records = log.read([(0, log.next)]) if log.next else []
        bodies = {record.offset: record.body for record in records}
        assert len(bodies) == len(records), "a message is there twice"
        assert log.next > max(account.sent, default=-1), "an offset would be issued twice"
        progress = self.store.cursors(log.id)[READER].progress
        for offset, (body, ticket) in account.sent.items():
            settled = account.settled.get(offset, 1 << 61)
            if ticket <= released and settled > released and offset not in progress.settled:
                assert bodies.get(offset) == body, f"{offset} is lost"
            if ticket <= released and settled == 1 << 61:
                assert offset not in progress.settled, f"{offset} was settled by nobody"
            if settled <= released:
                assert offset in progress.settled, f"{offset} was settled and is back"
        assert bodies.items() <= {o: body for o, (body, _) in account.sent.items()}.items()

    def check_after_a_crash(self, seed: int) -> None:
        self.disk.before = None
        for disk in (self.disk.copy().restart(), self.disk.copy().crash(Random(seed))):
            survivor = opened(disk, seed)
            assert [each for each in survivor.damage if each.what != UNFINISHED] == []
            self.check(survivor)


def opened(disk: SimulatedDisk, seed: int = 0) -> Store:
    clock, random = count(1 << 40), Random(seed)
    return Store(disk, clock=lambda: next(clock), entropy=lambda: random.getrandbits(64), options=OPTIONS)


def operations(kinds: tuple[Kind, ...]) -> int:
    """How many operations of these kinds the script has."""
    disk = SimulatedDisk()
    hook = disk.before = FailAt(1 << 60, kinds, errno.EIO)
    Script(disk).run()
    return hook.seen


@pytest.mark.parametrize("kinds", [WRITES, TORN], ids=["whole", "torn"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO], ids=["full", "broken"])
def test_a_write_that_fails_anywhere_is_reported_and_undone_and_can_be_made_again(
    code: int, kinds: tuple[Kind, ...], stride: int
) -> None:
    for n in range(1, operations(kinds) + 1, stride):
        disk = SimulatedDisk(seed=n)
        disk.before = hook = FailAt(n, kinds, code, torn=kinds is TORN)
        try:
            script = Script(disk)
            script.run()
            expected = StorageFull if code == errno.ENOSPC else WriteFailed
            assert all(type(failed) is expected for failed in script.failures)
            script.check()
            script.check_after_a_crash(n)
            assert hook.seen >= n
        except BaseException as error:
            error.add_note(f"operation {n} failed with {errno.errorcode[code]}")
            raise


def test_a_write_that_fails_is_noticed_by_the_caller_unless_it_only_removes_something(stride: int) -> None:
    for kind in WRITES:
        for n in range(1, operations((kind,)) + 1, stride):
            disk = SimulatedDisk()
            disk.before = FailAt(n, kind, errno.EIO)
            script = Script(disk)
            script.run()
            assert bool(script.failures) == (kind not in ("unlink", "rmdir")), f"{kind} {n}"


def test_a_disk_that_stays_full_for_a_while_loses_nothing() -> None:
    for n in range(1, operations(("write", "allocate")), 3):
        disk = SimulatedDisk(seed=n)
        disk.before = FailAt(n, ("write", "allocate"), errno.ENOSPC, torn=True, times=2)
        script = Script(disk)
        script.run()
        script.check()
        script.check_after_a_crash(n)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO], ids=["full", "broken"])
def test_a_sync_that_fails_anywhere_poisons_the_store(code: int, stride: int) -> None:
    for n in range(1, operations(SYNCS) + 1, stride):
        disk = SimulatedDisk(seed=n)
        disk.before = FailAt(n, SYNCS, code)
        script = None
        try:
            with pytest.raises(StorePoisoned) as poisoned:  # noqa: PT012  (opening may raise it too)
                script = Script(disk)
                script.run()
            assert poisoned.value.error.errno == code
            if script is not None:
                check_poisoned(script)
                script.check_after_a_crash(n)
            else:
                Script(disk)  # an open that fails has let go of the directory
        except BaseException as error:
            error.add_note(f"sync {n} failed with {errno.errorcode[code]}")
            raise


def check_poisoned(script: Script) -> None:
    """Nothing can be changed, everything can be read."""
    if not script.is_open:  # it happened while the store was closed or opened
        return
    store = script.store
    with pytest.raises(StorePoisoned):
        store.sync()
    with pytest.raises(StorePoisoned):
        store.checkpoint()
    with pytest.raises(StorePoisoned):
        store.create_log()
    for log in store.logs.values():
        for change in changes(store, log):
            with pytest.raises(StorePoisoned):
                change()
    script.check()
    store.close()


def changes(store: Store, log: Log) -> list[Callable[[], object]]:
    cursor = store.cursors(log.id)[READER]
    transaction = store.transaction()
    transaction.append(log, [Message(b"", b"", b"", b"", PERSISTENT)])
    return [
        transaction.commit,
        lambda: store.append(log, [Message(b"", b"", b"", b"", PERSISTENT)]),
        lambda: store.append(log, [Message(b"", b"", b"", b"", 0)]),
        lambda: store.flush(log),
        lambda: store.create_cursor(log, "other"),
        lambda: store.set_retention(log, Retention()),
        lambda: cursor.note_synced([(0, 1)]),
    ]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO], ids=["full", "broken"])
def test_an_open_that_fails_lets_go_of_the_directory_and_works_the_next_time(code: int) -> None:
    whole = killed_in_the_middle()
    expected = bodies(opened(whole.copy()))
    for n in count(1):
        disk = whole.copy()
        disk.before = hook = FailAt(n, WRITES + SYNCS, code)
        failed = None
        try:
            store = opened(disk)
        except (WriteFailed, StorePoisoned) as error:
            failed = error
        if hook.seen < n:
            return
        disk.before = None
        if failed is None:  # a file could not be removed
            store.close()
        assert bodies(opened(disk)) == expected, (n, failed)
        if not isinstance(failed, StorePoisoned):  # else names may be lost that nobody writes again
            assert bodies(opened(disk.copy().crash(Random(n)))) == expected, (n, failed)


def killed_in_the_middle() -> SimulatedDisk:
    """With rounds that are only in the WAL."""
    script = Script(SimulatedDisk())
    for step in list(script.steps())[:40]:
        step()
    script.store.sync()
    return script.disk.restart()


def bodies(store: Store) -> dict[int, list[bytes]]:
    assert store.damage == []
    return {id_: [r.body for r in log.read([(0, log.next)])] for id_, log in store.logs.items()}


def test_a_closed_store_refuses_changes_and_may_be_closed_again() -> None:
    disk = SimulatedDisk()
    store = opened(disk)
    log = store.create_log()
    store.close()
    store.close()
    opened(disk)
    with pytest.raises(BadRequest, match="closed"):
        store.append(log, [Message(b"", b"", b"", b"", 0)])
    with pytest.raises(BadRequest, match="closed"):
        store.sync()
    with pytest.raises(BadRequest, match="closed"):
        store.create_log()


def test_an_idle_store_takes_messages_again_after_a_checkpoint_that_failed() -> None:
    disk = SimulatedDisk()
    store = opened(disk)
    log = store.create_log()
    store.checkpoint()
    disk.before = FailAt(1, "write", errno.ENOSPC)
    with pytest.raises(StorageFull):
        store.checkpoint()
    with pytest.raises(StorageFull):
        store.append(log, [Message(b"", b"", b"", b"", PERSISTENT)])
    store.sync()
    store.append(log, [Message(b"", b"", b"", b"", PERSISTENT)])


def test_an_error_that_is_raised_often_does_not_grow() -> None:
    disk = SimulatedDisk()
    store = opened(disk)
    log = store.create_log()
    disk.before = FailAt(1, "write", errno.ENOSPC)
    with pytest.raises(StorageFull):
        store.sync()
    for _ in range(5):
        with pytest.raises(StorageFull) as raised:
            store.append(log, [Message(b"", b"", b"", b"", PERSISTENT)])
    assert len(raised.traceback) < 5


class NearlyWhole(SimulatedDisk):
    """Where a write that fails has written all but the last byte, which is padding in a WAL frame."""

    def _torn(self, size: int) -> int:
        return size - 1


def test_a_round_that_failed_but_is_on_the_disk_is_not_doubled_by_the_one_that_repeats_it() -> None:
    disk = NearlyWhole()
    store = opened(disk)
    log = store.create_log()
    store.append(log, [Message(b"", b"", b"", b"first", PERSISTENT)])
    store.sync()
    store.append(log, [Message(b"", b"", b"", b"second", PERSISTENT)])
    disk.before = FailAt(1, "write", errno.EIO, torn=True)
    with pytest.raises(WriteFailed):
        store.sync()
    store.create_log(label="x" * OPTIONS.wal_bytes)  # so that the round goes to another file
    store.sync()
    again = opened(disk.restart())
    assert again.damage == []
    assert [r.body for r in again.log(log.id).read([(0, 2)])] == [b"first", b"second"]
    assert len(again.logs) == 2


def test_a_segment_that_could_not_be_written_takes_no_space() -> None:
    disk = SimulatedDisk()
    store = opened(disk)
    log = store.create_log()
    store.append(log, [Message(b"", b"", b"", bytes(100), PERSISTENT)])
    store.checkpoint()
    store.append(log, [Message(b"", b"", b"", bytes(100), PERSISTENT)])
    path = log.segments[-1].path
    size = len(disk.read_bytes(path))

    def fail(operation: Operation) -> None:
        if operation.kind == "write" and operation.path.startswith("logs/") and operation.size >= 100:
            raise TornWrite(errno.ENOSPC, "full", operation.path)

    disk.before = fail
    with pytest.raises(StorageFull):
        store.checkpoint()
    assert len(disk.read_bytes(path)) == size
    disk.before = None
    store.checkpoint()
    assert len(disk.read_bytes(path)) > size + 100
