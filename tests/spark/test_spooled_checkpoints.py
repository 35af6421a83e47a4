"""Checkpoints that have gone another way than the spool: what they are told, and what they leave alone."""

import warnings
from collections.abc import Iterator

import pytest

from leveret.spark.errors import DataLost
from leveret.testing.broker import Broker
from tests.spark.spooling import Driver, driving, options, publish, wait_until
from tests.spark.test_spool_stream import bodies, empties


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """One of many: its Flight endpoint is not there."""
    with Broker() as broker:
        yield broker


def copy_of(driver: Driver, old: Driver, *, committed: int, planned: int) -> None:
    """The checkpoint as it was when so many batches were."""
    old.offsets, old.committed = driver.offsets[:planned], committed


@pytest.mark.parametrize(
    ("committed", "sentence"),
    [(2, "settled up to 3: another checkpoint was used"), (1, "batch 2 is settled")],
    ids=["that is committed", "that has a batch to run again"],
)
def test_a_run_that_is_refused_for_an_old_copy_of_its_checkpoint_leaves_the_later_one_alone(
    broker, fresh, tmp_path, committed, sentence
):
    queue, sent = fresh(), bodies(50)
    publish(broker.url, queue, sent)
    chosen = options(broker.url, queue, tmp_path, maxMessagesPerTrigger="10")
    with driving(chosen) as driver, driving(chosen) as old:
        driver.in_hand(20)
        for _ in range(4):
            wait_until(driver.batch, "a batch")
        copy_of(driver, old, committed=committed, planned=2)
        with pytest.raises(DataLost, match=sentence):
            old.batch()
        driver.until(50)
    assert driver.rows == sent
    assert empties(broker.url, queue)


def test_a_run_whose_checkpoint_is_of_another_spool_leaves_that_alone(broker, fresh, tmp_path):
    queue, sent = fresh(), bodies(20)
    publish(broker.url, queue, sent)
    chosen = options(broker.url, queue, tmp_path, maxMessagesPerTrigger="10")
    with driving(chosen) as driver, driving(chosen) as other:
        driver.in_hand(20)
        assert driver.batch()
        other.offsets, other.committed = [driver.offsets[0] | {"spool": 7}], 1
        with pytest.raises(DataLost, match=r"names batch 7, the spool at .* ends at 1"):
            other.batch()
        driver.until(20)
    assert driver.rows == sent


@pytest.mark.parametrize("committed", [2, 1], ids=["that is committed", "that has a batch to run again"])
def test_an_old_copy_that_may_go_on_is_warned_once(broker, fresh, tmp_path, committed):
    queue = fresh()
    publish(broker.url, queue, bodies(40))
    chosen = options(broker.url, queue, tmp_path, maxMessagesPerTrigger="10", failOnDataLoss="false")
    with driving(chosen) as driver, driving(chosen) as old:
        driver.in_hand(20)
        for _ in range(4):
            wait_until(driver.batch, "a batch")
        copy_of(driver, old, committed=committed, planned=2)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            if old.offsets[committed:]:
                assert old.reader.partitions(old.start(), old.offsets[committed]) == []
            else:
                assert old.plan()
        assert len([each for each in said if "settled" in str(each.message)]) == 1


def test_a_first_batch_that_another_checkpoint_has_settled_meanwhile_is_refused_not_empty(
    broker, fresh, tmp_path
):
    queue = fresh()
    publish(broker.url, queue, bodies(10))
    chosen = options(broker.url, queue, tmp_path)
    with driving(chosen) as driver:
        driver.in_hand(10)
        assert driver.plan()
        driver.killed()
        with driving(chosen) as other:
            other.until(10)
        with pytest.raises(DataLost, match="batch 1 is settled"):
            driver.run()


def test_a_batch_without_data_is_none(broker, fresh, tmp_path):
    queue = fresh()
    publish(broker.url, queue, bodies(10))
    with driving(options(broker.url, queue, tmp_path)) as driver:
        first = driver.start()
        assert driver.reader.partitions(first, first) == []
        driver.until(10)
        assert driver.reader.partitions(driver.start(), driver.start()) == []


@pytest.mark.parametrize("committed", [0, 1])
def test_a_checkpoint_that_does_not_say_where_it_began_goes_on(broker, fresh, tmp_path, committed):
    """As versions wrote them that did not write it."""
    queue, sent = fresh(), bodies(30)
    publish(broker.url, queue, sent)
    with driving(options(broker.url, queue, tmp_path, maxMessagesPerTrigger="10")) as driver:
        driver.in_hand(20)
        for _ in range(committed):
            driver.batch()
        assert driver.plan()
        for offset in driver.offsets:
            offset.pop("from", None)
        driver.killed()
        driver.until(30)
    assert driver.rows == sent
    assert empties(broker.url, queue)
