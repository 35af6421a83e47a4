"""Queries over streams and topics, which read by offset and say how far they have committed.

A query is a group without members: so its progress and its lag are those of any group. One run of it counts
(`fencing`): its epoch is in the group's note, and whoever comes with another one is refused. Who asks for the
next batch is told offsets; rows are read from the disk elsewhere. The rule: an offset is answered as readable
only when everything below it is decided, so that the same offsets are the same messages, whoever asks again,
but for what retention takes.
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
from leveret.broker.queries.fencing import Runs, fenced
from leveret.broker.queries.readable_offsets import Extent, existing, extent_of, gone_below
from leveret.broker.queues import message_sizes
from leveret.broker.streams.positions import Position
from leveret.broker.streams.stream import Stream
from leveret.broker.vhosts.vhost import VirtualHost
from leveret.storage.offset_ranges import total
from leveret.storage.offset_set import Range


class Subject(NamedTuple):
    """A stream, or a topic with its partitions, that a user reads."""

    user: User
    vhost: VirtualHost
    name: str
    streams: Sequence[Stream]


class RunName(NamedTuple):
    """A run of a query, as it names itself; a query without a name is none: somebody only reads."""

    query: str
    epoch: int


class Limits(NamedTuple):
    """What a batch may have at most; None stands for no limit."""

    stops: Mapping[str, int] | None
    """Nothing at or above these, by stream, and nothing of other streams."""
    max_messages: int | None
    max_bytes: int | None


class Stretch(NamedTuple):
    """What a batch has of one partition: nothing where it stops at its start."""

    extent: Extent
    start: int
    stop: int


class Part(NamedTuple):
    """Messages of one partition, which is the one with this number in its topic."""

    number: int
    extent: Extent
    ranges: list[Range]


@dataclass(slots=True)
class _Run:
    """What of the present run of a query is forgotten when the broker stops."""

    known: Runs = field(default_factory=Runs)
    turn: int = 0
    """Whose turn it is when a limit is too small for all partitions."""


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
        """Begin a run of a query; return its epoch, and how far the query is in each partition.

        A new query begins at `start`, but at `offsets` in streams that are named there. Where these messages
        are deleted, an `exact` one is refused.
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
        return epoch, [(extent_of(each), _low(group, each)) for each in subject.streams]

    def advance(
        self,
        subject: Subject,
        run: RunName,
        offsets: Mapping[str, int],
        *,
        limits: Limits,
        settle_only: bool = False,
    ) -> tuple[list[Stretch], int]:
        """Settle everything below `offsets`; return the next batch, and how many messages wait behind it."""
        group = _present(subject, run)
        _check_offsets(subject, offsets)
        if group is not None:
            _settle(group, offsets)
        starts = {stream.name: _beginning(stream, group) for stream in subject.streams} | dict(offsets)
        unread = []
        for stream in subject.streams:
            start, stop = starts[stream.name], stream.decided()
            if limits.stops is not None:
                stop = min(stop, limits.stops.get(stream.name, start))
            unread.append(_Unread(stream, start, stop))
        waits = settle_only or (group is not None and group.settings.paused)
        counts = [0] * len(unread) if waits else self._shared(group, unread, limits)
        moves = any(counts)  # else it waits for a message, whatever was aborted meanwhile
        stretches = [
            Stretch(extent_of(each.stream), each.start, each.behind(count) if moves else each.start)
            for each, count in zip(unread, counts, strict=True)
        ]
        return stretches, sum(each.messages for each in unread) - sum(counts)

    def _shared(self, group: Group | None, unread: Sequence[_Unread], limits: Limits) -> list[int]:
        """How many messages of each partition are in the next batch."""
        turn = 0
        if group is not None:
            run = self._run(group)
            turn, run.turn = run.turn, run.turn + 1
        available = [each.messages for each in unread]
        most = sum(available) if limits.max_messages is None else limits.max_messages
        if limits.max_bytes is None:
            return partition_quotas.by_count(available, most, turn=turn)
        weighed = partition_quotas.by_count(available, min(most, message_sizes.COUNT_MAX), turn=turn)
        sizes = [islice(each.sizes(), count) for each, count in zip(unread, weighed, strict=True)]
        return partition_quotas.by_bytes(sizes, limits.max_bytes, turn=turn)

    def _run(self, group: Group) -> _Run:
        return self._runs.setdefault(group, _Run())


def cover(subject: Subject, run: RunName, spans: Mapping[str, Range]) -> list[Part]:
    """Return which messages are there between two offsets of each stream, as far as they are decided."""
    _present(subject, run)
    _check_offsets(subject, {name: stop for name, (_, stop) in spans.items()})
    parts = []
    for number, stream in enumerate(subject.streams):
        if stream.name in spans:
            start, stop = spans[stream.name]
            ranges = _visible(stream, start, min(stop, stream.decided()))
            parts.append(Part(number, extent_of(stream), ranges))
    return parts


def reject(subject: Subject, query: str, rejected: Mapping[str, Sequence[Range]], *, why: bytes) -> None:
    """Settle what a query has among its rejects; nothing of a query that is not there, or has settled it."""
    group = find(subject.vhost, subject.name, query)
    if group is not None:
        subject.vhost.groups.check_operate(group, subject.user)
    if group is not None and group.settings.mode == QUERY:
        there = {name: group.partitions[name] for name in rejected if name in group.partitions}
        chosen = [(each, existing(rejected[name], each.stream)) for name, each in there.items()]
        for partition, ranges in chosen:
            partition.reject_read(ranges, who=_label(group), why=why)


def located(subject: Subject, at: Position, offsets: Mapping[str, int]) -> list[tuple[Extent, int]]:
    """Return where a position is in each partition; in those that `offsets` names it is given."""
    places = []
    for stream in subject.streams:
        position = Position("offset", offsets[stream.name]) if stream.name in offsets else at
        extent = extent_of(stream)
        places.append((extent, min(max(position.in_(stream), extent.gone_below), extent.end)))
    return places


def find(vhost: VirtualHost, subject: str, query: str) -> Group | None:
    """Return the group of a query; None if there is none."""
    return next((group for group in vhost.groups if (group.subject, group.name) == (subject, query)), None)


def subject_of(user: User, vhost: VirtualHost, subject: str, *, is_topic: bool) -> Subject:
    """Return what is read: of the kind that was said, and all of it readable for the user."""
    queue = vhost.queues.get(subject)
    if is_topic and subject in vhost.streams:
        raise QueryRefused("kind", f"{queue} is a stream and no topic", hint="Use option stream.")
    if not is_topic and subject not in vhost.streams:
        if topics.partitions(vhost, subject):
            sentence = f"'{subject}' in vhost '{vhost.name}' is a topic and no stream"
            raise QueryRefused("kind", sentence, hint="Use option topic.")
        if queue is not None:
            raise QueryRefused("kind", f"{queue} is no stream", hint="Use option queue.")
    found = topics.streams_of(vhost, subject)
    for name in dict.fromkeys([subject, *(stream.name for stream in found)]):
        user.check("read", vhost.name, "queue", name)
    return Subject(user, vhost, subject, found)


def _check_start(subject: Subject, start: Position, offsets: Mapping[str, int], *, exact: bool) -> None:
    """Raises where a query can't begin: behind the end it would leave out what comes next."""
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
    """Raises when a checkpoint names what is not there."""
    vhost, ends = subject.vhost, {stream.name: stream.log.next for stream in subject.streams}
    for name, offset in offsets.items():
        if name not in ends:
            raise QueryRefused(
                "gone",
                f"partition '{name}' of '{subject.name}' in vhost '{vhost.name}' is not there any more",
                hint="It was deleted or unbound. Bind it again, or start the query with a new checkpoint.",
            )
        if offset > ends[name]:
            raise QueryRefused(
                "gone",
                f"the checkpoint is at offset {offset} of stream '{name}', which ends at {ends[name]}",
                hint="The broker's data are older than the checkpoint: start the query with a new one.",
            )


def _present(subject: Subject, run: RunName) -> Group | None:
    """The query, if this is its present run, and the user may operate it; None where no query asks."""
    if not run.query:
        return None
    vhost = subject.vhost
    group = find(vhost, subject.name, run.query)
    over = f"run {run.epoch} of query '{run.query}' over '{subject.name}' in vhost '{vhost.name}'"
    if group is None:
        raise QueryRefused(
            "forgotten",
            f"{over} is over: its group was deleted",
            hint="Started again it goes on where its checkpoint is.",
        )
    vhost.groups.check_operate(group, subject.user)
    if group.settings.mode != QUERY:
        raise PreconditionFailed(f"{group} is not a query's")
    if not group.epoch and 0 < run.epoch <= vhost.broker.now_us():
        vhost.groups.begin_run(group, run.epoch)  # of an earlier version, which kept no epochs
    if not group.epoch or group.epoch != run.epoch:
        raise fenced(f"{over} is over, or never began", present=group.epoch)
    return group


def _beginning(stream: Stream, group: Group | None) -> int:
    """Where a partition is read from that was not there before, as the checkpoint has it.

    At its beginning, also if a later checkpoint of the query has had some of it. What retention took since
    the query's group is there is to be said, and not passed over.
    """
    first = max(stream.log.first, gone_below(stream))
    if group is None:
        return first
    settled = group.partitions[stream.name].cursor.settled
    return 0 if settled.retired_below else min(first, settled.low)


def _low(group: Group, stream: Stream) -> int:
    return group.partitions[stream.name].cursor.settled.low


def _settle(group: Group, offsets: Mapping[str, int]) -> None:
    for name, offset in offsets.items():
        group.partitions[name].settle_below(offset, who=_label(group))


def _label(group: Group) -> bytes:
    return b"query " + group.name.encode()


def _visible(stream: Stream, start: int, stop: int) -> list[Range]:
    return stream.visible(start, stop) if start < stop else []


class _Unread:
    """What may be read of one partition, from an offset on."""

    def __init__(self, stream: Stream, start: int, stop: int) -> None:
        self.stream = stream
        self.start = start
        self._stop = stop
        self._ranges = _visible(stream, start, stop)
        self.messages = total(self._ranges)

    def behind(self, count: int) -> int:
        """The offset behind so many messages; behind all of them, that is where nothing more may be read."""
        if count == self.messages:
            return max(self.start, self._stop)
        for start, stop in self._ranges:
            if count <= stop - start:
                return start + count if count else self.start
            count -= stop - start
        raise AssertionError("more messages than there are")

    def sizes(self) -> Iterator[int]:
        """Of the bodies, in order; nothing for those that are gone."""
        found = self.stream.log.summaries(self._ranges)
        brief = next(found, None)
        for offset in chain.from_iterable(starmap(range, self._ranges)):
            if brief is not None and brief.offset == offset:
                yield brief.body_bytes
                brief = next(found, None)
            else:
                yield 0
