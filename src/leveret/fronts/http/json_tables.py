"""Field tables and properties of messages from JSON: arguments, headers, message properties.

JSON has fewer types than AMQP: whole numbers become 64-bit integers, fractions doubles, strings long strings.
Owns RabbitMQ's errors for values of wrong types. The rule: a table from this module can be encoded.
"""

from __future__ import annotations

from math import isfinite
from typing import Any, Final

from leveret.fronts.http.json_replies import DEPTH_MAX
from leveret.fronts.http.request_bodies import BadRequest, Body

_KEY_BYTES_MAX: Final = 255
_INTEGER_BITS: Final = 63
_NUMBERS: Final = ("delivery_mode", "priority", "timestamp")
_TEXTS: Final = (
    "content_type",
    "content_encoding",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
)
_NUMBER_MAX: Final = {"delivery_mode": 255, "priority": 255, "timestamp": (1 << 64) - 1}


def table_in(body: Body, name: str) -> dict[str, Any]:
    """Return a field that is a field table; RabbitMQ also accepts an empty list for an empty table."""
    value = body.get(name, {})
    if value == []:
        return {}
    if not isinstance(value, dict):
        raise BadRequest(f"{name} must be an object.")
    return {key: _checked(item, key) for key, item in value.items()}


def properties_in(body: Body, name: str) -> dict[str, Any]:
    """Return the properties of a message; unknown ones are ignored, as in RabbitMQ."""
    given = body[name]
    if given == []:
        return {}
    if not isinstance(given, dict):
        raise BadRequest(f"{name} must be an object.")
    properties: dict[str, Any] = {}
    if "headers" in given:
        properties["headers"] = table_in(given, "headers")
    for number in _NUMBERS:
        if number in given:
            properties[number] = _number(given, number)
    for text in _TEXTS:
        if text in given:
            if not isinstance(given[text], str):
                raise BadRequest(["not_string", text])
            check_short(text, given[text])
            properties[text] = given[text]
    return properties


def check_short(what: str, value: str) -> None:
    """Raise if a text is longer than AMQP's short strings, with RabbitMQ's words."""
    size = len(value.encode("utf-8", "surrogateescape"))
    if size > _KEY_BYTES_MAX:
        raise BadRequest(f"{what} should be less than {_KEY_BYTES_MAX} bytes, actually was {size}\n")


def _number(given: Body, name: str) -> int:
    value = given[name]
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadRequest(["not_int", name])
    if name != "delivery_mode" and not 0 <= value <= _NUMBER_MAX[name]:
        raise BadRequest(f"{name} is {value}; it must be a number from 0 to {_NUMBER_MAX[name]}.")
    return value


def _checked(value: Any, key: str, depth: int = 1) -> Any:
    """Return a value of a table if AMQP has a type for the value."""
    check_short("a key", key)
    if depth > DEPTH_MAX:
        raise BadRequest(f"'{key}' is nested more than {DEPTH_MAX} deep")
    if value is None:
        raise BadRequest("null_not_allowed")
    if isinstance(value, dict):
        return {inner: _checked(item, inner, depth + 1) for inner, item in value.items()}
    if isinstance(value, list):
        return [_checked(item, key, depth + 1) for item in value]
    if isinstance(value, float) and not isfinite(value):
        raise BadRequest(f"'{key}' is larger than any number of 64 bits.")
    if isinstance(value, int) and value.bit_length() > _INTEGER_BITS:
        raise BadRequest(f"'{key}' is {value}; a number has at most {_INTEGER_BITS} bits and a sign.")
    return value
