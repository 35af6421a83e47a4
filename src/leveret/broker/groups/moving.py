"""Groups moved by hand: seeks, skips, and dead letters that are delivered once more.

Owns what an operator may ask for, checked before anything changes, and the sentence for what makes no sense;
how a partition moves is the partition's. Who asked and why goes into the cursor's journal. A query's group is
not moved: the query knows by itself where it is.

A redrive makes no copy: the message is where it was, in its stream, and its group is to have it once more.
The rule is that it is deliverable, durably, before its letter is settled: a crash in between leaves at worst
a message that comes again. `Redrive` does this in pieces, so that others have their turns meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from leveret.broker.canonical import headers_of, to_bytes
from leveret.broker.errors import NotFound, PreconditionFailed
from leveret.broker.groups.group import DEAD_LETTERS
from leveret.broker.groups.partition_rules import GROUP, STREAM, SUBJECT
from leveret.broker.groups.settings import QUERY
from leveret.broker.streams.positions import Position
from leveret.broker.streams.reader import OFFSET
from leveret.storage.journal import Outcome
from leveret.storage.offset_ranges import ranges_of

if TYPE_CHECKING:
    from leveret.broker.groups.group import Group
    from leveret.broker.groups.partition import Partition
    from leveret.broker.vhosts.destination import Destination
    from leveret.storage.offset_set import Range
    from leveret.storage.records import Record

NOTE_BYTES_MAX: Final = 255
_LETTERS_AT_ONCE: Final = 256
_LARGE_BYTES: Final = 64 << 10


def check_not_a_query(group: Group) -> None:
    if group.settings.mode == QUERY:
        raise PreconditionFailed(
            f"{group} is a query's: it keeps its place by itself, and starts anew with a new checkpoint"
        )


def partition_of(group: Group, name: str | None) -> Partition:
    """The one of this name; it may go without one where there is only one."""
    if name is None:
        if len(group.partitions) == 1:
            return next(iter(group.partitions.values()))
        raise PreconditionFailed(f"{group} has {len(group.partitions)} partitions: say which one is meant")
    found = group.partitions.get(name)
    if found is None:
        raise NotFound(f"no partition '{name}' of {group}")
    return found


def seek(
    group: Group, to: Position, *, partition: str | None = None, who: str, why: str = ""
) -> dict[str, int]:
    """All partitions, or one, go on from there; returns where each is then.

    `last` is the end: what comes from now on. An offset means one partition, and must be in it.
    """
    check_not_a_query(group)
    named = partition is not None or to.kind == "offset"
    chosen = [partition_of(group, partition)] if named else list(group.partitions.values())
    note = _note(why)
    group.broker.flush()
    places = {each: _place(each, to) for each in chosen}
    for each, offset in places.items():
        each.seek(offset, who=_name(who), why=note)
    return {each.name: offset for each, offset in places.items()}


def _place(partition: Partition, to: Position) -> int:
    end = partition.stream.readable()
    if to.kind == "last":
        return end
    if to.kind == "offset":
        _check_offset(partition, to.value, end)
    return min(end, to.in_(partition.stream))


def _check_offset(partition: Partition, offset: int, end: int) -> None:
    if offset < 0:
        raise PreconditionFailed(f"offset {offset} is below 0, where '{partition.name}' begins")
    if offset > end:
        raise PreconditionFailed(f"offset {offset} is beyond the end {end} of '{partition.name}'")


def skip(group: Group, offset: int, *, partition: str | None = None, who: str, why: str) -> Partition:
    """Settles one message, whoever has it: it is not delivered any more."""
    check_not_a_query(group)
    chosen = partition_of(group, partition)
    if not why.strip():
        raise PreconditionFailed("a skip needs a reason: it is written down with who did it")
    note = _note(why)
    group.broker.flush()
    end = chosen.stream.readable()
    _check_offset(chosen, offset, end)
    if offset == end:
        raise PreconditionFailed(f"offset {offset} is the end of '{chosen.name}': there is nothing to skip")
    if offset in chosen.cursor.settled:
        raise PreconditionFailed(f"offset {offset} of '{chosen.name}' is settled already")
    chosen.skip(offset, who=_name(who), why=note)
    return chosen


def _name(user: str) -> bytes:
    return to_bytes(user)[:NOTE_BYTES_MAX]


def _note(why: str) -> bytes:
    note = to_bytes(why)
    if len(note) > NOTE_BYTES_MAX:
        raise PreconditionFailed(f"a reason has at most {NOTE_BYTES_MAX} bytes, not {len(note)}")
    return note


class Redrive:
    """
    redrive = Redrive(group, limit=None, who="ann")
    while redrive.recall():
        ...                      # until all changes so far are durable
        redrive.settle()
    """

    def __init__(self, group: Group, *, limit: int | None, who: str) -> None:
        """At most `limit` messages. What dies from now on is not looked at."""
        check_not_a_query(group)
        if limit is not None and limit < 1:
            raise PreconditionFailed(f"limit is {limit}; it must be a whole number of at least 1")
        group.broker.flush()
        self._group = group
        self._who = _name(who)
        self._limit = limit
        self._queue = group.host.queues.get(DEAD_LETTERS + group.name)
        self._stop = 0 if self._queue is None else self._queue.log.next
        self._at = 0
        self._recalled: list[int] = []
        """The letters of messages that are deliverable, and will be when that is durable."""
        self.redriven = 0
        self.gone = 0
        """Of letters whose messages the stream no longer has."""

    @property
    def left(self) -> int:
        """Letters in the queue."""
        queue = self._queue
        return 0 if queue is None or queue.deleted else queue.ready + queue.unacked

    def recall(self) -> bool:
        """Makes the messages of the next letters deliverable; False when there are no more."""
        queue, done = self._queue, self._limit is not None and self.redriven >= self._limit
        if queue is None or queue.deleted or self._group.deleted or done:
            return False
        letters = self._next_letters(queue)
        if not letters:
            return False
        wanted = list(self._present(letters))
        for partition in {each for each, _, _ in wanted}:
            self._recall(partition, [offset for each, offset, _ in wanted if each is partition])
        self._recalled = [letter for _, _, letter in wanted]
        return True

    def settle(self) -> None:
        """What was recalled is durable: its letters go, unless somebody has taken them meanwhile."""
        queue, recalled, self._recalled = self._queue, self._recalled, []
        if queue is None or queue.deleted or self._group.deleted:
            return
        ready = queue.cursor.waiting.ready_within([(each, each + 1) for each in recalled])
        if ready:
            queue.account.dropped(queue.account.bytes_of(ready))
            queue.cursor.drop(ready, Outcome.ACKED, who=self._who, why=b"redriven")
        self.redriven += len(ready)

    def _next_letters(self, queue: Destination) -> list[Record]:
        """As many as may be looked at in one turn, one by one where they may be large."""
        first = queue.cursor.waiting.first_ready(self._at)
        if first is None or first >= self._stop:
            return []
        mean_bytes = queue.log.size_bytes // max(1, queue.log.next - queue.log.first)
        count = _LETTERS_AT_ONCE if mean_bytes < _LARGE_BYTES else 1
        if self._limit is not None:
            count = min(count, self._limit - self.redriven)
        self._at = min(self._stop, first + count)
        return queue.log.read(queue.cursor.waiting.ready_within([(first, self._at)]))

    def _present(self, letters: Iterable[Record]) -> Iterator[tuple[Partition, int, int]]:
        """Partition, offset and letter of the messages that are still there; other groups' are passed over.

        The body is looked at: a stream may have been deleted, and another one made under its name.
        """
        for letter in letters:
            headers = headers_of(letter.header)
            stream, offset = str(headers.get(STREAM)), headers.get(OFFSET)
            of_group = (headers.get(SUBJECT), headers.get(GROUP)) == (self._group.subject, self._group.name)
            if not of_group or not isinstance(offset, int):
                continue
            partition = self._group.partitions.get(stream)
            if partition is not None and _has(partition, offset, letter.body):
                yield partition, offset, letter.offset
            else:
                self.gone += 1

    def _recall(self, partition: Partition, offsets: list[int]) -> None:
        """Those that are not settled are deliverable as they are."""
        settled = partition.cursor.settled
        ranges: list[Range] = ranges_of(sorted({offset for offset in offsets if offset in settled}))
        if ranges:
            partition.cursor.recall(ranges, who=self._who, why=b"redriven")
            partition.wake()


def _has(partition: Partition, offset: int, body: bytes) -> bool:
    """Whether this message is still there to be read."""
    if not 0 <= offset < partition.log.next or not partition.stream.cursor.waiting.ready_within(
        [(offset, offset + 1)]
    ):
        return False
    message = partition.log.read_one(offset)
    return message is not None and message.body == body
