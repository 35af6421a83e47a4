"""Bulk queries: requests that are repeated or come too late, and what is kept of a deleted queue."""

from __future__ import annotations

import pytest

from leveret.flight import actions
from leveret.testing.broker import Broker
from tests.fronts.flight.bulk_requests import (
    FULL,
    HOUR_S,
    QUEUE,
    Asked,
    ask_on_a_full_disk,
    connected,
    declare,
)


@pytest.fixture
def asked(leveret_broker: Broker) -> Asked:
    declare(leveret_broker, [])
    return Asked(leveret_broker)


def test_a_run_that_asks_twice_is_still_one_run_and_an_earlier_one_stays_over(asked):
    declare(asked.broker, [b"x"])
    first = asked(actions.Open("/", QUEUE, "nightly", HOUR_S, run="a"))
    assert asked(actions.Open("/", QUEUE, "nightly", HOUR_S, run="a")) == first
    assert asked.lease(first, 0).end == 1
    second = asked(actions.Open("/", QUEUE, "nightly", HOUR_S, run="b"))
    assert second.epoch > first.epoch
    late = asked(actions.Open("/", QUEUE, "nightly", HOUR_S, run="a"))
    assert (late.code, late.kind) == (406, "fenced")
    assert asked.lease(second, 0).end == 1
    for number in range(50):
        asked(actions.Open("/", QUEUE, "nightly", HOUR_S, run=f"{number}"))
    queries = asked.broker.server.broker.vhosts["/"].queues[QUEUE].queries().queries
    assert len(queries["nightly"].runs) == 16


def test_who_was_ended_at_the_broker_is_told_so(asked):
    declare(asked.broker, [b"x"])
    opened = asked.open()
    asked(actions.Release("/", QUEUE, "nightly"))
    refused = asked.lease(opened, 0)
    assert (refused.code, refused.kind) == (406, "forgotten")
    assert "the query was ended at the broker" in refused.text


def test_a_queue_that_is_gone_is_not_kept_for_the_rows_it_once_got(asked):
    for turn in range(3):
        declare(asked.broker, [])
        assert asked.stage("task", [b"x"], before=0, batch=turn) == actions.Done()
        assert asked(actions.Commit("/", "writer", turn, ["task"])) == actions.Committed(1, False)
        with connected(asked.broker) as channel:
            channel.queue_delete(QUEUE)
    stages = asked.broker.call(lambda: asked.broker.server.broker.vhosts["/"].stages)
    assert len(stages._queues) == 1


def test_a_queue_that_is_gone_is_not_kept_for_the_query_that_once_read_it(asked):
    timers = asked.broker.server.broker.timers
    with connected(asked.broker) as channel:
        channel.queue_delete(QUEUE)
        before = asked.broker.call(lambda: len(timers))
        for _ in range(3):
            declare(asked.broker, [b"x"])
            assert asked.lease(asked.open(), 0).messages == 1
            channel.queue_delete(QUEUE)
        assert asked.broker.call(lambda: len(timers)) == before


def test_what_can_not_be_written_now_may_be_asked_again(asked):
    declare(asked.broker, [b"x"])
    opened = asked.open()
    request = actions.Lease("/", QUEUE, "nightly", opened.epoch, 0)
    refused = ask_on_a_full_disk(asked.broker, request)
    assert refused == actions.Refused(541, FULL.message, FULL.hint, "busy")
    assert asked.lease(opened, 0).end == 1
