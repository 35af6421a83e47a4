"""A connection as its channels and its handshake see it: its state, what was agreed, and what is written.

Owns the bytes on their way out, collected until the shell takes them, and what the two sides have agreed on.
What comes in, and how errors end the connection, is left to `connection`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from leveret.amqp import methods
from leveret.amqp.errors import AmqpError
from leveret.amqp.frames import FRAME_MIN_BYTES
from leveret.amqp.methods import Method
from leveret.amqp.tables import Value

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.errors import BrokerError
    from leveret.broker.sessions.channel import Channel
    from leveret.broker.sessions.route import Route
    from leveret.broker.sessions.session import Session

DELIVER_BYTES_MAX: Final = 2 << 20
"""More than this to be written, and nothing more is delivered until it has gone."""


class State(Enum):
    GREETING = auto()
    STARTING = auto()
    AUTHENTICATING = auto()
    """The password is being checked. What the client sends meanwhile is looked at afterwards."""
    TUNING = auto()
    OPENING = auto()
    RUNNING = auto()
    CLOSING = auto()
    """We have sent connection.close and wait for the answer."""
    CLOSED = auto()
    """Nothing more is read or sent: the shell closes the socket when `out` is written."""


class Wire(ABC):
    """`wire.send(data)`; the shell calls `take_out` at the end of the turn."""

    def __init__(self, broker: Broker, session: Session[Channel]) -> None:
        self.broker = broker
        self.session = session
        self.state = State.GREETING
        self.out: list[bytes] = []
        self.out_bytes = 0
        self.writable = True
        """False while the peer does not read what was written: nothing is delivered to it."""
        self.frame_max = FRAME_MIN_BYTES
        self.channel_max = broker.limits.channel_max
        self.heartbeat_s = 0
        self.properties: Mapping[str, Value] = {}
        """What the client says of itself."""
        self.unread_reply_bytes = 0
        """Direct replies that were sent while the peer did not read."""
        self.routes: dict[bytes, Route] = {}
        """Where publishes go, by the bytes of their method frames."""
        self.routes_version = 0
        """Of the virtual host, when the routes were found."""

    @property
    def name(self) -> str:
        return self.session.name

    @property
    def is_open(self) -> bool:
        return self.state is State.RUNNING

    def understands(self, capability: str) -> bool:
        """Return whether the client has said that it has this capability."""
        capabilities = self.properties.get("capabilities")
        return isinstance(capabilities, dict) and capabilities.get(capability) is True

    def send(self, data: bytes) -> None:
        self.out.append(data)
        self.out_bytes += len(data)
        self.session.has_output()

    def send_all(self, pieces: Sequence[bytes]) -> None:
        self.out += pieces
        self.out_bytes += sum(map(len, pieces))
        self.session.has_output()

    def send_method(self, channel: int, method: Method) -> None:
        self.send(methods.frame(channel, method))

    def take_out(self) -> bytes:
        """Return what is to be written now."""
        data = b"".join(self.out)
        self.out.clear()
        if self.out_bytes >= DELIVER_BYTES_MAX:
            self.session.wake_consumers()
        self.session.counters.octets_out += self.out_bytes
        self.out_bytes = 0
        return data

    @abstractmethod
    def close(self, error: AmqpError) -> None:
        """End the connection from our side; the peer answers with close-ok."""

    @abstractmethod
    def lost(self) -> None:
        """The socket is gone, or to be closed: everything that the connection held goes back."""

    @abstractmethod
    def fail_channel(self, number: int, error: BrokerError) -> None:
        """Close a channel for a reason that no frame of the client gave."""
