"""Bodies of requests: reads the JSON object, and checks names and types of its fields.

Owns the error sentences for a body that is not an object, for unknown fields and for wrong types. The meaning
of values is left to the broker. The rule: the body is read before a handler runs.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

from starlette.requests import ClientDisconnect, Request

from leveret.fronts.http.errors import Problem

Body: TypeAlias = Mapping[str, Any]


class BadRequest(Problem):
    """A 400; nothing was changed. Example: `BadRequest("the name is too long")`."""

    def __init__(self, sentence: str) -> None:
        super().__init__(400, "bad_request", sentence)


async def body_of(request: Request, *, bytes_max: int) -> Body:
    """Return the object in the request's body; an empty one if the body is empty."""
    data = bytearray()
    try:
        async for piece in request.stream():
            data += piece
            if len(data) > bytes_max:
                raise Problem(413, "content_too_large", f"The body is larger than {bytes_max} bytes.")
    except ClientDisconnect:
        # The client is gone and does not read this answer.
        raise BadRequest("The body is incomplete.") from None
    if not data.strip():
        return {}
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        raise BadRequest("The body is not valid JSON.") from None
    if not isinstance(content, dict):
        raise BadRequest("The body must be a JSON object.")
    return content


def check_fields(body: Body, known: Collection[str]) -> None:
    """Raise for an unknown field, so that a typing error is not ignored."""
    for name in body:
        if name not in known:
            fields = ", ".join(known) or "none"
            raise BadRequest(f"Field '{name}' is unknown; known fields: {fields}.")


def check_required(body: Body, names: Collection[str]) -> None:
    """Raise RabbitMQ's error for fields that are missing."""
    missing = [f"{{key_missing,{name}}}" for name in names if name not in body]
    if missing:
        raise BadRequest(f"[{','.join(missing)}]")


def text_in(body: Body, name: str) -> str | None:
    """Return a string field, or None if it is missing or null."""
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise BadRequest(f"{name} is {json.dumps(value)}; it must be a string.")
    return value


def required_text_in(body: Body, name: str) -> str:
    value = text_in(body, name)
    if value is None:
        raise BadRequest(f"{name} is null; it must be a string.")
    return value


def number_in(body: Body, name: str) -> int | None:
    """Return an integer field, or None if it is missing or null."""
    value = body.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise BadRequest(f"{name} is {json.dumps(value)}; it must be a whole number.")
    return value


def required_number_in(body: Body, name: str) -> int:
    value = number_in(body, name)
    if value is None:
        raise BadRequest(f"{name} is missing; it must be a whole number.")
    return value
