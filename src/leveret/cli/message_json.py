"""Messages as lines of JSON ("envelopes"), written and read without loss.

    {"exchange": "", "routing_key": "orders", "content_type": "application/json", "persistent": true,
     "message_id": "17", "headers": {"region": "eu", "seen": {"$timestamp": 1700000000}}, "body": {"id": 1}}

A body is written as JSON if its content type says JSON and the same bytes can be restored; else as text if
it is UTF-8; else as base64. `body_encoding` names the encoding where it is not obvious. Header values that
JSON does not have are objects with one key: `$timestamp`, `$base64`, `$decimal`; a table that looks like
one of these is wrapped in `$table`. Fields of one publish or one delivery (`x-producer`, `x-seq`,
`x-republished`, `x-delivery-count`, `queue`, `redelivered`) are written, but ignored when read.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Final, NoReturn, cast

from leveret.amqp.tables import Timestamp, Value
from leveret.client import ConversionError, Delivery, Message
from leveret.client.delivery import CONSUMER_LOST, DELIVERY_COUNT
from leveret.client.message import PERSISTENT, PRODUCER, REPUBLISHED, SEQ, Properties

JSON_TYPE: Final = "application/json"
ENVELOPE_START: Final = b'{"queue":'
"""The first bytes of every line that `of_delivery` returns."""
_IGNORED_HEADERS: Final = frozenset((PRODUCER, SEQ, REPUBLISHED, DELIVERY_COUNT, CONSUMER_LOST))
_TEXT_FIELDS: Final = (
    "content_type",
    "content_encoding",
    "correlation_id",
    "reply_to",
    "message_id",
    "type",
    "user_id",
    "app_id",
)
_NUMBER_FIELDS: Final = ("priority", "expiration_ms", "timestamp")
_IGNORED_FIELDS: Final = frozenset(("queue", "redelivered", "status", "reason"))
_KNOWN_FIELDS: Final = frozenset((*_TEXT_FIELDS, *_NUMBER_FIELDS, *_IGNORED_FIELDS)) | {
    *("persistent", "headers", "exchange", "routing_key", "body", "body_encoding")
}


class BadEnvelope(ValueError):
    """A line is not a message, or a message can't be written as a line; the text says why."""


def _refuse_constant(name: str) -> NoReturn:
    raise BadEnvelope(f"JSON has no {name}")


_decode_json: Final = json.JSONDecoder(parse_constant=_refuse_constant).decode


def parse_json(text: bytes) -> Any:
    """Return the value of a JSON text; raise `BadEnvelope` if the text is not JSON."""
    try:
        return _decode_json(text.decode())
    except (ValueError, RecursionError) as error:
        raise BadEnvelope(f"not JSON: {error}") from error


def json_line(value: Any) -> bytes:
    """Return the value as one line of JSON, without a line break. Invalid Unicode is kept by escapes."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise BadEnvelope(f"the message can't be written as JSON: {error}") from error


# --- messages to lines -----------------------------------------------------------------------------------


def of_delivery(delivery: Delivery) -> bytes:
    """Return the line of a delivery."""
    try:
        properties = dict(delivery.properties)
    except ConversionError as error:
        raise BadEnvelope(str(error)) from error
    kept = (name for name in (*_TEXT_FIELDS, "priority") if name in properties)
    fields: dict[str, Any] = {name: properties[name] for name in kept}
    if "timestamp" in properties:
        fields["timestamp"] = int(cast(int, properties["timestamp"]))
    expiration = str(properties.get("expiration", ""))
    if expiration.isdecimal():
        fields["expiration_ms"] = int(expiration)
    fields["persistent"] = properties.get("delivery_mode") == PERSISTENT
    fields["headers"] = delivery.headers
    address = {"queue": delivery.queue, "exchange": delivery.exchange, "routing_key": delivery.routing_key}
    return _line({**address, "redelivered": delivery.redelivered}, fields, delivery.body)


def of_message(message: Message, **extra_fields: str) -> bytes:
    """Return the line of a message that can be published again; `extra_fields` say why."""
    address = {"exchange": message.exchange, "routing_key": message.routing_key}
    return _line({**extra_fields, **address}, dict(message.properties), message.body)


def _line(address: dict[str, Any], fields: dict[str, Any], body: bytes) -> bytes:
    try:
        fields["headers"] = {key: _to_json(value) for key, value in (fields.get("headers") or {}).items()}
    except RecursionError as error:
        raise BadEnvelope("the headers are nested too deep for JSON") from error
    if not fields["headers"]:
        del fields["headers"]
    return json_line({**address, **fields, **_body_fields(body, fields.get("content_type"))})


def _body_fields(body: bytes, content_type: str | None) -> dict[str, Any]:
    if content_type == JSON_TYPE:
        try:
            value = parse_json(body)
            if json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() == body:
                return {"body": value, **({"body_encoding": "json"} if isinstance(value, str) else {})}
        except (ValueError, RecursionError):
            # The body is not JSON, or not valid Unicode: write it as text or base64.
            pass
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body": base64.b64encode(body).decode(), "body_encoding": "base64"}


def _to_json(value: Value) -> Any:
    if isinstance(value, Timestamp):
        return {"$timestamp": int(value)}
    if isinstance(value, bytes | bytearray):
        return {"$base64": base64.b64encode(value).decode()}
    if isinstance(value, Decimal):
        return {"$decimal": str(value)}
    if isinstance(value, list):
        return [_to_json(item) for item in value]
    if isinstance(value, dict):
        table = {key: _to_json(item) for key, item in value.items()}
        return {"$table": table} if _looks_typed(table) else table
    return value


def _looks_typed(table: Mapping[str, Any]) -> bool:
    return len(table) == 1 and next(iter(table)).startswith("$")


# --- lines to messages -----------------------------------------------------------------------------------


def to_message(line: bytes) -> Message:
    """Return the message of a line; raise `BadEnvelope` if the line is not an envelope."""
    fields = parse_json(line)
    if not isinstance(fields, dict):
        raise BadEnvelope("an envelope must be a JSON object with a body")
    if "body" not in fields:
        raise BadEnvelope("the envelope has no body")
    if unknown := fields.keys() - _KNOWN_FIELDS:
        raise BadEnvelope(f"unknown field in the envelope: {', '.join(sorted(unknown))}")
    properties: dict[str, Any] = {}
    for names, kind, kind_name in (
        (_TEXT_FIELDS, str, "text"),
        (_NUMBER_FIELDS, int, "a whole number"),
        (("persistent",), bool, "true or false"),
    ):
        properties |= {name: _field(fields, name, kind, kind_name) for name in names if name in fields}
    headers = _field(fields, "headers", dict, "an object") if "headers" in fields else {}
    properties["headers"] = {
        key: _from_json(value) for key, value in headers.items() if key not in _IGNORED_HEADERS
    }
    body, content_type = _parse_body(fields)
    if content_type is not None:
        properties.setdefault("content_type", content_type)
    addresses = ("routing_key", "exchange")
    address = {name: _field(fields, name, str, "text") for name in addresses if name in fields}
    return Message(body, **address, properties=cast(Properties, properties))


def _field(fields: Mapping[str, Any], name: str, kind: type, kind_name: str) -> Any:
    value = fields[name]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise BadEnvelope(f"{name} must be {kind_name}, not {json.dumps(value)[:100]}")
    return value


def _parse_body(fields: Mapping[str, Any]) -> tuple[bytes, str | None]:
    """Return the body as bytes, and the content type to use if the envelope has none."""
    body = fields["body"]
    encoding = fields.get("body_encoding", "text" if isinstance(body, str) else "json")
    if encoding == "json":
        return json_line(body), JSON_TYPE
    if encoding not in ("text", "base64"):
        raise BadEnvelope(f"body_encoding must be text, json or base64, not {json.dumps(encoding)[:100]}")
    if not isinstance(body, str):
        raise BadEnvelope(f"a body with body_encoding {encoding} must be text")
    if encoding == "base64":
        return _base64(body), None
    try:
        return body.encode(), None
    except UnicodeEncodeError as error:
        raise BadEnvelope(f"the body is not valid Unicode: {error}") from error


def _from_json(value: Any) -> Value:
    if isinstance(value, list):
        return [_from_json(item) for item in value]
    if not isinstance(value, dict):
        return cast(Value, value)
    if not _looks_typed(value):
        return {key: _from_json(item) for key, item in value.items()}
    ((key, content),) = value.items()
    read = _TYPE_READERS.get(key)
    if read is None:
        raise BadEnvelope(f"unknown type {key} in headers: use one of {', '.join(_TYPE_READERS)}")
    return read(content)


def _table(content: Any) -> Value:
    if not isinstance(content, dict):
        raise BadEnvelope("$table must be an object")
    return {key: _from_json(item) for key, item in content.items()}


def _timestamp(content: Any) -> Value:
    if not isinstance(content, int) or isinstance(content, bool):
        raise BadEnvelope("$timestamp must be the seconds since 1970, a whole number")
    return Timestamp(content)


def _decimal(content: Any) -> Value:
    try:
        return Decimal(content)
    except (InvalidOperation, TypeError, ValueError) as error:
        raise BadEnvelope(f"$decimal must be a number as text, not {json.dumps(content)[:100]}") from error


def _base64(content: Any) -> bytes:
    try:
        return base64.b64decode(content, validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise BadEnvelope(f"not base64: {json.dumps(content)[:100]}") from error


_TYPE_READERS: Final[dict[str, Callable[[Any], Value]]] = {
    "$timestamp": _timestamp,
    "$base64": _base64,
    "$decimal": _decimal,
    "$table": _table,
}
