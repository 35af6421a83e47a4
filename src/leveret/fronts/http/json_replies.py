"""JSON of the API: `reply` makes an answer, `reply_list` one with many items.

Owns the JSON form of values for which AMQP allows more than JSON: names and arguments of any bytes, tables
nested as deep as a frame is long. The rules: every answer is valid JSON, whatever clients have declared; and
a long list is sent in pieces, between which the broker serves others.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from decimal import Decimal
from itertools import islice

from starlette.responses import Response, StreamingResponse

DEPTH_MAX = 64
"""Deeper tables are cut, because JSON encoders and decoders recurse."""
PIECE = 64
"""Items made without a pause: a queue takes 25 µs, so others wait less than 2 ms."""
_JSON = "application/json"
_FRESH = {"cache-control": "no-cache"}


def reply(content: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON response. Example: `reply({"status": "ok"})`."""
    return Response(encoded(content), status, {**_FRESH, **(headers or {})}, media_type=_JSON)


def reply_list(items: Iterable[object]) -> Response:
    """Return a JSON list sent in pieces while the client reads; the event loop runs between two pieces."""
    return reply_rows(map(encoded, items), at_once=PIECE)


def reply_rows(rows: Iterable[str], *, at_once: int) -> Response:
    """Return a JSON list of items that are JSON text already, `at_once` items per piece."""
    return StreamingResponse(_pieces(rows, at_once), headers=_FRESH, media_type=_JSON)


def reply_nested(objects: Iterable[tuple[Mapping[str, object], str, Iterable[object]]]) -> Response:
    """Return a JSON list of objects with a field of many items each: (object, field, items)."""
    return StreamingResponse(_nested(objects), headers=_FRESH, media_type=_JSON)


def reply_sections(sections: Iterable[tuple[str, object]]) -> Response:
    """Return a JSON object sent in pieces; a field whose value is an iterator becomes a list."""
    return StreamingResponse(_sections(sections), headers=_FRESH, media_type=_JSON)


async def _sections(sections: Iterable[tuple[str, object]]) -> AsyncIterator[str]:
    before = "{"
    for name, value in sections:
        yield f"{before}{encoded(name)}:"
        if isinstance(value, Iterator):
            async for piece in _pieces(map(encoded, value), at_once=PIECE):
                yield piece
        else:
            yield encoded(value)
        before = ","
    yield "}"


async def _pieces(rows: Iterable[str], at_once: int) -> AsyncIterator[str]:
    before = "["
    rows_left = iter(rows)
    while piece := list(islice(rows_left, at_once)):
        yield before + ",".join(piece)
        before = ","
        await asyncio.sleep(0)
    yield "[]" if before == "[" else "]"


async def _nested(
    objects: Iterable[tuple[Mapping[str, object], str, Iterable[object]]],
) -> AsyncIterator[str]:
    before = "["
    for fields, name, items in objects:
        yield f"{before}{encoded(fields).removesuffix('}')}{',' if fields else ''}{encoded(name)}:"
        async for piece in _pieces(map(encoded, items), at_once=1):
            yield piece
        yield "}"
        before = ","
    yield "[]" if before == "[" else "]"


def encoded(content: object) -> str:
    """Return JSON in ASCII, so that names that are not UTF-8 can't make the encoding fail."""
    return json.dumps(content, separators=(",", ":"))


def text(name: str) -> str:
    """Return a name as text; if it is not UTF-8, in base64 with RabbitMQ's words.

    >>> text("orders"), text("\\udcff")
    ('orders', 'Not UTF-8, base64 is: /w==')
    """
    if name.isascii():
        return name
    return _decoded(name.encode("utf-8", "surrogateescape"))


def jsonable(value: object, depth: int = 0) -> object:
    """Return a field table's value in types that JSON has.

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
            return {text(key): jsonable(item, depth + 1) for key, item in value.items()}
        case list():
            return [jsonable(item, depth + 1) for item in value]
    raise TypeError(f"{type(value).__name__} is not a type of field tables")


def _decoded(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return f"Not UTF-8, base64 is: {b64encode(data).decode('ascii')}"
