"""Queries over the table of messages in SQL, and their results as findings.

Each query scans only the columns that it needs. Lists are cut to `Terms.most` entries. The complete lists are
in the table of messages, which users can query themselves.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

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
_PLACE: Final = "vhost, queue, reader"
_STRETCHES_WANTED: Final = 60
_STRETCH_LENGTHS_S: Final = (
    *(0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30),
    *(60, 120, 300, 600, 900, 1800),
    *(3600, 7200, 21_600, 43_200, 86_400),
)
"""Lengths that a stretch of time may have."""
_ACKED: Final = "acked"
_SAFE: Final = "reader = '' AND persistent"
"""The message was on disk: the journal notes it, or the log has it and the note is gone or came too late."""
_CONSUMED: Final = """(outcome IN ('acked', 'rejected', 'sent to rejects', 'skipped')
    OR (outcome = 'dead lettered' AND deliveries > 0))"""
"""A consumer has reached the message. It did not expire, and was not dropped to keep a limit."""
_PREFETCHES: Final = r"settled_by NOT LIKE 'query %' AND settled_by NOT RLIKE ' \\([0-9]+\\) $'"
"""The consumer has a prefetch: it is no query and no `basic.get`, which has no tag."""
_ADVICE_MESSAGES_MIN: Final = 20
"""Messages that a consumer must have settled to get advice."""
_COUNT_ALL: Final = "count(*) OVER ()"
"""The number of rows before a list is cut."""
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
"""The name of all consumers that are not shown by name."""
Node = tuple[str, str]
"""A kind and a name, as in `Flow`."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Parameters of an audit."""

    loop: int = 5
    """Deliveries of one message that make a redelivery loop."""
    most: int = 1000
    """Entries that a list has at most."""
    round_trip_ms: float = 1.0
    """The assumed round trip to consumers whose connection is closed."""
    table: str | None = None
    """The path of a pipeline's table with columns `_queue`, `_partition`, `_offset`."""
    format: str = "parquet"


def pipeline_table(spark: SparkSession, terms: Terms) -> DataFrame | None:
    """Return the pipeline's table if the audit has one; raise `NothingToAudit` if its columns are missing."""
    if terms.table is None:
        return None
    table = read_table(spark, terms.table, terms.format)
    check_columns(terms.table, table.columns)
    return table


def create_view(messages: DataFrame) -> None:
    """Make the table of messages available to the queries, with the names of consumers."""
    messages.withColumn("consumer", named(F.col("delivered_to"))).createOrReplaceTempView(VIEW)


def by_exchange(returned: DataFrame, case: Case) -> dict[tuple[str, str], int]:
    """Return how many messages went back to their publishers, by virtual host and exchange."""
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
    pipeline_table: DataFrame | None,
    began_s: float,
) -> Findings:
    """Return everything that the queries find in the table of messages at `path`."""
    create_view(spark.read.parquet(path))
    stretch_s = _stretch(spark)
    in_table, in_table_count = ([], 0) if pipeline_table is None else _doubled_in_table(pipeline_table, terms)
    loops, loops_count = _loops(spark, terms)
    first_holes, holes_count = holes(spark, terms)
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
        holes=first_holes,
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
        SELECT {_PLACE}, outcome, count(*) AS published, count_if({_SAFE}) AS confirmed,
               count_if(deliveries > 0) AS delivered, sum(deliveries) AS deliveries, sum(returns) AS returns,
               sum(late) AS late, count_if(state = 'settled') AS settled, count_if(state = 'ready') AS ready,
               count_if(state = 'in flight') AS in_flight, count_if(state = 'lost') AS lost,
               count_if(done > 1 OR copies > 1) AS doubled, count_if(state = 'gone') AS gone
        FROM {VIEW} GROUP BY {_PLACE}, outcome""").collect()
    by_place: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        by_place.setdefault((row.vhost, row.queue, row.reader), []).append(row)
    accounts = []
    for log in case.logs:
        for reader in log.readers:
            own = by_place.get((log.vhost, log.queue, reader.name), [])
            counts = {name: sum(row[name] for row in own) for name in _COUNTS}
            outcomes = {row.outcome: row.settled for row in own if row.settled}
            accounts.append(
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
    return sorted(accounts, key=lambda account: (account.vhost, account.queue, account.reader))


def _lost(spark: SparkSession, terms: Terms) -> list[MessageFound]:
    rows = spark.sql(
        f"SELECT * FROM {VIEW} WHERE state = 'lost' ORDER BY {_PLACE}, offset LIMIT {terms.most}"
    )
    return [_message(row, "lost") for row in rows.collect()]


def _doubled(spark: SparkSession, terms: Terms) -> list[MessageFound]:
    rows = spark.sql(f"""
        SELECT * FROM {VIEW} WHERE done > 1 OR copies > 1 ORDER BY {_PLACE}, offset LIMIT {terms.most}""")
    return [
        _message(
            row,
            f"settled as done {row.done} times" if row.done > 1 else f"in the log {row.copies} times",
        )
        for row in rows.collect()
    ]


def _doubled_in_table(pipeline_table: DataFrame, terms: Terms) -> tuple[list[MessageFound], int]:
    """Return the first messages that a pipeline's table has more than once, and the number of all of them."""
    doubled = pipeline_table.groupBy(*IDENTITY).count().where("count > 1")
    rows, count = _cut(doubled.withColumn("all", F.expr(_COUNT_ALL)).orderBy(*IDENTITY).limit(terms.most))
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


def _cut(limited: DataFrame) -> tuple[list[Row], int]:
    """Return the rows of a list that was cut, and its full length from the column `all`."""
    rows = limited.collect()
    return rows, rows[0]["all"] if rows else 0


def _by_exchange_alone(returned: dict[tuple[str, str], int]) -> dict[str, int]:
    by_exchange: Counter[str] = Counter()
    for (_, exchange), count in returned.items():
        by_exchange[exchange] += count
    return dict(by_exchange)


def _loops(spark: SparkSession, terms: Terms) -> tuple[list[MessageFound], int]:
    """Return the messages with most deliveries, and the number of all that were delivered often."""
    limited = spark.sql(f"""
        SELECT *, {_COUNT_ALL} AS all FROM {VIEW} WHERE deliveries >= {terms.loop}
        ORDER BY deliveries DESC, {_PLACE}, offset LIMIT {terms.most}""")
    rows, count = _cut(limited)
    return [_message(row, f"delivered {row.deliveries} times") for row in rows], count


def _place(row: Row) -> dict[str, Any]:
    return {"vhost": row.vhost, "queue": row.queue, "reader": row.reader}


def _message(row: Row, what: str) -> MessageFound:
    return MessageFound(
        **_place(row),
        offset=row.offset,
        what=what,
        published=_aware(row.published),
        delivered_to=row.delivered_to or "",
        settled=_aware(row.settled),
        outcome=row.outcome or "",
    )


def _aware(time: datetime | None) -> datetime | None:
    """Return a time with its zone: Spark returns local times without one."""
    return None if time is None else time.astimezone(UTC)


def holes(spark: SparkSession, terms: Terms) -> tuple[list[Hole], int]:
    """Return the first holes, and the number of all holes."""
    limited = spark.sql(f"""
        WITH highest AS (
            SELECT {_PLACE}, max(offset) AS top FROM {VIEW} WHERE {_CONSUMED} GROUP BY {_PLACE}),
        open AS (
            SELECT m.*, CASE WHEN state = 'in flight' THEN delivered_to ELSE '' END AS held_by
            FROM {VIEW} m JOIN highest USING ({_PLACE})
            WHERE state IN ('ready', 'in flight') AND offset < top),
        islands AS (
            SELECT *, offset - row_number() OVER (
                PARTITION BY {_PLACE}, state, held_by ORDER BY offset) AS island
            FROM open)
        SELECT {_PLACE}, state, held_by, min(offset) AS start, max(offset) + 1 AS stop,
               min(last_delivered) AS since, max(deliveries) AS deliveries, {_COUNT_ALL} AS all
        FROM islands GROUP BY {_PLACE}, state, held_by, island ORDER BY {_PLACE}, start LIMIT {terms.most}""")
    rows, count = _cut(limited)
    return [
        Hole(
            **_place(row),
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
    """Return the length of the stretches of time, chosen so that there are about sixty of them."""
    span = spark.sql(f"SELECT min(unix_micros(published)), max(unix_micros(published)) FROM {VIEW}").first()
    if span is None or span[0] is None:
        return _STRETCH_LENGTHS_S[0]
    wanted_s = (span[1] - span[0]) / 1e6 / _STRETCHES_WANTED
    return next((length_s for length_s in _STRETCH_LENGTHS_S if length_s >= wanted_s), _STRETCH_LENGTHS_S[-1])


def _latencies(spark: SparkSession, stretch_s: float) -> list[Latency]:
    def percentiles(until: str) -> str:
        passed = f"(unix_micros({until}) - unix_micros(published)) / 1000.0D"
        return f"percentile_approx({passed}, array(0.5, 0.95, 0.99), 1000)"

    stretch_ms = round(stretch_s * 1000)
    rows = spark.sql(f"""
        SELECT {_PLACE}, timestamp_millis(unix_millis(published) div {stretch_ms} * {stretch_ms}) AS at,
               count(*) AS messages, {percentiles("confirmed")} AS confirm,
               {percentiles("first_delivered")} AS delivery, {percentiles("settled")} AS settle
        FROM {VIEW} WHERE published IS NOT NULL GROUP BY {_PLACE}, at ORDER BY {_PLACE}, at""")
    return [
        Latency(
            **_place(row),
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
        SELECT {_PLACE}, outcome, count(*) AS messages,
               coalesce(why, '') AS reason
        FROM {VIEW}
        WHERE outcome IN ('rejected', 'dead lettered', 'expired', 'dropped', 'sent to rejects', 'damaged')
        GROUP BY {_PLACE}, outcome, reason ORDER BY messages DESC, {_PLACE} LIMIT {terms.most}""")
    return [DeadLetters(**row.asDict()) for row in rows.collect()]


def _flows(spark: SparkSession, terms: Terms, returned: dict[tuple[str, str], int]) -> list[Flow]:
    """Return all flows, with the largest consumers by name and the others as one."""
    flows: Counter[tuple[str, Node, Node]] = Counter()
    for (vhost, exchange), count in returned.items():
        flows[vhost, ("exchange", exchange), ("returned", "publisher")] += count
    to_queues = spark.sql(f"""
        SELECT vhost, exchange, queue, count(*) AS n FROM {VIEW}
        WHERE reader = '' AND exchange IS NOT NULL GROUP BY ALL""")
    for row in to_queues.collect():
        flows[row.vhost, ("exchange", row.exchange), ("queue", row.queue)] += row.n
    from_queues = spark.sql(f"""
        WITH largest AS (
            SELECT consumer, consumer AS shown FROM {VIEW}
            WHERE consumer IS NOT NULL GROUP BY consumer ORDER BY count(*) DESC LIMIT {terms.most})
        SELECT {_PLACE}, if(consumer IS NULL, NULL, coalesce(shown, '{_OTHERS}')) AS taker,
               outcome AS ended, count(*) AS n
        FROM {VIEW} LEFT JOIN largest USING (consumer)
        WHERE consumer IS NOT NULL OR outcome IS NOT NULL GROUP BY ALL""")
    for row in from_queues.collect():
        source: Node = ("queue", row.queue)
        for kind, name in (("group", row.reader), ("consumer", row.taker), ("ended", row.ended)):
            if name:
                flows[row.vhost, source, (kind, name)] += row.n
                source = (kind, name)
    return [
        Flow(
            vhost=vhost,
            from_kind=begin[0],
            from_name=begin[1],
            to_kind=end[0],
            to_name=end[1],
            messages=count,
        )
        for (vhost, begin, end), count in flows.most_common()
    ]


def advice_for_consumers(spark: SparkSession, case: Case, terms: Terms) -> list[Advice]:
    """Return advice for the consumers that settle their own deliveries: others have no prefetch."""
    held = "(unix_micros(settled) - unix_micros(last_delivered)) / 1000.0D"
    waited = "(unix_micros(first_delivered) - unix_micros(published)) / 1000.0D"
    rows = spark.sql(f"""
        SELECT {_PLACE}, consumer, max_by(delivered_to, settled) AS label, count(*) AS n,
               sum({held}) AS held_ms,
               percentile_approx({held}, array(0.01, 0.5, 0.95), 1000) AS hold,
               percentile_approx({waited}, 0.5, 1000) AS waited,
               count(DISTINCT unix_millis(settled) div 100) / 10.0D AS busy_s
        FROM {VIEW} WHERE outcome = '{_ACKED}' AND settled_by = delivered_to AND {_PREFETCHES}
        GROUP BY {_PLACE}, consumer HAVING n >= {_ADVICE_MESSAGES_MIN} ORDER BY n DESC LIMIT {terms.most}""")
    return [_advised(row, case, terms) for row in rows.collect()]


def _advised(row: Row, case: Case, terms: Terms) -> Advice:
    measured = case.round_trip_ms(row.label)
    round_trip_ms = terms.round_trip_ms if measured is None else measured
    hold_ms = (row.hold[0], row.hold[1], row.hold[2])
    rate, in_flight = row.n / row.busy_s, row.held_ms / 1000 / row.busy_s
    observed = advice.Observed(
        rate=rate,
        hold_ms=hold_ms,
        waited_ms=row.waited or 0.0,
        in_flight=in_flight,
        round_trip_ms=round_trip_ms,
        measured=measured is not None,
    )
    suggestion = advice.suggest(observed)
    return Advice(
        **_place(row),
        consumer=row.consumer,
        messages=row.n,
        rate=rate,
        hold_ms=hold_ms,
        work_ms=suggestion.work_ms,
        round_trip_ms=round_trip_ms,
        round_trip_measured=measured is not None,
        in_flight=in_flight,
        prefetch=suggestion.prefetch,
        gain=suggestion.gain,
        why=suggestion.why,
    )
