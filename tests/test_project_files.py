"""The files around the code are valid and agree with each other: workflows, forms, hooks, versions, pins.

The schemas come with the package check-jsonschema, so that these tests need no network.
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from leveret import __version__
from tests.processes import WAIT_S

pytestmark = pytest.mark.real

ROOT = Path(__file__).parent.parent
WORKFLOWS = ".github/workflows"
FORMS = ".github/ISSUE_TEMPLATE"

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = (ROOT / "constraints.txt").read_text().splitlines()


def schema_errors(schema: str, file: Path) -> str:
    """Return what check-jsonschema says against this file, or nothing."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, str(file)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    return ran.stdout + ran.stderr if ran.returncode else ""


def loaded(path: str) -> dict:
    return yaml.safe_load((ROOT / path).read_text())


def commands_of(workflow: str) -> str:
    jobs = loaded(f"{WORKFLOWS}/{workflow}")["jobs"].values()
    return "\n".join(step["run"] for job in jobs for step in job["steps"] if "run" in step)


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize(
    ("schema", "file"),
    [
        ("vendor.github-workflows", f"{WORKFLOWS}/ci.yml"),
        ("vendor.github-workflows", f"{WORKFLOWS}/nightly.yml"),
        ("custom.github-workflows-require-timeout", f"{WORKFLOWS}/ci.yml"),
        ("custom.github-workflows-require-timeout", f"{WORKFLOWS}/nightly.yml"),
        ("vendor.github-issue-forms", f"{FORMS}/bug.yml"),
        ("vendor.github-issue-forms", f"{FORMS}/feature.yml"),
        ("vendor.github-issue-config", f"{FORMS}/config.yml"),
    ],
)
def test_a_file_for_the_hosting_is_valid_by_its_schema(schema, file):
    assert schema_errors(schema, ROOT / file) == ""


def test_no_file_for_the_hosting_goes_unchecked():
    found = {path.relative_to(ROOT / ".github").as_posix() for path in (ROOT / ".github").rglob("*.yml")}
    workflows = {"workflows/ci.yml", "workflows/nightly.yml"}
    forms = {"ISSUE_TEMPLATE/bug.yml", "ISSUE_TEMPLATE/feature.yml", "ISSUE_TEMPLATE/config.yml"}
    assert found == workflows | forms


def test_a_workflow_with_a_misspelt_key_is_refused(tmp_path):
    wrong = tmp_path / "ci.yml"
    wrong.write_text((ROOT / WORKFLOWS / "ci.yml").read_text().replace("runs-on:", "run-on:"))
    assert "run-on" in schema_errors("vendor.github-workflows", wrong)


def test_the_hooks_are_valid_and_are_those_of_make():
    path = ".pre-commit-config.yaml"
    command = [sys.executable, "-m", "pre_commit", "validate-config", str(ROOT / path)]
    subprocess.run(command, check=True, timeout=WAIT_S)
    (repository,) = loaded(path)["repos"]
    assert repository["repo"] == "local"
    assert [hook["entry"] for hook in repository["hooks"]] == ["make lint", "make types"]
    assert all(hook["language"] == "system" and not hook["pass_filenames"] for hook in repository["hooks"])


def test_ci_lints_checks_types_tests_and_installs_the_wheel():
    commands = commands_of("ci.yml")
    for wanted in ("make lint", "make types", "make test", "-m build", "dist/*.whl", "leveret --version"):
        assert wanted in commands


def test_the_nightly_run_has_every_test():
    assert commands_of("nightly.yml") == "make test-all"


@pytest.mark.parametrize("workflow", ["ci.yml", "nightly.yml"])
def test_workflows_call_targets_that_make_has(workflow):
    assert set(re.findall(r"make ([a-z-]+)", commands_of(workflow))) <= make_targets()


@pytest.mark.parametrize(
    ("workflow", "job"), [("ci.yml", "test"), ("ci.yml", "package"), ("nightly.yml", "test-all")]
)
def test_workflows_run_on_every_python_that_the_package_names(workflow, job):
    prefix = "Programming Language :: Python :: 3."
    named = ["3." + line.removeprefix(prefix) for line in PROJECT["classifiers"] if line.startswith(prefix)]
    assert loaded(f"{WORKFLOWS}/{workflow}")["jobs"][job]["strategy"]["matrix"]["python"] == named


def test_the_newest_release_of_the_changelog_is_the_version_of_the_package():
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "[Unreleased]"
    assert re.fullmatch(rf"\[{re.escape(__version__)}\] - \d{{4}}-\d\d-\d\d", headings[1])


def test_the_supported_version_is_the_one_that_is_released():
    minor = __version__.rpartition(".")[0]
    assert f"| {minor} (latest release) | yes |" in (ROOT / "SECURITY.md").read_text()


def test_pins_are_names_and_versions_in_order():
    assert [pin for pin in PINS if not re.fullmatch(r"[\w.-]+==[\w.]+", pin)] == []
    assert sorted(PINS, key=str.lower) == PINS


def test_every_package_that_is_asked_for_is_pinned():
    extras = PROJECT["optional-dependencies"]
    wanted = [*PROJECT["dependencies"], *(name for extra in extras.values() for name in extra)]
    names = {normal(re.match(r"[\w.-]+", one)[0]) for one in wanted}
    assert names - {normal(pin.partition("==")[0]) for pin in PINS} == set()
