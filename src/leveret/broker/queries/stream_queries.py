"""Queries over streams and topics, which read by offset and report how far they have committed.

A query is a group without members, so its progress and lag are those of a group. Only its present run counts
(`fencing`): the epoch is in the group's note, and a request with another epoch is refused. The answer to a
request for the next batch consists of offsets; other processes read the rows from disk. The rule: an offset
is readable only when everything below it is decided. So a range of offsets always means the same messages,
except for those that retention removes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, starmap
from typing import NamedTuple
from weakref import WeakKeyDictionary

from leveret.broker.access.accounts import User
from leveret.broker.errors import PreconditionFailed, QueryRefused
from leveret.broker.groups import topics
from leveret.broker.groups.group import Group
from leveret.broker.groups.settings import QUERY
from leveret.broker.queries import partition_quotas
from leveret.broker.queries.fencing import Runs, fenced_error
from leveret.broker.queries.readable_offsets import Extent, existing, extent_of, gone_below
from leveret.broker.queues import message_sizes
from leveret.broker.streams.positions import Position
from leveret.broker.streams.stream import Stream
from leveret.broker.vhosts.vhost import VirtualHost
from leveret.storage.offset_ranges import total
from leveret.storage.offset_set import Range


class Subject(NamedTuple):
    """A stream, or a topic with its partitions, and the user who reads it."""

    user: User
    vhost: VirtualHost
    name: str
    streams: Sequence[Stream]


class RunName(NamedTuple):
    """The query and the epoch of a run. Without a query's name the request is a plain read."""

    query: str
    epoch: int


class Limits(NamedTuple):
    """The limits of a batch; None stands for no limit."""

    stops: Mapping[str, int] | None
    """The offsets to stop at, by stream; a batch contains nothing of other streams."""
    max_messages: int | None
    max_bytes: int | None


class Stretch(NamedTuple):
    """The offsets [start, stop) of one partition in a batch."""

    extent: Extent
    start: int
    stop: int


class Part(NamedTuple):
    """Messages of one partition; `number` is its place in the topic."""

    number: int
    extent: Extent
    ranges: list[Range]


@dataclass(slots=True)
class _Run:
    """State of a query's present run that is lost when the broker stops."""

    known: Runs = field(default_factory=Runs)
    turn: int = 0
    """The turn of the next batch, when a limit is too small for all partitions."""


class StreamQueries:
    """`queries = StreamQueries(); epoch, places = queries.follow(subject, "nightly", ...)`."""

    def __init__(self) -> None:
        self._runs: WeakKeyDictionary[Group, _Run] = WeakKeyDictionary()

    def follow(
        self,
        subject: Subject,
        query: str,
        *,
        start: Position,
        offsets: Mapping[str, int],
        exact: bool,
        run: str = "",
    ) -> tuple[int, list[tuple[Extent, int]]]:
        """Begin a run of a query; return its epoch, and its committed offset in each partition.

        A new query begins at `offsets` in the streams that are named there, and at `start` in others. If
        messages at these offsets are deleted, an `exact` query is refused.
        """
        group = find(subject.vhost, subject.name, query)
        if group is None:
            _check_start(subject, start, offsets, exact=exact)
            group = subject.vhost.groups.create(
                subject.name, query, {}, user=subject.user, start=start, offsets=offsets, query=True
            )
        else:
            subject.vhost.groups.open(subject.name, query, {}, user=subject.user, query=True)
        known = self._run(group).known
        epoch = known.epoch_of(run)
        if epoch is None:
            epoch = subject.vhost.groups.begin_run(group)
            known.remember(run, epoch)
            self._runs[group] = _Run(known)
        return epoch, [
            (extent_of(stream), group.partitions[stream.name].cursor.settled.low)
            for stream in subject.streams
        ]

    def advance(
        self,
        subject: Subject,
        run: RunName,
        offsets: Mapping[str, int],
        *,
        limits: Limits,
        settle_only: bool = False,
    ) -> tuple[list[Stretch], int]:
        """Settle all messages below `offsets`; return the next batch, and the number of messages behind."""
        group = _present(subject, run)
        _check_offsets(subject, offsets)
        if group is not None:
            for name, offset in offsets.items():
                group.partitions[name].settle_below(offset, who=_label(group))
        starts = {stream.name: _first_offset(stream, group) for stream in subject.streams} | dict(offsets)
        partitions = []
        for stream in subject.streams:
            start, stop = starts[stream.name], stream.decided()
            if limits.stops is not None:
                stop = min(stop, limits.stops.get(stream.name, start))
            partitions.append(_Unread(stream, start, stop))
        is_empty = settle_only or (group is not None and group.settings.paused)
        counts = [0] * len(partitions) if is_empty else self._quotas(group, partitions, limits)
        # Without messages the query stays where it is, even if rows were aborted meanwhile.
        moves = any(counts)
        stretches = [
            Stretch(extent_of(unread.stream), unread.start, unread.after(count) if moves else unread.start)
            for unread, count in zip(partitions, counts, strict=True)
        ]
        return stretches, sum(unread.messages for unread in partitions) - sum(counts)

    def _quotas(self, group: Group | None, partitions: Sequence[_Unread], limits: Limits) -> list[int]:
        """Return the number of messages of each partition in the next batch."""
        turn = 0
        if group is not None:
            run = self._run(group)
            turn, run.turn = run.turn, run.turn + 1
        available = [unread.messages for unread in partitions]
        max_messages = sum(available) if limits.max_messages is None else limits.max_messages
        if limits.max_bytes is None:
            return partition_quotas.by_count(available, max_messages, turn=turn)
        max_messages = min(max_messages, message_sizes.COUNT_MAX)
        counted = partition_quotas.by_count(available, max_messages, turn=turn)
        sizes = [islice(unread.sizes(), count) for unread, count in zip(partitions, counted, strict=True)]
        return partition_quotas.by_bytes(sizes, limits.max_bytes, turn=turn)

    def _run(self, group: Group) -> _Run:
        return self._runs.setdefault(group, _Run())


def cover(subject: Subject, run: RunName, spans: Mapping[str, Range]) -> list[Part]:
    """Return the readable messages between two offsets of each stream."""
    _present(subject, run)
    _check_offsets(subject, {name: stop for name, (_, stop) in spans.items()})
    parts = []
    for number, stream in enumerate(subject.streams):
        if stream.name in spans:
            start, stop = spans[stream.name]
            ranges = stream.visible(start, min(stop, stream.decided()))
            parts.append(Part(number, extent_of(stream), ranges))
    return parts


def reject(subject: Subject, query: str, rejected: Mapping[str, Sequence[Range]], *, why: bytes) -> None:
    """Settle messages that a query has published among its rejects, if the query still exists."""
    group = find(subject.vhost, subject.name, query)
    if group is not None:
        subject.vhost.groups.check_operate(group, subject.user)
    if group is not None and group.settings.mode == QUERY:
        partitions = [group.partitions[name] for name in rejected if name in group.partitions]
        chosen = [
            (partition, existing(rejected[partition.name], partition.stream)) for partition in partitions
        ]
        for partition, ranges in chosen:
            partition.reject_read(ranges, who=_label(group), why=why)


def offsets_at(subject: Subject, at: Position, offsets: Mapping[str, int]) -> list[tuple[Extent, int]]:
    """Return the offset of a position in each partition; `offsets` overrides it by name."""
    places = []
    for stream in subject.streams:
        position = Position("offset", offsets[stream.name]) if stream.name in offsets else at
        extent = extent_of(stream)
        places.append((extent, min(max(position.offset_in(stream), extent.gone_below), extent.end)))
    return places


def find(vhost: VirtualHost, subject: str, query: str) -> Group | None:
    """Return the group of a query, or None."""
    return next((group for group in vhost.groups if (group.subject, group.name) == (subject, query)), None)


def subject_of(user: User, vhost: VirtualHost, subject: str, *, is_topic: bool) -> Subject:
    """Return the stream or topic to read; raise if it is of the other kind or not readable for the user."""
    queue = vhost.queues.get(subject)
    if is_topic and subject in vhost.streams:
        raise QueryRefused("kind", f"{queue} is a stream and no topic", hint="Use option stream.")
    if not is_topic and subject not in vhost.streams:
        if topics.partitions(vhost, subject):
            sentence = f"'{subject}' in vhost '{vhost.name}' is a topic and no stream"
            raise QueryRefused("kind", sentence, hint="Use option topic.")
        if queue is not None:
            raise QueryRefused("kind", f"{queue} is no stream", hint="Use option queue.")
    streams = topics.streams_of(vhost, subject)
    for name in dict.fromkeys([subject, *(stream.name for stream in streams)]):
        user.check("read", vhost.name, "queue", name)
    return Subject(user, vhost, subject, streams)


def _check_start(subject: Subject, start: Position, offsets: Mapping[str, int], *, exact: bool) -> None:
    """Raise if a query can't begin at these offsets; behind the end it would miss new messages."""
    known = {stream.name: extent_of(stream) for stream in subject.streams}
    for name in offsets:
        if name not in known:
            raise PreconditionFailed(f"'{name}' is no partition of '{subject.name}'")
    wanted = dict.fromkeys(known, start.value) if start.kind == "offset" else {}
    for name, offset in (wanted | dict(offsets)).items():
        end, gone = known[name].end, known[name].gone_below
        if not 0 <= offset <= end:
            raise PreconditionFailed(
                f"a query can't begin at offset {offset} of stream '{name}', which ends at {end}"
            )
        if offset < gone and exact:
            raise QueryRefused(
                "gone",
                f"offsets {offset} to {gone - 1} of stream '{name}' are deleted: a query can't begin there",
                hint=f"failOnDataLoss=false begins at {gone}",
            )


def _check_offsets(subject: Subject, offsets: Mapping[str, int]) -> None:
    """Raise `QueryRefused` if a checkpoint names partitions or offsets that do not exist."""
    vhost, ends = subject.vhost, {stream.name: stream.log.next for stream in subject.streams}
    for name, offset in offsets.items():
        if name not in ends:
            raise QueryRefused(
                "gone",
                f"partition '{name}' of '{subject.name}' in vhost '{vhost.name}' no longer exists",
                hint="It was deleted or unbound. Bind it again, or start the query with a new checkpoint.",
            )
        if offset > ends[name]:
            raise QueryRefused(
                "gone",
                f"the checkpoint is at offset {offset} of stream '{name}', which ends at {ends[name]}",
                hint="The broker's data are older than the checkpoint: start the query with a new one.",
            )


def _present(subject: Subject, run: RunName) -> Group | None:
    """Return the group of the query, or None for a plain read.

    Raise if `run` is not the present run, or the user may not operate the query.
    """
    if not run.query:
        return None
    vhost = subject.vhost
    group = find(vhost, subject.name, run.query)
    over_text = f"run {run.epoch} of query '{run.query}' over '{subject.name}' in vhost '{vhost.name}'"
    if group is None:
        raise QueryRefused(
            "forgotten",
            f"{over_text} is over: its group was deleted",
            hint="Started again it goes on where its checkpoint is.",
        )
    vhost.groups.check_operate(group, subject.user)
    if group.settings.mode != QUERY:
        raise PreconditionFailed(f"{group} is not a query's")
    if not group.epoch and 0 < run.epoch <= vhost.broker.now_us():
        # The group was made by an earlier version, which stored no epochs.
        vhost.groups.begin_run(group, run.epoch)
    if not group.epoch or group.epoch != run.epoch:
        raise fenced_error(f"{over_text} is over, or never began", present=group.epoch)
    return group


def _first_offset(stream: Stream, group: Group | None) -> int:
    """Return the offset to begin at in a partition that is not in the checkpoint.

    This is the partition's first offset, even if a later checkpoint has read some of it. If retention has
    removed messages since the group was made, it is 0, so that the loss is reported.
    """
    first = max(stream.log.first, gone_below(stream))
    if group is None:
        return first
    settled = group.partitions[stream.name].cursor.settled
    return 0 if settled.retired_below else min(first, settled.low)


def _label(group: Group) -> bytes:
    return b"query " + group.name.encode()


class _Unread:
    """The unread messages of one partition, from an offset on."""

    def __init__(self, stream: Stream, start: int, stop: int) -> None:
        self.stream = stream
        self.start = start
        self._stop = stop
        self._ranges = stream.visible(start, stop)
        self.messages = total(self._ranges)

    def after(self, count: int) -> int:
        """Return the offset after `count` messages; after all of them, the offset where reading must stop."""
        if count == self.messages:
            return max(self.start, self._stop)
        for start, stop in self._ranges:
            if count <= stop - start:
                return start + count if count else self.start
            count -= stop - start
        raise AssertionError("more messages than there are")

    def sizes(self) -> Iterator[int]:
        """Yield the sizes of the bodies, in order; 0 for removed messages."""
        summaries = self.stream.log.summaries(self._ranges)
        summary = next(summaries, None)
        for offset in chain.from_iterable(starmap(range, self._ranges)):
            if summary is not None and summary.offset == offset:
                yield summary.body_bytes
                summary = next(summaries, None)
            else:
                yield 0
