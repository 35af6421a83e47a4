"""What consumer groups cost, and how promptly they move: `python -m bench.groups [--only PART] [--quick]`.

Five parts, each with a broker of its own: the *rate* of a member beside that of a queue's consumer, the cost
of several *groups* on a topic, a cursor full of *holes*, the *movement* of partitions when members come and
go, and the *lateness* of deadlines. What is compared is measured in turns on the same broker, within seconds.
Nothing is asserted about speed, but the report says which bars are met; a message that is lost, changed, out
of order or doubled without a reason is an error. Raw results go to `bench/results/groups.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import pstats
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import groups_fanout, groups_holes, groups_lateness, groups_movement, groups_rate
from bench.groups_broker import GroupBroker, Runs, progress
from bench.groups_lateness import Plan
from bench.groups_report import failed, report, summarize

RESULTS = Path(__file__).parent / "results" / "groups.json"
Part = Callable[[GroupBroker], Runs]


def parts(*, quick: bool, rounds: int) -> dict[str, Part]:
    """What is measured, by the names that `--only` takes; a quick run shows that it works, no more."""
    if quick:
        plan = Plan(rate=2_000, allowed_s=1.0, beyond_s=0.5)
        seconds, messages, holes = 0.3, 10_000, 20_000
    else:
        plan = Plan(rate=10_000, allowed_s=10.0, beyond_s=4.0)
        seconds, messages, holes = 1.5, 60_000, 1_000_000
    return {
        "rate": lambda broker: groups_rate.measure(broker, rounds=rounds, seconds=seconds),
        "groups": lambda broker: groups_fanout.measure(broker, rounds=rounds, messages=messages),
        "holes": lambda broker: groups_holes.measure(broker, rounds=rounds, holes=holes),
        "movement": lambda broker: groups_movement.measure(broker, rounds=rounds),
        "lateness": lambda broker: groups_lateness.measure(broker, plan),
    }


def run(part: Part, profile: Path | None) -> Runs:
    with GroupBroker(profile) as broker:
        return part(broker)


def keep(results: dict[str, Runs]) -> None:
    """Parts that were not measured this time stay as they were."""
    kept: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"parts": {}}
    kept["parts"].update({part: summarize(part, runs) for part, runs in results.items()})
    kept["machine"] = {
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(kept, indent=1) + "\n")


def arguments() -> argparse.Namespace:
    names = list(parts(quick=True, rounds=1))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one small round; results are not kept")
    parser.add_argument("--only", action="append", choices=names, metavar="PART", help=", ".join(names))
    parser.add_argument("--rounds", type=int, help="5, or 1 with --quick or --profile")
    parser.add_argument("--profile", action="store_true", help="the broker under cProfile; nothing is kept")
    return parser.parse_args()


def main() -> None:
    chosen = arguments()
    rounds = chosen.rounds or (1 if chosen.quick or chosen.profile else 5)
    results: dict[str, Runs] = {}
    for name, part in parts(quick=chosen.quick, rounds=rounds).items():
        if chosen.only and name not in chosen.only:
            continue
        with tempfile.TemporaryDirectory(prefix="bench-profile-") as directory:
            profile = Path(directory) / "profile" if chosen.profile else None
            results[name] = run(part, profile)
            if profile and profile.exists():
                progress(f"profile of {name}")
                pstats.Stats(str(profile)).sort_stats("tottime").print_stats(45)
    print(report(results))
    if failed(results):
        sys.exit(1)
    if not chosen.quick and not chosen.profile:
        keep(results)


if __name__ == "__main__":
    main()
