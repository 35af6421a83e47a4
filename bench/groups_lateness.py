"""`lateness`: how exactly a delivery is sent back whose time is over, with 100,000 of them in flight.

A member settles nothing that comes for the first time, and acks at once what comes again. What lies between
the two, less the time allowed, is by how much the broker was late; it is known for every single message.
Messages are published at a steady pace, so that as many deadlines end in every second as deliveries are
made. `changed` is the same with a time allowed that is far too long at first, and is put right shortly before
the first delivery would be late. `burst` is for comparison: all of them delivered as fast as can be, so that
it is more about how fast the broker can deliver again than about how well it keeps time.
"""

from __future__ import annotations

import select
import threading
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass

from bench.client_raw import publish_all
from bench.cpu import Cpu
from bench.frames import Shape, make_load
from bench.groups_broker import GroupBroker, Measured, Runs, attempt, progress
from bench.groups_member import Delivery, Member
from bench.peer import Arguments, Unexpected
from bench.streams import Publishing, Stall

STREAM = "stream"
SHAPE = Shape(keys=(STREAM,))
PREFETCH_MAX = 65_535
MEMBERS = 2
"""Of one process: a prefetch has 16 bits."""
STALL_S = 60.0
TICK_S = 0.005
LONG_MS = 600_000
SPAN = 10_000_000


@dataclass(frozen=True)
class Plan:
    """How many a second, and how long a delivery may take: their product is in flight."""

    rate: int
    allowed_s: float
    beyond_s: float
    """How long publishing goes on after the first deadline."""

    @property
    def messages(self) -> int:
        return int(self.rate * (self.allowed_s + self.beyond_s))

    @property
    def in_flight(self) -> int:
        return int(self.rate * self.allowed_s)


class Late:
    """The members, and when each message came for the first and for the second time."""

    def __init__(self, broker: GroupBroker, messages: int) -> None:
        self.broker = broker
        self.load = make_load(SHAPE, messages)
        self.members: dict[int, Member] = {}
        self.first = array("d", bytes(8 * messages))
        self.second = array("d", bytes(8 * messages))
        self.came = self.came_again = self.most_in_flight = 0

    def join(self, allowed_ms: int) -> None:
        group: Arguments = {
            "x-group": "late",
            "x-group-consume-timeout": allowed_ms,
            "x-group-delays": "0ms",
            "x-group-max-span": SPAN,
        }
        for _ in range(MEMBERS):
            member = Member(self.broker.connect(), SHAPE, self.load)
            member.join(STREAM, prefetch=PREFETCH_MAX, arguments=group)
            self.members[member.socket.fileno()] = member

    @property
    def is_done(self) -> bool:
        sent = not any(member.wants_to_send for member in self.members.values())
        return self.came_again == self.load.count and sent

    def turn(self, poll: select.epoll, pause_s: float) -> bool:
        """Takes in what has come until then; False if there was nothing."""
        events = poll.poll(pause_s)
        for number, _ in events:
            member = self.members[number]
            found = member.receive()
            now = time.perf_counter()
            member.ack([each.tag for each in found if self.note(each, now)])
            if member.wants_to_send:
                member.send()
        self.most_in_flight = max(self.most_in_flight, self.came - self.came_again)
        return bool(events)

    def note(self, delivery: Delivery, now: float) -> bool:
        """Whether it came for the second time."""
        number, times = delivery.number, self.second if delivery.returns else self.first
        if delivery.offset != number or delivery.returns > 1 or times[number]:
            raise Unexpected(f"{delivery} has no place here")
        times[number] = now
        self.came += not delivery.returns
        self.came_again += delivery.returns
        return delivery.returns > 0

    def figures(self, allowed_s: float) -> Measured:
        late_ms = sorted(1000 * (b - a - allowed_s) for a, b in zip(self.first, self.second, strict=True))
        count = len(late_ms)
        return {
            "messages": count,
            "in_flight_most": self.most_in_flight,
            "least_ms": round(late_ms[0], 1),
            "p50_ms": round(late_ms[count // 2], 1),
            "p99_ms": round(late_ms[int(count * 0.99)], 1),
            "max_ms": round(late_ms[-1], 1),
        }

    def close(self) -> None:
        for member in self.members.values():
            member.close()


def paced(broker: GroupBroker, plan: Plan, *, changed: bool) -> Measured:
    late = Late(broker, plan.messages)
    allowed_ms = int(1000 * plan.allowed_s)
    late.join(LONG_MS if changed else allowed_ms)
    publisher = broker.connect()
    publisher.socket.setblocking(False)
    publishing = Publishing(publisher.socket, late.load)
    change = threading.Thread(target=lambda: broker.change_group("late", consume_timeout_ms=allowed_ms))
    cpu = Cpu(broker.pid)
    began = moved_at = time.perf_counter()
    with select.epoll() as poll:
        for number in late.members:
            poll.register(number, select.EPOLLIN)
        while not late.is_done:
            now = time.perf_counter()
            publishing.allow(max(1, int((now - began) * plan.rate)))
            if publishing.wants_to_send:
                publishing.send()
            if changed and now - began > 0.9 * plan.allowed_s:
                changed = False
                change.start()
            if late.turn(poll, TICK_S):
                moved_at = now
            elif now - moved_at > STALL_S:
                raise Stall(f"{late.came} came, {late.came_again} came again")
    if change.ident:
        change.join()
    spent = cpu.spent()
    publisher.close()
    return finish(broker, late, plan.allowed_s) | {"broker_share": round(spent.broker_s / spent.wall_s, 2)}


def burst(broker: GroupBroker, plan: Plan) -> Measured:
    late = Late(broker, plan.in_flight)
    publisher = broker.connect()
    publisher.confirm_select()
    publish_all(publisher, late.load, window=10_000)
    publisher.close()
    late.join(int(1000 * plan.allowed_s))
    with select.epoll() as poll:
        for number in late.members:
            poll.register(number, select.EPOLLIN)
        while not late.is_done:
            if not late.turn(poll, STALL_S):
                raise Stall(f"{late.came} came, {late.came_again} came again")
    return finish(broker, late, plan.allowed_s)


def finish(broker: GroupBroker, late: Late, allowed_s: float) -> Measured:
    found = late.figures(allowed_s)
    broker.check_done("late")
    late.close()
    return found


def measure(broker: GroupBroker, plan: Plan) -> Runs:
    ways: dict[str, Callable[[], Measured]] = {
        "paced": lambda: paced(broker, plan, changed=False),
        "changed": lambda: paced(broker, plan, changed=True),
        "burst": lambda: burst(broker, plan),
    }
    runs: Runs = {}
    for name, way in ways.items():
        operator = broker.connect()
        operator.declare_queue(STREAM, {"x-queue-type": "stream"})
        found = attempt(way)
        runs[name] = [found]
        operator.delete_queue(STREAM)
        operator.close()
        progress(f"lateness, {name}: {found}")
    return runs
