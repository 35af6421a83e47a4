"""Messages that can't be used: published to the exchange for rejects, as they came, with the reason.

A rejected message keeps its body, id and headers; what was wrong is in headers of its own:

    x-reject-reason, x-reject-step, x-reject-column, x-reject-pipeline, x-reject-batch,
    x-reject-queue, x-reject-partition, x-reject-offset

The rule: rejects are confirmed before they are settled, and the batch is committed after both; they are
published once per batch where the broker is Leveret.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from leveret.flight.actions import Done, Reject
from leveret.flight.tickets import pack_ranges
from leveret.spark.calls import Calls
from leveret.spark.endpoint import find
from leveret.spark.options import SourceOptions
from leveret.spark.pipelines import rows as parsing
from leveret.spark.pipelines.checks import MESSAGE, broker_options, source_options
from leveret.spark.pipelines.declaration import Declaration
from leveret.spark.pipelines.errors import TooManyRejects
from leveret.spark.pipelines.sinks import identity


@dataclass(frozen=True, slots=True)
class Counts:
    """What has become of the messages so far, in this run."""

    batches: int = 0
    messages: int = 0
    rejected: int = 0

    def with_batch(self, messages: int, rejected: int) -> Counts:
        return Counts(self.batches + 1, self.messages + messages, self.rejected + rejected)


def check(declared: Declaration, counts: Counts, rejected: int) -> None:
    """Raises when there are too many of them: then nothing of the batch is committed."""
    limits = declared.rejects
    hint = "nothing of the batch is settled; see [rejects] in the pipeline's file"
    if limits.max_count is not None and rejected > limits.max_count:
        raise TooManyRejects(
            f"{rejected} messages of a batch are rejected, and no more than {limits.max_count} may be",
            hint=hint,
        )
    if limits.max_share is not None and counts.rejected > limits.max_share * counts.messages:
        raise TooManyRejects(
            f"{counts.rejected} of {counts.messages} messages of this run are rejected, more than a share of "
            f"{limits.max_share:g}",
            hint=hint,
        )


def publish(bad: DataFrame, declared: Declaration, batch: int) -> None:
    """Confirmed when this returns."""
    options = {
        **broker_options(declared),
        "exchange": declared.rejects.exchange,
        "routingKey": declared.rejects.routing_key,
        **identity(declared.name, "rejects", batch),
    }
    messages(bad, declared, batch).write.format("leveret").mode("append").options(**options).save()


def settle(bad: DataFrame, declared: Declaration) -> None:
    """What was published is settled as rejected; elsewhere than in a queue of Leveret it counts as done."""
    queue = declared.source.queue
    if queue is None:
        return
    endpoint = find(SourceOptions.parse(source_options(declared)))
    if not endpoint.is_leveret:
        return
    offsets = sorted(row.offset for row in bad.select(f"{MESSAGE}.offset").collect())
    ranges = pack_ranges((offset, offset + 1) for offset in offsets)
    with Calls(endpoint) as calls:
        calls.ask(Reject(endpoint.options.vhost, queue, declared.name, ranges), Done)


def messages(bad: DataFrame, declared: Declaration, batch: int) -> DataFrame:
    """Rejected rows as messages."""
    reject, message = F.col(parsing.REJECT), F.col(MESSAGE)
    said = {
        "x-reject-reason": reject["reason"],
        "x-reject-step": reject["step"],
        "x-reject-column": F.coalesce(reject["column"], parsing.unfit_column(declared.parse)),
        "x-reject-pipeline": F.lit(declared.name),
        "x-reject-batch": F.lit(str(batch)),
        "x-reject-queue": message["queue"],
        "x-reject-partition": message["partition"].cast("string"),
        "x-reject-offset": message["offset"].cast("string"),
    }
    pairs = [part for name, value in said.items() for part in (F.lit(name), value)]
    marks = F.map_filter(F.create_map(*pairs), lambda _, value: value.isNotNull())
    before = F.coalesce(message["headers"], F.create_map().cast("map<string,string>"))
    kept = F.map_filter(before, lambda name, _: ~name.startswith("x-reject-"))
    return bad.select(
        F.col(parsing.BODY).alias("body"),
        *(message[name].alias(name) for name in ("message_id", "correlation_id", "content_type")),
        F.map_concat(kept, marks).alias("headers"),
    )
