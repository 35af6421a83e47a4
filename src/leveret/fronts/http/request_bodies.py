"""What a request brings along: a JSON object, and what of it is wanted.

Owns reading the body, which must be there before a handler runs, and the sentences for what is no object, for
fields that nobody knows and for values of the wrong kind. What the values mean is left to the broker.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

from starlette.requests import ClientDisconnect, Request

from leveret.fronts.http.errors import Problem

Body: TypeAlias = Mapping[str, Any]

BYTES_MAX = 64 << 10


class BadRequest(Problem):
    """`BadRequest("the name is too long")`: 400, and nothing was changed."""

    def __init__(self, sentence: str) -> None:
        super().__init__(400, "bad_request", sentence)


async def body_of(request: Request) -> Body:
    """The object that came with the request; an empty one if nothing did."""
    data = bytearray()
    try:
        async for piece in request.stream():
            data += piece
            if len(data) > BYTES_MAX:
                raise Problem(413, "content_too_large", f"A body has at most {BYTES_MAX} bytes.")
    except ClientDisconnect:  # nobody is there to read the answer
        raise BadRequest("The body is not whole.") from None
    if not data.strip():
        return {}
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise BadRequest("The body is no JSON.") from None
    if not isinstance(found, dict):
        raise BadRequest("The body must be a JSON object.")
    return found


def check_fields(body: Body, known: Collection[str]) -> None:
    """Raises for a field that means nothing here: a slip of the pen must not get lost."""
    for name in body:
        if name not in known:
            fields = ", ".join(known) or "none"
            raise BadRequest(f"There is no field '{name}' here; there are: {fields}.")


def text_in(body: Body, name: str) -> str | None:
    """A field that must be text, where it is given."""
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise BadRequest(f"{name} is {json.dumps(value)}; it must be text.")
    return value


def number_in(body: Body, name: str) -> int | None:
    """A field that must be a whole number, where it is given."""
    value = body.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise BadRequest(f"{name} is {json.dumps(value)}; it must be a whole number.")
    return value


def required_number_in(body: Body, name: str) -> int:
    value = number_in(body, name)
    if value is None:
        raise BadRequest(f"{name} is missing; it must be a whole number.")
    return value
