"""What the audit costs: `python -m bench.audit [--only PART] [--quick]`.

Three parts. *audit*: how long `leveret audit` takes over a data directory with ten million messages, beside
one with a tenth of that, and how much memory its driver needs; its figures must be those of the messages
that were made. *window*: what `x-audit-window` costs the broker in CPU for each message, in interleaved runs
on one broker. *pipeline*: a declared pipeline beside the same code written by hand, which is
`bench.pipelines`. Nothing is asserted about speed, but the report says which bars are met. Raw results go to
`bench/results/audit.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench import pipelines
from bench.audit_store import Expected, timed
from bench.broker import generate
from bench.cpu import process_tree
from bench.generator import Run
from bench.report import number, table
from bench.servers import Leveret

RESULTS = Path(__file__).parent / "results" / "audit.json"
AUDIT_S, AUDIT_MESSAGES = 120.0, 10_000_000
WINDOW_BAR = PIPELINE_BAR = 1.10
WINDOWED = {"x-audit-window": 3_600_000}
WITH_BODIES = {**WINDOWED, "x-audit-bodies": True}
Measured = dict[str, Any]


# the audit


def audit(*, quick: bool) -> Measured:
    whole = 200_000 if quick else AUDIT_MESSAGES
    return {"tenth": _audited(whole // 10), "whole": _audited(whole)}


def _audited(messages: int) -> Measured:
    with tempfile.TemporaryDirectory(prefix="bench-audit-") as place:
        data, out = Path(place) / "data", Path(place) / "out"
        progress(f"audit: making {messages:,} messages")
        expected, made_s = timed(data, queues=4, messages=messages)
        size = sum(each.stat().st_size for each in data.rglob("*") if each.is_file())
        command = [sys.executable, "-m", "leveret", "audit", "--data", str(data), "--out", str(out), "--json"]
        began = time.perf_counter()
        with (
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running,
            Memory(running.pid) as peak,
        ):
            said, _ = running.communicate(timeout=900)
        took_s = time.perf_counter() - began
        if running.returncode:
            raise SystemExit(f"the audit does not hold: {said[:2000]}")
        check(json.loads(said), expected)
        found = {
            "messages": messages,
            "seconds": round(took_s, 1),
            "python_mib": peak.python_mib,
            "java_mib": peak.java_mib,
            "data_mib": size >> 20,
            "made_s": round(made_s, 1),
        }
        progress(f"audit: {found}")
        return found


def check(findings: Measured, expected: dict[str, Expected]) -> None:
    """The figures are those of what was made."""
    for account in findings["queues"]:
        made = expected[account["queue"]]
        still_open = sum(stop - start for start, stop in made.open)
        wanted = (made.published, made.acked, made.rejected, made.returned, still_open, 0)
        found = (
            account["published"],
            account["outcomes"].get("acked", 0),
            account["outcomes"].get("rejected", 0),
            account["returns"],
            account["in_flight"],
            account["lost"],
        )
        if found != wanted:
            raise SystemExit(f"the audit is wrong about {account['queue']}: {found}, and not {wanted}")


class Memory:
    """The most that a process and its Java have had resident, looked at several times a second."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self.python_mib = self.java_mib = 0

    def __enter__(self) -> Memory:
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._watcher.join()

    def _watch(self) -> None:
        while not self._over.wait(0.2):
            self.python_mib = max(self.python_mib, resident_mib(self._pid))
            java = [pid for pid in process_tree(self._pid) if name_of(pid) == "java"]
            self.java_mib = max([self.java_mib, *map(resident_mib, java)])


def resident_mib(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) >> 10 for line in lines if line.startswith("VmRSS")), 0)


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


# the window


def window(*, quick: bool) -> Measured:
    """Each round goes through the kinds and back, so that a machine that grows slower favours none."""
    rounds, messages = (1, 20_000) if quick else (7, 400_000)
    run = Run("stream", messages=messages)
    kinds = {"plain": run, "window": replace(run, arguments=WINDOWED)}
    kinds["window, bodies kept"] = replace(run, arguments=WITH_BODIES)
    found: dict[str, list[Measured]] = {name: [] for name in kinds}
    with Leveret() as server:
        for each in kinds.values():
            generate(server, replace(each, messages=20_000))
        for turn in range(rounds):
            for name in [*kinds, *reversed(kinds)]:
                result = generate(server, kinds[name])
                found[name].append(result)
                progress(f"window, round {turn + 1}, {name}: {result['broker_cpu_us']:.2f} µs a message")
    of_rounds = {name: _there_and_back(runs) for name, runs in found.items()}
    ratios = {
        name: [cost / plain for cost, plain in zip(costs, of_rounds["plain"], strict=True)]
        for name, costs in of_rounds.items()
    }
    return {
        "runs": found,
        "ratios": {name: round(statistics.median(each), 3) for name, each in ratios.items()},
    }


def _there_and_back(runs: list[Measured]) -> list[float]:
    """Broker CPU a message, of the two runs of each round."""
    costs = [run["broker_cpu_us"] for run in runs]
    return [statistics.mean(pair) for pair in zip(costs[::2], costs[1::2], strict=True)]


# all of it


def pipeline(*, quick: bool) -> Measured:
    raw = pipelines.measure(pipelines.QUICK if quick else pipelines.Sizes())
    return {"ratio": pipelines.longer(raw, pipelines.PIPELINE), "runs": raw}


PARTS: dict[str, Callable[..., Measured]] = {"audit": audit, "window": window, "pipeline": pipeline}


def report(results: dict[str, Measured]) -> str:
    lines = []
    if "audit" in results:
        rows = [
            [
                number(each["messages"], 0),
                number(each["seconds"], 1),
                number(each["python_mib"], 0),
                number(each["java_mib"], 0),
                number(each["data_mib"], 0),
            ]
            for each in results["audit"].values()
        ]
        lines.append(table([["messages", "seconds", "driver MiB", "Java MiB", "data MiB"], *rows]))
        whole = results["audit"]["whole"]
        lines.append(_bar("audit of 10M messages, seconds", whole["seconds"], AUDIT_S))
    if "window" in results:
        runs = results["window"]["runs"]
        rows = [
            [name, number(statistics.median(each["broker_cpu_us"] for each in found), 2)]
            for name, found in runs.items()
        ]
        lines.append(table([["queue", "broker CPU µs a message"], *rows]))
        lines.append(_bar("audit window, broker CPU", results["window"]["ratios"]["window"], WINDOW_BAR))
    if "pipeline" in results:
        lines.append(_bar("pipeline over code by hand, time", results["pipeline"]["ratio"], PIPELINE_BAR))
    return "\n\n".join(lines)


def _bar(what: str, found: float, most: float) -> str:
    return f"{what}: {found:,.2f}, at most {most:g}: {'met' if found <= most else 'NOT met'}"


def progress(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


def keep(results: dict[str, Measured]) -> None:
    """Parts that were not measured this time stay as they were."""
    kept: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"parts": {}}
    kept["parts"].update(results)
    kept["machine"] = {
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(kept, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small and once; results are not kept")
    parser.add_argument("--only", action="append", choices=list(PARTS), metavar="PART", help=", ".join(PARTS))
    chosen = parser.parse_args()
    results = {name: PARTS[name](quick=chosen.quick) for name in chosen.only or PARTS}
    if not chosen.quick:
        keep(results)
    print(report(results))


if __name__ == "__main__":
    main()
