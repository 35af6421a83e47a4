"""The sources of an audit: a copied data directory, or a running broker over Flight.

Both give a snapshot of a store (`storage.store_snapshot`): its logs, and pieces of them that any worker of
Spark can read as rows. Workers read the files of a directory themselves, so they must run on its machine; a
broker sends them rows. The rule: evidence is pickled to the workers, so it holds no open files.
"""

from __future__ import annotations

import json
import secrets
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, Protocol

import pyarrow as pa

from leveret.audit.errors import NothingToAudit
from leveret.flight import actions
from leveret.flight.tickets import PieceTicket
from leveret.spark.endpoint import Endpoint, find
from leveret.spark.errors import SparkSideError
from leveret.spark.flight_calls import Calls
from leveret.spark.options import BrokerOptions
from leveret.storage import message_events, well_known_names
from leveret.storage.catalog import LOGS
from leveret.storage.errors import Damage, DirectoryLocked, UnknownFormat
from leveret.storage.files import Lock, OsFiles
from leveret.storage.message_events import Piece
from leveret.storage.store_snapshot import StoreSnapshot, snapshot_closed
from leveret.storage.wal import DIRECTORY as WAL

_LOCK: Final = "lock"


@dataclass(frozen=True, slots=True)
class Reader:
    """A cursor over a log: the queue's own, or that of a group."""

    id: int
    name: str
    """Empty for the queue's own cursor."""
    audited: bool
    cursor: str = well_known_names.OWN_CURSOR
    """The name in the store."""

    @property
    def own(self) -> bool:
        return not self.name


@dataclass(frozen=True, slots=True)
class AuditedLog:
    """The messages of one queue."""

    id: int
    vhost: str
    queue: str
    readers: tuple[Reader, ...]
    stream: bool = False
    """Whether the log keeps messages that were read; only groups settle them."""


class Evidence(Protocol):
    """The part of a source that workers need; `rows` runs on any of them."""

    def rows(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one piece."""


@dataclass(frozen=True, slots=True)
class Case:
    """Everything that an audit reads."""

    described: str
    taken: datetime
    logs: tuple[AuditedLog, ...]
    returned: dict[int, str]
    """Virtual hosts of the logs that note returned messages, by the id of the log."""
    pieces: tuple[Piece, ...]
    evidence: Evidence
    damage: tuple[Damage, ...] = ()
    round_trips_ms: dict[str, float] = field(default_factory=dict)
    """Round trips of open connections, by their names, as the operating system has measured them."""

    def round_trip_ms(self, consumer: str) -> float | None:
        """Return the round trip to a consumer `connection (channel) tag`; each part may have brackets too."""
        end = consumer.rfind(" (")
        while end > 0:
            if consumer[:end] in self.round_trips_ms:
                return self.round_trips_ms[consumer[:end]]
            end = consumer.rfind(" (", 0, end)
        return None


@dataclass(frozen=True, slots=True)
class Directory:
    """A snapshot whose files the workers read themselves."""

    root: str
    catalog: bytes

    def rows(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        snapshot = _snapshot(self.root, self.catalog)
        damage: list[Damage] = []
        yield from message_events.rows(snapshot, piece, damage.append)
        if damage:
            yield message_events.damaged(damage)


@lru_cache(maxsize=1)
def _snapshot(root: str, catalog: bytes) -> StoreSnapshot:
    """Decode a snapshot once in a process, for all pieces."""
    return StoreSnapshot.decode(OsFiles(root, read_only=True), catalog)


@contextmanager
def of_directory(path: str) -> Iterator[Case]:
    """Yield the case of a data directory; nothing in the directory is changed.

    Raise `NothingToAudit` if a broker has the directory open, or it has no data that this version can read.
    """
    files = OsFiles(path, read_only=True)
    if not (files.exists(LOGS) or files.exists(WAL)):
        raise NothingToAudit(f"there is no broker's data in {path}", hint="copy the whole directory")
    lock = _lock_shared(files, path)
    snapshot_path = tempfile.mkdtemp(prefix="leveret-audit-")
    try:
        damage: list[Damage] = []
        snapshot = _snapshot_of(files, OsFiles(snapshot_path), damage)
        taken = datetime.now(UTC)
        evidence = Directory(snapshot_path, snapshot.encode())
        yield case_of(snapshot, evidence, f"the data directory {path}", taken, damage)
    finally:
        shutil.rmtree(snapshot_path, ignore_errors=True)
        if lock is not None:
            lock.release()


def _lock_shared(files: OsFiles, path: str) -> Lock | None:
    """Lock the directory, so that no broker opens it during the audit."""
    try:
        return files.share(_LOCK)
    except DirectoryLocked as error:
        holder = "a broker that is just starting" if error.pid is None else f"process {error.pid}"
        raise NothingToAudit(f"{path} is in use by {holder}", hint="audit it with --url") from error


def _snapshot_of(files: OsFiles, snapshot_files: OsFiles, damage: list[Damage]) -> StoreSnapshot:
    try:
        return snapshot_closed(files, snapshot_files, damage.append)
    except UnknownFormat as error:
        is_newer = error.found is not None
        newer = "audit it with the version of Leveret that wrote it, or a later one"
        hint = newer if is_newer else "is that a broker's data directory?"
        raise NothingToAudit(f"{files.root}: {error.message}", hint=hint) from error


@dataclass(frozen=True, slots=True)
class Running:
    """A snapshot that a running broker took of itself and reads for the workers."""

    endpoint: Endpoint
    snapshot: str

    def rows(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        with Calls(self.endpoint) as calls:
            yield from calls.piece(PieceTicket(self.snapshot, piece.event, piece.log_id, piece.segment))


@contextmanager
def of_broker(options: BrokerOptions) -> Iterator[Case]:
    """Yield the case of a running broker, as of now."""
    options.check_broker()
    endpoint = find(options)
    if not endpoint.is_leveret:
        raise NothingToAudit(
            f"the broker at {options.where} is {endpoint.product}, which keeps no account of its messages",
            hint="the audit is for Leveret",
        )
    with Calls(endpoint) as calls:
        name = secrets.token_hex(16)
        taken = calls.ask(actions.TakePicture(name), actions.Taken)
        try:
            snapshot = StoreSnapshot.decode(OsFiles("", read_only=True), taken.catalog)
            at = datetime.fromtimestamp(taken.taken_us / 1e6, UTC)
            evidence = Running(endpoint, name)
            damage = [Damage(*each) for each in taken.damage]
            case = case_of(snapshot, evidence, f"the broker at {options.where}", at, damage)
            round_trips_ms = {name: time_us / 1000 for name, time_us in taken.round_trips_us.items()}
            yield replace(case, round_trips_ms=round_trips_ms)
        finally:
            # A broker that was restarted has dropped the snapshot already.
            with suppress(SparkSideError):
                calls.ask(actions.DropPicture(name), actions.Done)


def case_of(
    snapshot: StoreSnapshot,
    evidence: Evidence,
    described: str,
    taken: datetime,
    damage: Iterable[Damage] = (),
) -> Case:
    """Return a case with the logs of a snapshot, by the names in their labels."""
    logs: list[AuditedLog] = []
    returned = {}
    for id_, image in snapshot.logs.items():
        label = json.loads(image.spec.label) if image.spec.label and not image.spec.parent else None
        if isinstance(label, list):
            readers = [
                Reader(
                    journal.spec.id,
                    ""
                    if journal.spec.name == well_known_names.OWN_CURSOR
                    else journal.spec.label or journal.spec.name,
                    max(journal.spec.retention.audit_us, image.spec.retention.audit_us) > 0,
                    journal.spec.name,
                )
                for journal in snapshot.journals(id_)
            ]
            stream = image.spec.retention.keep_settled
            logs.append(AuditedLog(id_, _text(label[0]), _text(label[1]), tuple(readers), stream))
        elif isinstance(label, dict) and well_known_names.RETURNED in label:
            returned[id_] = _text(label[well_known_names.RETURNED])
    pieces = message_events.pieces(snapshot, [*(log.id for log in logs), *returned])
    return Case(
        described,
        taken,
        tuple(_with_unique_readers(logs)),
        returned,
        tuple(pieces),
        evidence,
        tuple(damage),
    )


def _text(name: str) -> str:
    """Return a name as text, because names may be any bytes.

    >>> _text("caf\\udce9")
    'caf\\\\xe9'
    """
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _with_unique_readers(logs: Sequence[AuditedLog]) -> Iterator[AuditedLog]:
    """Yield the logs; groups that share a name on one log get the names of their cursors appended.

    Such groups exist when one reads a topic and the other a stream of this topic. Their names are made unique
    on all logs of the virtual host.
    """
    shared = {
        (log.vhost, name)
        for log in logs
        for name, count in Counter(reader.name for reader in log.readers).items()
        if count > 1
    }
    for log in logs:
        readers = (
            replace(reader, name=f"{reader.name} ({reader.cursor})")
            if (log.vhost, reader.name) in shared
            else reader
            for reader in log.readers
        )
        yield replace(log, readers=tuple(readers))
