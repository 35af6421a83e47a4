"""Codecs: values to bodies and back, what annotations ask for, and bodies that are not what they say."""

import contextlib
import enum
import gzip
import inspect
import json
import math
import uuid
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, NamedTuple, TypedDict

import kombu.serialization
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.client import codecs
from leveret.client.codecs import Codecs, Encoded
from leveret.client.errors import ConversionError

JSON, MSGPACK = "application/json", "application/msgpack"
DEFAULT = Codecs()
encode, decode, convert = DEFAULT.encode, DEFAULT.decode, DEFAULT.convert


@dataclass
class Line:
    article: str
    count: int = 1


@dataclass
class Order:
    id: int
    lines: list[Line] = field(default_factory=list)


class OrderDict(TypedDict):
    id: int


class Point(NamedTuple):
    x: int
    y: int


class Colour(enum.Enum):
    RED = "red"


class Payment(pydantic.BaseModel):
    amount: Decimal
    at: datetime | None = None


@dataclass
class Paid:
    order: int
    payment: Payment


class Weighed(pydantic.BaseModel):
    weight: float


class Unheard:
    """Nothing that any codec knows."""


# --- values to bodies ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (b"\0\1", Encoded(b"\0\1", "application/octet-stream")),
        (bytearray(b"ab"), Encoded(b"ab", "application/octet-stream")),
        (memoryview(b"abc")[1:], Encoded(b"bc", "application/octet-stream")),
        ("grün", Encoded("grün".encode(), "text/plain", "utf-8")),
        ({"id": 7}, Encoded(b'{"id":7}', JSON)),
        ([1, 2.5, None, True], Encoded(b"[1,2.5,null,true]", JSON)),
        (7, Encoded(b"7", JSON)),
        (None, Encoded(b"null", JSON)),
        (Order(7, [Line("a")]), Encoded(b'{"id":7,"lines":[{"article":"a","count":1}]}', JSON)),
        (Payment(amount=Decimal("1.50")), Encoded(b'{"amount":"1.50","at":null}', JSON)),
        ([Payment(amount=Decimal(1))], Encoded(b'[{"amount":"1","at":null}]', JSON)),
        (Colour.RED, Encoded(b'"red"', JSON)),
    ],
)
def test_a_value_without_content_type_gets_the_one_that_fits_it(value, encoded):
    assert encode(value) == encoded


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("wrap", "place"),
    [
        (lambda number: number, "the top level"),
        (lambda number: {"id": None, "price": number}, "price"),
        (lambda number: {"lines": [{"price": 1.5}, {"price": number}]}, "lines[1].price"),
        (lambda number: (None, [1.0, number]), "[1][1]"),
        (lambda number: Line("a", number), "count"),
        (lambda number: [Weighed(weight=number)], "[0].weight"),
    ],
)
def test_a_number_that_json_does_not_have_is_refused_with_its_place(number, wrap, place):
    with pytest.raises(ConversionError) as caught:
        encode(wrap(number))
    assert f"{number} (at {place})" in str(caught.value)
    assert encode(wrap(1.5)).content_type == JSON


def test_msgpack_has_every_number():
    assert decode(encode([math.inf], MSGPACK).body, MSGPACK) == [math.inf]


def test_what_is_published_is_not_changed_by_changing_the_buffer_afterwards():
    buffer = bytearray(b"before")
    encoded = encode(buffer)
    buffer[:] = b"after!"
    assert encoded.body == b"before"


@pytest.mark.parametrize("content_type", [MSGPACK, "application/x-msgpack", "application/vnd.msgpack"])
def test_msgpack_is_written_and_read_under_each_of_its_names(content_type):
    encoded = encode({"id": 7, "raw": b"\xff"}, content_type)
    assert encoded.content_type == content_type
    assert encoded.body == msgspec.msgpack.encode({"id": 7, "raw": b"\xff"})
    assert decode(encoded.body, content_type) == {"id": 7, "raw": b"\xff"}


def test_a_model_at_any_depth_becomes_msgpack():
    paid = Paid(7, Payment(amount=Decimal("1.5"), at=datetime(2024, 5, 6, tzinfo=UTC)))
    assert convert(encode([paid], MSGPACK).body, MSGPACK, list[Paid]) == [paid]


def test_bytes_are_a_body_already_whatever_the_properties_say():
    zipped = gzip.compress(b"{}", mtime=0)
    assert encode(b"{}", JSON) == (b"{}", JSON, None)
    assert encode(zipped, JSON, content_encoding="gzip") == (zipped, JSON, "gzip")


def test_a_string_as_json_is_a_json_string():
    assert encode("a", JSON).body == b'"a"'


def test_text_is_written_in_the_charset_of_its_content_type():
    assert encode("grün", "text/plain; charset=iso-8859-1") == (
        b"gr\xfcn",
        "text/plain; charset=iso-8859-1",
        None,
    )
    assert encode("<a/>", "application/xml").body == b"<a/>"


@pytest.mark.parametrize("content_encoding", ["gzip", "deflate"])
@pytest.mark.parametrize("value", ["text" * 100, {"id": [1] * 100}])
def test_a_value_can_be_sent_compressed(value, content_encoding):
    encoded = encode(value, content_encoding=content_encoding)
    assert encoded.content_encoding == content_encoding
    assert len(encoded.body) < 100
    assert decode(*encoded) == value


@pytest.mark.parametrize(
    ("value", "content_type"),
    [
        (Unheard(), None),
        ({"a": Unheard()}, MSGPACK),
        (2**64, MSGPACK),
        ({"id": 7}, "text/plain"),
        ({"id": 7}, "application/xml"),
        ("grün", "text/plain; charset=us-ascii"),
        ("a", "text/plain; charset=unheard-of"),
        ("\ud800", None),
    ],
)
def test_a_value_that_can_not_be_written_is_a_conversion_error(value, content_type):
    with pytest.raises(ConversionError):
        encode(value, content_type)


# --- bodies to values ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "content_type", "content_encoding", "value"),
    [
        (b"{}", None, None, b"{}"),
        (b"{}", "", "", b"{}"),
        (b"{}", "application/octet-stream", None, b"{}"),
        (b"{}", "application/xml", None, b"{}"),
        (b'{"a":1}', JSON, None, {"a": 1}),
        (b'{"a":1}', "Application/JSON ; charset=UTF-8", None, {"a": 1}),
        (b'{"a":1}', "application/vnd.order.v1+json", None, {"a": 1}),
        (b'{"a":1}', JSON, "UTF-8", {"a": 1}),
        ('{"a":"ü"}'.encode("utf-16"), 'application/json; charset="utf-16"', None, {"a": "ü"}),
        (b'"gr\xfcn"', JSON, "iso-8859-1", "grün"),
        (b"gr\xfcn", "text/plain; charset=latin1", None, "grün"),
        (b"gr\xfcn", "text/plain", "ISO_8859-1", "grün"),
        ("grün".encode(), "text/html", None, "grün"),
        (b"\xff", "application/data", "binary", b"\xff"),
        (gzip.compress(b"a", mtime=0), "text/plain", "gzip:UTF-8", "a"),
        (gzip.compress(b"a", mtime=0), "text/plain", "utf-8, GZIP", "a"),
        (gzip.compress(b"a", mtime=0) + gzip.compress(b"b", mtime=0), "text/plain", "x-gzip", "ab"),
        (gzip.compress(b"a", mtime=0), None, "gzip", b"a"),
        (zlib.compress(b"a"), "text/plain", "deflate", "a"),
        (zlib.compress(b"a", wbits=-15), "text/plain", "deflate", "a"),
    ],
)
def test_a_body_is_read_as_its_properties_say(body, content_type, content_encoding, value):
    assert decode(body, content_type, content_encoding) == value


@pytest.mark.parametrize(
    ("body", "content_type", "content_encoding"),
    [
        (b"", JSON, None),
        (b"{", JSON, None),
        (b'"\xff"', JSON, None),
        (b"NaN", JSON, None),
        (b"[" * 100_000, JSON, None),
        (b"\x91" * 100_000, MSGPACK, None),
        (b"\xc1", MSGPACK, None),
        (b"", MSGPACK, None),
        (b"\xff", "text/plain", None),
        (b"a", "text/plain; charset=unicode_escape", None),
        (b"a", "text/plain", "zlib_codec"),
        (b"a", JSON, "br"),
        (b"a", JSON, "gzip, gzip"),
        (b"a", JSON, "gzip"),
        (gzip.compress(b"1", mtime=0)[:-1], JSON, "gzip"),
        (gzip.compress(b"1", mtime=0)[:-8] + bytes(8), JSON, "gzip"),
        (b"", JSON, "deflate"),
        (zlib.compress(b"1")[:-1], JSON, "deflate"),
        (b"\x78\x9cno", JSON, "deflate"),
    ],
)
def test_a_body_that_is_not_what_it_says_is_a_conversion_error(body, content_type, content_encoding):
    with pytest.raises(ConversionError):
        decode(body, content_type, content_encoding)


def raw_deflate(data: bytes) -> bytes:
    return zlib.compress(data, wbits=-zlib.MAX_WBITS)


@pytest.mark.parametrize(
    ("content_encoding", "compress"),
    [("gzip", gzip.compress), ("deflate", zlib.compress), ("deflate", raw_deflate)],
)
def test_a_compressed_body_may_be_as_large_as_the_limit_and_no_larger(content_encoding, compress):
    small = Codecs(max_decompressed_bytes=1_000)
    assert small.decode(compress(bytes(1_000)), None, content_encoding) == bytes(1_000)
    for size_bytes in (1_001, 10_000_000):
        with pytest.raises(ConversionError, match="more than 1000 when decompressed") as caught:
            small.decode(compress(bytes(size_bytes)), None, content_encoding)
        assert "max_decompressed_bytes" in caught.value.hint


def test_no_charset_from_the_network_is_looked_up_that_is_not_known():
    with pytest.raises(ConversionError, match="'punycode' is not known"):
        decode(b"a", "text/plain; charset=punycode")
    for charset in codecs._CHARSETS:
        assert decode("a".encode(charset), f"text/plain; charset={charset}") == "a"


@given(
    body=st.one_of(
        st.binary(), st.binary().map(gzip.compress), st.binary().map(zlib.compress), st.text().map(str.encode)
    ),
    content_type=st.one_of(
        st.none(), st.text(), st.sampled_from([JSON, MSGPACK, "text/plain; charset=utf-16", "a/b+json"])
    ),
    content_encoding=st.one_of(st.none(), st.text(), st.sampled_from(["gzip", "deflate", "utf-8", "gzip:x"])),
    annotation=st.sampled_from([Any, str, int, list[int], Order, OrderDict, Payment, Paid, bytes | None]),
)
def test_whatever_comes_is_a_value_or_a_conversion_error(body, content_type, content_encoding, annotation):
    converter = Codecs(max_decompressed_bytes=100).converter(annotation)
    with contextlib.suppress(ConversionError):
        converter(body, content_type, content_encoding)


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(value=JSON_VALUES, content_type=st.sampled_from([JSON, MSGPACK]))
def test_what_is_written_is_read_again(value, content_type):
    assert decode(*encode(value, content_type)) == value


# --- what an annotation asks for -------------------------------------------------------------------------

AN_ID = uuid.UUID(int=7)
CONVERSIONS: list[tuple[Any, object, bytes]] = [
    (Order, Order(7, [Line("a", 2)]), b'{"id":7,"lines":[{"article":"a","count":2}]}'),
    (OrderDict, {"id": 7}, b'{"id":7}'),
    (list[Order], [Order(7)], b'[{"id":7}]'),
    (dict[str, int], {"a": 1}, b'{"a":1}'),
    (Point, Point(1, 2), b"[1,2]"),
    (int, 7, b"7"),
    (float, 7.0, b"7"),
    (int | None, None, b"null"),
    (Colour, Colour.RED, b'"red"'),
    (uuid.UUID, AN_ID, f'"{AN_ID}"'.encode()),
    (Annotated[int, msgspec.Meta(gt=0)], 7, b"7"),
    (Payment, Payment(amount=Decimal("1.5")), b'{"amount":"1.5"}'),
    (list[Payment], [Payment(amount=Decimal("1.5"))], b'[{"amount":"1.5"}]'),
    (Payment | None, None, b"null"),
    (Paid, Paid(7, Payment(amount=Decimal(2))), b'{"order":7,"payment":{"amount":2}}'),
    (Any, {"id": 7}, b'{"id":7}'),
]


@pytest.mark.parametrize(("annotation", "value", "body"), CONVERSIONS)
@pytest.mark.parametrize("content_type", [JSON, "application/x+json", MSGPACK, "application/x-msgpack"])
def test_a_body_becomes_what_the_annotation_says(annotation, value, body, content_type):
    if "msgpack" in content_type:
        body = msgspec.msgpack.encode(json.loads(body))
    found = convert(body, content_type, annotation)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(("annotation", "value", "body"), CONVERSIONS[:-1])
def test_a_body_without_content_type_is_taken_for_json_if_something_is_asked_for(annotation, value, body):
    assert convert(body, None, annotation) == value
    assert convert(gzip.compress(body), None, annotation, "gzip") == value


@pytest.mark.parametrize(
    ("body", "content_type", "annotation"),
    [
        (b'{"id":"7"}', JSON, Order),
        (b'{"id":7,"lines":[{}]}', JSON, Order),
        (b"{}", JSON, OrderDict),
        (b"7", JSON, list[int]),
        (b'{"amount":"much"}', JSON, Payment),
        (b'[{"amount":"much"}]', JSON, list[Payment]),
        (msgspec.msgpack.encode({"amount": "much"}), MSGPACK, Payment),
        (b"{}", "application/octet-stream", Order),
        (b"{}", "text/plain", Order),
        (b"{}", "application/octet-stream", Payment),
        (b"seven", "text/plain", int),
        (b"\xff", None, str),
        (b"{}", JSON, Unheard),
    ],
)
def test_a_body_that_does_not_fit_its_annotation_is_a_conversion_error(body, content_type, annotation):
    with pytest.raises(ConversionError) as caught:
        convert(body, content_type, annotation)
    assert not caught.value.retryable
    assert caught.value.hint


def test_the_error_says_what_was_wanted_and_where_it_went_wrong():
    with pytest.raises(ConversionError, match=r"no Order: Expected `int`, got `str` - at `\$.id`"):
        convert(b'{"id":"7"}', JSON, Order)


def test_an_error_stays_short_however_much_is_wrong():
    body = json.dumps([{"amount": "x"}] * 1_000).encode()
    with pytest.raises(ConversionError) as caught:
        convert(body, JSON, list[Payment])
    assert len(str(caught.value)) < 2_000


@pytest.mark.parametrize("annotation", [bytes, bytearray, memoryview])
def test_bytes_are_the_body_as_it_came(annotation):
    body = gzip.compress(b"{}", mtime=0)
    found = convert(body, JSON, annotation, "gzip")
    assert type(found) is annotation
    assert found == body


def test_str_is_the_text_of_the_body_whatever_its_content_type():
    assert convert(b'{"a":1}', JSON, str) == '{"a":1}'
    assert convert(b"gr\xfcn", None, str, "latin1") == "grün"
    assert convert(gzip.compress(b"a", mtime=0), "application/octet-stream", str, "gzip") == "a"


@pytest.mark.parametrize(
    ("annotation", "text", "value"),
    [
        (int, "7", 7),
        (str | None, "seven", "seven"),
        (uuid.UUID, str(AN_ID), AN_ID),
        (Colour, "red", Colour.RED),
        (datetime, "2024-05-06T07:08:09Z", datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)),
    ],
)
def test_a_text_becomes_what_a_single_text_can(annotation, text, value):
    assert convert(text.encode(), "text/plain", annotation) == value


def test_an_annotation_of_which_nothing_can_be_made_is_noticed_before_any_message_comes():
    with pytest.raises(TypeError, match="no body can be converted to"):
        Codecs().converter(Payment | int)


def test_a_missing_annotation_means_whatever_the_content_type_says():
    converter = Codecs().converter(inspect.Parameter.empty)
    assert converter(b"[1]", JSON, None) == [1]
    assert converter(b"[1]", None, None) == b"[1]"


# --- own codecs ------------------------------------------------------------------------------------------


def csv_codecs() -> Codecs:
    own = Codecs()
    own.register(
        "Application/X-CSV", lambda row: ",".join(row).encode(), lambda body: body.decode().split(",")
    )
    return own


def fail(_: object) -> Any:
    raise ZeroDivisionError("mine")


def test_an_own_codec_writes_and_reads_its_content_type():
    own = csv_codecs()
    assert own.encode(["a", "b"], "application/x-csv").body == b"a,b"
    assert own.decode(b"a,b", "application/x-csv; header=absent") == ["a", "b"]
    assert own.convert(b"1,2", "application/x-csv", list[str]) == ["1", "2"]


@pytest.mark.parametrize("content_type", [JSON, MSGPACK, "text/plain", "application/octet-stream"])
def test_an_own_codec_takes_the_place_of_one_that_is_known(content_type):
    own = Codecs()
    own.register(content_type, lambda value: b"mine", lambda body: 7)
    assert own.encode({}, content_type).body == b"mine"
    assert own.decode(b"x", content_type) == 7
    assert own.convert(b"x", content_type, int) == 7


def test_an_object_that_an_own_codec_makes_passes_as_it_is():
    own = Codecs()
    made = Unheard()
    own.register("application/x-object", fail, lambda body: made)
    assert own.convert(b"", "application/x-object", Unheard) is made


@pytest.mark.parametrize("call", [lambda own: own.encode({}, "a/b"), lambda own: own.decode(b"", "a/b")])
def test_whatever_an_own_codec_raises_is_a_conversion_error(call: Callable[[Codecs], Any]):
    own = Codecs()
    own.register("a/b", fail, fail)
    with pytest.raises(ConversionError, match="mine") as caught:
        call(own)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_codecs_do_not_share_what_was_registered():
    assert csv_codecs().decode(b"a", "application/x-csv") == ["a"]
    assert Codecs().decode(b"a", "application/x-csv") == b"a"
    assert decode(b"a", "application/x-csv") == b"a"


# --- with others -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["grün", {"id": 7, "name": "grün"}])
def test_kombu_reads_what_is_written_here(value):
    assert kombu.serialization.loads(*encode(value), accept={JSON, "text/plain"}) == value


@pytest.mark.parametrize(("value", "serializer"), [("grün", None), (b"\xff", None), ({"id": 7}, "json")])
def test_what_kombu_writes_is_read_here(value, serializer):
    content_type, content_encoding, body = kombu.serialization.dumps(value, serializer)
    body = body.encode() if isinstance(body, str) else body
    assert decode(body, content_type, content_encoding) == value
