"""The form of log lines: one line for each record, whatever names strangers choose."""

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leveret.server import logs
from leveret.server.configuration import Configuration

EVIL = "a\r\n2026-01-01 00:00:00,000 INFO all is well\x1b[2J\x9b1m\u2028\u202e\udcff\0"


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger, with its handlers put back after the test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()
    yield root
    for handler in root.handlers:
        handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)


def written(root: logging.Logger, tmp_path: Path, form: str, *arguments: Any, **fields: Any) -> list[str]:
    """The lines of the file after one warning."""
    file = tmp_path / "broker.log"
    default = Configuration()
    logs.set_up(
        {name: default[name] for name in default.values} | {"log.file": str(file), "log.format": form}
    )
    logging.getLogger("leveret").warning(*arguments, **fields)
    # Not splitlines, which would count U+2028 as an end of line; `cat` does not.
    return file.read_bytes().decode().removesuffix("\n").split("\n")


def test_a_name_can_not_forge_a_line_of_text(root: logging.Logger, tmp_path: Path) -> None:
    (line,) = written(root, tmp_path, "text", "queue '%s' is gone", EVIL)
    assert line.isprintable()
    shown = r"a\r\n2026-01-01 00:00:00,000 INFO all is well\x1b[2J\x9b1m\u2028\u202e\udcff\x00"
    assert line.endswith(f"WARNING queue '{shown}' is gone")


def test_a_name_can_not_forge_a_line_of_json(root: logging.Logger, tmp_path: Path) -> None:
    (line,) = written(root, tmp_path, "json", "queue '%s' is gone", EVIL, extra={"queue": EVIL})
    assert line.isascii()
    assert json.loads(line)["queue"] == EVIL


def test_the_text_of_an_exception_can_not_forge_a_line(root: logging.Logger, tmp_path: Path) -> None:
    first, *rest = written(root, tmp_path, "text", "an error", exc_info=ValueError(EVIL))
    assert first.endswith(" WARNING an error")
    assert rest
    assert all(line.startswith("  ") and line.isprintable() for line in rest)


def test_a_long_message_keeps_its_ends(root: logging.Logger, tmp_path: Path) -> None:
    for form in ("text", "json"):
        line = written(root, tmp_path, form, "queue '%s': %s", "q" * 100_000, "the reason")[-1]
        assert len(line) < 5_000
        assert "the reason" in line
        assert "queue 'qqq" in line


def test_stderr_gets_the_lines_without_a_file(root: logging.Logger, monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr("sys.stderr", stderr)
    logs.set_up(Configuration())
    logging.getLogger("leveret").info("a line")
    logging.getLogger("leveret").debug("not this one")
    assert stderr.getvalue().endswith(" INFO a line\n")
    assert stderr.getvalue().count("\n") == 1
