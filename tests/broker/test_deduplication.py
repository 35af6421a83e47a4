"""A queue's memory in the store: written with the messages, made small again, read after a restart."""

from __future__ import annotations

import errno

import pytest

from leveret.amqp import properties
from leveret.broker import auxiliary_logs
from leveret.broker.queues import deduplication
from leveret.broker.queues.deduplication import Dedup, Kind, NewSequences
from leveret.storage.errors import WriteFailed
from leveret.storage.log import Log
from leveret.storage.records import PERSISTENT, Message
from leveret.storage.store import Store
from leveret.testing.disk import FailAt, SimulatedDisk
from tests.storage.builders import make_store

WINDOW = 1_000_000


def message(number: int, producer: str = "p", *, flags: int = PERSISTENT) -> Message:
    header = properties.encode({"headers": {"x-producer": producer, "x-seq": number}}, 0)
    return Message(b"", b"q", header, b"", flags)


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.fixture
def store(disk: SimulatedDisk) -> Store:
    return make_store(disk)


@pytest.fixture
def memory(store: Store) -> Dedup:
    return deduplication.create(store, store.create_log(), window=WINDOW, lasting=True)


def keep(memory: Dedup, store: Store, *messages: Message) -> list[bool]:
    """Stores what is new; which were."""
    fresh = NewSequences(memory)
    taken = [fresh.take(each) for each in messages]
    transaction = store.transaction()
    memory.write(transaction, fresh)
    transaction.commit()
    memory.stored(fresh)
    return taken


def undo(memory: Dedup, store: Store, *messages: Message) -> None:
    transaction = store.transaction(undoing=True)
    numbers = memory.write_undone(transaction, [each.header for each in messages])
    transaction.commit()
    memory.undone(numbers)


def log_of(memory: Dedup) -> Log:
    assert memory.log is not None
    return memory.log


def restored(disk: SimulatedDisk) -> tuple[Store, Dedup]:
    store = make_store(disk.restart())
    (log,) = (log for log in store.logs.values() if auxiliary_logs.key_of(log) is not None)
    queue_log = store.log(int(auxiliary_logs.key_of(log)[1]))
    return store, deduplication.restore(store, queue_log, log, window=WINDOW)


def records(memory: Dedup, store: Store) -> list[Kind]:
    log = log_of(memory)
    (cursor,) = store.cursors(log.id).values()
    return [Kind(record.body[0]) for record in log.read(list(cursor.progress.ready_ranges()))]


def test_a_second_time_is_not_taken(memory: Dedup, store: Store) -> None:
    assert keep(memory, store, message(1), message(2), message(1)) == [True, True, False]
    assert keep(memory, store, message(2), message(3)) == [False, True]


def test_one_turn_is_one_record_and_duplicates_are_none(memory: Dedup, store: Store) -> None:
    keep(memory, store, message(1), message(2), message(1, "q"))
    keep(memory, store, message(1), message(2))
    keep(memory, store, message(5, flags=0))
    assert records(memory, store) == [Kind.KNOWN]


def test_what_was_not_committed_is_not_known(memory: Dedup) -> None:
    assert NewSequences(memory).take(message(1))
    assert not memory.knows(message(1))


def test_a_restart_reads_what_was_written(memory: Dedup, store: Store, disk: SimulatedDisk) -> None:
    keep(memory, store, message(1), message(2))
    keep(memory, store, message(9, "q"))
    keep(memory, store, message(3, flags=0))
    undo(memory, store, message(2))
    store.sync()
    _, found = restored(disk)
    assert [number for number in range(10) if found.knows(message(number))] == [1]
    assert found.knows(message(9, "q"))


def test_a_memory_that_is_not_lasting_needs_no_log(store: Store) -> None:
    memory = deduplication.create(store, store.create_log(), window=WINDOW, lasting=False)
    assert keep(memory, store, message(1), message(1)) == [True, False]
    assert (memory.log, memory.knows(message(1)), len(store.logs)) == (None, True, 1)


def test_what_takes_back_a_failed_round_is_not_refused_for_its_failure(
    memory: Dedup, store: Store, disk: SimulatedDisk
) -> None:
    store.sync()
    keep(memory, store, message(1), message(2))
    disk.before = FailAt(1, ("write", "allocate", "create"), errno.ENOSPC, times=1 << 30)
    with pytest.raises(WriteFailed):
        store.sync()
    with pytest.raises(WriteFailed):
        keep(memory, store, message(3))
    undo(memory, store, message(1))
    assert (memory.knows(message(1)), memory.knows(message(2))) == (False, True)
    disk.before = None
    store.sync()
    _, found = restored(disk)
    assert [number for number in range(5) if found.knows(message(number))] == [2]


def test_what_is_taken_back_waits_for_no_reservation(
    memory: Dedup, store: Store, disk: SimulatedDisk
) -> None:
    reserved = log_of(memory).reserved
    while log_of(memory).next < reserved:
        keep(memory, store, message(log_of(memory).next))
    disk.before = FailAt(1, ("write", "allocate", "create"), errno.ENOSPC, times=1 << 30)
    undo(memory, store, message(0))
    disk.before = None
    store.sync()
    _, found = restored(disk)
    assert (found.knows(message(0)), found.knows(message(1))) == (False, True)


# how it stays small


def fill(memory: Dedup, store: Store, turns: int, *, first: int = 0) -> None:
    for number in range(first, first + turns):
        keep(memory, store, message(number))


def test_old_records_are_replaced_by_one_with_everything(
    memory: Dedup, store: Store, disk: SimulatedDisk
) -> None:
    fill(memory, store, 10_000)
    kinds = records(memory, store)
    assert kinds.count(Kind.ALL) <= 2
    assert len(kinds) < 3_000
    for _ in range(2):
        store.checkpoint()
    assert log_of(memory).size_bytes < 500_000
    _, found = restored(disk)
    assert all(found.knows(message(number)) for number in range(10_000))
    assert not found.knows(message(10_000))


class Full:
    """A store that takes nothing."""

    def transaction(self) -> Full:
        return self

    def append(self, log: Log, messages: list[Message]) -> None:
        pass

    def commit(self) -> int:
        raise WriteFailed("wal", OSError(errno.ENOSPC, "full"))


def test_a_whole_record_that_can_not_be_written_is_tried_again(
    memory: Dedup, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deduplication, "WHOLE_AFTER_BYTES", 0)
    with monkeypatch.context() as patch:
        patch.setattr(memory, "_store", Full())
        keep(memory, store, message(3))
    assert records(memory, store) == [Kind.KNOWN]
    keep(memory, store, message(4))
    assert records(memory, store) == [Kind.KNOWN, Kind.KNOWN, Kind.ALL]
    assert memory.knows(message(3))


def test_a_damaged_whole_record_costs_nothing(
    memory: Dedup, store: Store, disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deduplication, "WHOLE_AFTER_BYTES", 500)
    fill(memory, store, 40)
    while records(memory, store)[-1] is not Kind.ALL:
        fill(memory, store, 1, first=log_of(memory).next)
    last = log_of(memory).next - 1
    store.sync()
    read = Log.read
    monkeypatch.setattr(Log, "read", lambda log, ranges: [r for r in read(log, ranges) if r.offset != last])
    _, found = restored(disk)
    assert all(found.knows(message(number)) for number in range(40))


def test_the_memory_says_whose_it_is(store: Store) -> None:
    queue_log = store.create_log(label='["/", "q", false, ""]')
    memory = deduplication.create(store, queue_log, window=WINDOW, lasting=True)
    assert auxiliary_logs.key_of(log_of(memory)) == (auxiliary_logs.DEDUP, queue_log.id)
    assert auxiliary_logs.key_of(queue_log) is None
    assert auxiliary_logs.key_of(store.create_log()) is None
