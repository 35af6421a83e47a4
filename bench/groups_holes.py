"""`holes`: how fast a group delivers and settles when its cursor is full of holes, and when it is empty.

Of two million messages every second one is settled; members hold the others, and send a tenth of them back
with a long delay. Then a further member takes blocks of messages: first those *behind* the holes; a new group
with an *empty* cursor takes the same ones in between. Then most members are lost, what they held is ready
again, and the blocks are those *among* the holes; beside it a new group that has *few*, those of the block.
To deliver and to settle are measured one after the other: the member cancels when its block is there, so that
an ack is no credit for more, and then acks each.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from bench.client_raw import publish_all
from bench.cpu import Cpu
from bench.frames import Shape, make_load
from bench.groups_broker import GroupBroker, Measured, Runs, attempt, progress
from bench.groups_member import Delivery, Member
from bench.groups_memory import in_process
from bench.peer import Unexpected
from bench.streams import Stall

STREAM, GROUP, NEW = "stream", "holes", "new"
SHAPE = Shape(keys=(STREAM,))
PREFETCH_MAX = 65_535
MEMBERS = 16
BLOCK = 50_000
STALL_S = 60.0
SPAN = 100_000_000
SETTINGS: dict[str, str | int] = {
    "x-group-max-span": SPAN,
    "x-group-delays": "1h",
    "x-group-consume-timeout": 3_600_000,
}


@dataclass
class Holder:
    """A member that acks every second message and keeps the others."""

    member: Member
    held: list[int] = field(default_factory=list)
    """Delivery tags."""


class Holes:
    """The stream, the group with the holes, and the members that hold them."""

    def __init__(self, broker: GroupBroker, holes: int) -> None:
        self.broker = broker
        self.holes = holes
        self.delayed = self.in_flight = holes // 10
        self.share = min(PREFETCH_MAX - 1, holes // MEMBERS)
        """What one member holds before the next one joins."""
        self.block = min(BLOCK, holes // 10)
        self.load = make_load(SHAPE, holes // 5)
        self.published = 0
        self.holders: list[Holder] = []

    def publish(self) -> None:
        """The load once more: the number of a message is its offset, modulo the length of the load."""
        publisher = self.broker.connect()
        publisher.confirm_select()
        publish_all(publisher, self.load, window=10_000)
        publisher.close()
        self.published += self.load.count

    def dig(self) -> None:
        """Delivers everything; each member holds as much as it may, and leaves the rest to the next."""
        came = 0
        while came < self.published:
            holder = Holder(self.join(GROUP, prefetch=PREFETCH_MAX, start=0))
            self.holders.append(holder)
            came = self.dig_with(holder, came, stop=self.published, share=self.share)

    def dig_with(self, holder: Holder, came: int, *, stop: int, share: int) -> int:
        """Until it holds its share, or this offset is reached; returns how far it came."""
        member = holder.member
        leaving = False
        with readiness(member) as wait:
            while not (leaving and member.is_answered):
                wait()
                found = member.receive()
                self.check(found, first=came, step=1)
                came += len(found)
                member.ack(each.tag for each in found if each.offset % 2)
                holder.held += [each.tag for each in found if not each.offset % 2]
                if not leaving and (len(holder.held) > share or came >= stop):
                    member.cancel()
                    leaving = True
            while member.wants_to_send:
                wait()
        return came

    def send_back(self) -> None:
        """A tenth of what is held is delayed; nothing of it is delivered again meanwhile."""
        count = self.delayed
        for holder in self.holders:
            share, holder.held = holder.held[:count], holder.held[count:]
            count -= len(share)
            holder.member.send_back(share)
            with readiness(holder.member) as wait:
                while holder.member.wants_to_send:
                    wait()
        self.wait_for("delayed", self.delayed)

    def lose_most(self) -> None:
        """Members go until a tenth of what they held is in flight; the rest is ready once more."""
        while len(self.holders) > 1 and sum(len(each.held) for each in self.holders[:-1]) >= self.in_flight:
            self.holders.pop().member.socket.close()
        self.wait_for("in_flight", sum(len(each.held) for each in self.holders))

    def close(self) -> None:
        for each in self.holders:
            each.member.socket.close()

    def wait_for(self, figure: str, value: int, *, group: str = GROUP) -> None:
        deadline = time.monotonic() + STALL_S
        while (found := self.broker.group(group)[figure]) != value:
            if time.monotonic() > deadline:
                raise Unexpected(f"{figure} is {found}, not {value}")
            time.sleep(0.05)

    def join(self, group: str, *, prefetch: int, start: int) -> Member:
        return self.consume(self.connect(), group, prefetch=prefetch, start=start)

    def connect(self) -> Member:
        return Member(self.broker.connect(), SHAPE, self.load)

    def consume(self, member: Member, group: str, *, prefetch: int, start: int) -> Member:
        """`start` is for a group that is made by this."""
        arguments = {"x-group": group, "x-group-start": start, **SETTINGS}
        member.join(STREAM, prefetch=prefetch, arguments=arguments)
        return member

    def check(self, found: list[Delivery], *, first: int, step: int) -> None:
        """Offsets as they must follow each other, each with the message that was published there."""
        size = self.load.count
        for offset, each in zip(range(first, first + step * len(found), step), found, strict=True):
            if each.offset != offset or each.number != offset % size:
                raise Unexpected(f"expected offset {offset}, not {each}")

    def take_block(self, group: str, *, first: int, step: int) -> Measured:
        """A further member takes a block and settles it; how fast each of the two was."""
        member = self.connect()
        cpu = Cpu(self.broker.pid)
        began = time.perf_counter()
        self.consume(member, group, prefetch=self.block, start=first)
        found: list[Delivery] = []
        with readiness(member) as wait:
            while len(found) < self.block:
                wait()
                found += member.receive()
            delivered_s = time.perf_counter() - began
            delivering = cpu.spent()
            self.check(found, first=first, step=step)
            member.cancel()
            while not member.is_answered:
                wait()
                member.receive()
            member.ack(each.tag for each in found)
            cpu = Cpu(self.broker.pid)
            began = time.perf_counter()
            while member.wants_to_send:
                wait()
        member.client.close_channel()
        settled_s = time.perf_counter() - began
        settling = cpu.spent()
        member.close()
        return {
            "messages": self.block,
            "deliver_rate": round(self.block / delivered_s),
            "settle_rate": round(self.block / settled_s),
            "deliver_cpu_us": round(delivering.broker_s / self.block * 1e6, 3),
            "settle_cpu_us": round(settling.broker_s / self.block * 1e6, 3),
            "others_cpu_share": round(settling.others_s / settling.wall_s, 3),
        }

    def take_empty(self, *, first: int) -> Measured:
        """The same by a group that is made for it."""
        try:
            return self.take_block(NEW, first=first, step=1)
        finally:
            self.broker.delete_group(NEW)

    def take_few(self, *, first: int) -> Measured:
        """The same by a group that is made for it, and has the holes of this block only."""
        try:
            holder = Holder(self.join(NEW, prefetch=PREFETCH_MAX, start=first))
            self.dig_with(holder, first, stop=first + 2 * self.block, share=self.block)
            holder.member.socket.close()
            self.wait_for("in_flight", 0, group=NEW)
            return self.take_block(NEW, first=first, step=2)
        finally:
            self.broker.delete_group(NEW)


@contextmanager
def readiness(member: Member) -> Iterator[Callable[[], None]]:
    """`wait()` returns when there is something to read, or has sent something."""
    with select.epoll() as poll:
        poll.register(member.socket, select.EPOLLIN)

        def wait() -> None:
            poll.modify(member.socket, select.EPOLLIN | (select.EPOLLOUT if member.wants_to_send else 0))
            events = poll.poll(STALL_S)
            if not events:
                raise Stall(f"{member.delivered} delivered")
            if events[0][1] & select.EPOLLOUT:
                member.send()

        yield wait


def measure(broker: GroupBroker, *, rounds: int, holes: int) -> Runs:
    progress("holes: weighing")
    runs: Runs = {name: [] for name in ("behind", "empty", "among", "few")}
    runs["memory"] = [in_process(holes)]
    state = Holes(broker, holes)
    operator = broker.connect()
    operator.declare_queue(STREAM, {"x-queue-type": "stream"})
    operator.close()
    began = broker.resident_bytes
    while state.published < 2 * holes:
        state.publish()
    published = broker.resident_bytes
    state.dig()
    state.send_back()
    dug = broker.resident_bytes
    progress(f"holes: {holes:,} of them, {len(state.holders)} members hold {holes - state.delayed:,}")
    while state.published < 2 * holes + rounds * state.block:
        state.publish()
    at = [2 * holes + number * state.block for number in range(rounds)]
    compare(
        runs,
        at,
        behind=lambda first: state.take_block(GROUP, first=first, step=1),
        empty=lambda first: state.take_empty(first=first),
    )
    before_loss = broker.resident_bytes
    state.lose_most()
    lost = broker.resident_bytes
    progress(f"holes: {state.broker.group(GROUP)}")
    first_ready = 2 * state.delayed + 2 * sum(len(each.held) for each in state.holders)
    compare(
        runs,
        [first_ready + 2 * number * state.block for number in range(rounds)],
        among=lambda first: state.take_block(GROUP, first=first, step=2),
        few=lambda first: state.take_few(first=first),
    )
    state.close()
    runs["memory"][0] |= {
        "resident_began_bytes": began,
        "resident_published_bytes": published,
        "resident_with_holes_bytes": dug,
        "resident_before_loss_bytes": before_loss,
        "resident_after_loss_bytes": lost,
    }
    return runs


def compare(runs: Runs, at: list[int], **contenders: Callable[[int], Measured]) -> None:
    """One after the other, at the same offsets."""
    for number, first in enumerate(at, 1):
        for name, run in contenders.items():
            found = attempt(lambda run=run, first=first: run(first))  # type: ignore[misc]
            runs[name].append(found)
            shown = found.get("error") or (
                f"delivers {found['deliver_rate']:,}/s ({found['deliver_cpu_us']:.2f} µs), "
                f"settles {found['settle_rate']:,}/s ({found['settle_cpu_us']:.2f} µs)"
            )
            progress(f"holes, round {number}, {name}: {shown}")
