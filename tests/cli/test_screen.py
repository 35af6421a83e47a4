"""What people see: bars on terminals only, one line for an error, stdout for programs."""

import os
import pty
import re
import subprocess
from collections.abc import Callable

import pytest

from tests.cli.command import LIMIT_S, arguments, environment, leveret
from tests.cli.queues import bodies, declare, depth, put

HUNDRED = [b"%d" % number for number in range(100)]


def seen_on_a_terminal(*words: object, url: str, stdin: bytes = b"") -> tuple[int, bytes, str]:
    """Exit code, stdout, and what a terminal on stderr was sent."""
    ours, theirs = pty.openpty()
    variables = {**environment(url), "TERM": "xterm-256color"}
    with subprocess.Popen(
        arguments(*words), env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=theirs
    ) as process:
        os.close(theirs)
        out, _ = process.communicate(stdin, timeout=LIMIT_S)
    seen = b""
    try:
        while chunk := os.read(ours, 65536):
            seen += chunk
    except OSError:
        pass  # so a terminal ends whose other side is closed
    os.close(ours)
    return process.returncode, out, re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen.decode())


def test_a_terminal_shows_a_bar_and_stdout_is_untouched(leveret_url: str, fresh: Callable[[str], str]):
    queue = declare(leveret_url, fresh("bar"))
    lines = b"\n".join(HUNDRED)
    code, out, seen = seen_on_a_terminal("publish", "-q", queue, "--rate", 200, url=leveret_url, stdin=lines)
    assert (code, out) == (0, b"")
    assert "publishing" in seen
    assert "unconfirmed" in seen
    assert "leveret: 100 confirmed" in seen

    words = ("consume", queue, "--count", 100)
    code, out, seen = seen_on_a_terminal(*words, "--peek", url=leveret_url)
    assert (code, out.split()) == (0, HUNDRED)
    assert "consuming" not in seen, "it would stand among the lines, if a pipe ends on the terminal"
    code, out, seen = seen_on_a_terminal(*words, "--output", "/dev/null", url=leveret_url)
    assert (code, out) == (0, b"")
    assert "consuming" in seen
    assert "leveret: 100 messages consumed" in seen


def test_a_redrive_shows_how_far_it_is(leveret_url: str, fresh: Callable[[str], str]):
    source, to = declare(leveret_url, fresh("source"), HUNDRED), declare(leveret_url, fresh("to"))
    code, out, seen = seen_on_a_terminal("redrive", source, "--to", to, "--rate", 100, url=leveret_url)
    assert (code, out, depth(leveret_url, to)) == (0, b"", 100)
    assert "redriving" in seen
    assert "50 moved" in seen
    assert "leveret: 100 messages found, 100 moved, 0 kept" in seen


def test_what_is_said_is_shown_as_it_is(leveret_url: str, fresh: Callable[[str], str]):
    """Names of queues look like markup, and are longer than a terminal is wide."""
    queue = f"[red]{fresh('[/bold]')}:smile:{'x' * 100}"
    ran = leveret("consume", queue, url=leveret_url)
    assert ran.err == f"leveret: there is no queue '{queue}'\n"


def test_a_result_for_programs_is_one_object_and_nothing_else(leveret_url: str, fresh: Callable[[str], str]):
    queue = declare(leveret_url, fresh("json"))
    put(leveret_url, queue, b"1", headers={"x-original-queue": queue})
    for words in (
        ("publish", "-q", queue),
        ("redrive", queue),
        ("consume", queue, "--output", "/dev/null", "--count", "1"),
    ):
        ran = leveret(*words, "--json", url=leveret_url)
        assert isinstance(ran.result, dict)
        assert ran.err == ""
    assert bodies(leveret_url, queue) == []


@pytest.mark.real
@pytest.mark.parametrize("command", ["serve", "publish", "consume", "redrive"])
def test_each_command_explains_itself(command: str):
    ran = leveret(command, "--help", url="")
    assert ran.code == 0
    assert f"leveret {command}" in ran.out.decode()
