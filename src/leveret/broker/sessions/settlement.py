"""A client's settlement: a verdict and the delivery tags it is for."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Verdict(Enum):
    """What the client wants done with its deliveries."""

    ACK = "ack"
    REQUEUE = "requeue"
    REJECT = "reject"


class Tags(NamedTuple):
    """The tags from `first` to `last`. With `multiple`, all tags up to `first`, or all tags if that is 0."""

    first: int
    last: int
    multiple: bool = False
