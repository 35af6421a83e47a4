"""`groups`: what the broker spends on a delivery when four groups read a topic, and when one does.

A topic of four partitions, a member with a connection of its own for each group, an ack for each delivery.
Once with publishing meanwhile, and once with everything published before, so that it is all about reading:
the latter says more, because the cost of publishing is divided by four where four groups read.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from bench.client_raw import publish_all
from bench.cpu import Cpu
from bench.frames import Load, Shape, make_load
from bench.groups_broker import GroupBroker, Measured, Runs, attempt, progress
from bench.groups_member import Delivery, Member
from bench.peer import Arguments, Unexpected
from bench.streams import Publishing, Stall

PARTITIONS = 4
KEYS = tuple(f"customer-{number:02}" for number in range(64))
SHAPE = Shape(exchange="topic", keys=KEYS)
PREFETCH = 2_000
SPAN = 1_000_000
STALL_S = 30.0
WINDOW, BACKLOG = 10_000, 50_000


@dataclass
class Reading:
    """One group's member: every message once, and those of a partition in order."""

    member: Member
    messages: int
    _next: dict[str, int] = field(default_factory=dict)
    _last: dict[str, int] = field(default_factory=dict)
    _seen: bytearray = field(default_factory=bytearray)

    def __post_init__(self) -> None:
        self._seen = bytearray(self.messages)

    def receive(self) -> None:
        found = self.member.receive()
        for delivery in found:
            self._check(delivery)
        if found:
            self.member.ack(range(found[0].tag, found[-1].tag + 1))

    def _check(self, delivery: Delivery) -> None:
        stream = delivery.stream
        offset = self._next.get(stream, delivery.offset)
        if delivery.offset != offset or delivery.number <= self._last.get(stream, -1) or delivery.returns:
            raise Unexpected(f"expected offset {offset}, not {delivery}")
        self._next[stream], self._last[stream] = offset + 1, delivery.number
        self._seen[delivery.number] += 1

    def check_whole(self) -> None:
        if self._seen.count(1) != self.messages or len(self._next) != PARTITIONS:
            raise Unexpected(f"{self._seen.count(1)} of {self.messages} messages, from {len(self._next)}")

    @property
    def is_done(self) -> bool:
        return self.member.delivered == self.messages and not self.member.wants_to_send


def measure(broker: GroupBroker, *, rounds: int, messages: int) -> Runs:
    load = make_load(SHAPE, messages)
    operator = broker.connect()
    operator.declare_topic("topic", PARTITIONS)
    operator.close()
    contenders: dict[str, Callable[[], Measured]] = {
        f"{word}{title}": lambda count=count, run=run: run(broker, load, count)  # type: ignore[misc]
        for title, run in ((" with publishing", published_meanwhile), (" reading", published_before))
        for word, count in (("one", 1), ("four", 4))
    }
    attempt(lambda: published_meanwhile(broker, load, 1))
    runs: Runs = {name: [] for name in contenders}
    for number in range(rounds):
        for name, run in contenders.items():
            found = attempt(run)
            runs[name].append(found)
            shown = found.get("error") or f"broker {found['broker_cpu_us']:.2f} µs a delivery"
            progress(f"groups, round {number + 1}, {name}: {shown}")
    return runs


def published_meanwhile(broker: GroupBroker, load: Load, groups: int) -> Measured:
    readings = [open_group(broker, number, load) for number in range(groups)]
    publisher = broker.connect()
    publisher.confirm_select()
    publishing = Publishing(publisher.socket, load)
    publishing.socket.setblocking(False)
    cpu = Cpu(broker.pid)
    began = time.perf_counter()
    flow(readings, publishing, load.count)
    publisher.close()
    return finish(broker, readings, cpu, began)


def published_before(broker: GroupBroker, load: Load, groups: int) -> Measured:
    """The groups are made where the messages begin, and have no members until those are there."""
    for number in range(groups):
        open_group(broker, number, load).member.close()
    publisher = broker.connect()
    publisher.confirm_select()
    publish_all(publisher, load, WINDOW)
    publisher.close()
    cpu = Cpu(broker.pid)
    began = time.perf_counter()
    readings = [open_group(broker, number, load) for number in range(groups)]
    flow(readings, None, load.count)
    return finish(broker, readings, cpu, began)


def open_group(broker: GroupBroker, number: int, load: Load) -> Reading:
    """With what comes from now on, if there is no such group yet."""
    member = Member(broker.connect(), SHAPE, load)
    group: Arguments = {"x-group": f"group-{number}", "x-group-start": "last", "x-group-max-span": SPAN}
    member.join("topic", prefetch=PREFETCH, arguments=group)
    return Reading(member, load.count)


def flow(readings: list[Reading], publishing: Publishing | None, messages: int) -> None:
    """Until everything is confirmed, delivered to every group, and acked."""
    ends: dict[int, Reading | Publishing] = {each.member.socket.fileno(): each for each in readings}
    if publishing is not None:
        ends[publishing.socket.fileno()] = publishing
    with select.epoll() as poll:
        for number in ends:
            poll.register(number, select.EPOLLIN)
        while not all(each.is_done for each in readings) or (
            publishing is not None and publishing.confirms.count < messages
        ):
            if publishing is not None:
                slowest = min(each.member.delivered for each in readings)
                publishing.allow(min(slowest + BACKLOG, publishing.confirms.count + WINDOW))
            for number, end in ends.items():
                sender = end.member if isinstance(end, Reading) else end
                poll.modify(number, select.EPOLLIN | (select.EPOLLOUT if sender.wants_to_send else 0))
            events = poll.poll(STALL_S)
            if not events:
                raise Stall(f"{[each.member.delivered for each in readings]} of {messages} delivered")
            for number, event in events:
                end = ends[number]
                if event & ~select.EPOLLOUT:
                    end.receive()
                sender = end.member if isinstance(end, Reading) else end
                if sender.wants_to_send:
                    sender.send()


def finish(broker: GroupBroker, readings: list[Reading], cpu: Cpu, began: float) -> Measured:
    """Waits until the acks are taken in; then the groups are removed: they would cost others something."""
    deliveries = sum(each.messages for each in readings)
    seconds = time.perf_counter() - began
    for each in readings:
        each.member.client.close_channel()
    spent = cpu.spent()
    for number, each in enumerate(readings):
        each.check_whole()
        broker.check_done(f"group-{number}")
        each.member.close()
        broker.delete_group(f"group-{number}")
    found = {"seconds": seconds, "rate": deliveries / seconds, **spent.per_message(deliveries)}
    return {"deliveries": deliveries, **{name: round(value, 3) for name, value in found.items()}}
