"""A query over a queue on any AMQP broker: batches are spooled, read by Spark, and acked once it has them.

Owns the order of steps on the driver: what Spark has committed is settled in the spool, then acked; what was
delivered is spooled, then planned. `spool` owns the files, `queue_consumer` the connection, `columns` the
columns. Spark's offset is the number of a batch in the spool; `from` is where the query began, so that its
first batch is the same when it is run again. The rule: a message is acked only when its batch is in Spark's
commit log, or when it is a copy of one that is. A message without an id is known as a copy only while this
run remembers that it was not acked.
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
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from leveret.client.acks import Settled
from leveret.client.delivery import Delivery
from leveret.client.errors import ConversionError
from leveret.client.redrive import REJECT
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
"""Of a batch without maxMessagesPerTrigger; as many again are fetched while Spark works on it."""
_PARTITION_BYTES: Final = 64 << 20
_WAIT_S: Final = 0.25
"""How long a trigger waits when nothing is there; Spark asks again."""
_PATIENCE_S: Final = 5.0
"""How long availableNow and once wait for messages that the broker counts and could deliver."""

Offset = dict[str, Any]


@dataclass
class SpoolPartition(InputPartition):
    """Record batches of one file of the spool."""

    file: str
    first: int
    stop: int


@dataclass(slots=True)
class _Taken:
    """A delivery, not acked."""

    delivery: Delivery
    said: bytes
    """What stands for it."""
    named: bool
    """It has an id."""
    batch: int
    """Where in the spool it is, or one that it is a copy of."""


@dataclass(slots=True)
class _New:
    """What the spool does not know yet."""

    messages: list[_Taken] = field(default_factory=list)
    digests: dict[bytes, None] = field(default_factory=dict)
    """What stands for those that have an id."""
    copies: list[_Taken] = field(default_factory=list)
    """Further ones with the same id and body."""


class SpoolStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`SpoolStreamReader(options)`; connects and takes over the spool at the first call on the driver."""

    def __init__(self, options: SourceOptions) -> None:
        if options.spool_location is None:
            raise BadOption(
                "option spoolLocation is missing: the broker is not Leveret, so messages are kept in files "
                "until Spark has committed them",
                hint="a directory that driver and executors reach: /shared/spool, file:///shared/spool, s3://…",
            )
        if options.cursor is None:
            raise BadOption("option cursor is missing", hint="the query's name: any name, kept for its life")
        self._options = options
        self._acks = options.ack_mode == "commit"
        self._place = Place.at(
            options.spool_location,
            folder_of(vhost=options.vhost, queue=options.subject, cursor=options.cursor, kept=self._acks),
        )
        self._spool: Spool | None = None
        self._consumer: QueueConsumer | None = None
        self._cluster: str | None = None
        """How the broker calls itself, once it was asked."""
        self._unsettled: dict[int, list[_Taken]] = {}
        """Deliveries by the batch they are in, or are copies of."""
        self._returning = Returning(options.dedup_window_s)
        self._is_a_queue = False
        """The broker was asked, and has said so."""
        self._budget: int | None = None
        """How many messages availableNow may still take."""
        self._waiting: int | None = None
        self._warned: set[str] = set()

    # what Spark calls, on the driver

    def initialOffset(self) -> Offset:  # noqa: N802  (Spark's name, as are the others)
        return self._offset(self._claimed().settled)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.max_messages is None and self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadMaxRows(self._options.max_messages or BATCH_MESSAGES)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._budget = self._connected().depth()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        number = self._number(start)
        spool = self._claimed(partial(self._check_start, number))
        self._settle(spool, number)
        batch = spool.after(number)
        if batch is None:
            batch = self._spool_more(spool, limit)
        self._waiting = self._connected().ready()
        return start if batch is None else self._offset(batch) | {"from": start.get("from", number)}

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        if self._spool is None:
            return None
        lag = {} if self._waiting is None else {"ready": self._waiting}
        return self._offset(self._spool.last) | lag

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        first, last = self._number(start), self._number(end)
        if "from" not in start:
            first = end.get("from", first)  # the first batch, once more: others may have settled it meanwhile
        if first == last:
            return []
        numbers = range(first + 1, last + 1)
        spool = self._opened(partial(self._check_batches, numbers))
        found = (spool.manifest(number) for number in numbers)
        return _split([manifest for manifest in found if manifest is not None], self._options.min_partitions)

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
        mine = self._offset(0)
        for name in ("queue", "vhost", "cursor"):
            if offset.get(name) != mine[name]:
                raise WrongCheckpoint(
                    f"the checkpoint belongs to {name} '{offset.get(name)}', this query reads {name} "
                    f"'{mine[name]}'",
                    hint="each query has a checkpoint of its own",
                )
        number = offset.get("spool")
        if not isinstance(number, int):
            raise WrongCheckpoint(
                f"the checkpoint is not of a spooled query: it says {offset}",
                hint="the queue was on another kind of broker; begin with a new checkpoint",
            )
        return number

    def _check_start(self, number: int, extent: Extent) -> None:
        """The checkpoint and the spool must have gone the same way."""
        if self._acks and number > extent.last:
            self._lose(self._lost(number, extent))
        elif self._acks and number < extent.settled:
            lost = DataLost(
                f"the checkpoint is at batch {number} of the spool at {self._place}, which is settled up to "
                f"{extent.settled}: another checkpoint was used in between",
                hint="what that read is not in this query's result; failOnDataLoss=false goes on without it",
            )
            self._lose(lost)

    def _check_batches(self, numbers: range, extent: Extent) -> None:
        """What was planned must be there."""
        for number in numbers:
            if self._acks and number not in extent.unsettled:
                self._lose(self._lost(number, extent))

    def _lose(self, lost: DataLost) -> None:
        """An error, or a warning where loss is allowed."""
        if self._options.fail_on_data_loss:
            raise lost
        self._warn_once(lost.sentence)

    def _lost(self, number: int, extent: Extent) -> DataLost:
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
        """The spool, which must be of the queue's broker."""
        if self._cluster is None:
            self._cluster = self._connected().cluster
        spool = self._opened(check)
        spool.claim(self._cluster)
        return spool

    def _opened(self, check: Callable[[Extent], None] = lambda _: None) -> Spool:
        """The spool, which must still be this run's. Who has no business here takes nothing over: it is
        checked first."""
        if self._spool is None:
            if not self._acks:
                self._place.delete_all()  # what an earlier run tried out has gone back to the queue
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
        """Who can be asked about the queue, and has not begun to consume it before more is to be spooled."""
        if self._consumer is None:
            wanted = 2 * (self._options.max_messages or BATCH_MESSAGES) if self._acks else PREFETCH_MAX
            consumer = QueueConsumer(self._options, prefetch=min(wanted, PREFETCH_MAX))
            try:
                consumer.open()
            except BaseException:
                consumer.close()
                raise
            self._consumer = consumer
        return self._consumer

    def _settle(self, spool: Spool, number: int) -> None:
        """Spark has committed everything up to this batch."""
        spool.settle(number)
        if self._acks:
            for batch in [batch for batch in self._unsettled if batch <= number]:
                self._ack(self._unsettled[batch])
                del self._unsettled[batch]
        self._returning.settled(number, time.monotonic())

    def _ack(self, settled: list[_Taken]) -> None:
        """What it is too late for comes again."""
        if not settled or self._consumer is None:
            return
        answers = self._consumer.ack([taken.delivery for taken in settled])
        for taken, answer in zip(settled, answers, strict=True):
            if answer is Settled.STALE and not taken.named:
                self._returning.add(taken.said, taken.batch)

    def _spool_more(self, spool: Spool, limit: ReadLimit) -> int | None:
        """The next batch, out of what is delivered; None if nothing new is."""
        consumer = self._connected()
        consumer.begin()
        max_messages, max_bytes = self._limits(limit)
        comes_again = self._budget is None and not isinstance(limit, ReadAllAvailable)  # that is once
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
            if comes_again:
                return None
            empty, now_s = consumer.ready() == 0, time.monotonic()
            was_empty = consumer.quiet_since_s <= empty_s  # what the broker counts no more is under way
            if (empty and was_empty) or now_s > consumer.quiet_since_s + _PATIENCE_S:
                break
            empty_s = now_s if empty else 0.0
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

    def _limits(self, limit: ReadLimit) -> tuple[int, int | None]:
        options = self._options
        if isinstance(limit, ReadMaxRows):
            own = limit.max_rows == (options.max_messages or BATCH_MESSAGES)
            return limit.max_rows, options.max_bytes if own else None
        if isinstance(limit, ReadMaxBytes):
            return PREFETCH_MAX, limit.max_bytes
        return PREFETCH_MAX, None

    def _refuse_streams(self, consumer: QueueConsumer, taken: list[Delivery]) -> None:
        """A stream can be consumed like a queue, but its messages stay: they are read by their offsets. Each
        says its own; what says one is not always of a stream, so the broker is asked, once."""
        if self._is_a_queue or not taken or STREAM_OFFSET.encode() not in taken[0].header:
            return
        if consumer.is_a_stream():
            raise BadOption(
                f"'{self._options.queue}' is a stream, not a queue", hint="name it with option stream"
            )
        self._is_a_queue = True

    def _without_known(self, spool: Spool, deliveries: list[Delivery]) -> _New:
        """Copies of what is settled are acked, copies of what is not wait until it is."""
        new = _New()
        settled: list[_Taken] = []
        for taken in self._looked_up(spool, deliveries):
            if taken.batch != NEW:
                if self._acks and taken.batch <= spool.settled:
                    settled.append(taken)
                else:
                    self._keep(taken, taken.batch)
            elif taken.said in new.digests:
                new.copies.append(taken)
            else:
                new.messages.append(taken)
                if taken.named:
                    new.digests[taken.said] = None
                continue
            self._warn_of_copies(taken.delivery)
        if settled:
            spool.check()
            self._ack(settled)
        return new

    def _looked_up(self, spool: Spool, deliveries: list[Delivery]) -> list[_Taken]:
        """Each with what stands for it, and where that is in the spool."""
        found: list[_Taken] = []
        for delivery in deliveries:
            name = _message_id(delivery)
            said = digest(name, delivery.body) if name else digest_without_id(delivery)
            found.append(_Taken(delivery, said, bool(name), NEW))
        named = [taken for taken in found if taken.named]
        batches = spool.find(ids_of([taken.said for taken in named])).tolist()
        for taken, batch in zip(named, batches, strict=True):
            taken.batch = batch
        self._look_up_unnamed([taken for taken in found if not taken.named])
        return found

    def _look_up_unnamed(self, unnamed: list[_Taken]) -> None:
        """Those that this run has seen before, and could not ack on the channel on which they came."""
        if unnamed:
            self._warn_once(
                f"messages of queue '{self._options.subject}' have no message_id: they are read at least "
                "once, and may be read twice after a lost connection or a restart"
            )
        again = [taken for taken in unnamed if taken.delivery.wire_redelivered]
        if again:
            self._expect_what_was_lost()
        for taken in again:
            taken.batch = self._returning.take(taken.said) or NEW

    def _expect_what_was_lost(self) -> None:
        """Deliveries whose channel has ended can't be acked any more."""
        for batch, kept in self._unsettled.items():
            alive: list[_Taken] = []
            for taken in kept:
                if taken.delivery.ledger.alive:
                    alive.append(taken)
                elif not taken.named:
                    self._returning.add(taken.said, batch)
            self._unsettled[batch] = alive

    def _keep(self, taken: _Taken, batch: int) -> None:
        """Until the batch is settled; what it holds is in the spool."""
        taken.batch = batch
        taken.delivery.body = taken.delivery.header = b""
        self._unsettled.setdefault(batch, []).append(taken)

    def _warn_if_full(self) -> None:
        """Where nothing is acked, everything that was read is in flight."""
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
    """How many of these the broker had counted: not copies that come again, of which nobody knows."""
    first = sum(not delivery.wire_redelivered for delivery in taken)
    return first + sum(message.delivery.wire_redelivered for message in new.messages)


def _message_id(delivery: Delivery) -> str | None:
    """With the marks of a pipeline's rejection: what comes back is no copy of what was rejected."""
    try:
        name = delivery.message_id
        if not name or REJECT.encode() not in delivery.header:
            return name
        return f"{name} {sorted(each for each in delivery.headers.items() if each[0].startswith(REJECT))}"
    except ConversionError:  # whoever reads the properties later is told
        return None


def _split(manifests: list[Manifest], at_least: int) -> list[InputPartition]:
    """Neighbouring chunks of a file go together, up to a size that leaves enough partitions."""
    total_bytes = sum(size for manifest in manifests for _, size in manifest.chunks)
    share = min(_PARTITION_BYTES, max(1, total_bytes // max(1, at_least)))
    left = sum(len(manifest.chunks) for manifest in manifests)
    found: list[InputPartition] = []
    for manifest in manifests:
        first = size = 0
        for index, (_, chunk_bytes) in enumerate(manifest.chunks):
            needed = left < at_least - len(found)  # each chunk that is left, by itself
            if index > first and (needed or size + chunk_bytes / 2 > share):
                found.append(SpoolPartition(manifest.file, first, index))
                first, size = index, 0
            size += chunk_bytes
            left -= 1
        found.append(SpoolPartition(manifest.file, first, len(manifest.chunks)))
    return found
