"""One channel of a scripted client: says any method, any frame, and writes down what comes back.

Any AMQP method can be called by its name (`channel.queue_declare("q", durable=True)`). Confirms are gathered
into sets, because how a server groups them is its own affair. Bytes go through `script.py`; when a step is
over is left to `play.py`.
"""

import zlib
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.differential import wire

if TYPE_CHECKING:
    from tests.differential.script import Peer

ALONE = ("channel.close", "tx.commit")  # RabbitMQ closes a connection that says more before the answer
WITH_CONTENT = frozenset({"basic.deliver", "basic.get-ok", "basic.return"})


@dataclass(slots=True)
class Content:
    """A method whose header and body are still on their way."""

    method: wire.Method
    size: int = -1
    properties: dict[str, Any] = field(default_factory=dict)
    body: bytes = b""

    @property
    def complete(self) -> bool:
        return 0 <= self.size <= len(self.body)

    def __str__(self) -> str:
        return f"{self.method} {rendered(self.properties)} {shortened(self.body)}"


def rendered(properties: dict[str, Any]) -> str:
    return "{" + " ".join(f"{key}={value!r}" for key, value in properties.items()) + "}"


def shortened(body: bytes) -> str:
    return repr(body) if len(body) <= 60 else f"<{len(body)} bytes, crc {zlib.crc32(body):#x}>"


def ranges(tags: list[int]) -> str:
    """
    >>> ranges([3, 1, 2, 7])
    '1-3 7'
    """
    runs: list[list[int]] = []
    for tag in sorted(tags):
        if runs and runs[-1][1] == tag - 1:
            runs[-1][1] = tag
        else:
            runs.append([tag, tag])
    return " ".join(str(low) if low == high else f"{low}-{high}" for low, high in runs) or "none"


class Channel:
    """One channel: `channel.basic_qos(0, 1)` sends the method and waits until all is quiet again."""

    def __init__(self, peer: "Peer", number: int) -> None:
        self.peer = peer
        self.number = number
        self.is_open = False
        self.awaited = ""  # an answer before which nothing else may be said here
        self.mid_content = False  # a scenario has left a message unfinished: nothing else may be sent here
        self.events: list[str] = []
        self.barriers: deque[bool] = deque()  # per exchange.declare-ok to come: does it belong to a barrier?
        self.content: Content | None = None
        self.confirming = False
        self.published = 0
        self.unconfirmed: set[int] = set()
        self.received: Counter[str] = Counter()
        self.reply_to = ""
        self.delivered: list[
            tuple[int, str]
        ] = []  # delivery tags, and the consumer tag ("" for basic.get-ok)
        self.acked: list[int] = []
        self.nacked: list[int] = []

    # --- what a scenario says

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("_"):
            raise AttributeError(name)
        return partial(self.call, wire.method_class(name))

    def call(self, method: type, *positional: Any, **values: Any) -> None:
        """Sends a method; positional arguments fill its arguments in the order of the specification."""
        values = dict(zip(wire.shown_arguments(method), positional, strict=False)) | values
        self.send_method(method, values)
        self.peer.play.settle()

    def publish(
        self,
        body: str | bytes = b"",
        exchange: str = "",
        key: str = "",
        *,
        mandatory: bool = False,
        immediate: bool = False,
        **properties: Any,
    ) -> None:
        """A whole message; `body` is cut into frames of the negotiated size."""
        values = {"exchange": exchange, "routing_key": key, "mandatory": mandatory, "immediate": immediate}
        raw = wire.text(body)
        payload = wire.method_payload(wire.method_class("basic_publish"), values)
        out = [wire.frame_bytes(wire.METHOD, self.number, payload)]
        out.append(wire.frame_bytes(wire.HEADER, self.number, wire.header_payload(len(raw), properties)))
        step = (self.peer.frame_max or len(raw) + 9) - 8
        pieces = [raw[start : start + step] for start in range(0, len(raw), step)]
        out += [wire.frame_bytes(wire.BODY, self.number, piece) for piece in pieces]
        if self.confirming:
            self.published += 1
            self.unconfirmed.add(self.published)
        flags = " mandatory" * mandatory + " immediate" * immediate
        told = f"publish {exchange!r} {key!r}{flags} {rendered(properties)} {shortened(raw)}"
        self.peer.send(b"".join(out), f"{self} > {told}", channel=self)
        self.peer.play.settle()

    def begin_content(self, method: str = "basic_publish", **values: Any) -> None:
        """A method with content, whose content the scenario sends frame by frame."""
        self.mid_content = True
        self.send_method(wire.method_class(method), values)

    def frame(self, kind: int, payload: bytes = b"", *, end: int = wire.FRAME_END, told: str = "") -> None:
        """Any frame, right or wrong. Nothing is waited for: say `play.settle()`."""
        names = {1: "method", 2: "header", 3: "body", 8: "heartbeat"}
        told = told or f"{names.get(kind, kind)} frame {shortened(payload)}"
        self.peer.send(
            wire.frame_bytes(kind, self.number, payload, end=end), f"{self} > {told}", channel=self
        )

    def header(self, size: int, *, class_id: int = wire.BASIC, weight: int = 0, **properties: Any) -> None:
        payload = wire.header_payload(size, properties, class_id=class_id, weight=weight)
        self.frame(wire.HEADER, payload, told=f"header class={class_id} size={size} {rendered(properties)}")

    def body(self, piece: bytes) -> None:
        self.frame(wire.BODY, piece, told=f"body {shortened(piece)}")

    def end_content(self) -> None:
        self.mid_content = False
        self.peer.play.settle()

    def open(self) -> "Channel":
        """Opens without a word in the transcript."""
        self.send_method(wire.method_class("channel_open"), {}, silent=True)
        self.peer.read_until(lambda: self.is_open)
        self.events.clear()
        return self

    def count_of(self, name: str) -> int:
        """How often a method has come on this channel so far, for scenarios that repeat a step."""
        return self.received[name]

    def last_reply_to(self) -> str:
        """Where the message that came last wants its answer."""
        return self.reply_to

    def await_events(self, count: int = 1) -> None:
        """Waits for something that only time brings: an expiry, a redelivery."""
        self.peer.read_until(lambda: len(self.events) >= count)
        self.peer.play.settle()

    # --- what goes over the wire

    def __str__(self) -> str:
        return f"{self.peer.name}.{self.number}"

    def send_method(self, method: type, values: dict[str, Any], *, silent: bool = False) -> None:
        name = wire.wire_name(method)
        self.peer.play.said(self.peer, name, values)
        if name == "exchange.declare" and not values.get("nowait"):
            self.barriers.append(False)
        if name == "confirm.select" and values.get("nowait"):
            self.confirming = True
        if name in ALONE and self.is_open:
            self.awaited = f"{name}-ok"
        told = " ".join([name, *(f"{key}={value!r}" for key, value in values.items())])
        payload = wire.method_payload(method, values)
        frame = wire.frame_bytes(wire.METHOD, self.number, payload)
        self.peer.send(frame, None if silent else f"{self} > {told}", channel=None if silent else self)

    @property
    def can_be_asked(self) -> bool:
        return self.is_open and not self.mid_content and not self.awaited and self.peer.is_open

    def send_barrier(self) -> None:
        """A question without consequences, answered after everything before it on this channel."""
        values = {"exchange": "amq.direct", "passive": True}
        payload = wire.method_payload(wire.method_class("exchange_declare"), values)
        self.barriers.append(True)
        self.peer.send(wire.frame_bytes(wire.METHOD, self.number, payload), None)

    def take(self, frame: wire.Frame) -> None:
        if frame.kind == wire.METHOD:
            method = wire.read_method(frame.payload)
            self.received[method.name] += 1
            if method.name in WITH_CONTENT:
                self.content = Content(method)
            else:
                self.take_method(method)
        elif frame.kind == wire.HEADER and self.content:
            self.content.size, self.content.properties = wire.read_header(frame.payload)
        elif frame.kind == wire.BODY and self.content:
            self.content.body += frame.payload
        elif frame.kind != wire.HEARTBEAT:
            self.events.append(f"! frame of type {frame.kind} out of place: {frame.payload!r}")
        if self.content and self.content.complete:
            if self.content.method.name == "basic.return" and self.published and not self.unconfirmed:
                self.events.append("! the confirm came before the return")
            self.events.append(str(self.content))
            self.reply_to = self.content.properties.get("reply_to", self.reply_to)
            arguments = self.content.method.arguments
            if "delivery_tag" in arguments:
                self.delivered.append((arguments["delivery_tag"], arguments.get("consumer_tag", "")))
            self.content = None

    def take_method(self, method: wire.Method) -> None:
        arguments = method.arguments
        if method.name == self.awaited:
            self.awaited = ""
        match method.name:
            case "exchange.declare-ok" if self.barriers and self.barriers.popleft():
                return
            case "basic.ack" | "basic.nack":
                self.take_confirm(method.name, arguments["delivery_tag"], multiple=arguments["multiple"])
                return
            case "channel.open-ok":
                self.is_open = True
            case "channel.close" | "channel.close-ok":
                self.forget()
            case "connection.close" | "connection.close-ok":
                self.peer.is_open = False
                self.peer.forget_channels()
                self.peer.leaves = method.name == "connection.close-ok" and self.peer.answers_close
            case "confirm.select-ok":
                self.confirming = True
            case "queue.declare-ok":
                self.peer.play.queue_seen(arguments["queue"], self.peer)
        self.events.append(str(method))
        if method.name in ("channel.close", "connection.close") and self.peer.answers_close:
            self.send_method(wire.method_class(f"{method.name}-ok"), {}, silent=True)

    def take_confirm(self, name: str, tag: int, *, multiple: bool) -> None:
        covered = sorted(one for one in self.unconfirmed if one <= tag) if multiple else [tag]
        for one in covered:
            if one in self.unconfirmed:
                self.unconfirmed.discard(one)
                (self.acked if name == "basic.ack" else self.nacked).append(one)
            else:
                self.events.append(f"! {name} of {one}, which is not outstanding")

    def forget(self) -> None:
        self.is_open = self.confirming = self.mid_content = False
        self.awaited = ""
        self.barriers.clear()
        self.unconfirmed.clear()
        self.content = None
        self.published = 0
        self.delivered = []

    def flush(self) -> list[str]:
        """What came since the last time, in the order that a server promises.

        Not promised: confirms and tx.commit-ok against deliveries; who is told first that a queue is gone.
        """
        lines = [*self.events]
        if any(line.startswith("tx.commit-ok") for line in lines):
            lines.sort(key=lambda line: line.startswith("basic.deliver"))
        cancelled = sorted(line for line in lines if line.startswith("basic.cancel "))
        lines = [cancelled.pop(0) if line.startswith("basic.cancel ") else line for line in lines]
        if self.acked or self.nacked:
            lines.append(f"confirmed: acks {ranges(self.acked)}, nacks {ranges(self.nacked)}")
        self.events, self.acked, self.nacked = [], [], []
        return [f"{self} < {line}" for line in lines]
