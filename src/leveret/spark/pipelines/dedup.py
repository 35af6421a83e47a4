"""Duplicate rows: found by their key, in their own batch and among the keys that are remembered.

A row is a duplicate if its key was seen before, less than `within` ago. Rows of one batch are ordered by
partition and offset. Rejected rows take no part: the corrected copy of a rejected row is no duplicate. The
remembered keys are a table: the key, when it was last seen, and the message that was taken for it.
`batch_state` stores this table. The rule: a key is forgotten only when no later row can be its duplicate.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from leveret.spark.pipelines import parsed_rows as parsing
from leveret.spark.pipelines.declaration import MESSAGE, Dedup
from leveret.spark.pipelines.lateness import TIME, us_of

KEY: Final = "_key"
"""Column of the key; null where a row takes no part in dedup."""
DUPLICATE_OF: Final = "_duplicate_of"
"""Column of the message that was taken instead of a duplicate; null for other rows."""
STEP: Final = "dedup"
_SEEN: Final = "_seen"
_TAKEN: Final = "_taken"
_BEFORE: Final = "_taken_before"
_IDENTITY: Final = "struct<partition: int, offset: bigint, queue: string>"


def marked(rows: DataFrame, dedup: Dedup, remembered: DataFrame | None) -> DataFrame:
    """Add `_key` and `_duplicate_of`, and set `_reject` where a key is null or duplicates are rejected."""
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
    # rows without a key would otherwise be one large partition
    spread = F.when(~takes_part, offset)
    order = Window.partitionBy(KEY, spread).orderBy(f"{MESSAGE}.partition", offset)
    earlier = order.rowsBetween(Window.unboundedPreceding, -1)
    seen = F.greatest(F.max(TIME).over(earlier), F.col(_SEEN))
    is_new = F.coalesce(F.col(TIME) >= seen + within_us, F.lit(True))
    rows = rows.withColumn(_TAKEN, F.when(takes_part & is_new, _identity()))
    of = F.coalesce(F.last(_TAKEN, ignorenulls=True).over(earlier), F.col(_BEFORE))
    rows = rows.withColumn(DUPLICATE_OF, F.when(takes_part & F.col(_TAKEN).isNull(), of))
    return rows.drop(_SEEN, _BEFORE, _TAKEN)


def orphaned(rows: DataFrame, refused: DataFrame, dedup: Dedup) -> DataFrame:
    """Return duplicates of refused rows of the same batch. They are rejected too, and not dropped."""
    of = F.col(DUPLICATE_OF)
    refused_ids = refused.select(_identity().alias(_TAKEN))
    orphans = rows.where(is_duplicate()).join(refused_ids, on=of == F.col(_TAKEN), how="left_semi")
    why = F.concat(F.lit("is a duplicate of offset "), of["offset"], F.lit(", which is rejected"))
    return parsing.rejected(orphans, parsing.reason(STEP, dedup.columns[0], why))


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
    """Return the keys to remember after a batch of `marked` rows; `refused` are rows that a step rejected."""
    taken = F.when(is_taken(), _identity())
    keys = rows.where(F.col(KEY).isNotNull()).select(KEY, F.col(TIME).alias(_SEEN), taken.alias(_TAKEN))
    if before is None:
        keys = keys.withColumn(_BEFORE, F.lit(None).cast(_IDENTITY))
    else:
        keys = keys.unionByName(before.withColumnRenamed(_TAKEN, _BEFORE), allowMissingColumns=True)
    last_taken = F.coalesce(F.max(_TAKEN), F.max(_BEFORE)).alias(_TAKEN)
    keys = keys.groupBy(KEY).agg(F.max(_SEEN).alias(_SEEN), last_taken)
    if clock_us is not None:
        keys = keys.where(F.col(_SEEN) + us_of(dedup.within) > clock_us)
    if refused is None:
        return keys
    refused_ids = refused.select(_identity().alias(_TAKEN))
    return keys.join(refused_ids, on=_TAKEN, how="left_anti").select(KEY, _SEEN, _TAKEN)


def _identity() -> Column:
    """Return the identity of a message as a struct that sorts by partition and offset."""
    return F.struct(*(F.col(f"{MESSAGE}.{name}").alias(name) for name in ("partition", "offset", "queue")))
