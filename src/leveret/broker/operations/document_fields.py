"""Fields of a document of definitions: reads them with their types, and names the place of a mistake.

    item = Fields("queues[3]", {"name": "orders", "durable": True})
    item.text("name"), item.flag("durable")

Owns the sentences for missing fields and wrong types. The meaning of fields is left to `definitions`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from leveret.broker.canonical import Value, encode_table
from leveret.broker.errors import BrokerError, PreconditionFailed

T = TypeVar("T")

_SHOWN_MAX: Final = 40


class Fields:
    """An object of the document; an error about a field names the object's place."""

    def __init__(self, place: str, fields: Any) -> None:
        self.place = place
        if not isinstance(fields, Mapping):
            raise PreconditionFailed(f"{place} is {shown(fields)}; it must be a JSON object")
        self.fields: Mapping[str, Any] = fields

    def wrong(self, sentence: str) -> PreconditionFailed:
        return PreconditionFailed(f"{self.place}: {sentence}")

    def check(self, judge: Callable[[], T]) -> T:
        """Return the judge's result; name the object's place if the judge refuses."""
        try:
            return judge()
        except BrokerError as error:
            raise self.wrong(error.sentence) from None

    def get(self, name: str, default: Any = None) -> Any:
        return self.fields.get(name, default)

    def items(self, section: str) -> list[Fields]:
        """Return the objects of a section, which may be missing."""
        items = self.fields.get(section, [])
        place = f"{self.place}.{section}" if self.place else section
        if not isinstance(items, list):
            raise PreconditionFailed(f"{place} is {shown(items)}; it must be a list")
        return [Fields(f"{place}[{number}]", item) for number, item in enumerate(items)]

    def text(self, name: str, default: str | None = None) -> str:
        value = self.fields.get(name, default)
        if not isinstance(value, str):
            raise self.wrong(f"{name} is missing" if value is None else f"{name} must be a text")
        try:
            value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise self.wrong(f"{name} has half of a character in UTF-16") from None
        return value

    def flag(self, name: str, *, default: bool | None = None) -> bool:
        value = self.fields.get(name, default)
        if not isinstance(value, bool):
            raise self.wrong(f"{name} is missing" if value is None else f"{name} must be true or false")
        return value

    def tags(self) -> list[str]:
        """Return the tags of a user: a list, or a text with commas as in old files."""
        tags = self.fields.get("tags", [])
        tags = tags.split(",") if isinstance(tags, str) else tags
        if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
            raise self.wrong("tags must be a list of texts")
        return [tag.strip() for tag in tags if tag.strip()]

    def table(self) -> dict[str, Value]:
        """Return the arguments of a queue, an exchange or a binding."""
        table = self.fields.get("arguments", {})
        if not isinstance(table, dict):
            raise self.wrong("arguments must be a JSON object")
        try:
            encode_table(table)
        except (ValueError, RecursionError) as error:
            raise self.wrong(f"arguments can't be written as a table of AMQP: {error}") from None
        return table


def shown(value: Any) -> str:
    """Return a value of JSON as the start of its text.

    >>> shown([1, 2])
    '[1, 2]'
    """
    text = json.dumps(value)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"
