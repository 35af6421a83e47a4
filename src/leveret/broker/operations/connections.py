"""Operations on connections: close one, or all of a user."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from leveret.broker.views.connections import running, session_at

if TYPE_CHECKING:
    from leveret.broker.broker import Broker

REASON: Final = "Closed via management plugin"
"""The text that clients get without another reason: RabbitMQ's."""


def close(broker: Broker, addresses: str, *, reason: str, begin: Callable[[], None]) -> None:
    """Close a connection with connection.close, if it is still open."""
    session = session_at(broker, addresses)
    if session is not None:
        begin()
        session.peer.force_close(reason)


def close_all_of(broker: Broker, user: str, *, reason: str, begin: Callable[[], None]) -> None:
    begin()
    for session in list(running(broker, user=user)):
        session.peer.force_close(reason)
