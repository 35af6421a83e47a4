"""How fast the broker is, beside RabbitMQ in the same minutes: `python -m bench.broker [--only NAME]`.

Runs are interleaved (RabbitMQ, Leveret, sink, RabbitMQ, ...), ratios are medians of the ratios within a
round; rates depend on the machine, broker CPU per message much less. The load comes from `bench.generator`,
in a process of its own; the sink is a broker that does nothing and shows the generator's ceiling. Nothing is
asserted about speed; a message that is lost, doubled, changed or out of order is an error. Raw results go to
`bench/results/broker.json`.
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
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.generator import Run
from bench.report import report, summarize
from bench.scenarios import SCENARIOS, Scenario
from bench.servers import Leveret, Missing, RabbitMQ, Server, Sink

RESULTS = Path(__file__).parent / "results" / "broker.json"
RUN_LIMIT_S = 180.0
SINK_MOST = 300_000
Measured = dict[str, Any]
Results = dict[str, dict[str, Any]]
Measure = Callable[[Run], Measured]


class Failed(Exception):
    """A run that the generator gave up, with its reason."""


def generate(server: Server, run: Run) -> Measured:
    """One run in a generator process."""
    given = {"host": server.host, "port": server.port, "pid": server.pid, "run": asdict(run)}
    command = [sys.executable, "-m", "bench.generator", json.dumps(given)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_LIMIT_S)
    except subprocess.TimeoutExpired:
        raise Failed(f"not finished after {RUN_LIMIT_S:.0f} s") from None
    if done.returncode:
        raise Failed(done.stderr.strip().splitlines()[-1])
    found: Measured = json.loads(done.stdout)
    return found


def against_sink(run: Run) -> Measured:
    with Sink(json.dumps(asdict(run))) as sink:
        return generate(sink, run)


class Contender:
    """Something to measure: it knows how many messages a run of it takes."""

    def __init__(self, name: str, measure: Measure, *, seconds: float) -> None:
        self.name = name
        self.measure = measure
        self._seconds = seconds
        self._lengths: dict[str, int] = {}

    def plays(self, scenario: Scenario) -> bool:
        return self.name != "sink" or scenario.run.kind not in ("transactions", "apart")

    def run(self, scenario: Scenario) -> Measured:
        if scenario.name not in self._lengths:
            warm_up = self.measure(scenario.run)
            rate = scenario.run.rate if scenario.run.kind == "paced" else warm_up["rate"]
            most = SINK_MOST if self.name == "sink" else scenario.most
            self._lengths[scenario.name] = min(most, int(rate * self._seconds))
        return self.measure(scenario.of_length(self._lengths[scenario.name]))


@contextmanager
def contenders(chosen: argparse.Namespace, profile: Path | None) -> Iterator[list[Contender]]:
    """Starts the brokers that are wanted and there."""
    wanted: list[Callable[[], Server]] = []
    if not (chosen.leveret_only or chosen.profile):
        wanted.append(RabbitMQ)
    if not chosen.rabbitmq_only:
        wanted.append(lambda: Leveret(profile))
    if chosen.beside:
        wanted.append(lambda: Leveret(source=chosen.beside))
    seconds = 0.5 if chosen.quick else 2.0
    with ExitStack() as stack:
        found = []
        for make in wanted:
            try:
                server = stack.enter_context(make())
            except Missing as reason:
                progress(f"without it: {reason}")
                continue
            found.append(Contender(server.name, lambda run, s=server: generate(s, run), seconds=seconds))  # type: ignore[misc]
        if not chosen.profile:
            found.append(Contender("sink", against_sink, seconds=seconds))
        yield found


def measure_all(found: list[Contender], scenarios: list[Scenario], rounds: int) -> Results:
    """Rounds outside, contenders inside: what is compared was measured within seconds of each other."""
    raw: dict[str, dict[str, list[Measured]]] = {s.name: {c.name: [] for c in found} for s in scenarios}
    for number in range(rounds):
        for scenario in scenarios:
            for contender in found:
                if contender.plays(scenario):
                    result = attempt(contender, scenario)
                    raw[scenario.name][contender.name].append(result)
                    progress(f"round {number + 1}, {scenario.name}, {contender.name}: {brief(result)}")
    return {
        s.name: {"title": s.title, "run": asdict(s.run), "runs": raw[s.name], **summarize(raw[s.name])}
        for s in scenarios
    }


def attempt(contender: Contender, scenario: Scenario) -> Measured:
    try:
        return contender.run(scenario)
    except Failed as reason:
        return {"error": str(reason)}


def brief(result: Measured) -> str:
    if "error" in result:
        return f"FAILED: {result['error']}"
    behind = f", consumers end at {result['behind']:.2f}" if "behind" in result else ""
    return f"{result['rate']:,.0f}/s, broker {result['broker_cpu_us']:.2f} µs a message{behind}"


def progress(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


def keep(results: Results) -> None:
    """Scenarios that were not measured this time stay as they were."""
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"scenarios": {}}
    kept["scenarios"].update(results)
    kept["machine"] = {
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(kept, indent=1) + "\n")


def arguments() -> argparse.Namespace:
    names = [scenario.name for scenario in SCENARIOS]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one short round; results are not kept")
    parser.add_argument("--only", action="append", choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--rounds", type=int, help="5, or 1 with --quick or --profile")
    parser.add_argument("--leveret-only", action="store_true", help="results are not kept")
    parser.add_argument("--rabbitmq-only", action="store_true", help="results are not kept")
    parser.add_argument("--beside", type=Path, metavar="DIR", help="measure the leveret in this folder, too")
    parser.add_argument("--profile", action="store_true", help="Leveret alone, under cProfile")
    parser.add_argument("--json", action="store_true", help="print the results as JSON, not as a table")
    return parser.parse_args()


def main() -> None:
    chosen = arguments()
    scenarios = [s for s in SCENARIOS if not chosen.only or s.name in chosen.only]
    rounds = chosen.rounds or (1 if chosen.quick or chosen.profile else 5)
    with tempfile.TemporaryDirectory(prefix="bench-profile-") as directory:
        profile = Path(directory) / "profile" if chosen.profile else None
        with contenders(chosen, profile) as found:
            results = measure_all(found, scenarios, rounds)
        if profile and profile.exists():
            pstats.Stats(str(profile)).sort_stats("tottime").print_stats(45)
    print(json.dumps(results, indent=1) if chosen.json else report(results))
    if any("error" in run for each in results.values() for runs in each["runs"].values() for run in runs):
        sys.exit(1)
    if not chosen.quick and {"rabbitmq", "leveret"} <= {contender.name for contender in found}:
        keep(results)


if __name__ == "__main__":
    main()
