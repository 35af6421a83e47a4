"""The write-ahead log against a list of rounds: what comes back is what was synced, in order, and no more.

The machine plays the store's part: it writes checkpoints by hand, so that files are recycled, and reads the
WAL back through `recover`. A round whose write failed, or that was cut by the power, may come back whole.
"""

import errno
from random import Random

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from leveret.storage.catalog import Checkpoint, LogImage, LogSpec, drop_checkpoints, write_checkpoint
from leveret.storage.errors import Damage, WriteFailed
from leveret.storage.recovery import UNFINISHED, recover
from leveret.storage.wal import Wal
from leveret.testing.disk import CutAt, FailAt, PowerCut, SimulatedDisk
from tests.examples import examples
from tests.storage.builders import batch, entropy

LOGS = (1, 2, 3)
Records = dict[int, list[tuple[int, bytes]]]
"""By log: offsets and bodies."""

sizes = st.sampled_from([0, 10, 150])


class Rounds(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 1000))
    def begin(self, seed: int) -> None:
        self.random = Random(seed)
        self.entropy = entropy(seed)
        self.disk = SimulatedDisk(seed=seed)
        self.numbers = dict.fromkeys(LOGS, 0)
        self.rounds: list[tuple[int, Records]] = []
        self.collected: Records = {}
        self.attempts: list[Records] = []
        self.floor = 0
        self.checkpoints = 0
        self.ticket = 0
        self.damage: list[Damage] = []
        self.has_failed = False
        self.wal = self.new_wal()
        self.write_checkpoint(0)
        self.wal.begin(0)

    def new_wal(self) -> Wal:
        return Wal(self.disk, file_bytes=4096, clock=lambda: 5, entropy=self.entropy)

    def write_checkpoint(self, ticket: int) -> None:
        self.checkpoints += 1
        logs = {id_: LogImage(LogSpec(id_), 0, 0) for id_ in LOGS}
        write_checkpoint(self.disk, Checkpoint(self.checkpoints, ticket, clean=False, logs=logs))
        drop_checkpoints(self.disk, keep={self.checkpoints})
        self.floor = ticket
        self.rounds = [each for each in self.rounds if each[0] > ticket]

    # rules

    @rule(log=st.sampled_from(LOGS), n=st.integers(1, 4), size=sizes)
    def collect(self, log: int, n: int, size: int) -> None:
        made = batch(self.numbers[log], n, size=size)
        with self.wal.lock:
            ticket = self.wal.collect(log, made)
        assert ticket == self.wal.ticket > self.wal.synced
        self.numbers[log] = made.stop
        records = [(offset, message.body) for offset, message in enumerate(made.messages, made.first)]
        self.collected.setdefault(log, []).extend(records)

    @rule()
    def sync(self) -> None:
        ticket = self.wal.ticket
        nothing = not self.collected and not self.wal.failed
        synced = self.wal.sync()
        assert synced == self.wal.synced
        if not nothing:
            assert synced == ticket
            self.note_round()

    @rule()
    def sync_with(self) -> None:
        ticket = self.wal.ticket
        frozen = []
        assert self.wal.sync_with(lambda: frozen.append(self.wal.ticket), lambda: frozen.clear()) == ticket
        assert frozen == [ticket]
        self.note_round()

    @rule(n=st.integers(1, 4), torn=st.booleans(), with_=st.booleans())
    def fail_to_write(self, n: int, torn: bool, with_: bool) -> None:
        self.has_failed = True
        self.attempts.append({log: list(records) for log, records in self.collected.items()})
        self.disk.before = FailAt(n, ("write", "create", "allocate", "rename"), errno.ENOSPC, torn=torn)
        thawed: list[int] = []
        try:
            if with_:
                self.wal.sync_with(lambda: None, lambda: thawed.append(1))
            elif self.collected or self.wal.failed:
                self.wal.sync()
            else:
                return
        except WriteFailed:
            assert self.wal.failed
            assert bool(thawed) == with_
        else:
            assert not thawed
            self.note_round()
        finally:
            self.disk.before = None

    @precondition(lambda self: self.wal.synced > self.floor)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        """Twice, as the store does it: the files that hold only rounds of before are used again."""
        self.write_checkpoint(data.draw(st.integers(self.floor, self.wal.synced)))
        self.wal.release(self.floor)

    @rule()
    def kill(self) -> None:
        self.disk = self.disk.restart()
        self.recover()

    @rule()
    def lose_power(self) -> None:
        self.disk = self.disk.crash(self.random)
        self.recover()

    @rule(n=st.integers(1, 7), killed=st.booleans())
    def end_within_a_sync(self, n: int, killed: bool) -> None:
        self.has_failed = True
        self.attempts.append(self.collected)
        self.disk.before = CutAt(n)
        try:
            self.wal.sync_with(lambda: None, lambda: None)
        except PowerCut:
            pass
        else:
            self.note_round()
        self.disk = self.disk.restart() if killed else self.disk.crash(self.random)
        self.recover()

    # the model

    def note_round(self) -> None:
        assert not self.wal.failed
        assert self.wal.synced > self.ticket
        self.ticket = self.wal.synced
        self.rounds.append((self.ticket, self.collected))
        self.collected, self.attempts = {}, []

    def recover(self) -> None:
        """A new process finds every synced round above the checkpoint, or these and one that was tried."""
        self.wal = self.new_wal()
        found = recover(self.disk, self.wal, self.damage.append)
        records = {
            log: [(r.offset, r.body) for each in batches for r in each.records(0, 1 << 62)]
            for log, batches in found.pending.items()
        }
        expected = joined(records for _, records in self.rounds)
        assert records in [expected, *(joined([expected, tried]) for tried in self.attempts)]
        assert found.ticket >= max(self.ticket, self.floor)
        self.ticket = found.ticket
        self.collected, self.attempts = {}, []
        self.write_checkpoint(found.ticket)
        self.wal.begin(found.ticket)
        self.wal.release(found.ticket)

    @invariant()
    def tickets_grow_and_nothing_looks_damaged(self) -> None:
        if hasattr(self, "wal"):
            assert self.wal.ticket > self.wal.synced >= self.floor
            assert all(self.has_failed and is_of_torn_write(each) for each in self.damage), self.damage


def is_of_torn_write(damage: Damage) -> bool:
    """A write that was cut short can look like damage. What it was to write is in no released round."""
    heads = ("the header of a WAL file is damaged", "one of the two heads")
    return damage.what == UNFINISHED or damage.what.startswith(heads)


def joined(parts) -> Records:
    whole: Records = {}
    for part in parts:
        for log, records in part.items():
            whole.setdefault(log, []).extend(records)
    return whole


TestRounds = Rounds.TestCase
TestRounds.settings = examples(150, stateful_step_count=40)
