"""The broker: all of its state, and the turn in which it changes.

All state belongs to one thread. The server (`leveret.server`) feeds connections with bytes and then calls
`end_turn`, which appends messages, runs queues and sends confirms. Answers to durable changes wait in the
`ledger`; the server calls `synced` and `committed` after its disk work, and `tick` for timers. This module
uses no sockets, tasks or clock of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from leveret.broker import restart
from leveret.broker.access.accounts import Accounts
from leveret.broker.access.logins import Hasher, Logins, Origin, hash_at_once
from leveret.broker.access.topic_permissions import TOPIC_PERMISSION, apply_topic_permission
from leveret.broker.atomic_changes import Work
from leveret.broker.canonical import Value
from leveret.broker.cluster_name import CLUSTER_NAME, apply_cluster_name
from leveret.broker.core import Runs, Scheduled
from leveret.broker.counters import BrokerCounters
from leveret.broker.definition_changes import Defining, Undo
from leveret.broker.definitions import Change, Row
from leveret.broker.ledger import Ledger
from leveret.broker.limits import Limits
from leveret.broker.observations import Observations
from leveret.broker.parameters import GLOBAL_PARAMETER, Component, Parameters
from leveret.broker.queues.direct_replies import DirectReplies
from leveret.broker.sampling import Sampler
from leveret.broker.sessions.channel import Channel
from leveret.broker.sessions.pacing import Pacing
from leveret.broker.sessions.session import Peer, Session
from leveret.broker.sessions.turn_shares import TurnShares
from leveret.broker.timers import Timers
from leveret.broker.usage_limits import USER_LIMITS, VHOST_LIMITS, vhost_limits_document
from leveret.broker.vhosts.destination import Destination
from leveret.broker.vhosts.metadata import METADATA, apply_metadata
from leveret.broker.vhosts.policies import OPERATOR_POLICY, POLICY, operator_policy_document
from leveret.broker.vhosts.policy_changes import apply_policy
from leveret.broker.vhosts.vhost import VirtualHost
from leveret.storage.errors import BadRequest, StorageError, WriteFailed
from leveret.storage.offset_set import Range
from leveret.storage.records import PERSISTENT, Message
from leveret.storage.store import Store

_ROUNDS_MAX = 64
"""Number of rounds in which queues may wake one another in a turn before output is written."""

_DAMAGE_MAX = 100
"""Number of sentences about damage that are kept."""

_PARAMETERS = {
    CLUSTER_NAME: Component(apply_cluster_name),
    GLOBAL_PARAMETER: Component(),
    OPERATOR_POLICY: Component(apply_policy, check=operator_policy_document),
    POLICY: Component(apply_policy),
    METADATA: Component(apply_metadata),
    VHOST_LIMITS: Component(check=vhost_limits_document),
    USER_LIMITS: Component(is_of_user=True),
    TOPIC_PERMISSION: Component(apply_topic_permission, is_of_user=True),
}
"""What parameters do, by component."""


class _Appends(NamedTuple):
    """Messages for one queue in order of arrival, and the channels with the number of their messages."""

    queue: Destination
    messages: list[Message]
    senders: list[tuple[Channel, int]]


class Listener(Protocol):
    """Receives events that the server logs."""

    def nacked(self, channel: Channel, reason: str, count: int) -> None: ...

    def refused_late(self, partition: str, count: int, so_far: int) -> None: ...

    def login_failed(self, name: str, origin: Origin, cause: str) -> None: ...


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
        node: str = "leveret@localhost",
        limits: Limits = Limits(),  # noqa: B008  (frozen)
        listener: Listener | None = None,
        hasher: Hasher = hash_at_once,
    ) -> None:
        """Restore the broker from its store and definitions.

        `clock` returns microseconds, `token` a random name. `define` writes definition changes and has
        `committed` called later. With `definitions_lost`, a broker without rows is not a new one.
        """
        self.store = store
        self.limits = limits
        self.name = self.first_name = name
        self.node = node
        """The name of this process in RabbitMQ's form."""
        self.token = token
        self.observations = Observations()
        self.timers = Timers(self.observations.timer_lateness_us)
        self.accounts = Accounts()
        self.logins = Logins(self, hasher)
        self.pacing: Pacing[Session[Channel]] = Pacing()
        self.counters = BrokerCounters()
        self.vhosts: dict[str, VirtualHost] = {}
        self.sessions: dict[Session[Channel], None] = {}
        self.buffered_bytes = 0
        """Memory of sessions: incomplete messages, and output that clients have not read."""
        self.advertised: dict[str, Value] = {}
        """Properties sent to clients in addition to the broker's own, such as other addresses."""
        self.replies = DirectReplies()
        self.seen_headers: dict[bytes, int] = {}
        """Cached meanings of content headers by their bytes: see `content_headers`."""
        self.blocked: str | None = None
        """The reason for holding back publishers, as sent in `connection.blocked`, or None."""
        self._alarms: set[tuple[str, str]] = set()
        self.turn_us = clock()
        self.shares = TurnShares()
        self.flushed: dict[Session[Channel], None] = {}
        """Sessions whose fronts have output to be written."""
        self._clock = clock
        self.definitions = Defining(define)
        self.ledger: Ledger[Any, Runs] = Ledger(
            store, self.definitions, clock=clock, latency_us=self.observations.confirm_latency_us
        )
        self._listener = listener
        self.sampler = Sampler(self)
        self._appends: dict[Runs, _Appends] = {}
        """Messages to append at the end of the turn, by the deliverer or stream to run afterwards."""
        self._awake: dict[Runs, None] = {}
        """Deliverers, streams and groups to run in this turn."""
        self._later: dict[Runs, None] = {}
        """Deliverers, streams and groups to run in the next turn."""
        self._notices: list[Callable[[], None]] = []
        self.damage: list[str] = []
        """A sentence about each damaged record or file, for the first ones; `counters.damaged` counts all."""
        self.parameters = Parameters(self, _PARAMETERS)
        self.orphans = restart.restore(self, list(rows), lost=definitions_lost)
        """Definitions that were removed because they name missing objects."""

    # time

    def now_us(self) -> int:
        return self._clock()

    def begin_turn(self) -> None:
        self.turn_us = self.ledger.turn_us = self._clock()

    def tick(self) -> None:
        """Run the timers that are due."""
        self.begin_turn()
        self.timers.run(self.turn_us)

    # the turn

    def enqueue(self, queue: Destination, messages: list[Message], channel: Channel) -> None:
        """Append messages to a queue at the end of the turn."""
        runs = queue.runs
        waiting = self._appends.get(runs)
        if waiting is None:
            self._appends[runs] = _Appends(queue, list(messages), [(channel, len(messages))])
        else:
            waiting.messages.extend(messages)
            waiting.senders.append((channel, len(messages)))

    def append_at_once(self, queue: Destination, messages: Sequence[Message], channel: Channel) -> None:
        """Append messages to a queue now."""
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
        """Schedule an object for this turn, or for after the sync if it is stalled."""
        if not self.ledger.is_stalled(runs):
            self._awake[runs] = None

    def wake_later(self, runs: Runs) -> None:
        """Schedule an object for the next turn, after the output of this turn is written."""
        self._later[runs] = None

    def flush(self) -> None:
        """Append the messages that were published in this turn."""
        error: StorageError | None = None
        collected, self._appends = self._appends, {}
        for queue, messages, senders in collected.values():
            if queue.deleted:
                continue
            try:
                self._append(queue, messages, senders)
            except (WriteFailed, BadRequest) as failed:
                # The disk is full, or the store does not take so much at once.
                error = failed
        self.ledger.seal(error)

    def bring_up_to_date(self, scheduled: Scheduled) -> None:
        """Do the turn's remaining work for one queue, before a method reads or changes the queue.

        A method sees the effects of earlier methods on its channel (AMQP 0-9-1, section 4.7). So publishes
        of this turn are appended, messages are delivered to consumers with credit, and expired or excess
        messages are dropped. All other queues run at the end of the turn.
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
        """Append messages, run queues, and send notices, answers and confirms."""
        self.flush()
        self._awake.update(self._later)
        self._later.clear()
        for _ in range(_ROUNDS_MAX):
            if not self._awake:
                break
            awake, self._awake = self._awake, {}
            for runs in awake:
                runs.run()
        self.send_notices()
        self.pacing.end_turn()
        self.ledger.release()

    @property
    def waiting_count(self) -> int:
        """Number of queues and streams that are scheduled for the next turn."""
        return len(self._awake) + len(self._later)

    @property
    def alarms(self) -> list[str]:
        """The resources that are short: `memory` first, then `disk`."""
        return sorted({what for what, _ in self._alarms}, reverse=True)

    @property
    def has_more(self) -> bool:
        """Whether queues are scheduled for the next turn, after output is written."""
        return bool(self._awake or self._later)

    def tell_later(self, send_notice: Callable[[], None]) -> None:
        """Call `send_notice` at the end of the turn, to send a client something it did not request."""
        self._notices.append(send_notice)

    def send_notices(self) -> None:
        """Send clients what `tell_later` has collected."""
        notices, self._notices = self._notices, []
        for send_notice in notices:
            send_notice()

    # disk results from the server

    def synced(self) -> None:
        """Handle a sync of the store: schedule the stalled queues."""
        self.begin_turn()
        for runs in self.ledger.synced():
            self._awake[runs] = None

    def write_failed(self, error: WriteFailed) -> None:
        """Undo and nack the publishes that wait for a round which could not be written.

        Messages that were delivered meanwhile are not taken back. A `tx.commit` waits until writing works
        again.
        """
        self.begin_turn()
        self.ledger.write_failed(error, self._undo)

    def _undo(self, published: Sequence[tuple[Destination, Range]]) -> None:
        """Undo persistent publishes that have not been delivered."""
        work = Work(self, undoing=True)
        for queue, (start, stop) in published:
            if not queue.deleted:
                ready = queue.log.read(queue.cursor.waiting.ready_within([(start, stop)]))
                work.unpublish(queue, [record for record in ready if record.flags & PERSISTENT])
        work.commit()

    def checkpointed(self) -> None:
        """Handle a checkpoint: streams can now drop the segments that exceed their retention."""
        self.begin_turn()
        for vhost in self.vhosts.values():
            vhost.retire()

    def define(self, *changes: Change, undo: Undo | None = None) -> int:
        """Pass definition changes on to be written; return their number, or 0 without changes."""
        return self.definitions.write(changes, undo=undo) if changes else 0

    def committed(self, number: int) -> None:
        """Handle definition changes that are on disk, up to this number."""
        self.begin_turn()
        self.definitions.done(number)

    def refused(self, numbers: Collection[int], error: StorageError) -> None:
        """Undo definition changes that can't be written, and close the connections that wait for them."""
        self.begin_turn()
        waiting = self.ledger.waiting_for_definition(numbers)
        self.definitions.refuse(numbers, error)
        for channel in waiting:
            channel.fail_session(error.message)

    # sessions

    @property
    def memory_bytes(self) -> int:
        """Memory used for clients: buffers, and messages, including staged rows, that are in no file yet."""
        return self.buffered_bytes + self.store.memory_bytes

    def open_session(self, peer: Peer, *, name: str, origin: Origin) -> Session[Channel]:
        """Open a session for a client that has connected; failed logins are counted by its origin."""
        session: Session[Channel] = Session(self, peer, name=name, origin=origin)
        self.sessions[session] = None
        return session

    def forget_session(self, session: Session[Channel]) -> None:
        """Remove an ended session; its counters are added to the broker's."""
        if session in self.sessions:
            del self.sessions[session]
            self.counters.churn.connections_closed += session.has_entered
            self.counters.take_over(session.counters)
            if session.has_entered:
                session.vhost.counters.take_over(session.counters)
            # Bytes that the session still sends count for the broker.
            session.counters = self.counters
        self.pacing.forget(session)
        self.shares.forget(session)

    def forget_channel(self, channel: Channel) -> None:
        self.ledger.forget(channel.owed)
        self.replies.end(channel)

    def set_alarm(self, what: str, *, on: bool, source: str = "") -> None:
        """Set or clear an alarm for `memory` or `disk`; publishers are held back while one is set."""
        blocked_before = self.blocked
        if on:
            self._alarms.add((what, source))
        else:
            self._alarms.discard((what, source))
        self.blocked = "low on " + " & ".join(self.alarms) if self._alarms else None
        if (blocked_before is None) == (self.blocked is None):
            return
        for session in self.sessions:
            session.peer.tell_blocked(self.blocked)

    def note_nack(self, channel: Channel, reason: str, count: int) -> None:
        """Count and report refused publishes of a channel."""
        self.counters.refused[reason] += count
        if self._listener is not None:
            self._listener.nacked(channel, reason, count)

    def note_failed_login(self, name: str, origin: Origin, cause: str) -> None:
        """Report a login that was refused; only the log may tell the cause."""
        if self._listener is not None:
            self._listener.login_failed(name, origin, cause)

    def note_damage(self, sentence: str) -> None:
        """Count damage, and keep the first sentences about it."""
        self.counters.damaged += 1
        if len(self.damage) < _DAMAGE_MAX:
            self.damage.append(sentence)

    def note_stale(self, partition: str, count: int, so_far: int) -> None:
        """Count and report late settlements in a group's partition; `so_far` is the total of the group."""
        self.counters.stale_acks += count
        if self._listener is not None:
            self._listener.refused_late(partition, count, so_far)
