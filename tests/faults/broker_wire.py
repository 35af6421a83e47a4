"""A client without a socket: what it sends is fed to the broker, what comes back is decoded.

`Wire` owns one connection and the bytes on it; what the methods mean is left to whoever reads `received`.
Nothing happens in the broker behind its back: the caller ends turns, syncs and lets time pass.
"""

from __future__ import annotations

from typing import NamedTuple

from pamqp import commands

from leveret.amqp import methods, properties
from leveret.amqp.frames import BODY, FRAME, HEADER, METHOD, PROTOCOL_HEADER, content_frames
from leveret.amqp.methods import Method, make
from leveret.amqp.tables import Value
from leveret.broker.broker import Broker
from leveret.fronts.amqp.connection import Connection
from leveret.fronts.amqp.wire import State

_FRAME_MAX = 131_072


class Frame(NamedTuple):
    """A method from the broker, with the content that came with it."""

    channel: int
    method: Method
    header: bytes = b""
    body: bytes = b""


class Wire:
    """`wire.send(1, commands.Basic.Get(queue="q"))`, a turn of the broker, then `wire.received()`."""

    def __init__(self, broker: Broker, name: str) -> None:
        self.connection = Connection(broker, peer=name, loopback=True)
        self._unread = b""
        capabilities = {"consumer_cancel_notify": True, "basic.nack": True}
        start = make(
            commands.Connection.StartOk,
            client_properties={"capabilities": capabilities},
            mechanism="PLAIN",
            response=b"\0guest\0guest",
            locale="en_US",
        )
        tune = commands.Connection.TuneOk(channel_max=2047, frame_max=_FRAME_MAX, heartbeat=0)
        opening = (start, tune, commands.Connection.Open(virtual_host="/"))
        self.feed(PROTOCOL_HEADER + b"".join(methods.frame(0, each) for each in opening))
        assert self.connection.state is State.RUNNING

    @property
    def is_open(self) -> bool:
        return self.connection.state is State.RUNNING

    def feed(self, data: bytes) -> None:
        self.connection.receive(self.connection.scanner.feed(data))

    def send(self, channel: int, *sent: Method) -> None:
        self.feed(b"".join(methods.frame(channel, each) for each in sent))

    def publish(
        self, channel: int, exchange: str, key: str, contents: list[tuple[dict[str, Value], bytes]]
    ) -> None:
        """Messages with the same method, as one read from a socket."""
        method = methods.frame(channel, commands.Basic.Publish(exchange=exchange, routing_key=key))
        parts = []
        for given, body in contents:
            header = properties.encode(given, len(body))
            parts += [method, *content_frames(channel, header, body, frame_max=_FRAME_MAX)]
        self.feed(b"".join(parts))

    def lose(self) -> None:
        """As if the network broke."""
        self.connection.lost()

    def received(self) -> list[Frame]:
        """What has come since the last time."""
        data = self._unread + b"".join(self.connection.out)
        self.connection.out.clear()
        self.connection.broker.flushed.pop(self.connection.session, None)
        found: list[Frame] = []
        position = 0
        while position < len(data):
            kind, channel, size = FRAME.unpack_from(data, position)
            payload = data[position + FRAME.size : position + FRAME.size + size]
            position += FRAME.size + size + 1
            if kind == METHOD:
                found.append(Frame(channel, methods.decode(payload)))
            elif kind == HEADER:
                found[-1] = found[-1]._replace(header=payload)
            elif kind == BODY:
                found[-1] = found[-1]._replace(body=found[-1].body + payload)
        return found
