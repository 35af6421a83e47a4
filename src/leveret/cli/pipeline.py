"""`leveret pipeline new|validate|explain|run|status|compact`: declared pipelines from a queue into tables.

Parses, calls `leveret.spark.pipelines`, prints. A mistake in a file is one sentence with its line, and exit
code 1, before Spark starts if possible; `validate` and `explain` need no Java.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import msgspec
import typer

from leveret.cli.options import AsJson
from leveret.cli.screen import Screen, counted
from leveret.cli.tables import show_json

if TYPE_CHECKING:
    from leveret.spark.pipelines.checkpoint_files import Status
    from leveret.spark.pipelines.compaction import Account, Goal
    from leveret.spark.pipelines.declaration import Declaration

_NEEDS_EXTRA: Final = "pipelines need {}, which is not installed (pip install 'leveret[spark]')"

pipeline = typer.Typer(help="Check, run and inspect declared pipelines.", no_args_is_help=True)

File: TypeAlias = Annotated[Path, typer.Argument(help="The pipeline's TOML file.")]


@pipeline.command()
def validate(file: File, as_json: AsJson = False) -> None:
    """Check a pipeline file: keys, types, names, SQL. Needs neither Java nor a broker."""
    declared = _declared(file)
    Screen(as_json=as_json).result(
        {"file": str(file), "name": declared.name, "valid": True}, f"{file} is a valid pipeline"
    )


@pipeline.command()
def explain(file: File, as_json: AsJson = False) -> None:
    """Explain what a pipeline will do, and which parts are exactly once."""
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
    """Write a complete pipeline file with comments, as a starting point."""
    try:
        from leveret.spark.pipelines.template import template
    except ModuleNotFoundError as error:
        Screen().fail(_NEEDS_EXTRA.format(error.name))
    try:
        with file.open("x", encoding="utf-8") as output:
            output.write(template(file.stem))
    except OSError as error:
        Screen().fail(f"{file} can't be written: {error.strerror}")
    Screen().say(f"wrote {file}: set its source and sinks, then run `leveret pipeline run {file}`")


@pipeline.command()
def status(file: File, as_json: AsJson = False) -> None:
    """Show the state of a running pipeline, or how the last run ended."""
    from leveret.spark.errors import SparkSideError
    from leveret.spark.pipelines.checkpoint_files import State

    try:
        state = State(_declared(file)).read()
    except SparkSideError as error:
        Screen().fail(str(error))
    if state is None:
        Screen().fail(f"{file} has not been run: its checkpoint location has no status")
    if as_json:
        show_json(msgspec.structs.asdict(state))
        return
    lag = "" if state.lag is None else f", {counted(state.lag, 'message')} waiting"
    typer.echo(f"{state.name}: {state.state} (process {state.pid} on {state.host})")
    typer.echo(f"  {counted(state.messages, 'message')}, {_other_counts(state)}{lag}")
    typer.echo(f"  batch {state.batch}: {state.batch_s:.1f} s, {state.rows_per_s:,.0f} rows/s")
    if state.error:
        typer.echo(f"  {state.error}")


@pipeline.command()
def run(
    file: File,
    once: Annotated[bool, typer.Option("--once", help="Stop after the messages there are now.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run a pipeline until Ctrl-C or SIGTERM."""
    declared = _declared(file)
    screen = Screen(as_json=as_json)
    from leveret.spark.errors import SparkSideError
    from leveret.spark.pipelines import running

    last: list[Status] = []
    try:
        with screen.gauge(declared.name) as gauge:

            def show(status: Status) -> None:
                last[:] = [status]
                gauge.show(status.messages, more=_progress_text(status))

            code = running.run(declared, once=once, on_status=show, stop_on=(signal.SIGINT, signal.SIGTERM))
    except SparkSideError as error:
        Screen().fail(str(error))
    status = last[-1]
    sentence = f"{counted(status.messages, 'message')}, {_other_counts(status)}"
    screen.result(msgspec.structs.asdict(status), f"{declared.name}: {sentence}")
    raise typer.Exit(code)


@pipeline.command()
def compact(
    file: File,
    sink: Annotated[
        str | None, typer.Option("--sink", help="Sink to compact (default: all that write files).")
    ] = None,
    files: Annotated[
        int | None, typer.Option("--files", min=1, help="Maximum number of files in each partition.")
    ] = None,
    target_size: Annotated[
        str | None, typer.Option("--target-size", help="Approximate size of a file (default: 128MB).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Merge the committed batches of tables into fewer files. The pipeline may keep running."""
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
        Screen().fail(str(error))
    except KeyboardInterrupt:
        screen.say("stopped: readers see the tables as before")
        raise typer.Exit(128 + signal.SIGINT) from None
    screen.result(
        {"name": declared.name, "sinks": [msgspec.structs.asdict(account) for account in accounts]},
        "; ".join(_compaction_sentence(account) for account in accounts),
    )


def _goal(files: int | None, target_size: str | None) -> Goal:
    from leveret.spark import option_values
    from leveret.spark.pipelines.compaction import TARGET_BYTES, Goal

    if files is not None and target_size is not None:
        raise typer.BadParameter("--files and --target-size can't be combined")
    try:
        return Goal(files, TARGET_BYTES if target_size is None else option_values.size(target_size))
    except ValueError as error:
        raise typer.BadParameter(f"--target-size {target_size!r} {error}") from None


def _compaction_sentence(account: Account) -> str:
    if not account.batches_before:
        return f"{account.sink}: nothing to compact"
    before = f"{counted(account.files_before, 'file')} of {account.batches_before:,} batches"
    after = f"{counted(account.files_after, 'file')} with {counted(account.rows_after, 'row')}"
    return f"{account.sink}: {before} are now {after}"


def _progress_text(status: Status) -> str:
    waiting = "" if status.lag is None else f", {status.lag:,} waiting"
    batch = f"{status.rows_per_s:,.0f}/s in the last batch, {status.batch_s:.1f} s"
    return f"{_other_counts(status)}{waiting}, {batch}"


def _other_counts(status: Status) -> str:
    """Return the counts of messages that are not in the tables: rejected, duplicate, or in open windows."""
    counts = [f"{status.acked:,} acked", f"{status.rejected:,} rejected"]
    if status.duplicates:
        counts.append(counted(status.duplicates, "duplicate"))
    if status.in_windows:
        counts.append(f"{status.in_windows:,} waiting in windows")
    return ", ".join(counts)


def _declared(file: Path) -> Declaration:
    try:
        from leveret.spark.pipelines import declaration, declaration_checks
        from leveret.spark.pipelines.errors import BadPipeline
    except ModuleNotFoundError as error:
        Screen().fail(_NEEDS_EXTRA.format(error.name))
    try:
        declared = declaration.read(file)
        declaration_checks.check(declared)
    except BadPipeline as error:
        Screen().fail(str(error))
    return declared
