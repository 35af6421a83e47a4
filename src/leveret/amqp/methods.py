"""Encodes and decodes payloads of method frames: class id, method id, arguments (section 2.3.5.1).

pamqp's classes define the methods, their attributes and the types of attributes. Encoding and decoding is
done here, because pamqp refuses names that RabbitMQ allows, reads lengths as signed numbers, cuts long
strings silently and recurses in tables. Undecodable bytes raise errors with RabbitMQ's codes. Strings decode
with `surrogateescape`, so that any bytes encode unchanged.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from itertools import groupby
from struct import Struct
from typing import Any, NamedTuple, TypeAlias, TypeVar

from pamqp import commands
from pamqp.base import Frame

from leveret.amqp import frames
from leveret.amqp.errors import ConnectionException, FrameError, NotImplemented_
from leveret.amqp.tables import decode_table_body, encode_short_string, encode_table

__all__ = ["Method", "decode", "encode", "frame", "ids", "make", "name"]

Method: TypeAlias = Frame
_M = TypeVar("_M", bound=Frame)

BITS_PER_OCTET = 8
# SASL responses and secrets are opaque octets; every other long string is text.
_OPAQUE = {
    ("Connection.StartOk", "response"),
    ("Connection.SecureOk", "response"),
    ("Connection.UpdateSecret", "new_secret"),
}
_IDS = Struct(">HH")
_LENGTH = Struct(">I")

# A reader takes the payload and a position, and returns the value and the position after it. Beyond the end
# of the payload the value is arbitrary: positions only grow, so `decode` detects it by the last position.
_Reader: TypeAlias = Callable[[bytes, int], tuple[Any, int]]
_Writer: TypeAlias = Callable[[Any], bytes]


def _integer_reader(size_bytes: int) -> _Reader:
    def read(data: bytes, position: int) -> tuple[int, int]:
        stop = position + size_bytes
        return int.from_bytes(data[position:stop], "big"), stop

    return read


def _read_short(data: bytes, position: int) -> tuple[str, int]:
    start = position + 1
    stop = start + data[position]
    return data[start:stop].decode("utf-8", "surrogateescape"), stop


def _read_opaque(data: bytes, position: int) -> tuple[bytes, int]:
    start = position + 4
    stop = start + int.from_bytes(data[position:start], "big")
    return data[start:stop], stop


def _read_long(data: bytes, position: int) -> tuple[str, int]:
    content, stop = _read_opaque(data, position)
    return content.decode("utf-8", "surrogateescape"), stop


def _read_table(data: bytes, position: int) -> tuple[Any, int]:
    start = position + 4
    stop = start + int.from_bytes(data[position:start], "big")
    return decode_table_body(data, start, stop) if stop <= len(data) else None, stop


def _write_long(text: str | bytes) -> bytes:
    content = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    return _LENGTH.pack(len(content)) + content


_CODECS: dict[str, tuple[_Reader, _Writer]] = {
    "octet": (_integer_reader(1), Struct(">B").pack),
    "short": (_integer_reader(2), Struct(">H").pack),
    "long": (_integer_reader(4), Struct(">I").pack),
    "longlong": (_integer_reader(8), Struct(">Q").pack),
    "shortstr": (_read_short, encode_short_string),
    "longstr": (_read_long, _write_long),
    "opaque": (_read_opaque, _write_long),
    "table": (_read_table, encode_table),
}


class _Step(NamedTuple):
    """One argument with its codec; or, without a codec, up to eight bits of one octet (section 4.2.5.2)."""

    names: tuple[str, ...]
    codec: tuple[_Reader, _Writer] | None


class _Plan(NamedTuple):
    kind: type[Method]
    name: str
    steps: tuple[_Step, ...]


def _type(kind: type[Method], attribute: str) -> str:
    return "opaque" if (kind.name, attribute) in _OPAQUE else kind.amqp_type(attribute)


def _steps(kind: type[Method]) -> Iterator[_Step]:
    for amqp_type, group in groupby(kind.attributes(), lambda attribute: _type(kind, attribute)):
        attributes = tuple(group)
        if amqp_type == "bit":
            for first in range(0, len(attributes), BITS_PER_OCTET):
                yield _Step(attributes[first : first + BITS_PER_OCTET], None)
        else:
            for attribute in attributes:
                yield _Step((attribute,), _CODECS[amqp_type])


def _plan(kind: type[Method]) -> _Plan:
    dashed = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", kind.name).lower()
    return _Plan(kind, dashed, tuple(_steps(kind)))


_PLANS: dict[int, _Plan] = {index: _plan(kind) for index, kind in commands.INDEX_MAPPING.items()}


def ids(method: Method) -> tuple[int, int]:
    """Return class id and method id: `(60, 40)` for `Basic.Publish()`."""
    return divmod(method.index, 1 << 16)


def name(method: Method) -> str:
    """Return the specification's name of a method: `"basic.consume-ok"` for `Basic.ConsumeOk()`."""
    return _PLANS[method.index].name


def make(kind: type[_M], **arguments: Any) -> _M:
    """Return a method with unchecked arguments: pamqp's constructors refuse names that RabbitMQ allows.

    Example: `make(Queue.DeclareOk, queue="any name", message_count=0, consumer_count=0)`.
    """
    if arguments.keys() != set(kind.attributes()):
        raise TypeError(f"{kind.name} takes {', '.join(kind.attributes()) or 'no arguments'}")
    method = kind.__new__(kind)
    for attribute, value in arguments.items():
        setattr(method, attribute, value)
    return method


def decode(payload: bytes) -> Method:
    """Return the method in a method frame's payload.

    Raises `FrameError` if the arguments are too short or too long, `SyntaxError_` for a malformed table, and
    `NotImplemented_` for an unknown method (where RabbitMQ closes the socket without an answer).
    """
    if len(payload) < _IDS.size:
        raise FrameError(f"type {frames.METHOD}, all octets = {_octets(payload)}: unknown_frame", method=None)
    plan = _PLANS.get(int.from_bytes(payload[:4], "big"))
    if plan is None:
        class_id, method_id = _IDS.unpack_from(payload)
        raise NotImplemented_(f"unknown method {method_id} of class {class_id}", method=(class_id, method_id))
    method = plan.kind.__new__(plan.kind)
    try:
        stop = _fill(method, plan.steps, payload)
    except IndexError:
        stop = -1
    except ConnectionException as error:
        error.method = ids(method)
        raise
    if stop != len(payload):
        raise FrameError(f"cannot decode {_octets(payload[4:])}", method=ids(method))
    return method


def _fill(method: Method, steps: tuple[_Step, ...], payload: bytes) -> int:
    """Set the attributes from the payload, and return the position after the last one."""
    position = _IDS.size
    for names, codec in steps:
        if codec is not None:
            value, position = codec[0](payload, position)
            setattr(method, names[0], value)
        else:
            octet = payload[position]
            position += 1
            for bit, attribute in enumerate(names):
                setattr(method, attribute, octet >> bit & 1 == 1)
    return position


def _octets(data: bytes) -> str:
    """Return octets as RabbitMQ prints them, cut to what a reply text can hold."""
    return f"<<{','.join(map(str, data[:128]))}>>"


def encode(method: Method) -> bytes:
    """Return the payload of a method frame; raise `ValueError` for values that arguments can't hold."""
    parts = [_IDS.pack(*ids(method))]
    for names, codec in _PLANS[method.index].steps:
        if codec is not None:
            parts.append(_encoded(method, names[0], codec[1]))
        else:
            bits = (bool(getattr(method, attribute)) << bit for bit, attribute in enumerate(names))
            parts.append(bytes((sum(bits),)))
    return b"".join(parts)


def _encoded(method: Method, attribute: str, write: _Writer) -> bytes:
    try:
        return write(getattr(method, attribute))
    except (struct.error, AttributeError, TypeError) as error:
        raise ValueError(f"{name(method)} can't be encoded: {attribute}: {error}") from error


def frame(channel: int, method: Method) -> bytes:
    """Return the whole frame: type, channel, size, payload, end octet."""
    return frames.frame(frames.METHOD, channel, encode(method))
