"""Keeps `docs/guide/compatibility.md` honest: what the tests say today, whole, and no name in it old.

What the page must mention is taken from elsewhere: pamqp's methods and properties, the arguments and exchange
types in the broker's source, what the broker announces. Finding tests is tried on small modules of its own.
"""

import ast
import re
from pathlib import Path

import amqp
import pytest
from pamqp import commands

from leveret.broker.exchanges import ROUTERS
from leveret.broker.exchanges.headers import MATCHES
from leveret.broker.queues import arguments
from leveret.testing.broker import Broker
from tests.compatibility import __main__, evidence, messages, page
from tests.compatibility.claims import Claim, Section, State, claim
from tests.differential.deviations import INSTEAD, REWRITES
from tests.differential.wire import wire_name

pytestmark = pytest.mark.xdist_group("compatibility page")  # finding all tests takes seconds

PAGE = page.PATH.read_text(encoding="utf-8")
CLAIMS = [each for _, sections in page.CHAPTERS for section in sections for each in section.claims]
NAMES = {each.name for each in CLAIMS}
MORE_METHODS = [
    "access.request",
    "access.request-ok",
    "basic.credit",
    "basic.credit-ok",
    "basic.credit-drained",
]
MODULE = '''
from tests.differential.wire import table

ARGUMENTS = {"x-expires": 5}

def _filled(channel):
    """Not a word of this about queue_purge."""
    channel.queue_declare("q", arguments=ARGUMENTS)

def test_one(channel):
    channel.basic_publish("", "q", b"1", x_max_length=3)

def test_two(channel):
    _filled(channel)
    channel.send(commands.Basic.RecoverAsync(requeue=True))

def test_three(channel):
    table({"x-overflow": "drop-head"})

def test_four(joined):
    joined(3)
'''
FIXTURES = """
def joined(channel):
    channel.basic_consume("q", arguments={"x-group": "billing"})
"""


# --- the page as it is ------------------------------------------------------------------------------------


def test_the_page_is_what_the_tests_say_today() -> None:
    assert page.text() == PAGE, "docs/guide/compatibility.md is out of date: run `make docs`"


def test_every_claim_that_something_works_has_a_test() -> None:
    assert page.missing() == []


def test_no_name_of_a_test_on_the_page_is_stale() -> None:
    shown = set(re.findall(r"`(tests/[^`]+)::([^`]+)`", PAGE))
    assert len(shown) > 100
    for path, name in shown:
        tree = ast.parse((evidence.ROOT / path).read_text(encoding="utf-8"))
        functions = {
            node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        assert name in functions, f"there is no {name} in {path}"


def test_every_link_of_the_page_leads_to_a_file() -> None:
    for target in set(re.findall(r"\]\(([^)]+)\)", PAGE)):
        assert (page.PATH.parent / target).exists(), target


def test_no_line_of_a_table_is_broken() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("|")]
    assert all(line.endswith(" |") for line in rows)
    for table in re.findall(r"(?:^\|.*\n)+", PAGE, re.M):
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(widths) == 1, table.partition("\n")[0]


# --- nothing is left out ----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [*map(wire_name, commands.INDEX_MAPPING.values()), *MORE_METHODS])
def test_every_method_is_on_the_page(method: str) -> None:
    assert f"`{method}`" in PAGE


def test_every_argument_that_the_broker_knows_is_on_the_page() -> None:
    tree = ast.parse(Path(arguments.__file__).read_text(encoding="utf-8"))
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    known = {text for text in texts if isinstance(text, str) and re.fullmatch(r"x-[a-z-]+", text)}
    assert len(known) > 30
    without_values = {name.partition("=")[0] for name in NAMES}
    assert known | {"alternate-exchange"} <= without_values


def test_every_value_that_an_argument_can_have_is_on_the_page() -> None:
    values = {"x-overflow": arguments.OVERFLOWS, "x-queue-type": arguments.QUEUE_TYPES, "x-match": MATCHES}
    for argument, words in values.items():
        assert {f"{argument}={word}" for word in words} <= NAMES


def test_every_type_of_exchange_is_on_the_page() -> None:
    assert set(ROUTERS) <= NAMES


def test_every_property_is_on_the_page() -> None:
    assert {each.name for each in messages.PROPERTIES} == set(commands.Basic.Properties.attributes())


def test_every_capability_that_the_broker_announces_is_on_the_page(leveret_broker: Broker) -> None:
    with amqp.Connection(f"127.0.0.1:{leveret_broker.port}") as connection:
        assert {each.name for each in messages.SERVER_CAPABILITIES} == set(connection.server_capabilities)


def test_every_deviation_is_on_the_page_with_its_reason() -> None:
    for deviation in INSTEAD:
        assert f"::{deviation.scenario.partition('.')[2]}`" in PAGE
        assert deviation.reason in PAGE
    for rewrite in REWRITES:
        assert rewrite.reason in PAGE or rewrite.reason.startswith("As above")


# --- how tests are found ----------------------------------------------------------------------------------


@pytest.fixture
def found(tmp_path: Path) -> dict[str, evidence.Test]:
    path = tmp_path / "test_some.py"
    path.write_text(MODULE)
    path.with_name("conftest.py").write_text(FIXTURES)
    module = evidence.module_at(path)
    return {
        test.name: test for test in evidence.tests_in(module, "tests/some/test_some.py", is_scenario=False)
    }


def test_a_test_says_what_it_calls_and_with_which_options(found: dict[str, evidence.Test]) -> None:
    assert {"basic_publish", "x-max-length", "x-max-length=3"} <= found["test_one"].own


def test_a_method_of_pamqp_is_spelled_as_clients_spell_it(found: dict[str, evidence.Test]) -> None:
    assert {"basic_recover_async", "requeue=True"} <= found["test_two"].own


def test_what_a_test_uses_of_its_module_counts_less_than_its_own_words(
    found: dict[str, evidence.Test],
) -> None:
    borrowed = found["test_two"].all - found["test_two"].own
    assert {"queue_declare", "x-expires", "x-expires=5"} <= borrowed


def test_what_a_test_imports_from_other_tests_is_looked_at_too(found: dict[str, evidence.Test]) -> None:
    assert "x-overflow=drop-head" in found["test_three"].own
    assert "longstr" in found["test_three"].all - found["test_three"].own


def test_what_a_test_uses_of_the_fixtures_of_its_folder_is_looked_at_too(
    found: dict[str, evidence.Test],
) -> None:
    assert {"basic_consume", "x-group"} <= found["test_four"].all - found["test_four"].own


def test_docstrings_say_nothing(found: dict[str, evidence.Test]) -> None:
    assert not any("queue_purge" in word for word in found["test_two"].all)


def test_a_claim_is_shown_by_those_named_after_it_and_by_three_at_most() -> None:
    words = frozenset({"queue_purge"})
    names = ["using_it", "purging_a", "purging_ab", "purging_abc", "test_purging", "test_using_it"]
    paths = ["tests/differential/scenarios/queue.py"] * 4 + ["tests/interop/test_pika.py"] * 2
    tests = [evidence.Test(path, name, words, words) for path, name in zip(paths, names, strict=True)]
    about = claim("queue.purge", State.SUPPORTED, "", "queue_purge", words="purg")
    assert [test.name for test in evidence.tests_for(about, tests)] == [
        "purging_a",
        "purging_ab",
        "test_purging",
    ]


def test_a_claim_without_a_test_stops_the_page(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    bold: Claim = claim("x-tele-" + "port", State.SUPPORTED, "Messages arrive before they are sent.")
    monkeypatch.setattr(page, "CHAPTERS", (("Arguments", (Section("Queues", ("argument",), (bold,)),)),))
    monkeypatch.setattr(__main__, "PATH", tmp_path / "page.md")
    assert __main__.main() == 1
    sentence = f"'{bold.name}' (Queues) is said to be supported, but no test has {bold.name}."
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "page.md").exists()
