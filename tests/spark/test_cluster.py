"""Queues and tables on clusters: driver and executors are other processes, with other directories and paths.

Two ways to ship Leveret are tried, those of `docs/guide/spark-cluster.md`: installed wherever Spark runs, and
sent along with `--py-files`. In both, executors can open no file that the driver has it from.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from leveret.testing.broker import Broker
from tests.spark.cluster import Standalone, executor_environment, package_archive, submit
from tests.spark.tasks import declare

pytestmark = [pytest.mark.needs_java, pytest.mark.timeout(600)]
ROWS = 1_000


def job_for(broker: Broker, queue: str, place: Path) -> dict[str, Any]:
    declare(broker.url, queue)
    return {"url": broker.url, "queue": queue, "place": str(place / "shared"), "rows": ROWS}


def check(answer: dict[str, Any], job: dict[str, Any], broker: Broker) -> None:
    """The table has each row once, the queue none; and nothing was shared on the way."""
    table = pq.read_table([str(file) for file in Path(job["place"]).glob("table/*.parquet")])
    assert sorted(map(int, table.column("body").to_pylist())) == list(range(ROWS))
    assert (broker.depth(job["queue"]), broker.unacked(job["queue"])) == (0, 0)
    driver, executors = answer["driver"], answer["executors"]
    assert len({each["pid"] for each in (driver, *executors)}) == 3
    for name in ("python", "leveret", "cwd"):
        assert driver[name] not in {each[name] for each in executors}


def test_on_two_executors_beside_the_driver_where_leveret_is_installed(
    leveret: Broker, fresh: Callable[[str], str], tmp_path: Path
):
    """The format is found by name; the package is in the environments of both."""
    programs = executor_environment(tmp_path, with_leveret=True)
    path = {"spark.executorEnv.PATH": f"{programs}:/usr/bin:/bin"}
    job = job_for(leveret, fresh("cluster"), tmp_path)
    answer = submit(tmp_path, "local-cluster[2,1,1024]", job, settings=path)
    check(answer, job, leveret)
    for each in answer["executors"]:
        assert each["leveret"].startswith(str(programs.parent))


def test_on_a_master_and_two_workers_that_get_leveret_with_the_job(
    leveret: Broker, fresh: Callable[[str], str], tmp_path: Path
):
    """The package is zipped; the job registers the format."""
    programs = executor_environment(tmp_path, with_leveret=False)
    job = job_for(leveret, fresh("cluster"), tmp_path) | {"register": True}
    with Standalone(tmp_path, programs) as cluster:
        answer = submit(tmp_path, cluster.url, job, "--py-files", str(package_archive(tmp_path)))
    check(answer, job, leveret)
    for each in answer["executors"]:
        assert "leveret.zip" in each["leveret"]
    places = {Path(each["cwd"]).relative_to(tmp_path).parts[0] for each in answer["executors"]}
    assert places == {"a", "b"}
