"""The command `leveret` in a process of its own, as a user starts it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any, NamedTuple

LIMIT_S = 60


class Ran(NamedTuple):
    """Exit code and output of a command."""

    code: int
    out: bytes
    err: str

    @property
    def result(self) -> Any:
        """Return the JSON object on stdout."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.decode().splitlines()


def arguments(*words: object) -> list[str]:
    return [sys.executable, "-m", "leveret", *map(str, words)]


def environment(url: str) -> dict[str, str]:
    """Return variables for a command without a terminal."""
    return {**os.environ, "LEVERET_URL": url, "TERM": "dumb", "COLUMNS": "200", "NO_COLOR": "1"}


def leveret(*words: object, url: str, stdin: bytes = b"") -> Ran:
    """Run a command and wait for its end."""
    ran = subprocess.run(
        arguments(*words), input=stdin, capture_output=True, env=environment(url), timeout=LIMIT_S
    )
    return ended(ran.returncode, ran.stdout, ran.stderr)


def started(*words: object, url: str, **options: Any) -> subprocess.Popen[bytes]:
    """Start a command with pipes for stdin, stdout and stderr, unless `options` say otherwise."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE) | options
    return subprocess.Popen(arguments(*words), env=environment(url), **pipes)


def finished(process: subprocess.Popen[bytes]) -> Ran:
    out, err = process.communicate(timeout=LIMIT_S)
    return ended(process.returncode, out or b"", err or b"")


def ended(code: int, out: bytes, err: bytes) -> Ran:
    text = err.decode()
    assert "Traceback" not in text, text
    return Ran(code, out, text)
