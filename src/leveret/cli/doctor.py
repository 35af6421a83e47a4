"""`leveret doctor`: whether this machine and a data directory are fit for a broker.

Parses, calls `machine_checks` and `data_checks`, prints. A line for each finding: ok, warning or fail, with
what to do. The exit code is 1 if something fails. Nothing is changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from leveret.cli.command_runner import FAILED
from leveret.cli.config import ConfigFile, Set, load
from leveret.cli.options import AsJson
from leveret.cli.screen import Gauge, Screen
from leveret.cli.tables import Page, printable, show_json

if TYPE_CHECKING:
    from leveret.cli.machine_checks import Finding
    from leveret.server.configuration import Configuration

_STYLES = {"ok": "green", "warning": "bold yellow", "fail": "bold red"}


def doctor(
    data_dir: Annotated[
        Path | None,
        typer.Option(help="The data directory; that of the configuration if not given.", show_default=False),
    ] = None,
    offline: Annotated[
        bool,
        typer.Option("--data/--no-data", help="Read the whole data directory, and compare its checksums."),
    ] = True,
    config: ConfigFile = None,
    assignments: Set = None,
    as_json: AsJson = False,
) -> None:
    """Check this machine, the configuration and the data directory of a stopped broker; change nothing.

    leveret doctor --data-dir /var/lib/leveret
    """
    flags = {} if data_dir is None else {"data.directory": ("--data-dir", str(data_dir))}
    configuration = load(config, assignments or (), flags)
    screen, page = Screen(as_json=as_json), Page()
    findings = []
    with screen.gauge("checking") as gauge:
        for finding in _findings(configuration, gauge, offline=offline):
            findings.append(finding)
            if not as_json:
                _print(page, finding)
    if as_json:
        show_json([finding._asdict() for finding in findings])
    if any(finding.level == "fail" for finding in findings):
        raise typer.Exit(FAILED)


def _findings(configuration: Configuration, gauge: Gauge, *, offline: bool) -> Iterator[Finding]:
    from leveret.cli import data_checks, machine_checks
    from leveret.cli.serve import listeners_of
    from leveret.server.clock import SteadyClock

    clock = SteadyClock()
    directory = Path(configuration["data.directory"])
    yield machine_checks.check_python()
    yield machine_checks.check_file_system(directory)
    yield machine_checks.check_space(directory, free_min_bytes=configuration["alarms.disk_free_min_bytes"])
    yield machine_checks.check_syncs(directory)
    yield machine_checks.check_descriptors()
    yield machine_checks.check_memory()
    yield from machine_checks.check_certificates(configuration.tls)
    holder = data_checks.holder_of(directory)
    yield machine_checks.check_ports(
        configuration["listeners.host"], listeners_of(configuration), broker_runs=holder is not None
    )
    if offline:
        yield from data_checks.check_data(directory, tell=gauge.tell)
    yield machine_checks.check_clock(clock)


def _print(page: Page, finding: Finding) -> None:
    line = Text(f"{finding.level:7}", style=_STYLES[finding.level])
    page.line(line.append(f"  {finding.about}: {printable(finding.text)}", style="not bold default"))
    if finding.advice:
        page.line(Text(f"         {finding.advice}"))
