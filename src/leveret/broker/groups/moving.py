"""Groups moved by operators: seeks, skips, and redrives of dead letters.

Owns the requests of operators and their checks, before anything changes; `Partition` does the moves. The name
of the user and the reason go into the cursor's journal. The group of a query is not moved: the query knows
its own position.

A redrive makes no copy: the message is still at its offset in the stream, and its group gets it again. The
rule: the message is deliverable, durably, before its dead letter is settled. So a crash in between at worst
repeats a message. `Redrive` works in pieces, so that other clients have their turns meanwhile.
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
            f"{group} belongs to a query, which keeps its own position: start the query with a new checkpoint"
        )


def partition_of(group: Group, name: str | None) -> Partition:
    """Return the partition of this name; without a name, the only partition of the group."""
    if name is None:
        if len(group.partitions) == 1:
            return next(iter(group.partitions.values()))
        raise PreconditionFailed(f"{group} has {len(group.partitions)} partitions: say which one is meant")
    partition = group.partitions.get(name)
    if partition is None:
        raise NotFound(f"no partition '{name}' of {group}")
    return partition


def seek(
    group: Group, to: Position, *, partition: str | None = None, who: str, why: str = ""
) -> dict[str, int]:
    """Move one or all partitions to a position; return their new offsets.

    `last` is the end of a stream. An offset requires a partition, and must lie in it.
    """
    check_not_a_query(group)
    named = partition is not None or to.kind == "offset"
    chosen = [partition_of(group, partition)] if named else list(group.partitions.values())
    note = _note(why)
    group.broker.flush()
    offsets = {moved: _offset_of(moved, to) for moved in chosen}
    for moved, offset in offsets.items():
        moved.seek(offset, who=_name(who), why=note)
    return {moved.name: offset for moved, offset in offsets.items()}


def _offset_of(partition: Partition, to: Position) -> int:
    end = partition.stream.readable()
    if to.kind == "last":
        return end
    if to.kind == "offset":
        _check_offset(partition, to.value, end)
    return min(end, to.offset_in(partition.stream))


def _check_offset(partition: Partition, offset: int, end: int) -> None:
    if offset < 0:
        raise PreconditionFailed(f"offset {offset} is below 0, where '{partition.name}' begins")
    if offset > end:
        raise PreconditionFailed(f"offset {offset} is beyond the end {end} of '{partition.name}'")


def skip(group: Group, offset: int, *, partition: str | None = None, who: str, why: str) -> Partition:
    """Settle one message as skipped, even if it is in flight."""
    check_not_a_query(group)
    chosen = partition_of(group, partition)
    if not why.strip():
        raise PreconditionFailed("a skip needs a reason, which is noted with the name of the user")
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
    """Delivers the dead letters of a group once more, in pieces.

    redrive = Redrive(group, limit=None, who="ann")
    while redrive.recall():
        ...                      # wait until all changes so far are durable
        redrive.settle()
    """

    def __init__(self, group: Group, *, limit: int | None, who: str) -> None:
        """Redrive at most `limit` messages; later dead letters are left alone."""
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
        """Offsets of the dead letters whose messages were recalled, and will be durably deliverable soon."""
        self.redriven = 0
        self.gone = 0
        """Number of dead letters whose messages the stream no longer has."""

    @property
    def left(self) -> int:
        """Number of dead letters in the queue."""
        queue = self._queue
        return 0 if queue is None or queue.deleted else queue.ready + queue.unacked

    def recall(self) -> bool:
        """Make the messages of the next dead letters deliverable; return False if there are none left."""
        queue, is_done = self._queue, self._limit is not None and self.redriven >= self._limit
        if queue is None or queue.deleted or self._group.deleted or is_done:
            return False
        letters = self._next_letters(queue)
        if not letters:
            return False
        present = list(self._present(letters))
        for partition in {partition for partition, _, _ in present}:
            self._recall(partition, [offset for other, offset, _ in present if other is partition])
        self._recalled = [letter for _, _, letter in present]
        return True

    def settle(self) -> None:
        """Settle the dead letters of recalled messages, unless a consumer has taken them meanwhile."""
        queue, recalled, self._recalled = self._queue, self._recalled, []
        if queue is None or queue.deleted or self._group.deleted:
            return
        ready = queue.cursor.waiting.ready_within([(letter, letter + 1) for letter in recalled])
        if ready:
            queue.account.dropped(queue.account.bytes_of(ready))
            queue.cursor.drop(ready, Outcome.ACKED, who=self._who, why=b"redriven")
        self.redriven += len(ready)

    def _next_letters(self, queue: Destination) -> list[Record]:
        """Return the dead letters to look at in one turn; large ones come one by one."""
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
        """Yield partition, offset and letter of messages that still exist; skip letters of other groups.

        Bodies are compared, because a stream may have been deleted and another one declared with its name.
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
        """Make settled messages ready again; others are deliverable already."""
        settled = partition.cursor.settled
        ranges: list[Range] = ranges_of(sorted({offset for offset in offsets if offset in settled}))
        if ranges:
            partition.cursor.recall(ranges, who=self._who, why=b"redriven")
            partition.wake()


def _has(partition: Partition, offset: int, body: bytes) -> bool:
    """Return whether the partition still has this message."""
    if not 0 <= offset < partition.log.next or not partition.stream.cursor.waiting.ready_within(
        [(offset, offset + 1)]
    ):
        return False
    message = partition.log.read_one(offset)
    return message is not None and message.body == body
