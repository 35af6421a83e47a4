"""Where an audit gets what it looks at: a copied data directory, or a running broker over Flight.

Both are a picture of a store (`storage.picture`): which logs there are, and pieces of them that any worker of
Spark can read as rows. Of a directory the workers read the files themselves, so they must be on its machine;
a broker sends them rows. Evidence is pickled to the workers: it holds names and numbers, and no files.
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
from leveret.storage.store_snapshot import Picture, of_left
from leveret.storage.wal import DIRECTORY as WAL

_LOCK: Final = "lock"


@dataclass(frozen=True, slots=True)
class Reader:
    """A cursor over a log: the queue's own, or that of a group."""

    id: int
    name: str
    """Empty for the queue's own."""
    audited: bool
    cursor: str = well_known_names.OWN_CURSOR
    """What the store calls it."""

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
    """Whether it keeps messages that were read: only groups settle them."""


class Evidence(Protocol):
    """What workers need; `rows` runs anywhere."""

    def rows(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        """What one piece tells."""


@dataclass(frozen=True, slots=True)
class Case:
    """All that an audit looks at."""

    described: str
    taken: datetime
    logs: tuple[AuditedLog, ...]
    returned: dict[int, str]
    """Logs of messages that went back to their publishers: their ids, and the virtual hosts."""
    pieces: tuple[Piece, ...]
    evidence: Evidence
    damage: tuple[Damage, ...] = ()
    round_trips_ms: dict[str, float] = field(default_factory=dict)
    """Of connections that are open, by their names, as the system has measured them."""

    def round_trip_ms(self, consumer: str) -> float | None:
        """To a consumer, which is called `connection (channel) tag`; each of them may hold brackets too."""
        end = consumer.rfind(" (")
        while end > 0:
            if consumer[:end] in self.round_trips_ms:
                return self.round_trips_ms[consumer[:end]]
            end = consumer.rfind(" (", 0, end)
        return None


@dataclass(frozen=True, slots=True)
class Directory:
    """Rows from the files of a picture."""

    root: str
    catalog: bytes

    def rows(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        picture = _picture(self.root, self.catalog)
        found: list[Damage] = []
        yield from message_events.rows(picture, piece, found.append)
        if found:
            yield message_events.damaged(found)


@lru_cache(maxsize=1)
def _picture(root: str, catalog: bytes) -> Picture:
    """Read once in a process, for all its pieces."""
    return Picture.decode(OsFiles(root, read_only=True), catalog)


@contextmanager
def of_directory(path: str) -> Iterator[Case]:
    """Of a data directory that no broker has open; nothing in it is changed.

    `NothingToAudit` if one has, and if it is none, or one of a newer version.
    """
    files = OsFiles(path, read_only=True)
    if not (files.exists(LOGS) or files.exists(WAL)):
        raise NothingToAudit(f"there is no broker's data in {path}", hint="copy the whole directory")
    lock = _shared(files, path)
    place = tempfile.mkdtemp(prefix="leveret-audit-")
    try:
        found: list[Damage] = []
        picture = _picture_of(files, OsFiles(place), found)
        taken = datetime.now(UTC)
        evidence = Directory(place, picture.encode())
        yield case_of(picture, evidence, f"the data directory {path}", taken, found)
    finally:
        shutil.rmtree(place, ignore_errors=True)
        if lock is not None:
            lock.release()


def _shared(files: OsFiles, path: str) -> Lock | None:
    """Keeps brokers out while it is looked at."""
    try:
        return files.share(_LOCK)
    except DirectoryLocked as error:
        holder = "a broker that is just starting" if error.pid is None else f"process {error.pid}"
        raise NothingToAudit(f"{path} is in use by {holder}", hint="audit it with --url") from error


def _picture_of(files: OsFiles, place: OsFiles, damage: list[Damage]) -> Picture:
    try:
        return of_left(files, place, damage.append)
    except UnknownFormat as error:
        by = "with the version of Leveret that wrote it, or a later one"
        hint = "is that a broker's data directory?" if error.found is None else f"audit it {by}"
        raise NothingToAudit(f"{files.root}: {error.message}", hint=hint) from error


@dataclass(frozen=True, slots=True)
class Running:
    """Rows from a running broker, which has taken a picture of itself."""

    endpoint: Endpoint
    picture: str

    def rows(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        with Calls(self.endpoint) as calls:
            yield from calls.piece(PieceTicket(self.picture, piece.event, piece.log_id, piece.segment))


@contextmanager
def of_broker(options: BrokerOptions) -> Iterator[Case]:
    """Of a running broker, as of now."""
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
            picture = Picture.decode(OsFiles("", read_only=True), taken.catalog)
            at = datetime.fromtimestamp(taken.taken_us / 1e6, UTC)
            evidence = Running(endpoint, name)
            damage = [Damage(*each) for each in taken.damage]
            case = case_of(picture, evidence, f"the broker at {options.where}", at, damage)
            trips = {name: each / 1000 for name, each in taken.round_trips_us.items()}
            yield replace(case, round_trips_ms=trips)
        finally:
            with suppress(SparkSideError):  # a broker that was started again has dropped it
                calls.ask(actions.DropPicture(name), actions.Done)


def case_of(
    picture: Picture,
    evidence: Evidence,
    described: str,
    taken: datetime,
    damage: Iterable[Damage] = (),
) -> Case:
    """With the names that the logs have."""
    logs: list[AuditedLog] = []
    returned = {}
    for id_, image in picture.logs.items():
        said = json.loads(image.spec.label) if image.spec.label and not image.spec.parent else None
        if isinstance(said, list):
            readers = [
                Reader(
                    journal.spec.id,
                    ""
                    if journal.spec.name == well_known_names.OWN_CURSOR
                    else journal.spec.label or journal.spec.name,
                    max(journal.spec.retention.audit_us, image.spec.retention.audit_us) > 0,
                    journal.spec.name,
                )
                for journal in picture.journals(id_)
            ]
            stream = image.spec.retention.keep_settled
            logs.append(AuditedLog(id_, _text(said[0]), _text(said[1]), tuple(readers), stream))
        elif isinstance(said, dict) and well_known_names.RETURNED in said:
            returned[id_] = _text(said[well_known_names.RETURNED])
    pieces = message_events.pieces(picture, [*(log.id for log in logs), *returned])
    return Case(
        described,
        taken,
        tuple(_told_apart(logs)),
        returned,
        tuple(pieces),
        evidence,
        tuple(damage),
    )


def _text(name: str) -> str:
    """Names may be any bytes; a table has text.

    >>> _text("caf\\udce9")
    'caf\\\\xe9'
    """
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _told_apart(logs: Sequence[AuditedLog]) -> Iterator[AuditedLog]:
    """Groups of one name on one log have the names of their cursors too, on all logs of the host.

    One reads the topic that the other's stream is a part of: their cursors have the groups' numbers.
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
