"""The codec against any bytes: it answers or refuses by the book, and what it accepts it can write again.

Random bytes seldom get past the first length, so most of the bytes here are valid ones that were damaged.
"""

import struct
from collections.abc import Callable
from decimal import Decimal

from hypothesis import example, given
from hypothesis import strategies as st
from pamqp import commands

from leveret.amqp import methods, properties
from leveret.amqp.errors import FrameError, NotImplemented_, SyntaxError_
from leveret.amqp.tables import Timestamp, Value, decode_table, decode_table_body, encode_table, entries

UINT64_MAX = 2**64 - 1
KINDS: list[type[methods.Method]] = list(commands.INDEX_MAPPING.values())


def texts(max_size: int) -> st.SearchStrategy[str]:
    """Any bytes, as the codec shows them."""
    return st.binary(max_size=max_size).map(lambda data: data.decode("utf-8", "surrogateescape"))


def decimal(unscaled: int, places: int) -> Decimal:
    return Decimal((0, tuple(map(int, str(unscaled))), -places))


scalars: st.SearchStrategy[Value] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, UINT64_MAX).map(Timestamp),
    st.floats(allow_nan=False, allow_infinity=False),
    st.builds(decimal, st.integers(0, 2**32 - 1), st.integers(0, 255)),
    texts(20),
    st.binary(max_size=20),
)
values: st.SearchStrategy[Value] = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts(5), inner, max_size=4),
    max_leaves=12,
)
table_values = st.dictionaries(texts(8), values, max_size=5)

FIXED_SIZES = {"t": 1, "b": 1, "B": 1, "s": 2, "u": 2, "I": 4, "i": 4, "l": 8, "L": 8, "f": 4, "d": 8, "D": 5}
FIXED_SIZES |= {"T": 8, "V": 0}


@st.composite
def raw_values(draw: st.DrawFn, depth: int = 0) -> bytes:
    """Type and content of any type, those that are never written too; floats may be refused ones."""
    kind = draw(st.sampled_from("tbBsuIilLfdDTVSxAF" if depth < 3 else "tbBsuIilLfdDTVSx"))
    if kind in FIXED_SIZES:
        size = FIXED_SIZES[kind]
        return kind.encode() + draw(st.binary(min_size=size, max_size=size))
    if kind in "Sx":
        content = draw(st.binary(max_size=8))
    elif kind == "A":
        content = b"".join(draw(st.lists(raw_values(depth + 1), max_size=3)))
    else:
        content = draw(raw_bodies(depth + 1))
    return kind.encode() + struct.pack(">I", len(content)) + content


@st.composite
def raw_bodies(draw: st.DrawFn, depth: int = 0) -> bytes:
    keys = st.binary(max_size=3).map(lambda key: bytes((len(key),)) + key)
    return b"".join(draw(keys) + draw(raw_values(depth)) for _ in range(draw(st.integers(0, 3))))


@st.composite
def raw_tables(draw: st.DrawFn) -> bytes:
    body = draw(raw_bodies())
    return struct.pack(">I", len(body)) + body


def arguments(amqp_type: str) -> st.SearchStrategy[object]:
    return {
        "bit": st.booleans(),
        "octet": st.integers(0, 255),
        "short": st.integers(0, 2**16 - 1),
        "long": st.integers(0, 2**32 - 1),
        "longlong": st.integers(0, UINT64_MAX),
        "shortstr": texts(255),
        "longstr": texts(300),
        "opaque": st.binary(max_size=300),
        "table": table_values,
    }[amqp_type]


@st.composite
def any_method(draw: st.DrawFn) -> methods.Method:
    kind: type[methods.Method] = draw(st.sampled_from(KINDS))
    method = kind.__new__(kind)
    for attribute in kind.attributes():
        opaque = attribute in {"response", "new_secret"}
        setattr(method, attribute, draw(arguments("opaque" if opaque else kind.amqp_type(attribute))))
    return method


property_lists = st.fixed_dictionaries(
    {},
    optional={
        **{
            name: texts(30)
            for name in (
                *("content_type", "content_encoding", "correlation_id", "reply_to", "expiration"),
                *("message_id", "type", "user_id", "app_id", "cluster_id"),
            )
        },
        "headers": table_values,
        "delivery_mode": st.integers(0, 255),
        "priority": st.integers(0, 255),
        "timestamp": st.integers(0, UINT64_MAX).map(Timestamp),
    },
)


@st.composite
def damaged(draw: st.DrawFn, valid: st.SearchStrategy[bytes]) -> bytes:
    """Valid bytes of which some were changed, cut out or put in."""
    data = bytearray(draw(valid))
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(data)))
        stop = start + draw(st.integers(0, 2))
        data[start:stop] = draw(st.sampled_from([b"", b"\0", b"\1", b"\xff", b"F"]) | st.binary(max_size=3))
    return bytes(data)


def survives(read: Callable[[], object], *refusals: type[Exception]) -> bool:
    """Whether the bytes were accepted; any exception but a refusal fails the test."""
    try:
        read()
    except refusals:
        return False
    return True


@given(table_values)
def test_tables_come_back_as_they_were(table: dict[str, Value]) -> None:
    data = encode_table(table)
    assert decode_table(data) == (table, len(data))
    assert [key.decode("utf-8", "surrogateescape") for key, _, _ in entries(data, 4, len(data))] == list(
        table
    )


@given(raw_tables() | damaged(raw_tables()) | st.binary(max_size=60))
@example(b"\0\0\0\x0b\1al" + bytes(8))
def test_any_bytes_are_a_table_or_a_syntax_error(data: bytes) -> None:
    if survives(lambda: decode_table(data), SyntaxError_):
        table, stop = decode_table(data)
        assert stop <= len(data)
        assert decode_table(encode_table(table))[0] == table
        spans = list(entries(data, 4, stop))
        assert [start for _, start, _ in spans] == [4, *(end for _, _, end in spans)][: len(spans)]
        assert {key.decode("utf-8", "surrogateescape") for key, _, _ in spans} == table.keys()


@given(damaged(raw_bodies()), st.integers(0, 8), st.integers(0, 8))
def test_any_part_of_any_bytes_is_a_table_or_a_syntax_error(data: bytes, start: int, beyond: int) -> None:
    stop = len(data) - 4 + beyond
    if start <= stop:
        accepted = survives(lambda: decode_table_body(data, start, stop), SyntaxError_)
        assert survives(lambda: list(entries(data, start, stop)), SyntaxError_) or not accepted


@given(any_method())
def test_methods_come_back_as_they_were(method: methods.Method) -> None:
    decoded = methods.decode(methods.encode(method))
    assert type(decoded) is type(method)
    assert dict(decoded) == dict(method)


@given(damaged(any_method().map(methods.encode)) | st.binary(max_size=30))
def test_any_bytes_are_a_method_or_refused_by_the_book(payload: bytes) -> None:
    if survives(lambda: methods.decode(payload), FrameError, SyntaxError_, NotImplemented_):
        decoded = methods.decode(payload)
        again = methods.decode(methods.encode(decoded))
        assert dict(again) == dict(decoded)


@given(property_lists, st.integers(0, UINT64_MAX))
def test_properties_come_back_as_they_were(chosen: dict[str, Value], body_size: int) -> None:
    header = properties.encode(chosen, body_size)
    assert properties.decode(header) == chosen
    assert properties.body_size(header) == body_size
    seen = properties.peek(header)
    assert seen.persistent == (chosen.get("delivery_mode") == 2)
    assert seen.priority == chosen.get("priority", 0)
    for name, peeked in (("expiration", seen.expiration), ("user_id", seen.user_id)):
        text = chosen.get(name)
        assert peeked == (text.encode("utf-8", "surrogateescape") if isinstance(text, str) else None)


raw_headers = st.builds(
    lambda head, flags, table, rest: head + struct.pack(">H", flags) + table + rest,
    st.binary(min_size=12, max_size=12),
    st.sampled_from([0x2000, 0x3000, 0x2001, 0x2100]),
    raw_tables(),
    st.binary(max_size=4),
)


@given(
    damaged(st.builds(properties.encode, property_lists, st.just(1))) | raw_headers | st.binary(max_size=40),
    st.booleans(),
)
def test_any_bytes_are_a_content_header_or_a_syntax_error(header: bytes, drop: bool) -> None:
    def change() -> bytes:
        return properties.with_headers(header, {"new": 1}, ["a"], drop_expiration=drop)

    peeked = survives(lambda: properties.peek(header), SyntaxError_)
    decoded = survives(lambda: properties.decode(header), SyntaxError_)
    changed = survives(change, SyntaxError_)
    assert survives(lambda: properties.headers_of(header), SyntaxError_) == decoded
    assert peeked or not (decoded or changed)
    assert changed or not decoded
    if decoded:
        before, after = properties.decode(header), properties.decode(change())
        assert after.pop("headers") == {
            **{k: v for k, v in properties.headers_of(header).items() if k not in {"a", "new"}},
            "new": 1,
        }
        gone = {"headers", "expiration"} if drop else {"headers"}
        assert after == {name: value for name, value in before.items() if name not in gone}
