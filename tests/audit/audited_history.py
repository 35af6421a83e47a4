"""A broker's history (`tests/faults/broker_history.py`) whose queues are audited, and a ledger of it.

The ledger tells of each message how often it was handed out and how it ended, as the account of the history
sees it between any two changes of the store. It is kept with each round, so that after a crash the one that
belongs to what survived is known. The rule: nothing here reads a journal, which is what the audit does.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from leveret.amqp.tables import Value
from leveret.broker.broker import Broker
from leveret.storage.journal import Kind, Promise
from leveret.storage.offset_set import OffsetSet
from leveret.storage.recovery import recover
from leveret.storage.wal import Wal
from tests.audit.reckoning import Reckoned, copy_disk, reckon_directory
from tests.faults.broker_account import REASONS, Account, Kept, Key, Lineage, State
from tests.faults.broker_clients import Clients
from tests.faults.broker_history import BrokerHistory

WINDOW_MS = 10**9
_FOUND_OVER = ("expired", "delivery_limit")
"""Why a message may be over when it is taken: then it is sent to nobody."""
_WITHOUT_COPY = {
    "rejected": "rejected",
    "expired": "expired",
    "maxlen": "dropped",
    "delivery_limit": "dropped",
    "undone": "dropped",
    "acked": "acked",
    "fetched": "acked",
    "purged": "purged",
}


class Told(NamedTuple):
    """Of one message."""

    lineage: Lineage
    persistent: bool
    deliveries: int = 0
    in_flight: bool = False
    returns: int = 0
    uncounted: int = 0
    """Returns of what was over when it was taken, and could not be written off: nobody may have seen it."""
    outcomes: frozenset[str] = frozenset()
    """One of these it has; none while it is not settled."""
    reasons: frozenset[str] = frozenset()
    """And one of these, where it died; an empty one where it did not."""
    acked: bool = False
    """Its consumer has settled it, for sure."""


class Ledger(Account):
    """The account, which also writes down what became of each message."""

    told: dict[Key, Told]

    def start(self) -> None:
        self.told = {}
        self.kept: dict[int, dict[Key, Told]] = {}

    def _keep_round(self, ticket: int) -> None:
        super()._keep_round(ticket)
        self.kept[ticket] = dict(self.told)

    def rewind(self, ticket: int) -> None:
        """What happened after this round is lost."""
        self.kept = {each: told for each, told in self.kept.items() if each <= ticket}
        self.told = dict(self.kept[max(self.kept)]) if self.kept else {}

    def begin(self, broker: Broker) -> None:
        """What was in flight has come back; what is transient is gone."""
        self.told = {
            key: told._replace(in_flight=False, returns=told.returns + told.in_flight)
            for key, told in self.told.items()
        }
        self.kept.clear()
        super().begin(broker)

    def _check_kept(self, key: Key, before: tuple[Kept, State], now: tuple[Kept, State]) -> None:
        super()._check_kept(key, before, now)
        told, was, is_ = self.told[key], before[1].in_flight, now[1].in_flight
        returned = was and not is_
        self.told[key] = told._replace(
            deliveries=told.deliveries + (is_ and not was),
            returns=told.returns + returned,
            uncounted=told.uncounted + (returned and now[1].count == before[1].count),
            in_flight=is_,
        )

    def _explain(self, removed: dict[Key, tuple[Kept, State]], added: dict[Key, Kept]) -> None:
        for key, kept in added.items():
            in_flight = self.contents[key[0]][key[1]][1].in_flight
            self.told[key] = Told(kept.lineage, kept.persistent, int(in_flight), in_flight)
        super()._explain(removed, added)

    def _explain_removed(
        self, key: Key, kept: Kept, state: State, arrived: dict[tuple[str, Lineage], Kept]
    ) -> None:
        ends, waiting = self.ends.copy(), len(arrived)
        may = [reason for reason in REASONS if self._may_die(key, kept, state, reason)]
        if self.intents.fetched[kept.queue] and state.in_flight:
            may.append("fetched")
        super()._explain_removed(key, kept, state, arrived)
        (reason,) = self.ends - ends
        reasons = [reason]
        if len(arrived) < waiting:
            outcomes = {"dead lettered"}
        else:  # an ack that could not be written gives back, and what comes back too often goes
            reasons += may if reason in (*may, "acked", "undone") else []
            outcomes = {_WITHOUT_COPY[each] for each in reasons}
            outcomes |= {"dead lettered"} if reason == "undone" and may else set()
        self.told[key] = self.told[key]._replace(
            in_flight=False,
            outcomes=frozenset(outcomes),
            reasons=frozenset(each if each in REASONS else "" for each in reasons),
            acked=reasons == ["acked"],
        )


class AuditedClients(Clients):
    """Whose queues are audited."""

    def _arguments(self, name: str) -> dict[str, Value]:
        arguments = super()._arguments(name)
        arguments["x-audit-window"] = WINDOW_MS
        if self._random.random() < 0.2:
            arguments["x-audit-bodies"] = True
        return arguments


class AuditedHistory(BrokerHistory):
    """After each crash, and at the end, the audit of what is on the disk must tell what the ledger tells."""

    def __init__(self, seed: int, place: Path, **options: int) -> None:
        super().__init__(seed, **options)
        self._place = place
        self._audits = 0
        self.account: Ledger = Ledger(lambda: self.clock_us)
        self.account.start()
        self.clients = AuditedClients(self.random, self.account, lambda: self.clock_us)

    def run(self) -> None:
        super().run()
        assert self.store is not None
        self.store.sync()
        self.compare(self.audit(), promised=True)

    def crash(self) -> None:
        fell = self.account.broker is not None
        super().crash()
        self.account.rewind(self._survived())  # also in a recovery: what it has not synced may go yet
        if fell:
            self.account.broker = None
            if self.disk.exists("logs"):
                self.compare(self.audit(), promised=False)

    def _survived(self) -> int:
        """The last round that is on the disk."""
        wal = Wal(self.disk.copy(), file_bytes=1 << 20, clock=lambda: 0, entropy=lambda: 0)
        try:
            return recover(self.disk.copy(), wal, lambda _: None).ticket
        finally:
            wal.close()

    def audit(self) -> Reckoned:
        self._audits += 1
        return reckon_directory(copy_disk(self.disk, self._place / f"{self.seed}-{self._audits}"))

    def compare(self, found: Reckoned, *, promised: bool) -> None:
        """`promised`: whether all that a client was told is written down by now."""
        assert (found.lost, found.doubled) == ([], [])
        logs = {queue.log.id: queue.name for queue in self.broker.vhosts["/"].queues.values()}
        for log, name in logs.items():
            survived = found.logs.get(name) == log  # and not the queue of that name before it
            if survived and log in self.account.durable and log not in self.account.intents.deleted:
                self._compare_queue(found, log, name, promised=promised)

    def _compare_queue(self, found: Reckoned, log: int, name: str, *, promised: bool) -> None:
        rows = found.of(name)
        told = {offset: each for (id_, offset), each in self.account.told.items() if id_ == log}
        kept = {offset: each for offset, each in told.items() if each.persistent}
        assert rows.keys() <= told.keys(), f"{name}: {rows.keys() - told.keys()} were never published"
        promises = {offset for offset, row in rows.items() if row["persistent"] and row["published"]}
        assert promises <= kept.keys(), f"{name}: {promises - kept.keys()} are transient"
        notes = self._notes(name) if promised else OffsetSet()
        noted = False
        for offset, each in sorted(kept.items()):
            row = rows.get(offset)
            assert row is not None, f"{name}: nothing is known of {offset}, {each}"
            state = "settled" if each.outcomes else "in flight" if each.in_flight else "ready"
            assert row["state"] == state, f"{name}: {offset}, {each}: {row}"
            unsent = each.deliveries - row["deliveries"]
            assert 0 <= unsent <= each.uncounted + (row["why"] in _FOUND_OVER), f"{name}: {each}: {row}"
            assert row["returns"] == each.returns, f"{name}: {offset}, {each}: {row}"
            assert (row["outcome"] in each.outcomes) == bool(each.outcomes), f"{name}: {each}: {row}"
            assert not each.outcomes or row["why"] in each.reasons, f"{name}: {offset}, {each}: {row}"
            settled_by = {row["delivered_to"]} | (set() if each.acked else {"", None})
            assert row["outcome"] == "purged" or row["settled_by"] in settled_by, f"{name}: {each}: {row}"
            noted |= offset in notes
            if promised and noted and each.lineage in self.clients.promised and each.lineage[1] == name:
                assert offset in notes, f"{name}: {offset}, {each}: {row}"
                assert row["persistent"], f"{name}: {offset}, {each}: {row}"

    def _notes(self, name: str) -> OffsetSet:
        """Of which the journal says that they were safe, at whatever time."""
        cursor = self.broker.vhosts["/"].queues[name].cursor
        notes = OffsetSet()
        for entry in cursor.entries(cursor.journal.first, cursor.journal.next):
            if entry.kind is Kind.SYNCED and not entry.who and entry.outcome != Promise.NONE:
                notes.add_many(entry.ranges)
        return notes
