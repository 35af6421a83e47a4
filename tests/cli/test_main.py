"""`leveret` without a command."""

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
