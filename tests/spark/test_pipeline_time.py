"""Late rows, duplicates and windows: what becomes of each message, against a model in plain Python."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count

import pika
import pytest
from pyspark.sql import DataFrame, SparkSession

from leveret.spark.columns import schema_of
from leveret.spark.errors import SparkSideError
from leveret.spark.options import SourceOptions
from leveret.spark.pipelines import BadPipeline, Pipeline, batches, recorded_rejects, running
from leveret.spark.pipelines.batch_state import StateStore
from leveret.spark.pipelines.batches import Batches
from leveret.spark.pipelines.checkpoint_files import Status
from leveret.spark.pipelines.declaration import Declaration, parse
from leveret.spark.pipelines.declaration_checks import check, source_options
from leveret.testing.broker import Broker
from tests.spark.queues import publish

pytestmark = [pytest.mark.needs_java, pytest.mark.timeout(600)]

numbers = count()
BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)
DELAY, WITHIN, LENGTH, GAP = 10, 20, 15, 6
"""In minutes."""
HEAD = """
    name = "{queue}"
    checkpoint = "{path}/checkpoint"
    [source]
    url = "{url}"
    queue = "{queue}"
    max_messages = 4
    [parse]
    schema = "id STRING, user STRING, amount DOUBLE, at TIMESTAMP"
    [rejects]
    routing_key = "{queue}.rejected"
    [[steps]]
    name = "kept"
    sql = "SELECT * FROM input"
    [[sinks]]
    name = "table"
    path = "{path}/table"
"""
WATERMARK = f"""
    [watermark]
    column = "at"
    delay = "{DELAY} minutes"
"""
DEDUP = f"""
    [dedup]
    columns = ["id"]
    within = "{WITHIN} minutes"
"""
TUMBLING = f"""
    [windows]
    length = "{LENGTH} minutes"
"""
SESSIONS = f"""
    [windows]
    gap = "{GAP} minutes"
    by = ["user"]
"""
CHEAP = """
    [[expectations]]
    step = "kept"
    that = "amount < 90"
    reason = "is too dear"
"""


def at(minute: float) -> str:
    return (BEGINNING + timedelta(minutes=minute)).isoformat()


def event(key: str | None, minute: float | None, *, user: str = "u", amount: float = 1) -> bytes:
    value = {"id": key, "user": user, "amount": amount, "at": None if minute is None else at(minute)}
    return json.dumps(value).encode()


class Place:
    """A queue's name, one for rejects, a table, and a pipeline in between."""

    def __init__(self, spark: SparkSession, broker: Broker, path) -> None:
        self.spark = spark
        self.broker = broker
        self.queue = f"events{next(numbers)}"
        self.path = path
        for queue in (self.queue, f"{self.queue}.rejected"):
            publish(broker.url, queue, [])

    def declared(self, *tables: str, **replaced: str) -> Declaration:
        text = HEAD.format(queue=self.queue, path=self.path, url=self.broker.url) + "".join(tables)
        for old, new in replaced.items():
            text = text.replace(old, new)
        found = parse(text, file="pipeline.toml")
        check(found)
        return found

    def messages(self, declared: Declaration, bodies: list[bytes], first: int) -> DataFrame:
        """As the source gives them."""
        options = SourceOptions.parse({**source_options(declared), "includeProperties": "true"})
        schema = schema_of(options)
        known = dict.fromkeys(schema.names) | {"queue": self.queue, "partition": 0, "enqueued_at": BEGINNING}
        rows = [{**known, "offset": first + number, "body": body} for number, body in enumerate(bodies)]
        return self.spark.createDataFrame([tuple(row[name] for name in schema.names) for row in rows], schema)

    def table(self) -> dict[int, tuple[datetime, datetime] | None]:
        """Offsets, with their windows."""
        rows = self.spark.read.parquet(f"{self.path}/table").collect()
        found = {row._offset: tuple(row._window) if "_window" in row else None for row in rows}
        assert len(found) == len(rows), "a message is in the table twice"
        return found

    def waiting(self, batch: int) -> set[int]:
        rows = self.spark.read.parquet(f"{self.path}/checkpoint/state/waiting/_batch={batch}").collect()
        return {row._message.offset for row in rows}

    def take_rejects(self) -> dict[int, tuple[str, str]]:
        """By offset: step and reason."""
        found = {}
        connection = pika.BlockingConnection(pika.URLParameters(self.broker.url))
        channel = connection.channel()
        while (got := channel.basic_get(f"{self.queue}.rejected", auto_ack=True))[0] is not None:
            headers = got[1].headers
            offset = int(headers["x-reject-offset"])
            assert offset not in found, "a message is rejected twice"
            found[offset] = (headers["x-reject-step"], headers["x-reject-reason"])
        connection.close()
        return found


@pytest.fixture
def place(spark, leveret, tmp_path) -> Place:
    return Place(spark, leveret, tmp_path)


# every message ends in one place


@dataclass
class Model:
    """What must become of each message, one after the other."""

    sessions: bool
    rejects_duplicates: bool
    clock: float = float("-inf")
    seen: dict[str, float] = field(default_factory=dict)
    taken: dict[str, int] = field(default_factory=dict)
    waiting: dict[int, dict] = field(default_factory=dict)
    table: dict[int, tuple[float, float]] = field(default_factory=dict)
    rejected: dict[int, str] = field(default_factory=dict)
    dropped: dict[int, int] = field(default_factory=dict)
    """Duplicates, and the message that was taken in their place."""

    def batch(self, first: int, events: list[dict]) -> None:
        taken = {offset: e for offset, e in enumerate(events, first) if self.is_taken(offset, e)}
        self.waiting |= taken
        self.clock = max([self.clock, *(e["minute"] - DELAY for e in taken.values())])
        for offset, window in self.windows().items():
            if window[1] <= self.clock:
                self.close(offset, window)
        for offset in [o for o, of in self.dropped.items() if o >= first and self.rejected.get(of) == "kept"]:
            del self.dropped[offset]
            self.rejected[offset] = "dedup"
        for key in [key for key, minute in self.seen.items() if minute + WITHIN <= self.clock]:
            del self.seen[key]

    def is_taken(self, offset: int, event: dict) -> bool:
        key, minute = event["key"], event["minute"]
        if minute is None or minute < self.clock:
            self.rejected[offset] = "watermark"
            return False
        if key is None:
            self.rejected[offset] = "dedup"
            return False
        again = key in self.seen and minute < self.seen[key] + WITHIN
        self.seen[key] = max(minute, self.seen.get(key, minute))
        if not again:
            self.taken[key] = offset
            return True
        if self.rejects_duplicates:
            self.rejected[offset] = "dedup"
        else:
            self.dropped[offset] = self.taken[key]
        return False

    def windows(self) -> dict[int, tuple[float, float]]:
        if not self.sessions:
            starts = {offset: event["minute"] // LENGTH * LENGTH for offset, event in self.waiting.items()}
            return {offset: (start, start + LENGTH) for offset, start in starts.items()}
        found = {}
        for user in {event["user"] for event in self.waiting.values()}:
            mine = sorted((e["minute"], offset) for offset, e in self.waiting.items() if e["user"] == user)
            session: list[tuple[float, int]] = []
            for minute, offset in [*mine, (float("inf"), -1)]:
                if session and minute - session[-1][0] >= GAP:
                    found |= dict.fromkeys([o for _, o in session], (session[0][0], session[-1][0] + GAP))
                    session = []
                session.append((minute, offset))
        return found

    def close(self, offset: int, window: tuple[float, float]) -> None:
        event = self.waiting.pop(offset)
        if event["amount"] < 90:
            self.table[offset] = window
            return
        self.rejected[offset] = "kept"
        if self.taken[event["key"]] == offset:
            self.seen.pop(event["key"], None)


def history(chance: random.Random) -> list[list[dict]]:
    """Batches of events: mostly in order, some late, some twice, some of no use."""
    found, now = [], 0.0
    for _ in range(4):
        batch = []
        for _ in range(chance.randint(8, 25)):
            now += chance.choice((0, 0.5, 1, 4))
            minute = now - chance.choice((0, 0, 2, 9, 14)) if chance.random() < 0.97 else None
            key = f"k{chance.randint(0, 30)}" if chance.random() < 0.97 else None
            amount = chance.choice((1, 50, 95)) if chance.random() < 0.3 else 1
            batch.append({"key": key, "minute": minute, "user": chance.choice("abc"), "amount": amount})
        found.append(batch)
    return found


DEATHS = (
    (batches.sinks, "write"),
    (StateStore, "write"),
    (batches.rejects, "publish"),
    (batches.rejects, "settle"),
)
"""What batches have just done when they die, one after the other."""


class PulledPlug(Exception):
    """A batch dies."""


def dying(original: Callable[..., object]) -> Callable[..., object]:
    def do_and_die(*given: object) -> object:
        original(*given)
        raise PulledPlug

    return do_and_die


@pytest.mark.full
@pytest.mark.parametrize(
    ("windows", "duplicates", "deaths"),
    [
        pytest.param(TUMBLING, "drop", [None] * 4, id="windows of a length"),
        pytest.param(SESSIONS, "reject", DEATHS, id="sessions, and batches that run again"),
    ],
)
def test_each_message_ends_in_one_place(place, windows, duplicates, deaths):
    """In the table in its window, among the rejects, as a duplicate, or waiting: as the model says."""
    declared = place.declared(WATERMARK, DEDUP, f'duplicates = "{duplicates}"', windows, CHEAP)
    model = Model(windows is SESSIONS, duplicates == "reject")
    first, dropped, account = 0, 0, Batches(declared)
    for number, (events, death) in enumerate(zip(history(random.Random(6)), deaths, strict=True)):
        frame = place.messages(declared, [event(e["key"], e["minute"], **_rest(e)) for e in events], first)
        if death is not None:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(*death, dying(getattr(*death)))
                with pytest.raises(PulledPlug):
                    Batches(declared)(frame, number)
            if death[1] == "settle":  # what is settled does not come again
                parts = recorded_rejects.read(declared, number).parts
                settled = [offset for part in parts for *_, offset in part.messages()]
                frame = frame.where(~frame["offset"].isin(settled))
        account = Batches(declared)
        account(frame, number)
        dropped += account.duplicates
        model.batch(first, events)
        first += len(events)
    moments = {
        offset: tuple((BEGINNING + timedelta(minutes=minute)).replace(tzinfo=None) for minute in window)
        for offset, window in model.table.items()
    }
    assert place.table() == moments
    assert place.waiting(number) == set(model.waiting)
    assert {offset: step for offset, (step, _) in place.take_rejects().items()} == model.rejected
    assert (dropped, account.waiting) == (len(model.dropped), len(model.waiting))
    fates = [*model.table, *model.waiting, *model.rejected, *model.dropped]
    assert sorted(fates) == list(range(first))
    assert all((model.table, model.waiting, model.rejected)), "a history in which too little happens"


def _rest(event: dict) -> dict:
    return {"user": event["user"], "amount": event["amount"]}


@pytest.mark.full
def test_rows_wait_for_their_window_and_late_ones_are_rejected_across_runs(place):
    """With the source: three batches, a run that ends, and another one that closes the windows."""
    declared = place.declared(WATERMARK, DEDUP, TUMBLING, CHEAP)

    def run(bodies: list[bytes]) -> Status:
        publish(place.broker.url, place.queue, bodies)
        query, account = running.start(place.spark, declared, once=True)
        query.awaitTermination()
        assert (place.broker.depth(place.queue), place.broker.unacked(place.queue)) == (0, 0)
        return running.progressed(Status.first(declared.name), query, account)

    early = [event("a", 1), event("b", 2, amount=99), event("a", 3), event("c", 14)]
    status = run([*early, event("d", 31), event("e", 16), event("f", 20), event("g", 22)])
    assert (status.duplicates, status.in_windows, status.rejected, status.acked) == (1, 4, 1, 8)
    assert place.take_rejects() == {1: ("kept", "is too dear")}
    status = run([event("h", 14), event("b", 21, amount=5), event("i", 40)])
    assert (status.duplicates, status.in_windows, status.rejected, status.acked) == (0, 2, 1, 2)
    late = "is late: 2026-01-01 00:14:00 is before the watermark 2026-01-01 00:21:00"
    assert place.take_rejects() == {8: ("watermark", late)}
    assert sorted(place.table()) == [0, 3, 5, 6, 7, 9]
    notes = (place.path / "checkpoint/state/notes").iterdir()
    assert sorted(note.name for note in notes) == ["1.json", "2.json"]
    with pytest.raises(BadPipeline, match="is missing, and 2 rows of the checkpoint wait in windows"):
        running.start(place.spark, place.declared(WATERMARK, DEDUP))
    with pytest.raises(SparkSideError, match="is of batch 2, and Spark begins with 0"):
        StateStore(declared).before(place.spark, 0)


# on bodies, without a broker


def tried(place: Place, bodies: list[bytes], *tables: str):
    return Pipeline(place.declared(*tables)).try_out(place.spark, bodies)


def test_a_key_is_remembered_for_a_while_after_it_was_last_seen(place):
    minutes = [0, 15, 30, 60, 5]
    found = tried(place, [event("a", minute) for minute in minutes], WATERMARK, DEDUP)
    assert [row._message.offset for row in found.steps["kept"]] == [0, 3]
    assert sorted(row._message.offset for row in found.duplicates) == [1, 2, 4]
    assert found.rejected == []


def test_duplicates_can_be_rejected_and_keys_be_of_the_message(place):
    columns = DEDUP.replace('["id"]', '["_message.routing_key", "user"]') + 'duplicates = "reject"'
    bodies = [event("a", 0), event("b", 0, user="v"), event("c", 0), event("d", 0, user=None)]
    found = tried(place, bodies, columns)
    assert [row._message.offset for row in found.steps["kept"]] == [0, 1]
    said = {row.headers["x-reject-offset"]: row.headers["x-reject-reason"] for row in found.rejected}
    assert said == {"2": f"is a duplicate of offset 0 of {place.queue}", "3": "is null or missing"}
    assert found.duplicates == []


def test_sessions_end_when_nothing_came_for_the_gap(place):
    minutes = [0, 5, 10.9, 17, 30, 40]
    found = tried(place, [event(str(each), each) for each in minutes], WATERMARK, SESSIONS)
    windows = {row.id: [str(moment)[11:16] for moment in row._window] for row in found.steps["input"]}
    first = ["00:00", "00:16"]
    assert windows == {"0": first, "5": first, "10.9": first, "17": ["00:17", "00:23"]}
    assert sorted(row.id for row in found.waiting) == ["30", "40"]


def test_a_time_that_can_not_be_is_rejected(place):
    wrong = datetime.now(UTC) + timedelta(hours=2)
    bodies = [event("a", 0), event("b", (wrong - BEGINNING).total_seconds() / 60), event("c", None)]
    found = tried(place, bodies, WATERMARK + 'max_ahead = "1 hour"')
    assert [row.id for row in found.steps["kept"]] == ["a"]
    reasons = [row.headers["x-reject-reason"] for row in found.rejected]
    assert reasons[0].startswith(f"is ahead of its time: {wrong.date()}")
    assert reasons[1] == "is null or missing"
    texts = [event("a", 0, user="soon"), event("b", 0, user=at(0))]
    found = tried(place, texts, WATERMARK.replace('"at"', '"user"'))
    assert [row.headers["x-reject-reason"] for row in found.rejected] == ["is not a time"]


def test_what_was_judged_is_what_is_written(place, monkeypatch):
    """Though a file has changed in between that a step looks at."""
    known, write = place.path / "known.csv", batches.sinks.write
    known.write_text("a")

    def write_later(*given: object) -> None:
        known.write_text("b")
        write(*given)

    monkeypatch.setattr(batches.sinks, "write", write_later)
    sql = f"SELECT input.*, _c0 IS NOT NULL AS is_known FROM input LEFT JOIN csv.`{known}` ON id = _c0"
    expected = CHEAP.replace("amount < 90", "is_known")
    declared = place.declared(expected, **{"SELECT * FROM input": sql})
    Batches(declared)(place.messages(declared, [event("a", 1), event("b", 1)], 0), 0)
    assert (set(place.table()), set(place.take_rejects())) == ({0}, {1})


# in one pass


@pytest.mark.parametrize(("where", "kept"), [("amount > 1", [2, 3]), ("1 = 0", [])])
def test_a_plain_pipeline_counts_while_it_writes(place, where, kept):
    """Also where Spark finds out that no row is left, and counts none."""
    declared = place.declared(**{"SELECT * FROM input": f"SELECT * FROM input WHERE {where}"})
    account = Batches(declared)
    bodies = [event("a", 1), b"nonsense", event("b", 1, amount=2), event("c", 1, amount=3)]
    for number in range(2):
        account(place.messages(declared, bodies, 4 * number), number)
        assert (account.counts.messages, account.counts.rejected) == (4 * number + 4, number + 1)
    assert sorted(place.table()) == [offset + first for first in (0, 4) for offset in kept]
    assert set(place.take_rejects()) == {1, 5}


@pytest.mark.full
def test_a_duplicate_of_a_row_that_a_step_rejects_is_rejected_with_it(place):
    bodies = [event("a", 0, amount=95), event("a", 1, amount=1), event("b", 0), event("b", 1)]
    found = tried(place, bodies, DEDUP, CHEAP)
    assert [row._message.offset for row in found.steps["kept"]] == [2]
    said = {row.headers["x-reject-offset"]: row.headers["x-reject-reason"] for row in found.rejected}
    assert said == {"0": "is too dear", "1": "is a duplicate of offset 0, which is rejected"}
    assert [row._message.offset for row in found.duplicates] == [3]
