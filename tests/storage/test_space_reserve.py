"""A reserve of disk space: held as a whole, given up in parts, and never the reason that something fails."""

from __future__ import annotations

import errno

import pytest

from leveret.storage.space_reserve import Reserve
from leveret.testing.disk import FailAt, SimulatedDisk


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


def size(disk: SimulatedDisk) -> int:
    with disk.open("reserve") as file:
        return file.size()


def test_it_is_held_and_given_up_and_held_again(disk):
    reserve = Reserve(disk, "reserve", 800)
    assert reserve.hold()
    assert size(disk) == 800
    assert reserve.give_way()
    assert size(disk) == 0
    assert not reserve.give_way(), "nothing is left"
    assert reserve.hold()
    assert size(disk) == 800


def test_it_is_given_up_in_parts(disk):
    reserve = Reserve(disk, "reserve", 800)
    reserve.hold()
    sizes = []
    while reserve.give_way(parts=3):
        sizes.append(size(disk))
    assert sizes == [533, 266, 0]


def test_what_another_process_has_reserved_can_be_given_up(disk):
    Reserve(disk, "reserve", 800).hold()
    assert Reserve(disk, "reserve", 800).give_way()
    assert size(disk) == 0


def test_holding_it_again_touches_no_file(disk):
    reserve = Reserve(disk, "reserve", 800)
    reserve.hold()
    disk.before = FailAt(1, ("create", "write", "allocate", "truncate"), errno.EIO)
    assert reserve.hold()


@pytest.mark.parametrize("kind", ["create", "allocate"])
def test_without_space_it_is_not_held_and_takes_none(disk, kind):
    disk.before = FailAt(1, kind, errno.ENOSPC, torn=kind == "allocate")
    reserve = Reserve(disk, "reserve", 800)
    assert not reserve.hold()
    assert not disk.exists("reserve") or size(disk) == 0
    assert reserve.hold()


def test_a_reserve_that_can_not_be_given_up_is_no_error(disk):
    reserve = Reserve(disk, "reserve", 800)
    assert not reserve.give_way(), "there is no file"
    reserve.hold()
    disk.before = FailAt(1, "truncate", errno.EIO)
    assert not reserve.give_way()


def test_a_reserve_of_nothing_makes_no_file(disk):
    reserve = Reserve(disk, "reserve", 0)
    assert reserve.hold()
    assert not reserve.give_way()
    assert not disk.exists("reserve")
