"""The language of `--where`: which messages are meant.

    header.region=eu          a header
    type=Timeout              the exception that it failed with, with or without its module
    message_id!=17            a property
    body.customer.id=7        a field of a JSON body
    body~=refund              the body as text

    =   is          !=   is not, or is not there          ~=   contains

A condition is a field, an operator and a text, without anything around them. Numbers, true, false and null
are compared as JSON writes them. Several conditions must all hold. What a message does not have, equals
nothing and contains nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from leveret.cli.message_json import BadEnvelope, parse_json
from leveret.client import Delivery

_CONDITION: Final = re.compile(r"([^=!~]+?)(!=|~=|=)(.*)", re.DOTALL)
_EXCEPTION: Final = "x-exception-type"
_PROPERTIES: Final = ("message_id", "correlation_id", "content_type", "app_id", "routing_key", "exchange")
_MISSING: Final = object()


class BadCondition(ValueError):
    """It is not in the language; the text says what would be."""


class Condition(NamedTuple):
    """`Condition.parse("header.region=eu").holds(delivery)`."""

    field: str
    operator: str
    text: str

    @classmethod
    def parse(cls, condition: str) -> Condition:
        found = _CONDITION.fullmatch(condition)
        if found is None:
            raise BadCondition(f"{condition!r} is not FIELD=TEXT, FIELD!=TEXT or FIELD~=TEXT")
        field, operator, text = found.groups()
        known = field in ("type", "body", *_PROPERTIES)
        if not known and not re.fullmatch(r"(header|body)\..+", field, re.DOTALL):
            names = ", ".join(("header.NAME", "type", "body", "body.FIELD", *_PROPERTIES))
            raise BadCondition(f"{field!r} is no field: there are {names}")
        return cls(field, operator, text)

    def holds(self, delivery: Delivery) -> bool:
        value = self._value(delivery)
        if value is _MISSING:
            return self.operator == "!="
        found = _text(value)
        if self.operator == "~=":
            return self.text in found
        equal = found == self.text
        if self.field == "type":
            equal = equal or found.rpartition(".")[2] == self.text
        return equal if self.operator == "=" else not equal

    def _value(self, delivery: Delivery) -> Any:
        place, _, name = self.field.partition(".")
        if place == "header":
            return delivery.headers.get(name, _MISSING)
        if place == "type":
            return delivery.headers.get(_EXCEPTION, _MISSING)
        if place == "body":
            return _in_body(delivery.body, name)
        value = delivery.properties.get(place) if place not in _WHERE else getattr(delivery, place)
        return _MISSING if value is None else value


_WHERE: Final = ("routing_key", "exchange")


def _in_body(body: bytes, path: str) -> Any:
    """The body itself, or a field of it; fields of fields are separated by dots."""
    if not path:
        return body.decode(errors="replace")
    try:
        value = parse_json(body)
    except BadEnvelope:
        return _MISSING
    for name in path.split("."):
        if not isinstance(value, dict) or name not in value:
            return _MISSING
        value = value[name]
    return value


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode(errors="replace")
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    except RecursionError:
        return ""


def parse_conditions(conditions: Iterable[str]) -> Callable[[Delivery], bool]:
    """Whether a message meets all of them."""
    parsed = [Condition.parse(condition) for condition in conditions]
    return lambda delivery: all(condition.holds(delivery) for condition in parsed)
