"""Messages as lines of JSON, there and back without loss.

    {"exchange": "", "routing_key": "orders", "content_type": "application/json", "persistent": true,
     "message_id": "17", "headers": {"region": "eu", "seen": {"$timestamp": 1700000000}}, "body": {"id": 1}}

A body is JSON where its content type says so and the very same bytes come out again, else text where it is
UTF-8, else base64; `body_encoding` says which, where that is not plain to see. Values of headers that JSON
does not have are objects with one key: `$timestamp`, `$base64`, `$decimal`; a table that looks like one of
these is wrapped in `$table`. What belonged to the publish or to the delivery before (`x-producer`, `x-seq`,
`x-republished`, `x-delivery-count`, `queue`, `redelivered`) is written, and not read.
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
"""Of every line that a delivery is written as."""
_NOT_TAKEN_ALONG: Final = frozenset((PRODUCER, SEQ, REPUBLISHED, DELIVERY_COUNT, CONSUMER_LOST))
_TEXTS: Final = (
    "content_type",
    "content_encoding",
    "correlation_id",
    "reply_to",
    "message_id",
    "type",
    "user_id",
    "app_id",
)
_NUMBERS: Final = ("priority", "expiration_ms", "timestamp")
_NOT_READ: Final = frozenset(("queue", "redelivered", "status", "reason"))
_KNOWN: Final = frozenset(
    (*_TEXTS, *_NUMBERS, *_NOT_READ, "persistent", "headers", "exchange", "routing_key", "body")
) | {"body_encoding"}


class BadEnvelope(ValueError):
    """A line is no message, or a message can't be made into a line; the text says why."""


def _no_constant(name: str) -> NoReturn:
    raise BadEnvelope(f"JSON has no {name}")


_read_json: Final = json.JSONDecoder(parse_constant=_no_constant).decode


def parse_json(text: bytes) -> Any:
    """What the text says; `BadEnvelope` if it is no JSON."""
    try:
        return _read_json(text.decode())
    except (ValueError, RecursionError) as error:
        raise BadEnvelope(f"no JSON: {error}") from error


def json_line(value: Any) -> bytes:
    """On one line, without its end; readable, and exact also for text that is no Unicode."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise BadEnvelope(f"it can't be written as JSON: {error}") from error


# --- writing ---------------------------------------------------------------------------------------------


def of_delivery(delivery: Delivery) -> bytes:
    """The line of a message that came."""
    try:
        found = dict(delivery.properties)
    except ConversionError as error:
        raise BadEnvelope(str(error)) from error
    said: dict[str, Any] = {name: found[name] for name in (*_TEXTS, "priority") if name in found}
    if "timestamp" in found:
        said["timestamp"] = int(cast(int, found["timestamp"]))
    expiration = str(found.get("expiration", ""))
    if expiration.isdecimal():
        said["expiration_ms"] = int(expiration)
    said["persistent"] = found.get("delivery_mode") == PERSISTENT
    said["headers"] = delivery.headers
    where = {"queue": delivery.queue, "exchange": delivery.exchange, "routing_key": delivery.routing_key}
    return _line({**where, "redelivered": delivery.redelivered}, said, delivery.body)


def of_message(message: Message, **more: str) -> bytes:
    """The line of a message that is to be published another time; `more` says why."""
    where = {"exchange": message.exchange, "routing_key": message.routing_key}
    return _line({**more, **where}, dict(message.properties), message.body)


def _line(where: dict[str, Any], said: dict[str, Any], body: bytes) -> bytes:
    try:
        said["headers"] = {key: _plain(value) for key, value in (said.get("headers") or {}).items()}
    except RecursionError as error:
        raise BadEnvelope("its headers are nested too deep for JSON") from error
    if not said["headers"]:
        del said["headers"]
    return json_line({**where, **said, **_written_body(body, said.get("content_type"))})


def _written_body(body: bytes, content_type: str | None) -> dict[str, Any]:
    if content_type == JSON_TYPE:
        try:
            value = parse_json(body)
            if json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() == body:
                return {"body": value, **({"body_encoding": "json"} if isinstance(value, str) else {})}
        except (ValueError, RecursionError):
            pass  # no JSON, or text that is no Unicode: written as what it is
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body": base64.b64encode(body).decode(), "body_encoding": "base64"}


def _plain(value: Value) -> Any:
    if isinstance(value, Timestamp):
        return {"$timestamp": int(value)}
    if isinstance(value, bytes | bytearray):
        return {"$base64": base64.b64encode(value).decode()}
    if isinstance(value, Decimal):
        return {"$decimal": str(value)}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        table = {key: _plain(item) for key, item in value.items()}
        return {"$table": table} if _looks_special(table) else table
    return value


def _looks_special(table: Mapping[str, Any]) -> bool:
    return len(table) == 1 and next(iter(table)).startswith("$")


# --- reading ---------------------------------------------------------------------------------------------


def to_message(line: bytes) -> Message:
    """The message of a line; `BadEnvelope`, with what is wrong, if it is none."""
    said = parse_json(line)
    if not isinstance(said, dict):
        raise BadEnvelope("an envelope is a JSON object with a body")
    if "body" not in said:
        raise BadEnvelope("an envelope has a body")
    if unknown := said.keys() - _KNOWN:
        raise BadEnvelope(f"an envelope has no {', '.join(sorted(unknown))}")
    found: dict[str, Any] = {name: _typed(said, name, str, "text") for name in _TEXTS if name in said}
    found |= {name: _typed(said, name, int, "a whole number") for name in _NUMBERS if name in said}
    if "persistent" in said:
        found["persistent"] = _typed(said, "persistent", bool, "true or false")
    headers = _typed(said, "headers", dict, "an object") if "headers" in said else {}
    found["headers"] = {key: _value(value) for key, value in headers.items() if key not in _NOT_TAKEN_ALONG}
    body, content_type = _read_body(said)
    if content_type is not None:
        found.setdefault("content_type", content_type)
    routing_key = _typed(said, "routing_key", str, "text") if "routing_key" in said else ""
    exchange = _typed(said, "exchange", str, "text") if "exchange" in said else ""
    return Message(body, routing_key, exchange, properties=cast(Properties, found))


def _typed(said: Mapping[str, Any], name: str, kind: type, what: str) -> Any:
    value = said[name]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise BadEnvelope(f"{name} is {what}, not {json.dumps(value)[:100]}")
    return value


def _read_body(said: Mapping[str, Any]) -> tuple[bytes, str | None]:
    """Its bytes, and the content type they have unless another one is given."""
    body = said["body"]
    encoding = said.get("body_encoding", "text" if isinstance(body, str) else "json")
    if encoding == "json":
        return json_line(body), JSON_TYPE
    if encoding not in ("text", "base64"):
        raise BadEnvelope(f"body_encoding is text, json or base64, not {json.dumps(encoding)[:100]}")
    if not isinstance(body, str):
        raise BadEnvelope(f"a body whose body_encoding is {encoding} is text")
    if encoding == "base64":
        return _base64(body), None
    try:
        return body.encode(), None
    except UnicodeEncodeError as error:
        raise BadEnvelope(f"the body is no Unicode: {error}") from error


def _value(value: Any) -> Value:
    if isinstance(value, list):
        return [_value(item) for item in value]
    if not isinstance(value, dict):
        return cast(Value, value)
    if not _looks_special(value):
        return {key: _value(item) for key, item in value.items()}
    ((kind, content),) = value.items()
    read = _SPECIAL.get(kind)
    if read is None:
        raise BadEnvelope(f"of headers only {', '.join(_SPECIAL)} mean something, not {kind}")
    return read(content)


def _table(content: Any) -> Value:
    if not isinstance(content, dict):
        raise BadEnvelope("$table holds an object")
    return {key: _value(item) for key, item in content.items()}


def _timestamp(content: Any) -> Value:
    if not isinstance(content, int) or isinstance(content, bool):
        raise BadEnvelope("$timestamp holds the seconds since 1970, a whole number")
    return Timestamp(content)


def _decimal(content: Any) -> Value:
    try:
        return Decimal(content)
    except (InvalidOperation, TypeError, ValueError) as error:
        raise BadEnvelope(f"$decimal holds a number as text, not {json.dumps(content)[:100]}") from error


def _base64(content: Any) -> bytes:
    try:
        return base64.b64decode(content, validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise BadEnvelope(f"this is no base64: {json.dumps(content)[:100]}") from error


_SPECIAL: Final[dict[str, Callable[[Any], Value]]] = {
    "$timestamp": _timestamp,
    "$base64": _base64,
    "$decimal": _decimal,
    "$table": _table,
}
