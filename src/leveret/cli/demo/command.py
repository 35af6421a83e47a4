"""`leveret demo`: the options, the directory, and what is said at the end.

Exit code 0 only if every check of the verdict holds. Whatever happens, a Ctrl-C included, all processes that
were started are ended; those of a demo that is killed end by themselves. The directory stays, for the report
and the logs in it.
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
from leveret.cli.demo.orders import FEWEST, ORDERS
from leveret.cli.options import AsJson
from leveret.cli.screen import Screen
from leveret.client import ClientError

if TYPE_CHECKING:
    from leveret.cli.demo.verdict import Seen


def demo(
    orders: Annotated[int, typer.Option(min=FEWEST, help="How many orders are published.")] = ORDERS,
    dir: Annotated[
        Path | None,
        typer.Option(help="Where data, table, logs and report go: a new directory.", show_default=False),
    ] = None,
    without_spark: Annotated[
        bool, typer.Option("--without-spark", help="Leave out the pipeline and the audit.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show all of it: publish, kill what can be killed, and account for every message."""
    screen = Screen(as_json=as_json)
    logging.getLogger("leveret.client").handlers[:] = [logging.NullHandler()]  # scenes say what happens
    place = _place(screen, dir)
    wanted = _Wanted(orders, place, without_spark, as_json)
    run(screen, lambda interruption: _played(screen, wanted, interruption))


@dataclass(frozen=True, slots=True)
class _Wanted:
    orders: int
    place: Path
    without_spark: bool
    as_json: bool


def _place(screen: Screen, dir: Path | None) -> Path:
    """A directory with nothing in it."""
    if dir is None:
        return Path(tempfile.mkdtemp(prefix="leveret-demo-"))
    try:
        dir.mkdir(parents=True, exist_ok=True)
        taken = any(dir.iterdir())
    except OSError as error:
        screen.say(f"{dir} can't be used: {error.strerror}")
        raise typer.Exit(FAILED) from None
    if taken:
        screen.say(f"there is something in {dir} already (give --dir a directory that is new)")
        raise typer.Exit(FAILED)
    return dir.absolute()


async def _played(screen: Screen, wanted: _Wanted, interruption: Interruption) -> int:
    from leveret.cli.demo import jobs
    from leveret.cli.demo.display import Stage
    from leveret.cli.demo.orders import Plan
    from leveret.cli.demo.processes import Processes, SceneFailed
    from leveret.cli.demo.scenes import Play

    _end_with_the_terminal()
    logs = wanted.place / "logs"
    logs.mkdir()
    began_s = time.monotonic()
    screen.say(f"a demo with {wanted.orders:,} orders; everything that it writes goes to {wanted.place}")
    why = "--without-spark" if wanted.without_spark else jobs.missing()
    if why is not None:
        screen.say(f"without pipeline and audit, which need Spark: {why}")
    processes = Processes(logs)
    try:
        with Stage() as stage:
            play = Play(Plan(wanted.orders), wanted.place, stage, processes)
            seen = await play.run(with_spark=why is None)
    except asyncio.CancelledError:
        screen.say(f"stopped: all that was started is being ended (logs are in {logs})")
        raise
    except Exception as error:
        cause = _first(error)
        if not isinstance(cause, (SceneFailed, ClientError, OSError)):
            raise
        screen.say(f"the demo failed: {cause} (logs are in {logs})")
        return FAILED
    finally:
        interruption.finish_in_order()  # a second Ctrl-C does not keep it from ending what it has started
        await processes.end()
    report = play.report if why is None else None
    return _judged(seen, wanted, report, took_s=time.monotonic() - began_s)


def _end_with_the_terminal() -> None:
    """As by any signal, in order; unless it was started to outlive its terminal, as nohup does."""
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, signal.raise_signal, signal.SIGTERM)


def _first(error: BaseException) -> BaseException:
    """Of several things that went wrong at the same time."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _judged(seen: Seen, wanted: _Wanted, report: Path | None, *, took_s: float) -> int:
    from leveret.cli.demo import display, verdict

    checks = verdict.checks(seen)
    holds = all(check.holds for check in checks)
    if wanted.as_json:
        figures = {
            "holds": holds,
            "took_s": round(took_s, 1),
            "checks": checks,
            "receipts": seen.receipts,
            "work": seen.worked,
            "group": seen.grouped,
            "pipeline": seen.piped,
            "report": None if report is None else str(report),
            "directory": str(wanted.place),
        }
        typer.echo(json.dumps(msgspec.to_builtins(figures)))
    else:
        said = verdict.sentence(checks, with_spark=report is not None)
        display.show(checks, [f"{said} It took {took_s:.0f} s.", *_ways_on(wanted, report)])
    return 0 if holds else FAILED


def _ways_on(wanted: _Wanted, report: Path | None) -> Sequence[str]:
    rest = f"Data and logs are in {wanted.place}; delete it when you have seen enough."
    return [rest] if report is None else [f"The report: {report}", rest]
