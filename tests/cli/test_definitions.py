"""`leveret definitions`: exported to a file and imported from one, over HTTP and on a data directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from leveret.testing.broker import Broker
from tests.cli.api_commands import http, leveret  # noqa: F401  (fixtures)

QUEUE = {"name": "orders", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "definitions.json"
    path.write_text(json.dumps({"queues": [QUEUE], "users": [{"name": "ann", "password": "x", "tags": ""}]}))
    return path


def queues(document: dict[str, Any]) -> list[str]:
    return [item["name"] for item in document["queues"]]


def test_a_file_is_imported_and_exported_again(leveret: Any, file: Path, tmp_path: Path) -> None:  # noqa: F811
    ran = leveret("definitions", "import", file)
    assert (ran.code, ran.err) == (0, f"leveret: the definitions in {file} are imported\n")
    copy = tmp_path / "copy.json"
    ran = leveret("definitions", "export", copy)
    assert ran.code == 0
    assert ran.err.splitlines()[0] == "leveret: RabbitMQ has no equivalent of:"
    assert "user 'ann' can't log in to RabbitMQ" in ran.err
    assert f"written to {copy}: users 2, vhosts 1, policies 0, queues 1, exchanges 0, bindings 0" in ran.err
    assert queues(json.loads(copy.read_text())) == ["orders"]
    assert copy.stat().st_mode & 0o007 == 0
    assert queues(leveret("definitions", "export").result) == ["orders"]


def test_a_dry_run_says_what_would_be_left_out(leveret: Any, file: Path) -> None:  # noqa: F811
    file.write_text(json.dumps({"queues": [QUEUE], "shovels": []}))
    ran = leveret("definitions", "import", file, "--dry-run", "--json")
    assert ran.result == {
        "file": str(file),
        "dry_run": True,
        "left_out": ["shovels: definitions have no such section"],
    }
    assert queues(leveret("definitions", "export").result) == []


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is not JSON: line 1, column 2: "),
        ("[]", "it must hold a JSON object"),
        ('{"queues": [5]}', "queues[0] is 5; it must be a JSON object"),
    ],
)
def test_a_wrong_file_is_one_sentence(leveret: Any, file: Path, text: str, sentence: str) -> None:  # noqa: F811
    file.write_text(text)
    ran = leveret("definitions", "import", file)
    assert (ran.code, ran.err.count("\n")) == (1, 1)
    assert sentence in ran.err


def test_a_data_directory_is_read_and_changed_without_its_broker(
    leveret: Any,  # noqa: F811
    file: Path,
    tmp_path: Path,
) -> None:
    directory = tmp_path / "data"
    with Broker(directory):
        ran = leveret("definitions", "export", "--data-dir", directory)
        assert (ran.code, "is locked by process" in ran.err) == (1, True), ran.err
    assert leveret("definitions", "import", file, "--data-dir", directory, "--dry-run").code == 0
    assert queues(leveret("definitions", "export", "--data-dir", directory).result) == []
    ran = leveret("definitions", "import", file, "--data-dir", directory)
    assert ran.code == 0, ran.err
    assert queues(leveret("definitions", "export", "--data-dir", directory).result) == ["orders"]
    with Broker(directory) as broker:
        assert broker.depth("orders") == 0


def test_a_directory_without_a_broker_is_one_sentence(leveret: Any, tmp_path: Path) -> None:  # noqa: F811
    ran = leveret("definitions", "export", "--data-dir", tmp_path)
    assert (ran.code, "is not a broker's data directory" in ran.err) == (1, True)
