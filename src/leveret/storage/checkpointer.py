"""Checkpoints: batches in memory are written to segments, and a file names what counts.

The order of the steps matters: under the lock, freeze the batches in memory and close the WAL round; sync the
round; write segments, journals and snapshots; sync them; write the checkpoint that names them. A failed write
undoes the freeze and leaves everything as it was. What retention deletes is left to `retention.py`.

The rule: a file that a checkpoint does not name is deleted only after the *next* checkpoint, so that each of
the last two checkpoints has all its files.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from leveret.storage import formats, retention
from leveret.storage.catalog import (
    LOGS,
    Checkpoint,
    LogImage,
    drop_checkpoints,
    snapshot_path,
    write_checkpoint,
)
from leveret.storage.cursor import Cursor
from leveret.storage.durable_io import WholeFile, sync_all, write_whole
from leveret.storage.errors import StorePoisoned, write_failed
from leveret.storage.files import Files
from leveret.storage.formats import FileHeader
from leveret.storage.log import Log
from leveret.storage.progress import Progress
from leveret.storage.records import Batch
from leveret.storage.retention import Plan, Retention, SegmentView
from leveret.storage.segment import Segment, SegmentInfo
from leveret.storage.wal import Wal

Cursors = Mapping[str, Cursor]
"""Cursors of one log, by name."""


@dataclass(slots=True)
class _Work:
    """The part of a checkpoint that concerns one log."""

    log: Log
    plan: Plan
    image: LogImage
    progress: list[Progress] = field(default_factory=list)
    """Copies of the progress of the log's cursors, made at the freeze."""
    cursor: Cursor | None = None
    """Of a journal whose cursor gets a new snapshot."""
    state: bytes = b""
    """Of a journal: the progress of its cursor, for the checkpoint or for a snapshot."""
    snapped_bytes: int = 0
    segments: tuple[Segment, ...] = ()


class Checkpointer:
    """`last` is the newest checkpoint on disk; `replaced` are files that only the one before it names."""

    def __init__(
        self,
        files: Files,
        wal: Wal,
        last: Checkpoint,
        *,
        snapshot_bytes: int,
        state_bytes: int,
        clock: Callable[[], int],
        replaced: Sequence[str] = (),
    ) -> None:
        self._files = files
        self._wal = wal
        self._snapshot_bytes = snapshot_bytes
        self._state_bytes = state_bytes
        self._clock = clock
        self._running = threading.Lock()
        self._doomed = list(replaced)
        self.last = last

    def run(
        self,
        logs: Mapping[int, Log],
        cursors: Mapping[int, Cursors],
        *,
        next_id: Callable[[], int],
        deleted: list[str],
        clean: bool = False,
        superseding: bool = False,
    ) -> None:
        """Write a checkpoint of these logs.

        `cursors` has the cursors of each log, by the log's id. `deleted` has the directories ("…/") of
        deleted logs, and is emptied. With `superseding` the round of the WAL is not written: the checkpoint
        replaces it.
        """
        with self._running:
            image = Checkpoint(number=self.last.number + 1, clean=clean)
            work: list[_Work] = []
            doomed: list[str] = []

            def freeze() -> None:
                self._freeze(logs, cursors, work, image)
                image.next_id = next_id()
                doomed.extend(deleted)
                deleted.clear()

            def thaw() -> None:
                for each in work:
                    each.log.thaw()
                deleted.extend(doomed)

            def write() -> None:
                try:
                    doomed.extend(self._write(work, image))
                except StorePoisoned as poisoned:
                    self._wal.poison(poisoned)
                    raise
                except Exception as error:
                    # After any error the frozen batches must not get lost.
                    with self._wal.lock:
                        thaw()
                    _discard(each.log for each in work)
                    if isinstance(error, OSError):
                        raise write_failed(error, f"checkpoint {image.number}") from error
                    raise

            if superseding:
                with self._wal.superseding(freeze) as image.ticket:
                    write()
            else:
                image.ticket = self._wal.sync_with(freeze, thaw)
                write()
            self._install(work, image, doomed)

    def flush(self, log: Log, cursors: Cursors) -> None:
        """Write a log's batches in memory for readers in other processes. The next checkpoint syncs them."""
        with self._running:
            with self._wal.lock:
                self._wal.check()
                log.freeze()
                log.touched = True
                progress = [cursor.progress.copy() for cursor in cursors.values()]
            try:
                self._make_room(log)
                segments = log.write(log.segments, _live(log, log.frozen(), progress))
            except Exception as error:
                with self._wal.lock:
                    log.thaw()
                if isinstance(error, OSError):
                    raise write_failed(error, log.spec.directory) from error
                raise
            with self._wal.lock:
                log.install(segments)

    # under the lock

    def _freeze(
        self,
        logs: Mapping[int, Log],
        cursors: Mapping[int, Cursors],
        work: list[_Work],
        image: Checkpoint,
    ) -> None:
        now_us = self._clock()
        copies: dict[int, Progress] = {}
        touched = {id_ for id_, log in logs.items() if log.touched or log.spec.retention.is_timed}
        for log in logs.values():
            if log.id not in touched:
                image.logs[log.id] = self.last.logs[log.id]
                continue
            if log.spec.parent:
                cursor = cursors[log.spec.parent][log.spec.name]
                each = self._journal_work(log, cursor, now_us, copies)
            else:
                states = [cursor.progress for cursor in cursors[log.id].values()]
                each = _Work(log, plan_messages(log, states, now_us), _image(log))
                if log.has_pending or each.plan.rewrite:
                    each.progress = [_copied(cursor, copies) for cursor in cursors[log.id].values()]
            log.freeze()
            work.append(each)
            image.logs[log.id] = each.image

    def _journal_work(self, journal: Log, cursor: Cursor, now_us: int, copies: dict[int, Progress]) -> _Work:
        image = _image(journal)
        image.snapshot, image.snapshot_before = cursor.snapshot, cursor.snapshot_before
        each = _Work(journal, Plan(), image)
        if cursor.unsnapped_bytes > self._snapshot_bytes:
            image.snapshot, image.snapshot_before = journal.next, cursor.snapshot
            each.cursor = cursor
            each.snapped_bytes = cursor.unsnapped_bytes
        if each.cursor is not None or (self._state_bytes and cursor.progress.is_brief):
            each.progress = [_copied(cursor, copies)]
        views = [
            SegmentView(s.info, unsettled=0 if s.info.last < image.snapshot_before else s.info.rows)
            for s in journal.segments
        ]
        audit_us = max(journal.spec.retention.audit_us, cursor.log.spec.retention.audit_us)
        policy = Retention(audit_us=audit_us)
        each.plan = retention.plan(views, policy, now_us)
        return each

    # without the lock

    def _write(self, work: list[_Work], image: Checkpoint) -> list[str]:
        """Write and sync all work, then the checkpoint; return the files that it does not name any more."""
        doomed: list[str] = []
        for each in work:
            doomed.extend(self._write_log(each))
            each.image.segments = [segment.info for segment in each.segments]
            if each.log.spec.parent and each.progress:
                each.state = each.progress[0].encode()
                if len(each.state) <= self._state_bytes:
                    each.image.state = each.state
        self._sync([each.log for each in work])
        doomed.extend(self._write_snapshots([each for each in work if each.cursor is not None]))
        write_checkpoint(self._files, image)
        return doomed

    def _write_log(self, work: _Work) -> Iterator[str]:
        log, plan = work.log, work.plan
        rewrite, deleted, stamped = ({i.first for i in p} for p in (plan.rewrite, plan.delete, plan.settled))
        kept = []
        for segment in log.segments:
            first = segment.info.first
            if first in deleted:
                yield from (segment.path, segment.index_path)
            elif first in rewrite:
                live = log.live_ranges(first, segment.info.last + 1, work.progress)
                copy = log.rewritten(segment, live)
                # The copy is empty if all live records are damaged.
                if copy.info.rows:
                    kept.append(copy)
                yield from (segment.path, segment.index_path)
            else:
                if first in stamped:
                    segment.info = segment.info._replace(settled_us=self._clock())
                kept.append(segment)
        # The progress of a journal's cursor is not about offsets of the journal.
        states = [] if log.spec.parent else work.progress
        batches = _live(log, log.frozen(), states)
        if log.frozen():
            self._make_room(log)
        work.segments = log.write(kept, batches)

    def _make_room(self, log: Log) -> None:
        if not log.has_directory:
            self._files.make_directory(log.spec.directory)
            log.has_directory = True

    def _sync(self, logs: list[Log]) -> None:
        """Sync all written files with their directories, all at once."""
        unsynced = [log for log in logs if log.unsynced]
        if unsynced:
            paths = [path for log in unsynced for segment in log.unsynced.values() for path in segment.paths]
            sync_all(self._files, [*paths, *(log.spec.directory for log in unsynced), LOGS, ""])
            for log in unsynced:
                log.unsynced.clear()

    def _write_snapshots(self, work: list[_Work]) -> Iterator[str]:
        whole = []
        for each in work:
            journal, number = each.log, each.image.snapshot
            self._make_room(journal)
            header = FileHeader(formats.SNAPSHOT, journal.id, number)
            path = snapshot_path(journal.spec.directory, number)
            whole.append(WholeFile(path, header, each.state))
            assert each.cursor is not None
            if each.cursor.snapshot_before not in (0, each.image.snapshot_before):
                yield snapshot_path(journal.spec.directory, each.cursor.snapshot_before)
        if whole:
            write_whole(self._files, whole)
            sync_all(self._files, [LOGS, ""])

    def _install(self, work: Iterable[_Work], image: Checkpoint, doomed: list[str]) -> None:
        with self._wal.lock:
            for each in work:
                each.log.install(each.segments)
                if each.cursor is not None:
                    each.cursor.snapshot = each.image.snapshot
                    each.cursor.snapshot_before = each.image.snapshot_before
                    each.cursor.unsnapped_bytes -= each.snapped_bytes
        drop_checkpoints(self._files, keep={self.last.number, image.number})
        for path in self._doomed:
            # A file that can't be removed now is removed at the next start.
            with suppress(OSError):
                self._remove(path)
        self._doomed = doomed
        self._wal.release(self.last.ticket)
        self.last = image

    def _remove(self, path: str) -> None:
        if path.endswith("/"):
            self._files.remove_directory(path.rstrip("/"))
        else:
            self._files.unlink(path)


def _discard(logs: Iterable[Log]) -> None:
    """Discard what the checkpoint wrote. Files that can't be removed now are removed at the next start."""
    for log in logs:
        with suppress(OSError):
            log.discard()


def _copied(cursor: Cursor, copies: dict[int, Progress]) -> Progress:
    """A copy of the cursor's progress, made once for its log and its journal; nobody changes it."""
    copy = copies.get(cursor.journal.id)
    if copy is None:
        copy = copies[cursor.journal.id] = cursor.progress.copy()
    return copy


def _image(log: Log) -> LogImage:
    return LogImage(log.spec, log.next, log.reserved)


def plan_messages(log: Log, states: Sequence[Progress], now_us: int) -> Plan:
    """Return what retention would do with a log of messages, given the progress of its cursors."""
    if not log.segments:
        return Plan()
    last = log.segments[-1]
    views = [
        SegmentView(
            segment.info,
            unsettled=_unsettled(log, states, segment.info),
            sealed=segment is not last or log.is_full(segment),
        )
        for segment in log.segments
    ]
    return retention.plan(views, log.spec.retention, now_us)


def _unsettled(log: Log, states: Sequence[Progress], info: SegmentInfo) -> int:
    """Return how many messages of a segment a cursor has not settled: for a queue without cursors, all."""
    if not states:
        return 0 if log.spec.retention.keep_settled else info.rows
    counts = [state.unsettled_count(info.first, info.last + 1) for state in states]
    if len(counts) == 1 or max(counts) == 0 or max(counts) >= retention.REWRITE_BELOW * info.rows:
        return max(counts)
    return sum(stop - start for start, stop in log.live_ranges(info.first, info.last + 1, states))


def _live(log: Log, batches: Iterable[Batch], states: list[Progress]) -> Iterator[Batch]:
    """Yield the parts of batches that the log must keep, without messages that all cursors have settled."""
    for batch in batches:
        for start, stop in log.live_ranges(batch.first, batch.stop, states):
            yield batch.slice(start, stop)
