"""A topic, a group and its members without sockets: what they do is fed to a broker over a simulated disk.

`Bench` owns the broker's life (open, turn, sync, time, restart, crash) and what clients remember: which tags
they were given and have not settled. It judges nothing but that nobody is refused anything: what must be true
is in `group_history` (after any crash) and in `tests/properties/test_groups.py` (always). The rule: whatever
is done is fed before `turn`, and what comes of it is read there.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

from pamqp import commands

from leveret.amqp.methods import make
from leveret.amqp.properties import headers_of
from leveret.amqp.tables import Value
from leveret.broker.broker import Broker
from leveret.broker.groups.group import Group
from leveret.broker.groups.partition import Partition
from leveret.broker.streams.stream import Stream
from leveret.storage.errors import WriteFailed
from leveret.storage.store import Store
from leveret.testing.definitions import MemoryDefinitions
from leveret.testing.disk import SimulatedDisk
from tests.faults.broker_life import full_disk, open_store, start_broker
from tests.faults.broker_wire import Frame, Wire

TOPIC, GROUP = "orders", "billing"
START_US = 1_700_000_000_000_000
AGE_S = 60
_ANSWERS = (
    commands.Channel.OpenOk,
    commands.Channel.CloseOk,
    commands.Basic.QosOk,
    commands.Basic.RecoverOk,
    commands.Basic.ConsumeOk,
    commands.Basic.CancelOk,
    commands.Confirm.SelectOk,
    commands.Tx.SelectOk,
    commands.Tx.CommitOk,
    commands.Tx.RollbackOk,
    commands.Exchange.DeclareOk,
    commands.Queue.DeclareOk,
    commands.Queue.BindOk,
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A settlement: `ack`, `nack` (back), `reject` (not again), or `delay`, which is back as it is wished."""

    tag: int
    place: tuple[str, int]
    how: str
    delay_ms: int = 0
    counted: bool = True
    error: str = ""


@dataclass(eq=False)
class Member:
    """One channel, with at most one consumer at a time."""

    wire: Wire
    number: int
    prefetch: int = 0
    consumer: str | None = None
    joined: int = 0
    """How often: each time under another consumer tag."""
    tags: dict[int, tuple[str, int]] = field(default_factory=dict)
    """What it was given and has not settled: (partition, offset)."""
    consumers: dict[int, str] = field(default_factory=dict)
    """By which consumer."""
    shared: int = 0
    """What its channel may hold altogether; 0 for no limit."""
    transactional: bool = False
    buffered: list[Wanted] = field(default_factory=list)
    """What it has asked for and not committed."""

    @property
    def name(self) -> str:
        return f"{self.wire.connection.name}/{self.number}"


@dataclass(slots=True)
class Delivery:
    """As a member sees it."""

    member: Member
    tag: int
    place: tuple[str, int]
    returns: int
    redelivered: bool
    body: bytes


class Bench:
    """`bench.join(3)`, `bench.publish("orders-0", 5)`, `bench.turn()`; `deliver` is told of each delivery."""

    def __init__(
        self,
        *,
        partitions: int = 1,
        seed: int = 0,
        ages: bool = False,
        deliver: Callable[[Delivery], None] = lambda _: None,
        ticked: Callable[[int], None] = lambda _: None,
        turned: Callable[[], None] = lambda: None,
    ) -> None:
        """`turned` is called before deliveries are read, `ticked` when what was due has happened."""
        self.random = Random(seed)
        self.disk = SimulatedDisk(seed=seed)
        self.definitions = MemoryDefinitions()
        self.clock_us = START_US
        self.members: list[Member] = []
        self.confirmed: set[bytes] = set()
        self.published: dict[str, int] = {}
        """How many messages were sent to each stream; each body is its stream and number."""
        self.first_partitions = partitions
        self._ages = ages
        self._deliver = deliver
        self._ticked = ticked
        self._turned = turned
        self._unconfirmed: dict[int, bytes] = {}
        self._sequence = 0
        self._synced_aside = False
        self.spoilt = False
        """Whether the disk has failed in this life: clients may have been refused something."""
        self.disk_fails = False
        """Whether the last sync did: then nobody is owed anything until one works."""
        self._wires = 0
        self.store: Store
        self.broker: Broker
        self.operator: Wire

    # the broker's life

    def open(self) -> None:
        """Starts it over what the disk holds; whoever was connected is not."""
        self.members.clear()
        self._unconfirmed.clear()
        self._sequence, self._synced_aside, self.disk_fails = 0, False, False
        self.spoilt = False
        self.definitions.close()
        self.store = open_store(self.disk, random=self.random, clock=self.now_us)
        self.broker = start_broker(self.store, self.definitions, random=self.random, clock=self.now_us)
        self.definitions.start(self.broker.committed, lambda error: None)

    def begin(self) -> None:
        """An operator is there, and the topic."""
        self.operator = self._wire()
        self.operator.send(1, commands.Channel.Open(), commands.Confirm.Select())
        declare = commands.Exchange.Declare(exchange=TOPIC, exchange_type="x-consistent-hash", durable=True)
        self.operator.send(1, declare)
        for number in range(max(self.first_partitions, len(self.streams))):
            self._add_partition(number)

    def now_us(self) -> int:
        return self.clock_us

    def turn(self, *, sync: bool = True) -> None:
        """Until nothing more happens, or only with a sync that was not asked for; then all is read."""
        for _ in range(1000):
            self._hear_of_syncs()
            self.broker.end_turn()
            due_us = self.broker.timers.next_due_us
            if due_us is not None and due_us <= self.clock_us:
                self._tick()
            elif sync and self.broker.ledger.wants_sync and not self.disk_fails:
                self.sync()
            elif not self.broker.has_more and not self._synced_aside:
                break
        else:
            raise AssertionError("the broker does not come to rest")
        self._read()

    def sync(self) -> None:
        try:
            self.store.sync()
        except WriteFailed as error:
            self.disk_fails = True
            self.broker.write_failed(error)
        else:
            self.disk_fails = False
            self.broker.synced()

    def sync_aside(self) -> None:
        """As another thread does it, at any moment: the broker hears of it with its next turn."""
        with suppress(WriteFailed):  # it is tried again, and told then
            self.store.sync()
            self._synced_aside = True

    def _hear_of_syncs(self) -> None:
        if self._synced_aside:
            self._synced_aside = False
            self.broker.synced()

    def checkpointed(self) -> None:
        """As the shell says it when a checkpoint is done."""
        self.broker.synced()
        self.broker.checkpointed()

    def pass_time(self, microseconds: int, *, sync: bool = True) -> None:
        """Everything that becomes due meanwhile happens at its time."""
        until_us = self.clock_us + microseconds
        while True:
            due_us = self.broker.timers.next_due_us
            if due_us is None or due_us > until_us:
                break
            self.clock_us = max(self.clock_us, due_us)
            self._tick()
            self.turn(sync=sync)
        self.clock_us = until_us
        self._tick()
        self.turn(sync=sync)

    def _tick(self) -> None:
        self.broker.tick()
        self._ticked(self.clock_us)

    def stop(self) -> None:
        """In order: everybody has left, everything is written."""
        for member in self.members:
            member.wire.lose()
        self.operator.lose()
        self.turn()
        self.store.close()
        self.disk = self.disk.restart()

    # the disk

    def spoil(self, after: int, *, torn: bool) -> None:
        """From so many writes on nothing can be written, until it is healed."""
        self.spoilt = True
        self.disk.before = full_disk(after, torn=torn)

    def heal(self) -> None:
        """Everything can be written again, and is."""
        self.disk.before = None
        self.sync()
        self.turn()

    # what there is

    @property
    def streams(self) -> dict[str, Stream]:
        queues = self.broker.vhosts["/"].queues.values()
        found = {queue.name: queue for queue in queues if isinstance(queue, Stream)}
        return dict(sorted(found.items()))

    @property
    def group(self) -> Group | None:
        return next(iter(self.broker.vhosts["/"].groups), None)

    @property
    def partitions(self) -> dict[str, Partition]:
        return {} if self.group is None else self.group.partitions

    def act(self, act: Callable[[], Any]) -> Any:
        """What an operator does, in a turn."""
        self.broker.begin_turn()
        return act()

    # what publishers do

    def add_partition(self) -> None:
        self._add_partition(len(self.streams))

    def _add_partition(self, number: int) -> None:
        name = f"{TOPIC}-{number}"
        table: dict[str, Value] = {"x-queue-type": "stream", "x-stream-max-segment-size-bytes": 1000}
        if self._ages:
            table["x-max-age"] = f"{AGE_S}s"
        self.broker.begin_turn()
        self.operator.send(1, commands.Queue.Declare(queue=name, durable=True, arguments=table))
        self.operator.send(1, commands.Queue.Bind(queue=name, exchange=TOPIC, routing_key="1"))

    def publish(self, stream: str, count: int, *, size_bytes: int = 0) -> None:
        first = self.published.get(stream, 0)
        self.published[stream] = first + count
        bodies = [f"{stream} {number}".encode() for number in range(first, first + count)]
        for body in bodies:
            self._sequence += 1
            self._unconfirmed[self._sequence] = body
        self.broker.begin_turn()
        contents = [({"delivery_mode": 2}, body + b" " * size_bytes) for body in bodies]
        self.operator.publish(1, "", stream, contents)

    # what members do

    def join(
        self,
        prefetch: int,
        *,
        beside: Member | None = None,
        transactional: bool = False,
        shared: int = 0,
        **settings: Any,
    ) -> Member:
        """A member on a connection of its own, or on a channel `beside` another."""
        self.broker.begin_turn()
        wire = self._wire() if beside is None else beside.wire
        number = 1 + sum(each.wire is wire for each in self.members)
        member = Member(wire, number, transactional=transactional, shared=shared)
        self.members.append(member)
        wire.send(member.number, commands.Channel.Open())
        if transactional:
            wire.send(member.number, commands.Tx.Select())
        self.rejoin(member, prefetch, **settings)
        return member

    def rejoin(self, member: Member, prefetch: int, **settings: Any) -> None:
        """On the same channel, which may still hold something."""
        self.broker.begin_turn()
        member.joined += 1
        member.prefetch = prefetch
        member.consumer = f"{member.name} {member.joined}"
        arguments = {f"x-group-{name.replace('_', '-')}": value for name, value in settings.items()}
        consume = make(
            commands.Basic.Consume,
            ticket=0,
            queue=TOPIC,
            consumer_tag=member.consumer,
            no_local=False,
            no_ack=False,
            exclusive=False,
            nowait=False,
            arguments={"x-group": GROUP, **arguments},
        )
        member.wire.send(member.number, commands.Basic.Qos(prefetch_count=prefetch))
        if member.shared:  # in this order: a limit per consumer lifts the shared one
            member.wire.send(member.number, commands.Basic.Qos(prefetch_count=member.shared, global_=True))
        member.wire.send(member.number, consume)

    def cancel(self, member: Member) -> None:
        self.broker.begin_turn()
        assert member.consumer is not None
        member.wire.send(
            member.number, make(commands.Basic.Cancel, consumer_tag=member.consumer, nowait=False)
        )
        member.consumer = None

    def close(self, member: Member) -> None:
        self.broker.begin_turn()
        close = commands.Channel.Close(reply_code=200, reply_text="", class_id=0, method_id=0)
        member.wire.send(member.number, close)
        member.consumer = None
        member.tags.clear()

    def lose(self, wire: Wire) -> list[Member]:
        """A connection breaks; those who were on it."""
        self.broker.begin_turn()
        wire.lose()
        gone = [member for member in self.members if member.wire is wire]
        self.members = [member for member in self.members if member.wire is not wire]
        return gone

    def recover(self, member: Member) -> None:
        """It wants all of it again, but for what it has settled in a transaction."""
        self.broker.begin_turn()
        member.wire.send(member.number, commands.Basic.Recover(requeue=True))

    def choke(self, wire: Wire) -> None:
        """The client reads nothing for a while; `breathe` ends it."""
        wire.connection.writable = False

    def breathe(self, wire: Wire) -> None:
        self.broker.begin_turn()
        wire.connection.writable = True
        wire.connection.session.wake_consumers()

    def settle(self, member: Member, tag: int, how: str, *, multiple: bool = False) -> list[Wanted]:
        """One delivery, or all up to it; what is asked for takes effect now or with a commit."""
        self.broker.begin_turn()
        if how == "ack":
            method = commands.Basic.Ack(delivery_tag=tag, multiple=multiple)
        else:
            method = commands.Basic.Nack(delivery_tag=tag, multiple=multiple, requeue=how == "nack")
        member.wire.send(member.number, method)
        about = [each for each in member.tags if each <= tag] if multiple else [tag]
        return self._asked(member, [Wanted(each, member.tags.pop(each), how) for each in about])

    def send_back(
        self, member: Member, tag: int, delay_ms: int, *, counted: bool, error: str
    ) -> list[Wanted]:
        """With a delay of the member's choice."""
        self.broker.begin_turn()
        wish = {"x-delivery-tag": tag, "x-delay": delay_ms, "x-counted": counted, "x-error": error}
        member.wire.publish(member.number, "", "amq.leveret.requeue", [({"headers": wish}, b"")])
        return self._asked(member, [Wanted(tag, member.tags.pop(tag), "delay", delay_ms, counted, error)])

    def _asked(self, member: Member, wanted: list[Wanted]) -> list[Wanted]:
        if member.transactional:
            member.buffered += wanted
        return wanted

    def end_transaction(self, member: Member, *, commit: bool) -> list[Wanted]:
        """What it was about; after a rollback the member may ask for it again."""
        self.broker.begin_turn()
        member.wire.send(member.number, commands.Tx.Commit() if commit else commands.Tx.Rollback())
        wanted, member.buffered = member.buffered, []
        return wanted

    # inside

    def _wire(self) -> Wire:
        self._wires += 1
        return Wire(self.broker, f"client {self._wires}")

    def _read(self) -> None:
        self._turned()
        for wire in {id(each.wire): each.wire for each in self.members}.values():
            for frame in wire.received():
                self._take(wire, frame)
            wire.connection.out_bytes = 0  # all of it was read
        for frame in self.operator.received():
            method = frame.method
            if isinstance(method, commands.Basic.Ack | commands.Basic.Nack):
                through = [each for each in self._unconfirmed if each <= method.delivery_tag]
                tags = through if method.multiple else [method.delivery_tag]
                bodies = [self._unconfirmed.pop(tag) for tag in tags]
                if isinstance(method, commands.Basic.Ack):
                    self.confirmed.update(bodies)
                else:
                    assert self.spoilt, f"{bodies} are refused"
            else:
                assert not frame.channel or isinstance(method, _ANSWERS), f"the operator is told {method}"

    def _take(self, wire: Wire, frame: Frame) -> None:
        if not frame.channel or isinstance(frame.method, _ANSWERS):
            return
        member = next(each for each in self.members if each.wire is wire and each.number == frame.channel)
        if isinstance(frame.method, commands.Basic.Cancel):
            member.consumer = None
            return
        if isinstance(frame.method, commands.Channel.Close):
            assert self.spoilt, f"{member.name} is told {frame.method.reply_text}"
            member.consumer = None
            return
        assert isinstance(frame.method, commands.Basic.Deliver), f"{member.name} is told {frame.method.name}"
        headers = headers_of(frame.header)
        place = (str(headers["x-stream"]), int(str(headers["x-stream-offset"])))
        member.tags[frame.method.delivery_tag] = place
        returns = int(str(headers.get("x-delivery-count", 0)))
        self._deliver(
            Delivery(member, frame.method.delivery_tag, place, returns, frame.method.redelivered, frame.body)
        )
