"""The two Spark jobs of the demo, as the commands that users run: `leveret pipeline run` and `leveret audit`.

Owns the pipeline's file, the paths of table and report, and how both are read afterwards. `missing` returns
why the jobs can't run on a machine without Java or without the packages.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from leveret.cli.demo.processes import DemoFailed, DemoProcess, Processes
from leveret.cli.demo.topology import LAKE, REJECTS

if TYPE_CHECKING:
    from leveret.audit.findings import Findings

STARTING: Final = "Spark is starting; the first start may take a minute"
NOT_JSON: Final = "is not JSON, or does not fit the schema"
"""The pipeline's reason for rejecting a body that does not parse."""
BELOW_ZERO: Final = "the amount is below 0"
_PACKAGES: Final = ("pyspark", "pyarrow")
_ARCHIVE: Final = Path(sys.prefix) / "spark.jsa"
"""Class data sharing archive with Spark's classes, if `make` could create it."""
_JAVA: Final = {
    "JDK_JAVA_OPTIONS": f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:SharedArchiveFile={_ARCHIVE} "
    "-Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off"
}
"""Options for a JVM that lives for seconds. The second compiler would cost more than it gains. The archive
saves a third of the CPU time (10 of 31 s); a JVM that can't use it ignores it.
"""
_FILE: Final = f'''\
# The pipeline of the demo: orders from a queue into a table, invalid orders to the rejects.
name = "orders-to-lake"
checkpoint = "checkpoint"

[source]
url = "{{url}}"
queue = "{LAKE}"
max_messages = 200000

[parse]
format = "json"
schema = "order_id LONG NOT NULL, customer STRING, country STRING, amount DOUBLE, at TIMESTAMP"

[[steps]]
name = "dated"
sql = "SELECT *, date(at) AS day FROM input"

[[expectations]]
that = "amount >= 0"
reason = "{BELOW_ZERO}"

[rejects]
routing_key = "{REJECTS}"

[[sinks]]
name = "table"
from = "dated"
format = "parquet"
path = "table"
partition_by = ["day"]

[spark]
master = "local[2]"

[spark.conf]
"spark.ui.enabled" = "false"
"spark.sql.session.timeZone" = "UTC"
'''


def missing() -> str | None:
    """Return why Spark can't run on this machine, or None if it can."""
    for name in _PACKAGES:
        if importlib.util.find_spec(name) is None:
            return f"{name} is not installed (pip install 'leveret[spark]')"
    from leveret.spark import check_java
    from leveret.spark.errors import NoJava

    try:
        check_java()
    except NoJava as error:
        return str(error)
    return None


class Pipeline:
    """The pipeline from the queue `lake` into a table in the demo's directory."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "pipeline.toml"
        self._checkpoint = directory / "checkpoint"
        self.table = directory / "table"

    async def start(self, processes: Processes, url: str) -> DemoProcess:
        self._file.write_text(_FILE.format(url=url), "utf-8")
        command = ("leveret", "pipeline", "run", self._file, "--once", "--json")
        return await processes.start("pipeline", *command, **_JAVA)

    def doing(self) -> str:
        """Return what Spark is doing: starting, or writing."""
        with suppress(FileNotFoundError):
            if self._status()["state"] != "starting":
                return "Spark writes orders to a table"
        return STARTING

    def summary(self) -> str:
        """Return the counts of messages that the pipeline has read and rejected."""
        status = self._status()
        return f"{status['messages']:,} messages, {status['rejected']:,} of them rejected"

    def _status(self) -> dict[str, Any]:
        return dict(json.loads((self._checkpoint / "status.json").read_bytes()))

    def order_counts(self) -> Counter[int]:
        """Return how often each order is in the committed batches of the table."""
        import pyarrow.dataset as ds

        from leveret.spark.pipelines.tables import Table

        table = Table.at(str(self.table))
        counts: Counter[int] = Counter()
        for batch in table.batches():
            rows = ds.dataset(table.spark_path(batch.folder), format="parquet")
            counts.update(rows.to_table(columns=["order_id"])["order_id"].to_pylist())
        return counts

    def day_count(self) -> int:
        """Return the number of partitions of the table."""
        return len({folder.name for folder in self.table.glob("_batch=*/day=*")})


class Audit:
    """The audit of the running broker, with the pipeline's table."""

    def __init__(self, directory: Path) -> None:
        self._out = directory / "audit"

    @property
    def report(self) -> Path:
        return self._out / "report.html"

    async def start(self, processes: Processes, url: str, table: Path) -> DemoProcess:
        command = ("--url", url, "--out", self._out, "--table", table, "--master", "local[2]", "--json")
        return await processes.start("audit", "leveret", "audit", *command, **_JAVA)

    def doing(self) -> str:
        """Return what Spark is doing: starting, or reading. It marks its directory when it begins to read."""
        from leveret.audit.output_directory import MARK

        return "Spark reads logs and journals" if (self._out / MARK).exists() else STARTING

    def findings(self) -> Findings:
        from leveret.audit.findings import Findings

        return msgspec.json.decode((self._out / "findings.json").read_bytes(), type=Findings)


async def wait_for_end(job: DemoProcess, *, exit_codes: tuple[int, ...] = (0,)) -> None:
    """Wait until a job has ended; raise `DemoFailed` for an unexpected exit code."""
    job.is_expected_to_run = False
    await job.process.communicate()
    if job.process.returncode not in exit_codes:
        raise DemoFailed(f"the {job.name} ended with code {job.process.returncode}{job.log_tail()}")
