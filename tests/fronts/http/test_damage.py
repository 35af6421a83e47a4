"""Damage that is found while the broker runs: one line in the log, a counter, and a health that says so."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest

from leveret.broker.definitions import Change, PermissionRow
from leveret.server.damage_log import owner_of
from leveret.server.definitions import Definitions
from leveret.storage.errors import Damage
from leveret.testing.broker import Broker

PERSISTENT = pika.BasicProperties(delivery_mode=2)


@pytest.fixture
def leveret_broker(tmp_path: Path) -> Iterator[Broker]:
    """On real files, which can be damaged."""
    with Broker(tmp_path / "data") as broker:
        yield broker


def damage_a_message(broker: Broker) -> Path:
    """Write the queue to its file, and flip a byte of the second message there."""
    broker.call(broker.server.broker.store.checkpoint)
    assert broker.directory is not None
    (path,) = [
        each for each in broker.directory.glob("logs/*/msgs.*") if b"second message" in each.read_bytes()
    ]
    path.write_bytes(path.read_bytes().replace(b"second message", b"second massage"))
    return path


def test_a_damaged_message_is_logged_with_its_queue_counted_and_told(api, channel, caplog):
    channel.queue_declare("orders", durable=True)
    for number in ("first", "second", "third"):
        channel.basic_publish("", "orders", f"{number} message".encode(), PERSISTENT)
    path = damage_a_message(api.broker)
    file = path.relative_to(api.broker.directory)
    assert api.get("/health", user=None).json == {"status": "ok"}
    found = [channel.basic_get("orders", auto_ack=True)[2] for _ in range(2)]
    assert found == [b"first message", b"third message"]
    (line,) = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
    assert line.startswith(f"{file}, byte ")
    assert line.endswith(
        ", offset 1: a record does not match its checksum and is lost (queue 'orders' in vhost '/')"
    )
    answer = api.get("/health", user=None)
    assert answer.status == 200, "it takes messages"
    assert answer.json["status"] == "degraded"
    (reason,) = answer.json["reasons"]
    assert reason == "damaged: " + line.removesuffix(" (queue 'orders' in vhost '/')")
    assert "orders" not in reason, "nobody was asked for a name"
    assert api.get("/api/overview").json["damaged"] == 1


def test_a_damaged_place_is_told_once(api, channel, caplog):
    channel.queue_declare("orders", durable=True, arguments={"x-queue-type": "stream"})
    channel.basic_publish("", "orders", b"second message", PERSISTENT)
    damage_a_message(api.broker)
    log = api.broker.server.broker.vhosts["/"].queues["orders"].log
    for _ in range(3):
        log._cache._blocks.clear()
        api.broker.call(api.broker.server.turns.begin)
        assert api.broker.call(lambda: log.read([(0, 1)])) == []
    api.broker.call(api.broker.server.turns.begin)
    api.broker.wait_until(lambda: api.broker.server.broker.counters.damaged == 1, "the damage is counted")
    assert len([each for each in caplog.records if each.levelno == logging.ERROR]) == 1


def test_files_of_a_queue_are_known_by_their_log(api, channel):
    channel.queue_declare("orders", durable=True)
    broker = api.broker.server.broker
    log = broker.vhosts["/"].queues["orders"].log
    (journal,) = [cursor.journal for cursor in broker.store.cursors(log.id).values()]
    for each in (log, journal):
        path = f"{each.spec.directory}/msgs.00000000000000000000"
        assert owner_of(broker, path) == "queue 'orders' in vhost '/'"
    assert owner_of(broker, "wal/00000001") == ""


def test_many_damaged_places_are_counted_and_some_are_named(api, caplog):
    def find() -> None:
        for number in range(250):
            api.broker.server.damage.tell([Damage("wal/1", number, None, "it is damaged")])

    api.broker.call(find)
    reasons = api.get("/health", user=None).json["reasons"]
    assert len(reasons) == 11
    assert reasons[-1] == "240 more damaged places: see the broker's log"
    assert api.get("/api/overview").json["damaged"] == 250
    assert len(api.broker.server.broker.damage) == 100


def test_a_full_disk_is_told_before_the_damage(api):
    def find() -> None:
        api.broker.server.damage.tell([Damage("wal/1", 0, None, "it is damaged")])

    api.broker.call(find)
    api.broker.set_alarm("disk", on=True)
    answer = api.get("/health", user=None)
    assert answer.status == 503
    assert answer.json["reasons"] == [
        "publishers are blocked: low on disk",
        "damaged: wal/1, byte 0: it is damaged",
    ]


def test_a_right_without_its_user_is_removed_and_named(tmp_path, caplog):
    directory = tmp_path / "other"
    with Broker(directory):
        pass
    definitions = Definitions(str(directory / "definitions.db"))
    definitions.put(1, [Change(PermissionRow("/", "gone", ".*", ".*", ".*"))])
    definitions.close()
    with Broker(directory) as broker:
        assert broker.server.broker.counters.damaged == 1
    assert "the permissions of user 'gone' in vhost '/' were removed" in caplog.text
    with Broker(directory) as broker:
        assert broker.server.broker.counters.damaged == 0
