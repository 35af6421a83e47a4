"""Copies of a store that go on while it is used."""

import pytest

from leveret.storage.backup import NotCopied, copy_store
from leveret.storage.errors import Damage
from leveret.storage.log import Log
from leveret.storage.store import Store
from leveret.testing.disk import SimulatedDisk
from tests.storage.builders import make_store, messages


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
