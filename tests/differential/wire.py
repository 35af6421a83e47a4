"""Frames, methods, field tables and content headers, written and read byte by byte.

Names, order and types of a method's arguments come from pamqp's classes; the encoding is done here, so that a
scenario can send what no library would (wrong names, any field type), and sees the types that a server chose.
Nothing of Leveret is imported: two servers are compared with eyes that belong to neither.

    frame    type:8  channel:16  size:32  payload[size]  0xCE
"""

import struct
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import Any

from pamqp import base, commands

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
FRAME_END = 0xCE
BASIC = 60
UNSHOWN = frozenset({"ticket"})

# bit 15 downwards; AMQP 0-9-1, section 4.2.6.1
PROPERTIES = (
    ("content_type", "shortstr"),
    ("content_encoding", "shortstr"),
    ("headers", "table"),
    ("delivery_mode", "octet"),
    ("priority", "octet"),
    ("correlation_id", "shortstr"),
    ("reply_to", "shortstr"),
    ("expiration", "shortstr"),
    ("message_id", "shortstr"),
    ("timestamp", "timestamp"),
    ("message_type", "shortstr"),
    ("user_id", "shortstr"),
    ("app_id", "shortstr"),
    ("cluster_id", "shortstr"),
)
WIDTHS = {"octet": ">B", "short": ">H", "long": ">I", "longlong": ">Q", "timestamp": ">Q"}
FIELD_NUMBERS = {
    "b": ">b",
    "B": ">B",
    "s": ">h",
    "u": ">H",
    "I": ">i",
    "i": ">I",
    "l": ">q",
    "L": ">Q",
    "f": ">f",
    "d": ">d",
    "T": ">Q",
}


@dataclass(frozen=True, slots=True)
class Typed:
    """A field value whose type on the wire matters: `Typed("l", 5)` is five in 64 bits."""

    kind: str
    value: Any

    def __repr__(self) -> str:
        return "<time>" if self.kind == "T" else f"{self.kind}:{self.value!r}"


@dataclass(slots=True)
class Frame:
    kind: int
    channel: int
    payload: bytes


@dataclass(slots=True)
class Method:
    """A method as it was read; `name` is `queue.declare-ok`."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join([self.name, *(f"{key}={value!r}" for key, value in self.arguments.items())])


def frame_bytes(kind: int, channel: int, payload: bytes, *, end: int = FRAME_END) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + bytes([end])


def frames_in(buffer: bytearray) -> Iterator[Frame]:
    """Whole frames at the front of `buffer`, taken away as they are read."""
    while len(buffer) >= 7:
        kind, channel, size = struct.unpack_from(">BHI", buffer)
        if len(buffer) < size + 8:
            return
        payload, end = bytes(buffer[7 : 7 + size]), buffer[7 + size]
        del buffer[: size + 8]
        if end != FRAME_END:
            raise ValueError(f"the server sent a frame that ends with {end:#x}")
        yield Frame(kind, channel, payload)


def text(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")


def shortstr(value: str | bytes) -> bytes:
    raw = text(value)
    return bytes([len(raw)]) + raw


def longstr(value: str | bytes) -> bytes:
    raw = text(value)
    return struct.pack(">I", len(raw)) + raw


def table(value: dict[str, Any] | bytes | None) -> bytes:
    """A table; bytes stand for themselves, with a length before them."""
    if isinstance(value, bytes):
        return longstr(value)
    return longstr(b"".join(shortstr(key) + field_value(item) for key, item in (value or {}).items()))


def field_value(value: Any) -> bytes:
    match value:
        case Typed(kind="D", value=(scale, number)):
            return b"D" + struct.pack(">BI", scale, number)
        case Typed(kind=("S" | "x") as kind, value=raw):
            return kind.encode() + longstr(raw)
        case Typed(kind="T", value=datetime() as moment):
            return b"T" + struct.pack(">Q", int(moment.timestamp()))
        case Typed(kind, number):
            return kind.encode() + struct.pack(FIELD_NUMBERS[kind], number)
        case bool():
            return b"t" + bytes([value])
        case int():
            wide = not -(2**31) <= value < 2**31
            return (b"l" if wide else b"I") + struct.pack(">q" if wide else ">i", value)
        case None:
            return b"V"
        case float():
            return b"d" + struct.pack(">d", value)
        case str() | bytes():
            return b"S" + longstr(value)
        case dict():
            return b"F" + table(value)
        case list():
            return b"A" + longstr(b"".join(map(field_value, value)))
    raise TypeError(f"no field type for {value!r}")


def argument_bytes(kind: str, value: Any) -> bytes:
    match kind:
        case "shortstr":
            return shortstr(value or "")
        case "longstr":
            return longstr(value or "")
        case "table":
            return table(value)
    return struct.pack(WIDTHS[kind], value or 0)


def method_class(name: str) -> type[base.Frame]:
    """`queue_declare` or `queue.declare-ok` as pamqp's class.

    >>> method_class("queue_declare").name
    'Queue.Declare'
    """
    group, _, rest = name.replace("-", "_").replace(".", "_").partition("_")
    words = "".join(word.capitalize() for word in rest.split("_"))
    return getattr(getattr(commands, group.capitalize()), words)


def wire_name(method: type[base.Frame]) -> str:
    group, _, rest = method.name.partition(".")
    hyphenated = "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in rest)
    return f"{group.lower()}.{hyphenated.lstrip('-')}"


def shown_arguments(method: type[base.Frame]) -> list[str]:
    return [name for name in method.attributes() if name not in UNSHOWN and not name.startswith("reserved")]


@cache
def defaults_of(method: type[base.Frame]) -> base.Frame:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # basic.recover-async: servers still know it
        return method()


def method_payload(method: type[base.Frame], values: dict[str, Any]) -> bytes:
    unknown = values.keys() - set(method.attributes())
    if unknown:
        raise TypeError(f"{method.name} has no {', '.join(sorted(unknown))}")
    defaults = defaults_of(method)
    out, bits = [struct.pack(">I", method.index)], []
    for name in method.attributes():
        value = values.get(name, getattr(defaults, name, None))
        kind = method.amqp_type(name)
        if kind == "bit":
            bits.append(bool(value))
            continue
        out.append(bit_bytes(bits))
        bits = []
        out.append(argument_bytes(kind, value))
    return b"".join([*out, bit_bytes(bits)])


def bit_bytes(bits: list[bool]) -> bytes:
    return bytes([sum(bit << index for index, bit in enumerate(bits))]) if bits else b""


class Reader:
    """Takes values from the front of a payload."""

    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        self.position = 0

    def number(self, form: str) -> int | float:
        (value,) = struct.unpack_from(form, self.payload, self.position)
        self.position += struct.calcsize(form)
        return value

    def raw(self, size: int) -> bytes:
        self.position += size
        return self.payload[self.position - size : self.position]

    def string(self, form: str) -> str:
        return self.raw(int(self.number(form))).decode("utf-8", "surrogateescape")

    def table(self) -> dict[str, Any]:
        """By key: the order of a table's fields means nothing."""
        end = int(self.number(">I")) + self.position
        found = {}
        while self.position < end:
            key = self.string(">B")
            found[key] = self.field_value()
        return dict(sorted(found.items()))

    def array(self) -> list[Any]:
        end = int(self.number(">I")) + self.position
        found = []
        while self.position < end:
            found.append(self.field_value())
        return found

    def field_value(self) -> Any:
        kind = self.raw(1).decode("latin-1")
        match kind:
            case "S":
                return self.string(">I")
            case "t":
                return bool(self.number(">B"))
            case "V":
                return None
            case "F":
                return self.table()
            case "A":
                return self.array()
            case "x":
                return Typed("x", self.raw(int(self.number(">I"))))
            case "D":
                return Typed("D", (self.number(">B"), self.number(">I")))
        return Typed(kind, self.number(FIELD_NUMBERS[kind]))

    def argument(self, kind: str) -> Any:
        match kind:
            case "shortstr":
                return self.string(">B")
            case "longstr":
                return self.string(">I")
            case "table":
                return self.table()
            case "timestamp":
                return datetime.fromtimestamp(self.number(">Q"), UTC).isoformat()
        return self.number(WIDTHS[kind])


def read_method(payload: bytes) -> Method:
    reader = Reader(payload)
    index = int(reader.number(">I"))
    if index not in commands.INDEX_MAPPING:
        return Method(f"method {index >> 16}.{index & 0xFFFF}")
    method = commands.INDEX_MAPPING[index]
    arguments, bit, octet = {}, 0, 0
    for name in method.attributes():
        kind = method.amqp_type(name)
        if kind == "bit":
            if bit % 8 == 0:
                octet = int(reader.number(">B"))
            arguments[name] = bool(octet >> bit % 8 & 1)
            bit += 1
        else:
            arguments[name] = reader.argument(kind)
            bit = 0
    shown = {name: arguments[name] for name in shown_arguments(method)}
    return Method(wire_name(method), shown)


def header_payload(size: int, properties: dict[str, Any], *, class_id: int = BASIC, weight: int = 0) -> bytes:
    flags, values = 0, []
    for index, (name, kind) in enumerate(PROPERTIES):
        if name in properties:
            flags |= 1 << (15 - index)
            values.append(argument_bytes(kind, properties[name]))
    unknown = properties.keys() - {name for name, _ in PROPERTIES}
    if unknown:
        raise TypeError(f"no property {', '.join(sorted(unknown))}")
    return struct.pack(">HHQH", class_id, weight, size, flags) + b"".join(values)


def read_header(payload: bytes) -> tuple[int, dict[str, Any]]:
    """The announced size of the body, and the properties."""
    reader = Reader(payload)
    _class_id, _weight, size, flags = (int(reader.number(form)) for form in (">H", ">H", ">Q", ">H"))
    found = {}
    for index, (name, kind) in enumerate(PROPERTIES):
        if flags & 1 << (15 - index):
            found[name] = reader.argument(kind)
    return size, found
