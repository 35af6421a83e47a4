"""Auxiliary logs: logs of a queue or a virtual host that hold notes instead of a queue's messages.

The label of such a log names its kind and its owner, so that it is found again after a restart. A log whose
owner is gone is deleted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Final

from leveret.storage import well_known_names
from leveret.storage.log import Log

DEDUP: Final = "dedup"
"""Producers' sequences for a queue's deduplication; the owner is the ID of the queue's log."""
LEASES: Final = "leases"
"""Leases of queries on a queue; the owner is the ID of the queue's log."""
STAGES: Final = "stages"
"""Staged batches; the owner is the name of the virtual host."""
GROUPS: Final = "groups"
"""Groups; the owner is the name of the virtual host."""
RETURNED: Final = well_known_names.RETURNED
"""Messages returned to publishers; the owner is the name of the virtual host."""

Key = tuple[str, int | str]
"""Kind and owner of an auxiliary log."""
SideLogs = Mapping[Key, Log]
"""Auxiliary logs by kind and owner."""


def label(kind: str, owner: int | str) -> str:
    return json.dumps({kind: owner})


def key_of(log: Log) -> Key | None:
    """Return kind and owner of an auxiliary log, or None for the log of a queue's messages.

    >>> label(DEDUP, 7)
    '{"dedup": 7}'
    """
    # The label of a queue's log is a JSON list or empty.
    if not log.spec.label.startswith("{"):
        return None
    ((kind, owner),) = json.loads(log.spec.label).items()
    return kind, owner


def find(logs: Iterable[Log]) -> dict[Key, Log]:
    """Return the auxiliary logs by kind and owner, of several the youngest: the others were being deleted."""
    by_age = sorted(logs, key=lambda log: log.id)
    return {key: log for log in by_age if (key := key_of(log)) is not None}
