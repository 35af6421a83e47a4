"""A writer that settles, deletes and rewrites all the time, and a reader in another process beside it.

This file is both: pytest runs the reader, which starts the file again as the writer. The writer works without
pause; for every byte on its standard input it answers with a view and what is settled in it. Views are read
at once, late (by then many of their files are gone), and slowly (files go after the read began). What is read
must be exactly what the view and the settled set say, each body made of its offset.
"""

import os
import pickle
import select
import subprocess
import sys
import time
from collections import Counter, deque
from itertools import chain
from random import Random

import pytest

from leveret.storage.ack_set import AckSet
from leveret.storage.files import OsFiles
from leveret.storage.log_view import LogView, SegmentGone
from leveret.storage.records import PERSISTENT, Message
from leveret.storage.store import Options, Store

SECONDS = 3.0
SECONDS_MAX = 60.0
"""Where the writer gets little of a processor."""
LATE = 12
"""How many views later, and that is at least as many checkpoints, a late one is read."""
ATTEMPTS = 50
STOP_S = 120
BACKLOG = 1_000
SMALL = Options(segment_bytes=8 << 10, wal_bytes=1 << 20, snapshot_bytes=4 << 10)


def body_of(offset: int) -> bytes:
    return b"%d." % offset * (1 + offset % 40)


def write(root: str) -> None:
    """The writer: until its standard input ends."""
    random = Random(1)
    store = Store(
        OsFiles(root),
        clock=lambda: time.time_ns() // 1000,
        entropy=lambda: random.getrandbits(64),
        options=SMALL,
    )
    log = store.create_log()
    cursor = store.create_cursor(log, "reader")
    held: deque[list[tuple[int, int]]] = deque()
    while True:
        messages = [
            Message(b"", b"k", b"", body_of(offset), PERSISTENT)
            for offset in range(log.next, log.next + random.randint(1, 100))
        ]
        store.append(log, messages)
        store.sync()
        runs = cursor.take(80, before=max(0, log.next - BACKLOG))
        taken = [(offset, offset + 1) for offset in chain.from_iterable(range(*run) for run in runs)]
        late = [each for each in taken if not random.randrange(25)]
        if taken:
            cursor.settle([each for each in taken if each not in late])
        held.append(late)  # settled much later: until then they keep their segments, which are rewritten
        if len(held) > 40 and (old := held.popleft()):
            cursor.settle(old)
        store.checkpoint()
        if select.select([0], [], [], 0)[0]:
            if not os.read(0, 1):
                return
            store.flush(log)
            answer = pickle.dumps((log.view(), cursor.progress.settled.encode()))
            os.write(1, len(answer).to_bytes(4, "little") + answer)


class Writer:
    """The other process, as the reader sees it."""

    def __init__(self, root: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, root], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def view(self) -> tuple[LogView, AckSet]:
        self._process.stdin.write(b"?")
        self._process.stdin.flush()
        size = int.from_bytes(self._process.stdout.read(4), "little")
        assert size, "the writer has ended"
        view, settled = pickle.loads(self._process.stdout.read(size))
        return view, AckSet.decode(settled)

    def stop(self) -> int:
        self._process.stdin.close()
        self._process.stdout.close()
        return self._process.wait(timeout=STOP_S)


@pytest.fixture
def writer(tmp_path):
    writer = Writer(str(tmp_path))
    yield writer
    assert writer.stop() == 0


def check(reader, view: LogView, settled: AckSet, before_reading=lambda: None) -> int:
    """Reads what is not settled; says how much that was. `SegmentGone` before anything was read, or never."""
    low = settled.low
    if low == view.stop:
        return 0
    batches = reader.read([(low, view.stop)], columns=["offset", "body"], settled=settled, batch_bytes=4096)
    before_reading()
    offsets, bodies = [], []
    for batch in batches:
        offsets += batch.column("offset").to_pylist()
        bodies += batch.column("body").to_pylist()
    assert offsets == list(chain.from_iterable(range(*run) for run in settled.unsettled(low, view.stop)))
    assert bodies == [body_of(offset) for offset in offsets]
    assert reader.damage == []
    return len(offsets)


def test_a_reader_beside_a_busy_writer_reads_exactly_what_its_view_names(tmp_path, writer):
    from leveret.storage.arrow import LogReader  # not for the writer: a broker has no pyarrow

    files = OsFiles(str(tmp_path), read_only=True)
    seen: Counter[str] = Counter()

    def let_it_work() -> None:
        for _ in range(LATE):
            writer.view()

    def read(view: LogView, settled: AckSet, before_reading=lambda: None) -> bool:
        try:
            with LogReader(files, view) as reader:
                seen["records"] += check(reader, view, settled, before_reading)
        except SegmentGone:
            seen["gone"] += 1
            return False
        seen["rewritten"] += sum(info.edition > 0 for info in view.segments)
        return True

    wanted = ("records", "gone", "rewritten", "unlinked while read")
    began = time.monotonic()
    while (lasted := time.monotonic() - began) < SECONDS or (
        lasted < SECONDS_MAX and not all(seen[what] for what in wanted)
    ):
        late = writer.view()
        let_it_work()
        read(*late)
        for _ in range(ATTEMPTS):
            view, settled = writer.view()
            if read(view, settled, let_it_work):
                break
        else:
            pytest.fail("new views, and each was too late")
        names = [f"{tmp_path}/{view.directory}/msgs.{info.name}" for info in view.segments]
        seen["unlinked while read"] += sum(not os.path.exists(name) for name in names)
    assert all(seen[what] for what in wanted), f"it did not happen, so the test shows nothing: {seen}"


if __name__ == "__main__":
    write(sys.argv[1])
