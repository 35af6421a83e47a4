"""A client that says anything: one TCP connection of a scenario, read and written frame by frame.

Owns the socket and the handshake, step by step, so that each step can be done wrongly. Channels are in
`channel.py`; when a step is over, and what a transcript looks like, is left to `play.py`. Every wait has a
deadline, and a server that closes or breaks the connection is something to write down, not an error.
"""

import contextlib
import select
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.differential import wire
from tests.differential.channel import Channel
from tests.processes import WAIT_S

if TYPE_CHECKING:
    from tests.differential.play import Play

HEADER = b"AMQP\x00\x00\x09\x01"
SILENCE_S = 0.3
CAPABILITIES = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "authentication_failure_close": True,
}


class Peer:
    """One TCP connection of a scenario."""

    def __init__(self, play: "Play", name: str, port: int) -> None:
        self.play = play
        self.name = name
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = bytearray()
        self.outgoing = b""
        self.channels: dict[int, Channel] = {}
        self.frame_max = 131_072
        self.is_open = False
        self.was_open = False
        self.answers_close = True
        self.ended = False
        self.leaves = False  # the server has agreed to a close, and leaves the socket to us
        self.spoken_on: set[Channel] = set()

    def channel(self, number: int) -> Channel:
        return self.channels.setdefault(number, Channel(self, number))

    # --- the handshake

    def start(self) -> None:
        """Sends the protocol header and waits for connection.start."""
        self.send(HEADER, None)
        self.read_until(lambda: self.channel(0).events)

    def start_ok(
        self,
        mechanism: str = "PLAIN",
        response: str | bytes = b"\x00guest\x00guest",
        capabilities: dict[str, Any] | None = None,
    ) -> None:
        properties = {"capabilities": CAPABILITIES if capabilities is None else capabilities}
        method = wire.method_class("connection_start_ok")
        values = {"client_properties": properties, "mechanism": mechanism, "response": response}
        self.channel(0).send_method(method, values, silent=True)
        self.await_answer()

    def tune_ok(self, channel_max: int = 2047, frame_max: int = 131_072, heartbeat: int = 0) -> None:
        values = {"channel_max": channel_max, "frame_max": frame_max, "heartbeat": heartbeat}
        self.channel(0).send_method(wire.method_class("connection_tune_ok"), values)
        self.frame_max = frame_max

    def open(self, vhost: str | None = None) -> None:
        values = {"virtual_host": vhost or self.play.vhost}
        self.channel(0).send_method(wire.method_class("connection_open"), values)
        self.await_answer()
        self.is_open = self.was_open = any("open-ok" in event for event in self.channel(0).events)

    def await_answer(self) -> None:
        """Waits for one more event of channel 0."""
        before = len(self.channel(0).events)
        self.read_until(lambda: len(self.channel(0).events) > before)
        self.spoken_on.clear()

    def log_in(self, *, vhost: str | None = None, **start_ok: Any) -> "Peer":
        """The whole handshake, without a word in the transcript."""
        self.start()
        self.start_ok(**start_ok)
        with self.play.silence():
            self.tune_ok()
            self.open(vhost)
        if not self.is_open:
            raise RuntimeError(f"no connection: {self.channel(0).events}")
        self.channel(0).events.clear()
        return self

    # --- bytes

    def send(self, raw: bytes, told: str | None, *, channel: Channel | None = None) -> None:
        """Sends bytes; `channel` is where an answer to them is expected, if anywhere."""
        if channel:
            self.spoken_on.add(channel)
        if told:
            self.play.tell(told)
        self.outgoing += raw
        if not self.play.holding:
            self.push()

    def push(self) -> None:
        raw, self.outgoing = self.outgoing, b""
        with contextlib.suppress(OSError):  # the server may have gone: reading will tell
            self.socket.sendall(raw)

    def drop(self) -> None:
        """Goes away without a word, as a killed client does."""
        self.play.tell(f"{self.name} > (drops the connection)")
        self.socket.close()
        self.ended, self.is_open = True, False
        self.forget_channels()

    def forget_channels(self) -> None:
        for channel in self.channels.values():
            channel.forget()

    def read_until(self, satisfied: Callable[[], Any], timeout_s: float = WAIT_S) -> bool:
        """Reads until `satisfied()`, the end of the connection, or the deadline (False)."""
        deadline = time.monotonic() + timeout_s
        while not satisfied() and not self.ended:
            if not self.read_some(deadline - time.monotonic()):
                return False
        return True

    def wait_blindly(self) -> None:
        """Where no barrier can follow: waits for an answer, or for silence longer than any server needs."""
        blind = [channel for channel in self.spoken_on if not channel.can_be_asked]
        self.spoken_on.clear()
        if not blind:
            return
        before, timeout_s = self.seen(), SILENCE_S
        if any(channel.awaited for channel in blind):
            timeout_s = WAIT_S
        self.read_until(
            lambda: self.seen() > before and not any(channel.awaited for channel in blind), timeout_s
        )

    def seen(self) -> int:
        return sum(len(channel.events) for channel in self.channels.values())

    def read_some(self, timeout_s: float) -> bool:
        """Takes what there is; waits at most this long for it."""
        if timeout_s < 0 or not select.select([self.socket], [], [], timeout_s)[0]:
            return False
        try:
            received = self.socket.recv(1 << 16)
        except ConnectionResetError:
            received = b""
        if not received:
            self.end()
            return True
        self.buffer += received
        self.take_frames()
        if self.leaves:
            self.ended = True
            self.socket.close()
        return True

    def take_frames(self) -> None:
        if self.buffer.startswith(b"AMQP"):
            if len(self.buffer) >= 8:
                self.channel(0).events.append(f"protocol header {bytes(self.buffer[:8])!r}")
                del self.buffer[:8]
            return
        for frame in wire.frames_in(self.buffer):
            if self.leaves:
                self.channel(frame.channel).events.append("! a frame after connection.close-ok")
            if self.frame_max and len(frame.payload) + 8 > self.frame_max and self.was_open:
                self.channel(frame.channel).events.append(f"! a frame of {len(frame.payload) + 8} bytes")
            self.channel(frame.channel).take(frame)

    def end(self) -> None:
        self.ended, self.is_open = True, False
        self.forget_channels()
        self.channel(0).events.append("(the server closed the socket)")
        self.socket.close()
