"""Ends consumers at once when their user loses the read permission.

`administration` changes permissions and calls `end_forbidden_consumers`. All other uses of a permission need
nothing here: methods, publishes, Flight and HTTP check the permission each time. `reading_rights` ends the
consumers.
"""

from __future__ import annotations

from leveret.broker.access.accounts import User
from leveret.broker.access.reading_rights import end_if_forbidden
from leveret.broker.broker import Broker
from leveret.broker.sessions.channel import Channel


def end_forbidden_consumers(broker: Broker, vhost: str, user: User) -> None:
    """Cancel a user's consumers in a virtual host whose sources the user may not read."""
    for session in list(broker.sessions):
        if session.peer.is_open and session.belongs_to(user.name) and session.vhost.name == vhost:
            for channel in list(session.channels):
                _end_consumers(channel, user)


def _end_consumers(channel: Channel, user: User) -> None:
    for consumer in list(channel.consumers.values()):
        if channel.closed:
            return
        end_if_forbidden(consumer, user)
