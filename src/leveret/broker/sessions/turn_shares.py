"""The share of a turn: how much work may be done for one client before others are served.

This module remembers which clients made requests lately. A front says what its requests cost and which of
them have an answer. The rule: while another client waits for answers, shares are small. Small shares
take 20 % more CPU per message, so a client has a large share while no other client waits.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

ALONE_COST: Final = 5_000
"""Share of a client while no other client waits, in about microseconds of work."""
SHARED_COST: Final = 500
"""Share of a client while another client waits for answers."""
_LATELY_US: Final = 50_000
"""Time after its last request during which a client counts as waiting."""


class Demand(Enum):
    """The kind of a client's next request."""

    ANSWER = "answer"
    """A method with an answer, or a publish that is to be confirmed: the client waits."""
    WORK = "work"
    """A publish without a confirm: the client waits for nothing."""
    SETTLEMENT = "settlement"
    """An ack: the client waits for nothing, and a whole run of acks takes little time."""


class TurnShares:
    """`shares.of(session, Demand.ANSWER, now_us=...)` returns the cost of the work that may be done now."""

    def __init__(self) -> None:
        self._asker: object | None = None
        """The session with the last request that has an answer."""
        self._asker_until_us = 0
        """Time until which `_asker` counts as waiting."""
        self._others_until_us = 0
        """Time until which the askers before `_asker` count as waiting."""
        self._small_until_us = 0

    def of(self, session: object, demand: Demand, *, now_us: int) -> int:
        """Return the share of a session for its next request."""
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
        """Return whether a client had a small share lately for a request other than an ack."""
        return now_us < self._small_until_us

    def forget(self, session: object) -> None:
        """Forget a session that has ended."""
        if self._asker is session:
            self._asker = None
            self._asker_until_us = self._others_until_us
