"""One connection to a broker, from the first byte to its end: handshake, heartbeats, channels, blocking.

A session never comes back: `Connection` makes the next one. All frames of one turn of the event loop leave in
one write. Received bytes are scanned once, and channels get their events in runs. The rule: when a session
ends, each channel and each waiting call gets the cause, once.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from pamqp import commands

from leveret import __version__
from leveret.amqp import methods
from leveret.amqp.errors import AmqpError
from leveret.amqp.events import Contents, Deliveries, Event, MethodFrame, Settlement, Violation
from leveret.amqp.frames import HEARTBEAT_FRAME, PROTOCOL_HEADER
from leveret.amqp.methods import Method, make
from leveret.amqp.scanner import Scanner
from leveret.amqp.tables import Value
from leveret.client.channel import Channel
from leveret.client.endpoint import EXTERNAL, Endpoint
from leveret.client.errors import (
    ChannelsExhausted,
    ClientError,
    ConnectionLost,
    LoginRefused,
    NotConnected,
    TlsFailed,
)
from leveret.client.tls_options import explained

log = logging.getLogger("leveret.client")

HEARTBEAT_S: Final = 60
CONNECT_S: Final = 10.0
CLOSE_S: Final = 5.0
_FRAME_MAX: Final = 131_072
_CHANNEL_MAX: Final = 2047
_WRITE_HIGH_BYTES: Final = 1 << 20
_MESSAGE_MAX_BYTES: Final = 1 << 30
"""Twice the size of the largest message that any broker takes."""
_CAPABILITIES: Final[dict[str, Value]] = {
    "publisher_confirms": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "authentication_failure_close": True,
}
_LOGIN_CODES: Final = {403, 530}
_TLS_ALERT: Final = b"\x15\x03"
"""The first bytes of an alert (RFC 8446, section 5.1), the answer of a port for TLS to plain AMQP."""
_MAYBE_TLS: Final = "is this a port for amqps://?"
_MAYBE_REFUSED: Final = "does it want a client certificate, or refuse this one? (see its log)"
_USE_PLAIN: Final = "use amqp:// for it, or the broker's port for amqps://"


class Session(asyncio.Protocol):
    """`session = await Session.connect(Endpoint.parse(url))`."""

    def __init__(self, endpoint: Endpoint, *, heartbeat_s: int, name: str) -> None:
        self.endpoint = endpoint
        self.server: Mapping[str, object] = {}
        """The broker's properties, from connection.start."""
        self.frame_max = _FRAME_MAX
        self.heartbeat_s = heartbeat_s
        self.blocked: str | None = None
        """Why the broker takes no messages at present, or None."""
        self.writable = True
        self.error: ClientError | None = None
        """Why the session ended, or None."""
        self.on_end: Callable[[ClientError], None] = _ignore
        self.on_blocked: Callable[[str | None], None] = _ignore
        self.on_writable: list[Callable[[], None]] = []
        """Called when the socket takes bytes again."""
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._scanner = Scanner(greeted=True, message_max_bytes=_MESSAGE_MAX_BYTES)
        self._channels: dict[int, Channel] = {}
        self._channel_max = _CHANNEL_MAX
        self._transport: asyncio.Transport
        self._out: list[bytes] = []
        self._leaving = False
        self._paused = False
        self._received_s = self._sent_s = self._beat_due_s = 0.0
        self._beat_timer: asyncio.TimerHandle | None = None
        self._abort_timer: asyncio.TimerHandle | None = None

    @classmethod
    async def connect(
        cls,
        endpoint: Endpoint,
        *,
        heartbeat_s: int = HEARTBEAT_S,
        timeout_s: float = CONNECT_S,
        tls: ssl.SSLContext | None = None,
        name: str = "",
    ) -> Session:
        """Open a session. `NotConnected`: not in time. `LoginRefused`: the broker refuses the login.

        `tls` replaces the files and the verification that the URL's query names.
        """
        loop = asyncio.get_running_loop()
        secured: dict[str, Any] = {}
        if endpoint.tls:
            try:
                context = tls or endpoint.tls_options.context()
            except ValueError as error:
                raise TlsFailed(f"no connection to {endpoint.address}: {error}") from error
            secured = {"ssl": context, "server_hostname": endpoint.tls_options.name_of(endpoint.host)}
        heartbeat_s = heartbeat_s if endpoint.heartbeat_s is None else endpoint.heartbeat_s
        session = cls(endpoint, heartbeat_s=heartbeat_s, name=name)
        try:
            async with asyncio.timeout(endpoint.timeout_s or timeout_s):
                await loop.create_connection(lambda: session, endpoint.host, endpoint.port, **secured)
                await session._opened
        # UnicodeError: the host name can't be encoded.
        except (TimeoutError, OSError, UnicodeError) as error:
            session._abort()
            if why := explained(error, plain=_USE_PLAIN):
                raise TlsFailed(f"no connection to {endpoint.address}: {why}") from error
            reason = str(error) or "no answer in time"
            raise NotConnected(f"no connection to {endpoint.address}: {reason}") from error
        except asyncio.CancelledError:
            session._abort()
            raise
        return session

    @property
    def is_leveret(self) -> bool:
        return self.server.get("product") == "Leveret"

    def has(self, capability: str) -> bool:
        """Return whether the broker announced this capability."""
        capabilities = self.server.get("capabilities")
        return isinstance(capabilities, dict) and bool(capabilities.get(capability))

    async def open_channel(self) -> Channel:
        if self.error is not None:
            raise self.error.with_traceback(None)
        number = next(n for n in range(1, self._channel_max + 2) if n not in self._channels)
        if number > self._channel_max:
            raise ChannelsExhausted(f"all {self._channel_max} channels of the connection are in use")
        channel = self._channels[number] = Channel(self, number)
        try:
            await channel.call(make(commands.Channel.Open, out_of_band="0"))
        except asyncio.CancelledError:
            channel.abandon()
            raise
        return channel

    def forget(self, channel: Channel) -> None:
        """Free the number of a channel that has ended."""
        self._channels.pop(channel.number, None)

    async def close(self) -> None:
        """Send connection.close, and wait for the answer up to `CLOSE_S`."""
        if self.error is None and not self._leaving:
            self._leaving = True
            self.write(
                0, make(commands.Connection.Close, reply_code=200, reply_text="bye", class_id=0, method_id=0)
            )
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._ended), CLOSE_S)
        self._abort()

    def fail(self, sentence: str) -> None:
        """End the session, and give this reason to its channels."""
        self._end(ConnectionLost(sentence))

    def pause_reading(self, paused: bool) -> None:
        """Stop or resume reading the socket."""
        if paused != self._paused and self.error is None:
            self._paused = paused
            if paused:
                self._transport.pause_reading()
            else:
                # No heartbeat could be received while reading was paused.
                self._received_s = self._loop.time()
                self._transport.resume_reading()

    # writing

    def write(self, channel: int, method: Method) -> None:
        self.send(methods.frame(channel, method))

    def send(self, data: bytes) -> None:
        """Add bytes to what is written at the end of the turn."""
        if not self._out:
            self._loop.call_soon(self.flush)
        self._out.append(data)

    def flush(self) -> None:
        if not self._out or self.error is not None:
            return
        data = b"".join(self._out)
        self._out.clear()
        if self._transport.is_closing():
            # The connection is lost: `connection_lost` follows in the next turn.
            self.writable = False
            return
        self._transport.write(data)
        self._sent_s = self._loop.time()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=_WRITE_HIGH_BYTES)
        self._received_s = self._sent_s = self._loop.time()
        transport.write(PROTOCOL_HEADER)

    def data_received(self, data: bytes) -> None:
        self._received_s = self._loop.time()
        if not self.server and data.startswith(_TLS_ALERT):
            address = self.endpoint.address
            self._end(TlsFailed(f"the port of {address} speaks TLS; use amqps:// for it"))
            return
        try:
            for event in self._scanner.feed(data):
                self._take(event)
        except AmqpError as error:
            self._violated(error)

    def eof_received(self) -> None:
        return None

    def connection_lost(self, error: Exception | None) -> None:
        self._end(self._loss(error))
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        if not self._ended.done():
            self._ended.set_result(None)

    def _loss(self, error: Exception | None) -> ClientError:
        """Return why the connection ended, without a word of the broker."""
        address = self.endpoint.address
        if error is not None and (why := explained(error, plain=_USE_PLAIN)) and not self.server:
            return TlsFailed(f"no connection to {address}: {why}")
        cause = f": {error}" if error else ""
        if not self.server:
            # With TLS 1.3 the client has done its part before the broker looks at its certificate.
            hint = _MAYBE_REFUSED if self.endpoint.tls else _MAYBE_TLS
            cause += f" before the broker said anything; {hint}"
        return ConnectionLost(f"the connection to {address} was lost{cause}")

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        for notice in list(self.on_writable):
            notice()

    # received events

    def _take(self, event: Event) -> None:
        if isinstance(event, Deliveries):
            if (channel := self._channels.get(event.channel)) is not None:
                channel.on_deliveries(event.messages)
        elif isinstance(event, Settlement):
            if (channel := self._channels.get(event.channel)) is not None:
                channel.on_settled(event)
        elif isinstance(event, MethodFrame):
            method = methods.decode(event.payload)
            if event.channel == 0:
                self._take_connection_method(method)
            elif (channel := self._channels.get(event.channel)) is not None:
                channel.take(method)
        elif isinstance(event, Contents):
            if (channel := self._channels.get(event.channel)) is not None:
                channel.take_content(methods.decode(event.method), *event.contents[0])
        elif isinstance(event, Violation):
            self._violated(event.error)

    def _violated(self, error: AmqpError) -> None:
        self._end(ConnectionLost(f"{self.endpoint.address} broke the protocol: {error.reply_text}"))

    def _take_connection_method(self, method: Method) -> None:
        """Handle a method of class connection, on channel 0."""
        if isinstance(method, commands.Connection.Start):
            self.server = method.server_properties
            self._log_in(method.mechanisms)
        elif isinstance(method, commands.Connection.Tune):
            self._tune(method)
        elif isinstance(method, commands.Connection.OpenOk):
            if not self._opened.done():
                self._opened.set_result(None)
        elif isinstance(method, commands.Connection.Close):
            self._closed_by_peer(method)
        elif isinstance(method, commands.Connection.CloseOk):
            self._end(ConnectionLost("the connection was closed"))
        elif isinstance(method, commands.Connection.Blocked):
            self.blocked = method.reason
            self.on_blocked(method.reason)
        elif isinstance(method, commands.Connection.Unblocked):
            self.blocked = None
            self.on_blocked(None)

    def _log_in(self, mechanisms: str) -> None:
        mechanism, address = self.endpoint.mechanism, self.endpoint.address
        if mechanism not in mechanisms.split():
            self._end(LoginRefused(f"{address} offers no {mechanism} login, only {mechanisms}"))
            return
        response = f"\0{self.endpoint.user}\0{self.endpoint.password}".encode()
        if mechanism == EXTERNAL:
            response = b""
        properties: dict[str, Value] = {
            "product": "leveret.client",
            "version": __version__,
            "platform": "Python",
            "capabilities": _CAPABILITIES,
        }
        if self._name:
            properties["connection_name"] = self._name
        self.write(
            0,
            make(
                commands.Connection.StartOk,
                client_properties=properties,
                mechanism=mechanism,
                response=response,
                locale="en_US",
            ),
        )

    def _tune(self, offer: commands.Connection.Tune) -> None:
        self._channel_max = _lower(offer.channel_max, _CHANNEL_MAX)
        self.frame_max = self._scanner.frame_max = _lower(offer.frame_max, _FRAME_MAX)
        self.heartbeat_s = _lower(offer.heartbeat, self.heartbeat_s) if self.heartbeat_s else 0
        self.write(
            0,
            make(
                commands.Connection.TuneOk,
                channel_max=self._channel_max,
                frame_max=self.frame_max,
                heartbeat=self.heartbeat_s,
            ),
        )
        self.write(
            0, make(commands.Connection.Open, virtual_host=self.endpoint.vhost, capabilities="", insist=False)
        )
        if self.heartbeat_s:
            self._beat_later()

    def _closed_by_peer(self, close: commands.Connection.Close) -> None:
        self.write(0, make(commands.Connection.CloseOk))
        self.flush()
        sentence = f"{self.endpoint.address} closed the connection: {close.reply_code} {close.reply_text}"
        if not self._opened.done() and close.reply_code in _LOGIN_CODES:
            self._end(LoginRefused(sentence))
        else:
            self._end(ConnectionLost(sentence, code=close.reply_code or 0, text=close.reply_text))

    # the end

    def _end(self, error: ClientError) -> None:
        if self.error is not None:
            return
        self.error = error
        if self._beat_timer is not None:
            self._beat_timer.cancel()
        self._out.clear()
        self._transport.close()
        # The peer may not read what is left in the buffer.
        self._abort_timer = self._loop.call_later(CLOSE_S, self._transport.abort)
        if not self._opened.done():
            refused = isinstance(error, LoginRefused | TlsFailed)
            self._opened.set_exception(error if refused else NotConnected(f"no connection: {error.sentence}"))
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            channel.end(error)
        self.on_end(error)

    def _abort(self) -> None:
        if hasattr(self, "_transport"):
            self._transport.abort()
            self._end(ConnectionLost("the connection was given up"))
        if self._opened.done() and not self._opened.cancelled():
            # Mark the exception as retrieved.
            self._opened.exception()

    def _beat_later(self) -> None:
        self._beat_due_s = self._loop.time() + self.heartbeat_s / 2
        self._beat_timer = self._loop.call_at(self._beat_due_s, self._beat)

    def _beat(self) -> None:
        """End a session that was silent for two intervals, and send a heartbeat after half an interval."""
        now_s = self._loop.time()
        # While the event loop was late, it could not receive anything.
        late_s = now_s - self._beat_due_s
        self._received_s = min(now_s, self._received_s + late_s)
        if now_s - self._received_s >= 2 * self.heartbeat_s and not self._paused:
            address, silent_s = self.endpoint.address, int(now_s - self._received_s)
            self._end(ConnectionLost(f"{address} has been silent for {silent_s} s: no heartbeat came"))
            self._transport.abort()
            return
        if now_s - self._sent_s >= self.heartbeat_s / 2 and not self._transport.is_closing():
            self._transport.write(HEARTBEAT_FRAME)
            self._sent_s = now_s
        self._beat_later()


def _lower(offered: int, wanted: int) -> int:
    """Return the lower of two limits. 0 means no limit."""
    return min(offered, wanted) if offered and wanted else offered or wanted


def _ignore(_: object) -> None:
    return None
