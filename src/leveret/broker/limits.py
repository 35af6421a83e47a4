"""Limits on what clients may request, and timeouts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from leveret.broker.access.failed_logins import FORGET_US, FREE_FAILURES, REMEMBERED_MAX

_FRAME_OVERHEAD_BYTES: Final = 8
"""Bytes of an AMQP frame in addition to its payload."""


@dataclass(frozen=True, slots=True)
class Limits:
    """`Limits(message_max_bytes=1 << 20)`; the defaults are those of a server without a configuration."""

    channel_max: int = 2047
    frame_max: int = 131_072
    heartbeat_s: int = 60
    message_max_bytes: int = 128 << 20
    unfinished_max_bytes: int = 256 << 20
    """Limit of the memory for a connection's incomplete messages, on all channels together."""
    consumer_timeout_ms: int = 30 * 60 * 1000
    login_delay_max_ms: int = 5_000
    """Longest delay of a login after failed logins; 0 for no delay."""
    logins_waiting_max: int = 1_000
    """Number of logins that may wait for a delay or a hash; further ones are refused unchecked."""
    logins_waiting_by_source_max: int = 100
    """Number of waiting logins from one address, or from one user at an address known for that user."""
    login_failures_free: int = FREE_FAILURES
    """Number of failed logins in a row without a delay."""
    login_failures_kept_s: int = FORGET_US // 1_000_000
    """How long failed logins are remembered after the last one."""
    logins_remembered_max: int = REMEMBERED_MAX
    unread_replies_max_bytes: int = 8 << 20
    """Direct replies that a client has not read; further ones are dropped."""

    @property
    def content_header_max_bytes(self) -> int:
        """Size limit of a content header, which must fit into one AMQP frame."""
        return self.frame_max - _FRAME_OVERHEAD_BYTES
