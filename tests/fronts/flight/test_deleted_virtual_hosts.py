"""Queries and batches of Spark end with their virtual host."""

from __future__ import annotations

import logging

import pytest

from leveret.broker.operations import vhosts
from leveret.flight import actions
from leveret.testing.broker import Broker
from leveret.testing.clock import VirtualClock
from tests.fronts.flight.bulk_requests import QUEUE, Asked
from tests.semantics.client import Client
from tests.semantics.grouping import stream

pytestmark = pytest.mark.real


def test_requests_are_refused_and_timeouts_have_nothing_to_do(caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock()
    with Broker(clock=clock) as broker:
        asked, channel = Asked(broker), Client(broker.port).channel().confirm_select()
        channel.declare(QUEUE)
        stream(channel, "s")
        channel.publish_confirmed(QUEUE, "1", "2", delivery_mode=2)
        channel.publish_confirmed("s", "1", delivery_mode=2)
        opened = asked(actions.Open("/", QUEUE, "nightly", 60.0))
        assert asked.lease(opened, 0).messages == 2
        assert asked.stage("task", [b"hidden"], before=0) == actions.Done()
        asked(actions.Follow("/", "s", False, "reader", actions.At("first")))
        inner, begin = broker.server.broker, broker.server.turns.begin
        broker.call(lambda: vhosts.delete(inner, "/", begin=begin))
        for answer in (
            asked.lease(opened, 1),
            asked.stage("task", [b"more"], before=1),
            asked(actions.Commit("/", "writer", 0, ["task"])),
            asked(actions.Locate("/", "s", False, actions.At("first"))),
        ):
            assert (answer.code, answer.text) == (404, "vhost '/' not found")
        clock.advance(7200)
        assert broker.call(lambda: list(inner.store.logs)) == []
        broker.crash()
        broker.start()
        assert broker.call(lambda: dict(broker.server.broker.vhosts)) == {}
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []
