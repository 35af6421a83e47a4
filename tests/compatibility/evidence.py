"""Which test is about what: found in the sources of the tests, which are parsed and never run.

A test is a scenario of `tests/differential` or a `test_…` function that talks to a broker. What it says is
the set of words in it: names that it calls, options, strings; and, as a weaker hint, the words of functions,
tables and fixtures of the tests' own modules that it uses. Clients spell AMQP's methods differently; here
they get one spelling. Which words speak for which claim is the claim's (`claims.py`).
"""

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tests.compatibility.claims import Claim

ROOT = Path(__file__).parents[2]
SCENARIOS = "tests/differential/scenarios/"
WITHOUT_A_BROKER = ("amqp", "broker", "compatibility", "differential", "properties", "storage")
TESTS_SHOWN_MAX = 3
SCENARIOS_SHOWN_MAX = 2
OTHER_SUBJECTS = ("spark", "soak")
"""Folders whose tests name properties and arguments too, and show nothing of AMQP."""
OPTIONS = {"auto_ack": "no_ack", "global_qos": "global_", "type": "message_type"}  # as pika calls them
_PAMQP = re.compile(r"(Connection|Channel|Exchange|Queue|Basic|Confirm|Tx)\.[A-Z]\w+")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Test:
    """`path` is relative to the project; `own` are the words of its body, `all` also what it borrows."""

    path: str
    name: str
    own: frozenset[str]
    all: frozenset[str]

    def __str__(self) -> str:
        return f"{self.path}::{self.name}"

    @property
    def is_scenario(self) -> bool:
        return self.path.startswith(SCENARIOS)


@dataclass(slots=True)
class Module:
    """A file of the tests: what its names stand for."""

    path: Path
    functions: dict[str, Function] = field(default_factory=dict)
    tables: dict[str, ast.expr] = field(default_factory=dict)
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    imports: dict[str, tuple[Path, str]] = field(default_factory=dict)


@cache
def module_at(path: Path) -> Module:
    module = Module(path)
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                module.functions[node.name] = node
            case ast.ClassDef():
                module.classes[node.name] = node
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                module.tables[name] = value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                module.tables[name] = value
            case ast.ImportFrom(module=str(origin)) if origin.startswith("tests."):
                source = ROOT / f"{origin.replace('.', '/')}.py"
                if source.exists():
                    module.imports |= {
                        alias.asname or alias.name: (source, alias.name) for alias in node.names
                    }
    return module


# --- words ---------------------------------------------------------------------------------------------


def words_of(root: ast.AST) -> Iterator[str]:
    """The words of one function or table: names, `option=`, `option=value`, strings."""
    unspoken = docstring_of(root)
    for node in ast.walk(root):
        match node:
            case ast.Name(id=name):
                yield name
            case ast.Attribute(attr=name):
                yield from (name, *pamqp_method(ast.unparse(node)))
            case ast.keyword(arg=str(name), value=value):
                yield from words_of_option(OPTIONS.get(name, name), value)
            case ast.Dict(keys=keys, values=values):
                for key, value in zip(keys, values, strict=True):
                    if isinstance(key, ast.Constant) and isinstance(key.value, str):
                        yield from words_of_option(key.value, value)
            case ast.Constant(value=str(text)) if node is not unspoken:
                yield text


def docstring_of(node: ast.AST) -> ast.AST | None:
    match node:
        case ast.FunctionDef(body=[ast.Expr(value=ast.Constant() as text), *_]):
            return text
        case ast.AsyncFunctionDef(body=[ast.Expr(value=ast.Constant() as text), *_]):
            return text
    return None


def pamqp_method(dotted: str) -> Iterator[str]:
    """`commands.Basic.RecoverAsync` is `basic_recover_async`."""
    if found := _PAMQP.search(dotted):
        group, _, method = found.group().partition(".")
        yield group.lower() + re.sub(r"(?=[A-Z])", "_", method).lower()


def words_of_option(name: str, value: ast.expr) -> Iterator[str]:
    """`x_overflow="drop-head"` and `{"x-overflow": "drop-head"}` say the same."""
    if name.startswith("x_"):
        name = name.replace("_", "-")
        yield name
    yield f"{name}="
    if isinstance(value, ast.Constant) and isinstance(value.value, str | int):
        yield f"{name}={value.value}"


# --- what else a test uses -----------------------------------------------------------------------------


def borrowed(module: Module, node: ast.AST, seen: set[ast.AST]) -> Iterator[str]:
    """The words of what a function uses of its own module, and of modules of the tests that it imports."""
    for owner, used in uses(module, node):
        if used not in seen:
            seen.add(used)
            yield from words_of(used)
            yield from borrowed(owner, used, seen)


def uses(module: Module, root: ast.AST) -> Iterator[tuple[Module, ast.AST]]:
    clients = list(client_classes(module))
    for node in ast.walk(root):
        match node:
            case ast.Name(id=name):
                yield from meaning(module, name)
            case ast.Attribute(attr=name):
                for owner, client in clients:
                    yield from ((owner, each) for each in methods_of(client) if each.name == name)


def meaning(module: Module, name: str) -> Iterator[tuple[Module, ast.AST]]:
    """Yield what a name stands for: here, where it was imported from, or among the folder's fixtures."""
    if name in module.imports:
        path, original = module.imports[name]
        yield from meaning(module_at(path), original)
    elif found := module.functions.get(name) or module.tables.get(name):
        yield module, found
    elif module.path.name.startswith("test_"):
        fixtures = module.path.with_name("conftest.py")
        if fixtures.exists():
            yield from meaning(module_at(fixtures), name)


def client_classes(module: Module) -> Iterator[tuple[Module, ast.ClassDef]]:
    """Clients of the tests' own, whose methods stand for AMQP's; `differential` speaks AMQP as it is."""
    if "differential" in module.path.parts:
        return
    yield from ((module, each) for each in module.classes.values())
    for path, name in module.imports.values():
        owner = module_at(path)
        if name in owner.classes and "differential" not in path.parts:
            yield owner, owner.classes[name]


def methods_of(kind: ast.ClassDef) -> Iterator[Function]:
    return (node for node in kind.body if isinstance(node, Function))


# --- tests ---------------------------------------------------------------------------------------------


@cache
def all_tests() -> tuple[Test, ...]:
    """Every scenario and every test that talks to a broker."""
    found: list[Test] = []
    for path in sorted((ROOT / "tests").glob("*/**/*.py")):
        if path.relative_to(ROOT / "tests").parts[0] in OTHER_SUBJECTS:
            continue
        place = path.relative_to(ROOT).as_posix()
        is_scenario = place.startswith(SCENARIOS) and path.name != "__init__.py"
        folder = place.split("/")[1]
        if is_scenario or (path.name.startswith("test_") and folder not in WITHOUT_A_BROKER):
            found += tests_in(module_at(path), place, is_scenario=is_scenario)
    return tuple(found)


def tests_in(module: Module, place: str, *, is_scenario: bool) -> Iterator[Test]:
    for name, function in module.functions.items():
        if name.startswith("test_") or (is_scenario and not name.startswith("_")):
            own = frozenset(words_of(function))
            yield Test(place, name, own, own | frozenset(borrowed(module, function, {function})))


def tests_for(claim: Claim, tests: Iterable[Test]) -> list[Test]:
    """The tests that show a claim best: scenarios first, but not alone if there are others.

    Where some are named after the claim, those that merely use it say nothing more.
    """
    ranked = sorted((rank(claim, test), str(test), test) for test in tests if fits(claim, test.all))
    is_named = bool(ranked) and ranked[0][0][0] < len(claim.words)
    about = [test for (named, *_), _, test in ranked if named < len(claim.words) or not is_named]
    scenarios = [test for test in about if test.is_scenario]
    others = [test for test in about if not test.is_scenario]
    chosen = scenarios[: SCENARIOS_SHOWN_MAX if others else TESTS_SHOWN_MAX]
    return chosen + others[: TESTS_SHOWN_MAX - len(chosen)]


def fits(claim: Claim, words: frozenset[str]) -> bool:
    return any(words.issuperset(clue.split(" & ")) for clue in claim.clues)


def rank(claim: Claim, test: Test) -> tuple[int, bool, int]:
    """Lowest first: named after it (the first word is the best), saying it itself, with a short name."""
    named = (place for place, word in enumerate(claim.words) if f"_{word}" in f"_{test.name}")
    return next(named, len(claim.words)), not fits(claim, test.own), len(test.name)
