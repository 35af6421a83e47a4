"""A process that writes to a store until it is killed, and says on its output what it was promised.

One thread collects: it appends, takes and settles. The other syncs and checkpoints, and reports what has been
released: the shape of a broker's group commit. Lines are whole or not at all for a reader that waits for the
end of the line:

    open                    the store is open
    issued <start> <stop>   these offsets were given out, whatever becomes of them
    sent <offset> <body>    released: it must be there from now on
    settled <offset>        released: it must not come back
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from random import Random, SystemRandom

from leveret.storage.files import OsFiles
from leveret.storage.records import PERSISTENT, Message
from leveret.storage.store import Options, Store

OPTIONS = Options(
    wal_bytes=64 << 10, segment_bytes=16 << 10, memory_bytes=32 << 10, snapshot_bytes=2000, reserve_ahead=300
)
READER = "reader"
WAITING_MAX = 200


def open_store(directory: str) -> Store:
    return Store(
        OsFiles(directory),
        clock=lambda: time.time_ns() // 1000,
        entropy=lambda: SystemRandom().getrandbits(64),
        options=OPTIONS,
    )


class Writer:
    def __init__(self, directory: str, seed: int) -> None:
        self.random = Random(seed)
        self.name = f"{seed}"
        self.serial = 0
        self.waiting: deque[tuple[int, list[str]]] = deque()
        self.output = threading.Lock()
        self.store = open_store(directory)
        logs = list(self.store.logs.values())
        self.log = logs[0] if logs else self.store.create_log()
        if READER not in self.store.cursors(self.log.id):
            self.store.create_cursor(self.log, READER)
        self.say(["open"])

    def run(self) -> None:
        threading.Thread(target=self.sync, daemon=True).start()
        while True:
            self.append()
            self.settle()
            while len(self.waiting) > WAITING_MAX:
                time.sleep(0.001)

    def append(self) -> None:
        messages = []
        for _ in range(self.random.randrange(1, 20)):
            self.serial += 1
            body = f"{self.name}-{self.serial:06d}-".encode() + b"x" * self.random.choice([0, 100, 900])
            messages.append(Message(b"", b"key", b"", body, PERSISTENT))
        start, stop = self.store.append(self.log, messages)
        self.say([f"issued {start} {stop}"])
        lines = [f"sent {offset} {m.body.decode()}" for offset, m in enumerate(messages, start)]
        self.waiting.append((self.store.ticket, lines))

    def settle(self) -> None:
        cursor = self.store.cursors(self.log.id)[READER]
        for start, stop in cursor.take(self.random.randrange(20), who=b"consumer"):
            kept = start if self.random.random() < 0.2 else stop
            if start < kept:
                ticket = cursor.settle([(start, kept)])
                self.waiting.append((ticket, [f"settled {o}" for o in range(start, kept)]))

    def sync(self) -> None:
        while True:
            released = self.store.sync()
            while self.waiting and self.waiting[0][0] <= released:
                self.say(self.waiting.popleft()[1])
            if self.store.checkpoint_due:
                self.store.checkpoint()

    def say(self, lines: list[str]) -> None:
        with self.output:
            sys.stdout.write("".join(f"{line}\n" for line in lines))
            sys.stdout.flush()


if __name__ == "__main__":
    Writer(sys.argv[1], int(sys.argv[2])).run()
