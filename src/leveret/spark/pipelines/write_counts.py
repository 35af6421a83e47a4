"""What Spark has counted while it wrote: told behind the write, among other news, which it may lose.

So whoever asks has patience, and no more than that. Spark has no counts if it found out that there is no row
to look at (`WHERE false`): it fails when it is asked.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import Observation

PATIENCE_S: Final = 10.0


def told(observation: Observation, patience_s: float = PATIENCE_S) -> dict[str, Any] | None:
    """The counts by their names, after the rows were written; None if there are none."""
    found: list[dict[str, Any]] = []

    def ask() -> None:
        with suppress(Py4JJavaError):
            found.append(observation.get)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(patience_s)
    return found[0] if found else None
