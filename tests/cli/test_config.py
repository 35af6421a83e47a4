"""`leveret config`: the settings as `leveret serve` would read them."""

import json
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from leveret.cli.main import app
from leveret.server.configuration import read
from leveret.server.settings import SETTINGS
from tests import configuration_page


def config(*words: object, code: int = 0) -> Result:
    ran = CliRunner().invoke(app, ["config", *map(str, words)], catch_exceptions=False)
    assert ran.exit_code == code, ran.output
    return ran


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "leveret.toml"
    path.write_text("[amqp]\nheartbeat_s = 30\n[log]\nformat = 'json'\n")
    return path


def test_it_shows_every_setting_with_its_origin(file: Path) -> None:
    rows = json.loads(config("show", "--json", "--config", file, "--set", "log.format=text").stdout)
    assert rows.keys() == {setting.name for setting in SETTINGS}
    assert rows["amqp.heartbeat_s"] == {"value": 30, "from": f"{file}, line 2"}
    assert rows["log.format"] == {"value": "text", "from": "--set"}
    assert rows["listeners.amqp_port"] == {"value": 5672, "from": "default"}


def test_it_shows_only_what_was_changed(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEVERET_CONFIG", str(file))
    assert config("show", "--changed").stdout.splitlines() == [
        f"amqp.heartbeat_s  30  ({file}, line 2)",
        f"log.format        'json'  ({file}, line 4)",
    ]


def test_a_mistake_is_one_sentence_and_exit_code_1(file: Path, tmp_path: Path) -> None:
    assert "no mistakes" in config("check", "--config", file).stdout
    ran = config("check", "--set", "amqp.heartbeat_s=never", code=1)
    assert (
        ran.stderr
        == "leveret: --set: amqp.heartbeat_s is 'never', and must be a whole number from 0 to 65535\n"
    )
    missing = tmp_path / "missing.toml"
    ran = config("check", "--config", missing, code=1)
    assert ran.stderr == f"leveret: {missing} can't be read: No such file or directory (is --config right?)\n"
    file.write_bytes(b"\xff")
    assert "it is not UTF-8" in config("check", "--config", file, code=1).stderr
    assert "'heartbeat' is not NAME=VALUE" in config("check", "--set", "heartbeat", code=2).stderr


def test_the_page_of_the_guide_is_what_the_settings_say_today() -> None:
    text = configuration_page.PAGE.read_text(encoding="utf-8")
    assert configuration_page.page() == text, "docs/guide/configuration.md is out of date: run `make docs`"


def test_the_examples_of_the_guide_are_read_and_run_as_they_are_written() -> None:
    text = configuration_page.PAGE.read_text(encoding="utf-8")
    (example,) = re.findall(r"^```toml\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert read(example)["log.file"] == "/var/log/leveret.log"
    (console,) = re.findall(r"^```console\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    said = ""
    for line in console.splitlines():
        if line.startswith("$ leveret "):
            said += f"{line}\n{CliRunner().invoke(app, shlex.split(line)[2:]).output}"
    assert said == console
