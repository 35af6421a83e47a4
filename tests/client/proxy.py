"""A wire between clients and a broker that is cut, halves, delays, dribbles, falls silent and refuses.

Owns the threads that carry bytes between the two, where frames begin and end in both directions, and the
plan: at the n-th frame of a kind, before it, in its middle or after it, the wire is cut or falls silent. It
knows no more of AMQP than that; what a broken wire means is left to the client and the broker. Frames are
carried whole unless the plan halves one, so that a cut is where the test wants it, and nowhere else.
"""

import contextlib
import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple
from urllib.parse import urlsplit

from leveret.amqp.frames import BODY, FRAME, HEADER, HEARTBEAT, METHOD, OVERHEAD_BYTES, PROTOCOL_HEADER
from tests.processes import WAIT_S

READ_BYTES = 1 << 16
CLIENT, BROKER = "client", "broker"


class Kind(NamedTuple):
    """Who sends a frame, its type, and for a method its class and number."""

    sender: str
    type: int
    method: tuple[int, int] = (0, 0)


GREETING = Kind(CLIENT, 0)
START_OK = Kind(CLIENT, METHOD, (10, 11))
CHANNEL_OPEN = Kind(CLIENT, METHOD, (20, 10))
CHANNEL_OPEN_OK = Kind(BROKER, METHOD, (20, 11))
CHANNEL_CLOSE = Kind(BROKER, METHOD, (20, 40))
CONFIRM_SELECT = Kind(CLIENT, METHOD, (85, 10))
CONFIRM_SELECT_OK = Kind(BROKER, METHOD, (85, 11))
PUBLISH = Kind(CLIENT, METHOD, (60, 40))
PUBLISHED_HEADER = Kind(CLIENT, HEADER)
PUBLISHED_BODY = Kind(CLIENT, BODY)
CONFIRM = Kind(BROKER, METHOD, (60, 80))
REFUSAL = Kind(BROKER, METHOD, (60, 120))
RETURN = Kind(BROKER, METHOD, (60, 50))
CONSUME = Kind(CLIENT, METHOD, (60, 20))
DELIVER = Kind(BROKER, METHOD, (60, 60))
DELIVERED_HEADER = Kind(BROKER, HEADER)
DELIVERED_BODY = Kind(BROKER, BODY)
ACK = Kind(CLIENT, METHOD, (60, 80))
NACK = Kind(CLIENT, METHOD, (60, 120))
REJECT = Kind(CLIENT, METHOD, (60, 90))
CLIENT_HEARTBEAT = Kind(CLIENT, HEARTBEAT)
BROKER_HEARTBEAT = Kind(BROKER, HEARTBEAT)


class Where(Enum):
    """How much of the frame in question still arrives."""

    BEFORE = "none of it"
    HALF = "half of it"
    AFTER = "all of it"


class How(Enum):
    CUT = "both ends see it end"
    RESET = "both ends see it end, and what was under way is gone"
    SILENCE = "nobody is told, nothing arrives any more"
    STALL = "nobody is told, nothing of what this side sends arrives any more"


@dataclass(slots=True)
class Fault:
    """One event of the plan; `happened` is set when it has come to pass.

    Nothing that the other side says to the frame in question arrives, unless only its sender is stalled.
    """

    kind: Kind
    remaining: int
    where: Where
    how: How
    happened: threading.Event = field(default_factory=threading.Event)

    def wait(self, timeout_s: float = WAIT_S) -> bool:
        return self.happened.wait(timeout_s)


class FrameSplitter:
    """Whole frames out of bytes as they come; the protocol header counts as one.

    >>> FrameSplitter().feed(b"AMQP" + bytes([0, 0, 9, 1]) + bytes.fromhex("08 0000 00000000 ce 01"))
    [b'AMQP\\x00\\x00\\t\\x01', b'\\x08\\x00\\x00\\x00\\x00\\x00\\x00\\xce']
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        data = self._rest + data
        frames, start = [], 0
        while len(data) - start >= OVERHEAD_BYTES:
            size = OVERHEAD_BYTES + FRAME.unpack_from(data, start)[2]
            if data.startswith(PROTOCOL_HEADER[:4], start):
                size = len(PROTOCOL_HEADER)
            if start + size > len(data):
                break
            frames.append(data[start : start + size])
            start += size
        self._rest = data[start:]
        return frames


def kind_of(sender: str, frame: bytes) -> Kind:
    if frame.startswith(PROTOCOL_HEADER[:4]):
        return Kind(sender, 0)
    if frame[0] == METHOD:
        return Kind(sender, METHOD, struct.unpack_from(">HH", frame, FRAME.size))
    return Kind(sender, frame[0])


class Wire:
    """Two sockets and the way they end."""

    def __init__(self, client: socket.socket, broker: socket.socket, *, seed: str) -> None:
        self._ends = {CLIENT: client, BROKER: broker}
        self._lock = threading.Lock()
        self._pumps = len(self._ends)
        self._over = False
        self.chance = {sender: random.Random(f"{seed}.{sender}") for sender in self._ends}
        self.silenced: set[str] = set()
        """Whose bytes are swallowed."""
        for end in self._ends.values():
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def source(self, sender: str) -> socket.socket:
        return self._ends[sender]

    def listener(self, sender: str) -> str:
        return BROKER if sender == CLIENT else CLIENT

    def target(self, sender: str) -> socket.socket:
        return self._ends[self.listener(sender)]

    def end(self, how: How) -> None:
        """Wakes both pumps; what they hold is not carried any further. The first way to end it counts."""
        with self._lock:
            over, self._over = self._over, True
        for one in () if over else self._ends.values():
            with contextlib.suppress(OSError):
                if how is How.RESET:
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                one.shutdown(socket.SHUT_RD if how is How.RESET else socket.SHUT_RDWR)

    def pump_ended(self) -> None:
        """The second one closes: a socket that another thread reads is not closed before it has stopped."""
        with self._lock:
            self._pumps -= 1
            last = not self._pumps
        if last:
            for one in self._ends.values():
                one.close()


class Proxy:
    """
    >>> with Proxy("amqp://guest:guest@127.0.0.1:5672/") as proxy:
    ...     fault = proxy.plan(CONFIRM, 3, Where.HALF)  # the third from now on
    ...     publish(proxy.url)
    ...     assert fault.wait()
    """

    def __init__(self, upstream_url: str, *, seed: int = 0) -> None:
        parts = urlsplit(upstream_url)
        self._upstream = (parts.hostname, parts.port or 5672)
        self._listener = self._listen(0)
        self._port = self._listener.getsockname()[1]
        self.url = parts._replace(netloc=f"{parts.username}:{parts.password}@127.0.0.1:{self._port}").geturl()
        self.connections = 0
        """Made since the beginning, those that are gone included."""
        self.passed: Counter[Kind] = Counter()
        """Frames that were carried whole."""
        self._seed = seed
        self._changed = threading.Condition()
        self._wires: list[Wire] = []
        self._faults: list[Fault] = []
        self._delays_s = {CLIENT: 0.0, BROKER: 0.0}
        self._dribbles_bytes = 0
        self._over = threading.Event()

    def __enter__(self) -> "Proxy":
        self._accept_in_a_thread()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._stop_listening()
        self.cut()

    # the plan

    def plan(self, kind: Kind, number: int = 1, where: Where = Where.BEFORE, how: How = How.CUT) -> Fault:
        """At that frame of this kind, counted from now on over all connections; once."""
        fault = Fault(kind, number, where, how)
        with self._changed:
            self._faults.append(fault)
        return fault

    def cut(self, how: How = How.CUT) -> None:
        """Every connection there is ends now; new ones are welcome."""
        with self._changed:
            wires = list(self._wires)
        for wire in wires:
            self._break(wire, how, CLIENT)

    def delay(self, delay_s: float, *, sender: str) -> None:
        """From now on what this side sends arrives that much later."""
        self._delays_s[sender] = delay_s

    def dribble(self, at_most_bytes: int = 7) -> None:
        """From now on bytes are passed on a few at a time: one up to this many."""
        self._dribbles_bytes = at_most_bytes

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        """Nobody listens while this lasts; what is connected stays so."""
        self._stop_listening()
        try:
            yield
        finally:
            self._listener = self._listen(self._port)
            self._accept_in_a_thread()

    # what happened

    def wait_for_connections(self, count: int, timeout_s: float = WAIT_S) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self.connections >= count, timeout_s)

    def wait_for(self, kind: Kind, count: int, timeout_s: float = WAIT_S) -> bool:
        """Whether that many frames of this kind were carried since the beginning."""
        with self._changed:
            return self._changed.wait_for(lambda: self.passed[kind] >= count, timeout_s)

    # listening

    @staticmethod
    def _listen(port: int) -> socket.socket:
        return socket.create_server(("127.0.0.1", port))

    def _stop_listening(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread; close alone does not
        self._listener.close()

    def _accept_in_a_thread(self) -> None:
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the listener was closed
            while True:
                self._connect(listener.accept()[0])

    def _connect(self, client: socket.socket) -> None:
        try:
            broker = socket.create_connection(self._upstream, WAIT_S)
        except OSError:
            client.close()  # the broker is down, and that is what the client sees
            return
        broker.settimeout(None)
        wire = Wire(client, broker, seed=f"{self._seed}.{self.connections}")
        with self._changed:
            self._wires.append(wire)
            self.connections += 1
            self._changed.notify_all()
        for sender in (CLIENT, BROKER):
            threading.Thread(target=self._pump, args=(wire, sender), daemon=True).start()

    # carrying

    def _pump(self, wire: Wire, sender: str) -> None:
        source, splitter = wire.source(sender), FrameSplitter()
        with contextlib.suppress(OSError):  # the wire was cut, or an end closed it
            while data := source.recv(READ_BYTES):
                frames = splitter.feed(data)
                if self._delays_s[sender] and self._over.wait(self._delays_s[sender]):
                    break
                if not self._carry(wire, sender, frames):
                    break
        if sender not in wire.silenced:
            wire.end(How.CUT)
        wire.pump_ended()

    def _carry(self, wire: Wire, sender: str, frames: list[bytes]) -> bool:
        """False when the wire was cut. What is swallowed is in no plan and in no count."""
        if sender in wire.silenced:
            return True
        whole: list[bytes] = []
        for frame in frames:
            if (fault := self._due(kind_of(sender, frame))) is None:
                whole.append(frame)
                continue
            share = {Where.BEFORE: 0, Where.HALF: len(frame) // 2, Where.AFTER: len(frame)}[fault.where]
            if fault.how is not How.STALL:
                wire.silenced |= {wire.listener(sender)}  # its answer, however quick, is behind the cut
            self._send(wire, sender, b"".join(whole) + frame[:share])
            self._count(sender, [*whole, frame] if fault.where is Where.AFTER else whole)
            self._break(wire, fault.how, sender)
            fault.happened.set()
            return fault.how in (How.SILENCE, How.STALL)
        self._send(wire, sender, b"".join(whole))
        self._count(sender, whole)
        return True

    def _due(self, kind: Kind) -> Fault | None:
        with self._changed:
            concerned = [fault for fault in self._faults if fault.kind == kind]
            for fault in concerned:
                fault.remaining -= 1
            due = next((fault for fault in concerned if not fault.remaining), None)
            if due is not None:
                self._faults.remove(due)
            return due

    def _count(self, sender: str, frames: list[bytes]) -> None:
        with self._changed:
            self.passed.update(kind_of(sender, frame) for frame in frames)
            self._changed.notify_all()

    def _send(self, wire: Wire, sender: str, data: bytes) -> None:
        at_most, start = self._dribbles_bytes or len(data), 0
        while start < len(data):
            step = wire.chance[sender].randint(1, at_most) if self._dribbles_bytes else at_most
            wire.target(sender).sendall(data[start : start + step])
            start += step

    def _break(self, wire: Wire, how: How, sender: str) -> None:
        if how in (How.SILENCE, How.STALL):
            wire.silenced |= {CLIENT, BROKER} if how is How.SILENCE else {sender}
            return
        with self._changed:
            if wire in self._wires:
                self._wires.remove(wire)
        wire.end(how)
