"""A real file system without a free byte: the broker refuses, lives, drains and starts; a read-only one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest
from pamqp import commands

from leveret.broker.definitions import Change, QueueRow, Row
from leveret.fronts.http.app import create_app
from leveret.server.definitions import Definitions
from leveret.server.http import HttpListener
from leveret.storage.errors import StorageFull
from leveret.storage.files import OsFiles
from leveret.storage.records import PERSISTENT, Message
from leveret.storage.store import Options, Store
from leveret.testing.broker import Broker
from tests.e2e.serving import Serving
from tests.faults.small_disk import SmallDisk, mounted
from tests.processes import WAIT_S, wait_until
from tests.semantics.client import Channel, Client, ClosedByBroker, Lost

pytestmark = pytest.mark.real

OPTIONS = Options(wal_bytes=256 << 10, segment_bytes=1 << 20, memory_bytes=4 << 20, reserve_bytes=128 << 10)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    yield from mounted(tmp_path / "disk", "8m")


@pytest.fixture
def large_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """Large enough for the write-ahead log of `leveret serve`."""
    yield from mounted(tmp_path / "disk", "100m")


@pytest.fixture
def broker(disk: SmallDisk) -> Iterator[Broker]:
    with Broker(disk.path / "data", options=OPTIONS) as broker:
        yield broker


def connect(port: int) -> Channel:
    return Client(port).channel()


def declare_until_refused(broker: Broker) -> int:
    """Declare queues until one is refused; return how many there are."""
    channel = connect(broker.port)
    for number in range(1000):
        channel.send(commands.Queue.Declare(queue=f"fill-{number}", durable=True))
        channel.client.read_until(lambda: channel.answers or channel.closed or channel.client.closed)
        if not channel.answers:
            assert channel.error().code == 541
            assert "full" in channel.error().text
            return number
        channel.answers.clear()
    raise AssertionError("a full disk took 1000 queues")


# while it runs


def test_definitions_are_refused_and_the_broker_lives_and_drains_and_goes_on(
    broker: Broker, disk: SmallDisk
) -> None:
    channel = connect(broker.port)
    channel.declare("orders")
    channel.confirm_select().publish_confirmed("orders", "a", "b", "c")
    disk.fill()
    declared = declare_until_refused(broker)
    names = broker.call(lambda: set(broker.server.broker.vhosts["/"].queues))
    assert names == {"orders", *(f"fill-{number}" for number in range(declared))}
    assert broker.server.broker.blocked == "low on disk"
    drain = connect(broker.port)
    assert drain.get_all("orders") == ["a", "b", "c"]
    for name in names:
        drain.delete(name)  # with what the reserve gives back
    disk.free()
    broker.wait_until(lambda: broker.server.broker.blocked is None, "publishers may go on")
    drain.declare("again")
    assert broker.server.failure is None
    broker.stop()
    with Broker(broker.directory, options=OPTIONS) as again:
        assert set(again.server.broker.vhosts["/"].queues) == {"again"}


def test_gets_drain_a_queue_to_its_end_though_each_few_need_a_sync(
    broker: Broker, disk: SmallDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leveret.storage.cursor.MARK_AHEAD", 32)
    channel = connect(broker.port)
    channel.declare("orders")
    texts = [f"{number} " + 1000 * "x" for number in range(1500)]
    channel.confirm_select().publish_confirmed("orders", *texts)
    broker.server.broker.store.checkpoint()  # else all that is left would have to be written again and again
    disk.fill()
    assert connect(broker.port).get_all("orders") == texts
    assert broker.server.failure is None


def test_a_user_is_refused_with_503_and_not_there(broker: Broker, disk: SmallDisk) -> None:
    app = create_app(broker.server.broker, changed=broker.server.turns.begin)
    listener = HttpListener(app, "127.0.0.1", 0)
    broker.run(listener.start())
    disk.fill()
    declare_until_refused(broker)

    def ask(method: str, path: str) -> int:
        connection = HTTPConnection("127.0.0.1", listener.port, timeout=WAIT_S)
        headers = {"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q=", "Content-Type": "application/json"}
        connection.request(method, path, b'{"password": "x", "tags": ""}', headers)
        status = connection.getresponse().status
        connection.close()
        return status

    assert ask("PUT", "/api/users/new") == 503
    assert ask("GET", "/api/users/new") == 404
    disk.free()
    broker.wait_until(lambda: broker.server.broker.blocked is None, "publishers may go on")
    assert ask("PUT", "/api/users/new") == 201
    broker.run(listener.stop())


# the store alone


def open_store(disk: SmallDisk) -> Store:
    return Store(OsFiles(str(disk.path)), clock=lambda: 1, entropy=lambda: 7, options=OPTIONS)


def abandon(store: Store) -> None:
    """As a process that is killed does."""
    store._wal.close()
    store._lock.release()


def test_a_store_opens_on_a_full_disk_and_makes_room_when_it_is_emptied(disk: SmallDisk) -> None:
    store = open_store(disk)
    log = store.create_log(label="q")
    store.create_cursor(log, "queue")
    bodies = [bytes([number]) * 1000 for number in range(100)]
    store.append(log, [Message(b"", b"k", b"", body, PERSISTENT) for body in bodies])
    store.sync()
    abandon(store)
    (disk.path / "reserve").unlink()
    disk.fill()
    store = open_store(disk)
    (log,) = store.logs.values()
    assert store.is_opening
    assert [record.body for record in log.read([(log.first, log.next)])] == bodies, "all of it can be read"
    for change in (store.sync, store.checkpoint, lambda: store.flush(log)):
        with pytest.raises(StorageFull):
            change()
    assert disk.free_bytes == 0
    with open(disk.path / "filler", "r+b") as filler:  # a checkpoint without messages needs little
        os.ftruncate(filler.fileno(), os.fstat(filler.fileno()).st_size - (64 << 10))
    with pytest.raises(StorageFull):
        store.sync()
    assert disk.free_bytes == 64 << 10, "what an attempt has written it removes again"
    store.delete_log(log)
    store.sync()
    assert not store.is_opening
    store.checkpoint()
    store.close()
    store = open_store(disk)
    assert not store.logs
    store.close()


def test_a_store_that_has_a_reserve_is_emptied_on_a_full_disk(disk: SmallDisk) -> None:
    store = open_store(disk)
    log = store.create_log(label="q")
    store.create_cursor(log, "queue")
    store.append(log, [Message(b"", b"k", b"", bytes(200 << 10), PERSISTENT)])
    store.sync()
    abandon(store)
    disk.fill()
    store = open_store(disk)
    assert store.is_opening
    (log,) = store.logs.values()
    store.delete_log(log)
    store.sync()
    assert not store.is_opening
    store.close()


def test_acks_are_kept_by_checkpoints_when_the_log_of_rounds_is_full(disk: SmallDisk) -> None:
    store = open_store(disk)
    log = store.create_log(label="q")
    cursor = store.create_cursor(log, "queue")
    store.append(log, [Message(b"", b"k", b"", b"x" * 1000, PERSISTENT) for _ in range(100)])
    store.sync()
    disk.fill()
    with pytest.raises(StorageFull):  # noqa: PT012  (which append is the first that does not fit is not told)
        for _ in range(100):
            store.append(log, [Message(b"", b"k", b"", b"y" * 10_000, PERSISTENT)])
            store.sync()
    ready = list(cursor.progress.ready_ranges())
    cursor.take(1000)
    cursor.settle(ready)
    with pytest.raises(StorageFull):
        store.sync()
    store.checkpoint()
    assert store.safe_ticket == store.ticket
    store.checkpoint()
    store.sync()
    store.close()


# when it starts


def test_definitions_are_read_without_a_free_byte(disk: SmallDisk) -> None:
    path = str(disk.path / "definitions.db")
    rows: list[Row] = [QueueRow("/", f"q{number}", number) for number in range(100)]
    definitions = Definitions(path)
    definitions.put(1, [Change(row) for row in rows])
    definitions.close()
    (disk.path / "definitions.db.reserve").unlink()
    disk.fill()
    definitions = Definitions(path)
    assert sorted(definitions.load(), key=repr) == sorted(rows, key=repr)
    definitions.close()


def test_a_killed_broker_starts_on_a_full_disk_is_drained_and_goes_on(large_disk: SmallDisk) -> None:
    directory = large_disk.path
    with Serving(directory) as server:
        channel = connect(server.port)
        channel.declare("orders")
        channel.declare("old")
        channel.confirm_select().publish_confirmed("orders", "a", "b")
        channel.publish_confirmed("old", *(["x" * 100_000] * 20))
        server.kill()
    large_disk.fill()
    with Serving(directory) as server:
        assert server.is_ready, server.errors
        channel = connect(server.port)
        assert channel.get_all("orders") == ["a", "b"]
        assert channel.count("old") == 20
        channel.delete("old")
        large_disk.free()

        def declared() -> bool:
            try:
                connect(server.port).declare("new")
            except (ClosedByBroker, Lost):
                return False
            return True

        wait_until(declared, "definitions are taken again")
        server.kill()
    with Serving(directory) as server:
        channel = connect(server.port)
        assert (channel.count("new"), channel.count("orders")) == (0, 0)
        assert server.terminate() == 0


def test_a_read_only_file_system_is_one_sentence(disk: SmallDisk) -> None:
    disk.make_read_only()
    with Serving(disk.path) as server:
        assert server.process.wait(WAIT_S) == 1
        assert server.errors == (
            f"leveret: the data directory {disk.path} is on a file system that is mounted read-only "
            "(mount it for writing, or name another with --data-dir)\n"
        )
