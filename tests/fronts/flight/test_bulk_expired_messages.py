"""Leases of queues with messages that have expired or have used up their deliveries."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from leveret.broker.queues import dead_letters
from leveret.broker.queues.deliverer import Deliverer
from leveret.flight import actions
from leveret.storage.journal import Kind
from leveret.testing.broker import Broker
from leveret.testing.clock import VirtualClock
from tests.fronts.flight.bulk_requests import QUEUE, Asked, ask_on_a_full_disk, connected, declare


@pytest.fixture
def mixed(leveret_broker: Broker, leveret_clock: VirtualClock) -> Asked:
    """One message that lives, 3,000 behind it that have expired, and two that live."""
    declare(leveret_broker, [b"first"])
    declare(leveret_broker, [b"dead"] * 3000, expiration="1000")
    declare(leveret_broker, [b"second", b"third"])
    leveret_clock.advance(5)
    return Asked(leveret_broker)


def test_a_lease_that_would_be_of_dead_messages_alone_is_of_those_behind_them(mixed, monkeypatch):
    opened = mixed.open()
    counted, count = [], dead_letters._count

    def watched(*said: Any, **more: Any) -> None:
        counted.append(said)
        count(*said, **more)

    monkeypatch.setattr(dead_letters, "_count", watched)
    assert mixed.lease(opened, 0, max_messages=1).messages == 1
    assert mixed.lease(opened, 1, max_messages=1000).messages == 2
    assert mixed.offsets(opened, 1, 2) == [3001, 3002]
    assert len(counted) < 20, "many at once"


def test_who_would_have_to_wait_for_many_dead_ones_is_told_to_ask_again(mixed, monkeypatch):
    monkeypatch.setattr("leveret.broker.queries.leases._DEAD_MAX", 300)
    opened = mixed.open()
    end, answers = 1, []
    mixed.lease(opened, 0, max_messages=1)
    while end == 1 and len(answers) < 100:
        answers.append(mixed.lease(opened, 1, max_messages=100))
        end = getattr(answers[-1], "end", 1)
    assert {answer.kind for answer in answers[:-1]} == {"busy"}
    assert "had all expired" in answers[0].text
    assert answers[-1].messages == 2


def test_one_message_is_looked_for_behind_many_dead_ones_in_few_steps(mixed):
    opened = mixed.open()
    mixed.lease(opened, 0, max_messages=1)
    journal = mixed.broker.server.broker.vhosts["/"].queues[QUEUE].cursor.journal
    before = journal.next
    assert mixed.lease(opened, 1, max_messages=1).messages == 1
    assert mixed.offsets(opened, 1, 2) == [3001]
    assert journal.next - before < 50


def test_what_was_looked_at_behind_dead_messages_was_delivered_to_nobody(leveret_broker, leveret_clock):
    audited = {"x-audit-window": 3_600_000}
    declare(leveret_broker, [b"first"], audited)
    declare(leveret_broker, [b"dead"] * 1300, audited, expiration="1000")
    declare(leveret_broker, [b"living"] * 3, audited)
    leveret_clock.advance(5)
    asked = Asked(leveret_broker)
    opened = asked.open()
    for start in (0, 1):
        assert asked.lease(opened, start, max_messages=1).messages == 1
    cursor = leveret_broker.server.broker.vhosts["/"].queues[QUEUE].cursor
    given: Counter[int] = Counter()
    for entry in cursor.entries(0, cursor.journal.next):
        step = {Kind.LEASED: 1, Kind.WITHHELD: -1}.get(entry.kind, 0)
        given.update({offset: step for start, stop in entry.ranges for offset in range(start, stop)})
    assert +given == {0: 1, 1301: 1}


def test_a_message_whose_delay_ends_while_others_are_buried_is_leased(
    leveret_broker, leveret_clock, monkeypatch
):
    """As many are ready then as before, and yet something was written."""
    declare(leveret_broker, [b"worn out", b"delayed"], {"x-delivery-limit": 1})
    broker = leveret_broker.server.broker
    cursor = broker.vhosts["/"].queues[QUEUE].cursor

    def prepare() -> None:
        for _ in range(3):
            cursor.give_back(cursor.take(1))
        cursor.take(2)
        cursor.give_back([(0, 1)], counted=False)
        cursor.give_back([(1, 2)], not_before_us=broker.now_us() + 1000, counted=False)

    leveret_broker.call(prepare)
    asked = Asked(leveret_broker)
    opened = asked.open()
    # Delays were looked at a moment before.
    monkeypatch.setattr(Deliverer, "catch_up", lambda deliverer: deliverer.rules.before_turn())
    leveret_clock.advance(0.01)
    assert asked.lease(opened, 0, max_messages=1).messages == 1
    assert asked.offsets(opened, 0, 1) == [1]


def test_on_a_full_disk_dead_messages_are_looked_at_once(leveret_broker):
    with connected(leveret_broker) as channel:
        channel.queue_declare("dead", durable=True)
    worn_out = {"x-delivery-limit": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    declare(leveret_broker, [b"x"] * 5, worn_out)
    queue = leveret_broker.server.broker.vhosts["/"].queues[QUEUE]
    for _ in range(3):
        leveret_broker.call(lambda: queue.cursor.give_back(queue.cursor.take(5)))
    asked = Asked(leveret_broker)
    opened = asked.open()
    before = queue.cursor.journal.next
    request = actions.Lease("/", QUEUE, "nightly", opened.epoch, 0)
    refused = ask_on_a_full_disk(leveret_broker, request)
    assert refused.kind == "busy"
    assert refused.text.endswith("can't be taken or dead-lettered before earlier changes are written")
    assert queue.cursor.journal.next - before < 10
    assert leveret_broker.depth(QUEUE) == 5
