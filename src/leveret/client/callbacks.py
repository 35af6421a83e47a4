"""Calls of users' callbacks: their exceptions are logged and do not reach our code."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

log = logging.getLogger("leveret.client")

_T = TypeVar("_T")


def call_back(callback: Callable[[_T], None], argument: _T) -> None:
    """Call a hook or a callback with its argument. An exception that it raises is logged."""
    try:
        callback(argument)
    except Exception:
        log.exception("a hook or callback failed for %r", argument, extra={"event": "hook_failed"})


def describe(error: BaseException | None) -> str:
    """Return the `repr` of an error, or a substitute if that `repr` raises."""
    try:
        return repr(error)
    # A user's `__repr__` may raise anything.
    except Exception:  # noqa: BLE001
        return f"<{type(error).__name__}, which can't be printed>"
