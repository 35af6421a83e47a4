"""Small things that the tests of the store are built from: a clock, a store of small sizes, messages."""

from collections.abc import Callable, Iterable, Sequence
from random import Random

from leveret.storage.files import Files
from leveret.storage.offset_set import Range
from leveret.storage.records import PERSISTENT, Batch, Message, size_of
from leveret.storage.store import Options, Store
from leveret.testing.disk import SimulatedDisk

SMALL = Options(
    wal_bytes=16 << 10,
    segment_bytes=4 << 10,
    memory_bytes=8 << 10,
    snapshot_bytes=600,
    reserve_ahead=50,
    reserve_bytes=0,
)


class Clock:
    """Stands still until it is told: `clock.now_us += 5`."""

    def __init__(self, now_us: int = 1_000_000) -> None:
        self.now_us = now_us

    def __call__(self) -> int:
        return self.now_us


def entropy(seed: int = 1) -> Callable[[], int]:
    random = Random(seed)
    return lambda: random.getrandbits(64)


def make_store(files: Files, clock: Callable[[], int] | None = None, *, options: Options = SMALL) -> Store:
    return Store(files, clock=clock or Clock(), entropy=entropy(), options=options)


def killed(disk: SimulatedDisk, clock: Callable[[], int] | None = None) -> Store:
    """Return the store that the next process opens after this one is killed."""
    return make_store(disk.restart(), clock)


def message(body: bytes, *, flags: int = PERSISTENT, priority: int = 0) -> Message:
    return Message(b"exchange", b"key", b"header", body, flags, priority)


def messages(
    n: int, *, first: int = 0, size: int = 0, flags: int = PERSISTENT, priority: int = 0
) -> list[Message]:
    """Messages whose bodies are numbers from `first` on, and `size` bytes more."""
    return [message(b"%d" % i + b"." * size, flags=flags, priority=priority) for i in range(first, first + n)]


def batch(first: int, n: int = 1, *, size: int = 0, time_us: int = 7, flags: int = PERSISTENT) -> Batch:
    """Return a batch whose bodies are the offsets."""
    made = messages(n, first=first, size=size, flags=flags)
    return Batch(first, time_us, made, size_of(made))


def offsets(ranges: Iterable[Range]) -> list[int]:
    return [offset for start, stop in ranges for offset in range(start, stop)]


def singles(numbers: Iterable[int]) -> list[Range]:
    return [(offset, offset + 1) for offset in numbers]


def runs(numbers: Sequence[int]) -> list[Range]:
    """Return ascending numbers as maximal runs."""
    found: list[Range] = []
    for offset in numbers:
        if found and found[-1][1] == offset:
            found[-1] = (found[-1][0], offset + 1)
        else:
            found.append((offset, offset + 1))
    return found
