"""One measured run of one client library, in a process of its own: what is to be done, and what it cost.

`python -m bench.client_job '{"client": "aio_pika", "task": "publish", ...}'` loads the one library that the
job names, lets it work and prints one JSON object. A library's module (`bench.client_aio_pika` and its
siblings) has a table `WAYS`: task, then way, then the function that does it; the first way of a task is the
library's best. What a way does before and after `with job.measured()` is not counted. Whether the messages
arrived or are gone is checked by `bench.client_queue`, from outside.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from bench.cpu import Cpu, Spent

BODY_BYTES = 100
DISTINCT_BODIES = 10_000
PAGE_BYTES = 4096


class Incomplete(Exception):
    """The client says that it is done, and not every message was confirmed or handled."""


@dataclass
class Job:
    """What one process is to do: so many messages of 100 bytes, persistent, through one queue."""

    client: str
    task: str
    """publish, consume, or flow (both at once)."""
    way: str
    host: str
    port: int
    pid: int
    """The broker's."""
    queue: str
    messages: int
    window: int = 1_000
    """Publishes without a confirm, at most."""
    sample_every: int = 0
    """Messages from one look at the memory to the next."""
    spent: Spent | None = None
    resident_bytes: list[int] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{self.host}:{self.port}/"

    def bodies(self) -> Iterator[bytes]:
        """As many as there are messages; the first bytes of neighbours differ."""
        distinct = [number.to_bytes(8, "big").ljust(BODY_BYTES, b".") for number in range(DISTINCT_BODIES)]
        return islice(cycle(distinct), self.messages)

    @contextmanager
    def measured(self) -> Iterator[None]:
        gc.collect()
        cpu = Cpu(self.pid)
        yield
        self.spent = cpu.spent()

    def sample(self, messages: int) -> None:
        """Looks at the memory when it is time to."""
        if self.sample_every and messages % self.sample_every == 0:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            self.resident_bytes.append(pages * PAGE_BYTES)

    def check(self, done: int) -> None:
        if done != self.messages:
            raise Incomplete(f"{self.client}, {self.way}: {done} of {self.messages} messages")

    def figures(self) -> dict[str, Any]:
        assert self.spent is not None, "the way measured nothing"
        each = self.spent.per_message(self.messages)
        found: dict[str, Any] = {
            "way": self.way,
            "messages": self.messages,
            "seconds": round(self.spent.wall_s, 3),
            "rate": round(self.messages / self.spent.wall_s, 1),
            "client_cpu_us": round(each["generator_cpu_us"], 3),
            "broker_cpu_us": round(each["broker_cpu_us"], 3),
            "others_cpu_share": round(each["others_cpu_share"], 3),
        }
        return {**found, "resident_bytes": self.resident_bytes} if self.resident_bytes else found


Way = Callable[[Job], None]
Ways = Mapping[str, Mapping[str, Way]]


def ways(client: str) -> Ways:
    """The table of a client library; `ImportError` when the library is not there."""
    found: Ways = import_module(f"bench.client_{client}").WAYS
    return found


def main() -> None:
    job = Job(**json.loads(sys.argv[1]))
    ways(job.client)[job.task][job.way](job)
    print(json.dumps(job.figures()))


if __name__ == "__main__":
    main()
