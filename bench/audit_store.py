"""A data directory as a broker leaves it, with as many messages as are wanted, to be audited.

Made with the store itself, which is what the broker writes through, and with entries of the size that a busy
broker writes: appends of some hundreds, deliveries of up to a prefetch, settlements in the pieces in which
acks come, out of their order; some messages come back once, some die, some are never settled. All follows
from the seed, and the figures that the audit must find are returned.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from leveret.storage.cursor import Cursor
from leveret.storage.files import OsFiles
from leveret.storage.journal import Outcome
from leveret.storage.offset_set import Range
from leveret.storage.records import PERSISTENT, Message
from leveret.storage.store import Store

APPEND = 500
PREFETCH = 300
CONSUMERS = 8
WINDOW_US = 86_400_000_000
START_US = 1_800_000_000_000_000


@dataclass
class Expected:
    """By queue: what was done with its messages."""

    published: int = 0
    acked: int = 0
    rejected: int = 0
    returned: int = 0
    open: list[Range] = field(default_factory=list)


def make(place: Path, *, queues: int, messages: int, seed: int = 1) -> dict[str, Expected]:
    """So many messages in all."""
    random = Random(seed)
    clock = _Clock()
    store = Store(OsFiles(str(place)), clock=clock, entropy=lambda: random.getrandbits(64))
    found = {}
    for number in range(queues):
        name = f"queue-{number}"
        label = json.dumps(["/", name, False, "00000000"])
        log = store.create_log(label=label)
        cursor = store.create_cursor(log, "queue", audit_us=WINDOW_US)
        store.sync()
        found[name] = _fill(store, cursor, clock, random, messages // queues)
    store.close()
    return found


class _Clock:
    """Goes on by a little with every step."""

    def __init__(self) -> None:
        self.now_us = START_US

    def __call__(self) -> int:
        return self.now_us


def _fill(store: Store, cursor: Cursor, clock: _Clock, random: Random, messages: int) -> Expected:
    header = b"\x00" * 14 + random.randbytes(16)
    batch = [Message(b"orders", b"orders.eu", header, random.randbytes(100), PERSISTENT)] * APPEND
    expected = Expected()
    log = cursor.log
    for first in range(0, messages, APPEND):
        start, stop = store.append(log, batch[: messages - first])
        expected.published += stop - start
        published_us = clock.now_us
        clock.now_us += random.randrange(500, 3_000)
        store.sync()
        cursor.note_synced([(start, stop)], published_us=published_us, exchange=b"orders")
        clock.now_us += random.randrange(200, 1_000)
        while taken := cursor.take(
            PREFETCH, who=b"10.0.0.7:50000 (1) worker-%d" % random.randrange(CONSUMERS)
        ):
            _work(cursor, taken, clock, random, expected)
        if store.checkpoint_due:
            store.checkpoint()
    return expected


def _work(cursor: Cursor, taken: list[Range], clock: _Clock, random: Random, expected: Expected) -> None:
    """Acks in the pieces in which they come; a few messages otherwise."""
    pieces = []
    for start, stop in taken:
        while start < stop:
            end = min(stop, start + random.choice((1, 1, 1, 2, 5, 20, 60)))
            pieces.append((start, end))
            start = end
    random.shuffle(pieces)
    for at in range(0, len(pieces), 8):
        some = pieces[at : at + 8]
        clock.now_us += random.randrange(20, 400)
        fate = random.random()
        count = sum(stop - start for start, stop in some)
        if fate < 0.01 and cursor.returns.count(some[0][0]) == 0:
            cursor.give_back(some, who=b"")
            expected.returned += count
        elif fate < 0.02:
            cursor.settle(some, Outcome.REJECTED)
            expected.rejected += count
        elif fate < 0.0205 and len(expected.open) < 1000:
            expected.open += some
        else:
            cursor.settle(
                some, Outcome.ACKED, who=b"10.0.0.7:50000 (1) worker-%d" % random.randrange(CONSUMERS)
            )
            expected.acked += count


def timed(place: Path, *, queues: int, messages: int) -> tuple[dict[str, Expected], float]:
    began = time.perf_counter()
    return make(place, queues=queues, messages=messages), time.perf_counter() - began
