"""The toolkit beside aio-pika and pika, on the same broker: `python -m bench.client [--only TASK]`.

Confirmed publishes with at most 1,000 unconfirmed, and consuming with an ack for each; 100 bytes, persistent.
Every library runs in a process of its own and in its best way (`--ways` measures all of them), against
`leveret serve` and RabbitMQ. Runs are interleaved, ratios are medians of the ratios within a round. CPU time
is of the library's process: it tells more than the rate where the broker is what is waited for. `--memory`
sends ten million messages through the toolkit and watches its memory. Nothing is asserted about speed; a
message that is missing is an error. Raw results go to `bench/results/client.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import pstats
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.client_job import ways
from bench.client_queue import Miscounted, queue_for
from bench.client_report import failed, of_libraries, of_memory, of_ways, summarize
from bench.servers import Leveret, Missing, RabbitMQ, Server

RESULTS = Path(__file__).parent / "results" / "client.json"
RUN_LIMIT_S = 120.0
MEMORY_LIMIT_S = 3600.0
TASKS = ("publish", "consume")
CLIENTS = ("leveret", "aio_pika", "pika", "raw")
BROKERS: dict[str, Callable[[], Server]] = {"leveret": Leveret, "rabbitmq": RabbitMQ}
WARM_UP = 2_000
MOST = 500_000
PROFILED = 100_000
MEMORY_MESSAGES = 10_000_000
SAMPLES = 20
Measured = dict[str, Any]


class Failed(Exception):
    """A run that its process gave up, with its reason."""


@dataclass(frozen=True)
class Contender:
    """One library in one of its ways."""

    client: str
    way: str


def best(client: str, task: str) -> Contender:
    return Contender(client, next(iter(ways(client)[task])))


@dataclass
class Runner:
    """Runs contenders against one broker; it knows how many messages fill the time."""

    server: Server
    seconds: float
    lengths: dict[tuple[Contender, str], int] = field(default_factory=dict)

    def attempt(self, contender: Contender, task: str) -> Measured:
        try:
            return self.measure(contender, task)
        except (Failed, Miscounted) as reason:
            return {"error": str(reason)}

    def measure(self, contender: Contender, task: str) -> Measured:
        key = contender, task
        if key not in self.lengths:
            rate = self.run(contender, task, WARM_UP)["rate"]
            rate = self.run(contender, task, clamp(rate * self.seconds / 4))["rate"]
            self.lengths[key] = clamp(rate * self.seconds)
        return self.run(contender, task, self.lengths[key])

    def run(self, contender: Contender, task: str, messages: int, **more: Any) -> Measured:
        """One run in a process of its own."""
        limit_s = more.pop("limit_s", RUN_LIMIT_S)
        before = more.pop("before", [])
        with queue_for(self.server, task, messages) as queue:
            job = {
                "client": contender.client,
                "task": task,
                "way": contender.way,
                "host": self.server.host,
                "port": self.server.port,
                "pid": self.server.pid,
                "queue": queue,
                "messages": messages,
                **more,
            }
            return process([sys.executable, *before, "-m", "bench.client_job", json.dumps(job)], limit_s)


@dataclass(frozen=True)
class Contest:
    """Contenders that do the same task on the same broker, by the names that the report gives them."""

    title: str
    runner: Runner
    task: str
    contenders: dict[str, Contender]


def clamp(messages: float) -> int:
    return max(WARM_UP, min(MOST, int(messages)))


def process(command: list[str], limit_s: float) -> Measured:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        raise Failed(f"not finished after {limit_s:.0f} s") from None
    if done.returncode:
        raise Failed((done.stderr.strip().splitlines() or ["no reason given"])[-1])
    found: Measured = json.loads(done.stdout)
    return found


@contextmanager
def runners(names: list[str], seconds: float) -> Iterator[list[Runner]]:
    """Starts the brokers that are wanted and there."""
    with ExitStack() as stack:
        found = []
        for name in names:
            try:
                found.append(Runner(stack.enter_context(BROKERS[name]()), seconds))
            except Missing as reason:
                progress(f"without it: {reason}")
        yield found


def libraries(found: list[Runner], tasks: list[str]) -> list[Contest]:
    """Each library in its best way, for every task on every broker."""
    return [
        Contest(f"{task} on {runner.server.name}", runner, task, {c: best(c, task) for c in CLIENTS})
        for runner in found
        for task in tasks
    ]


def ways_of(client: str, found: list[Runner], tasks: list[str]) -> list[Contest]:
    """One library in all its ways."""
    return [
        Contest(
            f"{client}, {task} on {runner.server.name}",
            runner,
            task,
            {way: Contender(client, way) for way in ways(client)[task]},
        )
        for runner in found
        for task in tasks
    ]


def compare(contests: list[Contest], rounds: int) -> dict[str, dict[str, Any]]:
    """Rounds outside, contenders inside: what is compared was measured within seconds of each other."""
    raw: dict[str, dict[str, list[Measured]]] = {c.title: {n: [] for n in c.contenders} for c in contests}
    for number in range(1, rounds + 1):
        for contest in contests:
            for name, contender in contest.contenders.items():
                result = contest.runner.attempt(contender, contest.task)
                raw[contest.title][name].append(result)
                progress(f"round {number}, {contest.title}, {name}: {brief(result)}")
    return {
        c.title: {"task": c.task, "broker": c.runner.server.name, **summarize(raw[c.title])} for c in contests
    }


def watch_memory(runner: Runner, messages: int) -> Measured:
    every = messages // SAMPLES
    return runner.run(best("leveret", "flow"), "flow", messages, sample_every=every, limit_s=MEMORY_LIMIT_S)


def profile(runner: Runner, task: str) -> None:
    with tempfile.NamedTemporaryFile(prefix="bench-profile-") as file:
        before = ["-m", "cProfile", "-o", file.name]
        print(brief(runner.run(best("leveret", task), task, PROFILED, before=before)))
        pstats.Stats(file.name).sort_stats("tottime").print_stats(45)


def brief(result: Measured) -> str:
    if "error" in result:
        return f"FAILED: {result['error']}"
    return f"{result['rate']:,.0f}/s, {result['client_cpu_us']:.2f} µs a message"


def progress(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


def keep(part: str, results: dict[str, Any]) -> None:
    """What was not measured this time stays as it was."""
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    kept.setdefault(part, {}).update(results)
    kept["machine"] = {
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
        **{name: version(name) for name in ("aio-pika", "aiormq", "pika")},
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(kept, indent=1) + "\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one short round; results are not kept")
    parser.add_argument("--only", choices=TASKS, help="one of the two tasks")
    parser.add_argument("--broker", action="append", choices=list(BROKERS), help="both; leveret for --memory")
    parser.add_argument("--rounds", type=int, help="5, or 1 with --quick")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--ways", choices=CLIENTS, help="all ways of a library, beside each other")
    what.add_argument(
        "--memory", action="store_true", help=f"{MEMORY_MESSAGES:,} messages, out and in: minutes"
    )
    what.add_argument("--profile", action="store_true", help="the toolkit alone, under cProfile")
    return parser.parse_args()


def main() -> None:
    chosen = arguments()
    tasks = [chosen.only] if chosen.only else list(TASKS)
    rounds = chosen.rounds or (1 if chosen.quick else 5)
    brokers = chosen.broker or (["leveret"] if chosen.memory else list(BROKERS))
    with runners(brokers, 0.5 if chosen.quick else 2.0) as found:
        if chosen.profile:
            for task in tasks:
                profile(found[0], task)
            return
        if chosen.memory:
            messages = MEMORY_MESSAGES // 100 if chosen.quick else MEMORY_MESSAGES
            part, results = "memory", {r.server.name: watch_memory(r, messages) for r in found}
            text = of_memory(results)
        elif chosen.ways:
            part, results = "ways", compare(ways_of(chosen.ways, found, tasks), rounds)
            text = of_ways(results)
        else:
            part, results = "libraries", compare(libraries(found, tasks), rounds)
            text = of_libraries(results)
    print(text)
    if failed(results):
        sys.exit(1)
    if not chosen.quick:
        keep(part, results)


if __name__ == "__main__":
    main()
