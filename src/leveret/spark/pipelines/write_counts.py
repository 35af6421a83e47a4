"""Row counts that Spark observes while it writes.

Spark delivers an observation after the write, as an event that it may lose: so the wait for it has a limit.
If Spark's planner finds that there are no rows (`WHERE false`), there are no counts, and asking raises.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import Observation

TIMEOUT_S: Final = 10.0


def wait_for(observation: Observation, timeout_s: float = TIMEOUT_S) -> dict[str, Any] | None:
    """Return the counts by name, after the rows were written; None if Spark delivers none in time."""
    counts: list[dict[str, Any]] = []

    def ask() -> None:
        with suppress(Py4JJavaError):
            counts.append(observation.get)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(timeout_s)
    return counts[0] if counts else None
