"""The spool under a RabbitMQ that stops or is killed."""

import pytest

from tests.client.cluster import kill_and_start, lone_rabbitmq, stop_and_start  # noqa: F401  (a fixture)
from tests.spark.spooling import driving, options, publish, ready, wait_until

pytestmark = pytest.mark.needs_rabbitmq


@pytest.mark.parametrize("end", [stop_and_start, kill_and_start], ids=["stopped", "killed"])
def test_a_broker_that_restarts_loses_nothing_and_doubles_nothing(lone_rabbitmq, fresh, tmp_path, end):  # noqa: F811
    url, queue = lone_rabbitmq.nodes[0].url, fresh()
    sent = sorted(f"m{number:05d}" for number in range(200))
    publish(url, queue, sent)
    chosen = options(url, queue, tmp_path, maxMessagesPerTrigger="60", brokerTimeout="60s")
    with driving(chosen) as driver:
        driver.in_hand(120)
        driver.batch()
        assert driver.plan()
        end(lone_rabbitmq)
        driver.until(200)
        wait_until(lambda: not driver.plan() and ready(url, queue) == 0, "the last copies were acked")
    assert driver.rows == sent
    wait_until(lambda: ready(url, queue) == 0, "the queue is empty")
