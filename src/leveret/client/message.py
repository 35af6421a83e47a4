"""Messages on their way out: what a caller says about one, and the bytes it becomes.

Most messages of a publisher differ in nothing but body, sequence and message id. For those the content
header is packed by one `Struct` from a template that is kept per combination of properties (0.5 us); a
message with headers or ids of its own is encoded property by property. Every message carries `x-producer`
and `x-seq`, by which a queue of Leveret declared with `x-dedup` stores it once however often it is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypedDict, cast

from pamqp import commands

from leveret.amqp import methods, properties
from leveret.amqp.methods import make
from leveret.amqp.names import to_text
from leveret.amqp.tables import Timestamp, Value
from leveret.client.callbacks import call_back
from leveret.client.codecs import Codecs

if TYPE_CHECKING:
    from leveret.client.receipt import Receipt

PRODUCER: Final = "x-producer"
SEQ: Final = "x-seq"
REPUBLISHED: Final = "x-republished"
PERSISTENT: Final = 2
_TRANSIENT: Final = 1
_TEMPLATES_MAX: Final = 1024
_PLAIN: Final = ("content_encoding", "priority", "reply_to", "type", "user_id", "app_id")
"""Properties that are passed on as they are."""
_OWN: Final = frozenset(("headers", "message_id", "correlation_id", "timestamp"))
"""Properties that differ from message to message, as a rule."""


class Properties(TypedDict, total=False):
    """What a message says about itself, beside its body."""

    headers: Mapping[str, Value]
    content_type: str
    content_encoding: str
    persistent: bool
    priority: int
    correlation_id: str
    reply_to: str
    expiration_ms: int
    message_id: str
    timestamp: int
    type: str
    user_id: str
    app_id: str


_NOTHING: Final[Properties] = {}


class Message(NamedTuple):
    """A message for `publish_many`: `Message({"id": 1}, "orders", properties={"priority": 3})`."""

    body: Any
    routing_key: str = ""
    exchange: str = ""
    mandatory: bool | None = None
    """Whether it comes back when nobody takes it; None: as the publisher has it."""
    seq: int | None = None
    """The number under which a queue stores it once; None: the publisher counts."""
    on_confirm: Callable[[Receipt], None] | None = None
    """Called with this message's receipt."""
    properties: Properties = _NOTHING


class Envelope(NamedTuple):
    """A message as it goes over the wire: payloads of the method and of the content header, and the body."""

    method: bytes
    header: bytes
    body: bytes


class _Template(NamedTuple):
    packer: Struct
    before: bytes
    middle: bytes
    after: bytes
    end: bytes


class Envelopes:
    """Makes the envelopes of one producer: `envelopes.make(b"...", "orders", "", True, 17, {})`."""

    def __init__(
        self, producer: str, codecs: Codecs, *, hook: Callable[[dict[str, Value]], None] | None
    ) -> None:
        self._producer = producer
        self._codecs = codecs
        self._hook = hook
        self._templates: dict[object, _Template] = {}
        self._methods: dict[tuple[str, str, bool], bytes] = {}

    def make(
        self, body: Any, routing_key: str, exchange: str, *, mandatory: bool, seq: int, said: Properties
    ) -> Envelope:
        content_type = said.get("content_type") if said else None
        encoding = None
        if content_type is not None or not isinstance(body, bytes):
            wanted = said.get("content_encoding") if said else None
            body, content_type, encoding = self._codecs.encode(body, content_type, content_encoding=wanted)
        method = self._methods.get((exchange, routing_key, mandatory))
        if method is None:
            method = self._method(exchange, routing_key, mandatory)
        if self._hook is not None or (said and not _OWN.isdisjoint(said)):
            return Envelope(method, self._encoded(body, content_type, encoding, seq, said), body)
        packer, before, middle, after, end = self._template(content_type, encoding, said)
        header = packer.pack(before, len(body), middle, seq, after, b"%016x" % seq, end)
        return Envelope(method, header, body)

    def message_id(self, seq: int) -> str:
        """Of messages that are not given one."""
        return f"{self._producer}-{seq:016x}"

    def _method(self, exchange: str, routing_key: str, mandatory: bool) -> bytes:
        if len(self._methods) >= _TEMPLATES_MAX:
            self._methods.clear()
        publish = make(
            commands.Basic.Publish,
            ticket=0,
            exchange=exchange,
            routing_key=routing_key,
            mandatory=mandatory,
            immediate=False,
        )
        found = self._methods[exchange, routing_key, mandatory] = methods.encode(publish)
        return found

    def _template(self, content_type: str | None, encoding: str | None, said: Properties) -> _Template:
        key = (content_type, encoding, *said.items()) if said else content_type
        found = self._templates.get(key)
        if found is None:
            if len(self._templates) >= _TEMPLATES_MAX:
                self._templates.clear()
            found = self._templates[key] = self._made_template(content_type, encoding, said)
        return found

    def _made_template(self, content_type: str | None, encoding: str | None, said: Properties) -> _Template:
        """Encodes an example and cuts it where sequence and id are: at bytes that no text contains."""
        seq, digits = 0x0123456789ABCDEF, bytes(range(0x80, 0x90))
        found = _properties(content_type, encoding, said)
        found["headers"] = {PRODUCER: self._producer, SEQ: seq}
        found["message_id"] = f"{self._producer}-{to_text(digits)}"
        header = properties.encode(found, 0)
        middle, rest = header[12:].split(seq.to_bytes(8, "big"))
        after, end = rest.rsplit(digits, 1)
        return _Template(
            Struct(f">4sQ{len(middle)}sQ{len(after)}s16s{len(end)}s"), header[:4], middle, after, end
        )

    def _encoded(
        self, body: bytes, content_type: str | None, encoding: str | None, seq: int, said: Properties
    ) -> bytes:
        """A content header property by property."""
        found = _properties(content_type, encoding, said)
        own: dict[str, Value] = {PRODUCER: self._producer, SEQ: seq}  # first, where Leveret looks for them
        headers: dict[str, Value] = {**own, **said.get("headers", {}), **own}
        headers.pop(REPUBLISHED, None)
        if self._hook is not None:
            call_back(self._hook, headers)
        found["headers"] = headers
        found["message_id"] = said.get("message_id") or self.message_id(seq)
        found["correlation_id"] = said.get("correlation_id")
        timestamp = said.get("timestamp")
        found["timestamp"] = None if timestamp is None else Timestamp(timestamp)
        return properties.encode(found, len(body))


def _properties(content_type: str | None, encoding: str | None, said: Properties) -> dict[str, Value]:
    """Those that messages have in common; the names have not been checked before."""
    if not said.keys() <= Properties.__annotations__.keys():
        unknown = ", ".join(sorted(said.keys() - Properties.__annotations__.keys()))
        raise TypeError(f"no such property: {unknown}; there are {', '.join(Properties.__annotations__)}")
    found: dict[str, Value] = {name: cast(Value, said.get(name)) for name in _PLAIN}
    found["content_type"] = content_type
    found["content_encoding"] = encoding or said.get("content_encoding")
    found["delivery_mode"] = PERSISTENT if said.get("persistent", True) else _TRANSIENT
    expiration_ms = said.get("expiration_ms")
    found["expiration"] = None if expiration_ms is None else str(expiration_ms)
    return found
