"""Readers: the cursors over a queue or stream, and which of its messages are in which state.

A queue has one reader, a stream one for each group. A stream's own cursor has no consumers: it has what
retention has left. Long work is a generator (`Steps`): its caller runs other work between two steps. The
rule: no step takes more than a few ms, and a step that follows a deletion raises `NotFound`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar

from leveret.broker.canonical import to_text
from leveret.broker.errors import NotFound
from leveret.broker.queues.queue import Queue
from leveret.broker.sessions.channel import Channel
from leveret.storage.offset_set import OffsetSet

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.groups.partition import Partition
    from leveret.broker.queries.lease_notes import LeaseNote, Query
    from leveret.broker.queues.consumer import Consumer, Receiver, Source
    from leveret.broker.sessions.unacked import Run
    from leveret.broker.vhosts.destination import Destination
    from leveret.broker.vhosts.vhost import VirtualHost
    from leveret.storage.cursor import Cursor

T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]

SETTLED, READY, IN_FLIGHT, DELAYED = "settled", "ready", "in_flight", "delayed"
LEASED, HIDDEN = "leased", "hidden"
STATES: Final = (SETTLED, READY, IN_FLIGHT, DELAYED, LEASED, HIDDEN)
"""States of a message. `leased`: held by a Spark query; `hidden`: written by a batch that is not committed
yet."""
RUNS_MAX: Final = 4_000
"""Number of runs of deliveries that are scanned of one channel."""
_RUNS_AT_ONCE: Final = 500
"""Number of runs that are scanned in one step: 1 us each."""
_CHANNELS_AT_ONCE: Final = 1_000


class Reader(NamedTuple):
    """`reader_of(broker, "/", "orders")`."""

    vhost: VirtualHost
    queue: Destination
    cursor: Cursor
    source: Source | None
    """What consumers hold messages from; None for a stream's own cursor."""
    groups: tuple[str, ...] = ()
    """Names of the groups that read the stream."""
    group: str | None = None
    partition: Partition | None = None
    """The partition of the group, for a stream."""

    def check(self) -> None:
        """Raise if the queue, or the group that was asked for, has been deleted."""
        if self.queue.deleted or self.cursor.deleted:
            raise NotFound(f"no {self.queue}: it has been deleted")

    @property
    def end(self) -> int:
        """Offset below which messages can be read: in a stream, those that are on disk."""
        stream = self.vhost.streams.get(self.queue.name)
        return self.queue.log.next if stream is None else stream.readable()

    def hidden(self) -> OffsetSet:
        return self.vhost.hidden(self.queue)

    def counts(self, start: int, stop: int, hidden: OffsetSet) -> dict[str, int]:
        """Return the number of offsets in [start, stop) in each state."""
        if start >= stop:
            return dict.fromkeys(STATES, 0)
        cursor = self.cursor
        unsettled = cursor.settled.unsettled_count(start, stop)
        held = cursor.in_flight.leased_count(start, stop)
        hidden_count = hidden.count(start, stop)
        counts = {
            SETTLED: stop - start - unsettled,
            READY: 0,
            IN_FLIGHT: cursor.in_flight.count(start, stop) - held,
            DELAYED: cursor.waiting.delayed_count(start, stop),
            # Hidden rows are leased in the queue's own cursor.
            LEASED: held - hidden_count if self.partition is None else held,
            HIDDEN: hidden_count,
        }
        return {**counts, READY: stop - start - sum(counts.values())}

    def state(self, offset: int, hidden: OffsetSet) -> str:
        """Return the state of one message."""
        counts = self.counts(offset, offset + 1, hidden)
        return next(state for state in STATES if counts[state])

    def holds(self, run: Run[Consumer]) -> bool:
        """Return whether a delivery is of a message of this reader."""
        return run.holder.source is self.source


class Holder(NamedTuple):
    """The consumer that has a message in flight; `tag` is empty for `basic.get`."""

    addresses: str
    connection: str
    channel: int
    tag: str
    user: str
    vhost: str


def reader_of(
    broker: Broker, vhost: str, name: str, *, group: str | None = None, subject: str | None = None
) -> Reader:
    """Return the reader of a queue, of a group's partition, or of a stream; raise `NotFound` without one.

    `subject` chooses between groups of one name that read the stream and its topic.
    """
    host = broker.vhosts[vhost]
    queue = host.queues.get(name)
    if queue is None:
        raise NotFound(f"no queue '{name}' in vhost '{vhost}'")
    stream = host.streams.get(name)
    reading = [] if stream is None else host.groups.reading(stream)
    groups = tuple(each.name for each, _ in reading)
    if group is None:
        source = queue.deliverer if isinstance(queue, Queue) else None
        return Reader(host, queue, queue.cursor, source, groups)
    for each, partition in reading:
        if each.name == group and subject in (None, each.subject):
            return Reader(host, queue, partition.cursor, partition.deliverer, groups, group, partition)
    raise NotFound(f"no group '{group}' reads {queue}")


def readers_in(broker: Broker, vhost: str) -> Iterator[Reader]:
    """Yield the readers of all queues of a virtual host, and those of all groups."""
    host = broker.vhosts[vhost]
    for queue in host.plain_queues.values():
        yield Reader(host, queue, queue.cursor, queue.deliverer)
    for group in host.groups:
        for name, partition in group.partitions.items():
            stream = host.streams.get(name)
            if stream is not None:
                source = partition.deliverer
                yield Reader(host, stream, partition.cursor, source, (), group.name, partition)


def holder_of(consumer: Consumer) -> Holder:
    """Return the identity of a consumer."""
    channel = consumer.channel
    assert isinstance(channel, Channel)
    session = channel.session
    return Holder(
        session.addresses,
        session.name,
        channel.number,
        consumer.tag,
        session.user.name,
        session.vhost.name,
    )


def outstanding(channel: Receiver) -> Iterator[Run[Consumer]]:
    """Yield a channel's unacked deliveries, then those that its open transaction settles."""
    buffered = () if channel.transaction is None else channel.transaction.settled()
    return chain(channel.unacked, buffered)


def channels_in(broker: Broker, vhost: str) -> list[Channel]:
    """Return the channels of a virtual host that hold messages."""
    return [
        channel
        for session in broker.sessions
        for channel in session.channels
        if channel.vhost.name == vhost and (channel.unacked.count or channel.transaction is not None)
    ]


def oldest_deliveries(broker: Broker, reader: Reader, limit: int) -> Steps[list[Run[Consumer]]]:
    """Return the oldest unacked deliveries of a reader, of all channels together."""
    found: list[Run[Consumer]] = []
    if reader.source is None or not reader.cursor.in_flight:
        return found
    scanned = 0
    for number, channel in enumerate(channels_in(broker, reader.queue.vhost.name)):
        runs = list(islice(outstanding(channel), RUNS_MAX))
        found += islice(filter(reader.holds, runs), limit)
        scanned += len(runs)
        if scanned >= _RUNS_AT_ONCE or number % _CHANNELS_AT_ONCE == _CHANNELS_AT_ONCE - 1:
            scanned = 0
            yield
            reader.check()
    return sorted(found, key=lambda run: run.since_us)[:limit]


class _HoldersOf:
    """All consumers of a source, also cancelled ones and those of `basic.get`, without a list of them."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __contains__(self, consumer: object) -> bool:
        return getattr(consumer, "source", None) is self._source


def delivery_of(broker: Broker, reader: Reader, offset: int) -> Run[Consumer] | None:
    """Return the unacked delivery of one message, or None."""
    if reader.source is None or offset not in reader.cursor.in_flight:
        return None
    if reader.partition is not None:
        return reader.partition.delivery_of(offset)
    holders = _HoldersOf(reader.source)
    for channel in channels_in(broker, reader.vhost.name):
        run = channel.unacked.find(offset, holders)
        if run is not None:
            return run
        for run in () if channel.transaction is None else channel.transaction.settled():
            if run.holder in holders and run.start <= offset - run.shift < run.stop:
                return run
    return None


def reason_of(cursor: Cursor, offset: int) -> str | None:
    """Return the reason of a message's last return, or None."""
    reason = cursor.returns.reason(offset)
    return None if reason is None else to_text(reason)


def leases_of(reader: Reader) -> Iterator[tuple[Query, LeaseNote]]:
    """Yield the leases of the queries over a queue, the oldest of each query first."""
    leases = reader.queue.leases if isinstance(reader.queue, Queue) else None
    for query in () if leases is None else leases.queries.values():
        yield from ((query, query.leases[number]) for number in sorted(query.leases))


def lease_of(reader: Reader, offset: int) -> dict[str, object] | None:
    """Return query, epoch and number of the lease that holds a message."""
    for query, lease in leases_of(reader):
        if any(start <= offset < stop for start, stop in lease.ranges):
            return {"query": query.name, "epoch": query.epoch, "lease": lease.number}
    return None
