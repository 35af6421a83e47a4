"""Holds the guide's pages about Spark against the sources, and runs their code.

Each block of Python in `spark.md` is run in order, in a session; a streaming DataFrame that a block makes is
then read to its end. Blocks whose URL names `rabbitmq` run against one, all others against Leveret.
"""

import re
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from leveret.broker.access.passwords import hash_password
from leveret.broker.definitions import PermissionRow, UserRow
from leveret.broker.queries import leases as broker_leases
from leveret.broker.queries import staged_batches as broker_stages
from leveret.broker.queues import message_sizes
from leveret.client import Binding, BlockingConnection, Exchange, Queue, Topology
from leveret.spark import columns, message_rows, options
from leveret.spark import read_tasks as spark_tasks
from leveret.spark.datasource import LeveretDataSource
from leveret.spark.errors import SparkSideError
from leveret.spark.options import SinkOptions, SourceOptions
from leveret.spark.pipelines import declaration, declaration_checks
from leveret.spark.spool_stream import BATCH_MESSAGES, PREFETCH_MAX
from leveret.testing.broker import Broker
from leveret.testing.clock import VirtualClock
from tests.spark import cluster, partitions, spooling, test_streams
from tests.spark.queues import publish, reader

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guide"
SOURCES = ROOT / "src" / "leveret"
PAGE = (GUIDE / "spark.md").read_text(encoding="utf-8")
CLUSTER_PAGE = (GUIDE / "spark-cluster.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
README_URL = "amqp://guest:guest@127.0.0.1:5672/"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
URL = "amqp://guest:guest@localhost/"
RABBITMQ_URL = "amqp://guest:guest@rabbitmq/"
WAIT_S = 120
TOPOLOGY = Topology(Queue("orders"), Exchange("shop", "topic"), Binding("shop", "orders", "order.#"))


def table(heading: str, *, number: int = 0, page: str = PAGE) -> list[list[str]]:
    """The rows of a section's table, cell by cell, without its header."""
    _, _, behind = page.partition(f"\n{heading}\n")
    section = re.split(r"^#+ ", behind, maxsplit=1, flags=re.MULTILINE)[0]
    found = re.findall(r"^\|.*\n\|[-|]+\n((?:\|.*\n)+)", section, re.MULTILINE)
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in found[number].splitlines()]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


# --- code ------------------------------------------------------------------------------------------------


def run_blocks(spark: SparkSession, place: Path, *, named: str, url: str, fill: Callable[[], None]) -> int:
    """Those that connect to `named`, at `url`, each with messages of `fill` to read; how many there were."""
    names: dict[str, Any] = {"spark": spark}
    blocks = [block for block in BLOCK.findall(PAGE) if named in block]
    for count, block in enumerate(blocks):
        fill()
        known = dict(names)
        exec(block.replace(named, url).replace("/lake/", f"{place}/lake/"), names)
        for name, made in names.items():
            if known.get(name) is not made and isinstance(made, DataFrame) and made.isStreaming:
                fill()
                assert rows_in(made, place / f"{count}-{name}") > 0
    return len(blocks)


def rows_in(frame: DataFrame, checkpoint: Path) -> int:
    writing = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = writing.trigger(availableNow=True).start()
    assert query.awaitTermination(WAIT_S)
    return sum(progress["numInputRows"] for progress in query.recentProgress)


@pytest.mark.needs_java
@pytest.mark.timeout(600)
def test_the_code_of_the_page_runs(spark: SparkSession, own_leveret: Broker, tmp_path: Path):
    with BlockingConnection(own_leveret.url, topology=TOPOLOGY):
        partitions.make_topic(own_leveret.url, "clicks", 2)

    def fill() -> None:
        publish(own_leveret.url, "orders", [b'{"id": 1, "items": []}', b"?"])
        partitions.spread(own_leveret.url, "clicks", [b"one", b"two"])

    assert run_blocks(spark, tmp_path, named=URL, url=own_leveret.url, fill=fill) == 6
    table = spark.read.parquet(str(tmp_path / "lake" / "orders"))
    assert table.count() == 2


@pytest.mark.needs_java
@pytest.mark.timeout(600)
def test_the_code_of_the_readme_runs(spark: SparkSession, own_leveret: Broker, tmp_path: Path):
    publish(own_leveret.url, "orders", [b"one", b"two"])
    (block,) = (found for found in BLOCK.findall(README) if "leveret.spark" in found)
    exec(block.replace(README_URL, own_leveret.url).replace('"lake/', f'"{tmp_path}/lake/'), {})
    assert spark.read.parquet(str(tmp_path / "lake" / "orders")).count() == 2


@pytest.mark.needs_java
@pytest.mark.needs_rabbitmq
@pytest.mark.timeout(600)
def test_the_code_about_other_brokers_runs(spark: SparkSession, rabbitmq: Any, tmp_path: Path):
    test_streams.declare(rabbitmq.url, "events")

    def fill() -> None:
        spooling.publish(rabbitmq.url, "orders", ["one", "two"])
        test_streams.append(rabbitmq.url, "events", ["one", "two"])

    assert run_blocks(spark, tmp_path, named=RABBITMQ_URL, url=rabbitmq.url, fill=fill) == 2


PIPELINES_PAGE = (GUIDE / "pipelines.md").read_text(encoding="utf-8")
TOML = re.findall(r"^```toml\n(.*?)^```$", PIPELINES_PAGE, re.DOTALL | re.MULTILINE)
WHOLE, *PARTS = TOML
HEAD = """
name = "orders"
checkpoint = "/lake/checkpoints/orders"
[source]
queue = "orders"
[parse]
schema = "order_id LONG, customer STRING, amount DOUBLE, at TIMESTAMP"
[rejects]
routing_key = "orders.rejected"
"""
SINK = '[[sinks]]\nname = "table"\nformat = "parquet"\npath = "/lake/orders"\n'


def test_the_files_of_the_page_about_pipelines_are_valid(monkeypatch: pytest.MonkeyPatch):
    """The first is whole; the others are parts, for a file that has a source."""
    monkeypatch.setenv("SHOP_PASSWORD", "secret")
    monkeypatch.setenv("DB_PASSWORD", "secret")
    declaration_checks.check(declaration.parse(WHOLE, file="orders.toml"))
    for part in PARTS:
        sink = "" if "[[sinks]]" in part else SINK
        declaration_checks.check(declaration.parse(HEAD + part + sink, file="orders.toml"))


@pytest.mark.needs_java
@pytest.mark.timeout(600)
def test_the_code_of_the_page_about_pipelines_runs(
    spark: SparkSession, own_leveret: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    with BlockingConnection(own_leveret.url, topology=Topology(Queue("orders"), Queue("orders.rejected"))):
        publish(own_leveret.url, "orders", [b'{"id": 1, "amount": 2.5, "at": "2026-11-15T09:00:00Z"}'])
    text = WHOLE.replace("amqp://shop:${SHOP_PASSWORD}@broker", own_leveret.url)
    (tmp_path / "orders.toml").write_text(text.replace("/lake/", f"{tmp_path}/lake/"), encoding="utf-8")
    lines = tmp_path / "lake" / "lines" / "_batch=0"
    lines.mkdir(parents=True)
    (lines / "part-0.csv").write_text("id,amount\n1,2.5\n", encoding="utf-8")
    (lines / "_SUCCESS").touch()
    names: dict[str, Any] = {"spark": spark}
    for block in BLOCK.findall(PIPELINES_PAGE):
        exec(block.replace('"/lake/', f'"{tmp_path}/lake/'), names)
    names["test_amounts_are_rounded"](spark)
    assert (names["orders"].count(), names["lines"].count()) == (1, 1)


# --- tables ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("heading", "known", "kind"),
    [
        ("## Options of the source", options._SOURCE, SourceOptions),
        ("## The sink", options._SINK, SinkOptions),
    ],
)
def test_every_option_is_in_its_table_with_its_default(heading: str, known: Any, kind: type):
    said = {name: row[1].strip("`") for row in table(heading) for name in quoted(row[0])}
    assert said.keys() == known.keys()
    defaults = kind()
    for name, (field, parse) in known.items():
        default = getattr(defaults, field)
        if default not in (None, "") and said[name]:  # else it is told in words, or above
            assert parse(said[name]) == default, name


def test_the_options_are_those_that_the_class_documents():
    """The docstring of the data source is the manual that PySpark shows."""
    manual = LeveretDataSource.__doc__ or ""
    missing = [name for name in {**options._SOURCE, **options._SINK} if not re.search(rf"\b{name}\b", manual)]
    assert missing == []


def test_the_columns_of_the_source_are_those_of_the_code():
    body = StructType([StructField("id", LongType())])
    chosen = SourceOptions(queue="q", decode="json", body_type=body, include_properties=True)
    found = {field.name: field.dataType.simpleString() for field in columns.schema_of(chosen)}
    said = {name: row[1] for row in table("## Columns") for name in quoted(row[0])}
    assert said.keys() == found.keys()
    assert said.pop("body") == "binary, string or struct"
    assert {name: kind.replace("&lt;", "<").replace("&gt;", ">") for name, kind in said.items()} == {
        name: kind for name, kind in found.items() if name != "body"
    }


def test_the_columns_of_the_sink_are_those_of_the_code():
    said = {name: row[1] for row in table("## The sink", number=1) for name in quoted(row[0])}
    shown = {name: kind.replace("&lt;", "<").replace("&gt;", ">") for name, kind in said.items()}
    assert shown == {name: kind for name, (kind, _) in message_rows._COLUMNS.items()}
    ignored = re.search(r"mean nothing for a new message are ignored: (.*?)\. So", PAGE, re.DOTALL)
    assert ignored is not None
    assert set(quoted(ignored[1])) == message_rows._IGNORED


@pytest.mark.parametrize(
    ("words", "found", "said"),
    [
        ("no task has more than 262,144 messages", spark_tasks.TASK_MESSAGES_MAX, 262_144),
        ("then at most 65,536 messages too", message_sizes.COUNT_MAX, 65_536),
        ("1 to 200 printable bytes", broker_leases._QUERY_BYTES_MAX, 200),
        ("| 20,000 messages |", BATCH_MESSAGES, 20_000),
        ("in flight, 40,000 messages without it", 2 * BATCH_MESSAGES, 40_000),
        ("without it, 65,535 at most.", PREFETCH_MAX, 65_535),
        ("10,000 queries are remembered", broker_stages.QUERIES_MAX, 10_000),
    ],
)
def test_a_number_in_the_text_is_the_one_in_the_code(words: str, found: int, said: int):
    assert words in " ".join(PAGE.split())
    assert found == said


# --- what is said when something is wrong ----------------------------------------------------------------


def stream_of(**given: str) -> Callable[[Broker], object]:
    """A query that begins as Spark begins it."""
    return lambda broker: _begun({"url": broker.url, "brokerTimeout": "10s"} | given)


def _begun(given: dict[str, str]) -> object:
    made = reader(**given)
    return made.latestOffset(made.initialOffset(), made.getDefaultReadLimit())


def sink_of(*names: str, overwrite: bool = False, **given: str) -> Callable[[Broker], object]:
    schema = StructType([StructField(name, StringType()) for name in names])
    return lambda broker: LeveretDataSource({"url": broker.url} | given).writer(schema, overwrite)


def _another_schema(broker: Broker) -> object:
    schema = StructType([StructField("id", LongType())])
    return LeveretDataSource({"url": broker.url, "queue": "a"}).reader(schema)


def _another_queue(broker: Broker) -> object:
    given = {"url": broker.url, "cursor": "c"}
    before = reader(**given, queue="a").initialOffset()
    now = reader(**given, queue="b")
    return now.latestOffset(before, now.getDefaultReadLimit())


def _another_broker(broker: Broker) -> object:
    now = reader(url=broker.url, cursor="c", queue="a")
    before = now.initialOffset() | {"log": 1}
    return now.latestOffset(before, now.getDefaultReadLimit())


def _without_rights(begin: Callable[[Broker], object]) -> Callable[[Broker], object]:
    def begun(broker: Broker) -> object:
        def add() -> None:
            accounts = broker.server.broker.accounts
            accounts.put(UserRow("rita", hash_password(b"secret", b"salt")))
            accounts.permit(PermissionRow("/", "rita", "^$", "^$", "^$"))

        broker.call(add)
        return begin(broker)

    return begun


def _deleted_offset(_: Broker) -> object:
    """At a broker whose clock can be moved."""
    clock = VirtualClock()
    with TemporaryDirectory() as place, Broker(Path(place) / "data", flight=True, clock=clock) as broker:
        partitions.make_stream(broker.url, "old", x_max_age="60s")
        partitions.append(broker.url, "old", [b"1", b"2"])
        clock.advance(3600)
        stream = broker.server.broker.vhosts["/"].queues["old"]
        broker.wait_until(lambda: stream.log.first == stream.log.next, "retention has taken all of it")
        return stream_of(stream="old", cursor="c", startingPosition="0")(broker)


WRONG: dict[str, Callable[[Broker], object]] = {
    "an unknown option": stream_of(ques="a"),
    "neither queue, stream nor topic": stream_of(cursor="c"),
    "no cursor": stream_of(queue="a"),
    "a value that is none": stream_of(queue="a", cursor="c", leaseTimeout="soon"),
    "a range on a stream of batches": stream_of(queue="a", cursor="c", startingOffset="5"),
    "JSON without a schema": stream_of(queue="a", cursor="c", decode="json"),
    "asynchronous progress tracking": stream_of(queue="a", cursor="c", asyncProgressTrackingEnabled="true"),
    "a schema that does not fit": _another_schema,
    "no such queue": stream_of(queue="nowhere", cursor="c"),
    "no such topic": stream_of(topic="nowhere", cursor="c"),
    "a stream as a queue": stream_of(queue="s", cursor="c"),
    "a position behind the end": stream_of(stream="s", cursor="c", startingPosition="5"),
    "a position that retention has taken": _deleted_offset,
    "no right to read": _without_rights(stream_of(queue="a", cursor="c", user="rita", password="secret")),
    "the wrong password": stream_of(queue="a", cursor="c", password="wrong"),
    "a checkpoint of another queue": _another_queue,
    "a checkpoint of another broker": _another_broker,
    "rows without a body": sink_of("app_id", routingKey="a"),
    "a column that means nothing": sink_of("boddy", routingKey="a"),
    "nowhere to go": sink_of("body"),
    "no such exchange": sink_of("body", exchange="nowhere"),
    "no right to write": _without_rights(
        sink_of("body", exchange="amq.topic", user="rita", password="secret")
    ),
    "overwriting": sink_of("body", overwrite=True, routingKey="a"),
}
SAID = {row[0]: row[1].strip("`") for row in table("## When something is wrong")}


def test_every_mistake_of_the_table_is_made_here():
    assert SAID.keys() == WRONG.keys()


@pytest.mark.parametrize("mistake", WRONG)
def test_a_mistake_is_answered_with_the_sentence_of_the_table(leveret: Broker, mistake: str):
    for queue in "ab":
        publish(leveret.url, queue, [])
    partitions.make_stream(leveret.url, "s")
    with pytest.raises(SparkSideError) as raised:
        WRONG[mistake](leveret)
    assert SAID[mistake] in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_failures_of_running_queries_are_words_of_the_sources():
    """Sentences are written over several lines there."""
    sources = "\n".join(
        file.read_text(encoding="utf-8")
        for folder in ("spark", "broker", "storage", "fronts/flight")
        for file in (SOURCES / folder).rglob("*.py")
    )
    joined = re.sub(r'"\s*\n\s*f?"', "", sources)
    said = [text for row in table("## When something is wrong", number=1) for text in quoted(row[0])]
    assert len(said) > 5
    assert [text for text in said if text not in joined] == []


# --- the page about clusters -----------------------------------------------------------------------------


def test_the_packages_that_executors_need_are_those_that_the_cluster_tests_give_them():
    said = {name for row in table("## What has to be where", page=CLUSTER_PAGE) for name in quoted(row[0])}
    assert set(cluster.PACKAGES) <= said


@pytest.mark.parametrize("page", ["spark.md", "spark-cluster.md"])
def test_links_lead_somewhere(page: str):
    text = (GUIDE / page).read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([\w-]+))?\)", text):
        file = (GUIDE / target).resolve() if target else GUIDE / page
        assert file.exists(), f"{page} leads to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}
