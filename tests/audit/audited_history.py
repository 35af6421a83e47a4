"""A broker's history (`tests/faults/broker_history.py`) with audited queues, and a ledger of its messages.

The ledger knows of each message how often it was delivered and how it ended, from the changes that the
account of the history sees. A copy is kept for each commit round: after a crash, the copy of the last round
that survived is the expectation. The rule: the ledger reads no journal; that is the audit's work.
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
_ENDED_UNSENT = ("expired", "delivery_limit")
"""Reasons for which a message may end while it is taken for a delivery; it is not sent then."""
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


class Entry(NamedTuple):
    """The expectation for one message."""

    lineage: Lineage
    persistent: bool
    deliveries: int = 0
    in_flight: bool = False
    returns: int = 0
    uncounted: int = 0
    """Returns that the broker did not count, possibly of deliveries that were never sent."""
    outcomes: frozenset[str] = frozenset()
    """The possible outcomes; empty while the message is not settled."""
    reasons: frozenset[str] = frozenset()
    """The possible dead-letter reasons; an empty text stands for none."""
    acked: bool = False
    """Whether the message was certainly acked by its consumer."""


class Ledger(Account):
    """The account of the history, with an expectation for each message."""

    entries: dict[Key, Entry]

    def start(self) -> None:
        self.entries = {}
        self.kept: dict[int, dict[Key, Entry]] = {}

    def _keep_round(self, ticket: int) -> None:
        super()._keep_round(ticket)
        self.kept[ticket] = dict(self.entries)

    def rewind(self, ticket: int) -> None:
        """Forget what happened after this round."""
        self.kept = {number: entries for number, entries in self.kept.items() if number <= ticket}
        self.entries = dict(self.kept[max(self.kept)]) if self.kept else {}

    def begin(self, broker: Broker) -> None:
        """Return what was in flight; transient messages are gone."""
        self.entries = {
            key: entry._replace(in_flight=False, returns=entry.returns + entry.in_flight)
            for key, entry in self.entries.items()
        }
        self.kept.clear()
        super().begin(broker)

    def _check_kept(self, key: Key, before: tuple[Kept, State], now: tuple[Kept, State]) -> None:
        super()._check_kept(key, before, now)
        entry, was, is_ = self.entries[key], before[1].in_flight, now[1].in_flight
        returned = was and not is_
        self.entries[key] = entry._replace(
            deliveries=entry.deliveries + (is_ and not was),
            returns=entry.returns + returned,
            uncounted=entry.uncounted + (returned and now[1].count == before[1].count),
            in_flight=is_,
        )

    def _explain(self, removed: dict[Key, tuple[Kept, State]], added: dict[Key, Kept]) -> None:
        for key, kept in added.items():
            in_flight = self.contents[key[0]][key[1]][1].in_flight
            self.entries[key] = Entry(kept.lineage, kept.persistent, int(in_flight), in_flight)
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
        else:
            # an ack that could not be written returns its message, and too many returns end it
            reasons += may if reason in (*may, "acked", "undone") else []
            outcomes = {_WITHOUT_COPY[reason] for reason in reasons}
            outcomes |= {"dead lettered"} if reason == "undone" and may else set()
        self.entries[key] = self.entries[key]._replace(
            in_flight=False,
            outcomes=frozenset(outcomes),
            reasons=frozenset(reason if reason in REASONS else "" for reason in reasons),
            acked=reasons == ["acked"],
        )


class AuditedClients(Clients):
    """Clients that declare audited queues."""

    def _arguments(self, name: str) -> dict[str, Value]:
        arguments = super()._arguments(name)
        arguments["x-audit-window"] = WINDOW_MS
        if self._random.random() < 0.2:
            arguments["x-audit-bodies"] = True
        return arguments


class AuditedHistory(BrokerHistory):
    """A history in which the audit of the disk must agree with the ledger after each crash and at the end."""

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
        # also after a crash in a recovery, which may lose what the recovery did not sync
        self.account.rewind(self._last_round())
        if fell:
            self.account.broker = None
            if self.disk.exists("logs"):
                self.compare(self.audit(), promised=False)

    def _last_round(self) -> int:
        """Return the ticket of the last round that is on the disk."""
        wal = Wal(self.disk.copy(), file_bytes=1 << 20, clock=lambda: 0, entropy=lambda: 0)
        try:
            return recover(self.disk.copy(), wal, lambda _: None).ticket
        finally:
            wal.close()

    def audit(self) -> Reckoned:
        self._audits += 1
        return reckon_directory(copy_disk(self.disk, self._place / f"{self.seed}-{self._audits}"))

    def compare(self, audit: Reckoned, *, promised: bool) -> None:
        """`promised` says whether the journals have all confirms that clients got."""
        assert (audit.lost, audit.doubled) == ([], [])
        logs = {queue.log.id: queue.name for queue in self.broker.vhosts["/"].queues.values()}
        for log, name in logs.items():
            # an earlier queue of this name had another log
            survived = audit.logs.get(name) == log
            if survived and log in self.account.durable and log not in self.account.intents.deleted:
                self._compare_queue(audit, log, name, promised=promised)

    def _compare_queue(self, audit: Reckoned, log: int, name: str, *, promised: bool) -> None:
        rows = audit.of(name)
        entries = {offset: entry for (id_, offset), entry in self.account.entries.items() if id_ == log}
        kept = {offset: entry for offset, entry in entries.items() if entry.persistent}
        assert rows.keys() <= entries.keys(), f"{name}: {rows.keys() - entries.keys()} were never published"
        promises = {offset for offset, row in rows.items() if row["persistent"] and row["published"]}
        assert promises <= kept.keys(), f"{name}: {promises - kept.keys()} are transient"
        notes = self._notes(name) if promised else OffsetSet()
        noted = False
        for offset, entry in sorted(kept.items()):
            row = rows.get(offset)
            assert row is not None, f"{name}: nothing is known of {offset}, {entry}"
            state = "settled" if entry.outcomes else "in flight" if entry.in_flight else "ready"
            assert row["state"] == state, f"{name}: {offset}, {entry}: {row}"
            unsent = entry.deliveries - row["deliveries"]
            assert 0 <= unsent <= entry.uncounted + (row["why"] in _ENDED_UNSENT), f"{name}: {entry}: {row}"
            assert row["returns"] == entry.returns, f"{name}: {offset}, {entry}: {row}"
            assert (row["outcome"] in entry.outcomes) == bool(entry.outcomes), f"{name}: {entry}: {row}"
            assert not entry.outcomes or row["why"] in entry.reasons, f"{name}: {offset}, {entry}: {row}"
            settled_by = {row["delivered_to"]} | (set() if entry.acked else {"", None})
            assert row["outcome"] == "purged" or row["settled_by"] in settled_by, f"{name}: {entry}: {row}"
            noted |= offset in notes
            if promised and noted and entry.lineage in self.clients.promised and entry.lineage[1] == name:
                assert offset in notes, f"{name}: {offset}, {entry}: {row}"
                assert row["persistent"], f"{name}: {offset}, {entry}: {row}"

    def _notes(self, name: str) -> OffsetSet:
        """Return the offsets that the journal notes as synced, at whatever time."""
        cursor = self.broker.vhosts["/"].queues[name].cursor
        notes = OffsetSet()
        for entry in cursor.entries(cursor.journal.first, cursor.journal.next):
            if entry.kind is Kind.SYNCED and not entry.who and entry.outcome != Promise.NONE:
                notes.add_many(entry.ranges)
        return notes
