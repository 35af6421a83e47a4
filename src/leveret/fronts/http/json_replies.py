"""JSON as this API writes it: every answer goes out through `reply`, or `reply_list` where there may be many.

Owns the form of what is sent, also where AMQP allows more than JSON does: a name or an argument may hold any
bytes, a table may nest as deep as a frame is long. The rules: whatever a client has declared, looking at it
is answered with valid JSON; and however much there is, the broker goes on meanwhile.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator, Iterable, Mapping
from decimal import Decimal
from itertools import islice

from starlette.responses import Response, StreamingResponse

DEPTH_MAX = 64
"""Tables nested deeper are cut: the JSON encoder, and those who read it, recurse."""
PIECE = 64
"""Items made in one go: a queue takes 25 µs, so that others wait less than 2 ms."""
_JSON = "application/json"
_FRESH = {"cache-control": "no-cache"}


def reply(content: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """`reply({"status": "ok"})`."""
    return Response(encoded(content), status, {**_FRESH, **(headers or {})}, media_type=_JSON)


def reply_list(items: Iterable[object]) -> Response:
    """A list whose items are made piece by piece, while the client takes them; the loop runs in between."""
    return reply_rows(map(encoded, items), at_once=PIECE)


def reply_rows(rows: Iterable[str], *, at_once: int) -> Response:
    """The same of items that are JSON already, so many in one go."""
    return StreamingResponse(_pieces(rows, at_once), headers=_FRESH, media_type=_JSON)


def reply_nested(objects: Iterable[tuple[Mapping[str, object], str, Iterable[object]]]) -> Response:
    """A list of objects, each with a field of many items that are made one by one: (object, field, items)."""
    return StreamingResponse(_nested(objects), headers=_FRESH, media_type=_JSON)


async def _pieces(rows: Iterable[str], at_once: int) -> AsyncIterator[str]:
    before = "["
    left = iter(rows)
    while piece := list(islice(left, at_once)):
        yield before + ",".join(piece)
        before = ","
        await asyncio.sleep(0)
    yield "[]" if before == "[" else "]"


async def _nested(
    objects: Iterable[tuple[Mapping[str, object], str, Iterable[object]]],
) -> AsyncIterator[str]:
    before = "["
    for each, name, items in objects:
        yield f"{before}{encoded(each).removesuffix('}')}{',' if each else ''}{encoded(name)}:"
        async for piece in _pieces(map(encoded, items), at_once=1):
            yield piece
        yield "}"
        before = ","
    yield "[]" if before == "[" else "]"


def encoded(content: object) -> str:
    """In ASCII: what is left of undecodable names becomes escapes, and encoding can't fail."""
    return json.dumps(content, separators=(",", ":"))


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
