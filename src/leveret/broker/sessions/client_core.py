"""The part of the broker that sessions and channels use: publishes, direct replies, random names.

Sessions and channels are given a `Broker`, but they know only `ClientCore` and so need not import `broker`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from leveret.broker.core import DefiningCore
from leveret.broker.queues.direct_replies import DirectReplies
from leveret.broker.vhosts.destination import Destination
from leveret.storage.records import Message

S = TypeVar("S")
"""The type of the broker's sessions."""
C = TypeVar("C", contravariant=True)
"""The type of the sessions' channels."""


class ClientCore(DefiningCore, Protocol[S, C]):
    """The part of the broker that sessions and channels use; `broker.Broker` documents the methods."""

    replies: DirectReplies
    flushed: dict[S, None]
    """Sessions whose fronts have output to be written."""
    blocked: str | None
    """Why publishers are held back at present, or None."""

    def token(self) -> str:
        """Return a random name."""

    def enqueue(self, queue: Destination, messages: list[Message], channel: C) -> None: ...

    def append_at_once(self, queue: Destination, messages: Sequence[Message], channel: C) -> None: ...

    def note_nack(self, channel: C, reason: str, count: int) -> None: ...

    def forget_channel(self, channel: C) -> None: ...

    def forget_session(self, session: S) -> None: ...
