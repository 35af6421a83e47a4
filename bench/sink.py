"""A broker that does nothing: `python -m bench.sink RUN [SECONDS]` shows how fast the generator itself is.

It plays one run of `bench.generator`, whose encoded traffic it makes beforehand too, and knows how far it is
by counting bytes: what comes in is not looked at, confirms (with multiple) and deliveries go out as slices.
A broker can hardly be cheaper, so the rate against it is the generator's ceiling. It plays no transactions.
With SECONDS it sleeps before it sends anything: what a client then waits longer is not its broker's doing.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time
from bisect import bisect_right

from bench.frames import (
    CONSUMER_TAG,
    IDS,
    METHOD,
    PREFIX,
    SETTLEMENT,
    Load,
    frame,
    long,
    make_load,
    method,
    settlement,
    short,
)
from bench.generator import Run

RECEIVE_BYTES = 1 << 20
SEND_BYTES = 256 << 10
PUBLISH, CONSUME, START_OK, TUNE_OK, DECLARE = (60, 40), (60, 20), (10, 11), (10, 31), (50, 10)
MECHANISMS = bytes([0, 9]) + long(b"") + long(b"PLAIN") + long(b"en_US")
LIMITS = bytes([0x07, 0xFF]) + (131_072).to_bytes(4, "big") + bytes(2)
EXTRA = {(10, 40): short(""), (20, 10): long(b""), (50, 40): bytes(4), CONSUME: short(CONSUMER_TAG)}


class Peer:
    """One connection: methods one by one at first and at last, a bulk of publishes or acks in between."""

    def __init__(self, connection: socket.socket, sink: Sink) -> None:
        self.socket = connection
        self.sink = sink
        self.out = b""
        self.published = 0
        self.acked = 0
        self.consumes = False
        self.delivery_position = 0
        self._rest = b""
        self._bulk = 0
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))
        self._greeted = False

    def receive(self) -> bool:
        """False at the end of the connection."""
        size = self.socket.recv_into(self._buffer)
        if self._bulk and self._bulk < self._bulk_end:
            size_in_bulk = min(size, self._bulk_end - self._bulk)
            self._count(size_in_bulk)
            self._rest += self._buffer[size_in_bulk:size]
        else:
            self._rest += self._buffer[:size]
        if self._rest:
            self._methods()
        return size > 0

    def _count(self, size: int) -> None:
        self._bulk += size
        if self.consumes:
            self.acked = self._bulk // SETTLEMENT.size
            return
        published = bisect_right(self.sink.load.publish_ends, self._bulk)
        if published > self.published:
            self.sink.published += published - self.published
            self.published = published
            if self.sink.run.confirms:
                self.out += settlement(published, multiple=True)

    @property
    def _bulk_end(self) -> int:
        return len(self.sink.load.acks if self.consumes else self.sink.load.publishes)

    def _methods(self) -> None:
        if not self._greeted and len(self._rest) >= 8:
            self._greeted, self._rest = True, self._rest[8:]
            self.out += method(10, 10, MECHANISMS, channel=0)
        while len(self._rest) >= PREFIX.size + IDS.size:
            _, channel, size = PREFIX.unpack_from(self._rest)
            ids = IDS.unpack_from(self._rest, PREFIX.size)
            if ids in (PUBLISH, (60, 80)):
                size_in_bulk = min(len(self._rest), self._bulk_end)
                self._count(size_in_bulk)
                self._rest = self._rest[size_in_bulk:]
                continue
            if len(self._rest) < PREFIX.size + size + 1:
                return
            self._rest = self._rest[PREFIX.size + size + 1 :]
            self._answer(ids, channel)

    def _answer(self, ids: tuple[int, int], channel: int) -> None:
        if ids == TUNE_OK:
            return
        if ids == START_OK:
            self.out += method(10, 30, LIMITS, channel=0)
            return
        arguments = EXTRA.get(ids, b"")
        if ids == DECLARE:
            ready = self.sink.published - self.sink.delivered
            arguments = short("queue") + ready.to_bytes(4, "big") + bytes(4)
        self.out += frame(METHOD, IDS.pack(ids[0], ids[1] + 1) + arguments, channel)
        if ids == CONSUME:
            self.consumes = True

    def due(self) -> int:
        """Where the deliveries end that may be sent now."""
        if not self.consumes:
            return 0
        held = self.sink.published if self.sink.run.auto_ack else self.acked + self.sink.run.prefetch
        count = min(self.sink.published, held)
        return self.sink.load.delivery_ends[count - 1] if count else 0

    @property
    def wants_to_send(self) -> bool:
        return bool(self.out) or self.delivery_position < self.due()

    def send(self) -> None:
        if self.out:
            self.out = self.out[self.socket.send(self.out) :]
            return
        end = min(self.due(), self.delivery_position + SEND_BYTES)
        self.delivery_position += self.socket.send(self.sink.deliveries[self.delivery_position : end])
        self.sink.delivered = bisect_right(self.sink.load.delivery_ends, self.delivery_position)


class Sink:
    def __init__(self, run: Run, load: Load, wait_s: float) -> None:
        self.run = run
        self.load = load
        self.wait_s = wait_s
        self.deliveries = memoryview(load.deliveries)
        self.published = 0
        self.delivered = 0

    def serve(self, listener: socket.socket) -> None:
        peers: dict[int, Peer] = {}
        interest: dict[int, int] = {}
        with select.epoll() as poll:
            poll.register(listener.fileno(), select.EPOLLIN)
            while True:
                for number, peer in peers.items():
                    wanted = select.EPOLLIN | (select.EPOLLOUT if peer.wants_to_send else 0)
                    if interest[number] != wanted:
                        interest[number] = wanted
                        poll.modify(number, wanted)
                for number, event in poll.poll():
                    if number == listener.fileno():
                        connection = listener.accept()[0]
                        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                        peers[connection.fileno()] = Peer(connection, self)
                        interest[connection.fileno()] = select.EPOLLIN
                        connection.setblocking(False)
                        poll.register(connection.fileno(), select.EPOLLIN)
                    elif event & ~select.EPOLLOUT and not peers[number].receive():
                        poll.unregister(number)
                        peers.pop(number).socket.close()
                    elif peers[number].wants_to_send:
                        if self.wait_s:
                            time.sleep(self.wait_s)
                        peers[number].send()


def main() -> None:
    run = Run.from_json(json.loads(sys.argv[1]))
    wait_s = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
    load = make_load(run.shape, run.messages_each)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(f"sink: ready on amqp://127.0.0.1:{listener.getsockname()[1]}", flush=True)
        Sink(run, load, wait_s).serve(listener)


if __name__ == "__main__":
    main()
