"""Questions to the table of messages, in SQL, and their answers as findings.

Each question is one scan of the columns that it needs. Lists are cut: the whole is in the table, which
anybody can ask.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from leveret.audit import advice
from leveret.audit.consumer_names import named
from leveret.audit.evidence import Case
from leveret.audit.findings import (
    Advice,
    DeadLetters,
    Findings,
    Flow,
    Hole,
    Latency,
    MessageFound,
    QueueAccount,
)
from leveret.audit.output_directory import IDENTITY, check_columns
from leveret.spark.pipelines.tables import read as read_table
from leveret.storage.message_events import Event

VIEW: Final = "leveret_messages"
_NAMED: Final = "vhost, queue, reader"
_STRETCHES: Final = 60
_ROUND_S: Final = (
    0.1,
    0.2,
    0.5,
    1,
    2,
    5,
    10,
    15,
    30,
    60,
    120,
    300,
    600,
    900,
    1800,
    3600,
    7200,
    21_600,
    43_200,
    86_400,
)
_ACKED: Final = "acked"
_SAFE: Final = "reader = '' AND persistent"
"""It was on disk: somebody has noted it, or it is there now (and the note gone, or not made in time)."""
_CONSUMED: Final = """(outcome IN ('acked', 'rejected', 'sent to rejects', 'skipped')
    OR (outcome = 'dead lettered' AND deliveries > 0))"""
"""Somebody has come so far: it did not end by itself, or to keep a limit, while nobody read."""
_PREFETCHES: Final = r"settled_by NOT LIKE 'query %' AND settled_by NOT RLIKE ' \\([0-9]+\\) $'"
"""Not a query, nor `basic.get`, which has no tag; where nobody acks, `settled_by` is empty."""
_ENOUGH: Final = 20
"""Of a consumer that has settled fewer messages nothing can be said."""
_ALL: Final = "count(*) OVER ()"
_COUNTS: Final = (
    "published",
    "confirmed",
    "delivered",
    "deliveries",
    "returns",
    "late",
    "ready",
    "in_flight",
    "lost",
    "doubled",
    "gone",
)
_OTHERS: Final = "others"
"""Consumers that are not shown by name."""
Node = tuple[str, str]
"""What kind of thing it is, and its name."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What counts as what."""

    loop: int = 5
    """So many deliveries of one message are a loop."""
    most: int = 1000
    """So many are listed by name."""
    round_trip_ms: float = 1.0
    """What is assumed of consumers whose connection is not open any more."""
    table: str | None = None
    """Where a pipeline has written, with columns `_queue`, `_partition`, `_offset`."""
    format: str = "parquet"


def opened(spark: SparkSession, terms: Terms) -> DataFrame | None:
    """What a pipeline has written, if that is to be looked at; raises if it can't be."""
    if terms.table is None:
        return None
    written = read_table(spark, terms.table, terms.format)
    check_columns(terms.table, written.columns)
    return written


def show(messages: DataFrame) -> None:
    """Make the table of messages known to the questions, with the names of consumers."""
    messages.withColumn("consumer", named(F.col("delivered_to"))).createOrReplaceTempView(VIEW)


def by_exchange(returned: DataFrame, case: Case) -> dict[tuple[str, str], int]:
    """Messages that went back to their publishers, by virtual host and exchange."""
    published = returned.where(f"event = {int(Event.PUBLISHED)}")
    count = F.sum(F.col("stop") - F.col("start")).alias("messages")
    rows = published.groupBy("log", "why").agg(count).collect()
    return {(case.returned[row.log], row.why): row.messages for row in rows}


def findings(
    spark: SparkSession,
    case: Case,
    path: str,
    terms: Terms,
    damage: Sequence[str],
    returned: dict[tuple[str, str], int],
    *,
    written: DataFrame | None,
    began_s: float,
) -> Findings:
    show(spark.read.parquet(path))
    stretch_s = _stretch(spark)
    in_table, in_table_count = ([], 0) if written is None else _doubled_in_table(written, terms)
    loops, loops_count = _loops(spark, terms)
    found, holes_count = holes(spark, terms)
    return Findings(
        source=case.described,
        taken=case.taken,
        stretch_s=stretch_s,
        queues=_queues(spark, case),
        returned=_by_exchange_alone(returned),
        lost=_lost(spark, terms),
        doubled=_doubled(spark, terms) + in_table,
        doubled_in_table=in_table_count,
        loops=loops,
        loops_count=loops_count,
        holes=found,
        holes_count=holes_count,
        latencies=_latencies(spark, stretch_s),
        dead_letters=_dead_letters(spark, terms),
        flows=_flows(spark, terms, returned),
        advice=advice_for_consumers(spark, case, terms),
        damage=list(damage),
        table=path,
        took_s=time.monotonic() - began_s,
    )


def _queues(spark: SparkSession, case: Case) -> list[QueueAccount]:
    rows = spark.sql(f"""
        SELECT {_NAMED}, outcome, count(*) AS published, count_if({_SAFE}) AS confirmed,
               count_if(deliveries > 0) AS delivered, sum(deliveries) AS deliveries, sum(returns) AS returns,
               sum(late) AS late, count_if(state = 'settled') AS settled, count_if(state = 'ready') AS ready,
               count_if(state = 'in flight') AS in_flight, count_if(state = 'lost') AS lost,
               count_if(done > 1 OR copies > 1) AS doubled, count_if(state = 'gone') AS gone
        FROM {VIEW} GROUP BY {_NAMED}, outcome""").collect()
    by_name: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        by_name.setdefault((row.vhost, row.queue, row.reader), []).append(row)
    found = []
    for log in case.logs:
        for reader in log.readers:
            mine = by_name.get((log.vhost, log.queue, reader.name), [])
            counts = {name: sum(row[name] for row in mine) for name in _COUNTS}
            outcomes = {row.outcome: row.settled for row in mine if row.settled}
            found.append(
                QueueAccount(
                    vhost=log.vhost,
                    queue=log.queue,
                    reader=reader.name,
                    audited=reader.audited,
                    stream=log.stream,
                    outcomes=dict(sorted(outcomes.items())),
                    **counts,
                )
            )
    return sorted(found, key=lambda each: (each.vhost, each.queue, each.reader))


def _lost(spark: SparkSession, terms: Terms) -> list[MessageFound]:
    rows = spark.sql(
        f"SELECT * FROM {VIEW} WHERE state = 'lost' ORDER BY {_NAMED}, offset LIMIT {terms.most}"
    )
    return [_message(row, "lost") for row in rows.collect()]


def _doubled(spark: SparkSession, terms: Terms) -> list[MessageFound]:
    rows = spark.sql(f"""
        SELECT * FROM {VIEW} WHERE done > 1 OR copies > 1 ORDER BY {_NAMED}, offset LIMIT {terms.most}""")
    return [
        _message(
            row,
            f"settled as done {row.done} times" if row.done > 1 else f"in the log {row.copies} times",
        )
        for row in rows.collect()
    ]


def _doubled_in_table(written: DataFrame, terms: Terms) -> tuple[list[MessageFound], int]:
    """Return the first messages that the table has twice, and the number of all of them."""
    doubled = written.groupBy(*IDENTITY).count().where("count > 1")
    rows, count = _some(doubled.withColumn("all", F.expr(_ALL)).orderBy(*IDENTITY).limit(terms.most))
    return [
        MessageFound(
            vhost="",
            queue=row["_queue"],
            reader="",
            offset=row["_offset"],
            what=f"in the table {row['count']} times",
        )
        for row in rows
    ], count


def _some(cut: DataFrame) -> tuple[list[Row], int]:
    """What is left of a list that was cut, and how many were in it, which its column `all` says."""
    rows = cut.collect()
    return rows, rows[0]["all"] if rows else 0


def _by_exchange_alone(returned: dict[tuple[str, str], int]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for (_, exchange), count in returned.items():
        found[exchange] += count
    return dict(found)


def _loops(spark: SparkSession, terms: Terms) -> tuple[list[MessageFound], int]:
    """Those that came most often, and how many there are."""
    found = spark.sql(f"""
        SELECT *, {_ALL} AS all FROM {VIEW} WHERE deliveries >= {terms.loop}
        ORDER BY deliveries DESC, {_NAMED}, offset LIMIT {terms.most}""")
    rows, count = _some(found)
    return [_message(row, f"delivered {row.deliveries} times") for row in rows], count


def _message(row: Row, what: str) -> MessageFound:
    return MessageFound(
        vhost=row.vhost,
        queue=row.queue,
        reader=row.reader,
        offset=row.offset,
        what=what,
        published=_aware(row.published),
        delivered_to=row.delivered_to or "",
        settled=_aware(row.settled),
        outcome=row.outcome or "",
    )


def _aware(time: datetime | None) -> datetime | None:
    """Spark gives times without a zone, as they are here."""
    return None if time is None else time.astimezone(UTC)


def holes(spark: SparkSession, terms: Terms) -> tuple[list[Hole], int]:
    """Return the first holes, and the number of all."""
    found = spark.sql(f"""
        WITH highest AS (
            SELECT {_NAMED}, max(offset) AS top FROM {VIEW} WHERE {_CONSUMED} GROUP BY {_NAMED}),
        open AS (
            SELECT m.*, CASE WHEN state = 'in flight' THEN delivered_to ELSE '' END AS held_by
            FROM {VIEW} m JOIN highest USING ({_NAMED})
            WHERE state IN ('ready', 'in flight') AND offset < top),
        islands AS (
            SELECT *, offset - row_number() OVER (
                PARTITION BY {_NAMED}, state, held_by ORDER BY offset) AS island
            FROM open)
        SELECT {_NAMED}, state, held_by, min(offset) AS start, max(offset) + 1 AS stop,
               min(last_delivered) AS since, max(deliveries) AS deliveries, {_ALL} AS all
        FROM islands GROUP BY {_NAMED}, state, held_by, island ORDER BY {_NAMED}, start LIMIT {terms.most}""")
    rows, count = _some(found)
    return [
        Hole(
            vhost=row.vhost,
            queue=row.queue,
            reader=row.reader,
            start=row.start,
            stop=row.stop,
            state=row.state,
            held_by=row.held_by or "",
            since=_aware(row.since),
            deliveries=row.deliveries,
        )
        for row in rows
    ], count


def _stretch(spark: SparkSession) -> float:
    """So long that there are about sixty of them."""
    span = spark.sql(f"SELECT min(unix_micros(published)), max(unix_micros(published)) FROM {VIEW}").first()
    if span is None or span[0] is None:
        return _ROUND_S[0]
    wanted = (span[1] - span[0]) / 1e6 / _STRETCHES
    return next((each for each in _ROUND_S if each >= wanted), _ROUND_S[-1])


def _latencies(spark: SparkSession, stretch_s: float) -> list[Latency]:
    def percentiles(until: str) -> str:
        passed = f"(unix_micros({until}) - unix_micros(published)) / 1000.0D"
        return f"percentile_approx({passed}, array(0.5, 0.95, 0.99), 1000)"

    stretch_ms = round(stretch_s * 1000)
    rows = spark.sql(f"""
        SELECT {_NAMED}, timestamp_millis(unix_millis(published) div {stretch_ms} * {stretch_ms}) AS at,
               count(*) AS messages, {percentiles("confirmed")} AS confirm,
               {percentiles("first_delivered")} AS delivery, {percentiles("settled")} AS settle
        FROM {VIEW} WHERE published IS NOT NULL GROUP BY {_NAMED}, at ORDER BY {_NAMED}, at""")
    return [
        Latency(
            vhost=row.vhost,
            queue=row.queue,
            reader=row.reader,
            at=row["at"].astimezone(UTC),
            messages=row.messages,
            confirm_ms=_three(row.confirm),
            delivery_ms=_three(row.delivery),
            settle_ms=_three(row.settle),
        )
        for row in rows.collect()
    ]


def _three(values: Sequence[float] | None) -> tuple[float | None, float | None, float | None]:
    return (None, None, None) if values is None else (values[0], values[1], values[2])


def _dead_letters(spark: SparkSession, terms: Terms) -> list[DeadLetters]:
    rows = spark.sql(f"""
        SELECT {_NAMED}, outcome, count(*) AS messages,
               coalesce(why, '') AS reason
        FROM {VIEW}
        WHERE outcome IN ('rejected', 'dead lettered', 'expired', 'dropped', 'sent to rejects', 'damaged')
        GROUP BY {_NAMED}, outcome, reason ORDER BY messages DESC, {_NAMED} LIMIT {terms.most}""")
    return [
        DeadLetters(
            vhost=row.vhost,
            queue=row.queue,
            reader=row.reader,
            outcome=row.outcome,
            reason=row.reason,
            messages=row.messages,
        )
        for row in rows.collect()
    ]


def _flows(spark: SparkSession, terms: Terms, returned: dict[tuple[str, str], int]) -> list[Flow]:
    """The largest consumers by name, and the others as one."""
    flows: Counter[tuple[str, Node, Node]] = Counter()
    for (vhost, exchange), count in returned.items():
        flows[vhost, ("exchange", exchange), ("returned", "publisher")] += count
    came = spark.sql(f"""
        SELECT vhost, exchange, queue, count(*) AS n FROM {VIEW}
        WHERE reader = '' AND exchange IS NOT NULL GROUP BY ALL""")
    for row in came.collect():
        flows[row.vhost, ("exchange", row.exchange), ("queue", row.queue)] += row.n
    went = spark.sql(f"""
        WITH largest AS (
            SELECT consumer, consumer AS shown FROM {VIEW}
            WHERE consumer IS NOT NULL GROUP BY consumer ORDER BY count(*) DESC LIMIT {terms.most})
        SELECT {_NAMED}, if(consumer IS NULL, NULL, coalesce(shown, '{_OTHERS}')) AS taker,
               outcome AS ended, count(*) AS n
        FROM {VIEW} LEFT JOIN largest USING (consumer)
        WHERE consumer IS NOT NULL OR outcome IS NOT NULL GROUP BY ALL""")
    for row in went.collect():
        at: Node = ("queue", row.queue)
        for kind, name in (("group", row.reader), ("consumer", row.taker), ("ended", row.ended)):
            if name:
                flows[row.vhost, at, (kind, name)] += row.n
                at = (kind, name)
    return [
        Flow(
            vhost=vhost,
            from_kind=source[0],
            from_name=source[1],
            to_kind=target[0],
            to_name=target[1],
            messages=count,
        )
        for (vhost, source, target), count in flows.most_common()
    ]


def advice_for_consumers(spark: SparkSession, case: Case, terms: Terms) -> list[Advice]:
    """For those that settle what they were sent: others have no prefetch."""
    held = "(unix_micros(settled) - unix_micros(last_delivered)) / 1000.0D"
    waited = "(unix_micros(first_delivered) - unix_micros(published)) / 1000.0D"
    rows = spark.sql(f"""
        SELECT {_NAMED}, consumer, max_by(delivered_to, settled) AS label, count(*) AS n,
               sum({held}) AS held_ms,
               percentile_approx({held}, array(0.01, 0.5, 0.95), 1000) AS hold,
               percentile_approx({waited}, 0.5, 1000) AS waited,
               count(DISTINCT unix_millis(settled) div 100) / 10.0D AS busy_s
        FROM {VIEW} WHERE outcome = '{_ACKED}' AND settled_by = delivered_to AND {_PREFETCHES}
        GROUP BY {_NAMED}, consumer HAVING n >= {_ENOUGH} ORDER BY n DESC LIMIT {terms.most}""")
    return [_advised(row, case, terms) for row in rows.collect()]


def _advised(row: Row, case: Case, terms: Terms) -> Advice:
    measured = case.round_trip_ms(row.label)
    round_trip_ms = terms.round_trip_ms if measured is None else measured
    hold_ms = (row.hold[0], row.hold[1], row.hold[2])
    rate, in_flight = row.n / row.busy_s, row.held_ms / 1000 / row.busy_s
    seen = advice.Observed(
        rate=rate,
        hold_ms=hold_ms,
        waited_ms=row.waited or 0.0,
        in_flight=in_flight,
        round_trip_ms=round_trip_ms,
        measured=measured is not None,
    )
    found = advice.suggest(seen)
    return Advice(
        vhost=row.vhost,
        queue=row.queue,
        reader=row.reader,
        consumer=row.consumer,
        messages=row.n,
        rate=rate,
        hold_ms=hold_ms,
        work_ms=found.work_ms,
        round_trip_ms=round_trip_ms,
        round_trip_measured=measured is not None,
        in_flight=in_flight,
        prefetch=found.prefetch,
        gain=found.gain,
        why=found.why,
    )
