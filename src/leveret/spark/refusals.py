"""What it means to a query when the broker refuses: the broker's word as a sentence for Spark's users."""

from __future__ import annotations

from leveret.spark.errors import BrokerRefused, DataLost, SparkSideError
from leveret.spark.options import SourceOptions


def explained(error: BrokerRefused, options: SourceOptions) -> SparkSideError:
    """The error that is shown instead; the same one where there is nothing to add."""
    what = options.described
    if error.kind == "fenced":
        return BrokerRefused(
            f"another run of this query has taken over cursor '{options.cursor}' of {what}",
            code=error.code,
            kind=error.kind,
            hint="one query at a time has a cursor: stop the other, or give this one a cursor of its own",
        )
    if error.kind == "settled":
        return BrokerRefused(
            f"a batch of {what} can't be read again, its messages are acked: {error.sentence}",
            code=error.code,
            kind=error.kind,
            hint="that happens with asynchronous progress tracking, which can't be used here, and with an "
            "old copy of a checkpoint; start with a new checkpoint to go on with what is in the queue",
        )
    if error.kind == "expired":
        return BrokerRefused(
            f"a batch of {what} can't be read again, its lease ran out and its messages went back "
            f"to the queue: {error.sentence}",
            code=error.code,
            kind=error.kind,
            hint="start with a new checkpoint, rows of the last batch may then come twice; a longer "
            "leaseTimeout lets a query be away for longer",
        )
    if error.kind == "gone":
        return DataLost(error.sentence, hint=error.hint)
    return error
