"""The output side of a connection, as its channels and the handshake use it.

Owns the bytes to write, collected until the socket takes them, the state, and the negotiated limits. Received
events and errors are left to `connection`.
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
    from leveret.broker.sessions.session import Session, TlsView

DELIVER_BYTES_MAX: Final = 2 << 20
"""While more unsent bytes than this wait, nothing is delivered."""


class State(Enum):
    GREETING = auto()
    STARTING = auto()
    AUTHENTICATING = auto()
    """The password is being checked. Events of the client wait until then."""
    TUNING = auto()
    OPENING = auto()
    RUNNING = auto()
    CLOSING = auto()
    """connection.close was sent, and close-ok is awaited."""
    CLOSED = auto()
    """Nothing more is read or sent: the socket is closed when `out` is written."""


class Wire(ABC):
    """Collects bytes with `wire.send(data)`; the socket calls `take_out` at the end of the turn."""

    def __init__(self, broker: Broker, session: Session[Channel]) -> None:
        self.broker = broker
        self.session = session
        self.state = State.GREETING
        self.out: list[bytes] = []
        self.out_bytes = 0
        self.writable = True
        """False while the peer does not read what was written; then nothing is delivered."""
        self.frame_max = FRAME_MIN_BYTES
        self.channel_max = broker.limits.channel_max
        self.heartbeat_s = 0
        self.properties: Mapping[str, Value] = {}
        """Client properties of connection.start-ok."""
        self.mechanism = ""
        """Login mechanism of connection.start-ok."""
        self.tls: TlsView | None = None
        self.external: str | None = None
        """User of a login with the mechanism EXTERNAL, empty without a certificate that names one. None: the
        client was not asked for a certificate, and EXTERNAL is not offered."""
        self.unread_reply_bytes = 0
        """Bytes of direct replies sent while the peer did not read."""
        self.routes: dict[bytes, Route] = {}
        """Routes of publishes, by the bytes of their methods."""
        self.routes_version = 0
        """Version of the virtual host to which `routes` belong."""

    @property
    def name(self) -> str:
        return self.session.name

    @property
    def is_open(self) -> bool:
        return self.state is State.RUNNING

    def understands(self, capability: str) -> bool:
        """Return whether the client has announced this capability."""
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
        """Return all collected bytes, and clear them."""
        data = b"".join(self.out)
        self.out.clear()
        if self.out_bytes >= DELIVER_BYTES_MAX:
            self.session.wake_consumers()
        counters = self.session.counters
        counters.octets_out += self.out_bytes
        counters.packets_out += 1
        self.out_bytes = 0
        return data

    @abstractmethod
    def close(self, error: AmqpError) -> None:
        """Send connection.close; the peer answers with close-ok."""

    @abstractmethod
    def lost(self) -> None:
        """End the connection without connection.close, and requeue unacked deliveries."""

    @abstractmethod
    def fail_channel(self, number: int, error: BrokerError) -> None:
        """Close a channel because of an error that no request has caused."""
