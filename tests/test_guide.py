"""Runs the code of the guide's pages, and holds their tables against the sources.

Each block of Python is run against a broker of its own page, in order: a block may use what an earlier one
has defined, an open `connection`, `publisher` and a new `app`; on pages about other clients, a `channel` of
pika. An application that a block makes is then started, given a message for each handler, and stopped. One
that calls `asyncio.run` is a whole program, and also run as one. Every other block is run by the test that
`RUN_BY` names, or is in `NOT_RUN` with the reason.
"""

import ast
import asyncio
import dataclasses
import inspect
import os
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pika
import pytest

import leveret.client
from leveret.client import (
    App,
    Binding,
    Connection,
    Exchange,
    Hooks,
    Publisher,
    Queue,
    Topology,
    partition,
    topic,
)
from leveret.client.counters import ListenerCounters, PublisherCounters
from leveret.client.errors import ClientError
from leveret.client.receipt import Status
from leveret.testing.broker import Broker
from tests.processes import WAIT_S, wait_until

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[1]
GUIDE = ROOT / "docs" / "guide"
SOURCES = ROOT / "src" / "leveret" / "client"
PAGES = ("client.md", "publishing.md", "consuming.md", "groups.md", "topology.md", "tracing.md")
PIKA_PAGES = ("retries.md", "deduplication.md", "audit.md")
RUN_BY = {
    "testing.md python": "test_the_code_about_testing_runs",
    "scenarios.md python": "test_examples.py",
    "scenarios.md text": "test_examples.py",
    "scenarios.md text rabbitmq": "test_examples.py",
    "scenarios.md sh": "test_examples.py",
    "spark.md python": "spark/test_guide_spark.py",
    "pipelines.md python": "spark/test_guide_spark.py",
    "pipelines.md toml": "spark/test_guide_spark.py",
    "README.md python": "test_the_programs_of_the_readme_run and spark/test_guide_spark.py",
    "command-line.md console": "test_guide_commands.py",
    "definitions.md console": "cli/test_definitions.py runs these commands",
    "rights.md sh": "cli/test_permissions.py, with other patterns",
    "policies.md console": "test_guide_commands.py, as far as the options; cli/test_policies.py runs them",
    "vhosts.md console": "test_guide_commands.py, as far as the options; cli/test_vhosts.py runs them",
    "configuration.md console": "cli/test_config.py",
    "configuration.md toml": "cli/test_config.py",
    "groups.md console": "test_guide_commands.py",
    "README.md console": "test_guide_commands.py",
    "http.md sh": "test_guide_commands.py",
    "audit.md sh": "test_guide_commands.py, as far as the options; spark/test_audit.py runs them",
    "pipelines.md": "test_guide_commands.py, as far as the options; spark/test_pipeline_running.py runs them",
    "pipelines.md sh": "spark/test_pipeline_examples.py",
    **{f"{page} python": "test_the_code_of_a_page_runs" for page in PAGES},
    **{f"{page} python": "test_the_code_about_other_clients_runs" for page in PIKA_PAGES},
}
"""Of blocks by page and language."""
NOT_RUN = {
    "command-line.md json": "what a command prints, or one line of a file",
    "topology.md": "the text of an error",
    "metrics.md sh": "e2e/test_metrics.py starts a broker with this setting",
    "metrics.md yaml": "a part of Prometheus' configuration",
    "operations.md sh": "e2e/test_backup.py takes a backup of a running broker",
    "operations.md json": "a line of the admin log; fronts/http/test_admin_actions.py makes some",
    "tls.md": "a line of a log; server/test_tls_reload.py has it",
    "tls.md toml": "names files; server/test_tls_reload.py writes such a configuration",
    "tls.md sh": "needs certificates; server/test_tls_reload.py gives commands such URLs",
    "limits.md": "lines of a log; e2e/test_descriptors.py has them",
    "spark.md sh": "needs a cluster; spark/test_cluster.py starts one with these options",
    "spark-cluster.md sh": "builds an environment from a package index; spark/cluster.py does it offline",
    "spark-cluster.md text": "a part of a job; spark/cluster_job.py has it",
    "tracing.md sh": "installs a package",
    "README.md sh": "targets of make: they install packages and run for minutes",
}
URL = "amqp://guest:guest@localhost/"
LIMIT_S = 30.0
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
ANY_BLOCK = re.compile(r"^```(.*)\n(?:.*\n)*?```$", re.MULTILINE)
PROGRAM = re.compile(r"^ *asyncio\.run\(", re.MULTILINE)
README = ROOT / "README.md"
README_URL = "amqp://guest:guest@127.0.0.1:5672/"
TOPOLOGY = Topology(
    Queue("orders"),
    Queue("prices"),
    Queue("rows"),
    Queue("orders.parked"),
    Exchange("shop", "topic"),
    Binding("shop", "orders", "order.#"),
)
TOPOLOGIES = {
    "groups.md": Topology(topic("orders", partitions=8, max_age="7D")),
    "topology.md": Topology(),
}
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
    assert set(os.listdir(tmp_path)) <= {"orders.seen.db", "orders.seen.db-wal", "orders.seen.db-shm", "some"}


@pytest.mark.real
@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_runs(page: str) -> None:
    with Broker() as broker:
        assert asyncio.run(run_page(page, broker)) > 0


@pytest.mark.parametrize("page", PIKA_PAGES)
def test_the_code_about_other_clients_runs(page: str) -> None:
    with Broker() as broker, closing(pika.BlockingConnection(pika.URLParameters(broker.url))) as connection:
        for block in BLOCK.findall(text_of(page)):
            channel = connection.channel()
            channel.queue_declare("held")
            channel.basic_publish("", "held", b"one")
            method, _, _ = channel.basic_get("held")
            exec(block, {"pika": pika, "channel": channel, "method": method, "body": b"one", "Queue": Queue})
            channel.queue_declare("held", passive=True)  # still open: nothing was refused
            channel.queue_delete("orders")


@pytest.mark.usefixtures("elsewhere")
def test_the_code_about_testing_runs() -> None:
    names: dict[str, Any] = {}
    first, second = BLOCK.findall(text_of("testing.md"))
    exec(first, names)
    with Broker() as broker:
        names["test_three_orders_are_waiting"](broker)
    asyncio.run(run_block(second, names, "testing.md"))


def programs() -> dict[str, str]:
    """Blocks that are whole programs, by page and number."""
    found = {}
    for page in (*PAGES, "README.md"):
        text = (README if page == "README.md" else GUIDE / page).read_text(encoding="utf-8")
        found |= {f"{page} {n}": code for n, code in enumerate(BLOCK.findall(text)) if PROGRAM.search(code)}
    return found


@pytest.mark.parametrize("name", programs())
def test_a_whole_program_runs_as_it_is_written(name: str, tmp_path: Path) -> None:
    """Those that end by themselves do; the others handle a message, and end in order when they are told."""
    code = programs()[name]
    with Broker() as broker:
        text = code.replace(README_URL, broker.url).replace(URL, broker.url)
        (tmp_path / "program.py").write_text(text, encoding="utf-8")
        command = [sys.executable, "-u", str(tmp_path / "program.py")]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(command, text=True, cwd=tmp_path, **pipes) as process:
            if "app.run()" in code:
                give_it_a_message(broker, process)
                process.terminate()
            _, said = process.communicate(timeout=WAIT_S)
    assert (process.returncode, said) == (0, "")


def is_consumed(broker: Broker) -> bool:
    return broker.call(lambda: any(each.channels for each in broker.server.broker.sessions))


def give_it_a_message(broker: Broker, process: subprocess.Popen[str]) -> None:
    """Publish one when the program consumes, and wait until it prints something about it."""
    wait_until(lambda: is_consumed(broker), "the program consumes")
    with closing(pika.BlockingConnection(pika.URLParameters(broker.url))) as connection:
        channel = connection.channel()
        properties = pika.BasicProperties(content_type="application/json")
        names = broker.call(lambda: set(broker.server.broker.vhosts["/"].queues))
        channel.basic_publish("", min(names & {"orders", partition("orders", 0)}), b'{"id": 1}', properties)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("1 ")


def test_the_programs_of_the_readme_run() -> None:
    (block,) = (found for found in BLOCK.findall(README.read_text(encoding="utf-8")) if "pika" in found)
    with Broker() as broker:
        exec(block.replace(README_URL, broker.url), {})
        assert broker.depth("orders") == 0


def test_every_block_of_the_guide_is_run_or_has_a_reason_not_to_be() -> None:
    found = {
        f"{path.name} {language}".strip()
        for path in (*GUIDE.glob("*.md"), README)
        for language in ANY_BLOCK.findall(path.read_text(encoding="utf-8"))
    }
    assert found == RUN_BY.keys() | NOT_RUN.keys()
    assert not RUN_BY.keys() & NOT_RUN.keys()


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
