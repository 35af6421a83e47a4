"""The language of `--where`: conditions that a message must meet.

    header.region=eu          a header
    type=Timeout              the exception with which the message failed, with or without its module
    message_id!=17            a property
    body.customer.id=7        a field of a JSON body
    body~=refund              the body as text

    =   equals        !=   does not equal, or is missing        ~=   contains

A condition is a field, an operator and a text, without spaces around them. Numbers, true, false and null are
compared as JSON writes them. A message must meet all conditions. A missing value equals nothing and contains
nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from leveret.cli.message_json import BadEnvelope, parse_json
from leveret.client import Delivery

_CONDITION: Final = re.compile(r"([^=!~]+?)(!=|~=|=)(.*)", re.DOTALL)
_EXCEPTION_TYPE_HEADER: Final = "x-exception-type"
_PROPERTIES: Final = ("message_id", "correlation_id", "content_type", "app_id", "routing_key", "exchange")
_MISSING: Final = object()


class BadCondition(ValueError):
    """A condition has invalid syntax; the text says what is valid."""


class Condition(NamedTuple):
    """One condition: `Condition.parse("header.region=eu").holds(delivery)`."""

    field: str
    operator: str
    text: str

    @classmethod
    def parse(cls, condition: str) -> Condition:
        match = _CONDITION.fullmatch(condition)
        if match is None:
            raise BadCondition(f"{condition!r} is not FIELD=TEXT, FIELD!=TEXT or FIELD~=TEXT")
        field, operator, text = match.groups()
        is_known = field in ("type", "body", *_PROPERTIES)
        if not is_known and not re.fullmatch(r"(header|body)\..+", field, re.DOTALL):
            names = ", ".join(("header.NAME", "type", "body", "body.FIELD", *_PROPERTIES))
            raise BadCondition(f"{field!r} is not a field: choose one of {names}")
        return cls(field, operator, text)

    def holds(self, delivery: Delivery) -> bool:
        value = self._value(delivery)
        if value is _MISSING:
            return self.operator == "!="
        text = _text(value)
        if self.operator == "~=":
            return self.text in text
        equal = text == self.text
        if self.field == "type":
            equal = equal or text.rpartition(".")[2] == self.text
        return equal if self.operator == "=" else not equal

    def _value(self, delivery: Delivery) -> Any:
        source, _, name = self.field.partition(".")
        if source == "header":
            return delivery.headers.get(name, _MISSING)
        if source == "type":
            return delivery.headers.get(_EXCEPTION_TYPE_HEADER, _MISSING)
        if source == "body":
            return _in_body(delivery.body, name)
        value = (
            delivery.properties.get(source) if source not in _ADDRESS_FIELDS else getattr(delivery, source)
        )
        return _MISSING if value is None else value


_ADDRESS_FIELDS: Final = ("routing_key", "exchange")


def _in_body(body: bytes, path: str) -> Any:
    """Return the body as text, or the field of a JSON body at a path like `customer.id`."""
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
    """Return a function that tells whether a message meets all conditions."""
    parsed = [Condition.parse(condition) for condition in conditions]
    return lambda delivery: all(condition.holds(delivery) for condition in parsed)
