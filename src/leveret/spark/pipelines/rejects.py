"""Publishes rejected messages to the exchange for rejects, with the reason, and settles them.

A rejected message keeps its body, id and headers. The reason is in additional headers:

    x-reject-reason, x-reject-step, x-reject-column, x-reject-pipeline, x-reject-batch,
    x-reject-queue, x-reject-partition, x-reject-offset

`recorded_rejects` records which messages are rejected, before they are published. The rule: rejects are
confirmed, then settled, and then the batch is committed. On Leveret they are published once per batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from leveret.client.message import PRODUCER, REPUBLISHED, SEQ
from leveret.client.message_copies import FURTHER_ADDRESSES
from leveret.client.redrive import REJECT
from leveret.flight.actions import Done, Reject, RejectRead
from leveret.flight.bounds import RANGES_MAX
from leveret.flight.tickets import pack_ranges
from leveret.spark.endpoint import find
from leveret.spark.flight_calls import Calls
from leveret.spark.options import SourceOptions
from leveret.spark.pipelines import parsed_rows as parsing
from leveret.spark.pipelines.batch_ids import identity
from leveret.spark.pipelines.declaration import MESSAGE, Declaration
from leveret.spark.pipelines.declaration_checks import broker_options, source_options
from leveret.spark.pipelines.errors import TooManyRejects
from leveret.spark.pipelines.recorded_rejects import Part, Verdict
from leveret.spark.topics import subject

_OF_ONE_PUBLISH: Final = (PRODUCER, SEQ, REPUBLISHED, *FURTHER_ADDRESSES)
"""Headers of publisher deduplication, and further addresses: they belong to the original publish only."""
_KEPT: Final = ("message_id", "correlation_id", "content_type", "timestamp", "priority")
_KEPT_PROPERTIES: Final = ("content_encoding", "reply_to", "type", "app_id")
"""Properties that a reject keeps. The expiration is not among them: rejects stay until they are consumed."""
SHARE_FROM: Final = 100
"""A share counts at least this many messages, or the first message of a run could not be rejected."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What happened to the messages of this run so far."""

    batches: int = 0
    messages: int = 0
    rejected: int = 0
    acked: int = 0
    """Messages acked, or to be acked when Spark has committed the batch."""
    waited: int = 0
    """Rows in windows when the run began: their messages came in an earlier run."""

    def with_batch(self, messages: int, rejected: int, *, of_earlier_batches: int = 0) -> Counts:
        """Add a batch. `of_earlier_batches` are rejected rows that waited: their messages are acked."""
        return replace(
            self,
            batches=self.batches + 1,
            messages=self.messages + messages,
            rejected=self.rejected + rejected,
            acked=self.acked + messages - (rejected - of_earlier_batches),
        )


def check(declared: Declaration, counts: Counts, rejected: int) -> None:
    """Raise if too many messages are rejected: then the batch is not committed."""
    limits = declared.rejects
    hint = "nothing of the batch is settled; see [rejects] in the pipeline's file"
    if limits.max_count is not None and rejected > limits.max_count:
        problem = f"{rejected} messages of a batch are rejected, and no more than {limits.max_count} may be"
        raise TooManyRejects(problem, hint=hint)
    messages = counts.messages + counts.waited
    if limits.max_share is not None and counts.rejected > limits.max_share * max(messages, SHARE_FROM):
        raise TooManyRejects(
            f"{counts.rejected} of {messages} messages of this run are rejected, more than a share of "
            f"{limits.max_share:g}",
            hint=hint,
        )


def publish(bad: DataFrame, declared: Declaration, batch: int) -> None:
    """Publish the rejected rows as messages. They are confirmed when this returns."""
    options = {
        **broker_options(declared),
        "exchange": declared.rejects.exchange,
        "routingKey": declared.rejects.routing_key,
        **identity(declared, "rejects", batch),
    }
    messages(bad, declared, batch).write.format("leveret").mode("append").options(**options).save()


def settle(declared: Declaration, verdict: Verdict) -> None:
    """Settle published rejects as rejected: in the queue's lease, or in the group of a stream or topic.

    On another broker than Leveret they are acked with their batch. The messages of rows that waited in
    windows were settled with an earlier batch, and stay as they are.
    """
    options = SourceOptions.parse(source_options(declared))
    endpoint = find(options)
    if not endpoint.is_leveret or options.cursor is None:
        return
    with Calls(endpoint) as calls:
        for part, ranges in _bounded(verdict):
            if options.queue is None:
                ranges_by_stream = {part.queue: ranges}
                calls.ask(RejectRead(*subject(options), options.cursor, ranges_by_stream, part.why), Done)
            else:
                calls.ask(Reject(options.vhost, part.queue, options.cursor, ranges, part.why), Done)


def _bounded(verdict: Verdict) -> Iterator[tuple[Part, bytes]]:
    """Yield the packed ranges of each part, at most `RANGES_MAX` at a time."""
    for part in verdict.parts:
        for start in range(0, len(part.ranges), RANGES_MAX):
            yield part, pack_ranges(part.ranges[start : start + RANGES_MAX])


def messages(bad: DataFrame, declared: Declaration, batch: int) -> DataFrame:
    """Return rejected rows as messages."""
    reject, message = F.col(parsing.REJECT), F.col(MESSAGE)
    values = {
        f"{REJECT}reason": reject["reason"],
        f"{REJECT}step": reject["step"],
        f"{REJECT}column": F.coalesce(reject["column"], parsing.unfit_column(declared.parse)),
        f"{REJECT}pipeline": F.lit(declared.name),
        f"{REJECT}batch": F.lit(str(batch)),
        f"{REJECT}queue": message["queue"],
        f"{REJECT}partition": message["partition"].cast("string"),
        f"{REJECT}offset": message["offset"].cast("string"),
    }
    names_and_values = [item for name, value in values.items() for item in (F.lit(name), value)]
    added = F.map_filter(F.create_map(*names_and_values), lambda _, value: value.isNotNull())
    original = F.coalesce(message["headers"], F.create_map().cast("map<string,string>"))
    kept = F.map_filter(original, lambda name, _: ~(name.startswith(REJECT) | name.isin(*_OF_ONE_PUBLISH)))
    return bad.select(
        F.col(parsing.BODY).alias("body"),
        *(message[name].alias(name) for name in _KEPT),
        F.map_filter(message["properties"], lambda name, _: name.isin(*_KEPT_PROPERTIES)).alias("properties"),
        F.map_concat(kept, added).alias("headers"),
    )
