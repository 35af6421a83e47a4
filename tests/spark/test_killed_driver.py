"""A driver that is killed in the middle: the table ends equal to what was published, nothing lost or twice.

One driver reads a queue and a topic, each into a table, since starting Spark takes longest. When both have
committed batches and are at a phase of another one, it is killed with all its processes. Messages come
meanwhile; then another driver, the session of the tests, takes up what it finds in the checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession

from leveret.testing.broker import Broker
from tests.soak.gated import AFTER_ACK, BEFORE_ACK, PLANNED, RUNNING
from tests.soak.gates import Gates, wait_until
from tests.soak.kills import LOCAL
from tests.soak.pipeline import FILE
from tests.soak.processes import Driver
from tests.spark.partitions import lag, make_topic, spread
from tests.spark.queues import bodies, publish

pytestmark = [pytest.mark.needs_java, pytest.mark.timeout(900)]

WAIT_S = 300
MEANWHILE = bodies(3000, 3500)
"""What is published when the driver is dead: if more is left than that, it had not come to the end."""
PHASES = [RUNNING, *(pytest.param(each, marks=pytest.mark.full) for each in (PLANNED, BEFORE_ACK, AFTER_ACK))]


class Query(NamedTuple):
    """From a queue or a topic to a table in `place`."""

    place: Path
    source: dict[str, str]
    publish: Callable[[Iterable[bytes]], None]

    @property
    def gates(self) -> Gates:
        return Gates(self.place / "gates")

    def job(self) -> dict[str, Any]:
        """For the driver that is killed."""
        return {
            "kind": FILE,
            "options": {**self.source, "maxMessagesPerTrigger": "300", "gates": str(self.place / "gates")},
            "checkpoint": str(self.place / "checkpoint"),
            "table": str(self.place / "table"),
        }

    def has_committed(self) -> bool:
        return any((self.place / "checkpoint" / "commits").glob("[0-9]*"))

    def table_of_another_driver(self, spark: SparkSession) -> list[bytes]:
        """What it has at the end, sorted."""
        rows = spark.readStream.format("leveret").options(**self.source).load()
        writing = rows.writeStream.format("parquet").trigger(availableNow=True)
        checkpointed = writing.option("checkpointLocation", str(self.place / "checkpoint"))
        assert checkpointed.start(str(self.place / "table")).awaitTermination(WAIT_S)
        return sorted(bytes(row.body) for row in spark.read.parquet(str(self.place / "table")).collect())


def kill_a_driver_of(queries: list[Query], phase: str) -> None:
    """When each has committed something, and is at this phase of a later batch."""
    job = {"module": "tests.soak.driver", "master": LOCAL, "queries": [query.job() for query in queries]}
    with Driver(job) as driver:

        def wait_for(what: str, holds: Callable[[Query], bool]) -> None:
            wait_until(lambda: all(map(holds, queries)) or not driver.runs, lambda: f"{what}: {driver.said}")
            assert driver.runs, driver.said

        wait_for("a batch is committed", Query.has_committed)
        for query in queries:
            query.gates.arm(phase)
            query.publish(bodies(1000, 3000))
        wait_for(phase, lambda query: query.gates.holder(phase) is not None)


@pytest.fixture(scope="module", params=PHASES)
def killed(
    request: pytest.FixtureRequest, leveret: Broker, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Query]:
    """The queries of a driver that is dead, and whose batches are half done."""
    place, name, url = tmp_path_factory.mktemp("killed"), f"killed-when-{request.param}", leveret.url
    make_topic(url, f"{name}-topic", 3)
    queries = {
        kind: Query(place / kind, {"url": url, kind: f"{name}-{kind}", "cursor": "lake"}, publishing)
        for kind, publishing in (
            ("queue", partial(publish, url, f"{name}-queue")),
            ("topic", partial(spread, url, f"{name}-topic")),
        )
    }
    for query in queries.values():
        query.publish(bodies(0, 1000))
    kill_a_driver_of(list(queries.values()), request.param)
    for query in queries.values():
        query.publish(MEANWHILE)
    return queries


def test_a_queue_whose_driver_was_killed_in_the_middle_is_a_table_exactly_and_then_empty(
    spark, leveret, killed
):
    query = killed["queue"]
    assert leveret.depth(query.source["queue"]) + leveret.unacked(query.source["queue"]) > len(MEANWHILE)
    assert query.table_of_another_driver(spark) == sorted(bodies(0, 3500))
    assert (leveret.depth(query.source["queue"]), leveret.unacked(query.source["queue"])) == (0, 0)


def test_so_is_a_topic_and_its_group_has_come_to_the_end(spark, leveret, killed):
    query = killed["topic"]
    assert lag(leveret, query.source["topic"], "lake") > len(MEANWHILE)
    assert query.table_of_another_driver(spark) == sorted(bodies(0, 3500))
    assert lag(leveret, query.source["topic"], "lake") == 0
