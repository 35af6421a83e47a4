"""A query over a topic that others write to, while the broker is killed or loses power: its table is exact.

The query goes on as Spark does: it notes a batch before it reads it, commits, and settles with the next
request; its notes survive everything. The writer stages rows and commits or aborts them.
"""

from __future__ import annotations

from collections import Counter
from itertools import count
from random import Random

import pytest

from leveret.flight import actions
from leveret.flight.actions import At
from leveret.flight.tickets import unpack_ranges
from leveret.testing.broker import Broker
from leveret.testing.clock import VirtualClock
from tests.fronts.flight.bulk_requests import WRITER, Asking

pytestmark = pytest.mark.real

TOPIC = ("/", "s", True)
STEPS = 80


class History:
    """`step()` does something; `finish()` says whether the table is what was written."""

    def __init__(self, seed: int, broker: Broker) -> None:
        self.random = Random(seed)
        self.asking = Asking(broker)
        self.streams = 2
        self.asking.declare(self.streams)
        self.rows = count()
        self.expected: Counter[bytes] = Counter()
        self.table: Counter[bytes] = Counter()
        self.batch = 0
        self.staged: dict[str, list[bytes]] = {}
        """The stages of the present batch, and their rows."""
        self.committed: dict[str, int] = {}
        self.planned: dict[str, tuple[int, int]] | None = None
        self.noted: list[bytes] | None = None
        self.epoch = 0
        self.begin()

    def step(self) -> None:
        does = self.publish, self.stage, self.end, self.plan, self.plan, self.commit, self.crash, self.begin
        chosen = self.random.choices((*does, self.grow), weights=(6, 3, 3, 4, 4, 5, 2, 1, 1))
        chosen[0]()

    # those who write

    def publish(self) -> None:
        rows = self._new_rows()
        self.asking.publish(*rows, key=self._key())
        self.expected.update(rows)

    def stage(self) -> None:
        rows = self._new_rows()
        stage = f"task {len(self.staged)}"
        assert self.asking.stage(self.batch, rows, key=self._key(), stage=stage) == actions.Done()
        self.staged[stage] = rows

    def end(self) -> None:
        """Commits some of what is staged, or aborts it."""
        known, self.staged = self.staged, {}
        chosen = [stage for stage in known if self.random.random() < 0.7]
        if chosen and self.random.random() < 0.7:
            for _ in range(self.random.randint(1, 2)):
                self.asking(actions.Commit("/", WRITER, self.batch, chosen))
            for stage in chosen:
                self.expected.update(known[stage])
        else:
            self.asking(actions.Abort("/", WRITER, self.batch, []))
        self.batch += 1

    def grow(self) -> None:
        self.streams = min(self.streams + 1, 4)
        self.asking.declare(self.streams)

    # the query

    def begin(self) -> None:
        """A new run; the first begins with what is there."""
        followed = self.asking(actions.Follow(*TOPIC, query="q", at=At("first")))
        self.epoch = followed.epoch
        if not self.committed:
            self.committed = {place.stream: place.offset for place in followed.places}

    def plan(self) -> None:
        """The next batch, or the one that is under way once more: it has the same rows."""
        if self.planned is None:
            self.planned = self._next()
        if self.planned is not None:
            found = self._read(self.planned)
            assert self.noted is None or found == self.noted
            self.noted = found

    def commit(self) -> None:
        if self.noted is not None and self.planned is not None:
            self.table.update(self.noted)
            self.committed |= {stream: stop for stream, (_, stop) in self.planned.items()}
            self.planned = self.noted = None

    def crash(self) -> None:
        self.asking.crash(self.random.choice((None, self.random)))

    def _next(self) -> dict[str, tuple[int, int]] | None:
        most = self.random.choice((None, 3, 10))
        size = self.random.choice((None, None, 20))
        request = actions.Advance(
            *TOPIC, query="q", epoch=self.epoch, offsets=self.committed, max_messages=most, max_bytes=size
        )
        advanced = self.asking(request)
        assert all(each.gone_below == 0 for each in advanced.stretches)
        spans = {each.stream: (each.start, each.stop) for each in advanced.stretches}
        return spans if any(start < stop for start, stop in spans.values()) else None

    def _read(self, spans: dict[str, tuple[int, int]]) -> list[bytes]:
        request = actions.Cover(*TOPIC, query="q", epoch=self.epoch, spans=spans)
        found = []
        for part in self.asking(request).parts:
            log = self.asking.stream(part.stream).log
            found += [record.body for record in log.read(unpack_ranges(part.ranges))]
        return found

    def finish(self) -> None:
        self.asking(actions.Abort("/", WRITER, self.batch, []))
        for _ in range(1000):
            self.plan()
            if self.planned is None:
                break
            self.commit()
        assert self.table == self.expected
        assert self.asking.lag("q", "s") == 0

    # inside

    def _new_rows(self) -> list[bytes]:
        return [b"row %d" % next(self.rows) for _ in range(self.random.randint(1, 6))]

    def _key(self) -> str:
        return f"s{self.random.randrange(self.streams)}"


@pytest.mark.histories(sample=4, full=4)
def test_the_table_of_a_query_is_exact_whatever_happens(seed):
    with Broker(clock=VirtualClock()) as broker:
        history = History(seed, broker)
        for _ in range(STEPS):
            history.step()
        history.finish()
        assert sum(history.table.values()) > 20
