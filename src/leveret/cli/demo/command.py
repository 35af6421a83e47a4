"""`leveret demo`: the options, the directory, and the output at the end.

The exit code is 0 only if every check of the verdict holds. Whatever happens, Ctrl-C included, all started
processes are ended; if the demo itself is killed, they end on their own. The directory stays, with the
report and the logs.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from leveret.cli.command_runner import FAILED, Interruption, run
from leveret.cli.demo.orders import ORDERS, ORDERS_MIN
from leveret.cli.options import AsJson
from leveret.cli.screen import Screen
from leveret.client import ClientError

if TYPE_CHECKING:
    from leveret.cli.demo.verdict import Observations


def demo(
    orders: Annotated[int, typer.Option(min=ORDERS_MIN, help="Number of orders to publish.")] = ORDERS,
    dir: Annotated[
        Path | None,
        typer.Option(help="New directory for data, table, logs and report.", show_default=False),
    ] = None,
    without_spark: Annotated[
        bool, typer.Option("--without-spark", help="Skip the pipeline and the audit.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Publish orders, kill a worker and the broker, and account for every message."""
    screen = Screen(as_json=as_json)
    # The lines of the demo say what happens.
    logging.getLogger("leveret.client").handlers[:] = [logging.NullHandler()]
    options = _Options(orders, _demo_directory(screen, dir), without_spark, as_json)
    run(screen, lambda interruption: _run_demo(screen, options, interruption))


@dataclass(frozen=True, slots=True)
class _Options:
    orders: int
    directory: Path
    without_spark: bool
    as_json: bool


def _demo_directory(screen: Screen, dir: Path | None) -> Path:
    """Create the directory of the demo, or refuse one that is not empty."""
    if dir is None:
        return Path(tempfile.mkdtemp(prefix="leveret-demo-"))
    try:
        dir.mkdir(parents=True, exist_ok=True)
        is_empty = not any(dir.iterdir())
    except OSError as error:
        screen.fail(f"{dir} can't be used: {error.strerror}")
    if not is_empty:
        screen.fail(f"{dir} is not empty (give --dir a new directory)")
    return dir.absolute()


async def _run_demo(screen: Screen, options: _Options, interruption: Interruption) -> int:
    from leveret.cli.demo import jobs
    from leveret.cli.demo.display import Display
    from leveret.cli.demo.orders import Plan
    from leveret.cli.demo.processes import DemoFailed, Processes
    from leveret.cli.demo.scenes import Scenario

    _end_with_the_terminal()
    logs = options.directory / "logs"
    logs.mkdir()
    began_s = time.monotonic()
    screen.say(f"demo with {options.orders:,} orders; all files go to {options.directory}")
    why_no_spark = "--without-spark" if options.without_spark else jobs.missing()
    if why_no_spark is not None:
        screen.say(f"skipping pipeline and audit, which need Spark: {why_no_spark}")
    processes = Processes(logs)
    try:
        with Display() as display:
            scenario = Scenario(Plan(options.orders), options.directory, display, processes)
            observations = await scenario.run(with_spark=why_no_spark is None)
    except asyncio.CancelledError:
        screen.say(f"stopped: ending all processes (logs are in {logs})")
        raise
    except Exception as error:
        cause = _first_cause(error)
        if not isinstance(cause, (DemoFailed, ClientError, OSError)):
            raise
        screen.say(f"the demo failed: {cause} (logs are in {logs})")
        return FAILED
    finally:
        # A second Ctrl-C must not prevent the end of the started processes.
        interruption.finish_in_order()
        await processes.end()
    report = scenario.report if why_no_spark is None else None
    return _print_verdict(observations, options, report, took_s=time.monotonic() - began_s)


def _end_with_the_terminal() -> None:
    """Treat SIGHUP as SIGTERM, except under nohup, which lets the demo outlive its terminal."""
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, signal.raise_signal, signal.SIGTERM)


def _first_cause(error: BaseException) -> BaseException:
    """Return the first error of an exception group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _print_verdict(seen: Observations, options: _Options, report: Path | None, *, took_s: float) -> int:
    from leveret.cli.demo import display, verdict

    checks = verdict.checks(seen)
    holds = all(check.holds for check in checks)
    if options.as_json:
        figures = {
            "holds": holds,
            "took_s": round(took_s, 1),
            "checks": checks,
            "receipts": seen.receipts,
            "work": seen.work,
            "group": seen.group,
            "pipeline": seen.pipeline,
            "report": None if report is None else str(report),
            "directory": str(options.directory),
        }
        typer.echo(json.dumps(msgspec.to_builtins(figures)))
    else:
        sentence = verdict.sentence(checks, with_spark=report is not None)
        display.show(checks, [f"{sentence} It took {took_s:.0f} s.", *_closing_sentences(options, report)])
    return 0 if holds else FAILED


def _closing_sentences(options: _Options, report: Path | None) -> Sequence[str]:
    directory = f"Data and logs are in {options.directory}; delete it when you are done."
    return [directory] if report is None else [f"The report: {report}", directory]
