"""`movement`: a member joins, leaves or dies; how long until all of 64 partitions flow again?

Members take a few milliseconds for each message, and every partition is published to at a steady pace, so
that it is known for each when something went through it that was published after the event. What a member
had not acked when it left or died comes again, and nothing else may: a duplicate is a message that members
have received twice. `nothing` is the same without an event: what pace and delivery take anyway.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from array import array
from collections import deque
from dataclasses import dataclass, field

from bench.frames import Shape, make_load
from bench.groups_broker import GroupBroker, Measured, Runs, attempt, progress
from bench.groups_member import Delivery, Member
from bench.peer import Arguments, Unexpected
from bench.streams import Publishing, Stall

PARTITIONS = 64
TOPIC = "topic"
SHAPE = Shape(keys=tuple(f"{TOPIC}-{number}" for number in range(PARTITIONS)))
MEMBERS = 3
PREFETCH = 500
TICK_S = 0.02
"""A message for each partition every so often."""
WORK_S = 0.005
WINDOW_S = 0.7
WARM_UP_S = 0.5
DRAIN_S = 30.0
EVENTS = ("nothing", "join", "leave", "join", "die")
NEVER = float("inf")


@dataclass(eq=False)
class Worker:
    """A member, and the messages it has received and not acked."""

    member: Member
    held: set[int] = field(default_factory=set)


class Traffic:
    """Paced publishing, and members that come and go."""

    def __init__(self, broker: GroupBroker, mode: str, ticks: int) -> None:
        self.broker = broker
        self.mode = mode
        self.load = make_load(SHAPE, ticks * PARTITIONS)
        self.publisher = broker.connect()
        self.publisher.socket.setblocking(False)
        self.publishing = Publishing(self.publisher.socket, self.load)
        self.workers: list[Worker] = []
        self.sent = array("d")
        """When each tick was published."""
        self.came = array("d", [NEVER]) * self.load.count
        """When each message was first received."""
        self.duplicates = 0
        self._last = [-1] * PARTITIONS
        self._works: deque[tuple[float, Worker, list[Delivery]]] = deque()
        self._began = 0.0
        self._stopped = False

    def start(self) -> None:
        for _ in range(MEMBERS):
            self.join()
        self._stopped = True  # until they are there
        while not all(worker.member.is_answered for worker in self.workers):
            self.run(0.0)
        self._stopped = False
        self._began = time.perf_counter()
        self.run(WARM_UP_S)

    # events

    def wait_until_busy(self) -> None:
        """The one that would go next holds something."""
        deadline = time.perf_counter() + DRAIN_S
        while not self.workers[0].held:
            self.run(0.0)
            if time.perf_counter() > deadline:
                raise Stall("nothing is delivered any more")

    def join(self) -> None:
        member = Member(self.broker.connect(), SHAPE, self.load)
        group: Arguments = {"x-group": self.mode, "x-group-mode": self.mode, "x-group-start": "last"}
        member.ask_to_join(TOPIC, prefetch=PREFETCH, arguments=group)
        self.workers.append(Worker(member))

    def leave(self) -> int:
        """Cancels, goes on until that is answered, and closes with what it holds; says how much that is."""
        leaver = self.workers[0]
        leaver.member.cancel()
        while not leaver.member.is_answered:
            self.run(0.0)
        return self._end(leaver, politely=True)

    def die(self) -> int:
        return self._end(self.workers[0], politely=False)

    def _end(self, worker: Worker, *, politely: bool) -> int:
        if politely:
            worker.member.hang_up()
            worker.member.send()
        else:
            abrupt = struct.pack("ii", 1, 0)
            worker.member.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, abrupt)
        worker.member.socket.close()
        self.workers.remove(worker)
        return len(worker.held)

    # time

    def run(self, seconds: float) -> None:
        """Lets everything flow for so long; at least once."""
        end = time.perf_counter() + seconds
        while True:
            now = time.perf_counter()
            self._publish(now)
            self._work(now)
            now = time.perf_counter()
            next_tick = self._began + len(self.sent) * TICK_S
            next_work = self._works[0][0] if self._works else next_tick
            pause = max(0.0, min(end, next_tick, next_work) - now)
            self._receive(pause)
            if time.perf_counter() >= end:
                return

    def drain(self) -> None:
        """No more is published; everything is delivered and settled."""
        self._stopped = True
        published = len(self.sent) * PARTITIONS
        deadline = time.perf_counter() + DRAIN_S
        while NEVER in self.came[:published] or self._works:
            self.run(TICK_S)
            if time.perf_counter() > deadline:
                missing = self.came[:published].count(NEVER)
                raise Stall(f"{missing} of {published} messages were not delivered")
        self.broker.check_done(self.mode)

    def close(self) -> None:
        for worker in self.workers:
            worker.member.socket.close()
        self.publisher.socket.close()

    def flows_after(self, event: float) -> float:
        """When every partition had delivered something that was published after the event."""
        first = next(tick for tick, sent in enumerate(self.sent) if sent >= event)
        numbers = range(first * PARTITIONS, len(self.sent) * PARTITIONS)
        earliest = [min(self.came[n] for n in numbers[part::PARTITIONS]) for part in range(PARTITIONS)]
        return max(earliest)

    def _publish(self, now: float) -> None:
        due = 0 if self._stopped else int((now - self._began) / TICK_S) + 1
        if due > len(self.sent):
            if due * PARTITIONS > self.load.count:
                raise Stall(f"{due} ticks, {self.load.count // PARTITIONS} were expected")
            self.publishing.allow(due * PARTITIONS)
            self.sent.extend([now] * (due - len(self.sent)))
        if self.publishing.wants_to_send:
            self.publishing.send()

    def _work(self, now: float) -> None:
        while self._works and self._works[0][0] <= now:
            _, worker, done = self._works.popleft()
            if worker in self.workers:
                worker.member.ack(each.tag for each in done)
                worker.held.difference_update(each.number for each in done)
        for worker in self.workers:
            if worker.member.wants_to_send:
                worker.member.send()

    def _receive(self, pause: float) -> None:
        by_socket = {worker.member.socket: worker for worker in self.workers}
        for ready in select.select(list(by_socket), [], [], pause)[0]:
            worker = by_socket[ready]
            found = worker.member.receive()
            now = time.perf_counter()
            for delivery in found:
                self._note(delivery, now)
            if found:
                worker.held.update(each.number for each in found)
                self._works.append((now + WORK_S, worker, found))

    def _note(self, delivery: Delivery, now: float) -> None:
        number = delivery.number
        tick, part = divmod(number, PARTITIONS)
        if delivery.stream != f"{TOPIC}-{part}" or tick >= len(self.sent):
            raise Unexpected(f"{delivery} was not published there")
        if self.came[number] != NEVER:
            self.duplicates += 1
        else:
            self.came[number] = now
        if self.mode == "orderly" and tick not in (self._last[part], self._last[part] + 1):
            raise Unexpected(f"out of order: message {tick} of partition {part} after {self._last[part]}")
        self._last[part] = tick


def measure(broker: GroupBroker, *, rounds: int) -> Runs:
    operator = broker.connect()
    operator.declare_topic(TOPIC, PARTITIONS)
    operator.close()
    runs: Runs = {}
    for mode in ("concurrent", "orderly"):
        names = [f"{mode}, {event}" for event in dict.fromkeys(EVENTS)]
        runs |= {name: [] for name in names}
        found = attempt(lambda mode=mode: {"found": of_mode(broker, mode, rounds)})  # type: ignore[misc]
        if "error" in found:
            runs[names[0]].append(found)
            progress(f"movement, {mode}: {found['error']}")
            continue
        for event, figures in found["found"]:
            runs[f"{mode}, {event}"].append(figures)
    return runs


def of_mode(broker: GroupBroker, mode: str, rounds: int) -> list[tuple[str, Measured]]:
    seconds = WARM_UP_S + rounds * len(EVENTS) * (WINDOW_S + 1.0) + 5.0
    traffic = Traffic(broker, mode, int(seconds / TICK_S))
    found = []
    try:
        traffic.start()
        for number in range(rounds):
            for event in EVENTS:
                figures = of_event(traffic, event)
                found.append((event, figures))
                progress(f"movement, round {number + 1}, {mode}, {event}: {figures}")
        traffic.drain()
    finally:
        traffic.close()
    broker.delete_group(mode)
    return found


def of_event(traffic: Traffic, event: str) -> Measured:
    """In the middle of work: whoever goes has something that is not acked yet."""
    traffic.wait_until_busy()
    before = traffic.duplicates
    began = time.perf_counter()
    in_flight = 0
    if event == "join":
        traffic.join()
    elif event == "leave":
        in_flight = traffic.leave()
    elif event == "die":
        in_flight = traffic.die()
    traffic.run(WINDOW_S)
    while (flows := traffic.flows_after(began)) == NEVER:
        traffic.run(TICK_S)
        if time.perf_counter() > began + DRAIN_S:
            raise Stall(f"after '{event}' a partition stands still")
    return {
        "flow_ms": round(1000 * (flows - began), 1),
        "in_flight": in_flight,
        "duplicates": traffic.duplicates - before,
    }
