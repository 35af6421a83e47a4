"""`leveret serve --definitions FILE`: what the file holds is there before a client can connect."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.serving import Serving
from tests.processes import WAIT_S
from tests.semantics.client import Client

pytestmark = pytest.mark.real

QUEUE = {"name": "orders", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}


def written(path: Path, document: dict[str, Any]) -> Path:
    path.write_text(json.dumps(document))
    return path


def test_a_file_is_imported_at_every_start(tmp_path: Path) -> None:
    file = written(tmp_path / "definitions.json", {"queues": [QUEUE], "shovels": []})
    for _ in range(2):
        with Serving(tmp_path / "data", "--definitions", str(file)) as server:
            assert Client(server.port).channel().declare("orders", passive=True).queue == "orders"
            assert "definitions.json: left out: shovels: definitions have no such section" in server.errors
            assert server.terminate() == 0


def test_a_file_with_a_mistake_stops_the_start(tmp_path: Path) -> None:
    for document, sentence in (
        ({"queues": [{**QUEUE, "vhost": "nope"}]}, "queues[0]: no virtual host 'nope'"),
        (None, "no.json can't be read: No such file or directory"),
    ):
        file = tmp_path / "no.json" if document is None else written(tmp_path / "bad.json", document)
        command = [sys.executable, "-m", "leveret", "serve", "--port", "0"]
        command += ["--data-dir", str(tmp_path / "data"), "--definitions", str(file)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
        assert (ran.returncode, ran.stdout) == (1, "")
        assert ran.stderr.startswith("leveret: ")
        assert sentence in ran.stderr
