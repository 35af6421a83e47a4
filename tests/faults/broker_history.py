"""A random history of a broker with crashes, and the checks after each crash.

`BrokerHistory` drives the broker without sockets. Clients (`broker_clients`) act at random. The store is
synced at random, also in the middle of a turn, as another thread would do it. Definitions are committed
earlier or later, time passes, disks fill up, and `broker_account` explains every change. After a power cut
or a kill, the broker must have the state of a round since the last promise. So confirmed and committed
messages are there or left for a reason, acked and synced ones stay away, transactions are complete, and
counts, delays and `redelivered` are kept. The seed determines everything: `BrokerHistory(7).run()`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random

from leveret.broker.broker import Broker
from leveret.broker.definitions import (
    BindingRow,
    Change,
    ExchangeRow,
    ParameterRow,
    PermissionRow,
    QueueRow,
    Row,
    UserRow,
    VhostRow,
)
from leveret.broker.queues.consumer import Source
from leveret.storage.errors import Damage, StorePoisoned, WriteFailed
from leveret.storage.recovery import MENDED, UNFINISHED
from leveret.storage.store import Store
from leveret.storage.wal import Wal
from leveret.testing.disk import CutAt, FailAt, PowerCut, SimulatedDisk
from tests.faults.broker_account import Account, Content, State
from tests.faults.broker_clients import Clients
from tests.faults.broker_life import full_disk, open_store, start_broker
from tests.faults.watched_store import is_syncing, stopped_by

_ORDER = (VhostRow, UserRow, PermissionRow, ParameterRow, ExchangeRow, QueueRow, BindingRow)
START_US = 1_700_000_000_000_000


class LateDefinitions:
    """Definitions that are committed later: a crash keeps the committed ones and perhaps the next few."""

    def __init__(self) -> None:
        self._rows: dict[object, Row] = {}
        self._waiting: list[tuple[int, Sequence[Change]]] = []

    def load(self) -> list[Row]:
        """Return the rows as the database does: by kind, then by name."""
        return sorted(self._rows.values(), key=lambda row: (_ORDER.index(type(row)), repr(row)))

    def put(self, number: int, changes: Sequence[Change]) -> None:
        self._waiting.append((number, changes))

    def commit(self, count: int) -> int:
        """Commit the first `count` waiting changes, and return the number of the last one."""
        number = 0
        for number, changes in self._waiting[:count]:  # noqa: B007
            for row, removed in changes:
                if removed:
                    self._rows.pop(_key(row), None)
                else:
                    self._rows[_key(row)] = row
        del self._waiting[:count]
        return number

    def crash(self, random: Random) -> None:
        self.commit(random.randrange(len(self._waiting) + 1))
        self._waiting.clear()

    def __len__(self) -> int:
        return len(self._waiting)


class BrokerHistory:
    """`lives` is how often the broker is started, used and crashed. `counts` says what happened."""

    def __init__(self, seed: int, *, lives: int = 3, steps: int = 120, late: bool = True) -> None:
        self.random = Random(seed)
        self.seed = seed
        self.lives = lives
        self.steps = steps
        self.late = late
        """Whether definitions may be committed later than the rounds that build on them."""
        self.clock_us = START_US
        self.disk = SimulatedDisk(seed=seed)
        self.definitions = LateDefinitions()
        self.account = Account(lambda: self.clock_us)
        self.clients = Clients(self.random, self.account, lambda: self.clock_us)
        self.safe_ticket = 0
        self.torn = False
        """Whether a failing disk has done writes by half: then a header may be found damaged."""
        self.broker: Broker
        self.store: Store | None = None
        self._noise = 0.0
        self._reports: list[WriteFailed | None] = []

    def run(self) -> None:
        for _ in range(self.lives):
            self.live()
            self.fall()
        self.open()

    # one life

    def open(self) -> None:
        """Starts the broker over what the disk holds, and checks that."""
        self.account.broker, self.account.disk_failed, self._noise = None, False, 0.0
        self._reports.clear()
        self.account.forget_records()
        self._found = self.disk.copy()
        store = open_store(self.disk, random=self.random, clock=self.now)
        self.clients.forget_lost(store.logs)
        self.account.watch(store, self.look)
        self.broker = start_broker(store, self.definitions, random=self.random, clock=self.now)
        self.store = store
        self.check()
        self.account.begin(self.broker)
        self.clients.gone.clear()

    def now(self) -> int:
        return self.clock_us

    def look(self) -> None:
        """Between two changes of the store: another thread may sync now."""
        self.account.look()
        if self._noise and not is_syncing(self.broker.store) and self.random.random() < self._noise:
            self.sync()

    def live(self) -> None:
        """Opens, and does random things until the power goes, the process is killed, or it ends in order."""
        with suppress(PowerCut, StorePoisoned):
            self.open()
            if self.random.random() < 0.8:
                self.disk.before = CutAt(self.random.randrange(1, self.random.choice([60, 200, 500])))
            self._noise = self.random.choice([0.0, 0.05, 0.3])
            self.clients.connect(self.broker)
            self.turn()
            for _ in range(self.random.randrange(self.steps)):
                self.step()
            if self.random.random() < 0.2:
                self.disk.before = None
                self.end_in_order()

    def end_in_order(self) -> None:
        assert self.store is not None
        self.clients.lose_all()
        self.turn()
        with suppress(WriteFailed):
            self.store.close()
        self.definitions.commit(len(self.definitions))

    def fall(self) -> None:
        """Crash, and sometimes cut the power in the middle of the next recovery."""
        self.crash()
        while self.random.random() < 0.2:
            self.disk.before = CutAt(self.random.randrange(1, 60))
            with suppress(PowerCut):
                self.open()
            self.crash()

    def crash(self) -> None:
        if self.store is not None:
            self.safe_ticket = self.store.safe_ticket
        self.disk = self.disk.restart() if self.random.random() < 0.2 else self.disk.crash(self.random)
        self.definitions.crash(self.random)
        self.store = None

    # steps

    def step(self) -> None:
        steps: list[tuple[float, Callable[[], None]]] = [
            (40, self.act),
            (6, self.turn),
            (5, self.sync),
            (1, self.checkpoint),
            (4, self.commit_definitions),
            (3, self.pass_time),
            (0.4, self.spoil_disk),
            (1, self.heal_disk),
        ]
        chosen = self.random.choices([step for _, step in steps], [weight for weight, _ in steps])[0]
        chosen()
        if chosen not in (self.act, self.spoil_disk, self.heal_disk) or self.random.random() < 0.5:
            self.turn()

    def act(self) -> None:
        self.broker.begin_turn()
        self.clients.act()

    def turn(self) -> None:
        """Everything that was fed takes effect, and clients read what they are sent."""
        self._go_down_if_poisoned()
        for error in self._reports:
            if error is None:
                self.broker.synced()
            else:
                self._undo(error)
        self._reports.clear()
        while self.broker.end_turn():
            pass
        self.account.look()
        assert self.store is not None
        self._go_down_if_poisoned()
        self.clients.read(
            safe_look=self.account.safe_look(self.store.safe_ticket), disk_fails=self.account.disk_failed
        )
        self.check_held()

    def _go_down_if_poisoned(self) -> None:
        """Raise if a sync has failed, because the broker must stop then."""
        stopped = stopped_by(self.broker.store)
        if isinstance(stopped, StorePoisoned):
            raise stopped.with_traceback(None)

    def _undo(self, error: WriteFailed) -> None:
        assert self.store is not None
        intents = self.account.intents
        self.account.look()
        intents.undone_after = self.account.safe_look(self.store.safe_ticket)
        self.broker.write_failed(error)
        self.account.look()
        intents.undone_after = None

    def sync(self) -> None:
        self._try(self.broker.store.sync)

    def checkpoint(self) -> None:
        self._try(self.broker.store.checkpoint)

    def _try(self, write: Callable[[], object]) -> None:
        if not self.late:
            self.commit_all()
        try:
            write()
        except WriteFailed as error:
            self._reports.append(error)
        except StorePoisoned:
            # The end of the turn stops the broker.
            return
        else:
            self._reports.append(None)

    def commit_definitions(self) -> None:
        if number := self.definitions.commit(self.random.randrange(1, 4)):
            self.broker.committed(number)

    def commit_all(self) -> None:
        if number := self.definitions.commit(len(self.definitions)):
            self.broker.committed(number)

    def pass_time(self) -> None:
        self.clock_us += self.random.choice([0, 1, 5, 5, 20, 100, 1000]) * 1000
        self.broker.tick()

    @property
    def is_spoilt(self) -> bool:
        return isinstance(self.disk.before, FailAt)

    def spoil_disk(self) -> None:
        """Make writes fail for a while, or make a sync fail for good."""
        self.account.disk_failed = True
        if self.random.random() < 0.1:
            self.disk.before = FailAt(1, ("sync",), errno.EIO)
        else:
            number = self.random.choice([errno.ENOSPC, errno.EIO])
            torn = self.random.random() < 0.5
            self.torn |= torn
            self.disk.before = full_disk(self.random.randrange(1, 6), number=number, torn=torn)

    def heal_disk(self) -> None:
        if self.is_spoilt:
            self.disk.before = None

    # invariants

    def check_held(self) -> None:
        """Check that each message in flight is an unacked delivery of a channel."""
        held: dict[Source, set[int]] = {}
        for client in self.clients.all:
            for channel in client.wire.connection.session.channels:
                buffered = channel.transaction.settlements if channel.transaction else []
                for run in (*channel.unacked, *(run for taken, *_ in buffered for run in taken)):
                    held.setdefault(run.holder.source, set()).update(range(*run.offsets))
        for queue in self.broker.vhosts["/"].plain_queues.values():
            in_flight = {
                offset
                for start, stop in queue.cursor.progress.in_flight.ranges()
                for offset in range(start, stop)
            }
            assert in_flight == held.get(queue.deliverer, set()), (
                f"{queue}: in flight {in_flight}, held {held.get(queue.deliverer)}"
            )

    # after a crash

    def check(self) -> None:
        assert self.store is not None
        damage = [each for each in self.store.damage if not self._was_cut_off(each)]
        assert damage == [] or self.torn, damage
        queues = self.broker.vhosts["/"].queues
        logs = [queue.log.id for queue in queues.values()]
        assert len(set(logs)) == len(logs), f"queues share a log: {logs}"
        rounds = self.account.rounds
        if not rounds:
            return
        found: dict[int, list[str]] = {}
        for ticket in sorted((each for each in rounds if each >= self.safe_ticket), reverse=True):
            found[ticket] = self._differences(rounds[ticket])
            if not found[ticket]:
                self._check_promises(ticket)
                return
        raise AssertionError(f"the broker is as it never was since ticket {self.safe_ticket}: {found}")

    def _was_cut_off(self, damage: Damage) -> bool:
        """A round that nobody was promised, by half. If only a byte of it is missing it is mended: nobody can
        tell that from a byte that has changed."""
        if damage.what != MENDED:
            return damage.what == UNFINISHED
        wal = Wal(self._found, file_bytes=1 << 20, clock=lambda: 0, entropy=lambda: 0)
        try:
            unreleased = wal.recover(lambda _: None, after=self.safe_ticket)
        finally:
            wal.close()
        return any(
            damage.file == each.path and 0 <= damage.position - each.position < each.head.length
            for each in unreleased
        )

    def _differences(self, round_: dict[int, Content]) -> list[str]:
        """Check that durable queues are as in the round, and that other queues are empty."""
        wrong = []
        queues = {queue.log.id: queue for queue in self.broker.vhosts["/"].queues.values()}
        durable = {log: content for log, content in round_.items() if log in self.account.durable}
        for log in (queues.keys() | durable.keys()) - self.account.intents.deleted:
            expected = self._after_crash(durable.get(log, {}))
            actual = self._normal(self.account.content(queues[log])) if log in queues else {}
            if expected != actual:
                lost = [each for offset, each in expected.items() if actual.get(offset) != each]
                extra = [each for offset, each in actual.items() if expected.get(offset) != each]
                wrong.append(f"{self.account.names.get(log)} (log {log}) should hold {lost}, holds {extra}")
        return wrong

    def _after_crash(self, content: Content) -> Content:
        """What was in flight has come back, which counts; what was transient is gone."""
        return self._normal(
            {
                offset: (kept, State(False, state.count + 1, 0) if state.in_flight else state)
                for offset, (kept, state) in content.items()
                if kept.persistent
            }
        )

    def _normal(self, content: Content) -> Content:
        """Delays that are over are no delays."""
        return {
            offset: (kept, state._replace(due_us=state.due_us if state.due_us > self.clock_us else 0))
            for offset, (kept, state) in content.items()
        }

    def _check_promises(self, ticket: int) -> None:
        """What was confirmed or committed had come to its queue by then; what was answered is so."""
        look = self.account.round_looks[ticket]
        for lineage in self.clients.promised:
            assert self.account.appeared[lineage] <= look, f"{lineage} was confirmed, and is lost"
        queues = self.broker.vhosts["/"].queues
        missing = self.clients.declared - queues.keys()
        assert not missing, f"queues {missing} were declared, and are lost"
        back = [name for name, queue in queues.items() if queue.log.id in self.clients.gone]
        assert not back, f"queues {back} were deleted, and are back"


def _key(row: Row) -> object:
    if isinstance(row, ExchangeRow | QueueRow):
        return type(row), row.name
    return repr(row)
