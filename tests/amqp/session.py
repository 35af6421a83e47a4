"""A client without a network: frames to send, a broker to feed them to, and what must be left of it.

The broker is the real one over a simulated disk; there is no socket, no thread and no clock but the test's,
so that thousands of sessions run in seconds and each run is like the one before. `Session` plays the shell
of `leveret.server`: feed, end the turn, take what is to be written. Frames are put together by hand here,
because most tests want some that are wrong.
"""

import struct
from collections.abc import Iterable
from functools import cache
from typing import Any

from pamqp import commands

from leveret.amqp import methods, properties
from leveret.amqp.frames import BODY, FRAME, HEADER, METHOD, OVERHEAD_BYTES, PROTOCOL_HEADER, frame
from leveret.amqp.methods import Method, make
from leveret.amqp.tables import Value
from leveret.broker.access.logins import Hasher, hash_at_once
from leveret.broker.broker import Broker
from leveret.broker.limits import Limits
from leveret.fronts.amqp.connection import Connection
from leveret.fronts.amqp.wire import State
from leveret.storage.store import Options, Store
from leveret.testing.clock import VirtualClock
from leveret.testing.definitions import MemoryDefinitions
from leveret.testing.disk import SimulatedDisk

SMALL = Options(wal_bytes=1 << 20, segment_bytes=1 << 20, memory_bytes=4 << 20)
CAPABILITIES: dict[str, Value] = dict.fromkeys(
    ("consumer_cancel_notify", "authentication_failure_close", "connection.blocked"), True
)


def default(amqp_type: str) -> Any:
    if amqp_type == "bit":
        return False
    if amqp_type == "table":
        return {}
    return "" if amqp_type in ("shortstr", "longstr") else 0


def method_of(kind: type[Method], **arguments: Any) -> Method:
    """`method_of(commands.Queue.Declare, queue="q")`: what is not given is zero, empty or false."""
    filled = {name: default(kind.amqp_type(name)) for name in kind.attributes()}
    return make(kind, **{**filled, **arguments})


def sent(channel: int, kind: type[Method], **arguments: Any) -> bytes:
    """The frame of a method."""
    return methods.frame(channel, method_of(kind, **arguments))


def header_of(size: int, **chosen: Value) -> bytes:
    """The payload of a content header."""
    return properties.encode(chosen, size)


def content(channel: int, header: bytes, body: bytes, *, step: int = 4088) -> bytes:
    """Header and body frames."""
    pieces = [body[start : start + step] for start in range(0, len(body), step)]
    return frame(HEADER, channel, header) + b"".join(frame(BODY, channel, piece) for piece in pieces)


def published(
    channel: int,
    body: bytes = b"",
    *,
    exchange: str = "",
    key: str = "q",
    mandatory: bool = False,
    **chosen: Value,
) -> bytes:
    """A whole basic.publish."""
    method = sent(channel, commands.Basic.Publish, exchange=exchange, routing_key=key, mandatory=mandatory)
    return method + content(channel, header_of(len(body), **chosen), body)


def settlement(channel: int, kind: int, tag: int, bits: int = 0) -> bytes:
    """ack (80), reject (90) or nack (120)."""
    return frame(METHOD, channel, struct.pack(">HHQB", 60, kind, tag, bits))


def start_ok(
    name: str = "guest", password: str = "guest", *, capabilities: dict[str, Value] = CAPABILITIES
) -> bytes:
    return sent(
        0,
        commands.Connection.StartOk,
        client_properties={"product": "test", "capabilities": capabilities},
        mechanism="PLAIN",
        response=f"\0{name}\0{password}".encode(),
        locale="en_US",
    )


def tune_ok(*, channel_max: int = 2047, frame_max: int = 131_072, heartbeat_s: int = 0) -> bytes:
    return sent(
        0, commands.Connection.TuneOk, channel_max=channel_max, frame_max=frame_max, heartbeat=heartbeat_s
    )


def opened(vhost: str = "/") -> bytes:
    return sent(0, commands.Connection.Open, virtual_host=vhost)


def handshake(*, channel_max: int = 2047, frame_max: int = 131_072, heartbeat_s: int = 0) -> bytes:
    """All that a client says until its connection is open; a server takes it in one piece, too."""
    tune = tune_ok(channel_max=channel_max, frame_max=frame_max, heartbeat_s=heartbeat_s)
    return PROTOCOL_HEADER + start_ok() + tune + opened()


def channel_open(*numbers: int) -> bytes:
    return b"".join(sent(number, commands.Channel.Open) for number in numbers)


def frames_in(data: bytes) -> list[tuple[int, int, bytes]]:
    """(type, channel, payload) of each frame; the bytes must be whole frames."""
    found, position = [], 0
    while position < len(data):
        if data.startswith(b"AMQP", position):
            position += 8
            continue
        kind, channel, size = FRAME.unpack_from(data, position)
        stop = position + 7 + size
        assert stop < len(data), "a frame is cut off"
        assert data[stop] == 0xCE, "a frame does not end as it should"
        found.append((kind, channel, data[position + 7 : stop]))
        position = stop + 1
    return found


ACCESS_GRANTED = b"\0\x1e\0\x0b\0\1"
"""access.request-ok: of an older protocol, and unknown to pamqp."""


def methods_in(data: bytes) -> list[tuple[int, Method]]:
    """The methods that the bytes hold, with their channels; contents are left out."""
    return [
        (channel, methods.decode(payload))
        for kind, channel, payload in frames_in(data)
        if kind == METHOD and payload != ACCESS_GRANTED
    ]


def names_in(data: bytes) -> list[str]:
    """`["basic.deliver", "channel.close 404"]`: what was answered, for a glance."""
    return [_shown(method) for _, method in methods_in(data)]


def _shown(method: Method) -> str:
    closed = isinstance(method, commands.Channel.Close | commands.Connection.Close)
    return f"{methods.name(method)} {method.reply_code}" if closed else methods.name(method)


class Session:
    """`session.feed(data)` gives what the broker answers; a broker may have several sessions."""

    def __init__(self, core: "Core", *, prefix: bytes = b"") -> None:
        self.core = core
        self.connection: Connection = Connection(core.broker, peer="a test", loopback=True)
        if prefix:
            self.feed(prefix)

    @property
    def state(self) -> State:
        return self.connection.state

    def feed(self, data: bytes) -> bytes:
        """One read of the socket, and the turns that follow until all of it has been answered."""
        answers = [self.feed_once(data)]
        while self.connection.backlog and not self.connection.awaits_login and self.state is not State.CLOSED:
            answers.append(self.feed_once(b""))
        return b"".join(answers)

    def feed_once(self, data: bytes) -> bytes:
        """One read of the socket, and what comes of it before more of it is looked at."""
        self.core.broker.begin_turn()
        if self.state is not State.CLOSED:
            self.connection.receive(self.connection.scanner.feed(data))
        return self.taken()

    def feed_all(self, pieces: Iterable[bytes]) -> bytes:
        return b"".join([self.feed(piece) for piece in pieces])

    def taken(self) -> bytes:
        """What is to be written, and what follows when it is."""
        self.core.settle()
        pieces = [self.connection.take_out()]
        while self.core.broker.has_more:
            self.core.settle()
            pieces.append(self.connection.take_out())
        return b"".join(pieces)

    def lose(self) -> None:
        """The socket is gone."""
        self.core.broker.begin_turn()
        self.connection.lost()
        self.core.settle()


class Core:
    """A broker in memory, without a shell."""

    def __init__(self, *, limits: Limits = Limits(), hasher: Hasher = hash_at_once) -> None:  # noqa: B008  (frozen)
        self.clock = VirtualClock()
        self.definitions = MemoryDefinitions()
        self._tokens = 0
        self.store = Store(SimulatedDisk(), clock=self.clock, entropy=lambda: 7, options=SMALL)
        self.broker = Broker(
            self.store,
            clock=self.clock,
            token=self._token,
            define=self.definitions.put,
            rows=self.definitions.load(),
            limits=limits,
            hasher=hasher,
        )
        self.definitions.start(self._committed, _raise)
        self.settle()

    def _token(self) -> str:
        self._tokens += 1
        return f"token-{self._tokens}"

    def _committed(self, number: int) -> None:
        if hasattr(self, "broker"):
            self.broker.committed(number)

    def settle(self) -> None:
        """Turns and syncs until nothing more happens, or only when something is written."""
        for _ in range(1000):
            self.broker.end_turn()
            if self.broker.ledger.wants_sync:
                self.store.sync()
                self.broker.synced()
            elif not self.broker.has_more:
                return
        raise AssertionError("the broker does not come to rest")

    def pass_time(self, seconds: float) -> None:
        """What becomes due happens."""
        self.clock.advance(seconds)
        self.broker.tick()
        self.settle()

    def session(self, *, prefix: bytes = b"") -> Session:
        return Session(self, prefix=prefix)

    def close(self) -> None:
        self.definitions.close()
        self.store.close()

    def leftovers(self) -> list[str]:
        """What connections have left behind, though all are gone; nothing, it is to be hoped."""
        broker = self.broker
        found = [f"session {each.name}" for each in broker.sessions]
        found += [f"reply channel {each.number}" for each in broker.replies.channels.values()]
        owed = (*broker.ledger.waiting, *broker.ledger.unsealed)
        found += [f"waiting: {each.channel.name}" for each in owed]
        for queue in [queue for vhost in broker.vhosts.values() for queue in vhost.queues.values()]:
            found += [f"exclusive {queue}"] if queue.owner is not None else []
            found += [f"{queue} has consumers"] if queue.consumers else []
            found += [f"{queue} has {queue.unacked} unacked"] if queue.unacked else []
        return found


def _raise(error: BaseException) -> None:
    raise error


@cache
def nested_table(depth: int) -> bytes:
    """The bytes of a table in a table in a table, made without recursion: length and entries."""
    inner = b""
    for _ in range(depth):
        inner = b"\x01t" + b"F" + struct.pack(">I", len(inner)) + inner
    return struct.pack(">I", len(inner)) + inner


assert len(frame(METHOD, 0, b"")) == OVERHEAD_BYTES
