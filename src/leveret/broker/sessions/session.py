"""A session: a client that has connected, by whatever protocol, and what it may do.

Owns who the client is, in which virtual host, its channels, its exclusive queues, and whether it publishes.
How the client is spoken to is left to the peer, the front's end of the session. The rule: when a session has
ended, nothing of it is left in the broker.
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


class PeerView(NamedTuple):
    """What only the front knows of a client."""

    protocol: str
    reads: bool = True
    """False while the client does not read what it was sent: nothing is delivered to it."""
    unsent_bytes: int = 0
    channel_max: int = 0
    frame_max: int = 0
    heartbeat_s: int = 0
    properties: Mapping[str, Value] = {}
    """What the client says of itself."""
    prefetches: Mapping[int, int] = {}
    """By the numbers of channels: the limit of each consumer that is started from now on."""


class Peer(Protocol):
    """The front's end of a session: a connection of its protocol."""

    @property
    def is_open(self) -> bool:
        """Return whether the client has logged in and neither side has begun to close."""

    def describe(self) -> PeerView: ...

    def tell_blocked(self, reason: str | None) -> None:
        """Tell the client that its publishes are held back, and why; None when they no longer are."""

    def fail(self, sentence: str) -> None:
        """End the connection because the broker can't keep what it has promised."""

    def force_close(self, reason: str) -> None:
        """End the connection because the broker stops, or an operator wants it."""


class SessionChannel(Protocol):
    """A channel, as its session knows it."""

    reply_tag: str | None

    @property
    def consumers(self) -> Collection[str]: ...

    def wake_consumers(self) -> None:
        """There may be room for deliveries again."""


C = TypeVar("C", bound=SessionChannel)


class Session(Generic[C]):
    """`broker.open_session(peer, name=...)`; `logged_in` and `enter` follow when the client has said so."""

    def __init__(self, broker: ClientCore[Session[C], C], peer: Peer, *, name: str, origin: Origin) -> None:
        self.broker = broker
        self.peer = peer
        self.name = name
        self.origin = origin
        self.channels: dict[C, None] = {}
        self.since_us = broker.now_us()
        self.counters = Counters()
        self.publishes = False
        """Whether the client has published: it is held back when the broker is short of memory or disk."""
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

    def is_of(self, user: str) -> bool:
        """Return whether this user has logged in."""
        return self._user is not None and self._user.name == user

    def logged_in(self, user: User) -> None:
        self._user = user

    def enter(self, vhost: VirtualHost) -> None:
        self._vhost = vhost

    def check_access(self, what: str, kind: str, name: str) -> None:
        """Raise unless the user may `configure`, `write` or `read` this queue or exchange."""
        self.user.check(what, self.vhost.name, kind, name)

    @property
    def has_consumers(self) -> bool:
        return any(channel.consumers or channel.reply_tag is not None for channel in self.channels)

    def wake_consumers(self) -> None:
        """The client may have room for deliveries again, from the next turn on."""
        for channel in self.channels:
            channel.wake_consumers()

    def delete_exclusive_queues(self) -> None:
        """Delete the queues that belong to this session."""
        if self._vhost is not None:
            for queue in [queue for queue in self._vhost.queues.values() if queue.owner is self]:
                self._vhost.delete_queue(queue)

    def has_output(self) -> None:
        """Have the shell write what the front has for the client, at the end of the turn."""
        self.broker.flushed[self] = None

    def end(self) -> None:
        """The client is gone, or about to be."""
        self.broker.forget_session(self)
