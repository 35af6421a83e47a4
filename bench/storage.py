"""How fast and how large the store is: `make bench`, or `python -m bench.storage [name ...]`.

Ratios are taken between interleaved runs in this one process, medians over the repetitions; absolute rates
depend on the machine. Raw results go to `bench/results/storage.json`, the table is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import Struct

from xxhash import xxh3_64_intdigest

from leveret.storage.files import OsFiles
from leveret.storage.journal import Outcome
from leveret.storage.log import Log
from leveret.storage.records import PERSISTENT, Message
from leveret.storage.store import Store

RESULTS = Path(__file__).parent / "results" / "storage.json"
REPETITIONS = 7
ROW = Struct("<QQIIIBBBB")


def clock_us() -> int:
    return time.time_ns() // 1000


def open_store(directory: str) -> Store:
    return Store(OsFiles(directory), clock=clock_us, entropy=lambda: random.getrandbits(64))


@contextmanager
def temporary_store() -> Iterator[tuple[Store, str]]:
    with temporary_directory() as directory:
        yield open_store(directory), directory


@contextmanager
def temporary_directory() -> Iterator[str]:
    directory = tempfile.mkdtemp(prefix="leveret-bench-")
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


def messages(count: int, size: int) -> list[Message]:
    header = os.urandom(14)
    return [Message(b"orders", b"eu.de.berlin", header, os.urandom(size), PERSISTENT) for _ in range(count)]


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def progress(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


# append


def append() -> dict[str, object]:
    """Batches of 1,000: `append` alone (what a caller waits for), and with the writing of the segment."""
    results: dict[str, object] = {}
    for size, batches in ((100, 100), (1024, 30)):
        batch = messages(1000, size)
        runs: dict[str, list[float]] = {
            "bare loop": [],
            "one write": [],
            "append": [],
            "append and write": [],
        }
        for _ in range(REPETITIONS):
            for name, seconds in append_once(batch, batches).items():
                runs[name].append(seconds / batches / len(batch) * 1e6)
        medians = {name: statistics.median(values) for name, values in runs.items()}
        reference = "bare loop" if size == 100 else "one write"
        results[f"{size} B"] = {
            "us_per_message": runs,
            "medians": medians,
            f"append / {reference}": medians[reference] / medians["append"],
            f"append and write / {reference}": medians[reference] / medians["append and write"],
        }
    return results


def append_once(batch: list[Message], batches: int) -> dict[str, float]:
    with temporary_store() as (store, directory):
        log = store.create_log()
        store.create_cursor(log, "queue")
        store.prepare(log, batches * len(batch))
        bare = timed(lambda: bare_loop(directory, batch, batches))
        one_write = timed(lambda: single_writes(directory, batch, batches))

        def run() -> None:
            for _ in range(batches):
                store.append(log, batch)

        appended = timed(run)
        written = timed(lambda: store.flush(log))
    return {
        "bare loop": bare,
        "one write": one_write,
        "append": appended,
        "append and write": appended + written,
    }


def bare_loop(directory: str, batch: list[Message], batches: int) -> None:
    """Packs, checksums and writes the same bytes, and nothing else."""
    descriptor = os.open(f"{directory}/bare", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    offset = position = 0
    for _ in range(batches):
        parts = []
        for message in batch:
            data = message.exchange + message.routing_key + message.header + message.body
            row = ROW.pack(
                offset,
                0,
                position,
                len(message.body),
                len(message.header),
                len(message.exchange),
                len(message.routing_key),
                message.flags,
                message.priority,
            )
            parts.append(row)
            parts.append(xxh3_64_intdigest(row + data).to_bytes(8, "little"))
            parts.append(data)
            offset += 1
        block = b"".join(parts)
        os.pwrite(descriptor, block, position)
        position += len(block)
    os.close(descriptor)


def single_writes(directory: str, batch: list[Message], batches: int) -> None:
    block = b"".join(bytes(40) + m.exchange + m.routing_key + m.header + m.body for m in batch)
    descriptor = os.open(f"{directory}/one", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    for number in range(batches):
        os.pwrite(descriptor, block, number * len(block))
    os.close(descriptor)


# group commit


def group_commit() -> dict[str, object]:
    """Rounds a second with the same load on 1 to 1,000 logs; a checkpoint runs beside it when it is due."""
    results: dict[str, object] = {}
    for load in (5, 10, 100, 1000):
        runs: dict[int, list[float]] = {1: [], 10: [], 100: [], 1000: []}
        syncs: dict[int, list[float]] = {1: [], 10: [], 100: [], 1000: []}
        with temporary_directory() as root:
            shops = {count: Shop(f"{root}/{count}", count, load) for count in runs}
            for _ in range(REPETITIONS):
                for count, shop in shops.items():
                    runs[count].append(shop.rounds_per_second(0.8))
                    syncs[count].append(statistics.median(shop.sync_us))
            for shop in shops.values():
                shop.close()
        medians = {count: statistics.median(values) for count, values in runs.items()}
        results[f"{load} messages a round"] = {
            "rounds_per_second": runs,
            "sync_us": syncs,
            "medians": medians,
            "median us in sync": {count: statistics.median(values) for count, values in syncs.items()},
            "slowest / fastest": min(medians.values()) / max(medians.values()),
        }
        progress(f"group commit, {load} messages a round: {medians}")
    return results


class Shop:
    """A store with so many logs, and a load of so many messages dealt to them in turn."""

    def __init__(self, directory: str, logs: int, load: int) -> None:
        os.mkdir(directory)
        self.store = open_store(directory)
        self.logs = [self.store.create_log() for _ in range(logs)]
        for log in self.logs:
            self.store.create_cursor(log, "queue")
            self.store.prepare(log, load)
        self.messages = messages(load, 100)
        self.at = 0
        self.checkpoint: threading.Thread | None = None

    def rounds_per_second(self, seconds: float) -> float:
        rounds = 0
        self.sync_us: list[float] = []
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            self.round()
            rounds += 1
        return rounds / (time.perf_counter() - began)

    def close(self) -> None:
        if self.checkpoint:
            self.checkpoint.join()
        self.store.close()

    def round(self) -> None:
        count = len(self.logs)
        each = max(1, len(self.messages) // count)
        transaction = self.store.transaction()
        for start in range(0, len(self.messages), each):
            transaction.append(self.logs[self.at % count], self.messages[start : start + each])
            self.at += 1
        transaction.commit()
        self.sync_us.append(timed(self.store.sync) * 1e6)
        if self.store.checkpoint_due and not (self.checkpoint and self.checkpoint.is_alive()):
            self.checkpoint = threading.Thread(target=self.store.checkpoint)
            self.checkpoint.start()


# recovery


def recovery() -> dict[str, object]:
    """Opening after a kill: 100 B messages, one in a hundred settled, some of it only in the WAL."""
    runs: dict[int, list[float]] = {250_000: [], 500_000: [], 1_000_000: [], 2_000_000: []}
    for count in runs:
        with temporary_directory() as directory:
            in_child("fill", directory, str(count))
            for _ in range(3):
                copy = directory + "-copy"
                subprocess.run(["cp", "-r", "--sparse=never", directory, copy], check=True)
                try:
                    runs[count].append(json.loads(in_child("open", copy))["seconds"])
                finally:
                    shutil.rmtree(copy)
        progress(f"recovery of {count:,}: {runs[count]}")
    return {"seconds": runs, "medians": {count: statistics.median(values) for count, values in runs.items()}}


def memory() -> dict[str, object]:
    """Anonymous memory of a process that has opened a backlog of 10 million messages."""
    with temporary_directory() as directory:
        in_child("fill", directory, "10000000")
        found: dict[str, object] = json.loads(in_child("open", directory))
        return found


def fill(directory: str, count: int) -> None:
    """Leaves a log of `count` messages with every hundredth settled, as a killed process would."""
    store = open_store(directory)
    log = store.create_log()
    cursor = store.create_cursor(log, "queue")
    store.sync()
    batch = messages(1000, 100)
    for number in range(count // 1000):
        store.append(log, batch)
        store.sync()
        if store.checkpoint_due:
            store.checkpoint()
        start = number * 1000
        cursor.drop([(offset, offset + 1) for offset in range(start, start + 1000, 100)], Outcome.SKIPPED)
    store.sync()
    os._exit(0)


def open_and_report(directory: str) -> None:
    began = time.perf_counter()
    store = open_store(directory)
    seconds = time.perf_counter() - began
    (log,) = store.logs.values()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    print(
        json.dumps(
            {
                "seconds": seconds,
                "messages": store.cursors(log.id)["queue"].progress.ready,
                "rss_anon_mb": int(status["RssAnon"].split()[0]) / 1024,
            }
        )
    )
    os._exit(0)


def in_child(*arguments: str) -> str:
    command = [sys.executable, "-m", "bench.storage", "--child", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


# settle


def settle() -> dict[str, object]:
    """Settlements, journalled: random ones in batches of 1,000; take and settle in order by 100."""
    runs: dict[str, list[float]] = {"random by 1,000": [], "in order by 100": []}
    for seed in range(REPETITIONS):
        runs["random by 1,000"].append(settle_random(random.Random(seed)))
        runs["in order by 100"].append(settle_in_order())
    medians = {name: statistics.median(values) for name, values in runs.items()}
    return {"million_per_second": runs, "medians": medians}


def backlog(store: Store, count: int) -> Log:
    log = store.create_log()
    store.create_cursor(log, "queue")
    store.sync()
    batch = messages(1000, 10)
    for _ in range(count // 1000):
        store.append(log, batch)
    store.checkpoint()
    return log


def settle_random(chance: random.Random, count: int = 500_000) -> float:
    with temporary_store() as (store, _):
        cursor = store.cursors(backlog(store, count).id)["queue"]
        while cursor.take(count):
            store.sync()
        offsets = list(range(count))
        chance.shuffle(offsets)
        batches = [[(o, o + 1) for o in offsets[at : at + 1000]] for at in range(0, count, 1000)]

        def run() -> None:
            for number, ranges in enumerate(batches):
                cursor.settle(ranges, Outcome.ACKED, who=b"consumer")
                if number % 50 == 49:
                    store.sync()

        return count / timed(run) / 1e6


def settle_in_order(count: int = 500_000) -> float:
    with temporary_store() as (store, _):
        cursor = store.cursors(backlog(store, count).id)["queue"]

        def run() -> None:
            for number in range(count // 100):
                cursor.settle(cursor.take(100, who=b"consumer"), Outcome.ACKED, who=b"consumer")
                if number % 100 == 99:
                    store.sync()

        seconds = timed(run)
        assert cursor.progress.low == count
        return count / seconds / 1e6


# Arrow


def to_arrow() -> dict[str, object]:
    """From the page cache to record batches: all columns, and offset and body alone."""
    from leveret.storage.arrow import LogReader

    count = 1_000_000
    runs: dict[str, list[float]] = {"all columns": [], "offset and body": []}
    with temporary_store() as (store, directory):
        log = store.create_log()
        store.sync()
        batch = messages(1000, 100)
        for _ in range(count // 1000):
            store.append(log, batch)
        store.flush(log)
        columns = {"all columns": None, "offset and body": ("offset", "body")}
        for _ in range(REPETITIONS):
            for name, chosen in columns.items():
                with LogReader(OsFiles(directory, read_only=True), log.view()) as reader:
                    arguments = {"columns": chosen} if chosen else {}
                    seconds = timed(lambda r=reader, a=arguments: drain(r, count, a))
                runs[name].append(count / seconds / 1e6)
    medians = {name: statistics.median(values) for name, values in runs.items()}
    return {"million_per_second": runs, "medians": medians}


def drain(reader: object, count: int, arguments: dict[str, object]) -> None:
    rows = sum(batch.num_rows for batch in reader.read([(0, count)], **arguments))  # type: ignore[attr-defined]
    assert rows == count


# large bodies


def large_bodies() -> dict[str, object]:
    """Write and sync of one body: in a recycled file, as the WAL does it, and in a growing one, as a log."""
    results: dict[str, object] = {}
    for size, count in ((64 << 10, 100), (1 << 20, 40), (8 << 20, 10)):
        runs: dict[str, list[float]] = {"recycled": [], "growing": []}
        for _ in range(REPETITIONS):
            with temporary_directory() as directory:
                for name in runs:
                    runs[name].append(
                        write_and_sync(f"{directory}/{name}", size, count, prepare=name == "recycled")
                    )
        medians = {name: statistics.median(values) for name, values in runs.items()}
        results[f"{size >> 10} KiB"] = {"milliseconds": runs, "medians": medians}
    return results


def write_and_sync(path: str, size: int, count: int, *, prepare: bool) -> float:
    body = os.urandom(size)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    if prepare:
        for number in range(count):
            os.pwrite(descriptor, bytes(size), number * size)
        os.fsync(descriptor)
    taken = []
    for number in range(count):
        began = time.perf_counter()
        os.pwrite(descriptor, body, number * size)
        os.fdatasync(descriptor)
        taken.append((time.perf_counter() - began) * 1e3)
    os.close(descriptor)
    return statistics.median(taken)


# many files


def many_files() -> dict[str, object]:
    """Syncing 1,000 small files that have grown: one by one, and with the whole file system."""
    runs: dict[str, list[float]] = {"one by one": [], "file system": []}
    with temporary_directory() as directory:
        files = OsFiles(directory)
        lock = files.lock("lock")
        names = [f"f{number}" for number in range(1000)]
        for repetition in range(3):
            for name, step in (("one by one", 4), ("file system", len(names))):
                grow(files, names, repetition * 2 + (step > 4))
                parts = [names[at : at + step] for at in range(0, len(names), step)]
                runs[name].append(timed(lambda p=parts: [files.sync_all(part) for part in p]))
        lock.release()
    return {"seconds": runs, "medians": {name: statistics.median(values) for name, values in runs.items()}}


def grow(files: OsFiles, names: list[str], by: int) -> None:
    for name in names:
        with files.open(name, create=True) as file:
            file.write(bytes(400), by * 400)


BENCHES: dict[str, Callable[[], dict[str, object]]] = {
    "append": append,
    "group commit": group_commit,
    "recovery": recovery,
    "settle": settle,
    "arrow": to_arrow,
    "memory": memory,
    "large bodies": large_bodies,
    "many files": many_files,
}
CHILDREN: dict[str, Callable[..., None]] = {
    "fill": lambda directory, count: fill(directory, int(count)),
    "open": open_and_report,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"which: {', '.join(BENCHES)} (all when none is named)")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        CHILDREN[chosen.child[0]](*chosen.child[1:])
        return
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in chosen.names or BENCHES:
        print(f"{name}", file=sys.stderr, flush=True)
        kept[name] = BENCHES[name]()
        print(json.dumps({name: summary(kept[name])}, indent=2))
    kept["machine"] = {
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(kept, indent=1) + "\n")


def summary(result: object) -> object:
    """A result without its raw runs."""
    if not isinstance(result, dict):
        return round(result, 3) if isinstance(result, float) else result
    return {
        key: summary(value)
        for key, value in result.items()
        if not isinstance(value, dict) or not is_raw(value)
    }


def is_raw(value: dict[object, object]) -> bool:
    return any(isinstance(each, list) for each in value.values())


if __name__ == "__main__":
    main()
