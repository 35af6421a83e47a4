"""A queue, the query that empties it, and the account: what was published, and what has arrived.

Owns the places of one query (queue, checkpoint, table, gates), publishing with confirms and ids of their own,
and reading what the query has written: for a table what its log names, for a queue what a consumer would see.
On RabbitMQ a row may come again, and then with the id that it had: such copies count once, and anything else
that comes twice is one too many. Killing is left to `kills`.
"""

import json
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pyarrow.parquet as pq

from leveret.flight.actions import Planned, Snapshot
from leveret.flight.tickets import ReadTicket
from leveret.spark.endpoint import find
from leveret.spark.flight_calls import Calls
from leveret.spark.options import SourceOptions
from tests.soak.brokers import Broker
from tests.soak.gates import Gates, wait_until
from tests.spark.spooling import publish

FILE, EACH, QUEUE = "file", "each", "queue"
BATCH_MESSAGES = 60
DRAIN_S = 240.0
LOOK_EVERY_S = 0.1


class Pipeline:
    """`Pipeline(place, broker, kind=FILE)`; `kind` is the sink's, as in `driver`."""

    module = "tests.soak.driver"
    """What runs it."""

    def __init__(self, place: Path, broker: Broker, *, kind: str, host: str = "127.0.0.1") -> None:
        self.kind = kind
        self._broker = broker
        self._host = host
        self._place = place / f"{kind}-{uuid.uuid4().hex[:8]}"
        self._place.mkdir(parents=True)
        self.queue = f"soak.{self._place.name}"
        self.target = f"{self.queue}.written"
        self._sent: list[str] = []
        self._read: dict[Path, list[str]] = {}
        self._logged: dict[Path, list[Path]] = {}
        self._taken: dict[str, str] = {}
        """Bodies by ids, of a target that can't be looked at without taking."""
        self.copies = 0
        """Rows that came again with the id that they had."""
        self.gates = Gates(self._place / "gates")
        publish(broker.url(), self.queue, [])
        publish(broker.url(), self.target, [])

    # the query

    def job(self) -> dict[str, Any]:
        """For `driver`."""
        broker = {"url": self._broker.url(self._host), "brokerTimeout": "120s"}
        options = broker | {
            "queue": self.queue,
            "cursor": "soak",
            "maxMessagesPerTrigger": str(BATCH_MESSAGES),
            "minPartitions": "2",
            "gates": str(self._place / "gates"),
        }
        if self._broker.spools:
            options["spoolLocation"] = str(self._place / "spool")
        return {
            "kind": self.kind,
            "options": options,
            "checkpoint": str(self._place / "checkpoint"),
            "table": str(self._place / "table"),
            "sink": broker | {"routingKey": self.target, "gates": options["gates"]},
        }

    def commits(self) -> set[int]:
        """The batches in Spark's commit log."""
        log = self._place / "checkpoint" / "commits"
        return {int(file.name) for file in log.iterdir() if file.name.isdigit()} if log.exists() else set()

    # the account

    def publish(self, count: int) -> None:
        """Returns when the broker has confirmed them."""
        more = [f"m{number:07d}" for number in range(len(self._sent), len(self._sent) + count)]
        publish(self._broker.url(), self.queue, more)
        self._sent += more

    @property
    def tells_copies(self) -> bool:
        """Whether rows may come again: with the id that they had."""
        return self.kind == QUEUE and self._broker.spools

    @property
    def published(self) -> int:
        return len(self._sent)

    def arrived(self) -> list[str]:
        if self.kind == QUEUE:
            return self._out_of_target() if self.tells_copies else list(self._in_target())
        files = self._in_log() if self.kind == FILE else self._in_batches()
        return [row for file in files for row in self._rows(file)]

    def wait_until_empty(self) -> None:
        """Until all has arrived and the broker has nothing left; then each message must have come once."""
        arrived = lambda: len(self.arrived()) >= len(self._sent)  # noqa: E731
        empty = lambda: self._broker.left_in(self.queue) == (0, 0)  # noqa: E731
        for each in (arrived, empty):
            wait_until(each, self._state, timeout_s=DRAIN_S, every_s=LOOK_EVERY_S)
        self.check()

    def check(self) -> None:
        """From the beginning: nothing is remembered of what was read before."""
        self._read.clear()
        self._logged.clear()
        expected, found = Counter(self._sent), Counter(self.arrived())
        missing, extra = sorted((expected - found).elements()), sorted((found - expected).elements())
        assert not missing, f"{len(missing)} messages are missing: {missing[:5]}…"
        assert not extra, f"{len(extra)} messages came twice: {extra[:5]}…"

    def _state(self) -> str:
        ready, unacked = self._broker.left_in(self.queue)
        arrived = len(self.arrived())
        return f"{arrived} of {len(self._sent)} have arrived, {ready} are ready, {unacked} are unacked"

    # what was written

    def _rows(self, file: Path) -> list[str]:
        """Files of Spark never change."""
        if file not in self._read:
            rows = pq.read_table(file, columns=["body"]).column("body").to_pylist()
            self._read[file] = [body.decode() for body in rows]
        return self._read[file]

    def _in_log(self) -> set[Path]:
        """Files that the sink's log names, not whatever lies there; some entries of it repeat others."""
        log = self._place / "table" / "_spark_metadata"
        if not log.exists():
            return set()
        entries = [file for file in log.iterdir() if not file.name.startswith(".")]
        for file in entries:
            if file not in self._logged:
                lines = _text(file).splitlines()[1:]
                self._logged[file] = [log.parent / Path(json.loads(line)["path"]).name for line in lines]
        return {each for file in entries for each in self._logged[file]}

    def _in_batches(self) -> set[Path]:
        return {
            file
            for done in (self._place / "table").glob("*/_SUCCESS")
            for file in done.parent.glob("part-*.parquet")
        }

    def _in_target(self) -> Iterator[str]:
        """A look that takes nothing out."""
        options = SourceOptions.parse({"url": self._broker.url(), "queue": self.target})
        with Calls(find(options)) as calls:
            seen = calls.ask(Snapshot("/", self.target), Planned)
            for portion in seen.portions:
                ticket = ReadTicket(vhost="/", queue=self.target, log_id=seen.log_id, ranges=portion.ranges)
                for batch in calls.read(ticket):
                    yield from (body.decode() for body in batch.column("body").to_pylist())

    def _out_of_target(self) -> list[str]:
        """As a consumer that knows what it has had."""
        connection = pika.BlockingConnection(pika.URLParameters(self._broker.url()))
        channel = connection.channel()
        for method, properties, body in channel.consume(self.target, inactivity_timeout=LOOK_EVERY_S):
            if method is None:
                break
            name, row = properties.message_id, body.decode()
            assert name, f"{row} has no id"
            self.copies += name in self._taken
            first = self._taken.setdefault(name, row)
            assert first == row, f"{name} is the id of {first} and of {row}"
            channel.basic_ack(method.delivery_tag)
        channel.cancel()
        connection.close()
        return list(self._taken.values())


def _text(file: Path) -> str:
    """Spark deletes entries that a later one repeats."""
    try:
        return file.read_text()
    except FileNotFoundError:
        return ""
