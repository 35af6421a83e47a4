"""What a client may ask of the broker, and how long it may take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_FRAME_OVERHEAD_BYTES: Final = 8
"""What a frame of AMQP has beside its payload."""


@dataclass(frozen=True, slots=True)
class Limits:
    """`Limits(message_max_bytes=1 << 20)`; the rest is as the server has it without a configuration."""

    channel_max: int = 2047
    frame_max: int = 131_072
    heartbeat_s: int = 60
    message_max_bytes: int = 128 << 20
    unfinished_max_bytes: int = 256 << 20
    """What a connection may make the broker keep of messages that are not whole, on all channels together."""
    consumer_timeout_ms: int = 30 * 60 * 1000
    login_delay_max_ms: int = 5_000
    """How long a login waits at most because earlier ones have failed; 0 for no delay."""
    logins_waiting_max: int = 1_000
    """How many logins may wait for a delay or a hash. More are refused without a look at the password."""
    logins_waiting_by_source_max: int = 100
    """How many of them may come from one address, or from one user at an address known for that user."""

    @property
    def content_header_max_bytes(self) -> int:
        """Return how large a content header may be: it must fit into one frame of AMQP."""
        return self.frame_max - _FRAME_OVERHEAD_BYTES
