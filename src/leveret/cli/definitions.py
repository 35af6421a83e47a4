"""`leveret definitions`: export and import users, virtual hosts, policies, queues and bindings as one file.

Parses, calls the HTTP API of the broker or reads its data directory, prints. The form is RabbitMQ's, so the
command works on RabbitMQ too, and a file of one broker can be imported into the other.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from leveret.cli.api import DEFAULT_HTTP, Api, Http, exit_on_error
from leveret.cli.options import AsJson
from leveret.cli.screen import Screen, counted
from leveret.storage.errors import StorageError

definitions = typer.Typer(
    help="Export and import definitions: users, virtual hosts, policies, queues, exchanges and bindings.",
    no_args_is_help=True,
)

OneVhost: TypeAlias = Annotated[
    str | None, typer.Option("--vhost", help="Only this virtual host; without it, all.", show_default=False)
]
DataDir: TypeAlias = Annotated[
    Path | None,
    typer.Option(help="Use the data directory of a stopped broker instead of --http.", show_default=False),
]
_SECTIONS = ("users", "vhosts", "policies", "queues", "exchanges", "bindings")


@definitions.command(name="export")
def export_definitions(
    file: Annotated[Path, typer.Argument(help="The file to write; - is stdout.")] = Path("-"),
    vhost: OneVhost = None,
    data_dir: DataDir = None,
    http: Http = DEFAULT_HTTP,
    as_json: AsJson = False,
) -> None:
    """Write all definitions to a file in RabbitMQ's form, with password hashes.

    leveret definitions export leveret.json
    """
    with exit_on_error(as_json=as_json) as screen:
        if data_dir is None:
            document = Api(http, vhost=vhost).get("definitions")
        else:
            with _offline(screen, data_dir):
                from leveret.server.definition_files import export_offline

                document = export_offline(data_dir, vhost=vhost)
    text = json.dumps(document, indent=2) + "\n"
    if str(file) == "-":
        sys.stdout.write(text)
        return
    try:
        # The file has password hashes: others may not read it.
        file.touch(mode=0o640)
        file.write_text(text)
    except OSError as error:
        screen.fail(f"{file} can't be written: {error.strerror}")
    counts = {name: len(document.get(name, ())) for name in _SECTIONS if name in document}
    sentences = document.get("leveret", {}).get("without_equivalent", [])
    _list_sentences(screen, "RabbitMQ has no equivalent of", sentences)
    summary = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    account = {"file": str(file), **counts, "without_equivalent": sentences}
    screen.result(account, f"written to {file}: {summary}")


@definitions.command(name="import")
def import_definitions(
    file: Annotated[Path, typer.Argument(help="A file of definitions, of Leveret or RabbitMQ; - is stdin.")],
    vhost: OneVhost = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the file, and say what would be left out.")
    ] = False,
    data_dir: DataDir = None,
    http: Http = DEFAULT_HTTP,
    as_json: AsJson = False,
) -> None:
    """Make what a file of definitions holds. Nothing is deleted; a file with a mistake changes nothing.

    leveret definitions import rabbitmq.json --dry-run
    """
    from leveret.cli.offline_changes import note_offline_change
    from leveret.server.definition_files import UnreadableFile, import_offline, read_document

    screen = Screen(as_json=as_json)
    try:
        document = read_document(Path("/dev/stdin") if str(file) == "-" else file)
    except UnreadableFile as error:
        screen.fail(str(error))
    if not isinstance(document, dict):
        screen.fail(f"{file} is no file of definitions: it must hold a JSON object")
    left_out: list[str] = []
    with exit_on_error(as_json=as_json):
        if data_dir is not None:
            with _offline(screen, data_dir):
                left_out = import_offline(data_dir, document, vhost=vhost, is_dry_run=dry_run).left_out
            if not dry_run:
                note_offline_change(data_dir, "definitions import", {"file": str(file)}, screen)
        else:
            query: dict[str, Any] = {"dry_run": "true"} if dry_run else {}
            answer = Api(http, vhost=vhost).post("definitions", body=document, **query)
            left_out = [] if answer is None else answer["left_out"]
    _list_sentences(screen, "left out", left_out)
    done = "can be imported" if dry_run else "are imported"
    note = f"; {counted(len(left_out), 'object')} left out" if left_out else ""
    account = {"file": str(file), "dry_run": dry_run, "left_out": left_out}
    screen.result(account, f"the definitions in {file} {done}{note}")


def _list_sentences(screen: Screen, title: str, sentences: list[str]) -> None:
    if sentences:
        screen.say(f"{title}:")
    for sentence in sentences:
        screen.list(sentence)


@contextmanager
def _offline(screen: Screen, directory: Path) -> Iterator[None]:
    """End the command with one sentence if the data directory can't be used."""
    from leveret.broker.errors import BrokerError

    if not (directory / "lock").exists():
        screen.fail(f"{directory} is not a broker's data directory (choose it with --data-dir)")
    try:
        yield
    except BrokerError as error:
        screen.fail(error.sentence)
    except StorageError as error:
        screen.fail(str(error))
