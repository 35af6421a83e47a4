"""The Python process in which Spark asks a stream reader for offsets: how it ends when Spark has gone.

Spark ends a query by closing the connection to this process. PySpark then tries to tell Spark of the closed
connection, over that connection. The error would be a traceback in the terminal of whoever has stopped the
query in order.
"""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Final

_RUNNER: Final = "pyspark.sql.streaming.python_streaming_source_runner"
_GONE: Final = (BrokenPipeError, ConnectionResetError, EOFError)


def end_quietly_without_spark() -> None:
    """Show no traceback when the connection to Spark is closed; in other processes, change nothing."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is None or spec.name != _RUNNER:
        return
    shown, unraisable = sys.excepthook, sys.unraisablehook

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not isinstance(error, _GONE):
            shown(kind, error, trace)

    def show_unraisable(found: Any) -> None:
        if not isinstance(found.exc_value, _GONE):
            unraisable(found)

    sys.excepthook, sys.unraisablehook = show, show_unraisable
