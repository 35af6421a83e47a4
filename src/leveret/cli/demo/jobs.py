"""The two jobs of Spark, as the commands that people run: `leveret pipeline run` and `leveret audit`.

Owns the pipeline's file, the places of table and report, and how both are read afterwards. Without Java, or
without the packages, there are none: `missing` says so in a sentence.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from leveret.cli.demo.processes import Processes, SceneFailed, Started
from leveret.cli.demo.topology import LAKE, REJECTS

if TYPE_CHECKING:
    from leveret.audit.findings import Findings

STARTING: Final = "Spark is starting; that may take a minute where it was not started lately"
NOT_JSON: Final = "is not JSON, or does not fit the schema"
"""As the pipeline says of each body that does not parse."""
UNPAID: Final = "the amount is below 0"
_PACKAGES: Final = ("pyspark", "pyarrow")
_ARCHIVE: Final = Path(sys.prefix) / "spark.jsa"
"""Spark's classes as a JVM has them in memory, where `make` could put them there."""
_JAVA: Final = {
    "JDK_JAVA_OPTIONS": f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:SharedArchiveFile={_ARCHIVE} "
    "-Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off"
}
"""For a JVM that lives for seconds: the second compiler would cost more than it gains, and classes that are
ready save a third of its time (10 of 31 s of CPU). A JVM that can't use the archive does without.
"""
_FILE: Final = f'''\
# The pipeline of the demo: orders from a queue into a table, and what can't be used to the rejects.
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
reason = "{UNPAID}"

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
    """Why there can be no Spark here; None if there can."""
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
    """From the queue `lake` into a table below the demo's directory."""

    def __init__(self, place: Path) -> None:
        self._file = place / "pipeline.toml"
        self._checkpoint = place / "checkpoint"
        self.table = place / "table"

    async def start(self, processes: Processes, url: str) -> Started:
        self._file.write_text(_FILE.format(url=url), "utf-8")
        words = ("leveret", "pipeline", "run", self._file, "--once", "--json")
        return await processes.start("pipeline", *words, environment=_JAVA)

    def doing(self) -> str:
        """What Spark is doing: starting, or working on messages."""
        try:
            status = json.loads((self._checkpoint / "status.json").read_bytes())
        except FileNotFoundError:
            return STARTING
        if status["state"] == "starting":
            return STARTING
        return "Spark writes orders to a table"

    def told(self) -> str:
        """How many messages it has taken."""
        status = json.loads((self._checkpoint / "status.json").read_bytes())
        return f"{status['messages']:,} messages, {status['rejected']:,} of them rejected"

    def written(self) -> Counter[int]:
        """The orders in its table, whole batches alone, and how often each of them is there."""
        import pyarrow.dataset as ds

        from leveret.spark.pipelines.tables import Table

        table = Table.at(str(self.table))
        found: Counter[int] = Counter()
        for batch in table.batches():
            rows = ds.dataset(table.spark_path(batch.folder), format="parquet")
            found.update(rows.to_table(columns=["order_id"])["order_id"].to_pylist())
        return found

    def days(self) -> int:
        """How many partitions the table has."""
        return len({folder.name for folder in self.table.glob("_batch=*/day=*")})


class Audit:
    """Of the running broker, with the table of the pipeline."""

    def __init__(self, place: Path) -> None:
        self._out = place / "audit"

    @property
    def report(self) -> Path:
        return self._out / "report.html"

    async def start(self, processes: Processes, url: str, table: Path) -> Started:
        words = ("--url", url, "--out", self._out, "--table", table, "--master", "local[2]", "--json")
        return await processes.start("audit", "leveret", "audit", *words, environment=_JAVA)

    def doing(self) -> str:
        """What Spark is doing: starting, or reading; it marks its directory when it reads."""
        from leveret.audit.output_directory import MARK

        return "Spark reads logs and journals" if (self._out / MARK).exists() else STARTING

    def findings(self) -> Findings:
        from leveret.audit.findings import Findings

        return msgspec.json.decode((self._out / "findings.json").read_bytes(), type=Findings)


async def ended(job: Started, *, codes: tuple[int, ...] = (0,)) -> bytes:
    """Waits for its end, and gives what it printed; one that fails is a sentence."""
    job.is_expected_to_run = False
    out, _ = await job.process.communicate()
    if job.process.returncode not in codes:
        raise SceneFailed(f"the {job.name} ended with code {job.process.returncode}{job.last_words()}")
    return out
