"""Logs, through a store of small files, against a dict from offset to message.

There are two: a stream, which keeps everything, and a queue, of which what is settled may go. Segments fill,
roll, are rewritten and deleted; the store is closed, killed and loses power. Reading any ranges must give the
same as the model, and offsets are dense within a life. One that was synced or handed out is not issued again.
"""

from random import Random

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from leveret.storage.log import Log
from leveret.storage.offset_set import Range
from leveret.storage.records import PERSISTENT, Message
from leveret.storage.retention import Retention
from leveret.storage.store import Options
from leveret.testing.disk import SimulatedDisk
from tests.examples import examples
from tests.storage.builders import Clock, make_store, offsets, singles

OPTIONS = Options(
    wal_bytes=8 << 10, segment_bytes=1500, memory_bytes=4 << 10, snapshot_bytes=600, reserve_ahead=20
)
CURSOR = "reader"
STREAM, QUEUE = 0, 1

which = st.sampled_from([STREAM, QUEUE])
transient = st.sampled_from([False, False, False, True])


class Model:
    """The expected contents of one log."""

    def __init__(self, id_: int) -> None:
        self.id = id_
        self.messages: dict[int, Message] = {}
        self.tickets: dict[int, int] = {}
        self.settled: dict[int, int] = {}
        """The tickets of settlements."""
        self.next = 0
        self.handed_out = 0
        """What was handed out is below this offset."""
        self.next_is_known = True

    def lose(self, safe: int) -> set[int]:
        """After an unclean stop: what may be gone, or back."""
        doubtful = {offset for offset, ticket in self.tickets.items() if ticket > safe}
        return doubtful | {offset for offset, ticket in self.settled.items() if ticket > safe}


class Logs(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 1000))
    def begin(self, seed: int) -> None:
        self.random = Random(seed)
        self.clock = Clock()
        self.disk = SimulatedDisk(seed=seed)
        self.store = make_store(self.disk, self.clock, options=OPTIONS)
        retentions = (Retention(keep_settled=True), Retention())
        self.models = [Model(self.store.create_log(retention=each).id) for each in retentions]
        self.store.create_cursor(self.log(QUEUE), CURSOR)
        self.store.sync()

    def log(self, number: int) -> Log:
        return self.store.log(self.models[number].id)

    # rules

    @rule(number=which, n=st.integers(1, 30), size=st.sampled_from([0, 20, 700]), is_transient=transient)
    def append(self, number: int, n: int, size: int, is_transient: bool) -> None:
        model = self.models[number]
        flags = 0 if is_transient and number == QUEUE else PERSISTENT
        bodies = [b"%d" % self.random.randrange(1000) + b"." * size for _ in range(n)]
        appended = [Message(b"e", b"k", b"h", body, flags, i % 3) for i, body in enumerate(bodies)]
        self.clock.now_us += 1
        start, stop = self.store.append(self.log(number), appended)
        assert stop - start == n
        assert start == model.next if model.next_is_known else start >= model.next
        for offset, each in enumerate(appended, start):
            model.messages[offset] = each
            model.tickets[offset] = self.store.ticket
        model.next, model.next_is_known = stop, True

    @rule(n=st.integers(1, 60), share=st.sampled_from([0.5, 0.95, 1.0]))
    def settle(self, n: int, share: float) -> None:
        cursor = self.store.cursors(self.models[QUEUE].id)[CURSOR]
        taken = offsets(cursor.take(n))
        self.models[QUEUE].handed_out = max([self.models[QUEUE].handed_out, *(each + 1 for each in taken)])
        done = [offset for offset in taken if self.random.random() < share]
        ticket = cursor.settle(singles(done))
        self.models[QUEUE].settled.update(dict.fromkeys(done, ticket))
        if self.random.random() < 0.5:
            cursor.give_back(singles(set(taken) - set(done)))

    @rule()
    def sync(self) -> None:
        self.store.sync()

    @rule(number=which)
    def flush(self, number: int) -> None:
        self.store.flush(self.log(number))

    @rule()
    def checkpoint(self) -> None:
        self.store.checkpoint()

    @rule()
    def close_and_open(self) -> None:
        self.store.close()
        self.open()
        for number, model in enumerate(self.models):
            self.settle_transient(model)
            self.check(number, [(0, model.next)] if model.next else [])

    @rule(killed=st.booleans())
    def fall_and_open(self, killed: bool) -> None:
        safe = self.store.safe_ticket
        self.disk = self.disk.restart() if killed else self.disk.crash(self.random)
        self.open()
        for model in self.models:
            self.forget_what_is_lost(model, safe)

    @rule(number=which, data=st.data())
    def read(self, number: int, data: st.DataObject) -> None:
        end = self.log(number).next
        if end:
            pairs = st.tuples(st.integers(0, end - 1), st.integers(1, end)).map(lambda p: (p[0], p[0] + p[1]))
            inside = pairs.map(lambda p: (p[0], min(p[1], end)))
            self.check(number, data.draw(st.lists(inside, max_size=4)))

    # the model

    def open(self) -> None:
        self.store = make_store(self.disk, self.clock, options=OPTIONS)

    def settle_transient(self, model: Model) -> None:
        for offset, each in model.messages.items():
            if not each.flags & PERSISTENT:
                model.settled.setdefault(offset, 0)

    def forget_what_is_lost(self, model: Model, safe: int) -> None:
        """What was not safe: the store's word is the truth from here on. What was safe must be there."""
        self.settle_transient(model)
        log = self.store.log(model.id)
        assert log.next >= model.handed_out
        for offset in [each for each in model.messages if each >= log.next]:
            assert model.tickets.pop(offset) > safe, "it was synced, and is issued again"
            del model.messages[offset]
            model.settled.pop(offset, None)
        there = {record.offset for record in log.read([(0, log.next)])} if log.next else set()
        for offset in model.lose(safe):
            cursor = self.store.cursors(log.id).get(CURSOR)
            done = offset in cursor.progress.settled if cursor else offset not in there
            assert done or offset in there
            model.settled.pop(offset, None)
            if done:
                model.settled[offset] = 0
        model.tickets = dict.fromkeys(model.tickets, 0)
        model.settled = dict.fromkeys(model.settled, 0)
        model.next, model.next_is_known = log.next, True

    def check(self, number: int, ranges: list[Range]) -> None:
        """What is not settled is there, what is there was appended; in order, and as it was."""
        model = self.models[number]
        records = iter(self.log(number).read(ranges))
        record = next(records, None)
        for offset in offsets(ranges):
            if record is not None and record.offset == offset:
                assert record[2:] == model.messages[offset]
                record = next(records, None)
            else:
                assert offset not in model.messages or offset in model.settled
        assert record is None

    @invariant()
    def nothing_is_damaged_and_the_ends_are_right(self) -> None:
        if not hasattr(self, "models"):
            return
        assert self.store.damage == []
        for number, model in enumerate(self.models):
            log = self.log(number)
            unsettled = [offset for offset in model.messages if offset not in model.settled]
            assert log.next == model.next
            assert log.first <= min(unsettled, default=log.next)
            present = offsets(log.present())
            assert present == sorted(set(present))
            assert set(unsettled) <= set(present) <= set(model.messages)


TestLogs = Logs.TestCase
TestLogs.settings = examples(80, stateful_step_count=40)
