"""A broker beside a model: what is told to the model, and what must be the same after every step.

`Compared` owns the two and the looking: deliveries and deadlines go to the model as they happen, what the
broker settles by itself (worn out, too old) is taken out where the model allows it, and then everything that
a group is must be equal: unsettled, in flight, delayed until when, returned how often and why, reported as
progress, dead. Nobody may wait for what could be delivered. What is done to the two is `group_walk`'s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from leveret.amqp.properties import headers_of
from leveret.broker.groups.partition import Partition
from tests.faults.group_clients import AGE_S, Bench, Delivery, Member
from tests.properties.group_model import Flight, GroupModel, Letter, Place, Rules


class Compared:
    """`compared.look()` after everything that was done."""

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

    @property
    def joined(self) -> list[Member]:
        """Members that consume."""
        return [member for member in self.bench.members if member.consumer is not None]

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
        assert self.credit(got.member) >= 0, f"{got} is more than was asked for"
        assert got.member.wire.connection.writable, f"{got} is for one who does not read"
        assert got.body.split()[0].decode() == got.place[0]
        assert got.redelivered or not got.returns

    def _ticked(self, now_us: int) -> None:
        before = len(self.model.flights)
        self.model.tick(now_us)
        self.done["timeout"] += before - len(self.model.flights)

    def _note_appended(self) -> None:
        for name, partition in self.bench.partitions.items():
            new = self.visible(partition, self.model.ends.get(name, 0))
            self.model.appended(name, new, partition.log.next)

    def visible(self, partition: Partition, start: int) -> list[int]:
        """What its stream has to read, from there on."""
        end = partition.log.next
        return offsets_in(partition.stream.visible(start, end)) if start < end else []

    def credit(self, member: Member) -> int:
        """What its consumer may be sent beside what it holds, and its channel altogether."""
        tags = [flight.tag for flight in self.model.flights.values() if flight.member == member.name]
        credit = member.prefetch - sum(member.consumers.get(tag) == member.consumer for tag in tags)
        return min(credit, member.shared - len(tags)) if member.shared else credit

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
        name, progress, now_us = partition.name, partition.cursor.progress, self.bench.clock_us
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
        for record in queue.log.read(list(queue.cursor.progress.ready_ranges())) if queue is not None else []:
            told = headers_of(record.header)
            place = (str(told["x-stream"]), int(str(told["x-stream-offset"])))
            found.append(Letter(place, int(str(told["x-attempts"])), str(told["x-error"])))
        return found

    def _nobody_waits_in_vain(self) -> None:
        """Nothing can be delivered for which somebody has credit."""
        reading = [member for member in self.joined if member.wire.connection.writable]
        willing = {member.consumer for member in reading if self.credit(member) > 0}
        for name, partition in self.bench.partitions.items():
            waiting = self.model.deliverable(name, self.bench.clock_us)
            if self.model.rules.orderly:
                busy = any(each == name for each, _ in self.model.flights)
                assert partition.owner is not None or busy or not self.joined, f"{name} has no owner"
                served = partition.owner is not None and partition.owner.tag in willing
            else:
                served = bool(willing)
            assert not (waiting and served), f"{waiting} of {name} wait in vain"
        if self.model.rules.orderly and self.joined and not self.model.flights:
            shares = Counter({member.consumer: 0 for member in self.joined})
            shares.update(each.owner.tag for each in self.bench.partitions.values() if each.owner is not None)
            assert max(shares.values()) - min(shares.values()) <= 1, f"uneven: {shares}"


def unsettled_in(partition: Partition) -> list[int]:
    """The offsets that the broker has not settled."""
    settled, end = partition.cursor.progress.settled, partition.log.next
    return offsets_in(settled.unsettled(0, end)) if end else []


def offsets_in(ranges: Iterable[tuple[int, int]]) -> list[int]:
    return [offset for start, stop in ranges for offset in range(start, stop)]
