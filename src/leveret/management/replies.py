"""JSON as this API writes it: every answer goes out through `reply`.

Owns the form of what is sent, also where AMQP allows more than JSON does: a name or an argument may hold any
bytes, a table may nest as deep as a frame is long. The rule: whatever a client has declared, looking at it is
answered with valid JSON.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from decimal import Decimal

from starlette.responses import Response

DEPTH_MAX = 64
"""Tables nested deeper are cut: the JSON encoder, and those who read it, recurse."""


def reply(content: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """`reply({"status": "ok"})`."""
    body = json.dumps(content, separators=(",", ":")).encode("ascii")
    return Response(
        body, status, {"cache-control": "no-cache", **(headers or {})}, media_type="application/json"
    )


def text(name: str) -> str:
    """A name, readable; in RabbitMQ's words if it is not UTF-8.

    >>> text("orders"), text("\\udcff")
    ('orders', 'Not UTF-8, base64 is: /w==')
    """
    if name.isascii():
        return name
    return _decoded(name.encode("utf-8", "surrogateescape"))


def jsonable(value: object, depth: int = 0) -> object:
    """A value of a field table as JSON can say it.

    >>> jsonable({"x-max-length": 5, "price": Decimal("0.5"), "raw": b"\\xff"})
    {'x-max-length': 5, 'price': 0.5, 'raw': 'Not UTF-8, base64 is: /w=='}
    """
    match value:
        case None | bool() | int() | float():
            return value
        case str():
            return text(value)
        case bytes() | bytearray():
            return _decoded(bytes(value))
        case Decimal():
            return float(value)
        case _ if depth >= DEPTH_MAX:
            return f"nested more than {DEPTH_MAX} deep"
        case Mapping():
            return {text(key): jsonable(each, depth + 1) for key, each in value.items()}
        case list():
            return [jsonable(each, depth + 1) for each in value]
    raise TypeError(f"{type(value).__name__} is no value of a field table")


def _decoded(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return f"Not UTF-8, base64 is: {b64encode(data).decode('ascii')}"
