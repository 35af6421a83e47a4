"""The clients of a broker's history: what they ask for at random, and what they make of the answers.

They tell the account what they have asked for before the broker can act on it, and hold the broker to its
answers: a confirm or a commit-ok means that the messages are in their queues and synced, a delivery carries
the truth about earlier ones. When the broker is started and when it dies is left to `broker_history`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from random import Random

from pamqp import commands

from leveret.amqp.methods import make
from leveret.amqp.properties import headers_of
from leveret.amqp.tables import Value
from leveret.broker.broker import Broker
from tests.faults.broker_account import DEAD_FAN, FAN, Account, Group, Key, Lineage, bound_to
from tests.faults.broker_wire import Frame, Wire

QUEUES = ("q0", "q1", "q2", "q3")
LEAVES = ("leaf0", "leaf1")
"""Queues without a dead-letter exchange, where a fan of dead letters ends."""
_CLOSES = (commands.Channel.Close, commands.Connection.Close)
_DELIVERIES = (commands.Basic.Deliver, commands.Basic.GetOk)
MODES = ("confirm", "confirm", "tx", "plain")


@dataclass(slots=True)
class Held:
    """An unacked delivery."""

    key: Key | None
    """None when the queue was deleted."""
    queue: str


@dataclass(slots=True)
class Sent:
    """A publish, with the queues that it was routed to and their logs."""

    id: str
    persistent: bool
    queues: dict[str, int]


@dataclass(slots=True)
class Channel:
    """A channel from its client's point of view."""

    number: int
    mode: str
    sequence: int = 0
    unconfirmed: dict[int, Sent] = field(default_factory=dict)
    held: dict[int, Held] = field(default_factory=dict)
    consumers: dict[str, tuple[str, bool]] = field(default_factory=dict)
    """(queue, no_ack) by tag."""
    gets: deque[tuple[str, bool]] = field(default_factory=deque)
    publishes: list[Sent] = field(default_factory=list)
    """Publishes of the open transaction."""
    settlements: dict[int, tuple[Held, str]] = field(default_factory=dict)
    """Settlements of the open transaction, by tag."""
    commits: deque[tuple[bool, list[Sent]]] = field(default_factory=deque)
    """Commits not answered yet: whether each took effect, and its publishes."""
    declares: deque[tuple[str, int]] = field(default_factory=deque)
    """Declarations not answered yet: the queue and its log, 0 for a queue that is not durable."""
    deletes: deque[int] = field(default_factory=deque)


@dataclass(slots=True)
class Client:
    wire: Wire
    channels: dict[int, Channel] = field(default_factory=dict)
    opened: int = 0
    """Number of channels opened so far: a channel number is used once."""


class Clients:
    """Random clients: `act` takes one random action, `read` checks what the broker has sent."""

    def __init__(self, random: Random, account: Account, clock: Callable[[], int]) -> None:
        self._random = random
        self._account = account
        self._clock = clock
        self._serial = 0
        self._broker: Broker
        self.all: list[Client] = []
        self.promised: set[Lineage] = set()
        """Persistent messages that were confirmed or committed in a durable queue."""
        self.declared: set[str] = set()
        """Durable queues whose declaration was answered."""
        self.gone: set[int] = set()
        """Logs of queues whose deletion was answered."""
        self.delivered: set[tuple[Key, Lineage]] = set()
        """Messages that some client has received."""

    # connections

    def forget_lost(self, logs: Container[int]) -> None:
        """Forget deliveries from logs that a crash has lost: a new log may get the same number."""
        self.delivered = {(key, lineage) for key, lineage in self.delivered if key[0] in logs}

    def connect(self, broker: Broker) -> None:
        """Connect new clients to a broker that has just started."""
        self._broker = broker
        self.all = [self._client() for _ in range(2)]
        client = self.all[0]
        for exchange in (FAN, DEAD_FAN):
            client.wire.send(
                1, commands.Exchange.Declare(exchange=exchange, exchange_type="fanout", durable=True)
            )
        for name in (*QUEUES[:2], *LEAVES):
            self._declare(client, client.channels[1], name)

    def _client(self) -> Client:
        client = Client(Wire(self._broker, f"client {self._random.getrandbits(16)}"))
        for _ in range(3):
            self._open(client)
        return client

    def _open(self, client: Client) -> None:
        client.opened += 1
        number = client.opened
        channel = client.channels[number] = Channel(number, self._random.choice(MODES))
        client.wire.send(number, commands.Channel.Open())
        if channel.mode == "confirm":
            client.wire.send(number, commands.Confirm.Select())
        elif channel.mode == "tx":
            client.wire.send(number, commands.Tx.Select())
        prefetch = self._random.choice([1, 3, 0])
        client.wire.send(number, commands.Basic.Qos(prefetch_count=prefetch))

    def lose_all(self) -> None:
        for client in self.all:
            client.wire.lose()
            client.channels.clear()

    # acting

    def act(self) -> None:
        self._account.look()  # what has happened is judged by the bindings of then
        client = self._random.choice(self.all)
        channel = self._random.choice(list(client.channels.values()))
        holding = [each for each in client.channels.values() if each.held]
        if holding and self._random.random() < 0.5:
            channel = self._random.choice(holding)
        steps: list[tuple[float, Callable[[Client, Channel], None]]] = [
            (10, self._publish),
            (4, self._get),
            (4, self._consume),
            (7, self._ack),
            (6, self._requeue),
            (7, self._reject),
            (5, self._end_transaction),
            (0.5, self._recover),
            (0.5, self._cancel),
            (0.7, self._close),
            (0.4, self._lose),
            (1, self._declare_some),
            (0.3, self._purge),
            (0.2, self._delete),
        ]
        chosen = self._random.choices([step for _, step in steps], [weight for weight, _ in steps])[0]
        chosen(client, channel)

    def _queue(self) -> str | None:
        names = sorted(self._broker.vhosts["/"].queues)
        return self._random.choice(names) if names else None

    def _log(self, name: str) -> int:
        return self._broker.vhosts["/"].queues[name].log.id

    def _declare_some(self, client: Client, channel: Channel) -> None:
        self._declare(client, channel, self._random.choice(QUEUES + LEAVES))

    def _declare(self, client: Client, channel: Channel, name: str) -> None:
        if name in self._broker.vhosts["/"].queues:
            return
        durable = self._random.random() < 0.85
        arguments = self._arguments(name)
        nowait = self._random.random() < 0.3
        client.wire.send(
            channel.number,
            commands.Queue.Declare(queue=name, durable=durable, nowait=nowait, arguments=arguments),
        )
        if name not in self._broker.vhosts["/"].queues:
            return  # the connection has just been closed
        if not nowait:
            channel.declares.append((name, self._log(name) if durable else 0))
        exchange = DEAD_FAN if name in LEAVES else FAN
        if self._random.random() < 0.6:
            client.wire.send(
                channel.number, commands.Queue.Bind(queue=name, exchange=exchange, nowait=nowait)
            )

    def _arguments(self, name: str) -> dict[str, Value]:
        chance, arguments = self._random.random, {}
        if chance() < 0.25:
            arguments["x-message-ttl"] = self._random.choice([0, 5, 50, 1000])
        if chance() < 0.2:
            arguments["x-max-length"] = self._random.choice([0, 1, 3, 6])
            arguments["x-overflow"] = self._random.choice(
                ["drop-head", "reject-publish", "reject-publish-dlx"]
            )
        if chance() < 0.1:
            arguments["x-max-length-bytes"] = self._random.choice([50, 700])
        if chance() < 0.3:
            arguments["x-delivery-limit"] = self._random.choice([0, 1, 3])
        if chance() < 0.3:
            arguments["x-retry-delay-ms"] = self._random.choice([0, 5, 50])
        if chance() < 0.15:
            arguments["x-consumer-timeout"] = self._random.choice([10, 500])
            arguments["x-consumer-timeout-action"] = self._random.choice(["cancel", "retry", "dead-letter"])
        if chance() < 0.2:
            arguments["x-max-priority"] = self._random.choice([1, 5])
        if name not in LEAVES and chance() < 0.7:
            exchange = self._random.choice(["", "", DEAD_FAN, "nowhere"])
            arguments["x-dead-letter-exchange"] = exchange
            if not exchange:
                arguments["x-dead-letter-routing-key"] = self._random.choice(QUEUES + LEAVES)
        return arguments

    def _publish(self, client: Client, channel: Channel) -> None:
        """Some messages in one go, to a queue or to all that are bound."""
        name = self._queue()
        if name is None:
            return
        fan = self._random.random() < 0.25 and FAN in self._broker.vhosts["/"].exchanges
        names = bound_to(self._broker, FAN) if fan else [name]
        contents = []
        for _ in range(self._random.choice([1, 1, 2, 5])):
            sent, content = self._message(names)
            contents.append(content)
            if channel.mode == "tx":
                channel.publishes.append(sent)
            else:
                self._account.intents.published.update((sent.id, each) for each in names)
            if channel.mode == "confirm":
                channel.sequence += 1
                channel.unconfirmed[channel.sequence] = sent
        client.wire.publish(channel.number, FAN if fan else "", "" if fan else name, contents)

    def _message(self, names: list[str]) -> tuple[Sent, tuple[dict[str, Value], bytes]]:
        self._serial += 1
        persistent = self._random.random() < 0.8
        given: dict[str, Value] = {"delivery_mode": 2 if persistent else 1}
        if self._random.random() < 0.2:
            given["priority"] = self._random.randrange(6)
        if self._random.random() < 0.15:
            given["expiration"] = self._random.choice(["0", "3", "200"])
        body = b"m%d " % self._serial + self._random.randbytes(self._random.choice([0, 20, 600]))
        return Sent(f"m{self._serial}", persistent, {each: self._log(each) for each in names}), (given, body)

    def _get(self, client: Client, channel: Channel) -> None:
        if name := self._queue():
            no_ack = self._random.random() < 0.1
            if no_ack:
                self._account.intents.fetched[name] += 1
            channel.gets.append((name, no_ack))
            client.wire.send(channel.number, commands.Basic.Get(queue=name, no_ack=no_ack))

    def _consume(self, client: Client, channel: Channel) -> None:
        name = self._queue()
        if name is None or len(channel.consumers) >= 2:
            return
        no_ack = self._random.random() < 0.07
        if no_ack:
            self._account.intents.fetched[name] += 1
        tag = f"c{self._random.getrandbits(32)}"
        channel.consumers[tag] = (name, no_ack)
        consume = commands.Basic.Consume(queue=name, consumer_tag=tag, no_ack=no_ack, nowait=True)
        client.wire.send(channel.number, consume)

    def _ack(self, client: Client, channel: Channel) -> None:
        self._settle(client, channel, "ack")

    def _requeue(self, client: Client, channel: Channel) -> None:
        self._settle(client, channel, "requeue")

    def _reject(self, client: Client, channel: Channel) -> None:
        self._settle(client, channel, "reject")

    def _settle(self, client: Client, channel: Channel, what: str) -> None:
        if not channel.held:
            return
        tag = self._random.choice(list(channel.held))
        multiple = self._random.random() < 0.3 and not channel.gets  # those may be on their way
        for each in [each for each in channel.held if each == tag or (multiple and each < tag)]:
            held = channel.held.pop(each)
            if channel.mode == "tx":
                channel.settlements[each] = (held, what)
            else:
                self._intend(held, what)
        if what == "ack":
            client.wire.send(channel.number, commands.Basic.Ack(tag, multiple))
        elif multiple or self._random.random() < 0.5:
            client.wire.send(channel.number, commands.Basic.Nack(tag, multiple, what == "requeue"))
        else:
            client.wire.send(channel.number, commands.Basic.Reject(tag, what == "requeue"))

    def _intend(self, held: Held, what: str) -> None:
        if held.key is not None and what == "ack":
            self._account.intents.acked.add(held.key)
        elif held.key is not None and what == "reject":
            self._account.intents.rejected.add(held.key)

    def _end_transaction(self, client: Client, channel: Channel) -> None:
        if channel.mode != "tx":
            return
        publishes, settlements = channel.publishes, channel.settlements
        channel.publishes, channel.settlements = [], {}
        if self._random.random() < 0.25:
            channel.held |= {tag: held for tag, (held, _) in settlements.items()}
            client.wire.send(channel.number, commands.Tx.Rollback())
            return
        there = self._broker.vhosts["/"].queues
        added = {(sent.id, name) for sent in publishes for name in sent.queues if name in there}
        alive = {log.id for log in self._broker.store.logs.values()}
        removed = set()
        for held, what in settlements.values():
            self._intend(held, what)
            certain = held.key is not None and held.key[0] in alive and what != "requeue"
            if certain and not there[held.queue].table.get("x-consumer-timeout"):  # or it may have gone back
                removed.add(held.key)
        self._account.intents.published |= added
        group = Group(added, removed)
        if added or removed:
            self._account.intents.groups.append(group)
        client.wire.send(channel.number, commands.Tx.Commit())
        self._account.look()
        failed = group in self._account.intents.groups
        self._account.intents.groups.clear()
        channel.commits.append((not failed, publishes))

    def _recover(self, client: Client, channel: Channel) -> None:
        if client.wire.connection.out or channel.gets:
            return  # what is on its way would come after it was taken back
        channel.held.clear()
        client.wire.send(channel.number, commands.Basic.Recover(requeue=True))

    def _cancel(self, client: Client, channel: Channel) -> None:
        if channel.consumers:
            tag = self._random.choice(list(channel.consumers))
            cancel = make(commands.Basic.Cancel, consumer_tag=tag, nowait=True)
            client.wire.send(channel.number, cancel)

    def _close(self, client: Client, channel: Channel) -> None:
        client.wire.send(channel.number, commands.Channel.Close(200, "", 0, 0))
        del client.channels[channel.number]
        self._open(client)

    def _lose(self, client: Client, channel: Channel) -> None:
        client.wire.lose()
        self.all[self.all.index(client)] = self._client()

    def _purge(self, client: Client, channel: Channel) -> None:
        if name := self._queue():
            self._account.intents.purged.add(name)
            client.wire.send(channel.number, commands.Queue.Purge(queue=name))
            self._account.look()
            self._account.intents.purged.clear()

    def _delete(self, client: Client, channel: Channel) -> None:
        if name := self._queue():
            self._account.intents.deleted.add(self._log(name))
            self.declared.discard(name)
            channel.deletes.append(self._log(name))
            client.wire.send(channel.number, commands.Queue.Delete(queue=name))

    # reading

    def read(self, *, safe_look: int, disk_fails: bool) -> None:
        """What has come in this turn. `safe_look`: what had appeared by then is durable."""
        for position, client in enumerate(self.all):
            frames = client.wire.received()
            ending = {frame.channel for frame in frames if isinstance(frame.method, _CLOSES)}
            recovered = {
                frame.channel: number
                for number, frame in enumerate(frames)
                if isinstance(frame.method, commands.Basic.RecoverOk)
            }
            for number, frame in enumerate(frames):
                if isinstance(frame.method, _DELIVERIES) and ending & {0, frame.channel}:
                    continue  # it has gone back already
                if number < recovered.get(frame.channel, -1) and self._is_held(client, frame):
                    continue  # likewise: `basic.recover` has served the queue before it took everything back
                if isinstance(frame.method, commands.Connection.Close):
                    assert disk_fails, f"{frame.method.reply_code} {frame.method.reply_text}"
                elif frame.channel in client.channels:
                    self._read(client, client.channels[frame.channel], frame, safe_look)
            if not client.wire.is_open:
                self.all[position] = self._client()

    def _is_held(self, client: Client, frame: Frame) -> bool:
        """Return whether a frame is a delivery that must be acked."""
        method = frame.method
        return (
            isinstance(method, commands.Basic.Deliver)
            and not (client.channels[frame.channel].consumers[method.consumer_tag][1])
        )

    def _read(self, client: Client, channel: Channel, frame: Frame, safe_look: int) -> None:  # noqa: C901  # one case each
        method = frame.method
        match method:
            case commands.Basic.Ack():
                for sent in self._confirmed(channel, method.delivery_tag, method.multiple):
                    self._promise(sent, safe_look)
            case commands.Basic.Nack():
                self._confirmed(channel, method.delivery_tag, method.multiple)
            case commands.Tx.CommitOk():
                happened, publishes = channel.commits.popleft()
                assert happened, "a transaction is committed, and nothing has happened"
                for sent in publishes:
                    self._promise(sent, safe_look)
            case commands.Basic.Deliver():
                self._deliver(channel, frame, *channel.consumers[method.consumer_tag])
            case commands.Basic.GetOk():
                self._deliver(channel, frame, *channel.gets.popleft())
            case commands.Basic.GetEmpty():
                channel.gets.popleft()
            case commands.Queue.DeclareOk():
                name, log = channel.declares.popleft()
                if name in self._broker.vhosts["/"].queues and log == self._log(name):
                    self.declared.add(name)
            case commands.Queue.DeleteOk():
                self.gone.add(channel.deletes.popleft())
            case commands.Channel.Close():
                expected = ["partial tx completion", "timed out"]
                if channel.mode == "tx":  # settled, taken back for being late, rolled back: it has no tag
                    expected.append("unknown delivery tag")
                assert any(text in method.reply_text for text in expected), method.reply_text
                client.wire.send(channel.number, commands.Channel.CloseOk())
                del client.channels[channel.number]
                self._open(client)

    def _confirmed(self, channel: Channel, last: int, multiple: bool) -> list[Sent]:
        tags = [tag for tag in channel.unconfirmed if tag == last or (multiple and tag <= last)]
        assert tags, f"{last} was confirmed twice, or never published"
        return [channel.unconfirmed.pop(tag) for tag in tags]

    def _promise(self, sent: Sent, safe_look: int) -> None:
        """The broker says that it has the message: it must be in all its durable queues, and synced."""
        for name, log in sent.queues.items():
            queue = self._broker.vhosts["/"].queues.get(name)
            if not sent.persistent or queue is None or queue.log.id != log or not queue.durable:
                continue
            lineage = (sent.id, name)
            look = self._account.appeared.get(lineage)
            assert look is not None, f"{lineage} was confirmed, and never was in its queue"
            assert look <= safe_look, f"{lineage} was confirmed before it was synced"
            self.promised.add(lineage)

    def _deliver(self, channel: Channel, frame: Frame, queue: str, no_ack: bool) -> None:
        id_ = frame.body.split(b" ", 1)[0].decode()
        headers = headers_of(frame.header)
        lineage = id_, str(headers.get("x-first-death-queue", queue))
        if no_ack:
            left = self._account.handed
            there = queue in self._broker.vhosts["/"].queues
            assert left[queue, lineage] > 0 or not there, (
                f"{lineage} is delivered without ack, and still there"
            )
            left[queue, lineage] -= 1
            return
        key = self._find(queue, lineage)
        if key is not None:
            kept, state = self._account.contents[key[0]][key[1]]
            assert frame.body == kept.body
            assert headers.get("x-delivery-count", 0) == state.count
            if (key, lineage) in self.delivered or state.count:
                assert frame.method.redelivered, f"{kept} was delivered before and does not say so"
            self.delivered.add((key, lineage))
        channel.held[frame.method.delivery_tag] = Held(key, queue)

    def _find(self, queue: str, lineage: Lineage) -> Key | None:
        if queue not in self._broker.vhosts["/"].queues:
            return None
        log = self._log(queue)
        for offset, (kept, state) in self._account.contents[log].items():
            if kept.lineage == lineage and state.in_flight:
                return log, offset
        late = self._broker.vhosts["/"].queues[queue].table.get("x-consumer-timeout")
        assert late, f"{lineage} was delivered and is not in flight in {queue}"
        return None
