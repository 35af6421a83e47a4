"""`leveret pipeline new|validate|explain|run|status|compact`: declared pipelines, from a queue into tables.

Parses, calls `leveret.spark.pipelines`, prints. What is wrong with a file is one sentence with its line, and
exit code 1, before Spark starts wherever that is possible; `validate` and `explain` need no Java.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NoReturn, TypeAlias

import msgspec
import typer

from leveret.cli.command_runner import FAILED
from leveret.cli.options import AsJson
from leveret.cli.screen import Screen, counted
from leveret.cli.tables import show_json

if TYPE_CHECKING:
    from leveret.spark.pipelines.checkpoint_files import Status
    from leveret.spark.pipelines.compaction import Account, Goal
    from leveret.spark.pipelines.declaration import Declaration

_NEEDS_EXTRA: Final = "pipelines need {}, which is not installed (pip install 'leveret[spark]')"

pipeline = typer.Typer(help="Run declared pipelines, and look at them.", no_args_is_help=True)

File: TypeAlias = Annotated[Path, typer.Argument(help="The pipeline's TOML file.")]


@pipeline.command()
def validate(file: File, as_json: AsJson = False) -> None:
    """Check a file: keys, types, names, SQL. Needs neither Java nor a broker."""
    declared = _declared(file)
    Screen(as_json=as_json).result(
        {"file": str(file), "name": declared.name, "valid": True}, f"{file} is a valid pipeline"
    )


@pipeline.command()
def explain(file: File, as_json: AsJson = False) -> None:
    """Say what a pipeline is going to do, and what of it is exactly once."""
    from leveret.spark.pipelines.explaining import explain as explained

    parts = explained(_declared(file))
    if as_json:
        show_json(dict(parts))
        return
    for heading, lines in parts:
        typer.echo(heading)
        for line in lines:
            typer.echo(f"  {line}")


@pipeline.command()
def new(file: File) -> None:
    """Write a file to begin with, which is complete and says what its parts are for."""
    try:
        from leveret.spark.pipelines.template import template
    except ModuleNotFoundError as error:
        _fail(_NEEDS_EXTRA.format(error.name))
    try:
        with file.open("x", encoding="utf-8") as written:
            written.write(template(file.stem))
    except OSError as error:
        _fail(f"{file} can't be written: {error.strerror}")
    Screen().say(
        f"{file} is there; say in it where messages come from and go, then: leveret pipeline run {file}"
    )


@pipeline.command()
def status(file: File, as_json: AsJson = False) -> None:
    """Say how a pipeline is going, or how it ended; from any terminal."""
    from leveret.spark.errors import SparkSideError
    from leveret.spark.pipelines.checkpoint_files import State

    try:
        found = State(_declared(file)).read()
    except SparkSideError as error:
        _fail(str(error))
    if found is None:
        _fail(f"{file} has not been run: there is nothing at its checkpoint")
    if as_json:
        show_json(msgspec.structs.asdict(found))
        return
    lag = "" if found.lag is None else f", {counted(found.lag, 'message')} waiting"
    typer.echo(f"{found.name}: {found.state} (process {found.pid} on {found.host})")
    typer.echo(f"  {counted(found.messages, 'message')}, {_apart(found)}{lag}")
    typer.echo(f"  batch {found.batch}: {found.batch_s:.1f} s, {found.rows_per_s:,.0f} rows/s")
    if found.error:
        typer.echo(f"  {found.error}")


@pipeline.command()
def run(
    file: File,
    once: Annotated[bool, typer.Option("--once", help="End when what is there now is done.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run a pipeline until it is told to stop (Ctrl-C or SIGTERM)."""
    declared = _declared(file)
    screen = Screen(as_json=as_json)
    from leveret.spark.errors import SparkSideError
    from leveret.spark.pipelines import running

    last: list[Status] = []
    try:
        with screen.gauge(declared.name) as gauge:

            def show(status: Status) -> None:
                last[:] = [status]
                gauge.show(status.messages, more=_brief(status))

            code = running.run(declared, once=once, on_status=show, stop_on=(signal.SIGINT, signal.SIGTERM))
    except SparkSideError as error:
        _fail(str(error))
    status = last[-1]
    sentence = f"{counted(status.messages, 'message')}, {_apart(status)}"
    screen.result(msgspec.structs.asdict(status), f"{declared.name}: {sentence}")
    raise typer.Exit(code)


@pipeline.command()
def compact(
    file: File,
    sink: Annotated[
        str | None, typer.Option("--sink", help="One of them; all that write files, unless given.")
    ] = None,
    files: Annotated[
        int | None, typer.Option("--files", min=1, help="At most so many files in each partition.")
    ] = None,
    target_size: Annotated[
        str | None, typer.Option("--target-size", help="About the size of a file: 128MB unless given.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Put the committed batches of tables together into fewer files; the pipeline may run meanwhile."""
    declared = _declared(file)
    screen = Screen(as_json=as_json)
    from leveret.spark.errors import SparkSideError
    from leveret.spark.pipelines import compaction

    goal = _goal(files, target_size)
    try:
        with screen.gauge("compacting") as gauge:

            def show(step: compaction.Step) -> None:
                gauge.show(step.rows, done=step.share, more=f"{step.sink}: {step.doing}")

            accounts = compaction.compact(declared, sink=sink, goal=goal, on_step=show)
    except SparkSideError as error:
        _fail(str(error))
    except KeyboardInterrupt:
        screen.say("stopped: tables are as they were, or will be seen so")
        raise typer.Exit(128 + signal.SIGINT) from None
    screen.result(
        {"name": declared.name, "sinks": [msgspec.structs.asdict(each) for each in accounts]},
        "; ".join(_put_together(each) for each in accounts),
    )


def _goal(files: int | None, target_size: str | None) -> Goal:
    from leveret.spark import option_values
    from leveret.spark.pipelines.compaction import TARGET_BYTES, Goal

    if files is not None and target_size is not None:
        raise typer.BadParameter("--files and --target-size can't both be given")
    try:
        return Goal(files, TARGET_BYTES if target_size is None else option_values.size(target_size))
    except ValueError as error:
        raise typer.BadParameter(f"--target-size {target_size!r} {error}") from None


def _put_together(account: Account) -> str:
    if not account.batches_before:
        return f"{account.sink}: nothing to put together"
    before = f"{counted(account.files_before, 'file')} of {account.batches_before:,} batches"
    after = f"{counted(account.files_after, 'file')} with {counted(account.rows_after, 'row')}"
    return f"{account.sink}: {before} are now {after}"


def _brief(status: Status) -> str:
    waiting = "" if status.lag is None else f", {status.lag:,} waiting"
    batch = f"{status.rows_per_s:,.0f}/s in the last batch, {status.batch_s:.1f} s"
    return f"{_apart(status)}{waiting}, {batch}"


def _apart(status: Status) -> str:
    """Return the counts of messages that are not in the tables: rejected, duplicate, or in open windows."""
    found = [f"{status.acked:,} acked", f"{status.rejected:,} rejected"]
    if status.duplicates:
        found.append(counted(status.duplicates, "duplicate"))
    if status.in_windows:
        found.append(f"{status.in_windows:,} waiting in windows")
    return ", ".join(found)


def _declared(file: Path) -> Declaration:
    try:
        from leveret.spark.pipelines import declaration, declaration_checks
        from leveret.spark.pipelines.errors import BadPipeline
    except ModuleNotFoundError as error:
        _fail(_NEEDS_EXTRA.format(error.name))
    try:
        declared = declaration.read(file)
        declaration_checks.check(declared)
    except BadPipeline as error:
        _fail(str(error))
    return declared


def _fail(sentence: str) -> NoReturn:
    Screen().say(sentence)
    raise typer.Exit(FAILED)
