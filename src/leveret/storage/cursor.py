"""A cursor: one reader group's durable progress over a log.

Every change is one entry in the cursor's journal, collected into the current WAL round, and a change of
`progress.py`'s state. Settlements are safe when the store says that their ticket is; deliveries are written
down without anybody waiting for it. Because of that a *mark* is kept ahead of the deliveries: nothing at or
above the durable mark is handed out, so that after an unclean stop everything that may have been delivered
is known to lie below it and comes again as redelivered.

Questions are answered by the views of `cursor_views.py`; nobody outside of the store looks at the progress.
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
    """What a cursor needs of the store."""

    def record(self, cursor: Cursor, entry: Entry) -> int:
        """Appends an entry to the cursor's journal; returns its ticket."""

    @property
    def lock(self) -> AbstractContextManager[bool]:
        """Held during a change and its entry: a checkpoint on another thread sees both or neither."""

    @property
    def safe_ticket(self) -> int: ...

    def now_us(self) -> int: ...


class Cursor:
    """Made by the store: `cursor = store.create_cursor(log, "billing")`."""

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
        """The numbers of the first entries that the last snapshot, and the one before, do not know."""
        self.unsnapped_bytes = 0
        """Bytes of entries since that snapshot."""
        self.deleted = False

    def __repr__(self) -> str:
        return f"Cursor({self.name!r} of log {self.log.id}, low {self.progress.low})"

    @property
    def name(self) -> str:
        return self.journal.spec.name

    @property
    def audited(self) -> bool:
        """Whether somebody will want to know who had what."""
        return max(self.journal.spec.retention.audit_us, self.log.spec.retention.audit_us) > 0

    def take(
        self, n: int, *, who: bytes = b"", before: int | None = None, unbegun: bool = False
    ) -> list[Range]:
        """The next `n` messages that are ready (and below `before`) go into flight, to `who`.

        Fewer come when no more are ready, or when the durable mark is reached: then the next sync moves it.
        `unbegun` is for a consumer that tells with `begin` when it begins with a message.
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
        """Messages whose delay is over by now are ready."""
        with self._recorder.lock:
            self.progress.wake(now_us)

    def begin(self, ranges: Sequence[Range], *, who: bytes = b"") -> None:
        """The consumer has begun with these messages. Those that are not in flight, or had begun, are left
        out. Nobody waits for the entry: lost in a crash, the attempt does not count."""
        self.check(who)
        with self._recorder.lock:
            begun = self.progress.begin(ranges)
            if begun:
                self._recorder.record(self, Entry(Kind.DELIVERED, begun, Attempt.BEGUN, who))

    def note_taken(self, ranges: Sequence[Range], *, who: bytes) -> int:
        """For the audit: who got what was taken for several."""
        self.check(who)
        return self._recorder.record(self, Entry(Kind.SYNCED, ranges, who=who))

    def lease(self, n: int, *, who: bytes = b"") -> list[Range]:
        """The same for one who keeps account: they stay in flight also when the store is opened again.

        Nobody may see them before this is durable, and so the mark does not matter.
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
        """Leases exactly these, which nobody has taken."""
        self.check(who)
        with self._recorder.lock:
            self.progress.hold(ranges)
            return self._recorder.record(self, Entry(Kind.LEASED, ranges, who=who))

    def release(self, ranges: Sequence[Range], *, who: bytes = b"") -> int:
        """What was leased is ready again, as if nobody had had it."""
        self.check(who)
        with self._recorder.lock:
            self.progress.release(ranges)
            return self._recorder.record(self, Entry(Kind.RELEASED, ranges, who=who))

    def settle(self, ranges: Sequence[Range], outcome: Outcome = Outcome.ACKED, *, who: bytes = b"") -> int:
        """What was taken is done with. `NotInFlight`, and no change, when some of it was not taken."""
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
        """What was taken goes back to its place, now or not before a time; its delivery count grows."""
        self.check(who, not_before_us, why)
        with self._recorder.lock:
            self.progress.give_back(ranges, not_before_us=not_before_us, counted=counted, why=why)
            entry = Entry(Kind.RETURNED, ranges, int(counted), who, not_before_us, why=why)
            return self._recorder.record(self, entry)

    def drop(self, ranges: Sequence[Range], outcome: Outcome, *, who: bytes = b"", why: bytes = b"") -> int:
        """What nobody has taken (ready or delayed) is settled: expired, purged, over a limit."""
        self.check(who, why=why)
        with self._recorder.lock:
            self.progress.drop(ranges)
            if outcome is Outcome.RETENTION:
                self.progress.retire(ranges)
            return self._recorder.record(self, Entry(Kind.SETTLED, ranges, outcome, who, why=why))

    def seek(
        self, offset: int, *, who: bytes = b"", why: bytes = b"", visible_to: Cursor | None = None
    ) -> int:
        """Goes on from an offset, back or ahead. What is in flight is nobody's any more.

        What `visible_to` has settled is left out.
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
        """What is ready here, and settled by another cursor of the log, is dropped."""
        ready = OffsetSet(self.progress.ready_ranges())
        if ready:
            ready.remove_many(list(other.progress.settled.unsettled(0, self.log.next)))
        if ready:
            self.drop(list(ready.ranges()), Outcome.DROPPED)

    def recall(self, ranges: Sequence[Range], *, who: bytes = b"", why: bytes = b"") -> int:
        """What is settled is to be delivered once more; the log must still have it."""
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
        """For the audit: these offsets came in; when they were published, and through what."""
        self.check(not_before_us=published_us)
        entry = Entry(Kind.SYNCED, ranges, promise, not_before_us=published_us, why=exchange)
        return self._recorder.record(self, entry)

    def note_missed(self, ranges: Sequence[Range], *, who: bytes) -> int:
        """For the audit: whoever had these did not settle them in time."""
        self.check(who)
        return self._recorder.record(self, Entry(Kind.MISSED, ranges, who=who))

    def note_withheld(self, ranges: Sequence[Range]) -> int:
        """For the audit: these were taken, and sent to nobody."""
        return self._recorder.record(self, Entry(Kind.WITHHELD, ranges))

    def entries(self, start: int, stop: int) -> list[Entry]:
        """What its journal says, by the numbers of the entries; those that are gone are left out."""
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
            # Until the checkpoints of the opening are written, the mark of the process before holds.
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
        gone = [r for start, stop in transient for r in progress.settled.unsettled(start, stop)]
        leased = [r for start, stop in gone for r in progress.leased.ranges(start, stop)]
        if leased:
            self.give_back(leased)
        if gone:
            self.drop(gone, Outcome.RESTART)
        if progress.priorities:
            progress.prioritise(self.log.priorities())

    def start(self) -> None:
        """The first entries of a new cursor: where it begins, and a first mark."""
        for _ in range(2):  # a lost one would bring back everything below
            self._recorder.record(self, Entry(Kind.STARTED, [(0, self.progress.low)]))
        self._move_mark(self.progress.low)
        self._mark_safe, self._mark_ticket = self.progress.mark, 0  # lost only together with the cursor

    def check(self, who: bytes = b"", not_before_us: int = 0, why: bytes = b"") -> None:
        """Raises when nothing can be recorded, or not this."""
        if self.deleted:
            raise UnknownCursor(f"cursor {self.name!r} of log {self.log.id} has been deleted")
        if max(len(who), len(why)) > _WHO_BYTES_MAX or not 0 <= not_before_us < OFFSET_LIMIT:
            raise BadRequest(
                "a consumer's name, a reason or a time that does not fit",
                hint="Names and reasons have at most 255 bytes, a time is less than 2**63 microseconds.",
            )

    def check_offset(self, offset: int) -> None:
        """Raises when nothing could go on from there."""
        if not 0 <= offset <= self.log.next:
            raise OffsetOutOfRange(f"offset {offset} of a log that ends at {self.log.next}")

    def _safe_mark(self) -> int:
        if self._mark_ticket and self._mark_ticket <= self._recorder.safe_ticket:
            self._mark_safe, self._mark_ticket = self.progress.mark, 0
        return self._mark_safe

    def _move_mark(self, delivered: int) -> None:
        """Reserves ahead when half of the last reservation is used; not before that one is safe.

        What would be delivered next counts too: it may lie far above, behind a gap or with a high priority.
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
        raise BadRequest(f"{n} messages can't be taken", hint="Take none or more.")


def check_name(name: str) -> None:
    """Names are shown, logged and put into addresses: they are kept plain."""
    plain = name and name.isprintable() and "/" not in name and not name.startswith(".")
    if not plain or len(name.encode()) > _NAME_BYTES_MAX:
        raise BadName(
            f"{name!r} can't be a cursor's name",
            hint="Use 1 to 200 bytes of printable characters without a slash, not beginning with a dot.",
        )
