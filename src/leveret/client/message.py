"""Messages to be published, and their encoding.

Most messages of a publisher differ only in body, sequence number and message id. One `Struct` packs their
content header from a template that is kept for each combination of properties (0.5 us). A message with its
own headers or ids is encoded property by property. Every message carries `x-producer` and `x-seq`, by which
a queue of Leveret declared with `x-dedup` stores it once, however often it is sent.
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
"""Properties that are encoded as the caller gives them."""
_OWN: Final = frozenset(("headers", "message_id", "correlation_id", "timestamp"))
"""Properties that usually differ from message to message, so that no template is kept for them."""


class Properties(TypedDict, total=False):
    """The properties that a caller may give with a message."""

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
    """Whether the broker returns the message if no queue takes it; None: as the publisher is set."""
    seq: int | None = None
    """The sequence number, by which a queue stores the message once; None: the publisher counts."""
    on_confirm: Callable[[Receipt], None] | None = None
    """Called with this message's receipt when it is resolved."""
    properties: Properties = _NOTHING


class Envelope(NamedTuple):
    """An encoded message: payloads of the method and of the content header, and the body."""

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
        self, body: Any, routing_key: str, exchange: str, *, mandatory: bool, seq: int, given: Properties
    ) -> Envelope:
        content_type = given.get("content_type") if given else None
        encoding = None
        if content_type is not None or not isinstance(body, bytes):
            encoding = given.get("content_encoding") if given else None
            body, content_type, encoding = self._codecs.encode(body, content_type, content_encoding=encoding)
        method = self._methods.get((exchange, routing_key, mandatory))
        if method is None:
            method = self._method(exchange, routing_key, mandatory)
        if self._hook is not None or (given and not _OWN.isdisjoint(given)):
            return Envelope(method, self._encoded(body, content_type, encoding, seq, given), body)
        packer, before, middle, after, end = self._template(content_type, encoding, given)
        header = packer.pack(before, len(body), middle, seq, after, b"%016x" % seq, end)
        return Envelope(method, header, body)

    def message_id(self, seq: int) -> str:
        """Return the id of a message whose caller gave none."""
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
        payload = self._methods[exchange, routing_key, mandatory] = methods.encode(publish)
        return payload

    def _template(self, content_type: str | None, encoding: str | None, given: Properties) -> _Template:
        key = (content_type, encoding, *given.items()) if given else content_type
        template = self._templates.get(key)
        if template is None:
            if len(self._templates) >= _TEMPLATES_MAX:
                self._templates.clear()
            template = self._templates[key] = self._make_template(content_type, encoding, given)
        return template

    def _make_template(self, content_type: str | None, encoding: str | None, given: Properties) -> _Template:
        """Encode an example and cut it at the sequence number and the id: bytes that no text contains."""
        seq, digits = 0x0123456789ABCDEF, bytes(range(0x80, 0x90))
        fields = _fields(content_type, encoding, given)
        fields["headers"] = {PRODUCER: self._producer, SEQ: seq}
        fields["message_id"] = f"{self._producer}-{to_text(digits)}"
        header = properties.encode(fields, 0)
        middle, rest = header[12:].split(seq.to_bytes(8, "big"))
        after, end = rest.rsplit(digits, 1)
        return _Template(
            Struct(f">4sQ{len(middle)}sQ{len(after)}s16s{len(end)}s"), header[:4], middle, after, end
        )

    def _encoded(
        self, body: bytes, content_type: str | None, encoding: str | None, seq: int, given: Properties
    ) -> bytes:
        """Encode a content header property by property."""
        fields = _fields(content_type, encoding, given)
        # Leveret looks for these two at the beginning.
        own: dict[str, Value] = {PRODUCER: self._producer, SEQ: seq}
        headers: dict[str, Value] = {**own, **given.get("headers", {}), **own}
        headers.pop(REPUBLISHED, None)
        if self._hook is not None:
            call_back(self._hook, headers)
        fields["headers"] = headers
        fields["message_id"] = given.get("message_id") or self.message_id(seq)
        fields["correlation_id"] = given.get("correlation_id")
        timestamp = given.get("timestamp")
        fields["timestamp"] = None if timestamp is None else Timestamp(timestamp)
        return properties.encode(fields, len(body))


def _fields(content_type: str | None, encoding: str | None, given: Properties) -> dict[str, Value]:
    """Return the AMQP properties except those in `_OWN`. Raise `TypeError` for an unknown property."""
    if not given.keys() <= Properties.__annotations__.keys():
        unknown = ", ".join(sorted(given.keys() - Properties.__annotations__.keys()))
        raise TypeError(f"no such property: {unknown}; there are {', '.join(Properties.__annotations__)}")
    fields: dict[str, Value] = {name: cast(Value, given.get(name)) for name in _PLAIN}
    fields["content_type"] = content_type
    fields["content_encoding"] = encoding or given.get("content_encoding")
    fields["delivery_mode"] = PERSISTENT if given.get("persistent", True) else _TRANSIENT
    expiration_ms = given.get("expiration_ms")
    fields["expiration"] = None if expiration_ms is None else str(expiration_ms)
    return fields
