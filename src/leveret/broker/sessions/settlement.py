"""What a client says of deliveries: which verdict, on which tags."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Verdict(Enum):
    """What a client says of deliveries."""

    ACK = "ack"
    REQUEUE = "requeue"
    REJECT = "reject"


class Tags(NamedTuple):
    """The tags from `first` to `last`. With `multiple`, all up to `first`; 0 stands for all there are."""

    first: int
    last: int
    multiple: bool = False
