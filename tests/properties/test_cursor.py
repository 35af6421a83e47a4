"""Several cursors over one log, through a store, each against its own dict from offset to state.

Cursors are created at any time, at the first message, the next one, or a number between; each goes its own
way. Checkpoints run, the store is closed or killed after a sync: what was in flight comes back, counted and
redelivered, and everything else is as it was; what is leased stays in flight.
"""

from dataclasses import dataclass, field
from random import Random

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from leveret.storage.cursor import Cursor
from leveret.storage.journal import Outcome
from leveret.storage.log import Log
from leveret.testing.disk import SimulatedDisk
from tests.examples import examples
from tests.storage.builders import Clock, make_store, messages, offsets, singles

PRIORITIES = 2
NAMES = ("a", "b", "c")


@dataclass
class Reader:
    """What the model knows of one cursor."""

    priorities: int
    ready: set[int] = field(default_factory=set)
    in_flight: set[int] = field(default_factory=set)
    leased: set[int] = field(default_factory=set)
    delayed: dict[int, int] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)

    @property
    def unsettled(self) -> set[int]:
        return self.ready | self.in_flight | set(self.delayed)

    def settle(self, chosen: list[int]) -> None:
        for offset in chosen:
            self.ready.discard(offset)
            self.in_flight.discard(offset)
            self.leased.discard(offset)
            self.delayed.pop(offset, None)
            self.counts.pop(offset, None)

    def lease(self, chosen: list[int]) -> None:
        self.ready.difference_update(chosen)
        for offset in chosen:
            self.delayed.pop(offset, None)
        self.in_flight.update(chosen)
        self.leased.update(chosen)

    def release(self, chosen: list[int]) -> None:
        self.in_flight.difference_update(chosen)
        self.leased.difference_update(chosen)
        self.ready.update(chosen)

    def give_back(self, chosen: list[int], *, due_us: int = 0, counted: bool = True) -> None:
        self.in_flight.difference_update(chosen)
        self.leased.difference_update(chosen)
        for offset in chosen:
            self.counts[offset] = self.counts.get(offset, 0) + counted
            if due_us:
                self.delayed[offset] = due_us
            else:
                self.ready.add(offset)

    def wake(self, now_us: int) -> None:
        due = [offset for offset, due_us in self.delayed.items() if due_us <= now_us]
        self.ready.update(due)
        for offset in due:
            del self.delayed[offset]


class Cursors(RuleBasedStateMachine):
    @initialize(n=st.integers(0, 20), with_priorities=st.booleans())
    def begin(self, n: int, with_priorities: bool) -> None:
        self.clock = Clock()
        self.disk = SimulatedDisk()
        self.store = make_store(self.disk, self.clock)
        self.id = self.store.create_log().id
        self.readers: dict[str, Reader] = {}
        self.priority: dict[int, int] = {}
        self.leases: dict[int, dict[str, list[int]]] = {0: {}}  # by ticket, what each cursor had leased
        self.create("first", with_priorities)
        if n:
            self.append(n, 1)

    @property
    def log(self) -> Log:
        return self.store.log(self.id)

    def cursor(self, name: str) -> Cursor:
        return self.store.cursors(self.id)[name]

    # rules

    @rule(n=st.integers(1, 15), priority=st.integers(0, 3))
    def append(self, n: int, priority: int) -> None:
        start, stop = self.store.append(self.log, messages(n, priority=priority))
        for offset in range(start, stop):
            self.priority[offset] = priority
            for reader in self.readers.values():
                reader.ready.add(offset)

    @precondition(lambda self: len(self.readers) < len(NAMES))
    @rule(where=st.sampled_from(["first", "next", "between", "default"]), with_priorities=st.booleans())
    def create(self, where: str, with_priorities: bool) -> None:
        name = self.free_name()
        log = self.log
        starts = {"first": log.first, "next": log.next, "between": (log.first + log.next) // 2}
        start = starts.get(where)
        priorities = PRIORITIES if with_priorities else 0
        self.store.create_cursor(log, name, start=start, priorities=priorities)
        reader = Reader(priorities)
        start = log.first if start is None else start
        there = [offset for offset in offsets(log.present()) if offset >= start]
        reader.ready.update(offset for offset in there if not self.is_dead(offset))
        self.readers[name] = reader

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.readers)))
        self.store.delete_cursor(self.cursor(name))
        del self.readers[name]

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), n=st.integers(0, 20), limit=st.one_of(st.none(), st.integers(0, 80)))
    def take(self, data: st.DataObject, n: int, limit: int | None) -> None:
        name, reader = self.pick(data)
        reader.wake(self.clock.now_us)
        expected = [offset for offset in self.in_order(reader) if limit is None or offset < limit][:n]
        assert offsets(self.cursor(name).take(n, who=b"consumer", before=limit)) == expected
        reader.ready.difference_update(expected)
        reader.in_flight.update(expected)

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), n=st.integers(0, 12))
    def lease(self, data: st.DataObject, n: int) -> None:
        name, reader = self.pick(data)
        reader.wake(self.clock.now_us)
        expected = self.in_order(reader)[:n]
        assert offsets(self.cursor(name).lease(n, who=b"query")) == expected
        reader.lease(expected)

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        name, reader = self.pick(data)
        chosen = self.choose(data, reader.ready | set(reader.delayed))
        self.cursor(name).hold(singles(chosen), who=b"query")
        reader.lease(chosen)

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), n=st.integers(1, 8), priority=st.integers(0, 3))
    def append_held(self, data: st.DataObject, n: int, priority: int) -> None:
        name, reader = self.pick(data)
        transaction = self.store.transaction()
        transaction.append_held(self.cursor(name), messages(n, priority=priority), who=b"query")
        transaction.commit()
        appended = offsets(transaction.offsets)
        self.priority.update(dict.fromkeys(appended, priority))
        for each in self.readers.values():
            each.ready.update(appended)
        reader.lease(appended)

    @precondition(lambda self: any(reader.leased for reader in self.readers.values()))
    @rule(data=st.data(), together=st.booleans())
    def release(self, data: st.DataObject, together: bool) -> None:
        name = data.draw(st.sampled_from(sorted(name for name, each in self.readers.items() if each.leased)))
        reader = self.readers[name]
        chosen = self.choose(data, reader.leased)
        if together:
            transaction = self.store.transaction()
            transaction.release(self.cursor(name), singles(chosen))
            transaction.commit()
        else:
            assert self.cursor(name).release(singles(chosen), who=b"query") == self.store.ticket
        reader.release(chosen)

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        name, reader = self.pick(data)
        chosen = self.choose(data, reader.in_flight)
        ticket = self.cursor(name).settle(singles(chosen), Outcome.ACKED, who=b"consumer")
        assert ticket == self.store.ticket
        reader.settle(chosen)

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), delay_us=st.sampled_from([0, 0, 40, 900]), counted=st.booleans())
    def give_back(self, data: st.DataObject, delay_us: int, counted: bool) -> None:
        name, reader = self.pick(data)
        chosen = self.choose(data, reader.in_flight)
        due_us = self.clock.now_us + delay_us if delay_us else 0
        self.cursor(name).give_back(singles(chosen), not_before_us=due_us, counted=counted)
        reader.give_back(chosen, due_us=due_us, counted=counted)

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        name, reader = self.pick(data)
        self.cursor(name).progress.wake(self.clock.now_us)
        reader.wake(self.clock.now_us)
        chosen = self.choose(data, reader.ready | set(reader.delayed))
        self.cursor(name).drop(singles(chosen), Outcome.EXPIRED)
        reader.settle(chosen)

    @rule(step_us=st.integers(1, 500))
    def wait(self, step_us: int) -> None:
        self.clock.now_us += step_us

    @rule()
    def sync(self) -> None:
        self.store.sync()

    @rule()
    def checkpoint(self) -> None:
        self.store.checkpoint()

    @rule(clean=st.booleans())
    def reopen(self, clean: bool) -> None:
        if clean:
            self.store.close()
        else:
            self.store.sync()
            self.disk = self.disk.restart()
        self.store = make_store(self.disk, self.clock)
        self.leases = {}
        assert set(self.store.cursors(self.id)) == set(self.readers)
        for name, reader in self.readers.items():
            taken = sorted(reader.in_flight - reader.leased)
            reader.give_back(taken)
            assert all(self.cursor(name).returns.is_redelivered(offset) for offset in taken)

    @rule(seed=st.integers(0, 99))
    def look_behind_a_power_cut(self, seed: int) -> None:
        """The leases are those of the last safe ticket, and nothing else is in flight."""
        expected = self.leases[max(ticket for ticket in self.leases if ticket <= self.store.safe_ticket)]
        after = make_store(self.disk.copy().crash(Random(seed)), self.clock)
        cursors = after.cursors(self.id)
        found = {name: cursor.progress for name, cursor in cursors.items()}
        assert {name: offsets(each.leased.ranges()) for name, each in found.items()} == expected
        assert all(each.in_flight == each.leased for each in found.values())

    def free_name(self) -> str:
        return next(each for each in NAMES if each not in self.readers)

    # the model

    def pick(self, data: st.DataObject) -> tuple[str, Reader]:
        name = data.draw(st.sampled_from(sorted(self.readers)))
        return name, self.readers[name]

    def choose(self, data: st.DataObject, candidates: set[int]) -> list[int]:
        if not candidates:
            return []
        return sorted(data.draw(st.sets(st.sampled_from(sorted(candidates)), min_size=1, max_size=10)))

    def in_order(self, reader: Reader) -> list[int]:
        def level(offset: int) -> int:
            return min(self.priority[offset], reader.priorities)

        return sorted(reader.ready, key=lambda offset: (-level(offset), offset))

    def is_dead(self, offset: int) -> bool:
        """All cursors there are have settled it: it may be gone at any moment, and a new one skips it."""
        readers = self.readers.values()
        return bool(readers) and not any(offset in reader.unsettled for reader in readers)

    @invariant()
    def each_cursor_is_where_its_model_is(self) -> None:
        if not hasattr(self, "readers"):
            return
        assert self.store.damage == []
        for name, reader in self.readers.items():
            cursor = self.cursor(name)
            progress = cursor.progress
            assert offsets(progress.in_flight.ranges()) == sorted(reader.in_flight)
            assert offsets(progress.leased.ranges()) == sorted(reader.leased)
            due = {offset for offset, us in reader.delayed.items() if us <= self.clock.now_us}
            delayed = dict(progress.delays())
            now_us = self.clock.now_us  # what had been woken is delayed again after a restart, for no time
            known = {each: us for each, us in delayed.items() if us > now_us or each in reader.delayed}
            assert reader.delayed.items() >= known.items()
            assert set(reader.delayed) - set(delayed) <= due  # of which some have been woken
            unsettled = reader.unsettled
            ready = set(offsets(progress.ready_ranges()))
            assert ready | set(delayed) == unsettled - reader.in_flight
            assert {o: cursor.returns.count(o) for o in reader.counts} == reader.counts
            assert progress.low <= min(unsettled, default=self.log.next)
            readable = {record.offset for record in self.log.read(singles(sorted(unsettled)))}
            assert readable == unsettled

    @invariant()
    def note_what_is_leased(self) -> None:
        if hasattr(self, "readers"):
            leased = {name: sorted(reader.leased) for name, reader in self.readers.items()}
            self.leases[self.store.ticket] = leased


TestCursors = Cursors.TestCase
TestCursors.settings = examples(100, stateful_step_count=40)
