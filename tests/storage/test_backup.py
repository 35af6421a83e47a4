"""Copies of a store that go on while it is used."""

import pytest

from leveret.storage.backup import NotCopied, copy_store
from leveret.storage.errors import Damage
from leveret.storage.log import Log
from leveret.storage.store import Store
from leveret.testing.disk import SimulatedDisk
from tests.storage.builders import SMALL, make_store, message, messages


def nothing(damage: Damage) -> None:
    raise AssertionError(damage)


def bodies(disk: SimulatedDisk, log_id: int) -> list[bytes]:
    store = make_store(disk)
    log = store.logs[log_id]
    return [record.body for record in log.read([(log.first, log.next)])]


def copy(store: Store, source: SimulatedDisk, checkpoints: list[int]) -> SimulatedDisk:
    """Copy the store; with each piece the store writes the next number of checkpoints."""
    target = SimulatedDisk()

    def go_on(_: int) -> None:
        for _ in range(checkpoints.pop(0) if checkpoints else 0):
            store.append(store.logs[min(store.logs)], messages(3))
            store.checkpoint()

    copy_store(source, target, nothing, copied=go_on)
    return target


def test_what_was_synced_before_a_copy_is_in_it(store: Store, disk: SimulatedDisk, log: Log) -> None:
    store.append(log, messages(5))
    store.checkpoint()
    store.append(log, messages(4))
    store.sync()
    copied = copy(store, disk, [])
    assert len(bodies(copied, log.id)) == 9


MOMENTS = [([0] * pieces + [2], 5) for pieces in range(1, 7)]


@pytest.mark.parametrize(("checkpoints", "least"), [([1], 5), ([2], 11), ([2, 0, 0, 2], 11), *MOMENTS])
def test_a_copy_begins_again_when_the_store_has_written_two_checkpoints(
    store: Store, disk: SimulatedDisk, log: Log, checkpoints: list[int], least: int
) -> None:
    store.append(log, messages(5))
    store.checkpoint()
    copied = copy(store, disk, checkpoints)
    assert len(bodies(copied, log.id)) >= least


def test_a_store_that_is_always_faster_is_not_copied(store: Store, disk: SimulatedDisk, log: Log) -> None:
    store.append(log, messages(5))
    store.checkpoint()
    with pytest.raises(NotCopied, match="two checkpoints during each of 5 copies"):
        copy(store, disk, [2] * 1000)


def test_a_directory_without_a_checkpoint_is_not_copied() -> None:
    with pytest.raises(NotCopied, match="no checkpoint"):
        copy_store(SimulatedDisk(), SimulatedDisk(), nothing)


def write_rounds(store: Store, log: Log, count: int) -> None:
    for _ in range(count):
        store.append(log, [message(b"x" * 700)])
        store.sync()


@pytest.mark.parametrize("before", [1, 5, 9])
@pytest.mark.parametrize("file", [1, 2, 3])
def test_rounds_that_are_synced_while_it_copies_leave_no_gap(
    store: Store, disk: SimulatedDisk, log: Log, before: int, file: int
) -> None:
    """The store goes on in a file that is copied later: that copy alone has the later rounds."""
    for _ in range(3):
        write_rounds(store, log, 30)
        store.checkpoint()
    write_rounds(store, log, before)
    synced = log.next
    files = 0

    def go_on(size: int) -> None:
        nonlocal files
        files += size == SMALL.wal_bytes
        if files == file:
            files += 100
            write_rounds(store, log, 25)

    target = SimulatedDisk()
    copy_store(disk, target, nothing, copied=go_on)
    assert files > 100
    copied = make_store(target)
    assert copied.damage == []
    assert len(copied.logs[log.id].read([(0, synced)])) == synced
