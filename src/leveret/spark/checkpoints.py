"""Checks that a checkpoint of Spark was written by the query that now reads it.

An offset in a checkpoint names what the query reads: virtual host, queue, stream or topic, and cursor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leveret.spark.errors import WrongCheckpoint


def check_identity(offset: Mapping[str, Any], identity: Mapping[str, str | None]) -> None:
    """Raise `WrongCheckpoint` if the offset lacks an entry of `identity` or has another value for it."""
    for name, ours in identity.items():
        if offset.get(name) != ours:
            theirs = f"{name} '{offset[name]}'" if name in offset else f"no {name}"
            raise WrongCheckpoint(
                f"the checkpoint belongs to {theirs}, this query reads {name} '{ours}'",
                hint="each query needs its own checkpoint: start with a new one, or restore the old option",
            )


def of_a_deleted_log(source: str) -> WrongCheckpoint:
    """Return the error for a checkpoint whose log id is not the source's: "an earlier queue 'orders'"."""
    return WrongCheckpoint(
        f"the checkpoint belongs to {source}, which was deleted since, or to one of another broker",
        hint="start with a new checkpoint",
    )
