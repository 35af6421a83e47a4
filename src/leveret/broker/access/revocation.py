"""What follows when a user loses rights: consumers that may not read any more end at once.

`administration` changes the rights and calls `end_forbidden_consumers`. Everything that a client does after
that is checked where it is done: methods, publishes, Flight and HTTP ask for the right each time. How a
consumer is ended is left to `reading_rights`.
"""

from __future__ import annotations

from leveret.broker.access.accounts import User
from leveret.broker.access.reading_rights import end_if_forbidden
from leveret.broker.broker import Broker
from leveret.broker.sessions.channel import Channel


def end_forbidden_consumers(broker: Broker, vhost: str, user: User) -> None:
    """Cancel the consumers of a user that read from what the user may not read."""
    for session in list(broker.sessions):
        if session.peer.is_open and session.is_of(user.name) and session.vhost.name == vhost:
            for channel in list(session.channels):
                _end_consumers(channel, user)


def _end_consumers(channel: Channel, user: User) -> None:
    for consumer in list(channel.consumers.values()):
        if channel.closed:
            return
        end_if_forbidden(consumer, user)
