"""The fixtures of `tests/semantics`, for rules that SEMANTICS.md tells in a line and that need a file."""

from tests.semantics.conftest import (  # noqa: F401
    broker,
    channel,
    clock,
    connect,
    open_channel,
)
