"""`leveret audit`: account for every message, from a running broker or from a copied data directory.

Parses, calls `leveret.audit`, prints. The exit code is 0 only if nothing is lost, doubled or damaged. If
the audit is impossible, one sentence says why, and no file is changed.
"""

from __future__ import annotations

import signal
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.text import Text

from leveret.cli.command_runner import FAILED
from leveret.cli.options import DEFAULT_URL, AsJson
from leveret.cli.screen import Screen
from leveret.cli.tables import Page, show_json

if TYPE_CHECKING:
    from leveret.audit.evidence import Case
    from leveret.audit.findings import Findings

_ANSWER_S: Final = 10.0
_ASCII: Final = str.maketrans({"–": "-", "×": "x", "…": "..."})


def audit(
    context: typer.Context,
    data: Annotated[
        Path | None,
        typer.Option(help="A copied data directory, or one that no broker has open.", show_default=False),
    ] = None,
    url: Annotated[
        str,
        typer.Option(
            envvar="LEVERET_URL", help="URL of a running broker, with the login of an administrator."
        ),
    ] = DEFAULT_URL,
    out: Annotated[
        Path, typer.Option(help="Directory for tables and report: a new one, or that of an earlier audit.")
    ] = Path("leveret-audit"),
    table: Annotated[
        str | None,
        typer.Option(help="Table of a pipeline, to be checked for duplicates.", show_default=False),
    ] = None,
    table_format: Annotated[str, typer.Option(help="Format of --table.")] = "parquet",
    loop: Annotated[int, typer.Option(min=2, help="Deliveries of one message that make a loop.")] = 5,
    round_trip_ms: Annotated[
        float, typer.Option(min=0, help="Round-trip time to consumers no longer connected, for the advice.")
    ] = 1.0,
    master: Annotated[str, typer.Option(help="The Spark master.")] = "local[*]",
    as_json: AsJson = False,
) -> None:
    """Account for every message: published, confirmed, delivered, settled, lost or doubled."""
    screen = Screen(as_json=as_json)
    source = context.get_parameter_source("url")
    if data is not None and source is not None and source.name == "COMMANDLINE":
        raise typer.BadParameter("--data is a copied directory and --url a running broker: give one of them")
    try:
        from leveret.audit import job, output_directory, results
        from leveret.audit.tables import Terms
        from leveret.spark.errors import SparkSideError
        from leveret.storage.errors import StorageError

        output_directory.check_out(out)
        with screen.gauge("audit") as gauge, _case(data, url) as case:
            terms = Terms(loop=loop, round_trip_ms=round_trip_ms, table=table, format=table_format)
            findings = job.run(case, out, terms, master=master, on_progress=gauge.tell)
        report = results.write(findings, out)
    except ModuleNotFoundError as error:
        screen.fail(f"the audit needs {error.name} (pip install 'leveret[spark]')")
    except KeyboardInterrupt:
        screen.say("stopped before the audit was finished")
        raise typer.Exit(128 + signal.SIGINT) from None
    except (SparkSideError, StorageError, OSError) as error:
        screen.fail(str(error))
    if as_json:
        show_json(results.plain(findings))
    else:
        _show(Page(), findings)
        screen.say(f"report written to {report}")
    raise typer.Exit(0 if findings.holds else FAILED)


def _show(page: Page, findings: Findings) -> None:
    from leveret.audit import terminal

    encode = _in_ascii if page.ascii_only else str
    for part in terminal.summary(findings):
        page.line(Text(encode(part.title), style="bold"))
        if part.rows:
            rows = [[encode(cell) if isinstance(cell, str) else cell for cell in row] for row in part.rows]
            page.table(part.columns, rows)
        if part.more:
            page.line(encode(part.more))
        page.line()


def _in_ascii(text: str) -> str:
    """
    >>> _in_ascii("orders…é: 6.8 × as fast, –")
    'orders...?: 6.8 x as fast, -'
    """
    return text.translate(_ASCII).encode("ascii", "replace").decode()


def _case(data: Path | None, url: str) -> AbstractContextManager[Case]:
    from leveret.audit import evidence
    from leveret.spark.options import BrokerOptions

    if data is not None:
        return evidence.of_directory(str(data))
    return evidence.of_broker(BrokerOptions(url=url, broker_timeout_s=_ANSWER_S))
