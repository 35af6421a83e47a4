"""A walk through the life of a group: one thing after the other is done to a broker and told to the model.

`GroupWalk.step` takes a name and two numbers that choose the details (which member, which message, how long),
so that Hypothesis and a seeded random can both lead the way. After every step the broker must be as the model
is (`look`): what is settled is never delivered again, what is not is never forgotten, progress
moves back by a seek only, nobody waits in vain. Members, wires and the broker's life are `Bench`'s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from leveret.amqp.properties import headers_of
from leveret.broker.groups.partition import Partition
from tests.faults.group_clients import AGE_S, Bench, Delivery, Member, Wanted
from tests.properties.group_model import Flight, GroupModel, Letter, Place, Rules

T = TypeVar("T")

WEIGHTS = {
    "settle": 14,
    "publish": 6,
    "pass_time": 6,
    "send_back": 3,
    "end_transaction": 3,
    "change": 3,
    "join": 2,
    "rejoin": 1,
    "cancel": 1,
    "leave": 1,
    "recover": 1,
    "choke": 1,
    "change_mode": 1,
    "seek": 1,
    "skip": 1,
    "recall": 1,
    "add_partition": 1,
    "checkpoint": 1,
    "restart": 1,
    "delete": 1,
}
MOMENTS_US = (1, 999, 10_000, 400_000, 1_000_000, 2_000_000, 20_000_000, 61_000_000)
CHANGES: Sequence[tuple[str, str, Any]] = (
    *(("span", "max_span", span) for span in (1, 2, 6)),
    *(("timeout_ms", "consume_timeout_ms", timeout) for timeout in (0, 400, 1000, 1000, 60_000)),
    *(("limit", "max_reconsume", limit) for limit in (-1, 0, 1, 3)),
    *(("delays_ms", "delays", delays) for delays in ((0,), (1000,), (10, 2000), (500, 500, 60_000))),
    *(("paused", "paused", paused) for paused in (True, False, False)),
)
"""As the model calls them, as the broker does, and the value."""


class GroupWalk:
    """`walk.step("settle", 7, 3, hasty=False)`; `walk.drain()` at the end."""

    def __init__(self, *, partitions: int, orderly: bool, ages: bool, seed: int) -> None:
        self.bench = Bench(
            partitions=partitions,
            seed=seed,
            ages=ages,
            deliver=self._delivered,
            ticked=self._ticked,
            turned=self._turned,
        )
        self.ages = ages
        self.model = GroupModel(Rules(orderly=orderly))
        self.ends_us: dict[str, list[tuple[int, int]]] = {}
        """When each stream was how long."""
        self.late: dict[str, list[tuple[int, int]]] = {}
        """What members have settled too late in transactions that are not committed."""
        self.quiet = True
        """Whether nothing waits for a sync."""
        self.exact = True
        """Whether the model knows what has happened; not after a disk has failed."""
        self.done: Counter[str] = Counter()

    def begin(self) -> None:
        self.bench.open()
        self.bench.begin()
        self.join(0, 2)
        self.turn(hasty=False)

    def step(self, name: str, one: int, two: int, *, hasty: bool) -> None:
        """`hasty`: the next thing happens before what was done is synced."""
        act: Callable[[int, int], bool] = getattr(self, name)
        if act(one, two):
            self.done[name] += 1
        self.turn(hasty=hasty)

    def turn(self, *, hasty: bool) -> None:
        self.quiet = not hasty
        self.bench.turn(sync=not hasty)
        self.look()

    def lose_track(self) -> None:
        """From here on nothing is compared: what happens depends on which write fails."""
        self.exact = False
        self.model = GroupModel(self.model.rules)

    # what the bench tells

    def _turned(self) -> None:
        for name, stream in self.bench.streams.items():
            self.ends_us.setdefault(name, []).append((self.bench.clock_us, stream.log.next))
        if not self.exact:
            return
        self._note_appended()
        for partition in self.bench.partitions.values():
            self._take_out_gone(partition)

    def _delivered(self, got: Delivery) -> None:
        self.done["delivery"] += 1
        if not self.exact:
            return
        self.model.delivered(
            got.place, Flight(got.member.name, got.tag, self.bench.clock_us), returns=got.returns
        )
        got.member.consumers[got.tag] = got.member.consumer or ""
        assert self._credit(got.member) >= 0, f"{got} is more than was asked for"
        assert got.member.wire.connection.writable, f"{got} is for one who does not read"
        assert got.body.split()[0].decode() == got.place[0]
        assert got.redelivered or not got.returns

    def _ticked(self, now_us: int) -> None:
        before = len(self.model.flights)
        self.model.tick(now_us)
        self.done["timeout"] += before - len(self.model.flights)

    def _note_appended(self) -> None:
        for name, partition in self.bench.partitions.items():
            new = self._visible(partition, self.model.ends.get(name, 0))
            self.model.appended(name, new, partition.log.next)

    def _visible(self, partition: Partition, start: int) -> list[int]:
        end = partition.log.next
        return offsets_in(partition.stream.visible(start, end)) if start < end else []

    # members

    @property
    def _joined(self) -> list[Member]:
        return [member for member in self.bench.members if member.consumer is not None]

    def _is_open(self, member: Member) -> bool:
        return member.number in member.wire.connection.channels

    def _credit(self, member: Member) -> int:
        """What its consumer may be sent beside what it holds, and its channel altogether."""
        tags = [flight.tag for flight in self.model.flights.values() if flight.member == member.name]
        credit = member.prefetch - sum(member.consumers.get(tag) == member.consumer for tag in tags)
        return min(credit, member.shared - len(tags)) if member.shared else credit

    def _given(self) -> dict[str, Any]:
        """A member that makes the group says what it is to be; others need not."""
        rules = self.model.rules
        if self.bench.group is not None:
            return {}
        return {
            "mode": "orderly" if rules.orderly else "concurrent",
            "max_span": rules.span,
            "consume_timeout": rules.timeout_ms,
            "max_reconsume": rules.limit,
            "delays": list(rules.delays_ms),
        }

    def join(self, one: int, two: int) -> bool:
        others = [member for member in self.bench.members if self._is_open(member)]
        if len(others) >= 4:
            return self.leave(one, two)
        beside = others[one % len(others)] if others and two % 2 else None
        self.bench.join(
            1 + two % 5,
            beside=beside,
            transactional=two % 3 == 2,
            shared=2 if one % 5 == 4 else 0,
            **self._given(),
        )
        return True

    def rejoin(self, one: int, two: int) -> bool:
        idle = [each for each in self.bench.members if each.consumer is None and self._is_open(each)]
        if not idle:
            return False
        self.bench.rejoin(_pick(idle, one), 1 + two % 5, **self._given())
        return True

    def cancel(self, one: int, two: int) -> bool:
        if not self._joined:
            return self.join(one, two)
        self.bench.cancel(_pick(self._joined, one))
        return True

    def leave(self, one: int, two: int) -> bool:
        """By closing the channel, or with the connection."""
        if not self.bench.members:
            return self.join(one, two)
        member = _pick(self.bench.members, one)
        gone = [member]
        if two % 2:
            gone = self.bench.lose(member.wire)
        elif self._is_open(member):
            self.bench.close(member)
        for each in gone:
            self.model.lost(each.name)
            self.late.pop(each.name, None)
        return True

    def recover(self, one: int, two: int) -> bool:
        chosen = self._chosen(one, two)
        if chosen is None:
            return False
        member = chosen[0]
        self.bench.recover(member)
        for tag, place in list(member.tags.items()):
            if self.model.buffered(place, member.name, tag, on=False):  # what is late already stays late
                del member.tags[tag]
        self.model.recovered(member.name)
        return True

    def choke(self, one: int, two: int) -> bool:
        """A member does not read for a while: nothing is delivered to it, what it holds stays its own."""
        members = [member for member in self.bench.members if self._is_open(member)]
        if not members:
            return False
        wire = _pick(members, one).wire
        if wire.connection.writable:
            self.bench.choke(wire)
        else:
            self.bench.breathe(wire)
        return True

    # messages

    def publish(self, one: int, two: int) -> bool:
        large = two % 4 == 3
        self.bench.publish(_pick(list(self.bench.streams), one), 1 + two % 7, size_bytes=300 if large else 0)
        return True

    def _chosen(self, one: int, two: int) -> tuple[Member, int] | None:
        """A member that was given something, and one of its tags; late ones are among them."""
        holders = [member for member in self.bench.members if member.tags and self._is_open(member)]
        if not holders:
            return None
        member = _pick(holders, one)
        return member, _pick(list(member.tags), two)

    def settle(self, one: int, two: int) -> bool:
        chosen = self._chosen(one, two)
        if chosen is None:
            return self.join(one, two) if not self._joined else self.publish(one, two)
        member, tag = chosen
        how = ("ack", "ack", "nack", "ack", "nack", "reject", "ack")[(one + two) % 7]
        self.done[how] += 1
        multiple = two % 5 == 4
        self._asked(member, self.bench.settle(member, tag, how, multiple=multiple))
        if multiple and self.model.lapsed.get(member.name):
            self._late(member, 0, tag + 1)
        return True

    def send_back(self, one: int, two: int) -> bool:
        chosen = self._chosen(one, two)
        if chosen is None:
            return False
        member, tag = chosen
        delay_ms, counted, error = (0, 1, 5000)[one % 3], two % 3 > 0, ("", "out of paper")[two % 2]
        self._asked(member, self.bench.send_back(member, tag, delay_ms, counted=counted, error=error))
        return True

    def end_transaction(self, one: int, two: int) -> bool:
        busy = [member for member in self.bench.members if member.buffered and self._is_open(member)]
        if not busy:
            return self.settle(one, two)
        member = _pick(busy, one)
        commit = two % 3 > 0
        lapsed = self.model.lapsed.get(member.name, set())
        for wanted in self.bench.end_transaction(member, commit=commit):
            held = self.model.buffered(wanted.place, member.name, wanted.tag, on=False)
            if held and commit:
                self._settled(member, wanted)
            elif not commit and (held or wanted.tag in lapsed):
                member.tags[wanted.tag] = wanted.place
        for start, stop in self.late.pop(member.name, ()) if commit else ():
            self.model.forgiven(member.name, start, stop)
        self.late.pop(member.name, None)
        self.done["commit" if commit else "rollback"] += 1
        return True

    def _asked(self, member: Member, wanted: Sequence[Wanted]) -> None:
        for each in wanted:
            if each.tag in self.model.lapsed.get(member.name, ()):
                self._late(member, each.tag, each.tag + 1)
            elif member.transactional:
                self.model.buffered(each.place, member.name, each.tag, on=True)
            else:
                self._settled(member, each)

    def _late(self, member: Member, start: int, stop: int) -> None:
        """Settlements of what was taken back, if it was: counted now, or with the commit."""
        if member.transactional:
            self.late.setdefault(member.name, []).append((start, stop))
        else:
            self.model.forgiven(member.name, start, stop)

    def _settled(self, member: Member, wanted: Wanted) -> None:
        place, name, tag = wanted.place, member.name, wanted.tag
        if wanted.how == "ack":
            self.model.acked(place, name, tag)
        elif wanted.how == "reject":
            self.model.rejected(place, name, tag)
        elif wanted.how == "nack":
            self.model.sent_back(place, name, tag, self.bench.clock_us)
        else:
            due_us = self.bench.clock_us + 1000 * wanted.delay_ms if wanted.delay_ms else 0
            self.model.postponed(place, name, tag, due_us, counted=wanted.counted, error=wanted.error)

    def pass_time(self, one: int, two: int) -> bool:
        self.bench.pass_time(_pick(MOMENTS_US, one), sync=two % 4 > 0)
        return True

    # operators

    def change(self, one: int, two: int) -> bool:
        if self.bench.group is None:
            return False
        ours, theirs, value = _pick(CHANGES, one)
        self._change({theirs: value}, **{ours: value})
        return True

    def change_mode(self, one: int, two: int) -> bool:
        if self.bench.group is None or self._joined or self.model.flights:
            return False
        orderly = not self.model.rules.orderly
        self._change({"mode": "orderly" if orderly else "concurrent"}, orderly=orderly)
        self.model.marks.clear()
        return True

    def _change(self, wanted: dict[str, Any], **rules: Any) -> None:
        groups, group = self.bench.broker.vhosts["/"].groups, self.bench.group
        assert group is not None
        self.bench.act(lambda: groups.change(group, wanted))
        self.model.rules = replace(self.model.rules, **rules)

    def seek(self, one: int, two: int) -> bool:
        if not self.bench.partitions:
            return False
        partition = _pick(list(self.bench.partitions.values()), one)
        offset = two % (partition.log.next + 1)
        self.bench.act(lambda: partition.seek(offset, who=b"operator", why=b"because"))
        self.model.sought(partition.name, self._visible(partition, offset))
        return True

    def skip(self, one: int, two: int) -> bool:
        if not self.model.cells:
            return False
        name, offset = place = _pick(sorted(self.model.cells), one)
        self.bench.act(lambda: self.bench.partitions[name].skip(offset, who=b"operator", why=b"because"))
        self.model.skipped(place)
        return True

    def recall(self, one: int, two: int) -> bool:
        """As a redrive does it."""
        places = [(name, at) for name, each in self.bench.partitions.items() for at in self._visible(each, 0)]
        settled = [place for place in places if place not in self.model.cells]
        if not settled:
            return False
        name, offset = place = _pick(settled, one)
        partition = self.bench.partitions[name]
        self.bench.act(lambda: (partition.cursor.recall([(offset, offset + 1)]), partition.wake()))
        self.model.recalled(place)
        return True

    def add_partition(self, one: int, two: int) -> bool:
        if len(self.bench.streams) >= 3:
            return False
        self.bench.add_partition()
        return True

    def delete(self, one: int, two: int) -> bool:
        """The group, with all it knows; the next one begins anew."""
        group = self.bench.group
        if group is None or one % 4:
            return False
        groups = self.bench.broker.vhosts["/"].groups
        for wire in {id(each.wire): each.wire for each in self.bench.members if each.transactional}.values():
            for gone in self.bench.lose(wire):
                self.model.lost(gone.name)
                self.late.pop(gone.name, None)
        self.bench.act(lambda: groups.delete(group))
        for member in self.bench.members:
            member.tags.clear()
        rules = self.model.rules
        self.model = GroupModel(replace(rules, paused=False), letters=self.model.letters)
        return True

    # the broker

    def checkpoint(self, one: int, two: int) -> bool:
        self.bench.turn()
        self.bench.store.checkpoint()
        self.bench.checkpointed()
        return True

    def restart(self, one: int, two: int) -> bool:
        """In order, by a kill, or by a power loss; everything that has happened was synced."""
        self.turn(hasty=False)
        if one % 3 == 0:
            for member in self.bench.members:
                self.model.lost(member.name)
            self.bench.stop()
        else:
            self.bench.sync()
            self.model.crashed()
            disk = self.bench.disk
            self.bench.disk = disk.restart() if one % 3 == 1 else disk.crash(self.bench.random)
        self.model.stale = 0
        self.late.clear()
        self.bench.open()
        for name, partition in self.bench.partitions.items():  # numbers may have gone on: no messages
            self.model.ends[name] = partition.log.next
        self.bench.begin()
        self.turn(hasty=False)
        return self.join(one, two)

    # what must be true

    def look(self) -> None:
        self._turned()
        if not self.exact:
            return
        for partition in self.bench.partitions.values():
            self._compare(partition)
        assert Counter(self.letters()) == Counter(self.model.letters)
        group = self.bench.group
        if group is not None:
            assert group.stale_acks == self.model.stale
        if self.quiet:
            self._nobody_waits_in_vain()

    def _take_out_gone(self, partition: Partition) -> None:
        """What the broker settles by itself: worn out when it was about to be delivered, or too old."""
        unsettled = unsettled_in(partition)
        buried = Counter(each.place for each in self.letters())
        buried.subtract(each.place for each in self.model.letters)
        for offset, _ in list(self.model.of(partition.name)):
            place = (partition.name, offset)
            if offset in unsettled:
                continue
            if buried[place] > 0:
                self.model.buried(place)
                self.done["worn out"] += 1
                continue
            assert self.ages, f"{place} is gone, and nobody settled it"
            age_us = self.age_us(place)
            assert age_us >= AGE_S * 1_000_000, f"retention took {place} after {age_us} us"
            self.model.expired(place)
            self.done["expired"] += 1

    def age_us(self, place: Place) -> int:
        """For how long a message has been there, at least."""
        name, offset = place
        came_us = (at_us for at_us, end in self.ends_us[name] if offset < end)
        return self.bench.clock_us - next(came_us, self.bench.clock_us)

    def _compare(self, partition: Partition) -> None:
        """The broker has what the model has."""
        name, progress, now_us = partition.name, partition.progress, self.bench.clock_us
        cells = dict(self.model.of(name))
        assert unsettled_in(partition) == list(cells), f"unsettled in {name}"
        in_flight = sorted(offset for each, offset in self.model.flights if each == name)
        assert offsets_in(progress.in_flight.ranges()) == in_flight, f"in flight in {name}"
        held = sorted(offset for run in partition.held() for offset in range(*run.offsets))
        assert held == in_flight, f"held in {name}"
        delays = {offset: due_us for offset, due_us in progress.delays() if due_us > now_us}
        assert delays == {offset: cell.due_us for offset, cell in cells.items() if cell.due_us > now_us}
        returns = {offset: count for offset, count in progress.counts.items() if count}
        assert returns == {offset: cell.returns for offset, cell in cells.items() if cell.returns}
        errors = {offset: why.decode() for offset, why in progress.reasons.items()}
        assert errors == {offset: cell.error for offset, cell in cells.items() if cell.error}
        sent_back = [offset for offset, cell in cells.items() if cell.sent_back]
        assert offsets_in(progress.postponed.ranges()) == sent_back, f"sent back in {name}"
        mark = partition.watermark
        assert mark == self.model.watermark(name), f"progress of {name}"
        assert mark >= self.model.marks.get(name, 0), f"progress of {name} has moved back"
        self.model.marks[name] = mark

    def letters(self) -> list[Letter]:
        """The dead ones, as they tell their stories."""
        queue = self.bench.broker.vhosts["/"].queues.get("%DLQ%billing")
        found = []
        for record in queue.log.read(list(queue.progress.ready_ranges())) if queue is not None else []:
            told = headers_of(record.header)
            place = (str(told["x-stream"]), int(str(told["x-stream-offset"])))
            found.append(Letter(place, int(str(told["x-attempts"])), str(told["x-error"])))
        return found

    def _nobody_waits_in_vain(self) -> None:
        """Nothing can be delivered for which somebody has credit."""
        reading = [member for member in self._joined if member.wire.connection.writable]
        willing = {member.consumer for member in reading if self._credit(member) > 0}
        for name, partition in self.bench.partitions.items():
            waiting = self.model.deliverable(name, self.bench.clock_us)
            if self.model.rules.orderly:
                busy = any(each == name for each, _ in self.model.flights)
                assert partition.owner is not None or busy or not self._joined, f"{name} has no owner"
                served = partition.owner is not None and partition.owner.tag in willing
            else:
                served = bool(willing)
            assert not (waiting and served), f"{waiting} of {name} wait in vain"
        if self.model.rules.orderly and self._joined and not self.model.flights:
            shares = Counter({member.consumer: 0 for member in self._joined})
            shares.update(each.owner.tag for each in self.bench.partitions.values() if each.owner is not None)
            assert max(shares.values()) - min(shares.values()) <= 1, f"uneven: {shares}"

    def drain(self) -> None:
        """Everything that is left can be consumed."""
        if self.bench.group is None:
            return
        for wire in {id(member.wire): member.wire for member in self.bench.members}.values():
            for gone in self.bench.lose(wire):
                self.model.lost(gone.name)
        self._change({"paused": False, "consume_timeout_ms": 0}, paused=False, timeout_ms=0)
        self.turn(hasty=False)
        member = self.bench.join(20)
        self.turn(hasty=False)
        for _ in range(200 + 2 * len(self.model.cells)):
            for tag, place in list(member.tags.items()):
                self.bench.settle(member, tag, "ack")
                self.model.acked(place, member.name, tag)
            self.turn(hasty=False)
            if not self.model.flights and not self.model.cells:
                break
            if not self.model.flights:
                self.bench.pass_time(61_000_000)
                self.look()
        assert not self.model.cells, f"{self.model.cells} can't be consumed"
        assert self.bench.group.lag == 0


def _pick(options: Sequence[T], number: int) -> T:
    return options[number % len(options)]


def unsettled_in(partition: Partition) -> list[int]:
    """The offsets that the broker has not settled."""
    settled, end = partition.progress.settled, partition.log.next
    return offsets_in(settled.unsettled(0, end)) if end else []


def offsets_in(ranges: Iterable[tuple[int, int]]) -> list[int]:
    return [offset for start, stop in ranges for offset in range(start, stop)]
