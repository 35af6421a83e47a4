"""A walk through the life of a group: one thing after the other is done to a broker and told to the model.

`GroupWalk.step` takes a name and two numbers that choose the details (which member, which message, how long),
so that Hypothesis and a seeded random can both lead the way. After every step the broker must be as the model
is: that is looked at in `group_checks`. Members, wires and the broker's life are `Bench`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import starmap
from typing import Any, TypeVar

from tests.faults.group_clients import Member, Wanted
from tests.properties.group_checks import Compared
from tests.properties.group_model import GroupModel

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


class GroupWalk(Compared):
    """`walk.step("settle", 7, 3, hasty=False)`; `walk.drain()` at the end."""

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

    # members

    def _is_open(self, member: Member) -> bool:
        return member.number in member.wire.connection.channels

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
        if not self.joined:
            return self.join(one, two)
        self.bench.cancel(_pick(self.joined, one))
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
            return self.join(one, two) if not self.joined else self.publish(one, two)
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
        if self.bench.group is None or self.joined or self.model.flights:
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
        self.model.sought(partition.name, self.visible(partition, offset))
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
        places = [(name, at) for name, each in self.bench.partitions.items() for at in self.visible(each, 0)]
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
        self.model = GroupModel(
            replace(rules, paused=False), letters=self.model.letters, gaps=self.model.gaps
        )
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
        self.model.gaps = self.gaps()
        self.bench.begin()
        self.turn(hasty=False)
        return self.join(one, two)

    def gaps(self) -> dict[str, list[range]]:
        return {name: list(starmap(range, each.log.gaps())) for name, each in self.bench.streams.items()}

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
