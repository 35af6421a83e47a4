"""A declared pipeline under kills: its file, its messages, good and bad, and where each of them has ended.

A good message belongs into the table, a bad one among the rejects, each once; the queue is empty at the end.
`declared_driver` runs it.
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq

from tests.soak.brokers import Broker
from tests.soak.pipeline import BATCH_MESSAGES, Pipeline
from tests.spark.settings import SETTINGS
from tests.spark.spooling import publish

DECLARED, STEPPED = "declared", "stepped"
"""Rows as they are parsed, which is done in one pass; and with a step that rejects some too."""
MASTER = "LEVERET_SOAK_MASTER"
"""The environment variable that says on what Spark runs."""
BAD_EVERY = 5

BEGUN = "begun"
"""Spark has handed over the batch, nothing is done with it."""
JUDGED = "judged"
"""What is to be rejected is written down, and not published."""
PUBLISHED = "published"
"""The rejects are confirmed, and not settled."""
REJECTED = "rejected"
"""They are settled, the batch is not committed."""
DECLARED_PHASES = (BEGUN, JUDGED, PUBLISHED, REJECTED)
"""Those that only a declared pipeline has: in the order of a batch, with `WRITTEN` after the first."""

FILE = """
name = "soak"
checkpoint = "{place}/checkpoint"

[source]
url = "{url}"
queue = "{queue}"
max_messages = {most}

[source.options]
brokerTimeout = "120s"
minPartitions = 2
{spool}

[parse]
schema = "id LONG NOT NULL, amount DOUBLE"

[[expectations]]
that = "amount > 0"

{steps}
[rejects]
routing_key = "{target}"

[[sinks]]
name = "table"
path = "{place}/table"

[spark]
master = "${{{master}}}"

[spark.conf]
{settings}
"""
STEPS = """
[[steps]]
name = "priced"
sql = "SELECT *, amount * 2 AS price FROM input"

[[expectations]]
step = "priced"
that = "price < 100"
"""
SETTINGS_OF_SOAK = {
    "spark.deploy.maxExecutorRetries": "-1",  # executors are killed more often than elsewhere
    "spark.executor.memory": "512m",
    "spark.task.maxFailures": "8",
    "spark.sql.streaming.pollingDelay": "100ms",
    "spark.ui.showConsoleProgress": "false",
}


class DeclaredPipeline(Pipeline):
    """What was published and has arrived is known by names: `m7` is a good message, `x8` a bad one."""

    module = "tests.soak.declared_driver"

    def __init__(self, place: Path, broker: Broker, *, kind: str, host: str = "127.0.0.1") -> None:
        super().__init__(place, broker, kind=kind, host=host)
        settings = SETTINGS | SETTINGS_OF_SOAK
        lines = "\n".join(f"{json.dumps(name)} = {json.dumps(value)}" for name, value in settings.items())
        text = FILE.format(
            place=self._place,
            url=broker.url(host),
            queue=self.queue,
            target=self.target,
            most=BATCH_MESSAGES,
            steps=STEPS if kind == STEPPED else "",
            spool=f'spoolLocation = "{self._place}/spool"' if broker.spools else "",
            master=MASTER,
            settings=lines,
        )
        (self._place / "pipeline.toml").write_text(text)

    def job(self) -> dict[str, str]:
        return {"file": str(self._place / "pipeline.toml"), "gates": str(self._place / "gates")}

    def commits(self) -> set[int]:
        log = self._place / "checkpoint" / "query" / "commits"
        return {int(file.name) for file in log.iterdir() if file.name.isdigit()} if log.exists() else set()

    def publish(self, count: int) -> None:
        numbers = range(len(self._sent), len(self._sent) + count)
        publish(self._broker.url(), self.queue, map(self._body, numbers))
        self._sent += map(_name, numbers)

    def arrived(self) -> list[str]:
        return [*self._in_table(), *self._among_rejects()]

    def _in_table(self) -> Iterator[str]:
        """A batch that runs again replaces its directory: what goes while it is read comes anew."""
        for batch in (self._place / "table").glob("_batch=*"):
            with contextlib.suppress(FileNotFoundError):
                yield from [f"m{number}" for number in _ids_in(batch)]

    def _among_rejects(self) -> Iterator[str]:
        for body in self._in_target():
            yield f"x{json.loads(body)['id']}"

    def _body(self, number: int) -> str:
        """Bad ones are so in turns: for the parser, for the input, for the step."""
        wrong = ("none", -1.0, 99.0) if self.kind == STEPPED else ("none", -1.0)
        amount = wrong[number // BAD_EVERY % len(wrong)] if number % BAD_EVERY == 0 else 1.0
        return json.dumps({"id": number, "amount": amount})


def _ids_in(batch: Path) -> list[int]:
    files = sorted(batch.glob("part-*.parquet")) if (batch / "_SUCCESS").exists() else []
    return [number for file in files for number in pq.ParquetFile(file).read(["id"])["id"].to_pylist()]


def _name(number: int) -> str:
    return f"m{number}" if number % BAD_EVERY else f"x{number}"
