"""The client that requests an operation: the user, the virtual host and, if there is one, the session."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from leveret.broker.access.accounts import User
    from leveret.broker.sessions.channel import Channel
    from leveret.broker.sessions.session import Session
    from leveret.broker.vhosts.vhost import VirtualHost


class Requester(NamedTuple):
    """`Requester(user, broker.vhosts["/"])` for a request without a session."""

    user: User
    vhost: VirtualHost
    session: Session[Channel] | None = None
    """The session that owns the exclusive queues which the client declares and uses."""

    def check(self, what: str, kind: str, name: str) -> None:
        """Raise AccessRefused without a permission: `requester.check("configure", "queue", "orders")`."""
        self.user.check(what, self.vhost.name, kind, name)
