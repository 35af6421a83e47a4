"""A disk, a clock, and a store with one log and one cursor."""

import pytest

from leveret.storage.cursor import Cursor
from leveret.storage.log import Log
from leveret.storage.store import Store
from leveret.testing.disk import SimulatedDisk
from tests.storage.builders import Clock, make_store


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(disk, clock) -> Store:
    return make_store(disk, clock)


@pytest.fixture
def log(store) -> Log:
    return store.create_log(label="orders")


@pytest.fixture
def cursor(store, log) -> Cursor:
    """A cursor that may deliver, because its first mark is durable."""
    made = store.create_cursor(log, "reader")
    store.sync()
    return made
