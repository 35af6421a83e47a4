"""A session: one connected client of any protocol.

A session owns the client's user, virtual host, channels and exclusive queues, and whether it publishes. The
`Peer`, which is the front's end of the session, talks to the client. The rule: when a session has ended, the
broker holds no reference to it and none of its exclusive queues.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Generic, NamedTuple, Protocol, TypeVar

from leveret.broker.access.accounts import User
from leveret.broker.access.logins import Origin
from leveret.broker.canonical import Value
from leveret.broker.counters import Counters
from leveret.broker.sessions.client_core import ClientCore
from leveret.broker.vhosts.vhost import VirtualHost


class TlsView(NamedTuple):
    """The encryption of a connection, in RabbitMQ's words; the certificate is the client's."""

    protocol: str
    key_exchange: str
    cipher: str
    hash: str
    subject: str | None = None
    issuer: str | None = None
    validity: str | None = None


class PeerView(NamedTuple):
    """The facts about a client that only the front knows."""

    protocol: str
    reads: bool = True
    """False while the client does not read its socket; no messages are delivered to it then."""
    unsent_bytes: int = 0
    channel_max: int = 0
    frame_max: int = 0
    heartbeat_s: int = 0
    properties: Mapping[str, Value] = {}
    """The properties that the client sent at login."""
    mechanism: str = ""
    """How the client has logged in, such as `PLAIN`."""
    tls: TlsView | None = None


class Peer(Protocol):
    """The front's end of a session: a connection of its protocol."""

    @property
    def is_open(self) -> bool:
        """Return whether the client has logged in and neither side has begun to close."""

    def describe(self) -> PeerView: ...

    def consumer_prefetch(self, channel: int) -> int:
        """Return the prefetch limit of consumers that start from now on on a channel of this number."""

    def tell_blocked(self, reason: str | None) -> None:
        """Tell the client why its publishes are held back, or with None that they no longer are."""

    def fail(self, sentence: str) -> None:
        """Close the connection because the broker can't keep a promise that it gave the client."""

    def force_close(self, reason: str) -> None:
        """Close the connection because the broker stops or an operator asked for it."""


class SessionChannel(Protocol):
    """The part of a channel that its session uses."""

    reply_tag: str | None

    @property
    def consumers(self) -> Collection[str]: ...

    def wake_consumers(self) -> None:
        """Schedule the consumers' queues, because the client may have room for deliveries again."""


C = TypeVar("C", bound=SessionChannel)


class Session(Generic[C]):
    """Made by `broker.open_session`; the front calls `logged_in`, and then `enter` with a virtual host."""

    def __init__(self, broker: ClientCore[Session[C], C], peer: Peer, *, name: str, origin: Origin) -> None:
        self.broker = broker
        self.peer = peer
        self.name = self.addresses = name
        self.origin = origin
        self.channels: dict[C, None] = {}
        self.since_us = broker.now_us()
        self.counters = Counters()
        self.publishes = False
        """Whether the client has published. Publishers are held back when memory or disk is short."""
        self._user: User | None = None
        self._vhost: VirtualHost | None = None

    @property
    def user(self) -> User:
        assert self._user is not None, "the client has logged in"
        return self._user

    @property
    def vhost(self) -> VirtualHost:
        assert self._vhost is not None, "the client has entered a virtual host"
        return self._vhost

    @property
    def has_logged_in(self) -> bool:
        return self._user is not None

    @property
    def has_entered(self) -> bool:
        """Whether the client has entered a virtual host."""
        return self._vhost is not None

    def belongs_to(self, user: str) -> bool:
        """Return whether this user has logged in to the session."""
        return self._user is not None and self._user.name == user

    def logged_in(self, user: User) -> None:
        self._user = user

    def enter(self, vhost: VirtualHost) -> None:
        self._vhost = vhost
        self.broker.counters.churn.connections_opened += 1

    def check_access(self, what: str, kind: str, name: str) -> None:
        """Raise AccessRefused unless the user may `configure`, `write` or `read` this queue or exchange."""
        self.user.check(what, self.vhost.name, kind, name)

    @property
    def has_consumers(self) -> bool:
        return any(channel.consumers or channel.reply_tag is not None for channel in self.channels)

    def wake_consumers(self) -> None:
        """Schedule the queues of all consumers for the next turn: the client may have room again."""
        for channel in self.channels:
            channel.wake_consumers()

    def delete_exclusive_queues(self) -> None:
        """Delete the queues that belong to this session."""
        if self._vhost is not None:
            for queue in [queue for queue in self._vhost.queues.values() if queue.owner is self]:
                self._vhost.delete_queue(queue)

    def has_output(self) -> None:
        """Mark that the front has output, so that the server writes it at the end of the turn."""
        self.broker.flushed[self] = None

    def end(self) -> None:
        """Remove the session from the broker; the client has disconnected or is about to."""
        self.broker.forget_session(self)
