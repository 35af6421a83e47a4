"""How much may be done for one client in a turn, so that the others wait only so long.

Owns who has asked for something lately. What the requests of a protocol cost is left to its front. The rule:
while more than one client asks, shares are small. Small shares take 20 % more CPU for each message, so a
client that asks alone has a large one.
"""

from __future__ import annotations

from typing import Final

ALONE_COST: Final = 5_000
"""About so many microseconds of work."""
SHARED_COST: Final = 500
_SHARED_US: Final = 50_000
"""How long after another client has asked shares are small."""


class TurnShares:
    """`shares.of(session, asks=True, now_us=...)` is the cost of the work that may be done now."""

    def __init__(self) -> None:
        self._asker: object | None = None
        """Who has asked last."""
        self._shared_until_us = 0

    def of(self, session: object, *, asks: bool, now_us: int) -> int:
        """Return the share. Acks are not asked for: nobody waits for an answer."""
        if asks and self._asker is not session:
            if self._asker is not None:
                self._shared_until_us = now_us + _SHARED_US
            self._asker = session
        return SHARED_COST if now_us < self._shared_until_us else ALONE_COST

    def forget(self, session: object) -> None:
        """The session has ended."""
        if self._asker is session:
            self._asker = None
