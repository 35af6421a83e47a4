"""Runs the code of the guide's pages about the client toolkit, and holds their tables against the sources.

Each block of Python is run against a broker of its own page, in order: a block may use what an earlier one
has defined, an open `connection`, `publisher` and a new `app`. An application that a block makes is then
started, given a message for each handler, and stopped. What the pages say about the examples is left to
`test_examples.py`.
"""

import ast
import asyncio
import dataclasses
import inspect
import os
import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import leveret.client
from leveret.client import App, Binding, Connection, Exchange, Hooks, Publisher, Queue, Topology, topic
from leveret.client.counters import ListenerCounters, PublisherCounters
from leveret.client.errors import ClientError
from leveret.client.receipt import Status
from leveret.testing.broker import Broker

ROOT = Path(__file__).parents[1]
GUIDE = ROOT / "docs" / "guide"
SOURCES = ROOT / "src" / "leveret" / "client"
PAGES = ("client.md", "publishing.md", "consuming.md", "groups.md")
URL = "amqp://guest:guest@localhost/"
LIMIT_S = 30.0
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
TOPOLOGY = Topology(
    Queue("orders"),
    Queue("prices"),
    Queue("rows"),
    Queue("orders.parked"),
    Exchange("shop", "topic"),
    Binding("shop", "orders", "order.#"),
)
TOPOLOGIES = {"groups.md": Topology(topic("orders", partitions=8, max_age="7D"))}
"""Of pages that need another one."""


def text_of(page: str) -> str:
    return (GUIDE / page).read_text(encoding="utf-8")


# --- code ------------------------------------------------------------------------------------------------


async def run_block(code: str, names: dict[str, Any], page: str) -> None:
    """As a program of its own if it starts an event loop, otherwise in the one that runs."""
    compiled = compile(code, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if "asyncio.run(main())" in code:
        await asyncio.to_thread(exec, compiled, names)
    elif (waiting := eval(compiled, names)) is not None:
        await waiting


async def see_it_work(app: App) -> None:
    """Each of its handlers gets a message, and has nothing against it."""
    async with app:
        for listener in app.listeners:
            if listener.health().group is None:
                (await app.publisher.publish({"id": 1}, listener.queue)).check()
            else:
                (await app.publisher.publish({"id": 1}, "key", exchange=listener.queue)).check()
        while not all(listener.counters.acked or listener.counters.failed for listener in app.listeners):
            await asyncio.sleep(0.01)
        assert not any(listener.counters.failed for listener in app.listeners)
        assert app.health().ok


async def run_page(page: str, broker: Broker) -> int:
    module = types.ModuleType(f"guide_{page.removesuffix('.md')}")  # where annotations are looked up
    names = vars(module)
    blocks = BLOCK.findall(text_of(page))
    topology = TOPOLOGIES.get(page, TOPOLOGY)
    async with Connection(broker.url, topology=topology) as connection, Publisher(connection) as publisher:
        for block in blocks:
            app = App(broker.url)
            names.update(connection=connection, publisher=publisher, app=app)
            async with asyncio.timeout(LIMIT_S):
                await run_block(block.replace(URL, broker.url), names, page)
                if not block.count("asyncio.run(main())"):
                    await see_it_work(names["app"])
    return len(blocks)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a block writes into its directory is not written into the project's."""
    monkeypatch.chdir(tmp_path)
    yield
    assert set(os.listdir(tmp_path)) <= {"orders.seen.db", "orders.seen.db-wal", "orders.seen.db-shm"}


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_runs(page: str) -> None:
    with Broker() as broker:
        assert asyncio.run(run_page(page, broker)) > 4


# --- tables ----------------------------------------------------------------------------------------------


def rows(page: str, heading: str) -> list[list[str]]:
    """The table rows of a section, cell by cell, without those of its header."""
    _, _, behind = f"\n{text_of(page)}".partition(f"\n{heading}\n")
    section = re.split(r"^#+ ", behind, maxsplit=1, flags=re.MULTILINE)[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def quoted(cells: list[str]) -> set[str]:
    return {name for cell in cells for name in re.findall(r"`(\w+)", cell)}


def errors_below(kind: type[ClientError]) -> set[type[ClientError]]:
    below = set(kind.__subclasses__())
    return below.union(*(errors_below(each) for each in below)) if below else below


def test_every_error_is_in_the_table_and_as_retryable_as_it_says() -> None:
    said = {row[0].strip("`"): row[1] == "yes" for row in rows("client.md", "## Errors")}
    of_the_toolkit = (each for each in errors_below(ClientError) if each.__module__.startswith("leveret."))
    assert said == {e.__name__: e.retryable for e in of_the_toolkit if not e.__name__.startswith("_")}


def test_every_counter_is_in_the_tables() -> None:
    counters = {
        field.name for kind in (PublisherCounters, ListenerCounters) for field in dataclasses.fields(kind)
    }
    assert quoted([row[0] for row in rows("client.md", "## What happens, as numbers")]) == counters


def test_every_event_of_the_log_is_in_the_table() -> None:
    sources = "\n".join(path.read_text(encoding="utf-8") for path in SOURCES.glob("*.py"))
    logged = set(re.findall(r'"event": "(\w+)"', sources))
    noticed = set(re.findall(r'notice\(\s*[\w.]+,\s*"(\w+)"', sources))
    said = quoted([row[0] for row in rows("client.md", "## What happens, as words")])
    assert said == logged | noticed | {"blocked", "unblocked"}


def test_every_hook_is_in_the_table() -> None:
    hooks = {name for name, _ in inspect.getmembers(Hooks, inspect.isfunction)}
    assert quoted([row[0] for row in rows("client.md", "## Hooks")]) == hooks


def test_every_status_of_a_receipt_is_in_the_table() -> None:
    said = {row[0].strip("`") for row in rows("publishing.md", "# Publishing: a receipt for every message")}
    assert {status.name for status in Status} - {"PENDING"} <= said


def test_every_argument_of_a_listener_is_in_the_table() -> None:
    arguments = set(inspect.signature(App.listener).parameters) - {"self", "queue"}
    table = rows("consuming.md", "# Consuming: a decision for every delivery")
    assert quoted([row[0] for row in table if not row[0].startswith("`@")]) == arguments


def test_the_defaults_of_a_listener_are_those_in_the_table() -> None:
    table = {
        row[0].strip("`"): row[1]
        for row in rows("consuming.md", "# Consuming: a decision for every delivery")
    }
    parameters = inspect.signature(App.listener).parameters
    assert table["ack"] == f'`"{parameters["ack"].default}"`'
    for name in ("prefetch", "concurrency", "ack_timeout_s"):
        assert float(table[name]) == parameters[name].default


@pytest.mark.parametrize("page", [*PAGES, "scenarios.md", "README.md"])
def test_links_lead_somewhere(page: str) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([\w-]+))?\)", text_of(page)):
        file = (GUIDE / target).resolve() if target else GUIDE / page
        assert file.exists(), f"{page} leads to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}


def test_what_the_guide_imports_is_public() -> None:
    for page in (*PAGES, "scenarios.md"):
        for names in re.findall(r"^from leveret\.client import (.*)$", text_of(page), re.MULTILINE):
            assert set(names.split(", ")) <= set(leveret.client.__all__)
