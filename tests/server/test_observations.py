"""What the server observes for metrics: syncs, checkpoints, turns, and the lag of the loop."""

from __future__ import annotations

import asyncio

import pytest

from leveret.broker.histograms import Histogram
from leveret.server.loop_lag import LoopLag
from leveret.testing.broker import Broker
from tests.semantics.client import Client

pytestmark = pytest.mark.real


def test_syncs_turns_and_checkpoints_are_observed() -> None:
    with Broker() as broker:
        observed = broker.server.broker.observations
        before = observed.sync_us.view(), observed.sync_records.view(), observed.turn_us.view()
        client = Client(broker.port)
        channel = client.channel()
        channel.declare("q")
        channel.confirm_select()
        channel.publish("q", "body")
        channel.confirmed(1)
        broker.call(broker.server.broker.store.hurry)
        broker.server.turns._committer._checkpoint_wanted.set()
        broker.wait_until(lambda: sum(observed.checkpoint_us.view().counts) > 0, "a checkpoint is done")
        client.close()
        syncs, records, turns = observed.sync_us.view(), observed.sync_records.view(), observed.turn_us.view()
        assert sum(syncs.counts) > sum(before[0].counts)
        assert sum(records.counts) == sum(syncs.counts) == sum(observed.sync_bytes.view().counts)
        assert records.total > before[1].total
        assert sum(turns.counts) > sum(before[2].counts)
        assert sum(observed.confirm_latency_us.view().counts) == 1


def test_the_lag_of_the_loop_is_observed_until_it_is_stopped() -> None:
    lag_us = Histogram([1_000_000])

    async def measure() -> None:
        lag = LoopLag(lag_us, asyncio.get_running_loop())
        lag.start()
        while not sum(lag_us.view().counts):
            await asyncio.sleep(0.01)
        lag.stop()

    asyncio.run(measure())
    assert sum(lag_us.view().counts) == 1
