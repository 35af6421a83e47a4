"""More than one damaged place, and damage met in the middle of work.

More may be lost then than in `test_damage.py`, but the store opens, goes on, and says what it knows.
"""

from __future__ import annotations

import errno
from random import Random

import pytest

from leveret.storage.errors import WriteFailed
from leveret.storage.journal import Outcome
from leveret.storage.log import Log
from leveret.storage.records import PERSISTENT, Message
from leveret.storage.retention import Retention
from leveret.storage.store import Store
from leveret.testing.disk import FailAt, Operation, PowerCut, SimulatedDisk
from tests.faults.sample_store import SMALL, open_store

LOG = "logs/0000000000000001"


def message(body: bytes) -> Message:
    return Message(b"", b"", b"", body, PERSISTENT)


def bodies(log: Log) -> list[bytes]:
    return [record.body for record in log.read([(0, log.next)])]


def with_two_blocks() -> SimulatedDisk:
    """Each checkpoint writes a block of two messages."""
    disk = SimulatedDisk()
    store = open_store(disk)
    log = store.create_log()
    for number in range(2):
        store.append(log, [message(b"%d first" % number), message(b"%d second" % number)])
        store.checkpoint()
    store.close()
    return disk


def test_a_damaged_index_is_made_again_and_is_good_from_then_on() -> None:
    disk = with_two_blocks()
    whole = disk.read_bytes(f"{LOG}/index.{0:020d}")
    disk.flip(f"{LOG}/index.{0:020d}", 70, 1)
    store = open_store(disk)
    assert len(bodies(store.log(1))) == 4
    assert [each.file for each in store.damage] == [f"{LOG}/index.{0:020d}"]
    assert disk.read_bytes(f"{LOG}/index.{0:020d}") == whole


def test_a_block_that_is_damaged_together_with_the_index_is_all_that_is_lost() -> None:
    disk = with_two_blocks()
    content = disk.read_bytes(f"{LOG}/msgs.{0:020d}")
    for body, left in (
        (b"0 second", [b"1 first", b"1 second"]),
        (b"1 second", [b"0 first", b"0 second"]),
    ):
        damaged = disk.copy()
        damaged.flip(f"{LOG}/msgs.{0:020d}", content.index(body), 1)
        damaged.flip(f"{LOG}/index.{0:020d}", 70, 1)
        store = open_store(damaged)
        assert bodies(store.log(1)) == left
        assert {each.file for each in store.damage} == {f"{LOG}/msgs.{0:020d}", f"{LOG}/index.{0:020d}"}
        store.append(store.log(1), [message(b"new")])
        store.checkpoint()
        store.close()
        assert bodies(open_store(damaged).log(1)) == [*left, b"new"]


def test_when_the_index_is_damaged_after_it_was_read_the_intact_records_are_still_found() -> None:
    disk = with_two_blocks()
    store = open_store(disk)
    log = store.log(1)
    log.segments[0].blocks()
    disk.flip(f"{LOG}/index.{0:020d}", 70, 1)
    disk.flip(f"{LOG}/msgs.{0:020d}", disk.read_bytes(f"{LOG}/msgs.{0:020d}").index(b"0 second"), 1)
    assert bodies(log) == [b"0 first", b"1 first", b"1 second"]
    assert [each.offset for each in store.damage] == [1]


def test_a_segment_of_which_nothing_readable_is_left_goes_when_it_is_rewritten() -> None:
    disk = SimulatedDisk()
    store = open_store(disk)
    log = store.create_log()
    cursor = store.create_cursor(log, "reader")
    store.append(log, [message(b"%02d" % number + bytes(100)) for number in range(20)])
    store.checkpoint()
    (taken,) = cursor.take(20)
    cursor.settle([(taken[0], taken[1] - 1)])
    disk.flip(f"{LOG}/msgs.{0:020d}", disk.read_bytes(f"{LOG}/msgs.{0:020d}").index(b"19" + bytes(9)), 1)
    store.checkpoint()
    assert log.segments == ()
    assert [each.offset for each in store.damage] == [19]
    assert log.read_one(19) is None
    cursor.settle([(19, 20)], Outcome.DAMAGED)
    store.checkpoint()
    store.close()
    assert bodies(open_store(disk).log(log.id)) == []


def test_a_log_whose_only_block_and_index_are_damaged_is_empty_and_goes_on() -> None:
    disk = SimulatedDisk()
    store = open_store(disk)
    log = store.create_log()
    store.create_cursor(log, "reader")
    store.append(log, [message(b"only")])
    store.close()
    disk.flip(f"{LOG}/msgs.{0:020d}", 70, 1)
    disk.flip(f"{LOG}/index.{0:020d}", 70, 1)
    for body in (b"new", b"newer"):
        store = open_store(disk)
        log = store.log(log.id)
        assert bodies(log)[-1:] == ([b"new"] if body == b"newer" else [])
        assert list(log.segments[0].present()) == ([] if body == b"new" else [(1, 2)])
        assert log.segments[0].rows() == b"" or body == b"newer"
        store.append(log, [message(body)])
        store.close()


def grow_into_the_next_wal_file(store: Store, log: Log) -> None:
    store.append(log, [message(bytes(SMALL.wal_bytes))])
    store.sync()


def test_what_was_built_on_a_lost_round_does_not_keep_the_store_from_opening() -> None:
    disk = SimulatedDisk()
    store = open_store(disk)
    lost, altered, filler = store.create_log(), store.create_log(), store.create_log()
    store.sync()
    grow_into_the_next_wal_file(store, filler)
    store.create_cursor(lost, "reader")
    store.append(lost, [message(b"lost")])
    store.set_retention(altered, Retention(keep_settled=True))
    store.append(altered, [message(b"kept")])
    store.append(lost, [message(b"%d" % number) for number in range(SMALL.reserve_ahead)])
    store.sync()
    disk = disk.restart()
    disk.unlink("wal/00000001")
    again = open_store(disk)
    assert list(again.logs) == [altered.id]
    assert bodies(again.log(altered.id)) == [b"kept"]
    assert again.log(altered.id).spec.retention.keep_settled
    offsets = {each.offset for each in again.damage if f"log {lost.id} " in each.what}
    assert offsets == set(range(lost.next))
    assert again.create_log().id > filler.id + 100


def test_a_cursor_goes_with_its_log_when_its_own_deletion_is_lost() -> None:
    disk = SimulatedDisk()
    store = open_store(disk)
    log = store.create_log()
    cursor = store.create_cursor(log, "reader")
    store.checkpoint()
    store.delete_cursor(cursor)
    store.sync()
    filler = store.create_log()
    grow_into_the_next_wal_file(store, filler)
    store.delete_log(log)
    store.sync()
    disk = disk.restart()
    disk.unlink("wal/00000001")
    assert log.id not in open_store(disk).logs


def test_what_is_collected_while_a_write_fails_is_written_with_it_the_next_time() -> None:
    disk = SimulatedDisk()
    store = open_store(disk)
    log = store.create_log()
    store.sync()
    store.append(log, [message(b"first")])

    def fail(operation: Operation) -> None:
        disk.before = None
        store.append(log, [message(b"second")])
        FailAt(1, "write", errno.EIO)(operation)

    disk.before = fail
    with pytest.raises(WriteFailed):
        store.sync()
    store.sync()
    assert bodies(open_store(disk.restart()).log(log.id)) == [b"first", b"second"]


def test_a_segment_that_can_not_even_be_cut_back_is_cut_the_next_time() -> None:
    disk = SimulatedDisk()
    store = open_store(disk)
    log = store.create_log()
    store.append(log, [message(b"first")])
    store.checkpoint()
    store.append(log, [message(b"second")])

    def fail(operation: Operation) -> None:
        if operation.path.startswith("logs/") and operation.kind in ("write", "truncate"):
            raise OSError(errno.EIO, "broken", operation.path)

    disk.before = fail
    for _ in range(2):
        with pytest.raises(WriteFailed):
            store.checkpoint()
    disk.before = None
    store.checkpoint()
    assert bodies(log) == [b"first", b"second"]
    assert bodies(open_store(disk.restart()).log(log.id)) == [b"first", b"second"]


def test_the_name_of_a_wal_file_that_a_killed_process_left_is_durable_before_the_file_is_used() -> None:
    disk = SimulatedDisk()
    store = open_store(disk)
    store.create_log()

    def kill(operation: Operation) -> None:
        if operation.kind == "sync_directory":
            raise PowerCut

    disk.before = kill
    with pytest.raises(PowerCut):
        store.sync()
    disk = disk.restart()
    store = open_store(disk)
    log = store.create_log()
    store.append(log, [message(b"released")])
    store.sync()
    for seed in range(20):
        assert bodies(open_store(disk.copy().crash(Random(seed))).log(log.id)) == [b"released"]
