"""Queues and tables on clusters: driver and executors are other processes, with other directories and paths.

The ways to ship Leveret are those of `docs/guide/spark-cluster.md`: installed wherever Spark runs, sent along
with `--py-files`, or in an environment with `--archives`. Executors can open no file that the driver has it
from. A job that has to do with RabbitMQ runs in the first way, together with that for Leveret: starting Spark
takes longest.
"""

import tarfile
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from leveret.testing.broker import Broker
from tests.rabbitmq.node import RabbitMQ
from tests.spark.cluster import (
    Standalone,
    environment_archive,
    executor_environment,
    package_archive,
    submit,
)
from tests.spark.partitions import make_stream
from tests.spark.spooling import ready
from tests.spark.tasks import channel, declare, texts_in
from tests.tools import reason_to_skip

pytestmark = [pytest.mark.full, pytest.mark.needs_java, pytest.mark.timeout(900)]
ROWS = 1_000
LEVERET, QUEUE, STREAM = "from-leveret", "from-a-queue-of-rabbitmq", "from-a-stream-of-rabbitmq"
"""The tables, whose names queues and streams have too."""
SPECULATING = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
}


class Ran(NamedTuple):
    """A job that has come to its end: what it says of its processes, and where its tables are."""

    answer: dict[str, Any]
    tables: Path
    programs: Path
    """Where executors have their Python."""


def job_for(broker: Broker, queue: str, tables: Path) -> dict[str, Any]:
    declare(broker.url, queue)
    return {
        "rows": ROWS,
        "sinks": [{"url": broker.url, "routingKey": queue}],
        "sources": {LEVERET: {"url": broker.url, "queue": queue, "cursor": "cluster"}},
        "place": str(tables),
    }


def on_rabbitmq_too(job: dict[str, Any], broker: RabbitMQ) -> None:
    """One exchange leads to a queue and to a stream, so that rows are written once for both."""
    declare(broker.url, QUEUE)
    make_stream(broker.url, STREAM)
    with channel(broker.url) as binding:
        binding.exchange_declare("cluster", "fanout", durable=True)
        for name in (QUEUE, STREAM):
            binding.queue_bind(name, "cluster")
    spool = f"{job['place']}/spool"
    job["sinks"].append({"url": broker.url, "exchange": "cluster"})
    job["sources"] |= {
        QUEUE: {"url": broker.url, "queue": QUEUE, "cursor": "cluster", "spoolLocation": spool},
        STREAM: {"url": broker.url, "stream": STREAM},
    }


def table(place: Path) -> pa.Table:
    return pq.read_table([str(file) for file in place.glob("*.parquet")])


def numbers(found: pa.Table) -> list[int]:
    return sorted(map(int, found.column("body").to_pylist()))


def check(ran: Ran, broker: Broker, queue: str) -> None:
    """The table has each row once, the queue none; and nothing was shared on the way."""
    assert numbers(table(ran.tables / LEVERET)) == list(range(ROWS))
    assert (broker.depth(queue), broker.unacked(queue)) == (0, 0)
    driver, executors = ran.answer["driver"], ran.answer["executors"]
    assert len({each["pid"] for each in (driver, *executors)}) == 3
    for name in ("python", "leveret", "cwd"):
        assert driver[name] not in {each[name] for each in executors}


@pytest.fixture(scope="module")
def installed(
    leveret: Broker, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Ran:
    """On two executors beside the driver; the format is found by name, the package in both environments."""
    place = tmp_path_factory.mktemp("installed")
    programs = executor_environment(place, with_leveret=True)
    job = job_for(leveret, LEVERET, place / "shared")
    if not reason_to_skip("needs_rabbitmq"):
        on_rabbitmq_too(job, request.getfixturevalue("rabbitmq"))
    path = {"spark.executorEnv.PATH": f"{programs}:/usr/bin:/bin"}
    answer = submit(place, "local-cluster[2,1,1024]", job, settings=path)
    return Ran(answer, place / "shared", programs)


def test_on_two_executors_beside_the_driver_where_leveret_is_installed(leveret: Broker, installed: Ran):
    check(installed, leveret, LEVERET)
    for each in installed.answer["executors"]:
        assert each["leveret"].startswith(str(installed.programs.parent))


@pytest.mark.needs_rabbitmq
def test_executors_write_to_rabbitmq_and_its_queue_is_a_table_after_the_spool(
    rabbitmq: RabbitMQ, installed: Ran
):
    """Each row once, also if the sink has published some again: they have ids."""
    assert numbers(table(installed.tables / QUEUE)) == list(range(ROWS))
    assert ready(rabbitmq.url, QUEUE) == 0
    assert not list((installed.tables / "spool").rglob("*.arrow"))


@pytest.mark.needs_rabbitmq
def test_executors_read_each_offset_of_a_stream_of_rabbitmq_once(installed: Ran):
    found = table(installed.tables / STREAM)
    assert set(numbers(found)) == set(range(ROWS))
    assert sorted(found.column("offset").to_pylist()) == list(range(len(found)))


def test_on_a_master_and_two_workers_that_get_leveret_with_the_job(leveret: Broker, tmp_path: Path):
    """The package is zipped, and nobody has it but from there; the job registers the format."""
    programs = executor_environment(tmp_path, with_leveret=False)
    drivers = executor_environment(tmp_path / "bare", with_leveret=False)
    archive = package_archive(tmp_path)
    job = job_for(leveret, "from-leveret-on-workers", tmp_path / "shared") | {"register": True}
    with Standalone(tmp_path, programs) as cluster:
        driver = {"programs": drivers, "variables": {"PYTHONPATH": str(archive)}}
        answer = submit(tmp_path, cluster.url, job, "--py-files", str(archive), **driver)
    check(Ran(answer, tmp_path / "shared", programs), leveret, "from-leveret-on-workers")
    for each in (answer["driver"], *answer["executors"]):
        assert "leveret.zip" in each["leveret"]
    places = {Path(each["cwd"]).relative_to(tmp_path).parts[0] for each in answer["executors"]}
    assert places == {"a", "b"}


def test_a_task_that_is_run_twice_at_a_time_writes_its_rows_once(leveret: Broker, tmp_path: Path):
    """Spark speculates: on the other worker, while the first attempt has given its rows and does not end."""
    programs = executor_environment(tmp_path, with_leveret=True)
    attempts = tmp_path / "attempts"
    attempts.mkdir()
    queue = "from-leveret-twice"
    job = job_for(leveret, queue, tmp_path / "shared") | {"straggling": str(attempts), "sources": {}}
    with Standalone(tmp_path, programs) as cluster:
        submit(tmp_path, cluster.url, job, settings=SPECULATING)
    assert {each.name for each in attempts.iterdir()} >= {"0.0", "1.0", "1.1"}
    assert sorted(map(int, texts_in(leveret.url, queue))) == list(range(ROWS))


def test_on_a_master_and_two_workers_that_get_an_environment_with_the_job(leveret: Broker, tmp_path: Path):
    """Packed by tar; the format is found by name, by a driver that has unpacked it too."""
    archive = environment_archive(tmp_path)
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path / "driver" / "environment")
    bare = executor_environment(tmp_path / "bare", with_leveret=False)
    job = job_for(leveret, "from-leveret-in-an-archive", tmp_path / "shared")
    with Standalone(tmp_path, bare) as cluster:
        shipped = ("--archives", f"{archive}#environment")
        variables = {"PYSPARK_PYTHON": "./environment/bin/python"}
        answer = submit(tmp_path, cluster.url, job, *shipped, variables=variables)
    check(Ran(answer, tmp_path / "shared", bare), leveret, "from-leveret-in-an-archive")
    for each in answer["executors"]:
        assert each["python"].startswith(each["cwd"])
        assert each["leveret"].startswith(f"{each['cwd']}/environment/")
