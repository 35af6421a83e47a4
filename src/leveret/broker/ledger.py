"""The ledger: everything that waits for the disk, and what happens when a write succeeds or fails.

The steps of one confirm: `Owed.published` counts the publish in its turn. At the end of the turn the publish
is appended to its queues, under a ticket of the store. `Ledger.appended` notes that the publish must be
undone if the ticket can't be written. `Ledger.seal` puts the count, with its ticket, among the confirms of
the channel. Because a channel waits, `wants_sync` is true, and the server syncs the store on another thread.
When the ticket is safe, `release` sends the confirm at the end of a turn. If the round can't be written,
`write_failed` undoes the publish, and the confirm becomes a nack.

Each channel has one `Owed`, in which its answers (declare-ok, commit-ok, get-ok) wait as well. The following
wait in `Ledger`: callbacks (answers of Flight and HTTP), queues that can deliver nothing before a sync, notes
for the audit, and publishers that have used up their share of a sync. `confirms` owns the numbers of
confirms, `definition_changes` the writing of definitions, `leveret.server.group_commit` the sync.

The rule: only the ledger says whether a sync is needed; `leveret.server.turns` requests it from another
thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from leveret.broker.counters import Counters
from leveret.broker.histograms import Histogram
from leveret.broker.queues.audit_marks import Trail
from leveret.broker.sessions.confirms import Confirms
from leveret.storage.errors import StorageError
from leveret.storage.offset_set import Range


class Tickets(Protocol):
    """The part of the store that the ledger uses."""

    @property
    def ticket(self) -> int: ...

    @property
    def safe_ticket(self) -> int: ...

    @property
    def unsynced_bytes(self) -> int: ...

    @property
    def checkpoint_due(self) -> bool: ...


class Changes(Protocol):
    """The part of the definitions that the ledger uses: the number up to which they are committed."""

    committed: int


class Outlet(Protocol):
    """The part of a channel's outlet that the ledger uses."""

    def answer(self, data: bytes) -> None: ...

    def confirm(self, last: int, *, nack: bool, multiple: bool) -> None: ...


class Channel(Protocol):
    """The part of a channel that the ledger uses."""

    closed: bool
    counters: Counters

    @property
    def owed(self) -> Owed: ...

    @property
    def outlet(self) -> Outlet: ...

    @property
    def is_gone(self) -> bool:
        """Whether nobody reads the answers of the channel any more."""

    def all_answered(self) -> None:
        """Called when the last waiting answer of the channel has been sent."""

    def note_nack(self, reason: str, count: int) -> None: ...

    def fail_session(self, sentence: str) -> None:
        """Close the channel's connection, because a definition that its answer waits for can't be written."""


class Target(Protocol):
    """The part of a queue that the ledger uses."""

    durable: bool


Attempt = Callable[[], bytes | None]
"""A function that returns an answer, or None if it must be called again after the next sync."""


class _Answer(NamedTuple):
    """A waiting answer, with the definition and ticket it waits for; an `attempt` makes its data later."""

    defined: int
    ticket: int
    data: bytes
    attempt: Attempt | None = None


class Owed:
    """The answers and confirms that one channel waits for, answers in the order of its requests.

    `owed.answer(data, ticket=7)`; `owed.published(3, durable=True)` once `owed.confirms` is set.
    """

    __slots__ = ("_answers", "_count", "_durable", "_late", "_ledger", "channel", "confirms")

    def __init__(self, ledger: Ledger[Any, Any], channel: Channel) -> None:
        self._ledger = ledger
        self.channel = channel
        self.confirms: Confirms | None = None
        self._count = 0
        """Number of publishes of this turn that are not yet in the store."""
        self._durable = False
        """Whether some of the turn's publishes must be synced before they are confirmed."""
        self._answers: deque[_Answer] = deque()
        """Answers that wait for the disk or behind another answer."""
        self._late = 0
        """Number of waiting answers whose `attempt` has not returned data yet."""

    # confirms

    def published(self, count: int, *, durable: bool) -> None:
        """Add publishes of this turn to be confirmed, after a sync if `durable`."""
        self._count += count
        self._durable |= durable
        self._ledger.unsealed[self] = None

    def seal(self, ticket: int, error: StorageError | None) -> None:
        """Expect confirms of this turn's publishes under this ticket; nack them if appending failed."""
        count, durable = self._count, self._durable
        self._count, self._durable = 0, False
        if error is not None:
            self.channel.note_nack(str(error), count)
            self.refuse(count)
        else:
            self.expect(count, ticket if durable else 0)

    def expect(self, count: int, ticket: int, *, done: bool = False) -> None:
        """Confirm publishes when the ticket is safe; `done` if they can't be undone."""
        assert self.confirms is not None
        self.confirms.expect(count, ticket, done=done, since_us=self._ledger.turn_us)
        self._ledger.waiting[self] = None

    def refuse(self, count: int) -> None:
        """Nack publishes."""
        assert self.confirms is not None
        self.confirms.refuse(count)
        self._ledger.waiting[self] = None

    def fail(self, safe_ticket: int, *, reason: str) -> None:
        """Nack the publishes that wait for a ticket above the safe one; they have been undone."""
        if self.confirms is not None and (count := self.confirms.fail(safe_ticket)):
            self.channel.note_nack(reason, count)

    # answers

    @property
    def has_answers(self) -> bool:
        """Whether an answer waits, so that later answers must wait behind it."""
        return bool(self._answers)

    def answer(self, data: bytes, *, defined: int = 0, ticket: int = 0) -> None:
        """Send an answer after all earlier ones, once the definition and the ticket are durable."""
        if self._answers or not self._ledger.is_durable(defined, ticket):
            self._wait(_Answer(defined, ticket, data))
        else:
            self.channel.outlet.answer(data)

    def answer_with(self, attempt: Attempt) -> None:
        """Send the answer that `attempt` returns, after all earlier answers.

        `attempt` is called now, unless an earlier attempt has not returned an answer yet. If it returns None,
        it is called again after all changes so far are synced.
        """
        data = None if self._late else attempt()
        if data is not None:
            self.answer(data)
        else:
            self._late += 1
            self._wait(_Answer(0, self._ledger.ticket, b"", attempt))

    def await_definition(self, number: int) -> None:
        """Wait for a definition of a request without an answer; if it is refused, the session is ended."""
        if not self._ledger.is_durable(number, 0):
            self.answer(b"", defined=number)

    def waits_for_definition(self, numbers: Collection[int]) -> bool:
        """Return whether an answer waits for one of these changes of definitions."""
        return any(answer.defined in numbers for answer in self._answers)

    def _wait(self, answer: _Answer) -> None:
        self._answers.append(answer)
        self._ledger.waiting[self] = None

    # sending

    def release(self) -> bool:
        """Send the answers and confirms that are safe; return whether more are waiting.

        A closed channel gets only answers, such as its close-ok.
        """
        if self._answers:
            self._release_answers()
        if self.confirms is None or self.channel.closed:
            return bool(self._answers)
        ledger, counters = self._ledger, self.channel.counters
        for last, nack, multiple in self.confirms.release(ledger.safe_ticket, ledger.note_acked):
            self.channel.outlet.confirm(last, nack=nack, multiple=multiple)
        counters.confirmed, counters.expecting_confirms = self.confirms.acked, self.confirms.last
        return bool(self._answers) or len(self.confirms) > 0

    def _release_answers(self) -> None:
        answers, is_durable = self._answers, self._ledger.is_durable
        if self.channel.is_gone:
            answers.clear()
            self._late = 0
        while answers and is_durable(answers[0].defined, answers[0].ticket):
            data = answers[0].data if answers[0].attempt is None else self._make(answers[0].attempt)
            if data is None:
                return
            answers.popleft()
            self.channel.outlet.answer(data)
        if not answers:
            self.channel.all_answered()

    def _make(self, attempt: Attempt) -> bytes | None:
        """Return the data of the first answer; if None, let it wait for all changes so far."""
        data = attempt()
        if data is None:
            self._answers[0] = self._answers[0]._replace(ticket=self._ledger.ticket)
        else:
            self._late -= 1
        return data


Queue_ = TypeVar("Queue_", bound=Target)
Source_ = TypeVar("Source_")


class Ledger(Generic[Queue_, Source_]):
    """`ledger = Ledger(store, definitions)`; one for each broker."""

    def __init__(
        self,
        store: Tickets,
        definitions: Changes,
        *,
        clock: Callable[[], int] = lambda: 0,
        latency_us: Histogram | None = None,
    ) -> None:
        """`latency_us` observes the time from publishes to their acks by `clock`."""
        self._store = store
        self._definitions = definitions
        self._clock = clock
        self._latency_us = latency_us
        self.turn_us = clock()
        """Time at which the present turn began: the time of its publishes."""
        self.unsealed: dict[Owed, None] = {}
        """Channels with publishes of this turn."""
        self.waiting: dict[Owed, None] = {}
        """Channels with confirms or answers that wait."""
        self._unwritten: deque[tuple[int, Queue_, Range]] = deque()
        """Publishes to be confirmed that are not yet written, with the ticket of their sync."""
        self._callbacks: deque[tuple[int, Callable[[], None]]] = deque()
        """Callbacks of HTTP and Flight, with the ticket that they wait for."""
        self._stalled: dict[Source_, None] = {}
        """Sources that can deliver nothing more before a sync."""
        self._spent: list[Callable[[], None]] = []
        """Callbacks of publishers that have used up their share of a sync."""
        self._trails: dict[Trail, None] = {}
        """Trails with messages to note for the audit when they are safe."""

    # durability

    @property
    def ticket(self) -> int:
        """The ticket with which all changes so far become safe."""
        return self._store.ticket

    @property
    def safe_ticket(self) -> int:
        return self._store.safe_ticket

    def is_durable(self, defined: int, ticket: int) -> bool:
        """Return whether definitions up to this number, and changes up to this ticket, are durable."""
        return ticket <= self._store.safe_ticket and defined <= self._definitions.committed

    @property
    def wants_sync(self) -> bool:
        """Whether a channel, source, callback or publisher waits for a sync."""
        is_waited_for = self.waiting or self._stalled or self._callbacks
        return bool(self._spent or (is_waited_for and self._store.safe_ticket < self._store.ticket))

    @property
    def wants_sync_later(self) -> bool:
        """Whether there are unsynced changes that nobody waits for, like acks, or a checkpoint is due."""
        return bool(self._store.unsynced_bytes or self._store.checkpoint_due)

    def note_acked(self, since_us: int, count: int) -> None:
        """Observe the latency of publishes whose ack is sent now."""
        if self._latency_us is not None:
            self._latency_us.observe(self._clock() - since_us, count)

    # waiting

    def appended(self, queue: Queue_, start: int, senders: Iterable[tuple[Channel, int]]) -> None:
        """Note publishes to be confirmed, which must be undone if they can't be written.

        The messages start at offset `start`; `senders` are channels with the number of their messages.
        """
        if not queue.durable:
            return
        ticket = self._store.ticket
        for channel, count in senders:
            if count and channel.owed.confirms is not None:
                self._unwritten.append((ticket, queue, (start, start + count)))
            start += count

    def seal(self, error: StorageError | None) -> None:
        """Give the turn's publishes their ticket, or nack all of them if appending some of them failed."""
        if not self.unsealed:
            return
        ticket = self._store.ticket
        for owed in self.unsealed:
            owed.seal(ticket, error)
        self.unsealed.clear()

    def when_durable(self, answer: Callable[[], None]) -> None:
        """Call `answer` at the end of a turn when all changes so far are on disk."""
        self._callbacks.append((self._store.ticket, answer))

    def after_sync(self, go_on: Callable[[], None]) -> None:
        """Call `go_on` after the next sync, whichever changes it covers."""
        self._spent.append(go_on)

    def stall(self, source: Source_) -> None:
        """Run a source only after the next sync, because it can deliver nothing before."""
        self._stalled[source] = None

    def is_stalled(self, source: Source_) -> bool:
        return source in self._stalled

    def await_audit(self, trail: Trail) -> None:
        """Let a trail note its new messages when they are synced."""
        self._trails[trail] = None

    def forget_trail(self, trail: Trail) -> None:
        self._trails.pop(trail, None)

    def forget(self, owed: Owed) -> None:
        """Forget a channel that has ended; a later answer, such as close-ok, adds it again."""
        self.waiting.pop(owed, None)
        self.unsealed.pop(owed, None)

    def waiting_for_definition(self, numbers: Collection[int]) -> list[Channel]:
        """Return the channels with an answer that waits for one of these changes of definitions."""
        return [owed.channel for owed in self.waiting if owed.waits_for_definition(numbers)]

    # results of the disk

    def synced(self) -> list[Source_]:
        """Handle a sync; return the sources that were stalled."""
        stalled = list(self._stalled)
        self._stalled.clear()
        self._forget_written()
        safe_ticket = self._store.safe_ticket
        for trail in [trail for trail in self._trails if trail.synced(safe_ticket)]:
            del self._trails[trail]
        spent, self._spent = self._spent, []
        for go_on in spent:
            go_on()
        return stalled

    def write_failed(
        self, error: StorageError, undo: Callable[[Sequence[tuple[Queue_, Range]]], None]
    ) -> None:
        """Undo and nack the publishes that wait for a round which could not be written.

        Answers, and confirms of publishes that can't be undone, wait until writing works again.
        """
        self._forget_written()
        undo([(queue, range_) for _, queue, range_ in self._unwritten])
        self._unwritten.clear()
        for owed in self.waiting:
            owed.fail(self._store.safe_ticket, reason=str(error))

    def _forget_written(self) -> None:
        safe_ticket, unwritten = self._store.safe_ticket, self._unwritten
        while unwritten and unwritten[0][0] <= safe_ticket:
            unwritten.popleft()

    def release(self) -> None:
        """Call the callbacks and send the answers and confirms that are safe, at the end of each turn."""
        while self._callbacks and self._callbacks[0][0] <= self._store.safe_ticket:
            self._callbacks.popleft()[1]()
        for owed in list(self.waiting):
            if not owed.release():
                self.waiting.pop(owed, None)
