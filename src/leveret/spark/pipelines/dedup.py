"""Rows that are there twice: found by their key, in their batch and among the keys that are remembered.

A row is a duplicate if its key was seen before, at a time that is less than `within` ago; before is a lower
(partition, offset). Rows that are rejected take no part: the corrected copy of one is no duplicate. What is
remembered is a table: the key, when it was last seen, and the message that was taken for it. Where it is kept
is `memory`'s. The rule: a key is forgotten only when no row that is still to come could be its duplicate.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from leveret.spark.pipelines import parsed_rows as parsing
from leveret.spark.pipelines.declaration import MESSAGE, Dedup
from leveret.spark.pipelines.lateness import TIME, us_of

KEY: Final = "_key"
"""Null where a row takes no part."""
DUPLICATE_OF: Final = "_duplicate_of"
"""Null, or which message was taken in its place."""
STEP: Final = "dedup"
_SEEN: Final = "_seen"
_TAKEN: Final = "_taken"
_BEFORE: Final = "_taken_before"
_IDENTITY: Final = "struct<partition: int, offset: bigint, queue: string>"


def marked(rows: DataFrame, dedup: Dedup, remembered: DataFrame | None) -> DataFrame:
    """With `_key` and `_duplicate_of`, and `_reject` where a key is null, or duplicates are rejected."""
    columns = [(name, parsing.named(name)) for name in dedup.columns]
    missing = [
        F.when(column.isNull(), parsing.reason(STEP, name, "is null or missing")) for name, column in columns
    ]
    timeless = "is null: this source does not say when a message came, so that dedup needs a [watermark]"
    missing.append(F.when(F.col(TIME).isNull(), parsing.reason(STEP, f"{MESSAGE}.enqueued_at", timeless)))
    key = F.struct(*(column.alias(f"key_{number}") for number, (_, column) in enumerate(columns)))
    rows = parsing.rejected(rows, *missing)
    rows = rows.withColumn(KEY, F.when(F.col(parsing.REJECT).isNull(), key))
    rows = _with_duplicates(rows, us_of(dedup.within), remembered)
    if dedup.duplicates == "drop":
        return rows
    of = F.col(DUPLICATE_OF)
    why = F.concat(F.lit("is a duplicate of offset "), of["offset"], F.lit(" of "), of["queue"])
    return parsing.rejected(rows, F.when(is_duplicate(), parsing.reason(STEP, dedup.columns[0], why)))


def _with_duplicates(rows: DataFrame, within_us: int, remembered: DataFrame | None) -> DataFrame:
    if remembered is None:
        nothing = F.lit(None)
        rows = rows.withColumns({_SEEN: nothing.cast("long"), _BEFORE: nothing.cast(_IDENTITY)})
    else:
        rows = rows.join(remembered.withColumnRenamed(_TAKEN, _BEFORE), on=KEY, how="left")
    offset, takes_part = F.col(f"{MESSAGE}.offset"), F.col(KEY).isNotNull()
    alone = F.when(~takes_part, offset)  # rows without a key would otherwise be one large partition
    order = Window.partitionBy(KEY, alone).orderBy(f"{MESSAGE}.partition", offset)
    earlier = order.rowsBetween(Window.unboundedPreceding, -1)
    seen = F.greatest(F.max(TIME).over(earlier), F.col(_SEEN))
    is_new = F.coalesce(F.col(TIME) >= seen + within_us, F.lit(True))
    rows = rows.withColumn(_TAKEN, F.when(takes_part & is_new, _identity()))
    of = F.coalesce(F.last(_TAKEN, ignorenulls=True).over(earlier), F.col(_BEFORE))
    rows = rows.withColumn(DUPLICATE_OF, F.when(takes_part & F.col(_TAKEN).isNull(), of))
    return rows.drop(_SEEN, _BEFORE, _TAKEN)


def orphaned(rows: DataFrame, refused: DataFrame, dedup: Dedup) -> DataFrame:
    """Duplicates of rows of the same batch that are rejected after all: so are they, and not dropped."""
    of = F.col(DUPLICATE_OF)
    gone = refused.select(_identity().alias(_TAKEN))
    found = rows.where(is_duplicate()).join(gone, on=of == F.col(_TAKEN), how="left_semi")
    why = F.concat(F.lit("is a duplicate of offset "), of["offset"], F.lit(", which is rejected"))
    return parsing.rejected(found, parsing.reason(STEP, dedup.columns[0], why))


def is_duplicate() -> Column:
    return F.col(DUPLICATE_OF).isNotNull()


def is_taken() -> Column:
    return F.col(KEY).isNotNull() & ~is_duplicate()


def remembered_after(
    rows: DataFrame,
    before: DataFrame | None,
    *,
    dedup: Dedup,
    clock_us: int | None,
    refused: DataFrame | None,
) -> DataFrame:
    """What is remembered after a batch of rows that are `marked`; `refused` were rejected after that."""
    taken = F.when(is_taken(), _identity())
    found = rows.where(F.col(KEY).isNotNull()).select(KEY, F.col(TIME).alias(_SEEN), taken.alias(_TAKEN))
    if before is None:
        found = found.withColumn(_BEFORE, F.lit(None).cast(_IDENTITY))
    else:
        found = found.unionByName(before.withColumnRenamed(_TAKEN, _BEFORE), allowMissingColumns=True)
    last_taken = F.coalesce(F.max(_TAKEN), F.max(_BEFORE)).alias(_TAKEN)
    found = found.groupBy(KEY).agg(F.max(_SEEN).alias(_SEEN), last_taken)
    if clock_us is not None:
        found = found.where(F.col(_SEEN) + us_of(dedup.within) > clock_us)
    if refused is None:
        return found
    wrong = refused.select(_identity().alias(_TAKEN))
    return found.join(wrong, on=_TAKEN, how="left_anti").select(KEY, _SEEN, _TAKEN)


def _identity() -> Column:
    """The later message is the greater one."""
    return F.struct(*(F.col(f"{MESSAGE}.{name}").alias(name) for name in ("partition", "offset", "queue")))
