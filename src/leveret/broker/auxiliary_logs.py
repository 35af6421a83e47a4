"""Logs that are no queue's messages: what a queue or a virtual host keeps account of, beside them.

The label of a log says what it is for and whose it is, so that after a restart each finds its owner; one
whose owner is gone is deleted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Final

from leveret.storage import well_known_names
from leveret.storage.log import Log

DEDUP: Final = "dedup"
"""What a queue remembers of publishes; the owner is the id of its log."""
LEASES: Final = "leases"
"""What queries hold of a queue; the owner is the id of its log."""
STAGES: Final = "stages"
"""What batches have written that are not committed; the owner is the name of a virtual host."""
GROUPS: Final = "groups"
"""What groups there are in a virtual host, whose name is the owner."""
RETURNED: Final = well_known_names.RETURNED
"""What went back to publishers in a virtual host, whose name is the owner."""

Key = tuple[str, int | str]
SideLogs = Mapping[Key, Log]


def label(kind: str, owner: int | str) -> str:
    return json.dumps({kind: owner})


def key_of(log: Log) -> Key | None:
    """What it is for, and whose; None for the messages of a queue.

    >>> label(DEDUP, 7)
    '{"dedup": 7}'
    """
    if not log.spec.label.startswith("{"):  # a queue's is a list
        return None
    ((kind, owner),) = json.loads(log.spec.label).items()
    return kind, owner


def find(logs: Iterable[Log]) -> dict[Key, Log]:
    """Of several of one kind and owner the youngest: the others were about to be deleted."""
    by_age = sorted(logs, key=lambda log: log.id)
    return {key: log for log in by_age if (key := key_of(log)) is not None}
