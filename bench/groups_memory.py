"""What the broker remembers of a hole or a delivery in flight, in bytes: `python -m bench.groups_memory`.

The state of a cursor (`Progress`) and of the channels (`Unacked`, the deadlines) is brought about without a
broker around it, by the calls that the broker makes, and weighed object by object, in a process of its own.
Of twice as many messages as there shall be holes every second one is settled; the others are in flight, then
a tenth of them is sent back with a delay, and most of the rest comes back because members are lost.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections import deque

from leveret.broker.queues.deadlines import SentTags
from leveret.broker.sessions.unacked import Unacked
from leveret.storage.offset_set import Range
from leveret.storage.progress import Progress

LIMIT_S = 300.0
CHANNELS = 16
LOST = b"its member was lost"
SENT_BACK = b"sent back by its member"
DELAY_US = 3_600_000_000
TURN_US = 11_000
BATCH = 4096
GRAIN = 16


class State:
    """A cursor and the channels that hold what it has in flight."""

    def __init__(self, holes: int) -> None:
        self.progress = Progress()
        self.progress.extend(0, 2 * holes, [])
        self.share = 2 * holes // CHANNELS
        self.channels: list[Unacked[int]] = []
        self.sent_tags: list[deque[SentTags]] = []
        self.now_us = 1_700_000_000_000_000

    def take(self, count: int, *, batch: int) -> None:
        """One channel after the other takes messages, so many at a time, and acks every second one."""
        while count > 0:
            self.channels.append(Unacked())
            self.sent_tags.append(deque())
            share = min(count, self.share)
            self._take(self.channels[-1], self.sent_tags[-1], share, batch)
            count -= share

    def _take(self, unacked: Unacked[int], sent_tags: deque[SentTags], count: int, batch: int) -> None:
        tag = 1
        while tag <= count:
            ranges = self.progress.take(min(batch, count + 1 - tag), limit=1 << 62)
            taken = sum(stop - start for start, stop in ranges)
            unacked.add(tag, ranges, 0, now_us=self.now_us)
            if not sent_tags or not sent_tags[-1].extend(tag, taken):
                sent_tags.append(SentTags(self.now_us, tag, tag + taken))
            self.now_us += TURN_US
            acked = [
                run.offsets
                for each in range(tag, tag + taken)
                if each % 2 == 0
                for run in unacked.take(each, each)[0]
            ]
            if acked:
                self.progress.settle(acked)
            tag += taken

    def send_back(self, count: int) -> None:
        """So many go back with a delay, those of the first channels."""
        for channel in self.channels:
            runs = list(channel)[:count]
            for run in runs:
                channel.take(run.start, run.start)
                due_us = self.now_us + DELAY_US
                self.progress.give_back([run.offsets], not_before_us=due_us, why=SENT_BACK)
            count -= len(runs)

    def lose(self, *, but: int) -> int:
        """Channels are gone with what they hold until only so many are in flight; says how many are not."""
        ranges: list[Range] = []
        while sum(channel.count for channel in self.channels[:-1]) >= but:
            ranges += [run.offsets for run in self.channels.pop().take_all()]
            self.sent_tags.pop()
        self.progress.give_back(sorted(ranges), why=LOST)
        return len(ranges)


def weight(state: State) -> int:
    """Bytes of all that it is made of, as CPython's allocator hands them out. A few seconds per million."""
    seen: set[int] = set()
    pending: list[object] = [state]
    total = 0
    while pending:
        each = pending.pop()
        if id(each) not in seen and not isinstance(each, type):
            seen.add(id(each))
            total += -(-sys.getsizeof(each) // GRAIN) * GRAIN
            pending += gc.get_referents(each)
    return total


def weigh(holes: int) -> dict[str, float]:
    """Bytes each: in flight, sent back, come back; and all that is kept over all the holes."""
    state = State(holes)
    empty = weight(state)
    state.take(2 * holes, batch=BATCH)
    in_flight = weight(state)
    delayed = holes // 10
    state.send_back(delayed)
    with_delayed = weight(state)
    lost = state.lose(but=holes // 10)
    at_last = weight(state)
    few = holes // 20
    slow = State(few)
    slow.take(2 * few, batch=1)
    return {
        "holes": holes,
        "in_flight_bytes": (in_flight - empty) / holes,
        "in_flight_one_by_one_bytes": weight(slow) / few,
        "sent_back_bytes": (with_delayed - in_flight) / delayed,
        "come_back_bytes": (at_last - with_delayed) / lost,
        "hole_bytes": (at_last - empty) / holes,
    }


def in_process(holes: int) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.groups_memory", str(holes)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return {name: round(value, 1) for name, value in found.items()}


if __name__ == "__main__":
    print(json.dumps(weigh(int(sys.argv[1]))))
