"""Rejects of pipelines: published once however often a batch runs, brought back, and mended in the table."""

from __future__ import annotations

import json
from pathlib import Path

import pika
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from leveret.spark.pipelines import recorded_rejects
from leveret.spark.pipelines.declaration import Declaration
from leveret.storage.journal import Outcome
from leveret.testing.broker import Broker
from tests.cli.command import leveret as command
from tests.spark.queues import publish
from tests.spark.rejecting import declared, fail_at, ids_in_table, order, reasons, run, settlements, take

pytestmark = [pytest.mark.needs_java, pytest.mark.timeout(600)]


class Place:
    """A queue, one for rejects, a table, and a pipeline in between."""

    def __init__(self, spark: SparkSession, broker: Broker, queue: str, path: Path) -> None:
        self.spark = spark
        self.broker = broker
        self.queue = queue
        self.rejected = f"{queue}.rejected"
        self.path = path
        publish(broker.url, queue, [])
        publish(broker.url, self.rejected, [])

    def declared(self, that: str = "amount > 0", **said: str) -> Declaration:
        source = {"url": self.broker.url, "queue": self.queue}
        given = {"name": "lake", "rejected": self.rejected} | said
        return declared(source, self.path, that=that, **given)

    def run(self, that: str = "amount > 0", **said: str) -> None:
        run(self.spark, self.declared(that, **said))

    def dies(self, patch: pytest.MonkeyPatch, phase: str) -> None:
        """A run that ends in the middle of its first batch."""
        with patch.context() as for_now:
            fail_at(for_now, phase)
            with pytest.raises(StreamingQueryException, match="pulled the plug"):
                self.run()

    def publish(self, *bodies: bytes) -> None:
        publish(self.broker.url, self.queue, bodies)

    def ids(self) -> list[int]:
        return ids_in_table(self.path)

    def take_rejects(self) -> list[tuple[bytes, pika.BasicProperties]]:
        return take(self.broker.url, self.rejected)

    @property
    def left(self) -> tuple[int, int]:
        """In the queue, and of it in flight."""
        return self.broker.depth(self.queue), self.broker.unacked(self.queue)

    def settlements(self) -> dict[int, list[int]]:
        cursor = self.broker.server.broker.vhosts["/"].queues[self.queue].cursor
        return self.broker.call(lambda: settlements(cursor))


@pytest.fixture
def place(spark, leveret, fresh, tmp_path) -> Place:
    return Place(spark, leveret, fresh("orders"), tmp_path)


# brought back


def test_what_was_rejected_by_mistake_is_redriven_and_in_the_table_once(place):
    place.publish(order(1), order(2, 0.0), order(3), b"nonsense")
    place.run()
    assert place.ids() == [1, 3]
    ran = command("redrive", place.rejected, "--json", url=place.broker.url)
    assert (ran.code, ran.result["moved"], ran.result["homeless"]) == (0, 2, 0), ran.err
    assert (place.broker.depth(place.rejected), place.left) == (0, (2, 0))
    place.run("amount >= 0")
    assert place.ids() == [1, 2, 3]
    ((body, properties),) = place.take_rejects()
    assert body == b"nonsense"
    assert {name for name in properties.headers if name.startswith("x-reject-")} == {
        f"x-reject-{name}" for name in ("reason", "step", "pipeline", "batch", "queue", "partition", "offset")
    }
    assert (properties.headers["x-reject-offset"], properties.headers["x-reject-batch"]) == ("5", "1")
    assert place.left == (0, 0)


@pytest.mark.full
def test_what_was_wrong_with_a_body_is_mended_in_a_file_and_published_again(place, tmp_path):
    place.publish(order(1), order(2, -7.0))
    place.run()
    file = tmp_path / "rejected.jsonl"
    url = place.broker.url
    assert command("consume", place.rejected, "--envelope", "--output", file, url=url).code == 0
    envelope = json.loads(file.read_text())
    assert envelope["headers"]["x-reject-reason"] == "does not hold: amount > 0"
    file.write_text(file.read_text().replace("-7.0", "7.0"))
    assert command("publish", file, "--envelope", "--queue", place.queue, url=url).code == 0
    place.run()
    assert place.ids() == [1, 2]
    assert (place.take_rejects(), place.left) == ([], (0, 0))


def test_a_reject_has_what_the_message_had_but_for_what_belonged_to_its_publish(place):
    at = 1_700_000_000
    said = {
        "message_id": "m-1",
        "correlation_id": "c-1",
        "content_type": "application/json",
        "content_encoding": "identity",
        "type": "order",
        "app_id": "shop",
        "priority": 4,
        "timestamp": at,
        "expiration_ms": 600_000,
        "headers": {"region": "eu", "x-reject-reason": "an earlier one", "x-reject-before": "an earlier one"},
    }
    publish(place.broker.url, place.queue, [b"nonsense"], **said)  # with x-producer and x-seq, as all do
    place.run()
    ((body, found),) = place.take_rejects()
    assert (body, found.headers["region"]) == (b"nonsense", "eu")
    assert found.headers["x-reject-reason"] == "is not JSON, or does not fit the schema"
    assert not {"x-seq", "x-producer", "x-reject-before"}.intersection(found.headers)
    for name in ("message_id", "correlation_id", "content_type", "content_encoding", "type", "app_id"):
        assert getattr(found, name) == said[name]
    assert (found.priority, found.timestamp, found.expiration, found.delivery_mode) == (4, at, None, 2)


# batches that run again


@pytest.mark.full
def test_a_new_checkpoint_counts_its_batches_anew_and_its_rejects_are_published(place):
    place.publish(order(1), b"first")
    place.run()
    place.path = place.path / "again"
    place.publish(order(2), b"second")
    place.run()
    assert [body for body, _ in place.take_rejects()] == [b"first", b"second"]


@pytest.mark.parametrize(
    "phase", [*(pytest.param(phase, marks=pytest.mark.full) for phase in ("publish", "settle")), "commit"]
)
def test_a_batch_that_is_written_is_not_judged_again(place, monkeypatch, phase):
    place.publish(order(1), order(2, 0.0), order(3, 30.0))
    place.dies(monkeypatch, phase)
    place.run("amount BETWEEN 0 AND 20")
    assert place.ids() == [1, 3]
    assert [body for body, _ in place.take_rejects()] == [order(2, 0.0)]
    assert place.settlements() == {Outcome.SENT_TO_REJECTS: [1], Outcome.ACKED: [0, 2]}


@pytest.mark.full
def test_a_batch_whose_files_can_be_overwritten_is_judged_again(place, monkeypatch):
    place.publish(order(1), order(2, 0.0), order(3, 30.0))
    place.dies(monkeypatch, "verdict")
    assert place.ids() == [1, 3]
    place.run("amount BETWEEN 0 AND 20")
    assert place.ids() == [1, 2]
    assert [body for body, _ in place.take_rejects()] == [order(3, 30.0)]
    assert place.settlements() == {Outcome.SENT_TO_REJECTS: [2], Outcome.ACKED: [0, 1]}


@pytest.mark.full
def test_a_batch_of_which_all_was_rejected_runs_again_without_messages(place, monkeypatch):
    place.publish(b"a", b"b")
    place.dies(monkeypatch, "commit")
    place.publish(order(1))
    place.run()
    assert place.ids() == [1]
    assert len(reasons(place.take_rejects())) == 2
    assert place.left == (0, 0)


def test_rejects_are_settled_for_the_cursor_that_the_file_names(place):
    place.publish(order(1), b"x")
    place.run(more='[source.options]\ncursor = "mine"')
    assert place.settlements() == {Outcome.SENT_TO_REJECTS: [1], Outcome.ACKED: [0]}


# what is written down


def test_a_verdict_is_for_one_batch_of_one_query(place):
    pipeline = place.declared()
    said = [("q", 0, 3, "parse", None), ("q", 0, 2, "parse", None), ("q", 0, 9, "input", "amount")]
    said += [("q", 0, 4, "input", None), ("r", 1, 0, "parse", None)]
    rows = [((queue, partition, offset), (step, column)) for queue, partition, offset, step, column in said]
    schema = "_message STRUCT<queue: STRING, partition: INT, offset: LONG>, "
    bad = place.spark.createDataFrame(rows, f"{schema} _reject STRUCT<step: STRING, column: STRING>")
    found = recorded_rejects.of(pipeline, 7, bad)
    assert found.parts == [
        recorded_rejects.Part("q", 0, [(4, 5)], "input"),
        recorded_rejects.Part("q", 0, [(9, 10)], "input", "amount"),
        recorded_rejects.Part("q", 0, [(2, 4)], "parse"),
        recorded_rejects.Part("r", 1, [(0, 1)], "parse"),
    ]
    assert [part.why for part in found.parts] == ["input", "input: amount", "parse", "parse"]
    assert recorded_rejects.read(pipeline, 7) is None
    recorded_rejects.write(pipeline, found)
    assert recorded_rejects.read(pipeline, 7) == found
    recorded_rejects.write(pipeline, found.as_written())
    assert recorded_rejects.read(pipeline, 7).written
    assert recorded_rejects.read(pipeline, 8) is None
    (place.path / "checkpoint/query").mkdir()
    (place.path / "checkpoint/query/metadata").write_text('{"id": "another"}')
    assert recorded_rejects.read(pipeline, 7) is None
