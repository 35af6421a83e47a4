"""Spool and streams under a RabbitMQ that stops, is killed, or loses patience."""

import pytest

from leveret.spark.stream_consumer import Follower
from leveret.spark.streams import StreamReader
from tests.rabbitmq.cluster import kill_and_start, stop_and_start
from tests.spark import test_streams as streams
from tests.spark.spooling import LOST_PATIENCE, WAIT_S, driving, options, publish, ready, wait_until

pytestmark = pytest.mark.needs_rabbitmq

STOPPED = pytest.param(stop_and_start, id="stopped")
KILLED = pytest.param(kill_and_start, id="killed")
STOPPED_IN_FULL = pytest.param(stop_and_start, id="stopped", marks=pytest.mark.full)
KILLED_IN_FULL = pytest.param(kill_and_start, id="killed", marks=pytest.mark.full)


@pytest.mark.parametrize("end", [STOPPED_IN_FULL, KILLED])
def test_a_broker_that_restarts_loses_nothing_and_doubles_nothing(own_rabbitmq, fresh, tmp_path, end):
    url, queue = own_rabbitmq.nodes[0].url, fresh()
    sent = sorted(f"m{number:05d}" for number in range(200))
    publish(url, queue, sent)
    chosen = options(url, queue, tmp_path, maxMessagesPerTrigger="60", brokerTimeout="60s")
    with driving(chosen) as driver:
        driver.in_hand(120)
        driver.batch()
        assert driver.plan()
        end(own_rabbitmq)
        driver.until(200)
        wait_until(lambda: not driver.plan() and ready(url, queue) == 0, "the last copies were acked")
    assert driver.rows == sent
    wait_until(lambda: ready(url, queue) == 0, "the queue is empty")


@pytest.mark.parametrize("end", [STOPPED, KILLED_IN_FULL])
def test_a_stream_is_read_on_when_its_broker_is_back(own_rabbitmq, fresh, end):
    url, stream = own_rabbitmq.nodes[0].url, fresh("stream")
    streams.declare(url, stream)
    streams.append(url, stream, streams.bodies(250))
    chosen = streams.options(url, stream, maxMessagesPerTrigger="100", brokerTimeout="60s")
    reader = StreamReader(chosen)
    offset, found = reader.initialOffset(), []
    while len(found) < 250:
        planned = streams.grown(reader, offset)
        if not found:
            end(own_rabbitmq)
        found += streams.rows_of(reader, reader.partitions(offset, planned), chosen)
        offset = planned
    reader.stop()
    assert found == streams.numbered(250)


def test_a_task_that_takes_longer_than_rabbitmq_waits_for_acks_reads_each_offset_once(impatient, fresh):
    stream = fresh("stream")
    streams.declare(impatient.url, stream)
    streams.append(impatient.url, stream, streams.bodies(100))
    found = []
    with Follower(streams.options(impatient.url, stream), 0, prefetch=40) as follower:
        for enough in (30, 60, 100):
            lost = impatient.log.count(LOST_PATIENCE)
            while len(found) < enough:
                found += follower.take(enough - len(found), WAIT_S)
            if enough < 100:
                wait_until(lambda lost=lost: impatient.log.count(LOST_PATIENCE) > lost, "it is closed")
    assert [delivery.body.decode() for delivery in found] == streams.bodies(100)
