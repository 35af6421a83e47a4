"""The audit as a job of Spark and as a command: it lists each change that was made without the broker."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from leveret.audit import accounting, job, tables
from leveret.audit.consumer_names import name_of, named
from leveret.audit.errors import NothingToAudit
from leveret.audit.evidence import Case, Directory, of_broker, of_directory
from leveret.audit.findings import Findings
from leveret.audit.tables import Terms
from leveret.cli.main import app
from leveret.spark.options import BrokerOptions
from leveret.storage.journal import Kind, Outcome
from leveret.testing.broker import Broker
from tests.audit import sample_data
from tests.audit.cursor_history import CursorHistory
from tests.audit.sample_data import CONSUMED, EXPIRED, MESSAGES, REJECTED, REQUEUED, RETURNED, SampleData
from tests.audit.tampering import Tampering
from tests.semantics.client import Client

LOST, DOUBLED = CONSUMED + 321, 11
Run = Callable[..., Result]


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> SampleData:
    return sample_data.make(tmp_path_factory.mktemp("sample"))


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`run("--data", path)` is the command `leveret audit`, in the session that the tests share."""

    def in_this_session(case: Case, place: Path, terms: Terms, **_: Any) -> Findings:
        return job.audit(spark, case, place, terms, lambda _: None)

    monkeypatch.setattr(job, "run", in_this_session)

    def run(*words: object) -> Result:
        arguments = ["audit", *map(str, words), "--out", str(tmp_path / "out")]
        return CliRunner().invoke(app, arguments, catch_exceptions=False)

    return run


def names(messages: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(message["queue"], message["offset"]) for message in messages]


def test_data_without_losses_has_exit_code_0(run: Run, sample: SampleData, tmp_path: Path) -> None:
    ran = run("--data", sample.killed, "--json")
    assert ran.exit_code == 0, ran.output
    findings = json.loads(ran.stdout)
    assert (findings["lost"], findings["doubled"], findings["damage"]) == ([], [], [])
    orders = next(queue for queue in findings["queues"] if queue["queue"] == "orders")
    assert orders["published"] == orders["confirmed"] == MESSAGES + 1
    assert orders["outcomes"] == {"acked": CONSUMED - len(REJECTED), "dead lettered": len(REJECTED)}
    assert (orders["ready"], orders["in_flight"]) == (MESSAGES - CONSUMED, 1)
    assert orders["deliveries"] == CONSUMED + len(REQUEUED) + 1
    assert findings["returned"] == {"checked": RETURNED}
    reasons = {(group["queue"], group["reason"]): group["messages"] for group in findings["dead_letters"]}
    assert reasons == {("orders", "rejected"): len(REJECTED), ("brief", "expired"): EXPIRED}
    assert (tmp_path / "out" / "report.html").exists()
    assert pq.read_table(tmp_path / "out" / "messages").num_rows == sum(
        queue["published"] for queue in findings["queues"]
    )


def test_lost_and_doubled_messages_are_listed_with_exit_code_1(
    run: Run, sample: SampleData, tmp_path: Path
) -> None:
    data = Path(shutil.copytree(sample.killed, tmp_path / "data"))
    tampering = Tampering(data)
    tampering.remove("orders", LOST)
    tampering.settle("orders", DOUBLED, Outcome.ACKED, b"somebody")
    ran = run("--data", data, "--json")
    assert ran.exit_code == 1
    findings = json.loads(ran.stdout)
    assert names(findings["lost"]) == [("orders", LOST)]
    assert names(findings["doubled"]) == [("orders", DOUBLED)]
    assert findings["doubled"][0]["what"] == "settled as done 2 times"


def test_a_message_twice_in_the_log_and_a_damaged_message_are_listed(
    run: Run, sample: SampleData, tmp_path: Path
) -> None:
    data = Path(shutil.copytree(sample.stopped, tmp_path / "data"))
    tampering = Tampering(data)
    tampering.double("orders", CONSUMED + 5)
    tampering.damage("orders", sample_data.body_of(LOST).encode())
    ran = run("--data", data)
    assert ran.exit_code == 1
    assert "1 message is lost, 1 is doubled" in ran.stdout
    assert f"{LOST:,}" in ran.stdout
    findings = json.loads((tmp_path / "out" / "findings.json").read_bytes())
    assert names(findings["lost"]) == [("orders", LOST)]
    assert names(findings["doubled"]) == [("orders", CONSUMED + 5)]
    assert findings["doubled"][0]["what"] == "in the log 2 times"
    assert len(findings["damage"]) == 1


@pytest.fixture
def audit(spark: SparkSession, tmp_path: Path) -> Callable[..., Findings]:
    def audit(case: Case, **terms: Any) -> Findings:
        return job.audit(spark, case, tmp_path / "out", Terms(**terms), lambda _: None)

    return audit


@pytest.mark.full
def test_a_row_twice_in_the_table_of_a_pipeline_is_listed(
    spark: SparkSession, audit: Callable[..., Findings], sample: SampleData, tmp_path: Path
) -> None:
    table = str(tmp_path / "table")
    for batch, offsets in enumerate(([5, 6, 8], [5, 7, 8])):
        rows = [("orders", 0, offset) for offset in offsets]
        written = spark.createDataFrame(rows, "_queue string, _partition int, _offset bigint")
        written.write.parquet(f"{table}/_batch={batch}")
    with of_directory(str(sample.killed)) as case:
        findings = audit(case, table=table)
        assert [(message.queue, message.offset, message.what) for message in findings.doubled] == [
            ("orders", 5, "in the table 2 times"),
            ("orders", 8, "in the table 2 times"),
        ]
        assert not findings.holds
        cut = audit(case, table=table, loop=2, most=1)
        assert ([message.offset for message in cut.doubled], cut.doubled_count) == ([5], 2)
        assert ([message.offset for message in cut.loops], cut.loops_count) == ([REQUEUED[0]], len(REQUEUED))
        assert (len(cut.holes), cut.holes_count) == (0, 0)
        delivered = {flow.to_name: flow.messages for flow in cut.flows if flow.to_kind == "consumer"}
        assert sorted(delivered.values()) == [1, CONSUMED]
        # the consumer with the message in flight
        assert delivered["others"] == 1
        spark.createDataFrame([(1,)], "n int").write.parquet(str(tmp_path / "other" / "_batch=0"))
        with pytest.raises(NothingToAudit, match="has no column _queue"):
            audit(case, table=str(tmp_path / "other"))


def test_holders_of_messages_and_redelivery_loops_are_listed(
    audit: Callable[..., Findings], sample: SampleData, tmp_path: Path
) -> None:
    data = Path(shutil.copytree(sample.killed, tmp_path / "data"))
    tampering = Tampering(data)
    tampering.settle("orders", MESSAGES - 1, Outcome.ACKED, b"somebody")
    tampering.forget("orders", Kind.SYNCED, LOST)
    tampering.settle("plain", 1, Outcome.EXPIRED, b"")
    with of_directory(str(data)) as case:
        findings = audit(case, loop=2)
    (orders,) = [queue for queue in findings.queues if queue.queue == "orders"]
    # a message whose note is missing counts as confirmed too
    assert orders.published == orders.confirmed == MESSAGES + 1
    (held, *_) = [hole for hole in findings.holes if hole.state == "in flight"]
    assert (held.queue, held.start, held.stop) == ("orders", sample.held, sample.held + 1)
    assert held.held_by.endswith(" holder")
    assert findings.holes_count == len(findings.holes)
    # messages that expire unread make no holes
    assert {hole.queue for hole in findings.holes} == {"orders"}
    assert [message.offset for message in findings.loops] == [*REQUEUED]
    flows = {(flow.from_name, flow.to_kind, flow.to_name): flow.messages for flow in findings.flows}
    assert flows["checked", "returned", "publisher"] == RETURNED
    assert flows["", "queue", "orders"] == MESSAGES + 1
    assert (
        sum(latency.messages for latency in findings.latencies if latency.queue == "orders") == MESSAGES + 1
    )
    # basic.get does not prefetch
    assert findings.advice == []


def test_a_running_broker_is_audited_over_flight(
    audit: Callable[..., Findings], leveret: Broker, fresh: Callable[[str], str]
) -> None:
    queue = fresh("audited")
    client = Client(leveret.port)
    channel = client.channel().confirm_select()
    channel.declare(queue, arguments=sample_data.AUDITED)
    channel.publish_confirmed(queue, *map(str, range(100)))
    for _ in range(10):
        got = channel.get(queue)
        assert got is not None
        channel.ack(got.tag)
    channel.quiet()
    worker = client.channel()
    worker.qos(1)
    worker.consume(queue, "worker")
    for _ in range(30):
        tag = worker.delivery().tag
        # some work
        channel.quiet()
        worker.ack(tag)
    worker.close()
    with of_broker(BrokerOptions(url=leveret.url)) as case:
        findings = audit(case)
    client.vanish()
    assert findings.holds
    (mine,) = [account for account in findings.queues if account.queue == queue]
    assert (mine.published, mine.confirmed, mine.ready, mine.outcomes) == (100, 100, 60, {"acked": 40})
    (advice,) = [advice for advice in findings.advice if advice.queue == queue]
    assert (advice.consumer, advice.messages, advice.round_trip_measured) == ("worker", 30, True)


def use_messages(spark: SparkSession, rows: list[dict[str, Any]], place: Path) -> None:
    """Make these messages the table that the queries read."""
    pq.write_table(pa.Table.from_pylist(rows, accounting.MESSAGES), place)
    tables.create_view(spark.read.parquet(str(place)))


def test_only_consumers_that_settle_their_deliveries_get_advice_on_prefetch(
    spark: SparkSession, tmp_path: Path
) -> None:
    settlers = {"shop (1) worker": "shop (1) worker", "shop (1) auto": "", "shop (2) ": "shop (2) "}
    settlers |= {"query lake": "query lake"}
    row = dict.fromkeys(accounting.MESSAGES.names) | {"vhost": "/", "queue": "q", "reader": ""}
    row |= {"published": 0, "first_delivered": 10, "last_delivered": 10, "outcome": "acked"}
    rows = [
        row | {"delivered_to": consumer, "settled": 5010, "settled_by": settler}
        for consumer, settler in settlers.items()
        for _ in range(20)
    ]
    rows += [row | {"delivered_to": "shop (3) new", "settled": 5010, "settled_by": "shop (3) new"}] * 19
    use_messages(spark, rows, tmp_path / "messages")
    case = Case("", datetime.now(UTC), (), {}, (), Directory("", b""), round_trips_ms={"shop": 2.5})
    (advice,) = tables.advice_for_consumers(spark, case, Terms())
    assert (advice.consumer, advice.round_trip_ms, advice.work_ms) == ("shop (1) worker", 2.5, 2.5)


@pytest.mark.parametrize(("span_s", "stretch_s"), [(4, 0.1), (25, 0.5), (60, 1), (3600, 60)])
def test_times_are_divided_into_about_sixty_stretches(
    spark: SparkSession, tmp_path: Path, span_s: int, stretch_s: float
) -> None:
    row = dict.fromkeys(accounting.MESSAGES.names) | {"vhost": "/", "queue": "q", "reader": ""}
    step_us = span_s * 1_000_000 // 500
    rows = [row | {"published": n * step_us, "confirmed": n * step_us + 1000} for n in range(501)]
    use_messages(spark, rows, tmp_path / "messages")
    assert tables._stretch(spark) == stretch_s
    latencies = tables._latencies(spark, stretch_s)
    assert 30 < len(latencies) < 70
    assert {(right.at - left.at).total_seconds() for left, right in pairwise(latencies)} == {stretch_s}


def test_the_holes_agree_with_the_model(spark: SparkSession, tmp_path: Path) -> None:
    rows, expected = [], []
    for seed in range(6):
        history = CursorHistory(seed, tmp_path / str(seed))
        rows += [row | {"queue": f"topic.{seed}"} for row in history.run().rows]
        expected += [(f"topic.{seed}", *hole) for hole in history.holes()]
    use_messages(spark, rows, tmp_path / "messages")
    holes, count = tables.holes(spark, Terms())
    assert count == len(expected) > 6
    found = [(hole.queue, hole.reader, hole.start, hole.stop, hole.state) for hole in holes]
    assert sorted(found) == sorted(expected)


def test_a_consumer_that_reconnected_has_one_name(spark: SparkSession) -> None:
    """Spark and Python derive equal names from labels with different addresses."""
    labels = [
        "127.0.0.1:1 -> 127.0.0.1:5672 worker-1 (consuming) (1) leveret.80b213e26b85",
        "127.0.0.1:2 -> 127.0.0.1:5672 worker-1 (consuming) (1) leveret.0f12f42cfc75",
        "127.0.0.1:3 -> 127.0.0.1:5672 (1) holder",
        "127.0.0.1:4 -> 127.0.0.1:5672 (12) ctag1.3f2a",
        "127.0.0.1:5 -> 127.0.0.1:5672 (1) ",
        "[::1]:6 -> [::1]:5672 a (b) c (2) tag (3) x",
        "query 'lake'",
        "",
    ]
    frame = spark.createDataFrame([(label,) for label in labels], "label string")
    rows = frame.select("label", named(frame.label).alias("name")).collect()
    assert {row.label: row.name for row in rows} == {label: name_of(label) for label in labels}
    assert [name_of(label) for label in labels[:5]] == [
        "worker-1",
        "worker-1",
        "holder",
        "127.0.0.1:4",
        "127.0.0.1:5",
    ]


@pytest.mark.needs_rabbitmq
def test_rabbitmq_is_refused(rabbitmq: Any) -> None:
    options = BrokerOptions(url=f"amqp://guest:guest@127.0.0.1:{rabbitmq.port}/")
    with pytest.raises(NothingToAudit, match="is RabbitMQ, which keeps no account"), of_broker(options):
        raise AssertionError
