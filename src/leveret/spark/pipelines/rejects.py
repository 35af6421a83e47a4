"""Messages that can't be used: published to the exchange for rejects, as they came, with the reason.

A rejected message keeps its body, id and headers; what was wrong is in headers of its own:

    x-reject-reason, x-reject-step, x-reject-column, x-reject-pipeline, x-reject-batch,
    x-reject-queue, x-reject-partition, x-reject-offset

The rule: rejects are confirmed before they are settled, and the batch is committed after both; they are
published once per batch where the broker is Leveret.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from leveret.client.message import PRODUCER, REPUBLISHED, SEQ
from leveret.client.redrive import REJECT
from leveret.flight.actions import Done, Reject, RejectRead
from leveret.flight.tickets import pack_ranges
from leveret.spark.calls import Calls
from leveret.spark.endpoint import find
from leveret.spark.options import SourceOptions
from leveret.spark.pipelines import rows as parsing
from leveret.spark.pipelines import verdicts
from leveret.spark.pipelines.checks import MESSAGE, broker_options, source_options
from leveret.spark.pipelines.declaration import Declaration
from leveret.spark.pipelines.errors import TooManyRejects
from leveret.spark.pipelines.sinks import identity
from leveret.spark.topics import subject

_OF_ONE_PUBLISH: Final = (PRODUCER, SEQ, REPUBLISHED)
"""Headers by which a queue that deduplicates knows the original."""
_KEPT: Final = ("message_id", "correlation_id", "content_type", "timestamp", "priority")
_KEPT_PROPERTIES: Final = ("content_encoding", "reply_to", "type", "app_id")
"""Not the expiration: rejects stay until somebody takes them."""


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
    """Confirmed when this returns. Which ones they are is written down before."""
    identity_of = [f"{MESSAGE}.{name}" for name in parsing.IDENTITY]
    said = bad.select(*identity_of, f"{parsing.REJECT}.step", f"{parsing.REJECT}.column").collect()
    here = {(row.queue, row.partition, row.offset): _why(row.step, row.column) for row in said}
    known = verdicts.read(declared, batch)
    verdict = known.with_more(here)
    if verdict is not known:
        verdicts.write(declared, verdict)
    for number, found in enumerate(verdict.rounds):
        chosen = bad if len(verdict.rounds) == 1 else _only(bad, found)
        options = {
            **broker_options(declared),
            "exchange": declared.rejects.exchange,
            "routingKey": declared.rejects.routing_key,
            **identity(declared, f"rejects.{number}" if number else "rejects", batch),
        }
        messages(chosen, declared, batch).write.format("leveret").mode("append").options(**options).save()


def settle(declared: Declaration, batch: int) -> None:
    """What was published is settled as rejected: in the queue's lease, or in the group of a stream or topic.

    Elsewhere than on Leveret it counts as done, with the others of its batch.
    """
    options = SourceOptions.parse(source_options(declared))
    endpoint = find(options)
    if not endpoint.is_leveret or options.cursor is None:
        return
    parts = [part for each in verdicts.read(declared, batch).rounds for part in each]
    with Calls(endpoint) as calls:
        for part in parts:
            ranges = pack_ranges(part.ranges)
            if options.queue is None:
                whose = subject(options)
                calls.ask(RejectRead(*whose, options.cursor, {part.queue: ranges}, part.why), Done)
            else:
                calls.ask(Reject(options.vhost, part.queue, options.cursor, ranges, part.why), Done)


def _why(step: str, column: str | None) -> str:
    """What is written down of it where the message is settled: few words, the same for many."""
    return step if column is None else f"{step}: {column}"


def _only(bad: DataFrame, found: verdicts.Round) -> DataFrame:
    """Those of one round: a message that is settled by now is not among them."""
    chosen = verdicts.frame_of(bad.sparkSession, found)
    same = [bad[MESSAGE][name] == chosen[name] for name in parsing.IDENTITY]
    return bad.join(chosen, on=same, how="leftsemi")


def messages(bad: DataFrame, declared: Declaration, batch: int) -> DataFrame:
    """Rejected rows as messages."""
    reject, message = F.col(parsing.REJECT), F.col(MESSAGE)
    said = {
        f"{REJECT}reason": reject["reason"],
        f"{REJECT}step": reject["step"],
        f"{REJECT}column": F.coalesce(reject["column"], parsing.unfit_column(declared.parse)),
        f"{REJECT}pipeline": F.lit(declared.name),
        f"{REJECT}batch": F.lit(str(batch)),
        f"{REJECT}queue": message["queue"],
        f"{REJECT}partition": message["partition"].cast("string"),
        f"{REJECT}offset": message["offset"].cast("string"),
    }
    pairs = [part for name, value in said.items() for part in (F.lit(name), value)]
    marks = F.map_filter(F.create_map(*pairs), lambda _, value: value.isNotNull())
    before = F.coalesce(message["headers"], F.create_map().cast("map<string,string>"))
    kept = F.map_filter(before, lambda name, _: ~(name.startswith(REJECT) | name.isin(*_OF_ONE_PUBLISH)))
    return bad.select(
        F.col(parsing.BODY).alias("body"),
        *(message[name].alias(name) for name in _KEPT),
        F.map_filter(message["properties"], lambda name, _: name.isin(*_KEPT_PROPERTIES)).alias("properties"),
        F.map_concat(kept, marks).alias("headers"),
    )
