"""Queries that come back when their leases have expired: what they get, and what is acked."""

from __future__ import annotations

from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from leveret.flight import actions
from leveret.storage.journal import Entry, Kind, Outcome
from leveret.testing.broker import Broker
from leveret.testing.clock import VirtualClock
from tests.fronts.flight.bulk_requests import HOUR_S, QUEUE, Asked, ask_on_a_full_disk, connected, declare

BODIES = [b"%d" % n for n in range(10)]
BATCH = 4


class Late:
    """A query that has leased four of ten messages, and was away for longer than an hour."""

    def __init__(self, broker: Broker, clock: VirtualClock) -> None:
        self.broker = broker
        self.clock = clock
        self.asked = Asked(broker)
        self.run = self.asked.open()
        assert self.asked.lease(self.run, 0, max_messages=BATCH).end == 1
        self.batch = self.plan()
        self.be_away()
        assert self.counts() == (10, 0)

    def be_away(self) -> None:
        self.clock.advance(HOUR_S + 1)
        self.broker.wait_until(lambda: not self.query().leases, "its leases have expired")

    def plan(self) -> Any:
        return self.asked(actions.Plan("/", QUEUE, "nightly", self.run.epoch, 0, 1))

    def query(self) -> Any:
        return self.broker.server.broker.vhosts["/"].queues[QUEUE].queries().queries["nightly"]

    def counts(self) -> tuple[int, int]:
        return self.broker.depth(QUEUE), self.broker.unacked(QUEUE)

    def restart(self) -> None:
        self.broker.restart()
        self.asked = Asked(self.broker)


@pytest.fixture
def late(leveret_broker: Broker, leveret_clock: VirtualClock) -> Late:
    declare(leveret_broker, BODIES)
    return Late(leveret_broker, leveret_clock)


def taken(channel: BlockingChannel, count: int) -> list[bytes]:
    return [channel.basic_get(QUEUE)[2] for _ in range(count)]


def test_it_has_its_batch_again_if_nobody_has_taken_any_of_it(late):
    late.run = late.asked.open()
    assert late.plan() == late.batch
    assert late.counts() == (6, 4)
    with connected(late.broker) as channel:
        assert taken(channel, 6) == BODIES[BATCH:]


def test_a_message_that_came_back_in_time_is_as_good_as_one_that_nobody_had(late):
    with connected(late.broker) as channel:
        taken(channel, 2)
    late.broker.wait_until_depth(QUEUE, 10)
    assert late.plan() == late.batch


def test_its_batch_is_gone_if_somebody_has_taken_one_of_it(late):
    with connected(late.broker) as channel:
        taken(channel, 1)
        refused = late.plan()
        assert (refused.code, refused.kind) == (406, "expired")
        assert "went back to the queue, and not all of them are still there" in refused.text
        assert "leaseTimeout" in refused.hint
        assert late.counts() == (9, 1)


def test_what_it_has_committed_is_acked_and_does_not_come_again(late):
    leased = late.asked.lease(late.run, 1)
    assert (leased.settled, leased.end, leased.messages) == (1, 2, 6)
    assert late.counts() == (0, 6)
    assert late.asked.offsets(late.run, 1, 2) == [4, 5, 6, 7, 8, 9]


def test_with_a_new_checkpoint_it_gets_what_is_left_of_its_batch_and_acks_nothing_that_it_has_not_read(late):
    with connected(late.broker) as channel:
        taken(channel, 1)
        channel.basic_ack(0, multiple=True)
        late.run = late.asked.open()
        assert late.plan().kind == "expired"
        leased = late.asked.lease(late.run, late.run.settled)
        assert (leased.settled, leased.end, leased.messages) == (0, 2, 9)
        assert late.asked.offsets(late.run, 0, 2) == list(range(1, 10))


def test_a_full_disk_leaves_its_messages_where_they_are_also_one_that_waits_for_its_time(late):
    queue = late.broker.server.broker.vhosts["/"].queues[QUEUE]
    request = actions.Plan("/", QUEUE, "nightly", late.run.epoch, 0, 1)

    def delay_one() -> None:
        queue.cursor.give_back(queue.cursor.take(1), not_before_us=1 << 60)

    assert ask_on_a_full_disk(late.broker, request, before=delay_one).kind == "busy"
    assert (len(queue.cursor.progress.delayed), late.counts()) == (1, (9, 0))
    assert late.plan() == late.batch
    assert (len(queue.cursor.progress.delayed), late.counts()) == (0, (6, 4))


def test_what_another_has_taken_of_it_is_the_others_own_to_settle(late):
    with connected(late.broker) as channel:
        taken(channel, 1)
        assert late.asked.lease(late.run, 1, settle_only=True).settled == 1
        assert late.counts() == (6, 1)
    late.broker.wait_until_depth(QUEUE, 7)


def test_what_another_returns_of_what_it_has_committed_does_not_come_again(late):
    with connected(late.broker) as channel:
        assert taken(channel, 2) == BODIES[:2]
        assert late.asked.lease(late.run, 1, max_messages=3).end == 2
        channel.basic_nack(2, requeue=True)
        late.broker.wait_until_depth(QUEUE, 4)
        assert late.asked.lease(late.run, 2, max_messages=3).messages == 3
    late.broker.wait_until_depth(QUEUE, 1)
    late.restart()
    late.run = late.asked.open()
    assert late.asked.lease(late.run, 3).messages == 0
    assert late.counts() == (0, 0)
    assert late.query().expired == {}


def test_what_another_returns_of_it_is_no_batch(late):
    with connected(late.broker) as channel:
        taken(channel, 2)
        assert late.asked.lease(late.run, 1, settle_only=True).settled == 1
    late.broker.wait_until_depth(QUEUE, 8)
    assert late.plan().kind == "settled"


def test_it_may_be_late_again_and_again(late):
    for _ in range(3):
        assert late.plan() == late.batch
        late.be_away()
    assert late.asked.lease(late.run, 1, settle_only=True).settled == 1
    assert late.counts() == (6, 0)
    assert not late.query().expired


def test_the_lease_is_known_after_a_restart(late):
    late.restart()
    assert late.counts() == (10, 0)
    assert late.plan() == late.batch
    late.restart()
    assert late.counts() == (6, 4)
    late.be_away()
    late.restart()
    assert late.asked.lease(late.run, 1, settle_only=True).settled == 1
    late.restart()
    assert late.counts() == (6, 0)


def test_it_is_forgotten_with_its_query(late):
    late.asked(actions.Release("/", QUEUE, "nightly"))
    assert late.counts() == (10, 0)
    late.restart()
    anew = late.asked.open()
    assert late.asked.lease(anew, anew.settled).messages == 10


@pytest.mark.parametrize("committed", [0, 1])
def test_when_it_was_ended_its_old_checkpoint_is_refused_and_reads_nothing_twice(late, committed):
    late.asked(actions.Release("/", QUEUE, "nightly"))
    late.restart()
    late.run = late.asked.open()
    late.restart()
    refused = late.asked.lease(late.run, committed) if committed else late.plan()
    assert (refused.code, refused.kind) == (406, "forgotten")
    assert "the query was ended at the broker, and its messages went back" in refused.text
    assert "new checkpoint" in refused.hint
    assert late.counts() == (10, 0)


def test_when_it_was_ended_with_all_acked_it_goes_on_where_it_was(late):
    late.asked.lease(late.run, 1, settle_only=True)
    late.asked(actions.Release("/", QUEUE, "nightly"))
    late.run = late.asked.open()
    assert late.asked.lease(late.run, 1).messages == 6


def test_it_is_forgotten_when_the_query_goes_on_without_it(late):
    assert late.asked.lease(late.run, 0).messages == 10
    assert not late.query().expired
    late.restart()
    assert not late.query().expired
    assert late.asked.offsets(late.run, 0, 2) == list(range(10))


@pytest.mark.parametrize("committed", [True, False])
def test_when_another_checkpoint_has_its_messages_it_is_told_so(late, committed):
    other = late.asked.open()
    assert late.asked.lease(other, 0).messages == 10
    late.run = late.asked.open()
    for _ in range(2):
        refused = late.asked.lease(late.run, 1) if committed else late.plan()
        assert (refused.code, refused.kind) == (406, "expired")
        assert late.counts() == (0, 10)
        late.restart()
    assert late.asked.lease(late.run, 0).end == 2
    assert late.asked.offsets(late.run, 0, 2) == list(range(10))
    assert late.asked.lease(late.run, 2).settled == 2
    assert not late.query().void


def test_what_it_rejects_is_settled_as_that(late):
    queue = late.broker.server.broker.vhosts["/"].queues[QUEUE]
    late.broker.call(lambda: queue.queries().reject("nightly", [(1, 3)], why=b"too large"))
    assert late.counts() == (8, 0)
    assert late.asked.offsets(late.run, 0, 1) == [0, 3]
    late.asked.lease(late.run, 1, settle_only=True)
    assert settlements(late.broker) == [
        (Outcome.SENT_TO_REJECTS, b"query nightly", [(1, 3)]),
        (Outcome.ACKED, b"query nightly", [(0, 1), (3, 4)]),
    ]


def test_the_account_says_who_has_acked_late(late):
    late.asked.lease(late.run, 1, settle_only=True)
    assert settlements(late.broker) == [(Outcome.ACKED, b"query nightly", [(0, 4)])]


def test_a_queue_in_exclusive_use_gives_nothing_back_to_it(late):
    with connected(late.broker) as channel:
        channel.basic_qos(prefetch_count=1)
        channel.basic_consume(QUEUE, lambda *_: None, exclusive=True)
        assert late.plan().code == 403


def test_a_length_in_bytes_does_not_count_what_it_has(leveret_broker, leveret_clock):
    declare(leveret_broker, BODIES, {"x-max-length-bytes": 10, "x-overflow": "reject-publish"})
    late = Late(leveret_broker, leveret_clock)
    late.plan()
    declare_again(leveret_broker, BATCH)
    with pytest.raises(pika.exceptions.NackError):
        declare_again(leveret_broker, 1)
    late.restart()
    assert late.counts() == (10, 4)
    late.asked.lease(late.run, 1, settle_only=True)
    assert late.counts() == (10, 0)


def test_a_length_in_bytes_does_not_count_what_was_acked_late(leveret_broker, leveret_clock):
    declare(leveret_broker, BODIES, {"x-max-length-bytes": 10, "x-overflow": "reject-publish"})
    late = Late(leveret_broker, leveret_clock)
    late.asked.lease(late.run, 1, settle_only=True)
    declare_again(leveret_broker, BATCH)
    with pytest.raises(pika.exceptions.NackError):
        declare_again(leveret_broker, 1)


def declare_again(broker: Broker, count: int) -> None:
    declare(broker, [b"x"] * count, {"x-max-length-bytes": 10, "x-overflow": "reject-publish"})


def settlements(broker: Broker) -> list[tuple[int, bytes, list[tuple[int, int]]]]:
    """What the queue's journal says, in its order: outcomes, by whom, and of which offsets."""

    def read() -> list[tuple[int, bytes, list[tuple[int, int]]]]:
        journal = broker.server.broker.vhosts["/"].queues[QUEUE].cursor.journal
        entries = [Entry.of(record) for record in journal.read([(journal.first, journal.next)])]
        return [(each.outcome, each.who, list(each.ranges)) for each in entries if each.kind == Kind.SETTLED]

    return broker.call(read)
