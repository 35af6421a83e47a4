"""The ledger: everything that waits for the disk, and what becomes of it when the disk has it or refuses it.

The life of one confirm: `Owed.published` counts the publish in its turn. At the end of the turn it is in its
queues, under a ticket of the store. `Ledger.appended` notes what must be undone if the ticket can't be
written, and `Ledger.seal` gives the count its ticket and its place among the confirms of the channel.
Because a channel waits, `wants_sync` is true, and the shell has the store synced, on a thread of its own.
When the ticket is safe, `release` sends the confirm at the end of a turn. When the round can't be written,
`write_failed` has the publish undone, and the confirm becomes a nack.

Answers (declare-ok, commit-ok, get-ok) wait in the same place, `Owed`, one for each channel. `Ledger` also
has callbacks (answers of Flight and HTTP), queues that can hand out nothing more before a sync, notes for
the audit, and publishers that have sent their share of a sync. The numbers of confirms are left to
`confirms`, the writing of definitions to `definition_changes`, the sync to `leveret.server.group_commit`.

The rule: the ledger alone decides when the store is synced, and never on the thread of the broker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from leveret.broker.counters import Counters
from leveret.broker.queues.audit_marks import Trail
from leveret.broker.sessions.confirms import Confirms
from leveret.storage.errors import StorageError
from leveret.storage.offset_set import Range


class Tickets(Protocol):
    """What the ledger needs of the store."""

    @property
    def ticket(self) -> int: ...

    @property
    def safe_ticket(self) -> int: ...

    @property
    def unsynced_bytes(self) -> int: ...

    @property
    def checkpoint_due(self) -> bool: ...


class Changes(Protocol):
    """What the ledger needs of the definitions: up to which number they are committed."""

    committed: int


class Outlet(Protocol):
    """Where a channel's answers and confirms go."""

    def answer(self, data: bytes) -> None: ...

    def confirm(self, last: int, *, nack: bool, multiple: bool) -> None: ...


class Channel(Protocol):
    """What the ledger needs of a channel."""

    closed: bool
    counters: Counters

    @property
    def owed(self) -> Owed: ...

    @property
    def outlet(self) -> Outlet: ...

    @property
    def is_gone(self) -> bool:
        """Return whether nobody reads the answers of the channel any more."""

    def all_answered(self) -> None:
        """No answer of the channel waits any more."""

    def note_nack(self, reason: str, count: int) -> None: ...

    def fail_session(self, sentence: str) -> None:
        """End the session of the channel: what it was promised can't be kept."""


class Target(Protocol):
    """What the ledger needs of a queue."""

    durable: bool


Attempt = Callable[[], bytes | None]
"""Makes an answer; None when it must be tried again after the next sync."""


class _Answer(NamedTuple):
    """An answer, and what it waits for; where there is an `attempt`, that makes the data when it is time."""

    defined: int
    ticket: int
    data: bytes
    attempt: Attempt | None = None


class Owed:
    """What one channel is owed: answers in the order of its requests, and confirms of its publishes.

    `owed.answer(data, ticket=7)`; `owed.published(3, durable=True)` once `owed.confirms` is set.
    """

    __slots__ = ("_answers", "_count", "_durable", "_late", "_ledger", "channel", "confirms")

    def __init__(self, ledger: Ledger[Any, Any], channel: Channel) -> None:
        self._ledger = ledger
        self.channel = channel
        self.confirms: Confirms | None = None
        self._count = 0
        """Publishes of this turn that are not yet in the store."""
        self._durable = False
        """Whether some of them must be synced before they are confirmed."""
        self._answers: deque[_Answer] = deque()
        """Answers that wait, and those behind them."""
        self._late = 0
        """How many of them are yet to be made."""

    # confirms

    def published(self, count: int, *, durable: bool) -> None:
        """So many publishes of this turn are owed a confirm; if `durable`, once they are synced."""
        self._count += count
        self._durable |= durable
        self._ledger.unsealed[self] = None

    def seal(self, ticket: int, error: StorageError | None) -> None:
        """The publishes of this turn are in the store, under this ticket, or could not be taken in."""
        count, durable = self._count, self._durable
        self._count, self._durable = 0, False
        if error is not None:
            self.channel.note_nack(str(error), count)
            self.refuse(count)
        else:
            self.expect(count, ticket if durable else 0)

    def expect(self, count: int, ticket: int, *, done: bool = False) -> None:
        """So many publishes are confirmed when the ticket is safe; what can't be undone is `done`."""
        assert self.confirms is not None
        self.confirms.expect(count, ticket, done=done)
        self._ledger.waiting[self] = None

    def refuse(self, count: int) -> None:
        """So many publishes are nacked."""
        assert self.confirms is not None
        self.confirms.refuse(count)
        self._ledger.waiting[self] = None

    def fail(self, safe_ticket: int, *, reason: str) -> None:
        """Publishes that wait for a ticket above the safe one are undone: nack them."""
        if self.confirms is not None and (count := self.confirms.fail(safe_ticket)):
            self.channel.note_nack(reason, count)

    # answers

    @property
    def has_answers(self) -> bool:
        """Return whether an answer waits, so that all that come later wait too."""
        return bool(self._answers)

    def answer(self, data: bytes, *, defined: int = 0, ticket: int = 0) -> None:
        """Send an answer, after those before it, once the definition and the ticket are durable."""
        if self._answers or not self._ledger.is_durable(defined, ticket):
            self._wait(_Answer(defined, ticket, data))
        else:
            self.channel.outlet.answer(data)

    def answer_with(self, attempt: Attempt) -> None:
        """Send what `attempt` makes, after the answers before it.

        It is called now, but not before an earlier attempt has made an answer. When it returns None, it is
        called again when everything changed until then is synced.
        """
        data = None if self._late else attempt()
        if data is not None:
            self.answer(data)
        else:
            self._late += 1
            self._wait(_Answer(0, self._ledger.ticket, b"", attempt))

    def await_definition(self, number: int) -> None:
        """A request without an answer has defined something: its session ends if that is refused."""
        if not self._ledger.is_durable(number, 0):
            self.answer(b"", defined=number)

    def waits_for_definition(self, numbers: Collection[int]) -> bool:
        """Return whether an answer waits for one of these changes of definitions."""
        return any(answer.defined in numbers for answer in self._answers)

    def _wait(self, answer: _Answer) -> None:
        self._answers.append(answer)
        self._ledger.waiting[self] = None

    # what has become safe

    def release(self) -> bool:
        """Send what has become safe, of a closed channel its last words; return whether more is owed."""
        if self._answers:
            self._release_answers()
        if self.confirms is None or self.channel.closed:
            return bool(self._answers)
        for last, nack, multiple in self.confirms.release(self._ledger.safe_ticket):
            self.channel.outlet.confirm(last, nack=nack, multiple=multiple)
        self.channel.counters.confirmed = self.confirms.acked
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
        """Make the first answer; if that is not possible yet, it waits for all that is changed so far."""
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

    def __init__(self, store: Tickets, definitions: Changes) -> None:
        self._store = store
        self._definitions = definitions
        self.unsealed: dict[Owed, None] = {}
        """Channels with publishes of this turn."""
        self.waiting: dict[Owed, None] = {}
        """Channels with confirms or answers that wait."""
        self._unwritten: deque[tuple[int, Queue_, Range]] = deque()
        """Publishes that are owed a confirm and may still fail to be written, by the ticket of their sync."""
        self._callbacks: deque[tuple[int, Callable[[], None]]] = deque()
        """Who else waits for a sync, by the ticket."""
        self._stalled: dict[Source_, None] = {}
        """Sources that can hand out nothing more before a sync."""
        self._spent: list[Callable[[], None]] = []
        """Tells publishers that have sent their share of a sync to go on."""
        self._trails: dict[Trail, None] = {}
        """What is to be noted for the audit when messages are safe."""

    # what is durable

    @property
    def ticket(self) -> int:
        """Everything changed so far is durable when this ticket is safe."""
        return self._store.ticket

    @property
    def safe_ticket(self) -> int:
        return self._store.safe_ticket

    def is_durable(self, defined: int, ticket: int) -> bool:
        """Return whether definitions up to this number, and changes up to this ticket, are durable."""
        return ticket <= self._store.safe_ticket and defined <= self._definitions.committed

    @property
    def wants_sync(self) -> bool:
        """Whether somebody waits for what is not synced yet."""
        waited_for = self.waiting or self._stalled or self._callbacks
        return bool(self._spent or (waited_for and self._store.safe_ticket < self._store.ticket))

    @property
    def wants_sync_later(self) -> bool:
        """Whether there is something to sync that nobody waits for, like acks."""
        return bool(self._store.unsynced_bytes or self._store.checkpoint_due)

    # what waits

    def appended(self, queue: Queue_, start: int, senders: Iterable[tuple[Channel, int]]) -> None:
        """Note what must be undone if it can't be written: publishes that are owed a confirm.

        The senders tell who published how many of the messages from `start` on.
        """
        if not queue.durable:
            return
        ticket = self._store.ticket
        for channel, count in senders:
            if count and channel.owed.confirms is not None:
                self._unwritten.append((ticket, queue, (start, start + count)))
            start += count

    def seal(self, error: StorageError | None) -> None:
        """The publishes of this turn are in the store; with an error, some are not, and all are nacked."""
        if not self.unsealed:
            return
        ticket = self._store.ticket
        for owed in self.unsealed:
            owed.seal(ticket, error)
        self.unsealed.clear()

    def when_durable(self, answer: Callable[[], None]) -> None:
        """Call this, at the end of a turn, when everything changed so far is on disk."""
        self._callbacks.append((self._store.ticket, answer))

    def after_sync(self, go_on: Callable[[], None]) -> None:
        """Call this when the next sync is done, whatever it covers."""
        self._spent.append(go_on)

    def stall(self, source: Source_) -> None:
        """The source can't hand out more before a sync. It is run after that."""
        self._stalled[source] = None

    def is_stalled(self, source: Source_) -> bool:
        return source in self._stalled

    def await_audit(self, trail: Trail) -> None:
        """The trail notes what has arrived when that is synced."""
        self._trails[trail] = None

    def forget_trail(self, trail: Trail) -> None:
        self._trails.pop(trail, None)

    def forget(self, owed: Owed) -> None:
        """The channel has ended. Its last answers, if it gets any more, are noted anew."""
        self.waiting.pop(owed, None)
        self.unsealed.pop(owed, None)

    def waiting_for_definition(self, numbers: Collection[int]) -> list[Channel]:
        """Return the channels with an answer that waits for one of these changes of definitions."""
        return [owed.channel for owed in self.waiting if owed.waits_for_definition(numbers)]

    # what the disk says

    def synced(self) -> list[Source_]:
        """The store is safe further than before. Return the sources that may be able to go on."""
        stalled = list(self._stalled)
        self._stalled.clear()
        self._forget_written()
        safe_ticket = self._store.safe_ticket
        for trail in [each for each in self._trails if each.synced(safe_ticket)]:
            del self._trails[trail]
        spent, self._spent = self._spent, []
        for go_on in spent:
            go_on()
        return stalled

    def write_failed(
        self, error: StorageError, undo: Callable[[Sequence[tuple[Queue_, Range]]], None]
    ) -> None:
        """A round could not be written: have publishes that wait for it undone, and nack them.

        Answers, and confirms of what can't be undone, wait until writing works again.
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
        """Send what has become safe. At the end of each turn."""
        while self._callbacks and self._callbacks[0][0] <= self._store.safe_ticket:
            self._callbacks.popleft()[1]()
        for owed in list(self.waiting):
            if not owed.release():
                self.waiting.pop(owed, None)
