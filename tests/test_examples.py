"""Runs what is in `examples/`, in a process of its own, as a reader would.

What an example of the client toolkit prints is in docs/guide/scenarios.md, behind a line that starts with
"```text": there it is read by people, and here it is compared. A second such block, "```text rabbitmq", is
for an example that ends differently there.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import WAIT_S
from tests.rabbitmq.node import RabbitMQ

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[1]
GUIDE = ROOT / "docs" / "guide" / "scenarios.md"
PRINTED = {
    "broker_in_a_test.py": "order 0 (redelivered)\norder 1 (redelivered)\norder 2 (redelivered)\n",
    "store.py": "0 one\n1 two\n",
    "tracing.py": """\
checkout
  send tracing.orders: confirmed
    process tracing.orders: attempt 1 retried ERROR
    process tracing.orders: attempt 2 acked ERROR
      send tracing.orders.parked: confirmed
    process tracing.orders.parked: attempt 1 not needed
""",
}
SHARED = {"playground.py"}
SECTION = re.compile(r"^## .*?(?=^## |\Z)", re.DOTALL | re.MULTILINE)
EXAMPLE = re.compile(r"\]\(\.\./\.\./examples/(\w+\.py)\)")
BLOCK = re.compile(r"^```(\w+(?: \w+)?)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def scenarios() -> dict[str, list[tuple[str, str]]]:
    """The blocks of each section of the guide, under the name of the example that the section is about."""
    sections = SECTION.findall(GUIDE.read_text(encoding="utf-8"))
    return {found[1]: BLOCK.findall(text) for text in sections if (found := EXAMPLE.search(text))}


SCENARIOS = scenarios()


def printed_in_the_guide(name: str, broker: str = "") -> str:
    blocks = dict(SCENARIOS[name])
    return blocks.get(f"text {broker}", blocks["text"])


def printed_by(name: str, *arguments: str) -> str:
    command = [sys.executable, str(ROOT / "examples" / name), *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout


def test_every_example_is_run():
    examples = {path.name for path in (ROOT / "examples").glob("*.py")}
    assert examples == PRINTED.keys() | SCENARIOS.keys() | SHARED


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_runs_and_prints_what_it_should(name):
    assert printed_by(name) == PRINTED[name]


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_needs_no_broker_and_prints_what_the_guide_says(name):
    assert printed_by(name) == printed_in_the_guide(name)


@pytest.mark.needs_rabbitmq
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_prints_on_rabbitmq_what_the_guide_says(name, rabbitmq: RabbitMQ):
    printed = printed_by(name, "--url", rabbitmq.url).replace(f"vhost '{rabbitmq.vhost}'", "vhost '/'")
    assert printed == printed_in_the_guide(name, "rabbitmq")


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_code_that_the_guide_shows_is_the_code_of_the_example(name):
    source = without_indentation((ROOT / "examples" / name).read_text(encoding="utf-8"))
    excerpts = [text for kind, text in SCENARIOS[name] if kind == "python"]
    assert excerpts
    assert all(without_indentation(excerpt) in source for excerpt in excerpts)


def without_indentation(text: str) -> str:
    return "\n".join(line.strip() for line in text.strip().splitlines())


def test_the_readme_leads_to_every_example():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert all(f"(examples/{name})" in readme for name in PRINTED)
    assert "(docs/guide/README.md)" in readme  # from where it is one step to the scenarios
    assert "(scenarios.md)" in (ROOT / "docs" / "guide" / "README.md").read_text(encoding="utf-8")
