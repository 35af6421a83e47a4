"""How much may be done for one client in a turn, so that the others wait only so long.

Owns who has asked for something lately. What the requests of a protocol cost, and which of them have an
answer, is left to its front. The rule: while another client waits for answers, shares are small. Small shares
take 20 % more CPU for each message, so a client has a large one while no other client waits.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

ALONE_COST: Final = 5_000
"""About so many microseconds of work."""
SHARED_COST: Final = 500
_LATELY_US: Final = 50_000
"""How long after its last request a client counts."""


class Demand(Enum):
    """What a client wants next."""

    ANSWER = "answer"
    """A method with an answer, or a publish that is to be confirmed: the client waits."""
    WORK = "work"
    """A publish without a confirm: the client waits for nothing."""
    SETTLEMENT = "settlement"
    """An ack: the client waits for nothing, and a whole run of acks takes little time."""


class TurnShares:
    """`shares.of(session, Demand.ANSWER, now_us=...)` is the cost of the work that may be done now."""

    def __init__(self) -> None:
        self._asker: object | None = None
        """Who has asked last."""
        self._asker_until_us = 0
        """Until when the last asker counts; whoever asked before it, until `_others_until_us`."""
        self._others_until_us = 0
        self._small_until_us = 0

    def of(self, session: object, demand: Demand, *, now_us: int) -> int:
        """Return the share of a session that wants something."""
        if demand is Demand.ANSWER:
            if self._asker is not session:
                self._others_until_us = self._asker_until_us
                self._asker = session
            self._asker_until_us = now_us + _LATELY_US
        others_until_us = self._others_until_us if self._asker is session else self._asker_until_us
        if now_us >= others_until_us:
            return ALONE_COST
        if demand is not Demand.SETTLEMENT:
            self._small_until_us = now_us + _LATELY_US
        return SHARED_COST

    def are_small(self, now_us: int) -> bool:
        """Return whether a client had a small share lately for anything but acks."""
        return now_us < self._small_until_us

    def forget(self, session: object) -> None:
        """The session has ended."""
        if self._asker is session:
            self._asker = None
            self._asker_until_us = self._others_until_us
