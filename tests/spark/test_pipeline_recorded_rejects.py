"""Batches that die around a sink that can't give rows back: a message is there, or among the rejects.

Orders are joined with a table of customers, which changes before the batch runs again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from leveret.spark.pipelines import batch_ids, sinks
from leveret.spark.pipelines.declaration import Declaration, parse
from leveret.spark.pipelines.declaration_checks import check
from leveret.testing.broker import Broker
from tests.spark.queues import publish
from tests.spark.rejecting import run, take

pytestmark = [pytest.mark.needs_java, pytest.mark.timeout(600)]

FILE = """
name = "enrichment"
checkpoint = "{path}/checkpoint"
[source]
url = "{url}"
queue = "{queue}"
[parse]
schema = "id LONG NOT NULL, customer STRING{columns}"
[[tables]]
name = "customers"
format = "csv"
path = "{path}/customers.csv"
options = {{ header = true }}
[[steps]]
name = "joined"
sql = "SELECT input.*, name FROM input LEFT JOIN customers ON customer = nick"
[[expectations]]
step = "joined"
that = "name IS NOT NULL"
reason = "is not known"
[[steps]]
name = "messages"
sql = "SELECT to_json(struct(id, name)) AS body FROM joined"
[rejects]
routing_key = "{queue}.rejected"
[[sinks]]
name = "rejects"
format = "leveret"
options = {{ exchange = "", routingKey = "{queue}.enriched" }}
"""
ANN, BOB, NONSENSE = b'{"id": 1, "customer": "ann"}', b'{"id": 2, "customer": "bob"}', b"nonsense"


class Place:
    """Three queues, and a pipeline in between."""

    def __init__(self, spark: SparkSession, broker: Broker, queue: str, path: Path) -> None:
        self.spark = spark
        self.broker = broker
        self.queue = queue
        self.path = path
        for each in (f"{queue}.enriched", f"{queue}.rejected"):
            publish(broker.url, each, [])
        publish(broker.url, queue, [ANN, BOB, NONSENSE])
        self.know("ann")

    def know(self, nick: str) -> None:
        """This customer, and no other."""
        (self.path / "customers.csv").write_text(f"nick,name\n{nick},{nick.title()}\n")

    def declared(self, columns: str = "") -> Declaration:
        text = FILE.format(path=self.path, url=self.broker.url, queue=self.queue, columns=columns)
        found = parse(text, file="enrichment.toml")
        check(found)
        return found

    def run(self, columns: str = "") -> None:
        run(self.spark, self.declared(columns))

    def taken(self) -> tuple[list[object], list[bytes]]:
        """What has come through, and what was rejected; nothing is left."""
        assert (self.broker.depth(self.queue), self.broker.unacked(self.queue)) == (0, 0)
        enriched = [json.loads(body) for body, _ in take(self.broker.url, f"{self.queue}.enriched")]
        return enriched, sorted(body for body, _ in take(self.broker.url, f"{self.queue}.rejected"))


@pytest.fixture
def place(spark, leveret, fresh, tmp_path) -> Place:
    return Place(spark, leveret, fresh("orders"), tmp_path)


def dies(place: Place, patch: pytest.MonkeyPatch, write: Callable[..., None]) -> None:
    """When it writes to its sink, while the table of customers changes."""

    def write_and_die(*given: object) -> None:
        place.know("bob")
        write(*given)
        raise RuntimeError("pulled the plug")

    with patch.context() as for_now:
        for_now.setattr(sinks, "write", write_and_die)
        with pytest.raises(StreamingQueryException, match="pulled the plug"):
            place.run()


def test_what_a_sink_has_is_not_judged_again(place, monkeypatch):
    dies(place, monkeypatch, sinks.write)
    with pytest.raises(StreamingQueryException, match="1 of the messages of batch 0, which a sink has, can"):
        place.run(columns=", more STRING NOT NULL")
    place.run()
    assert place.taken() == ([{"id": 1, "name": "Ann"}], sorted([BOB, NONSENSE]))


@pytest.mark.full
def test_what_no_sink_has_is_judged_again(place, monkeypatch):
    dies(place, monkeypatch, lambda *_: None)
    assert not batch_ids.is_in_a_sink(place.spark, place.declared(), 0)
    place.run()
    assert place.taken() == ([{"id": 2, "name": "Bob"}], sorted([ANN, NONSENSE]))
