"""What the options of the sink make the broker do with rows that nobody commits."""

import pytest

from leveret.spark.datasource import LeveretDataSource
from leveret.spark.errors import BrokerRefused
from leveret.spark.sink import StageStreamWriter, StageWriter
from leveret.testing.broker import Broker
from leveret.testing.clock import VirtualClock
from tests.spark.tasks import bodies, declare, run_task, schema_of, texts_in

pytestmark = pytest.mark.real


@pytest.fixture
def timed(tmp_path):
    """Its time passes when a test says so."""
    with Broker(tmp_path / "data", flight=True, clock=VirtualClock()) as broker:
        declare(broker.url, "orders")
        yield broker


def source(broker: Broker, **given: str) -> LeveretDataSource:
    return LeveretDataSource({"url": broker.url, "routingKey": "orders", **given})


def hidden(broker: Broker) -> int:
    return broker.call(lambda: broker.server.broker.vhosts["/"].queues["orders"].hidden)


def test_a_stage_that_nobody_commits_is_thrown_away_when_its_time_is_over(timed):
    writer = source(timed, stageTimeout="50ms").streamWriter(schema_of(bodies("x")), overwrite=False)
    assert isinstance(writer, StageStreamWriter)
    staged = run_task(writer, [bodies("a", "b")])
    timed.clock.advance(0.049)
    assert hidden(timed) == 2
    timed.clock.advance(0.002)
    assert hidden(timed) == 0
    with pytest.raises(
        BrokerRefused, match=r"is missing or incomplete.*with a longer stageTimeout"
    ) as refused:
        writer.commit([staged], 0)
    assert refused.value.kind == "expired"
    assert texts_in(timed.url, "orders") == []


def test_a_batch_write_that_nobody_commits_is_too(timed):
    writer = source(timed, stageTimeout="2 minutes").writer(schema_of(bodies("x")), overwrite=False)
    assert isinstance(writer, StageWriter)
    run_task(writer, [bodies("a", "b")])
    timed.clock.advance(119)
    assert hidden(timed) == 2
    timed.clock.advance(2)
    assert hidden(timed) == 0


def test_a_stage_that_is_committed_in_time_stays(timed):
    writer = source(timed, stageTimeout="50ms").streamWriter(schema_of(bodies("x")), overwrite=False)
    staged = run_task(writer, [bodies("a", "b")])
    timed.clock.advance(0.049)
    writer.commit([staged], 0)
    timed.clock.advance(3600)
    assert texts_in(timed.url, "orders") == ["a", "b"]
