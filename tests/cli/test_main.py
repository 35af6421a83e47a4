"""`leveret` without a command."""

import os
import subprocess
import sys

import pytest

from leveret import __version__
from tests.cli.command import leveret

pytestmark = pytest.mark.real

NOBODY = "amqp://127.0.0.1:1/"


def test_the_version_is_told_without_a_broker():
    ran = leveret("--version", url=NOBODY)
    assert (ran.code, ran.lines) == (0, [f"leveret {__version__}"])


def test_the_version_is_among_the_options_that_help_lists():
    assert "--version" in leveret("--help", url=NOBODY).out.decode()


def test_a_shell_completes_commands():
    """Complete `leveret exch` as bash does; the program's name is a part of the variable."""
    program = "import sys; from leveret.cli.main import app; app(prog_name='leveret')"
    words = {"_LEVERET_COMPLETE": "complete_bash", "COMP_WORDS": "leveret exch", "COMP_CWORD": "1"}
    completed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ, **words}
    )
    assert completed.stdout.split() == ["exchanges"]
