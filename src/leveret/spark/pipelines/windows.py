"""Windows of time: the window that a row belongs to, and whether it is closed.

Rows wait until the watermark has passed the end of their window. A later row of that window would be late: so
the window is complete, and its rows become `input` in one batch. Windows of a length begin at whole multiples
of it, counted from 1970 in UTC. Times of a session are less than the gap apart; it ends a gap after its last
time. A row exactly at the end of a window belongs to the next one.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from leveret.spark.pipelines import parsed_rows as parsing
from leveret.spark.pipelines.declaration import MESSAGE, Windows
from leveret.spark.pipelines.lateness import TIME, us_of

WINDOW: Final = "_window"
"""Column with the start and end of a row's window, as timestamps."""
_BY: Final = "_by"
_SESSION: Final = "_session"


def placed(rows: DataFrame, windows: Windows) -> DataFrame:
    """Add column `_window` to rows that have a `_time`."""
    if windows.length is not None:
        length_us = us_of(windows.length)
        start = F.col(TIME) - F.pmod(F.col(TIME), F.lit(length_us))
        return rows.withColumn(WINDOW, _window(start, start + length_us))
    assert windows.gap is not None
    return _in_sessions(rows, windows.by, us_of(windows.gap))


def _in_sessions(rows: DataFrame, by: list[str], gap_us: int) -> DataFrame:
    owner = F.struct(*(parsing.named(name).alias(f"by_{number}") for number, name in enumerate(by)))
    order = Window.partitionBy(_BY).orderBy(TIME, f"{MESSAGE}.partition", f"{MESSAGE}.offset")
    begins = F.coalesce(F.col(TIME) - F.lag(TIME).over(order) >= gap_us, F.lit(True))
    rows = rows.withColumn(_BY, owner).withColumn(_SESSION, begins.cast("int"))
    rows = rows.withColumn(_SESSION, F.sum(_SESSION).over(order))
    session = Window.partitionBy(_BY, _SESSION)
    window = _window(F.min(TIME).over(session), F.max(TIME).over(session) + gap_us)
    return rows.withColumn(WINDOW, window).drop(_BY, _SESSION)


def closed(clock_us: int | None) -> Column:
    """Whether the watermark has passed the end of a row's window."""
    if clock_us is None:
        return F.lit(False)
    return F.coalesce(F.unix_micros(f"{WINDOW}.end") <= clock_us, F.lit(False))


def _window(start_us: Column, end_us: Column) -> Column:
    return F.struct(
        F.timestamp_micros(start_us).alias("start"),
        F.timestamp_micros(end_us).alias("end"),
    )
