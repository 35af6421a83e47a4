"""A query over a queue on any AMQP broker: messages are spooled, read by Spark, and acked when committed.

Owns the order of steps on the driver. Batches that Spark has committed are settled in the spool, then acked.
Deliveries are spooled, then planned as a batch. `spool` owns the files, `queue_consumer` the connection,
`columns` the columns. Spark's offset is the number of a batch in the spool; `from` is where the query began,
so its first batch is identical when it runs again.

The rule: a message is acked only when its batch is in Spark's commit log, or when it is a copy of a message
in such a batch. A copy without an id is recognised only while this run remembers that the message was not
acked.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from leveret.client.acks import Settled
from leveret.client.delivery import Delivery
from leveret.client.errors import ConversionError
from leveret.client.redrive import REJECT
from leveret.spark import limits
from leveret.spark.checkpoints import check_identity
from leveret.spark.columns import Columns
from leveret.spark.deliveries import STREAM_OFFSET, chunks_of
from leveret.spark.errors import BadOption, DataLost, SparkSideError, WrongCheckpoint
from leveret.spark.options import SourceOptions
from leveret.spark.queue_consumer import QueueConsumer
from leveret.spark.seen_ids import Returning, digest, digest_without_id, ids_of
from leveret.spark.shared_directory import Place
from leveret.spark.spool import NEW, Extent, Manifest, Spool, folder_of, read_chunks

PREFETCH_MAX: Final = 65_535
BATCH_MESSAGES: Final = 20_000
"""Most messages of a batch without maxMessagesPerTrigger; as many again are prefetched meanwhile."""
_PARTITION_BYTES: Final = 64 << 20
_WAIT_S: Final = 0.25
"""How long a trigger waits for the first message; Spark asks again."""
_PATIENCE_S: Final = 5.0
"""How long `availableNow` and `once` wait for messages that the broker counts and could deliver."""

Offset = dict[str, Any]


@dataclass
class SpoolPartition(InputPartition):
    """Record batches of one file of the spool."""

    file: str
    first: int
    stop: int


@dataclass(slots=True)
class _Taken:
    """A delivery that is not acked."""

    delivery: Delivery
    digest: bytes
    has_id: bool
    batch: int
    """Batch in the spool that holds the message, or another copy of it."""


@dataclass(slots=True)
class _New:
    """Deliveries that the spool does not know yet."""

    messages: list[_Taken] = field(default_factory=list)
    digests: dict[bytes, None] = field(default_factory=dict)
    """Digests of the messages that have an id."""
    copies: list[_Taken] = field(default_factory=list)
    """Further deliveries with id and body of one of the messages."""


class SpoolStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`SpoolStreamReader(options)`: connects and takes over the spool at the first call on the driver."""

    def __init__(self, options: SourceOptions) -> None:
        assert options.spool_location is not None
        assert options.cursor is not None
        self._options = options
        self._acks = options.ack_mode == "commit"
        self._place = Place.at(
            options.spool_location,
            folder_of(vhost=options.vhost, queue=options.subject, cursor=options.cursor, kept=self._acks),
        )
        self._spool: Spool | None = None
        self._consumer: QueueConsumer | None = None
        self._cluster: str | None = None
        """The broker's name; None before the broker was asked."""
        self._unsettled: dict[int, list[_Taken]] = {}
        """Deliveries by the batch that holds them or their copies."""
        self._returning = Returning(options.dedup_window_s)
        self._is_known_as_queue = False
        """Whether the broker was asked and has no stream of this name."""
        self._budget: int | None = None
        """How many messages `availableNow` may still take."""
        self._ready_count: int | None = None
        self._warned: set[str] = set()

    # what Spark calls, on the driver

    def initialOffset(self) -> Offset:  # noqa: N802  (Spark's name, as are the others)
        return self._offset(self._claimed().settled)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        limit = limits.default_limit(self._options)
        return ReadMaxRows(BATCH_MESSAGES) if isinstance(limit, ReadAllAvailable) else limit

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._budget = self._connected().depth()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        number = self._number(start)
        spool = self._claimed(partial(self._check_start, number))
        self._settle(spool, number)
        batch = spool.after(number)
        if batch is None:
            batch = self._spool_more(spool, limit)
        self._ready_count = self._connected().ready()
        return start if batch is None else self._offset(batch) | {"from": start.get("from", number)}

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        if self._spool is None:
            return None
        lag = {} if self._ready_count is None else {"ready": self._ready_count}
        return self._offset(self._spool.last) | lag

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        first, last = self._number(start), self._number(end)
        if "from" not in start:
            # The first batch again: another run may have settled it meanwhile.
            first = end.get("from", first)
        if first == last:
            return []
        numbers = range(first + 1, last + 1)
        spool = self._opened(partial(self._check_batches, numbers))
        manifests = (spool.manifest(number) for number in numbers)
        existing = [manifest for manifest in manifests if manifest is not None]
        return _split(existing, self._options.min_partitions)

    def commit(self, end: Offset) -> None:
        number = self._number(end)
        self._settle(self._opened(), number)

    def stop(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
        if self._spool is not None and not self._acks:
            with suppress(SparkSideError):
                self._spool.check()
                self._place.delete_all()
        self._spool = None

    # what Spark calls, on an executor

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SpoolPartition)
        columns = Columns(self._options)
        try:
            for chunk in read_chunks(self._place, partition.file, partition.first, partition.stop):
                yield columns.rows(
                    chunk,
                    redelivered=chunk.column("redelivered"),
                    delivery_count=chunk.column("delivery_count"),
                )
        except FileNotFoundError:
            raise DataLost(
                f"{partition.file} is not in the spool at {self._place}",
                hint="spoolLocation must be a place that driver and executors share; or a later run of the "
                "query has settled this batch",
            ) from None

    # offsets

    def _offset(self, batch: int) -> Offset:
        options = self._options
        return {"queue": options.subject, "vhost": options.vhost, "cursor": options.cursor, "spool": batch}

    def _number(self, offset: Offset) -> int:
        identity = self._offset(0)
        check_identity(offset, {name: identity[name] for name in ("queue", "vhost", "cursor")})
        number = offset.get("spool")
        if not isinstance(number, int):
            raise WrongCheckpoint(
                f"the checkpoint is not of a spooled query: it says {offset}",
                hint="the queue was on another kind of broker; begin with a new checkpoint",
            )
        return number

    def _check_start(self, number: int, extent: Extent) -> None:
        """Report loss if the checkpoint's batch is not between the settled and the last batch."""
        if self._acks and number > extent.last:
            self._report_loss(self._lost_batch(number, extent))
        elif self._acks and number < extent.settled:
            lost = DataLost(
                f"the checkpoint is at batch {number} of the spool at {self._place}, which is settled up to "
                f"{extent.settled}: another checkpoint was used in between",
                hint="what that read is not in this query's result; failOnDataLoss=false goes on without it",
            )
            self._report_loss(lost)

    def _check_batches(self, numbers: range, extent: Extent) -> None:
        """Report loss if one of the planned batches is not in the spool."""
        for number in numbers:
            if self._acks and number not in extent.unsettled:
                self._report_loss(self._lost_batch(number, extent))

    def _report_loss(self, lost: DataLost) -> None:
        """Raise the error; only warn where loss is allowed."""
        if self._options.fail_on_data_loss:
            raise lost
        self._warn_once(lost.sentence)

    def _lost_batch(self, number: int, extent: Extent) -> DataLost:
        if number <= extent.settled:
            return DataLost(
                f"batch {number} is settled, and no longer in the spool at {self._place}",
                hint="Spark asks for a batch that it had committed: asynchronous progress tracking, or an "
                "older copy of the checkpoint; failOnDataLoss=false goes on without it",
            )
        return DataLost(
            f"the checkpoint names batch {number}, the spool at {self._place} ends at {extent.last}",
            hint="the spool was deleted, or is another one; failOnDataLoss=false goes on with what comes",
        )

    # the spool and the queue

    def _claimed(self, check: Callable[[Extent], None] = lambda _: None) -> Spool:
        """Return the opened spool; raise if it belongs to another broker."""
        if self._cluster is None:
            self._cluster = self._connected().cluster
        spool = self._opened(check)
        spool.claim(self._cluster)
        return spool

    def _opened(self, check: Callable[[Extent], None] = lambda _: None) -> Spool:
        """Return the spool; raise if a later run has taken it over.

        A new run takes it over only after `check` has passed.
        """
        if self._spool is None:
            if not self._acks:
                # The messages of an earlier run with ackMode=none have gone back to the queue.
                self._place.delete_all()
            options = self._options
            assert options.cursor is not None
            spool = Spool(
                self._place,
                vhost=options.vhost,
                queue=options.subject,
                cursor=options.cursor,
                window_s=options.dedup_window_s,
            )
            spool.open(self._cluster or "", check)
            self._spool = spool
        else:
            self._spool.check()
        check(self._spool.extent)
        return self._spool

    def _connected(self) -> QueueConsumer:
        """Return the connected consumer; `_spool_more` lets it begin to consume."""
        if self._consumer is None:
            prefetch = 2 * (self._options.max_messages or BATCH_MESSAGES) if self._acks else PREFETCH_MAX
            consumer = QueueConsumer(self._options, prefetch=min(prefetch, PREFETCH_MAX))
            try:
                consumer.open()
            except BaseException:
                consumer.close()
                raise
            self._consumer = consumer
        return self._consumer

    def _settle(self, spool: Spool, number: int) -> None:
        """Settle and ack everything up to this batch, which Spark has committed."""
        spool.settle(number)
        if self._acks:
            for batch in [batch for batch in self._unsettled if batch <= number]:
                self._ack(self._unsettled[batch])
                del self._unsettled[batch]
        self._returning.settled(number, time.monotonic())

    def _ack(self, settled: list[_Taken]) -> None:
        """Ack deliveries; expect a redelivery of each one whose channel has ended."""
        if not settled or self._consumer is None:
            return
        answers = self._consumer.ack([taken.delivery for taken in settled])
        for taken, answer in zip(settled, answers, strict=True):
            if answer is Settled.STALE and not taken.has_id:
                self._returning.add(taken.digest, taken.batch)

    def _spool_more(self, spool: Spool, limit: ReadLimit) -> int | None:
        """Spool the next batch of deliveries and return its number; None if no delivery is new."""
        consumer = self._connected()
        consumer.begin()
        max_messages, max_bytes = limits.most(limit, self._options)
        if max_messages is None:
            max_messages = PREFETCH_MAX
        # Spark passes ReadAllAvailable for the trigger `once`.
        is_last_call = self._budget is not None or isinstance(limit, ReadAllAvailable)
        empty_s = 0.0
        while self._budget is None or self._budget > 0:
            room = max_messages if self._budget is None else min(max_messages, self._budget)
            taken = consumer.take(max_messages=room, max_bytes=max_bytes, wait_s=_WAIT_S)
            self._refuse_streams(consumer, taken)
            new = self._without_known(spool, taken)
            if self._budget is not None:
                self._budget -= _counted(taken, new)
            if new.messages:
                return self._spooled(spool, new)
            if taken:
                continue
            if not is_last_call:
                return None
            is_empty, now_s = consumer.ready() == 0, time.monotonic()
            # An empty queue may still have deliveries on their way: it must be empty twice.
            was_empty = consumer.quiet_since_s <= empty_s
            if (is_empty and was_empty) or now_s > consumer.quiet_since_s + _PATIENCE_S:
                break
            empty_s = now_s if is_empty else 0.0
        if self._budget is not None:
            self._budget = 0
        return None

    def _spooled(self, spool: Spool, new: _New) -> int:
        messages = [taken.delivery for taken in new.messages]
        chunks = chunks_of(messages, spool.next_offset, at_least=self._options.min_partitions)
        batch = spool.write(chunks, ids_of(list(new.digests)))
        for taken in new.messages + new.copies:
            self._keep(taken, batch)
        self._warn_if_full()
        return batch

    def _refuse_streams(self, consumer: QueueConsumer, taken: list[Delivery]) -> None:
        """Raise if the deliveries come from a stream, where acks settle nothing.

        Messages of a stream carry their offset in a header. A message of a queue may carry this header too,
        so the broker is asked, once.
        """
        if self._is_known_as_queue or not taken or STREAM_OFFSET.encode() not in taken[0].header:
            return
        if consumer.is_a_stream():
            raise BadOption(
                f"'{self._options.queue}' is a stream, not a queue", hint="name it with option stream"
            )
        self._is_known_as_queue = True

    def _without_known(self, spool: Spool, deliveries: list[Delivery]) -> _New:
        """Return the deliveries that the spool does not know.

        Copies of settled messages are acked; copies of unsettled messages are kept until those are settled.
        """
        new = _New()
        settled: list[_Taken] = []
        for taken in self._looked_up(spool, deliveries):
            if taken.batch != NEW:
                if self._acks and taken.batch <= spool.settled:
                    settled.append(taken)
                else:
                    self._keep(taken, taken.batch)
            elif taken.digest in new.digests:
                new.copies.append(taken)
            else:
                new.messages.append(taken)
                if taken.has_id:
                    new.digests[taken.digest] = None
                continue
            self._warn_of_copies(taken.delivery)
        if settled:
            spool.check()
            self._ack(settled)
        return new

    def _looked_up(self, spool: Spool, deliveries: list[Delivery]) -> list[_Taken]:
        """Return the deliveries, each with its digest and the batch that the spool knows it in."""
        looked_up: list[_Taken] = []
        for delivery in deliveries:
            name = _message_id(delivery)
            key = digest(name, delivery.body) if name else digest_without_id(delivery)
            looked_up.append(_Taken(delivery, key, bool(name), NEW))
        with_id = [taken for taken in looked_up if taken.has_id]
        batches = spool.find(ids_of([taken.digest for taken in with_id])).tolist()
        for taken, batch in zip(with_id, batches, strict=True):
            taken.batch = batch
        self._look_up_without_id([taken for taken in looked_up if not taken.has_id])
        return looked_up

    def _look_up_without_id(self, without_id: list[_Taken]) -> None:
        """Set the batch of messages that this run spooled, but could not ack before their channel ended."""
        if without_id:
            self._warn_once(
                f"messages of queue '{self._options.subject}' have no message_id: they are read at least "
                "once, and may be read twice after a lost connection or a restart"
            )
        redelivered = [taken for taken in without_id if taken.delivery.wire_redelivered]
        if redelivered:
            self._expect_redeliveries()
        for taken in redelivered:
            taken.batch = self._returning.take(taken.digest) or NEW

    def _expect_redeliveries(self) -> None:
        """Expect a redelivery of each message whose channel has ended: no ack for it is possible any more."""
        for batch, kept in self._unsettled.items():
            alive: list[_Taken] = []
            for taken in kept:
                if taken.delivery.ledger.alive:
                    alive.append(taken)
                elif not taken.has_id:
                    self._returning.add(taken.digest, batch)
            self._unsettled[batch] = alive

    def _keep(self, taken: _Taken, batch: int) -> None:
        """Keep a delivery until the batch is settled, without its content, which is in the spool."""
        taken.batch = batch
        taken.delivery.body = taken.delivery.header = b""
        self._unsettled.setdefault(batch, []).append(taken)

    def _warn_if_full(self) -> None:
        """Warn if all of the prefetch is in flight, which happens with ackMode=none only."""
        kept = (taken for batch in self._unsettled.values() for taken in batch)
        if not self._acks and sum(taken.delivery.ledger.alive for taken in kept) >= PREFETCH_MAX:
            self._warn_once(
                f"{PREFETCH_MAX} messages are in flight: with ackMode=none the broker of queue "
                f"'{self._options.subject}' gives no more"
            )

    def _warn_of_copies(self, delivery: Delivery) -> None:
        if not delivery.wire_redelivered:
            self._warn_once(
                f"queue '{self._options.subject}' holds messages that have message_id and body of others and "
                "are no redeliveries: of such messages one is read, within dedupWindow"
            )

    def _warn_once(self, sentence: str) -> None:
        if sentence not in self._warned:
            self._warned.add(sentence)
            warnings.warn(sentence, RuntimeWarning, stacklevel=2)


def _counted(taken: list[Delivery], new: _New) -> int:
    """Return how many of the deliveries spend the budget of `availableNow`: all but redelivered copies."""
    first = sum(not delivery.wire_redelivered for delivery in taken)
    return first + sum(message.delivery.wire_redelivered for message in new.messages)


def _message_id(delivery: Delivery) -> str | None:
    """Return the message id, with the headers of a pipeline's rejection.

    So a rejected message that is sent back to the queue is no copy of the first delivery.
    """
    try:
        name = delivery.message_id
        if not name or REJECT.encode() not in delivery.header:
            return name
        return f"{name} {sorted(item for item in delivery.headers.items() if item[0].startswith(REJECT))}"
    except ConversionError:
        return None


def _split(manifests: list[Manifest], at_least: int) -> list[InputPartition]:
    """Return partitions of neighbouring chunks of a file, small enough for at least `at_least` partitions."""
    total_bytes = sum(size for manifest in manifests for _, size in manifest.chunks)
    share = min(_PARTITION_BYTES, max(1, total_bytes // max(1, at_least)))
    left = sum(len(manifest.chunks) for manifest in manifests)
    partitions: list[InputPartition] = []
    for manifest in manifests:
        first = size = 0
        for index, (_, chunk_bytes) in enumerate(manifest.chunks):
            # If few chunks are left, each one becomes a partition.
            are_few = left < at_least - len(partitions)
            if index > first and (are_few or size + chunk_bytes / 2 > share):
                partitions.append(SpoolPartition(manifest.file, first, index))
                first, size = index, 0
            size += chunk_bytes
            left -= 1
        partitions.append(SpoolPartition(manifest.file, first, len(manifest.chunks)))
    return partitions
