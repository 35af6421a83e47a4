"""Bodies of requests: reads the JSON object, and checks names and types of its fields.

Owns the error sentences for a body that is not an object, for unknown fields and for wrong types; RabbitMQ's,
where it has one. Field tables of AMQP are left to `json_tables`, the meaning of values to the broker. The
rule: the body is read before a handler runs.
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

    def __init__(self, sentence: str | list[object]) -> None:
        super().__init__(400, "bad_request", sentence)


async def body_of(request: Request, *, bytes_max: int) -> Body:
    """Return the object in the request's body; an empty one if the body is empty or null."""
    data = bytearray()
    try:
        async for piece in request.stream():
            data += piece
            if len(data) > bytes_max:
                raise Problem(413, "content_too_large", f"The body is larger than {bytes_max} bytes.")
    except ClientDisconnect:
        # The client is gone and does not read this answer.
        raise BadRequest("The body is incomplete.") from None
    if bytes(data.strip()) in (b"", b"null"):
        return {}
    try:
        content = json.loads(data, parse_constant=_refuse_constant)
        if b"\\u" in data:
            # Half of a surrogate pair is no character, and no name can hold it.
            json.dumps(content, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise BadRequest("not_json") from None
    if isinstance(content, str):
        raise BadRequest(
            "invalid payload: the request body JSON-decoded to a string. Is the input doubly-JSON-encoded?"
        )
    if not isinstance(content, dict):
        raise BadRequest("not_json")
    return content


def _refuse_constant(name: str) -> None:
    raise ValueError(f"JSON has no {name}")


def check_fields(body: Body, known: Collection[str]) -> None:
    """Raise for an unknown field, so that a typing error is not ignored."""
    for name in body:
        if name not in known:
            fields = ", ".join(known) or "none"
            raise BadRequest(f"Field '{name}' is unknown; known fields: {fields}.")


def text_in(body: Body, name: str) -> str | None:
    """Return a string field, or None if it is missing or null."""
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise BadRequest(f"{name} is {json.dumps(value)}; it must be a string.")
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


def truth_in(body: Body, name: str) -> bool:
    """Return a boolean field, which RabbitMQ's tools send as a string; False if it is missing."""
    value = body.get(name, False)
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return bool(value == "true")
    raise BadRequest(["not_boolean", value])


def integer_in(body: Body, name: str) -> int:
    """Return an integer field that may be a string of digits or a fraction, as RabbitMQ's tools send it."""
    value = body[name]
    try:
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            return int(value)
    except (ValueError, OverflowError):
        pass
    raise BadRequest(["not_integer", value])


def check_present(body: Body, names: Collection[str]) -> None:
    """Raise RabbitMQ's error if one of these fields is missing."""
    missing = [f"{{key_missing,{name}}}" for name in names if name not in body]
    if missing:
        raise BadRequest("[" + ",\n ".join(missing) + "]")
