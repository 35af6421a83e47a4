"""The broker: everything it knows, and the turn in which things happen.

All of it belongs to one thread. A shell (`leveret.server`) feeds connections with bytes and calls `end_turn`
when it has fed what there was; then appends are made, queues run, confirms are given out. What must be
durable before it is answered waits in the `ledger`; the shell calls `synced` and `committed` when its disk
work is done. What is due later waits for `tick`. No sockets, no tasks, no clock of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from leveret.broker import restart
from leveret.broker.access.accounts import Accounts
from leveret.broker.access.logins import Hasher, Logins, Origin, hash_at_once
from leveret.broker.atomic_changes import Work
from leveret.broker.canonical import Value
from leveret.broker.core import Runs, Scheduled
from leveret.broker.counters import BrokerCounters
from leveret.broker.definition_changes import Defining, Undo
from leveret.broker.definitions import Change, Row
from leveret.broker.ledger import Ledger
from leveret.broker.limits import Limits
from leveret.broker.queues.direct_replies import DirectReplies
from leveret.broker.sessions.channel import Channel
from leveret.broker.sessions.pacing import Pacing
from leveret.broker.sessions.session import Peer, Session
from leveret.broker.sessions.turn_shares import TurnShares
from leveret.broker.timers import Timers
from leveret.broker.vhosts.destination import Destination
from leveret.broker.vhosts.vhost import VirtualHost
from leveret.storage.errors import BadRequest, StorageError, WriteFailed
from leveret.storage.offset_set import Range
from leveret.storage.records import PERSISTENT, Message
from leveret.storage.store import Store

_ROUNDS_MAX = 64
"""How often queues may wake one another in a turn before the shell gets to write what there is."""

_DAMAGE_MAX = 100
"""Damaged things that are remembered one by one."""


class _Appends(NamedTuple):
    """Messages for one queue in the order of their arrival, and who sent how many of them."""

    queue: Destination
    messages: list[Message]
    senders: list[tuple[Channel, int]]


class Listener(Protocol):
    """Told about what somebody may want to log."""

    def nacked(self, channel: Channel, reason: str, count: int) -> None: ...

    def refused_late(self, partition: str, count: int, so_far: int) -> None: ...


class Broker:
    """`Broker(store, clock=..., token=..., define=..., rows=definitions.load())`."""

    def __init__(
        self,
        store: Store,
        *,
        clock: Callable[[], int],
        token: Callable[[], str],
        define: Callable[[int, Sequence[Change]], None],
        rows: Iterable[Row] = (),
        definitions_lost: bool = False,
        name: str = "leveret",
        limits: Limits = Limits(),  # noqa: B008  (frozen)
        listener: Listener | None = None,
        hasher: Hasher = hash_at_once,
    ) -> None:
        """`clock` gives microseconds, `token` random names; `define` writes changes down and has
        `committed` called with their number; `hasher` hashes passwords, elsewhere if need be.
        `definitions_lost`: that there are no rows does not mean that the broker is new."""
        self.store = store
        self.limits = limits
        self.name = name
        self.token = token
        self.timers = Timers()
        self.accounts = Accounts()
        self.logins = Logins(self, hasher)
        self.pacing: Pacing[Session[Channel]] = Pacing()
        self.counters = BrokerCounters()
        self.vhosts: dict[str, VirtualHost] = {}
        self.sessions: dict[Session[Channel], None] = {}
        self.buffered_bytes = 0
        """What sessions keep in memory: messages that are not whole, and answers that nobody reads."""
        self.advertised: dict[str, Value] = {}
        """What clients are told beside the broker's own properties: where else it listens."""
        self.replies = DirectReplies()
        self.seen_headers: dict[bytes, int] = {}
        """What content headers mean, by their bytes: see `content_headers`."""
        self.blocked: str | None = None
        """Why publishers are held back at present, as `connection.blocked` says it."""
        self._alarms: set[tuple[str, str]] = set()
        self.turn_us = clock()
        self.shares = TurnShares()
        self.flushed: dict[Session[Channel], None] = {}
        """Sessions whose fronts have something to be written."""
        self._clock = clock
        self.definitions = Defining(define)
        self.ledger: Ledger[Any, Runs] = Ledger(store, self.definitions)
        self._listener = listener
        self._appends: dict[Runs, _Appends] = {}
        """By what is to run afterwards: a queue's deliverer, or a stream."""
        self._awake: dict[Runs, None] = {}
        self._later: dict[Runs, None] = {}
        self._notices: list[Callable[[], None]] = []
        self.damage: list[str] = []
        """The first damaged things that were found, each in a sentence; `counters.damaged` counts all."""
        self.orphans = restart.restore(self, list(rows), lost=definitions_lost)
        """Definitions that were removed because what they name is missing."""

    # time

    def now_us(self) -> int:
        return self._clock()

    def begin_turn(self) -> None:
        self.turn_us = self._clock()

    def tick(self) -> None:
        """Does what is due."""
        self.begin_turn()
        self.timers.run(self.turn_us)

    # the turn

    def enqueue(self, queue: Destination, messages: list[Message], channel: Channel) -> None:
        """Messages for a queue, to be appended at the end of the turn."""
        runs = queue.runs
        waiting = self._appends.get(runs)
        if waiting is None:
            self._appends[runs] = _Appends(queue, list(messages), [(channel, len(messages))])
        else:
            waiting.messages.extend(messages)
            waiting.senders.append((channel, len(messages)))

    def append_at_once(self, queue: Destination, messages: Sequence[Message], channel: Channel) -> None:
        """The same, without waiting for the end of the turn."""
        self._append(queue, messages, [(channel, len(messages))])

    def _append(
        self, queue: Destination, messages: Sequence[Message], senders: list[tuple[Channel, int]]
    ) -> None:
        if queue.dedup is None:
            start = queue.append(messages)
        else:
            start = queue.log.next
            work = Work(self)
            first = 0
            for position, (channel, count) in enumerate(senders):
                senders[position] = (channel, work.publish(queue, messages[first : first + count]))
                first += count
            work.commit()
        paced = queue.paced
        if paced is not None:
            publishers = [channel.session for channel, _ in senders]
            self.pacing.published(paced, sum(count for _, count in senders), publishers)
        self.ledger.appended(queue, start, senders)

    def wake(self, runs: Runs) -> None:
        """It is run in this turn; one that waits for a sync, after that."""
        if not self.ledger.is_stalled(runs):
            self._awake[runs] = None

    def wake_later(self, runs: Runs) -> None:
        """The same, once what this turn has to say is written."""
        self._later[runs] = None

    def flush(self) -> None:
        """Appends what was published in this turn; from here on it is in the queues."""
        error: StorageError | None = None
        collected, self._appends = self._appends, {}
        for queue, messages, senders in collected.values():
            if queue.deleted:
                continue
            try:
                self._append(queue, messages, senders)
            except (WriteFailed, BadRequest) as failed:  # a full disk, or more than the store takes at once
                error = failed
        self.ledger.seal(error)

    def bring_up_to_date(self, scheduled: Scheduled) -> None:
        """Do what this turn has left to do for one queue, before a method looks at it or changes it.

        A method sees what the methods before it on its channel did (AMQP 0-9-1, section 4.7). So publishes
        of this turn are appended, consumers get what they have credit for, and what is too old or too much is
        dropped. All other queues wait for the end of the turn.
        """
        runs = scheduled.runs
        waiting = self._appends.get(runs)
        if waiting is not None:
            waiting.queue.expect(waiting.messages)
        self.flush()
        if runs in self._awake:
            del self._awake[runs]
            runs.run()

    def end_turn(self) -> None:
        """Everything that was fed takes effect."""
        self.flush()
        self._awake.update(self._later)
        self._later.clear()
        for _ in range(_ROUNDS_MAX):
            if not self._awake:
                break
            awake, self._awake = self._awake, {}
            for runs in awake:
                runs.run()
        notices, self._notices = self._notices, []
        for tell in notices:
            tell()
        self.pacing.end_turn()
        self.ledger.release()

    @property
    def has_more(self) -> bool:
        """Whether there is more to do once everything is written."""
        return bool(self._awake or self._later)

    def tell_later(self, tell: Callable[[], None]) -> None:
        """Call this after the answers of this turn: a client is told what it did not ask for."""
        self._notices.append(tell)

    # what the shell tells of the disk

    def synced(self) -> None:
        """The store is safe further than before."""
        self.begin_turn()
        for runs in self.ledger.synced():
            self._awake[runs] = None

    def write_failed(self, error: WriteFailed) -> None:
        """The last round could not be written: publishes that wait for it are undone and nacked.

        What was delivered meanwhile is not taken back, and a `tx.commit` waits until writing works again.
        """
        self.begin_turn()
        self.ledger.write_failed(error, self._undo)

    def _undo(self, published: Sequence[tuple[Destination, Range]]) -> None:
        """Take publishes back that nobody has been given."""
        work = Work(self, undoing=True)
        for queue, (start, stop) in published:
            if not queue.deleted:
                ready = queue.log.read(queue.cursor.waiting.ready_within([(start, stop)]))
                work.unpublish(queue, [each for each in ready if each.flags & PERSISTENT])
        work.commit()

    def checkpointed(self) -> None:
        """What was in memory is in files now, where it can be too old."""
        self.begin_turn()
        for vhost in self.vhosts.values():
            vhost.retire()

    def define(self, *changes: Change, undo: Undo | None = None) -> int:
        """Hands changes of definitions over to be written down; returns their number."""
        return self.definitions.write(changes, undo=undo) if changes else 0

    def committed(self, number: int) -> None:
        """Definition changes up to this number are on disk."""
        self.begin_turn()
        self.definitions.done(number)

    def refused(self, numbers: Collection[int], error: StorageError) -> None:
        """These changes of definitions can't be written: undo them, and close connections that wait."""
        self.begin_turn()
        waiting = self.ledger.waiting_for_definition(numbers)
        self.definitions.refuse(numbers, error)
        for channel in waiting:
            channel.fail_session(error.message)

    # sessions

    @property
    def memory_bytes(self) -> int:
        """Memory that clients have made the broker use: buffers, and messages that are in no file yet.

        Rows that Spark has staged are such messages.
        """
        return self.buffered_bytes + self.store.memory_bytes

    def open_session(self, peer: Peer, *, name: str, origin: Origin) -> Session[Channel]:
        """Begin a session for a client that has connected. Failed logins are counted for its origin."""
        session: Session[Channel] = Session(self, peer, name=name, origin=origin)
        self.sessions[session] = None
        return session

    def forget_session(self, session: Session[Channel]) -> None:
        if session in self.sessions:
            del self.sessions[session]
            self.counters.take_over(session.counters)
            session.counters = self.counters  # its last words count as well
        self.pacing.forget(session)
        self.shares.forget(session)

    def forget_channel(self, channel: Channel) -> None:
        self.ledger.forget(channel.owed)
        self.replies.end(channel)

    def set_alarm(self, what: str, *, on: bool, source: str = "") -> None:
        """Short of `memory` or `disk`, or no longer: publishers are held back meanwhile, and told why."""
        were = self.blocked
        if on:
            self._alarms.add((what, source))
        else:
            self._alarms.discard((what, source))
        scarce = sorted({what for what, _ in self._alarms}, reverse=True)
        self.blocked = "low on " + " & ".join(scarce) if scarce else None
        if (were is None) == (self.blocked is None):
            return
        for session in self.sessions:
            session.peer.tell_blocked(self.blocked)

    def note_nack(self, channel: Channel, reason: str, count: int) -> None:
        self.counters.refused[reason] += count
        if self._listener is not None:
            self._listener.nacked(channel, reason, count)

    def note_damage(self, sentence: str) -> None:
        """Something that was kept is damaged."""
        self.counters.damaged += 1
        if len(self.damage) < _DAMAGE_MAX:
            self.damage.append(sentence)

    def note_stale(self, partition: str, count: int, so_far: int) -> None:
        """Settlements came too late, and were refused."""
        self.counters.stale_acks += count
        if self._listener is not None:
            self._listener.refused_late(partition, count, so_far)
