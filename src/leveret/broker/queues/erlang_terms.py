"""Values of field tables as Erlang terms: type names, printed form, equality.

Clients match on texts that name a type or print a term, and Erlang's rules of equality decide where a headers
exchange routes. The meaning of arguments is left to `arguments`. A decoded table does not keep the width of
integers: they are called `signedint` if they fit 32 bits and `long` if not, as most clients send them. The
rule: no recursion without a bound, because a peer may nest a table as deep as its frame is long.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from decimal import Decimal
from typing import Final

from leveret.broker.canonical import Timestamp, Value, encode_table

PRINTED_DEPTH_MAX: Final = 20

_SIGNED_INT_LIMIT: Final = 1 << 31
_TYPES: Final[tuple[tuple[type | tuple[type, ...], str], ...]] = (
    (str, "longstr"),
    (bool, "bool"),
    (Timestamp, "timestamp"),
    (float, "double"),
    (Decimal, "decimal"),
    ((bytes, bytearray), "binary"),
    (list, "array"),
    (dict, "table"),
)
_ESCAPES: Final = str.maketrans(
    {
        "\b": r"\b",
        "\t": r"\t",
        "\n": r"\n",
        "\v": r"\v",
        "\f": r"\f",
        "\r": r"\r",
        "\x1b": r"\e",
        '"': r"\"",
        "\\": r"\\",
    }
)
_PRINTABLE: Final = frozenset((*_ESCAPES, *range(32, 127), *range(160, 256)))


def type_name(value: Value) -> str:
    """Return RabbitMQ's name of a value's type: `longstr`, `signedint`, `long`, `bool`, `void` …"""
    for type_, name in _TYPES:
        if isinstance(value, type_):
            return name
    if isinstance(value, int):
        return "signedint" if -_SIGNED_INT_LIMIT <= value < _SIGNED_INT_LIMIT else "long"
    return "void"


def is_integer(value: Value) -> bool:
    """Return whether a value has an integer type; booleans and timestamps do not count."""
    return isinstance(value, int) and not isinstance(value, bool | Timestamp)


def quoted(text: str) -> str:
    """Return a string as `~p` prints it: in quotes, or as a list of bytes if one of them is not printable."""
    data = text.encode("utf-8", "surrogateescape")
    if _PRINTABLE.issuperset(data):
        return f'"{text.translate(_ESCAPES)}"'
    return f"[{','.join(map(str, data))}]"


def json_term(value: Value) -> str:
    """Return a value from JSON as RabbitMQ's HTTP API prints it: null has a name of its own there."""
    return "null" if value is None else as_term(value)


def as_term(value: Value, depth: int = PRINTED_DEPTH_MAX) -> str:
    """Return a value as `~p` prints it, without what is nested deeper than `depth`.

    >>> as_term("all"), as_term(True), as_term({"a": [1, 2.5]})
    ('<<"all">>', 'true', '[{<<"a">>,array,[{signedint,1},{double,2.5}]}]')
    """
    if value is None:
        return "undefined"
    if isinstance(value, str | bytes | bytearray):
        shown = quoted(as_text(value)) if value else ""
        return f"<<{shown if not shown.startswith('[') else shown[1:-1]}>>"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        _, digits, exponent = value.as_tuple()
        return f"{{{-int(exponent)},{int(''.join(map(str, digits)))}}}"
    if isinstance(value, int | float):
        return str(value)
    if not depth:
        return "..."
    if isinstance(value, list):
        fields = (f"{{{type_name(item)},{as_term(item, depth - 1)}}}" for item in value)
    else:
        fields = (
            f"{{{as_term(key)},{type_name(item)},{as_term(item, depth - 1)}}}" for key, item in value.items()
        )
    return f"[{','.join(fields)}]"


def as_text(value: str | bytes | bytearray) -> str:
    """Return a string or its bytes as text, because RabbitMQ knows only binaries."""
    return value if isinstance(value, str) else value.decode("utf-8", "surrogateescape")


def comparable(value: Value) -> Hashable:
    """Return a key that is equal for values equal by Erlang's `==`; nested values need equal types, too."""
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, str | bytes | bytearray):
        return as_text(value)
    if isinstance(value, int | float):
        return value
    return encode_table({"": value})


def are_identical(one: Value, other: Value) -> bool:
    """Return whether two values are equal by Erlang's `=:=`: 1 is not 1.0."""
    return isinstance(one, float) == isinstance(other, float) and comparable(one) == comparable(other)


def identity(table: Mapping[str, Value]) -> bytes:
    """Return bytes that are equal for tables with equal fields of equal types, in any order.

    >>> identity({"a": 1, "b": True}) == identity({"b": True, "a": 1})
    True
    >>> identity({"a": 1}) == identity({"a": True})
    False
    """
    return encode_table(dict(sorted(table.items()))) if table else b""
