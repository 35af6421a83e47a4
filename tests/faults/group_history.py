"""A generated history of a group, and what must be true of it after any crash.

`GroupHistory` walks through the life of a group (`tests/properties/group_walk.py`, which compares every step
with a model) while the store is synced at random, also in the middle of a turn as another thread would. Then
the power goes at any operation of the disk, or the process is killed. What comes back must be what one of the
rounds of the log since the last promise held: every hole, delay, count and reason of every partition, the
settings, the dead letters, the streams; what was in flight is back, counted. Notes and cursors agree: no
group without its cursors, no cursor without its group. All follows from the seed: `GroupHistory(7).run()`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from random import Random

from leveret.broker.groups.partition import Partition
from leveret.broker.groups.settings import Settings
from leveret.broker.groups.topics import streams_of
from leveret.storage.errors import WriteFailed
from leveret.storage.recovery import UNFINISHED
from leveret.testing.disk import CutAt, PowerCut
from tests.faults.group_clients import AGE_S, GROUP, TOPIC
from tests.faults.watched_store import is_syncing, watch
from tests.properties.group_checks import offsets_in, unsettled_in
from tests.properties.group_model import Cell, GroupModel, Letter, Place, Rules
from tests.properties.group_walk import WEIGHTS, GroupWalk

STEPS = {name: weight for name, weight in WEIGHTS.items() if name != "restart"}
ON_A_BAD_DISK = (
    "settle",
    "publish",
    "pass_time",
    "send_back",
    "end_transaction",
    "join",
    "cancel",
    "leave",
    "change",
)


@dataclass(frozen=True)
class GroupState:
    """The state of a topic and its group in a broker."""

    settings: Settings | None
    """Settings of the group; None without a group."""
    cells: dict[Place, Cell]
    partitions: frozenset[str]
    streams: dict[Place, bytes]
    letters: Counter[Letter]


class GroupHistory:
    """`lives` is how often the broker is started, used and crashed."""

    def __init__(self, seed: int, *, lives: int = 3, steps: int = 60) -> None:
        self.random = Random(seed)
        self.walk = GroupWalk(
            partitions=self.random.randint(1, 3),
            orderly=self.random.random() < 0.5,
            ages=self.random.random() < 0.3,
            seed=seed,
        )
        self.lives = lives
        self.steps = steps
        self.rounds: dict[int, GroupState] = {}
        """States at the ends of rounds, by ticket."""
        self.safe_ticket = 0
        self.torn = False
        """Whether a failing disk has done writes by half: then a header may be found damaged."""
        self._noise = 0.0
        self._opened = False

    def run(self) -> None:
        for _ in range(self.lives):
            with suppress(PowerCut):
                self.live()
            self.fall()
        self.open()
        self.walk.drain()

    # one life

    def open(self) -> None:
        """Start the broker on the disk, check what it recovered, and begin the model with it."""
        bench = self.walk.bench
        self._noise, self._opened = 0.0, False
        bench.open()
        self._opened = True
        self.check()
        self.walk.model, self.walk.exact = self._model(), True
        self.walk.late.clear()
        self.rounds = {bench.store.safe_ticket: self.state()}
        self._watch()
        bench.begin()
        bench.turn()

    def live(self) -> None:
        self.open()
        disk = self.walk.bench.disk
        if self.random.random() < 0.8:
            disk.before = CutAt(self.random.randrange(1, self.random.choice([30, 100, 300])))
        self._noise = self.random.choice([0.0, 0.05, 0.3])
        self.walk.step("join", 0, self.random.randrange(99), hasty=False)
        self._go(list(STEPS), self.random.randrange(self.steps))
        if self.random.random() < 0.2:
            disk.before = None
            self.walk.turn(hasty=False)
            self.walk.bench.store.close()
        elif self.random.random() < 0.3:
            self._suffer()

    def _go(self, names: list[str], steps: int) -> None:
        weights = [STEPS[name] for name in names]
        for _ in range(steps):
            name = self.random.choices(names, weights)[0]
            one, two = self.random.randrange(9999), self.random.randrange(9999)
            with suppress(WriteFailed):  # an operator is told
                self.walk.step(name, one, two, hasty=self.random.random() < 0.5)

    def _suffer(self) -> None:
        """Fill the disk for a while; sometimes the broker survives that."""
        bench = self.walk.bench
        self.walk.lose_track()
        self.torn |= (torn := self.random.random() < 0.3)
        bench.spoil(self.random.randrange(1, 6), torn=torn)
        self._go(list(ON_A_BAD_DISK), self.random.randrange(30))
        if self.random.random() < 0.7:
            bench.heal()
            self.check_held()
            self._go(list(ON_A_BAD_DISK), self.random.randrange(10))
            self.check_held()

    def fall(self) -> None:
        """Crash, and sometimes cut the power in the middle of the next recovery."""
        self._crash()
        while self.random.random() < 0.2:
            self.walk.bench.disk.before = CutAt(self.random.randrange(1, 60))
            with suppress(PowerCut):
                self.open()
            self._crash()

    def _crash(self) -> None:
        bench = self.walk.bench
        if self._opened:
            self.safe_ticket = bench.store.safe_ticket
        bench.disk = bench.disk.restart() if self.random.random() < 0.2 else bench.disk.crash(self.random)

    def check_held(self) -> None:
        """Check that the messages in flight are exactly those that members hold."""
        for name, partition in self.walk.bench.partitions.items():
            held = sorted(offset for run in partition.held() for offset in range(*run.offsets))
            assert offsets_in(partition.cursor.progress.in_flight.ranges()) == held, f"in flight in {name}"

    # watching

    def _watch(self) -> None:
        """Keep the state at the end of each round; another thread may sync between two changes."""
        store = self.walk.bench.store

        def look() -> None:
            if self._noise and not is_syncing(store) and self.random.random() < self._noise:
                self.walk.bench.sync_aside()

        watch(store, look, closing=self.state, closed=self._keep_round)

    def _keep_round(self, ticket: int, state: GroupState) -> None:
        self.rounds[ticket] = state

    def state(self) -> GroupState:
        bench = self.walk.bench
        groups = bench.broker.vhosts["/"].groups
        written = [] if groups._notes is None else list(groups._notes)
        group = bench.group if written else None
        partitions = {} if group is None else group.partitions
        return GroupState(
            settings=written[0].settings if group is not None else None,
            cells={
                (name, offset): cell for name, each in partitions.items() for offset, cell in _cells(each)
            },
            partitions=frozenset(partitions),
            streams={
                (name, record.offset): record.body
                for name, stream in bench.streams.items()
                for record in stream.log.read(list(stream.cursor.progress.ready_ranges()))
            },
            letters=Counter(self.walk.letters()),
        )

    # after a crash

    def check(self) -> None:
        bench = self.walk.bench
        damage = [each for each in bench.store.damage if each.what != UNFINISHED]
        assert damage == [] or self.torn, damage
        self._check_cursors()
        found = self.state()
        if not self.rounds:
            return
        wrong = {}
        for ticket in sorted((each for each in self.rounds if each >= self.safe_ticket), reverse=True):
            wrong[ticket] = list(self._differences(self.rounds[ticket], found))
            if not wrong[ticket]:
                break
        else:
            raise AssertionError(f"it is as it never was since ticket {self.safe_ticket}: {wrong}")
        kept = {body.rstrip() for body in found.streams.values()}
        lost = {body for body in bench.confirmed if body not in kept}
        assert self.walk.ages or not lost, f"{lost} were confirmed, and are lost"

    def _check_cursors(self) -> None:
        """Notes and cursors agree."""
        bench = self.walk.bench
        group = bench.group
        for name, stream in bench.streams.items():
            expected = {"queue"} if name not in bench.partitions else {"queue", f"group-{group.number}"}
            found = set(bench.broker.store.cursors(stream.log.id))
            assert found == expected, f"{name} has the cursors {found}"
        if group is not None:
            assert (group.subject, group.name) == (TOPIC, GROUP)
            assert list(group.partitions) == [each.name for each in streams_of(group.vhost, TOPIC)]

    def _differences(self, was: GroupState, found: GroupState) -> Iterator[str]:
        if was.settings != found.settings:
            yield f"settings {was.settings} are {found.settings}"
        if was.letters != found.letters:
            yield f"dead letters: lost {was.letters - found.letters}, more {found.letters - was.letters}"
        streams = {place: body for place, body in was.streams.items() if not self._may_be_gone(place)}
        kept = {place: body for place, body in found.streams.items() if place in was.streams}
        if len(kept) < len(found.streams) or not streams.items() <= kept.items():
            more = found.streams.keys() - was.streams.keys()
            yield f"streams: lost {streams.keys() - kept.keys()}, more {more}"
        expected = {place: self._over(cell) for place, cell in was.cells.items()}
        if found.settings is not None:  # a partition that was just added is read from its beginning
            expected |= {place: Cell() for place in was.streams if place[0] not in was.partitions}
        actual = {place: self._over(cell) for place, cell in found.cells.items()}
        for place in expected.keys() | actual.keys():
            cell = expected.get(place)
            if actual.get(place) != cell and (place in actual or not self._is_retired(place, cell)):
                yield f"{place} was {cell}, and is {actual.get(place)}"

    def _over(self, cell: Cell) -> Cell:
        """A delay that is over is none."""
        return replace(cell, due_us=cell.due_us if cell.due_us > self.walk.bench.clock_us else 0)

    def _may_be_gone(self, place: Place) -> bool:
        return self.walk.ages and self.walk.age_us(place) >= AGE_S * 1_000_000

    def _is_retired(self, place: Place, cell: Cell | None) -> bool:
        """Retention may have taken it when the broker started: it was old, and had not been sent back."""
        return cell is not None and not cell.sent_back and self._may_be_gone(place)

    def _model(self) -> GroupModel:
        """A model of what was found; what is to be if nothing was."""
        bench = self.walk.bench
        letters = self.walk.letters()
        gaps = self.walk.gaps()
        if bench.group is None:
            return GroupModel(replace(self.walk.model.rules, paused=False), letters=letters, gaps=gaps)
        settings = bench.group.settings
        rules = Rules(
            orderly=settings.mode == "orderly",
            span=settings.max_span,
            timeout_ms=settings.consume_timeout_ms,
            limit=settings.max_reconsume,
            delays_ms=settings.delays_ms,
            paused=settings.paused,
        )
        ends = {name: each.log.next for name, each in bench.partitions.items()}
        cells = {(name, at): cell for name, each in bench.partitions.items() for at, cell in _cells(each)}
        return GroupModel(rules, cells=cells, letters=letters, ends=ends, gaps=gaps)


def _cells(partition: Partition) -> Iterator[tuple[int, Cell]]:
    """What is unsettled, as it is after a crash: what was in flight is there again, and that counts."""
    progress = partition.cursor.progress
    due_us = dict(progress.delays())
    in_flight = set(offsets_in(progress.in_flight.ranges()))
    for offset in unsettled_in(partition):
        cell = Cell(
            due_us=due_us.get(offset, 0),
            returns=progress.counts.get(offset, 0) + (offset in in_flight),
            error=progress.reasons.get(offset, b"").decode(),
            sent_back=offset in progress.postponed,
        )
        yield offset, cell
