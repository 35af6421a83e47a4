"""The time of a row, and the watermark: rows with an earlier time are late.

A batch is judged by the watermark after the batch before it. The next watermark is the latest time of its
good rows, less the delay. So a row is never late because of its own batch, and a batch that runs again is
judged as before. A late row is rejected with a reason. Without a watermark the time of a row is when the
broker got its message, and no row is late. Times are in microseconds.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from leveret.spark import option_values
from leveret.spark.pipelines import parsed_rows as parsing
from leveret.spark.pipelines.declaration import MESSAGE, Watermark

TIME: Final = "_time"
"""Column of a row's time in microseconds."""
STEP: Final = "watermark"
_ENQUEUED: Final = f"{MESSAGE}.enqueued_at"


def us_of(duration: str) -> int:
    return round(option_values.duration(duration) * 1_000_000)


def timed(rows: DataFrame, watermark: Watermark | None) -> DataFrame:
    """Add column `_time`; null where the row has no time."""
    given = F.col(_ENQUEUED) if watermark is None else parsing.named(watermark.column)
    return rows.withColumn(TIME, F.unix_micros(given.try_cast("timestamp")))


def judged(rows: DataFrame, watermark: Watermark | None, clock_us: int | None) -> DataFrame:
    """Set `_reject` where a row has no time, is late, or is too far ahead; set its `_time` to null."""
    if watermark is None:
        return rows
    time, column = F.col(TIME), watermark.column

    def when(condition: Column, why: str | Column) -> Column:
        return F.when(condition, parsing.reason(STEP, column, why))

    reasons = [
        when(parsing.named(column).isNull(), "is null or missing"),
        when(time.isNull(), "is not a time"),
    ]
    if watermark.max_ahead is not None:
        ahead = time > F.unix_micros(_ENQUEUED) + us_of(watermark.max_ahead)
        why = F.concat(F.lit("is ahead of its time: "), _shown(time), F.lit(" came at "), F.col(_ENQUEUED))
        reasons.append(when(ahead, why))
    if clock_us is not None:
        before = F.concat(F.lit(" is before the watermark "), _shown(F.lit(clock_us)))
        reasons.append(when(time < clock_us, F.concat(F.lit("is late: "), _shown(time), before)))
    rows = parsing.rejected(rows, *reasons)
    return rows.withColumn(TIME, F.when(F.col(parsing.REJECT).isNull(), time))


def clock_after(before_us: int | None, latest_us: int | None, watermark: Watermark | None) -> int | None:
    """Return the watermark after a batch; it never goes back. Without one, the latest time at the broker."""
    if latest_us is None:
        return before_us
    reached_us = latest_us if watermark is None else latest_us - us_of(watermark.delay)
    return reached_us if before_us is None else max(before_us, reached_us)


def _shown(time_us: Column) -> Column:
    return F.timestamp_micros(time_us).cast("string")
