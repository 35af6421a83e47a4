"""How messages of a pipeline are counted, and how many rejects are too many. No Java is needed."""

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from leveret.spark import shared_directory as places
from leveret.spark.pipelines import batch_ids, rejects, write_counts
from leveret.spark.pipelines.checkpoint_files import sync_plan
from leveret.spark.pipelines.declaration import Declaration, parse
from leveret.spark.pipelines.errors import TooManyRejects
from leveret.spark.pipelines.rejects import Counts
from leveret.spark.shared_directory import Place
from tests.processes import WAIT_S

FILE = """
name = "orders"
checkpoint = "{checkpoint}"
[source]
queue = "orders"
[rejects]
routing_key = "orders.rejected"
{limits}
[[sinks]]
name = "rejects"
format = "leveret"
options = {{ exchange = "", routingKey = "done" }}
"""


def declared(limits: str = "", checkpoint: object = "/lake/checkpoint") -> Declaration:
    return parse(FILE.format(limits=limits, checkpoint=checkpoint), file="orders.toml")


# rejects


def test_the_first_message_of_a_run_may_be_bad():
    limits = declared("max_share = 0.05")
    rejects.check(limits, Counts().with_batch(1, 1), 1)
    rejects.check(limits, Counts().with_batch(5, 5), 5)
    with pytest.raises(TooManyRejects, match="6 of 6 messages of this run are rejected, more than a share"):
        rejects.check(limits, Counts().with_batch(6, 6), 6)
    rejects.check(limits, Counts().with_batch(200, 10), 10)
    with pytest.raises(TooManyRejects, match="11 of 200 messages"):
        rejects.check(limits, Counts().with_batch(200, 11), 11)


def test_rows_that_waited_when_the_run_began_count_for_its_share():
    limits = declared("max_share = 0.05")
    rejects.check(limits, Counts(waited=300).with_batch(100, 20), 20)
    with pytest.raises(TooManyRejects, match="21 of 400 messages"):
        rejects.check(limits, Counts(waited=300).with_batch(100, 21), 21)


def test_messages_are_acked_though_rows_are_rejected_that_waited():
    counts = Counts().with_batch(10, 3).with_batch(2, 7, of_earlier_batches=6)
    assert (counts.batches, counts.messages, counts.rejected, counts.acked) == (2, 12, 10, 8)


def test_a_sink_and_the_rejects_are_two_things_to_the_broker_whatever_the_sink_is_called(tmp_path: Path):
    pipeline = declared(checkpoint=tmp_path)
    (sink,) = pipeline.sinks
    rows = batch_ids.sink_options(sink, pipeline, 7)
    assert (rows["queryName"], rows["batchId"]) == ("orders.sink.rejects", "7")
    assert batch_ids.identity(pipeline, "rejects", 7)["queryName"] == "orders.rejects"


def test_a_sink_of_another_broker_has_nothing_of_the_source(tmp_path: Path):
    source = {"url": "amqp://a", "flightUrl": "grpc+tcp://a:5673", "user": "ann", "password": "secret"}
    (sink,) = declared(checkpoint=tmp_path).sinks
    pipeline = declared(checkpoint=tmp_path)
    pipeline = replace(
        pipeline, source=structs.replace(pipeline.source, options={**source, "tlsCaFile": "/a.pem"})
    )

    def options(**own: str) -> dict[str, str]:
        found = batch_ids.sink_options(structs.replace(sink, options=own), pipeline, 7)
        return {name: found[name] for name in found if name not in ("queryName", "batchId")}

    assert options(exchange="x") == {**source, "tlsCaFile": "/a.pem", "exchange": "x"}
    assert options(Password="other") == {
        "url": "amqp://a",
        "flightUrl": "grpc+tcp://a:5673",
        "user": "ann",
        "tlsCaFile": "/a.pem",
        "Password": "other",
    }
    for name in ("url", "URL"):
        assert options(**{name: "amqp://bob:b@b"}) == {name: "amqp://bob:b@b"}


def test_what_spark_has_planned_is_on_disk_before_a_batch_is_worked_on(tmp_path: Path, monkeypatch):
    pipeline = declared(checkpoint=tmp_path)
    synced: list[str] = []
    monkeypatch.setattr(places, "_sync", lambda path: synced.append(os.path.relpath(path, tmp_path)))
    sync_plan(pipeline, 7)
    assert synced == [], "there is none yet"
    (tmp_path / "query/offsets").mkdir(parents=True)
    for name in ("metadata", "offsets/6", "offsets/7"):
        (tmp_path / "query" / name).touch()
    sync_plan(pipeline, 7)
    assert [name for name in synced if "." not in name] == [
        "query/metadata",
        "query",
        "query/offsets/7",
        "query/offsets",
        "query",
    ]


# counts of Spark


class Silent:
    """An observation that nobody tells of, until the test is over."""

    def __init__(self) -> None:
        self.over = threading.Event()

    @property
    def get(self) -> dict[str, int]:
        self.over.wait(WAIT_S)
        return {}


def test_counts_that_do_not_come_are_not_waited_for_for_ever():
    silent = Silent()
    assert write_counts.wait_for(silent, timeout_s=0.01) is None  # type: ignore[arg-type]
    silent.over.set()
    assert write_counts.wait_for(silent) == {}  # type: ignore[arg-type]


# files on a disk


def test_all_of_a_folder_is_synced_and_the_folders_it_is_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    parts = tmp_path / "table/_batch=3/day=1"
    parts.mkdir(parents=True)
    (parts / "part-0").write_bytes(b"x")
    (parts.parent / "_SUCCESS").write_bytes(b"")
    synced: list[str] = []
    monkeypatch.setattr(places, "_sync", synced.append)
    Place.at(str(tmp_path / "table"), "", noun="the table").sync("_batch=3")
    names = [str(Path(path).relative_to(tmp_path)) for path in synced]
    batch = "table/_batch=3"
    assert names[-2:] == [batch, "table"]
    assert sorted(names[:-2]) == [f"{batch}/_SUCCESS", f"{batch}/day=1", f"{batch}/day=1/part-0"]
    assert names.index(f"{batch}/day=1/part-0") < names.index(f"{batch}/day=1")
