"""Commands of the guide's pages: each can be parsed, and those about groups and HTTP are run as written."""

from __future__ import annotations

import json
import re
import shlex
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pika
import pytest
import typer.main

from leveret.cli.main import app
from tests.cli.api_commands import Command, http, leveret, publish  # noqa: F401  (fixtures)
from tests.fronts.http.conftest import Api
from tests.fronts.http.membership import Member

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[1]
GUIDE = ROOT / "docs" / "guide"
PAGES = (*GUIDE.glob("*.md"), ROOT / "README.md")
BLOCK = re.compile(r"^```(?:sh|console|)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINE = re.compile(r"^(?:\$ )?leveret (.*?)(?:\s+#.*)?$", re.MULTILINE)
SPAN = re.compile(r"`(?:leveret )?((?:groups|topic|users|pipeline|audit|redrive) [^`|…<]*[^`|…< ])`")
SENTENCE = re.compile(r"^\w+: ")
UsageError = typer.BadParameter.__bases__[0]
NAMES = {"NAME", "QUEUE", "SOURCE", "FILE"}
"""Placeholders: such a span is about any of them."""


def commands(path: Path) -> list[str]:
    """What a page tells its readers to type, behind `leveret`."""
    text = path.read_text(encoding="utf-8")
    lines = [
        line for block in BLOCK.findall(text) for line in LINE.findall(block) if not SENTENCE.match(line)
    ]
    spans = [span.replace("\\|", "|") for span in SPAN.findall(text)]
    whole = [span for span in spans if "--" in span or len(span.split()) > 2]  # others name a command
    return [each for each in (*lines, *whole) if not NAMES & set(each.split()) and "|" not in each]


def parse(words: list[str]) -> None:
    """Raise if the command line makes no sense; nothing is run."""
    command = typer.main.get_command(app)
    context = command.make_context("leveret", words, resilient_parsing=False)
    while hasattr(command, "commands") and context._protected_args:
        name, *rest = [*context._protected_args, *context.args]
        command = command.get_command(context, name)
        assert command is not None, f"there is no command {name!r}"
        context = command.make_context(name, rest, parent=context)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_command_of_a_page_can_be_parsed(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for line in commands(path):
        words = shlex.split(line)
        for word in words:
            if word.endswith((".jsonl", ".backup")):
                (tmp_path / word).touch()
        try:
            parse(words)
        except UsageError as error:
            raise AssertionError(f"leveret {line}: {error}") from error


def test_the_pages_have_commands() -> None:
    assert sum(len(commands(path)) for path in PAGES) > 30


def test_the_commands_about_groups_run_as_they_are_written(
    leveret: Command,  # noqa: F811
    http: Api,  # noqa: F811
) -> None:
    page = GUIDE / "groups.md"
    lines = [line for line in commands(page) if line.split()[0] in ("topic", "groups")]
    first, *others = dict.fromkeys(line for line in lines if not line.startswith("groups delete"))
    assert first.startswith("topic create")
    assert leveret(*shlex.split(first)).code == 0
    publish(http.broker.url, "orders-3", 2200)
    member = Member(http.broker.url, "orders", "billing", prefetch=10)
    for line in [*others, "groups delete billing --yes"]:
        if "delete" in line:
            member.close()
        ran = leveret(*shlex.split(line))
        assert ran.code == 0, (line, ran.err)


def test_the_commands_about_queues_run_as_they_are_written(
    leveret: Command,  # noqa: F811
    http: Api,  # noqa: F811
) -> None:
    lines = [
        line
        for line in commands(GUIDE / "command-line.md")
        if line.split()[0] in ("status", "queues", "exchanges", "bindings", "messages")
    ]
    assert len(lines) > 9
    assert leveret("queues", "declare", "orders").code == 0
    publish(http.broker.url, "orders", 2)
    for line in lines:
        if line.startswith("queues map"):
            assert leveret("queues", "declare", "invoices").code == 0
        ran = leveret(*shlex.split(line))
        # The queue has no message at the offset of the guide.
        is_missing = line.startswith("messages timeline") and "no offset 1205" in ran.err
        assert ran.code == 0 or is_missing, (line, ran.err)


def ask(http: Api, words: list[str]) -> None:  # noqa: F811
    """Send what `curl` would send; it must be answered with a yes."""
    url = next(word for word in words if word.startswith("http://"))
    named = [word for word in words[1:] if word != url]
    options = dict(zip(named[::2], named[1::2], strict=True))
    body = json.loads(options["-d"]) if "-d" in options else None
    target = urlsplit(url)._replace(scheme="", netloc="").geturl()
    answer = http.ask(options.get("-X", "GET"), target, options["-u"], body=body)
    assert answer.status in (200, 201, 204), (words, answer.body)


def test_the_requests_of_the_page_about_http_are_answered(
    leveret: Command,  # noqa: F811
    http: Api,  # noqa: F811
) -> None:
    blocks = BLOCK.findall((GUIDE / "http.md").read_text(encoding="utf-8"))
    requests = [
        shlex.split(line)
        for block in blocks
        for line in block.splitlines()
        # The token of the page is cut off.
        if line.startswith("curl") and "Bearer" not in line
    ]
    assert len(requests) > 3
    ann = {"password": "secret", "tags": "management"}
    assert http.ask("PUT", "/api/users/ann", body=ann).status == 201
    with closing(pika.BlockingConnection(pika.URLParameters(http.broker.url))) as connection:
        queue = connection.channel()
        queue.queue_declare("orders")
        for words in requests:
            if "/api/topics/" in " ".join(words):
                queue.queue_delete("orders")  # a topic can't have a queue's name
            ask(http, words)
