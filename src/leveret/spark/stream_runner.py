"""Ends the Python process in which Spark asks a stream reader for offsets without a traceback.

Spark ends a query by closing the connection to this process. PySpark then tries to report the closed
connection over this very connection. The error would be a traceback in the terminal of a user who has stopped
the query in the normal way.
"""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Final

_RUNNER: Final = "pyspark.sql.streaming.python_streaming_source_runner"
_GONE: Final = (BrokenPipeError, ConnectionResetError, EOFError)


def end_quietly_without_spark() -> None:
    """Show no traceback when Spark closes the connection; do nothing in other kinds of process."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is None or spec.name != _RUNNER:
        return
    shown, unraisable = sys.excepthook, sys.unraisablehook

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not isinstance(error, _GONE):
            shown(kind, error, trace)

    def show_unraisable(event: Any) -> None:
        if not isinstance(event.exc_value, _GONE):
            unraisable(event)

    sys.excepthook, sys.unraisablehook = show, show_unraisable
