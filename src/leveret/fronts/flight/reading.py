"""What the broker answers to those who read streams and topics by offset.

A query of Spark is a group without members: it reads by itself, and says how far it has committed; so its
progress and its lag are those of any group. One run of a query counts: each has an epoch, which the broker
chooses and writes down, and whoever comes with another one is refused. Who may read what is checked here;
rows are read by the Flight process. The rule: an offset is answered as readable only when everything below it
is decided, so that the same offsets are the same messages, whoever asks again, but for what retention takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, starmap
from typing import Final
from weakref import WeakKeyDictionary

from leveret.broker import weighing
from leveret.broker.accounts import User
from leveret.broker.errors import PreconditionFailed
from leveret.broker.groups import topics
from leveret.broker.groups.group import Group
from leveret.broker.groups.settings import QUERY
from leveret.broker.leases import LeaseRefused, remember
from leveret.broker.streams.positions import Position
from leveret.broker.streams.stream import Stream
from leveret.broker.vhost import VirtualHost
from leveret.flight import actions
from leveret.flight.tickets import pack_ranges, unpack_ranges
from leveret.fronts.flight import shares
from leveret.storage.log import Log
from leveret.storage.offsets import OffsetSet, Range

_REASON_BYTES_MAX: Final = 255


@dataclass(slots=True)
class _Run:
    """What of the present run of a query is forgotten when the broker stops."""

    known: dict[str, int] = field(default_factory=dict)
    """The epochs of this and of earlier ones, by the names they have given themselves."""
    turn: int = 0
    """Whose turn it is when a limit is too small for all partitions."""


class Reading:
    """`Reading().answer(user, vhost, actions.Locate(...))`."""

    def __init__(self) -> None:
        self._runs: WeakKeyDictionary[Group, _Run] = WeakKeyDictionary()

    def answer(self, user: User, vhost: VirtualHost, request: actions.OffsetRequest) -> actions.Answer:
        streams = _streams(user, vhost, request.subject, is_topic=request.is_topic)
        match request:
            case actions.Locate():
                return actions.Located(_located(streams, request.at))
            case actions.Follow():
                return self._follow(user, vhost, streams, request)
            case actions.Advance():
                return self._advance(user, vhost, streams, request)
            case actions.Cover():
                return self._cover(user, vhost, streams, request)
            case actions.RejectRead():
                return _reject(user, vhost, request)

    def _follow(
        self, user: User, vhost: VirtualHost, streams: Sequence[Stream], request: actions.Follow
    ) -> actions.Followed:
        group = _find(vhost, request)
        if group is None:
            _check_start(streams, request)
            position = Position(request.at.kind, request.at.value)
            group = vhost.groups.create(
                request.subject,
                request.query,
                {},
                user=user,
                start=position,
                offsets=request.at.offsets,
                query=True,
            )
        else:
            vhost.groups.open(request.subject, request.query, {}, user=user, query=True)
        known = self._run(group).known
        epoch = known.get(request.run, 0)
        if not epoch:
            epoch = vhost.groups.begin_run(group)
            if request.run:
                remember(known, request.run, epoch)
            self._runs[group] = _Run(known)
        offsets = {each.name: group.partitions[each.name].cursor.settled.low for each in streams}
        return actions.Followed(epoch, [_place(stream, offsets[stream.name]) for stream in streams])

    def _advance(
        self, user: User, vhost: VirtualHost, streams: Sequence[Stream], request: actions.Advance
    ) -> actions.Advanced:
        group = _group(user, vhost, request)
        _check_offsets(streams, request)
        if group is not None:
            _settle(group, request.offsets)
        starts = {stream.name: _beginning(stream, group) for stream in streams} | request.offsets
        unread = []
        for stream in streams:
            start, stop = starts[stream.name], stream.decided()
            if request.stops is not None:
                stop = min(stop, request.stops.get(stream.name, start))
            unread.append(_Unread(stream, start, stop))
        waits = request.settle_only or (group is not None and group.settings.paused)
        counts = [0] * len(unread) if waits else self._shared(group, unread, request)
        moves = any(counts)  # else it waits for a message, whatever was aborted meanwhile
        stretches = [
            actions.Stretch(
                each.stream.name,
                each.stream.log.id,
                each.start,
                each.behind(count) if moves else each.start,
                each.stream.decided(),
                gone_below(each.stream),
            )
            for each, count in zip(unread, counts, strict=True)
        ]
        return actions.Advanced(stretches, sum(each.messages for each in unread) - sum(counts))

    def _shared(self, group: Group | None, unread: Sequence[_Unread], request: actions.Advance) -> list[int]:
        """How many messages of each partition are in the next batch."""
        turn = 0
        if group is not None:
            run = self._run(group)
            turn, run.turn = run.turn, run.turn + 1
        available = [each.messages for each in unread]
        limit = sum(available) if request.max_messages is None else request.max_messages
        if request.max_bytes is None:
            return shares.by_count(available, limit, turn=turn)
        weighed = shares.by_count(available, min(limit, weighing.COUNT_MAX), turn=turn)
        sizes = [islice(each.sizes(), count) for each, count in zip(unread, weighed, strict=True)]
        return shares.by_bytes(sizes, request.max_bytes, turn=turn)

    def _cover(
        self, user: User, vhost: VirtualHost, streams: Sequence[Stream], request: actions.Cover
    ) -> actions.Covered:
        _group(user, vhost, request)
        _check_offsets(streams, request)
        parts = []
        for number, stream in enumerate(streams):
            if stream.name in request.spans:
                start, stop = request.spans[stream.name]
                ranges = _visible(stream, start, min(stop, stream.decided()))
                portion = (pack_ranges(ranges), _count(ranges), gone_below(stream))
                parts.append(actions.Part(stream.name, number, stream.log.id, *portion))
        return actions.Covered(parts)

    def _run(self, group: Group) -> _Run:
        return self._runs.setdefault(group, _Run())


class _Unread:
    """What may be read of one partition, from an offset on."""

    def __init__(self, stream: Stream, start: int, stop: int) -> None:
        self.stream = stream
        self.start = start
        self._stop = stop
        self._ranges = _visible(stream, start, stop)
        self.messages = _count(self._ranges)

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
        found = self.stream.log.briefs(self._ranges)
        brief = next(found, None)
        for offset in chain.from_iterable(starmap(range, self._ranges)):
            if brief is not None and brief.offset == offset:
                yield brief.body_bytes
                brief = next(found, None)
            else:
                yield 0


def _settle(group: Group, offsets: Mapping[str, int]) -> None:
    for name, offset in offsets.items():
        group.partitions[name].settle_below(offset, who=_label(group))


def _group(user: User, vhost: VirtualHost, request: actions.Advance | actions.Cover) -> Group | None:
    """The query, if this is its present run, and the user may operate it; None where no query asks."""
    if not request.query:
        return None
    group = _find(vhost, request)
    over = f"run {request.epoch} of query '{request.query}' over '{request.subject}' in vhost '{vhost.name}'"
    if group is None:
        raise LeaseRefused(
            "forgotten",
            f"{over} is over: its group was deleted",
            hint="Started again it goes on where its checkpoint is.",
        )
    vhost.groups.check_operate(group, user)
    if group.settings.mode != QUERY:
        raise PreconditionFailed(f"{group} is not a query's")
    if not group.epoch and 0 < request.epoch <= vhost.broker.now_us():
        vhost.groups.begin_run(group, request.epoch)  # of an earlier version, which kept no epochs
    if not group.epoch or group.epoch != request.epoch:
        raise LeaseRefused(
            "fenced",
            f"{over} is over, or never began: the query is in its run {group.epoch}",
            hint="Another run of the same query has taken over. Two queries need two names.",
        )
    return group


def _reject(user: User, vhost: VirtualHost, request: actions.RejectRead) -> actions.Done:
    """A query that is not there, or has settled them, has nothing to reject: then nothing is done."""
    group = _find(vhost, request)
    if group is not None:
        vhost.groups.check_operate(group, user)
    if group is not None and group.settings.mode == QUERY:
        there = {name: group.partitions[name] for name in request.ranges if name in group.partitions}
        chosen = [(each, ordered_ranges(request.ranges[name], each.log)) for name, each in there.items()]
        for partition, ranges in chosen:
            partition.reject_read(ranges, who=_label(group), why=reason(request.why))
    return actions.Done()


def reason(said: str) -> bytes:
    """As much of it as a journal takes."""
    return said.encode()[:_REASON_BYTES_MAX]


def ordered_ranges(data: bytes, log: Log) -> list[Range]:
    """Those of a request, as the store takes them: offsets that there are, or were."""
    try:
        asked = ((start, stop) for start, stop in unpack_ranges(data) if start < log.next)
        return list(OffsetSet((start, min(stop, log.next)) for start, stop in asked).ranges())
    except ValueError:
        raise PreconditionFailed("the ranges of offsets make no sense") from None


def _visible(stream: Stream, start: int, stop: int) -> list[Range]:
    return stream.visible(start, stop) if start < stop else []


def gone_below(stream: Stream) -> int:
    """Above the highest message that retention has taken: whoever was not so far has missed it."""
    return stream.cursor.settled.retired_below


def _find(
    vhost: VirtualHost, request: actions.Follow | actions.Advance | actions.Cover | actions.RejectRead
) -> Group | None:
    """The group of a query; None if there is none."""
    name = (request.subject, request.query)
    return next((group for group in vhost.groups if (group.subject, group.name) == name), None)


def _streams(user: User, vhost: VirtualHost, subject: str, *, is_topic: bool) -> list[Stream]:
    """What is read: of the kind that was said, and all of it readable for the user."""
    queue = vhost.queues.get(subject)
    if is_topic and isinstance(queue, Stream):
        raise LeaseRefused("kind", f"{queue} is a stream and no topic", hint="Use option stream.")
    if not is_topic and not isinstance(queue, Stream):
        if topics.partitions(vhost.exchanges.get(subject)):
            sentence = f"'{subject}' in vhost '{vhost.name}' is a topic and no stream"
            raise LeaseRefused("kind", sentence, hint="Use option topic.")
        if queue is not None:
            raise LeaseRefused("kind", f"{queue} is no stream", hint="Use option queue.")
    found = topics.streams_of(vhost, subject)
    for name in dict.fromkeys([subject, *(stream.name for stream in found)]):
        user.check("read", vhost.name, "queue", name)
    return found


def _check_start(streams: Iterable[Stream], request: actions.Follow) -> None:
    """Raises where a query can't begin: behind the end it would leave out what comes next."""
    at, known = request.at, {stream.name: stream for stream in streams}
    for name in at.offsets:
        if name not in known:
            raise PreconditionFailed(f"'{name}' is no partition of '{request.subject}'")
    wanted = dict.fromkeys(known, at.value) if at.kind == "offset" else {}
    for name, offset in (wanted | at.offsets).items():
        end, gone = known[name].log.next, gone_below(known[name])
        if not 0 <= offset <= end:
            raise PreconditionFailed(
                f"a query can't begin at offset {offset} of stream '{name}', which ends at {end}"
            )
        if offset < gone and request.exact:
            raise LeaseRefused(
                "gone",
                f"offsets {offset} to {gone - 1} of stream '{name}' are deleted: a query can't begin there",
                hint=f"failOnDataLoss=false begins at {gone}",
            )


def _check_offsets(streams: Iterable[Stream], request: actions.Advance | actions.Cover) -> None:
    """Raises when a checkpoint names what is not there."""
    ends = {stream.name: stream.log.next for stream in streams}
    if isinstance(request, actions.Advance):
        named: Mapping[str, int] = request.offsets
    else:
        named = {name: stop for name, (_, stop) in request.spans.items()}
    for name, offset in named.items():
        if name not in ends:
            raise LeaseRefused(
                "gone",
                f"partition '{name}' of '{request.subject}' in vhost '{request.vhost}' is not there any more",
                hint="It was deleted or unbound. Bind it again, or start the query with a new checkpoint.",
            )
        if offset > ends[name]:
            raise LeaseRefused(
                "gone",
                f"the checkpoint is at offset {offset} of stream '{name}', which ends at {ends[name]}",
                hint="The broker's data are older than the checkpoint: start the query with a new one.",
            )


def _located(streams: Iterable[Stream], at: actions.At) -> list[actions.Place]:
    places = []
    for stream in streams:
        named = at.offsets.get(stream.name)
        position = Position(at.kind, at.value) if named is None else Position("offset", named)
        found = max(position.in_(stream), gone_below(stream))
        places.append(_place(stream, min(found, stream.log.next)))
    return places


def _place(stream: Stream, offset: int) -> actions.Place:
    return actions.Place(stream.name, stream.log.id, offset, stream.decided(), gone_below(stream))


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


def _label(group: Group) -> bytes:
    return b"query " + group.name.encode()


def _count(ranges: Iterable[Range]) -> int:
    return sum(stop - start for start, stop in ranges)
