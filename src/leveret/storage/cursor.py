"""A cursor: the durable progress of one queue or group over a log.

Every change is one entry in the cursor's journal, in the current WAL round, and one change of the state in
`progress.py`. Settlements are durable when their ticket is. Nobody waits until deliveries are durable.
Instead, a durable *mark* stays above all deliveries: after an unclean stop, messages below the mark count as
redelivered. The views in `cursor_views.py` answer questions; only the store uses `Cursor.progress`.

The rule: no message at or above the durable mark is delivered.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from leveret.storage.cursor_views import InFlight, Returns, Settled, Waiting
from leveret.storage.errors import BadName, BadRequest, OffsetOutOfRange, UnknownCursor
from leveret.storage.journal import Attempt, Entry, Kind, Outcome, Promise
from leveret.storage.log import Log
from leveret.storage.offset_set import OFFSET_LIMIT, OffsetSet, Range
from leveret.storage.progress import Progress

MARK_AHEAD = 65_536
_NAME_BYTES_MAX = 200
_WHO_BYTES_MAX = 255


class Recorder(Protocol):
    """The part of the store that a cursor uses."""

    def record(self, cursor: Cursor, entry: Entry) -> int:
        """Append an entry to the cursor's journal and return its ticket."""

    @property
    def lock(self) -> AbstractContextManager[bool]:
        """Lock held during a change and its entry: a checkpoint on another thread sees both or neither."""

    @property
    def safe_ticket(self) -> int: ...

    def now_us(self) -> int: ...


class Cursor:
    """One cursor, created by the store: `cursor = store.create_cursor(log, "billing")`."""

    def __init__(
        self,
        recorder: Recorder,
        log: Log,
        journal: Log,
        progress: Progress,
        *,
        snapshots: tuple[int, int] = (0, 0),
    ) -> None:
        self._recorder = recorder
        self._mark_safe = progress.mark
        self._mark_ticket = 0
        self.log = log
        self.journal = journal
        self.progress = progress
        self.waiting = Waiting(progress)
        self.in_flight = InFlight(progress)
        self.settled = Settled(progress)
        self.returns = Returns(progress)
        self.snapshot, self.snapshot_before = snapshots
        """Numbers of the first journal entries after the last snapshot, and after the one before it."""
        self.unsnapped_bytes = 0
        """Bytes of journal entries after the last snapshot."""
        self.deleted = False

    def __repr__(self) -> str:
        return f"Cursor({self.name!r} of log {self.log.id}, low {self.progress.low})"

    @property
    def name(self) -> str:
        return self.journal.spec.name

    @property
    def audited(self) -> bool:
        """Whether an audit window makes the journal keep who received which message."""
        return max(self.journal.spec.retention.audit_us, self.log.spec.retention.audit_us) > 0

    def take(
        self, n: int, *, who: bytes = b"", before: int | None = None, unbegun: bool = False
    ) -> list[Range]:
        """Put the next `n` ready messages below `before` in flight for the consumer `who`, and return them.

        Fewer are taken when no more are ready, or at the durable mark, until the next sync moves it. With
        `unbegun`, an attempt counts only after the consumer calls `begin`.
        """
        self.check(who)
        _check_number(n)
        recorder = self._recorder
        with recorder.lock:
            self.progress.wake(recorder.now_us())
            limit = self._safe_mark()
            taken = self.progress.take(n, limit=limit, before=before)
            if taken:
                attempt = Attempt.WHEN_BEGUN if unbegun else Attempt.WHEN_DELIVERED
                recorder.record(self, Entry(Kind.DELIVERED, taken, attempt, who))
                if unbegun:
                    self.progress.unbegun.add_many(taken)
            self._move_mark(max((stop for _, stop in taken), default=0))
        return taken

    def wake(self, now_us: int) -> None:
        """Make messages ready whose delay is over at `now_us`."""
        with self._recorder.lock:
            self.progress.wake(now_us)

    def begin(self, ranges: Sequence[Range], *, who: bytes = b"") -> None:
        """Record that the consumer has begun with these messages, so that the attempt counts.

        Messages not in flight or begun before are ignored. A crash may lose the entry and so the attempt.
        """
        self.check(who)
        with self._recorder.lock:
            begun = self.progress.begin(ranges)
            if begun:
                self._recorder.record(self, Entry(Kind.DELIVERED, begun, Attempt.BEGUN, who))

    def note_taken(self, ranges: Sequence[Range], *, who: bytes) -> int:
        """Record for the audit which consumer got messages that were taken for several consumers."""
        self.check(who)
        return self._recorder.record(self, Entry(Kind.SYNCED, ranges, who=who))

    def lease(self, n: int, *, who: bytes = b"") -> list[Range]:
        """Lease the next `n` ready messages: they stay in flight when the store is opened again.

        The caller shows them to nobody before the lease is durable, so they may lie above the mark.
        """
        self.check(who)
        _check_number(n)
        recorder = self._recorder
        with recorder.lock:
            self.progress.wake(recorder.now_us())
            taken = self.progress.lease(n)
            if taken:
                recorder.record(self, Entry(Kind.LEASED, taken, who=who))
        return taken

    def hold(self, ranges: Sequence[Range], *, who: bytes = b"") -> int:
        """Lease these messages, which must be ready or delayed."""
        self.check(who)
        with self._recorder.lock:
            self.progress.hold(ranges)
            return self._recorder.record(self, Entry(Kind.LEASED, ranges, who=who))

    def release(self, ranges: Sequence[Range], *, who: bytes = b"") -> int:
        """Make leased messages ready again, without counting an attempt."""
        self.check(who)
        with self._recorder.lock:
            self.progress.release(ranges)
            return self._recorder.record(self, Entry(Kind.RELEASED, ranges, who=who))

    def settle(self, ranges: Sequence[Range], outcome: Outcome = Outcome.ACKED, *, who: bytes = b"") -> int:
        """Settle messages in flight. If any is not in flight, raise `NotInFlight` and change nothing."""
        self.check(who)
        with self._recorder.lock:
            self.progress.settle(ranges)
            return self._recorder.record(self, Entry(Kind.SETTLED, ranges, outcome, who))

    def give_back(
        self,
        ranges: Sequence[Range],
        *,
        not_before_us: int = 0,
        counted: bool = True,
        who: bytes = b"",
        why: bytes = b"",
    ) -> int:
        """Requeue messages in flight at their place, delayed until `not_before_us`; count it if `counted`."""
        self.check(who, not_before_us, why)
        with self._recorder.lock:
            self.progress.give_back(ranges, not_before_us=not_before_us, counted=counted, why=why)
            entry = Entry(Kind.RETURNED, ranges, int(counted), who, not_before_us, why=why)
            return self._recorder.record(self, entry)

    def drop(self, ranges: Sequence[Range], outcome: Outcome, *, who: bytes = b"", why: bytes = b"") -> int:
        """Settle ready or delayed messages, for example because they expired."""
        self.check(who, why=why)
        with self._recorder.lock:
            self.progress.drop(ranges)
            if outcome is Outcome.RETENTION:
                self.progress.retire(ranges)
            return self._recorder.record(self, Entry(Kind.SETTLED, ranges, outcome, who, why=why))

    def seek(
        self, offset: int, *, who: bytes = b"", why: bytes = b"", visible_to: Cursor | None = None
    ) -> int:
        """Continue from an offset, back or ahead. No message is in flight afterwards.

        Messages that the cursor `visible_to` has settled are dropped.
        """
        self.check(who, why=why)
        self.check_offset(offset)
        with self._recorder.lock:
            absent = self.progress.seek(offset, self.log.present(), self.log.next)
            if self.progress.priorities:
                self.progress.prioritise(self.log.priorities())
            ticket = self._recorder.record(self, Entry(Kind.SOUGHT, [(0, offset)], who=who, why=why))
            if absent:
                ticket = self._recorder.record(self, Entry(Kind.SETTLED, absent, Outcome.SKIPPED))
            if visible_to is not None:
                self.leave_out_settled(visible_to)
        return ticket

    def leave_out_settled(self, other: Cursor) -> None:
        """Drop ready messages that another cursor of the log has settled."""
        ready = OffsetSet(self.progress.ready_ranges())
        if ready:
            ready.remove_many(list(other.progress.settled.unsettled(0, self.log.next)))
        if ready:
            self.drop(list(ready.ranges()), Outcome.DROPPED)

    def recall(self, ranges: Sequence[Range], *, who: bytes = b"", why: bytes = b"") -> int:
        """Make settled messages ready once more. The log must still have them."""
        self.check(who, why=why)
        with self._recorder.lock:
            self.progress.recall(ranges)
            return self._recorder.record(self, Entry(Kind.RECALLED, ranges, who=who, why=why))

    def note_synced(
        self,
        ranges: Sequence[Range],
        *,
        published_us: int = 0,
        exchange: bytes = b"",
        promise: Promise = Promise.SAFE,
    ) -> int:
        """Record for the audit when these messages were published, and through which exchange."""
        self.check(not_before_us=published_us)
        entry = Entry(Kind.SYNCED, ranges, promise, not_before_us=published_us, why=exchange)
        return self._recorder.record(self, entry)

    def note_missed(self, ranges: Sequence[Range], *, who: bytes) -> int:
        """Record for the audit that `who` did not settle these messages in time."""
        self.check(who)
        return self._recorder.record(self, Entry(Kind.MISSED, ranges, who=who))

    def note_withheld(self, ranges: Sequence[Range]) -> int:
        """Record for the audit that these messages were taken but sent to no consumer."""
        return self._recorder.record(self, Entry(Kind.WITHHELD, ranges))

    def entries(self, start: int, stop: int) -> list[Entry]:
        """Return the journal entries with numbers in [start, stop), without deleted ones."""
        return [Entry.of(record) for record in self.journal.read([(start, stop)])]

    def reopen(self, *, clean: bool, intact: bool, transient: Sequence[Range]) -> None:
        """After a restart: what was in flight and not leased comes back, what is gone is settled.

        `intact` is for a cursor of which a checkpoint has the state, in a store without damage. For others
        each segment is asked what it has: a journal does not tell what was gone before the cursor was made.
        """
        progress = self.progress
        if not clean:
            progress.redelivered_below = progress.mark
            self._recorder.record(self, Entry(Kind.REOPENED, [(0, progress.mark)]))
            progress.mark = max(progress.mark, self.log.next + MARK_AHEAD)
            # Until the checkpoints of the opening are written, the last process's mark is the durable one.
            self._mark_ticket = self._recorder.record(self, Entry(Kind.MARKED, [(0, progress.mark)]))
        present = self.log.recovered(progress.low) if intact else self.log.present()
        absent = progress.open(present, self.log.next)
        if absent:
            self._recorder.record(self, Entry(Kind.SETTLED, absent, Outcome.RESTART))
        in_flight = progress.in_flight.copy()
        in_flight.remove_many(list(progress.leased.ranges()))
        unbegun = progress.unbegun.copy()
        in_flight.remove_many(list(unbegun.ranges()))
        for returned, counted in ((in_flight, True), (unbegun, False)):
            if returned:
                self.give_back(list(returned.ranges()), counted=counted)
        lost = [offsets for start, stop in transient for offsets in progress.settled.unsettled(start, stop)]
        leased = progress.leased.members_in(lost)
        if leased:
            self.give_back(leased)
        if lost:
            self.drop(lost, Outcome.RESTART)
        if progress.priorities:
            progress.prioritise(self.log.priorities())

    def start(self) -> None:
        """Record the first entries of a new cursor: where it begins, and its first mark."""
        # Written twice: without it everything below would be delivered again.
        for _ in range(2):
            self._recorder.record(self, Entry(Kind.STARTED, [(0, self.progress.low)]))
        self._move_mark(self.progress.low)
        # The first mark counts as durable at once: it can only be lost together with the cursor.
        self._mark_safe, self._mark_ticket = self.progress.mark, 0

    def check(self, who: bytes = b"", not_before_us: int = 0, why: bytes = b"") -> None:
        """Raise if the cursor was deleted, or if a field does not fit into a journal entry."""
        if self.deleted:
            raise UnknownCursor(f"cursor {self.name!r} of log {self.log.id} has been deleted")
        if max(len(who), len(why)) > _WHO_BYTES_MAX or not 0 <= not_before_us < OFFSET_LIMIT:
            raise BadRequest(
                "a consumer's name, a reason or a time does not fit into the journal",
                hint="Names and reasons have at most 255 bytes, a time is less than 2**63 microseconds.",
            )

    def check_offset(self, offset: int) -> None:
        """Raise if the log cannot be read from this offset."""
        if not 0 <= offset <= self.log.next:
            raise OffsetOutOfRange(f"offset {offset} is not in a log that ends at {self.log.next}")

    def _safe_mark(self) -> int:
        if self._mark_ticket and self._mark_ticket <= self._recorder.safe_ticket:
            self._mark_safe, self._mark_ticket = self.progress.mark, 0
        return self._mark_safe

    def _move_mark(self, delivered: int) -> None:
        """Move the mark ahead when deliveries have used half of its distance and the last mark is durable.

        The next ready message counts too: it may lie far above, behind a gap or with a high priority.
        """
        if self._mark_ticket:
            return
        coming = self.progress.next_ready()
        needed = delivered if coming is None or coming < self.progress.mark else coming + 1
        if self.progress.mark - needed < MARK_AHEAD // 2:
            self.progress.mark = needed + MARK_AHEAD
            entry = Entry(Kind.MARKED, [(0, self.progress.mark)])
            self._mark_ticket = self._recorder.record(self, entry)


def _check_number(n: int) -> None:
    if n < 0:
        raise BadRequest(f"{n} messages can't be taken", hint="Take 0 or more.")


def check_name(name: str) -> None:
    """Raise `BadName` for a name that can't be shown, logged and put into URLs as it is."""
    plain = name and name.isprintable() and "/" not in name and not name.startswith(".")
    if not plain or len(name.encode()) > _NAME_BYTES_MAX:
        raise BadName(
            f"{name!r} can't be a cursor's name",
            hint="Use 1 to 200 bytes of printable characters without a slash, not beginning with a dot.",
        )
