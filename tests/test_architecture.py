"""The rules of the source tree a reader relies on: who imports whom, where IO happens, how large things are.

Sources are parsed, never imported, so imports inside functions and under ``TYPE_CHECKING`` count too.
Each rule is a function from a ``Source`` to a list of sentences; the last tests show that each rule bites.
"""

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[1] / "src" / "leveret"

# layer -> what it may import of ours. A layer is a package of `leveret`, or one front of `leveret.fronts`.
FRONTS: dict[str, set[str]] = {
    "fronts": set(),
    "fronts.amqp": {"broker", "amqp"},
    "fronts.flight": {"broker", "flight", "storage"},
    "fronts.http": {"broker"},
}
LAYERS: dict[str, set[str]] = {
    "amqp": set(),
    "storage": set(),
    "broker": {"amqp", "storage"},
    "flight": set(),
    **FRONTS,
    "server": {"broker", "amqp", "storage", "flight", *FRONTS},
    "client": {"amqp", "flight"},
    "spark": {"client", "flight"},
    "audit": {"spark", "client", "flight", "storage"},
}
LAYERS["testing"] = set(LAYERS)
LAYERS["cli"] = set(LAYERS)

IO_MODULES = {"os", "io", "socket", "asyncio", "pathlib", "shutil", "subprocess", "time", "random"}
FORBIDDEN_MODULES = {
    "amqp": IO_MODULES | {"threading"},
    "broker": IO_MODULES | {"threading"},
    "fronts.amqp": IO_MODULES | {"threading"},
    "storage": IO_MODULES,
}
FILE_SEAM = PurePosixPath("storage/files.py")
CANONICAL_FORM = PurePosixPath("broker/canonical.py")
ARROW_SEAMS = (PurePosixPath("storage/arrow.py"), PurePosixPath("storage/message_events.py"))

HTTP_SEES = (
    "access.accounts",
    "access.administration",
    "access.passwords",
    "access.topic_permissions",
    "broker",
    "errors",
    "access.logins",
    "operations",
    "product",
    "streams.positions",
    "usage_limits",
    "views",
)
"""Modules and packages of `leveret.broker` that the HTTP API may import: it reads through views only, and
changes things through operations. `streams.positions` is what a seek is asked with, `usage_limits` checks
limits before a user is made."""

ABOVE_THE_CURSOR = {"broker"} | {layer for layer, allowed in LAYERS.items() if "broker" in allowed}
"""Layers to which the cursor is the seam of the store."""

CODE_IN_DATA = {"pickle", "marshal", "shelve", "cloudpickle", "dill", "multiprocessing"}
"""Modules whose data can run code when they are read. Spark pickles what it is given by itself."""

MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 70
MAX_PUBLIC_METHODS = 20
LARGE_CLASSES = {
    "leveret.broker.broker.Broker": "what fronts, queues, channels and the shell ask of the broker",
    "leveret.broker.sessions.channel.Channel": "tags, consumers, credit, and what queues tell it",
    "leveret.broker.queues.deliverer.Deliverer": "all that a `Source` may be asked, and what its queue asks",
    "leveret.broker.vhosts.destination.Destination": "the contract of queues and streams, mostly one-liners",
    "leveret.storage.cursor.Cursor": "the seam of the store: all that can happen to messages behind a cursor",
    "leveret.storage.log.Log": "the messages of a log and the shape of its segments, which change together",
    "leveret.storage.offset_set.OffsetSet": "the operations of a set, also by ranges",
    "leveret.storage.progress.Progress": "one account of what became of offsets; its sums change with it",
    "leveret.storage.store.Store": "the front door of the store: logs, cursors, durability and disk use",
}
"""Classes with more public methods (properties count) than `MAX_PUBLIC_METHODS`, with reasons."""

FUNCTION_WORDS = frozenset(
    """
    a an the it its this that these those there they them their he she who whom whose which
    what where when why how of to in on at by for from with without as is are was were be been
    being has have had do does did done can could may might must not no nor or and but if so
    than then too one ones same other others each all any some such more most few much many
    only also yet still own here whatever whoever will would shall should itself himself
    themselves nobody somebody everybody anybody nothing something everything anything about
    into over under behind before after again once said says say made make way
    """.split()  # noqa: SIM905  # easier to read than a list
)
VAGUE_SHARE = 0.7
VAGUE_DOCSTRINGS_MAX = 20
"""Some short sentences are clear although most of their words are function words."""

VAGUE_NAMES = {"utils", "util", "helpers", "helper", "manager", "base", "common"}


@dataclass(frozen=True)
class Source:
    """One file of the package; ``path`` is relative to ``src/leveret``."""

    path: PurePosixPath
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def package(self) -> str:
        """The layer of this file; empty for ``leveret/__init__.py``; ``__main__.py`` is the CLI's."""
        names = [name for name in self.path.with_suffix("").parts if name != "__init__"]
        return "cli" if names == ["__main__"] else _layer(names)

    @property
    def module(self) -> str:
        parts = ("leveret", *self.path.with_suffix("").parts)
        return ".".join(parts).removesuffix(".__init__")

    def imports(self) -> Iterator[tuple[int, str]]:
        """Line and full dotted name of everything imported, wherever in the file it happens."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((node.lineno, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                origin = self._origin(node)
                yield from ((node.lineno, f"{origin}.{alias.name}") for alias in node.names)

    def _origin(self, node: ast.ImportFrom) -> str:
        if node.level == 0:
            return node.module or ""
        here = ("leveret", *self.path.parts[:-1])
        parent = here[: len(here) - (node.level - 1)]
        return ".".join((*parent, node.module) if node.module else parent)


def _layer(names: list[str]) -> str:
    """Return the layer of `leveret.<names joined by dots>`: fronts are layers of their own."""
    return ".".join(names[: 2 if names[:1] == ["fronts"] else 1])


@cache
def sources() -> list[Source]:
    return [
        Source(PurePosixPath(file.relative_to(ROOT).as_posix()), file.read_text(encoding="utf-8"))
        for file in sorted(ROOT.rglob("*.py"))
    ]


def wrong_layer(source: Source) -> list[str]:
    if source.package and source.package not in LAYERS:
        return [f"{source.path}: {source.package} is not in the table of layers"]
    allowed = LAYERS.get(source.package, set()) | {source.package}
    found = []
    for line, name in source.imports():
        root, *rest = name.split(".")
        if root != "leveret" or not rest or rest[0].startswith("__"):  # leveret.__version__ is for everyone
            continue
        if _layer(rest) not in allowed:
            found.append(f"{source.path}:{line}: {source.package or 'leveret'} may not import {name}")
    return found


def around_the_views(source: Source) -> list[str]:
    if source.package != "fronts.http":
        return []
    allowed = tuple(f"leveret.broker.{name}." for name in HTTP_SEES)
    return [
        f"{source.path}:{line}: the HTTP API may not import {name}"
        for line, name in source.imports()
        if name.startswith("leveret.broker.") and not f"{name}.".startswith(allowed)
    ]


def io_outside_the_seam(source: Source) -> list[str]:
    forbidden = FORBIDDEN_MODULES.get(source.package)
    if forbidden is None or source.path == FILE_SEAM:
        return []
    found = [
        f"{source.path}:{line}: {source.package} may not import {name}"
        for line, name in source.imports()
        if name.split(".")[0] in forbidden
    ]
    calls = (node for node in ast.walk(source.tree) if isinstance(node, ast.Call))
    found += [
        f"{source.path}:{call.lineno}: {source.package} may not call open()"
        for call in calls
        if isinstance(call.func, ast.Name) and call.func.id == "open"
    ]
    return found


def arrow_outside_its_file(source: Source) -> list[str]:
    if source.package != "storage" or source.path in ARROW_SEAMS:
        return []
    return [
        f"{source.path}:{line}: pyarrow is for {', '.join(map(str, ARROW_SEAMS))} alone"
        for line, name in source.imports()
        if name.split(".")[0] == "pyarrow"
    ]


def protocol_in_the_broker(source: Source) -> list[str]:
    """One module of the broker knows how AMQP writes a message: it is the form in which messages are kept."""
    if source.package != "broker" or source.path == CANONICAL_FORM:
        return []
    return [
        f"{source.path}:{line}: {name} is for {CANONICAL_FORM} and the fronts"
        for line, name in source.imports()
        if name.split(".")[0] == "pamqp" or name.startswith("leveret.amqp")
    ]


def code_in_data(source: Source) -> list[str]:
    return [
        f"{source.path}:{line}: {name} can make data into code"
        for line, name in source.imports()
        if name.split(".")[0] in CODE_IN_DATA
    ]


def behind_the_cursor(source: Source) -> list[str]:
    """The cursor is the seam of the store: its progress and the lock are for the store alone."""
    if source.package not in ABOVE_THE_CURSOR:
        return []
    found = []
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Attribute):
            continue
        owner = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
        if node.attr == "progress":
            found.append(f"{source.path}:{node.lineno}: ask the cursor, not its progress")
        if node.attr == "lock" and owner in {"store", "_store"}:
            found.append(f"{source.path}:{node.lineno}: the lock is the store's")
    return found


def too_large(source: Source) -> list[str]:
    lines = len(source.text.splitlines())
    found = [f"{source.path}: {lines} lines"] if lines > MAX_FILE_LINES else []
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            size = (node.end_lineno or node.lineno) - node.lineno + 1
            if size > MAX_FUNCTION_LINES:
                found.append(f"{source.path}:{node.lineno}: {node.name}() has {size} lines")
    return found


def too_many_methods(source: Source) -> list[str]:
    found = []
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ClassDef) and f"{source.module}.{node.name}" not in LARGE_CLASSES:
            count = len(_public_methods(node))
            if count > MAX_PUBLIC_METHODS:
                found.append(f"{source.path}:{node.lineno}: {node.name} has {count} public methods")
    return found


def _public_methods(node: ast.ClassDef) -> set[str]:
    functions = (each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
    return {function.name for function in functions if not function.name.startswith("_")}


def vaguely_named(source: Source) -> list[str]:
    words = {word for part in source.path.with_suffix("").parts for word in part.split("_")}
    return [f"{source.path}: name it after a responsibility"] if words & VAGUE_NAMES else []


def vague_docstrings(source: Source) -> list[str]:
    """Return the first lines of docstrings that consist mostly of function words and hide their subject."""
    vague = []
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            line = (ast.get_docstring(node) or "").split("\n")[0]
            words = re.findall(r"[a-z']+", line.lower())
            if len(words) > 4 and sum(word in FUNCTION_WORDS for word in words) >= VAGUE_SHARE * len(words):
                vague.append(f"{source.path}:{node.lineno}: {line}")
    return vague


def import_cycles(modules: list[Source]) -> list[set[str]]:
    """Return the groups of modules that import one another, directly or around corners.

    Imports for types only and imports in functions count too. `from package import module` is an import of
    the module, not of the package.
    """
    by_name = {source.module: source for source in modules}
    graph: dict[str, set[str]] = {}
    for name, source in by_name.items():
        imported = (full if full in by_name else full.rpartition(".")[0] for _, full in source.imports())
        graph[name] = {other for other in imported if other in by_name and other != name}
    reach = {name: _reachable(graph, name) for name in graph}
    cycles: list[set[str]] = []
    for name in graph:
        if name in reach[name] and not any(name in cycle for cycle in cycles):
            cycles.append({other for other in reach[name] if name in reach[other]})
    return cycles


def _reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += graph[name]
    return seen


def violations(rule: Callable[[Source], list[str]]) -> list[str]:
    return [sentence for source in sources() for sentence in rule(source)]


def _class_with_methods(count: int) -> str:
    return "class Many:\n" + "".join(f"    def method_{number}(self): ...\n" for number in range(count))


def test_there_are_sources_to_check():
    assert len(sources()) > 1


def test_imports_point_one_way_only():
    assert violations(wrong_layer) == []


def test_the_http_api_reads_the_broker_through_views_only():
    assert violations(around_the_views) == []


def test_no_two_modules_import_each_other():
    assert import_cycles(sources()) == []


def test_a_cycle_is_found_around_corners_and_under_type_checking():
    texts = {
        "a/one.py": "from leveret.a import two",
        "a/two.py": "def late():\n    from leveret.a.three import f",
        "a/three.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import leveret.a.one",
        "a/four.py": "from leveret.a.one import f",
    }
    modules = [Source(PurePosixPath(path), text) for path, text in texts.items()]
    assert import_cycles(modules) == [{"leveret.a.one", "leveret.a.two", "leveret.a.three"}]


def test_io_happens_only_at_the_file_seam():
    assert violations(io_outside_the_seam) == []


def test_arrow_stays_in_its_own_file_of_the_store():
    assert violations(arrow_outside_its_file) == []


def test_the_broker_knows_no_protocol_but_the_form_of_a_message():
    assert violations(protocol_in_the_broker) == []


def test_nothing_that_is_read_can_run_code():
    assert violations(code_in_data) == []


def test_nobody_looks_behind_the_cursor_of_a_store():
    assert violations(behind_the_cursor) == []


def test_no_file_and_no_function_is_too_large_to_read():
    assert violations(too_large) == []


def test_no_class_has_too_many_public_methods():
    assert violations(too_many_methods) == []


def test_large_classes_are_named_only_as_long_as_they_are_large():
    large = {
        f"{source.module}.{node.name}"
        for source in sources()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ClassDef) and len(_public_methods(node)) > MAX_PUBLIC_METHODS
    }
    assert set(LARGE_CLASSES) == large


def test_no_module_has_a_name_that_says_nothing():
    assert violations(vaguely_named) == []


def test_docstrings_name_their_subject():
    vague = violations(vague_docstrings)
    assert len(vague) <= VAGUE_DOCSTRINGS_MAX, "\n".join(vague)


@pytest.mark.parametrize(
    ("rule", "path", "text"),
    [
        (wrong_layer, "storage/log.py", "import leveret.broker.queues.queue"),
        (wrong_layer, "storage/log.py", "from leveret import amqp"),
        (wrong_layer, "storage/log.py", "from ..amqp import frames"),
        (wrong_layer, "storage/log.py", "from .. import server"),
        (wrong_layer, "storage/__init__.py", "from ..testing import crash"),
        (wrong_layer, "storage/wal/frames.py", "from ...broker import queue"),
        (wrong_layer, "client/publisher.py", "def late():\n    from leveret.storage import log"),
        (wrong_layer, "testing/kit.py", "import leveret.cli"),
        (wrong_layer, "__init__.py", "from leveret.storage import log"),
        (wrong_layer, "gossip/ring.py", ""),
        (wrong_layer, "fronts/gossip/ring.py", ""),
        (wrong_layer, "fronts/http/app.py", "from leveret.fronts.amqp import connection"),
        (wrong_layer, "fronts/http/app.py", "from .. import amqp"),
        (wrong_layer, "fronts/http/app.py", "from leveret.server import turns"),
        (wrong_layer, "fronts/__init__.py", "from leveret.broker import broker"),
        (wrong_layer, "broker/queues/queue.py", "from leveret.fronts.http import app"),
        (
            wrong_layer,
            "amqp/frames.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import leveret.storage",
        ),
        (around_the_views, "fronts/http/app.py", "from leveret.broker.queues.queue import Queue"),
        (around_the_views, "fronts/http/app.py", "from leveret.broker import vhost"),
        (around_the_views, "fronts/http/app.py", "from leveret.broker.streams.stream import Stream"),
        (io_outside_the_seam, "storage/log.py", "import os.path"),
        (io_outside_the_seam, "storage/log.py", "from time import monotonic"),
        (io_outside_the_seam, "broker/queues/queue.py", "def late():\n    import asyncio"),
        (io_outside_the_seam, "broker/queues/queue.py", "import threading"),
        (io_outside_the_seam, "amqp/frames.py", "open('trace')"),
        (arrow_outside_its_file, "storage/log.py", "import pyarrow as pa"),
        (protocol_in_the_broker, "broker/queues/queue.py", "from leveret.amqp.tables import Value"),
        (protocol_in_the_broker, "broker/queues/queue.py", "def late():\n    from pamqp import commands"),
        (code_in_data, "spark/reader.py", "def late():\n    from pickle import loads"),
        (code_in_data, "server/turns.py", "import multiprocessing.shared_memory"),
        (
            behind_the_cursor,
            "broker/queues/queue.py",
            "def ready(self):\n    return self.cursor.progress.ready",
        ),
        (behind_the_cursor, "fronts/flight/stream_requests.py", "with broker.store.lock:\n    pass"),
        (too_large, "storage/log.py", "x = 1\n" * 601),
        (too_large, "storage/log.py", "def long():\n" + "    x = 1\n" * 70),
        (too_many_methods, "storage/log.py", _class_with_methods(21)),
        (too_many_methods, "storage/log.py", _class_with_methods(21).replace("    def", "    async def")),
        (vague_docstrings, "storage/log.py", 'def f():\n    """What it is in, if it is in one."""'),
        (vaguely_named, "storage/utils.py", ""),
        (vaguely_named, "storage/queue_manager.py", ""),
        (vaguely_named, "common/log.py", ""),
    ],
)
def test_the_checker_catches(rule, path, text):
    assert len(rule(Source(PurePosixPath(path), text))) == 1


@pytest.mark.parametrize(
    ("rule", "path", "text"),
    [
        (wrong_layer, "storage/log.py", "from . import segment\nfrom .wal.frames import Frame"),
        (wrong_layer, "storage/wal/frames.py", "from ..errors import Damaged"),
        (wrong_layer, "broker/canonical.py", "from leveret.storage import Log\nimport leveret.amqp.frames"),
        (protocol_in_the_broker, "broker/canonical.py", "from leveret.amqp.tables import Value"),
        (wrong_layer, "storage/log.py", "from leveret import __version__\nimport leveretish.broker"),
        (
            wrong_layer,
            "fronts/http/app.py",
            "from leveret.fronts.http.auth import log_in\nfrom . import paths",
        ),
        (wrong_layer, "fronts/amqp/channel.py", "from leveret.amqp import frames"),
        (wrong_layer, "server/server.py", "from leveret.fronts.amqp import connection"),
        (wrong_layer, "cli/serve.py", "import leveret.testing"),
        (around_the_views, "fronts/http/app.py", "from leveret.broker.views import queues"),
        (around_the_views, "fronts/http/app.py", "from leveret.broker.access import administration"),
        (around_the_views, "server/server.py", "from leveret.broker.queues.queue import Queue"),
        (io_outside_the_seam, "storage/files.py", "import os\nopen('x')"),
        (io_outside_the_seam, "storage/log.py", "import threading\nfiles.open('x')"),
        (io_outside_the_seam, "server/listener.py", "import asyncio, socket"),
        (arrow_outside_its_file, "storage/arrow.py", "import pyarrow as pa"),
        (behind_the_cursor, "storage/store.py", "with self.store.lock:\n    cursor.progress.take(1)"),
        (behind_the_cursor, "client/redrive.py", "return move.progress"),
        (behind_the_cursor, "server/http.py", "with self.lock:\n    pass"),
        (too_large, "storage/log.py", "x = 1\n" * 600),
        (too_large, "storage/log.py", "def long():\n" + "    x = 1\n" * 69),
        (too_many_methods, "storage/log.py", _class_with_methods(20) + "    def _more(self): ...\n"),
        (too_many_methods, "broker/broker.py", _class_with_methods(21).replace("Many", "Broker")),
        (vague_docstrings, "storage/log.py", 'def f():\n    """Return the lane of this delivery."""'),
        (vaguely_named, "storage/database.py", ""),
    ],
)
def test_the_checker_lets_pass(rule, path, text):
    assert rule(Source(PurePosixPath(path), text)) == []
