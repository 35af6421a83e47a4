"""A blocking AMQP connection with one channel, for what comes before and after the measured part of a run.

It opens, declares, binds, consumes and closes, one method and one reply at a time; the measured part takes
over its socket and puts nothing of this module on the hot path. A reply other than the awaited one raises
`Unexpected`, with the broker's own text when it has one.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from bench.frames import CONSUMER_TAG, IDS, PREFIX, long, method, short, table

TIMEOUT_S = 30.0
CLOSES = {(10, 50), (20, 40)}
Arguments = Mapping[str, str | int | bool]
NONE: Arguments = MappingProxyType({})


class Unexpected(Exception):
    """The broker answered something that has no place in the run."""


def consume_frame(queue: str, *, auto_ack: bool = False, arguments: Arguments = NONE) -> bytes:
    bits = b"\x02" if auto_ack else b"\0"
    return method(60, 20, b"\0\0" + short(queue) + short(CONSUMER_TAG) + bits + long(table(arguments)))


class Client:
    """`Client(host, port)` is an open connection with channel 1 open on it."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port), timeout=TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(b"AMQP\0\0\x09\x01")
        self.expect(10, 10)
        plain = long(b"\0guest\0guest")
        self.socket.sendall(method(10, 11, long(b"") + short("PLAIN") + plain + short("en_US"), channel=0))
        limits = self.expect(10, 30)  # channel-max u16, frame-max u32, heartbeat u16
        no_heartbeat = limits[:6] + b"\0\0"
        self.socket.sendall(method(10, 31, no_heartbeat, channel=0))
        self.socket.sendall(method(10, 40, short("/") + short("") + b"\0", channel=0))
        self.expect(10, 41)
        self.call(20, 10, short(""))

    def call(self, class_id: int, method_id: int, arguments: bytes = b"") -> bytes:
        """Sends a method on the channel; gives the arguments of its `-ok`, which has the next number."""
        self.socket.sendall(method(class_id, method_id, arguments))
        return self.expect(class_id, method_id + 1)

    def expect(self, class_id: int, method_id: int) -> bytes:
        _, _, size = PREFIX.unpack(self.receive(PREFIX.size))
        payload = self.receive(size + 1)[:-1]
        found = IDS.unpack_from(payload)
        if found == (class_id, method_id):
            return payload[IDS.size :]
        text = payload[7 : 7 + payload[6]].decode() if found in CLOSES else payload[:80].hex()
        raise Unexpected(f"waited for method {class_id},{method_id}, got {found[0]},{found[1]}: {text}")

    def receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            if not more:
                raise Unexpected("the broker closed the connection")
            data += more
        return data

    def declare_queue(self, name: str, arguments: Arguments = NONE) -> None:
        """A durable queue, a classic one if the arguments say nothing else."""
        self.call(50, 10, b"\0\0" + short(name) + b"\x02" + long(table(arguments)))

    def depth(self, name: str) -> int:
        """Ready messages of a queue, by a passive declare."""
        counts = self.call(50, 10, b"\0\0" + short(name) + b"\x01" + long(b""))[-8:]
        return int.from_bytes(counts[:4], "big")

    def declare_exchange(self, name: str, queue: str, keys: Iterable[str]) -> None:
        """A durable direct exchange with a binding of the queue for every key."""
        self.call(40, 10, b"\0\0" + short(name) + short("direct") + b"\x02" + long(b""))
        for key in keys:
            self.call(50, 20, b"\0\0" + short(queue) + short(name) + short(key) + b"\0" + long(b""))

    def declare_topic(self, name: str, partitions: int) -> None:
        """An exchange that hashes keys, with so many streams bound to it."""
        self.call(40, 10, b"\0\0" + short(name) + short("x-consistent-hash") + b"\x02" + long(b""))
        for number in range(partitions):
            stream = f"{name}-{number}"
            self.declare_queue(stream, {"x-queue-type": "stream"})
            self.call(50, 20, b"\0\0" + short(stream) + short(name) + short("1") + b"\0" + long(b""))

    def delete_queue(self, name: str) -> None:
        self.call(50, 40, b"\0\0" + short(name) + b"\0")

    def delete_exchange(self, name: str) -> None:
        self.call(40, 20, b"\0\0" + short(name) + b"\0")

    def confirm_select(self) -> None:
        self.call(85, 10, b"\0")

    def tx_select(self) -> None:
        self.call(90, 10)

    def limit(self, prefetch: int) -> None:
        """Unsettled deliveries of each consumer to come."""
        self.call(60, 10, bytes(4) + prefetch.to_bytes(2, "big") + b"\0")

    def consume(
        self, queue: str, *, prefetch: int, auto_ack: bool = False, arguments: Arguments = NONE
    ) -> None:
        if not auto_ack:
            self.limit(prefetch)
        self.socket.sendall(consume_frame(queue, auto_ack=auto_ack, arguments=arguments))
        self.expect(60, 21)

    def cancel(self) -> None:
        self.call(60, 30, short(CONSUMER_TAG) + b"\0")

    def close_channel(self) -> None:
        """Comes back when the broker has handled everything that was sent on the channel."""
        self.socket.settimeout(TIMEOUT_S)
        self.call(20, 40, (200).to_bytes(2, "big") + short("") + bytes(4))
        self.call(20, 10, short(""))

    def close(self) -> None:
        self.socket.settimeout(TIMEOUT_S)
        arguments = (200).to_bytes(2, "big") + short("") + bytes(4)
        self.socket.sendall(method(10, 50, arguments, channel=0))
        self.expect(10, 51)
        self.socket.close()
