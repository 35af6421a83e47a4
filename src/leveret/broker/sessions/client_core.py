"""What sessions and channels, and the operations on them, need of the broker: publishes, replies, names.

They are given a `Broker` and know no more of it than `ClientCore` says, so that none of them imports it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from leveret.broker.core import DefiningCore
from leveret.broker.queues.direct_replies import DirectReplies
from leveret.broker.vhosts.destination import Destination
from leveret.storage.records import Message

S = TypeVar("S")
"""The sessions of the broker."""
C = TypeVar("C", contravariant=True)
"""Their channels."""


class ClientCore(DefiningCore, Protocol[S, C]):
    """The broker, as its sessions and channels know it."""

    replies: DirectReplies
    flushed: dict[S, None]
    """Sessions whose fronts have something to be written."""
    blocked: str | None
    """Why publishers are held back at present."""

    def token(self) -> str:
        """Return a random name."""

    def enqueue(self, queue: Destination, messages: list[Message], channel: C) -> None:
        """Append messages to a queue at the end of the turn."""

    def append_at_once(self, queue: Destination, messages: Sequence[Message], channel: C) -> None:
        """Append messages to a queue now."""

    def note_nack(self, channel: C, reason: str, count: int) -> None:
        """So many publishes of a channel were refused."""

    def forget_channel(self, channel: C) -> None:
        """The channel is closed."""

    def forget_session(self, session: S) -> None:
        """The client is gone."""
