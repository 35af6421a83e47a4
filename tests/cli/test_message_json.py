"""Messages as lines of JSON: there and back without loss, and errors that say what is wrong."""

import json
from decimal import Decimal
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from leveret.amqp import properties
from leveret.amqp.tables import Timestamp
from leveret.cli.message_json import ENVELOPE_START, BadEnvelope, of_delivery, of_message, to_message
from leveret.client import Delivery, Message
from leveret.client.acks import Ledger
from leveret.client.codecs import Codecs
from leveret.client.delivery import Source

TEXTS = ("content_type", "content_encoding", "correlation_id", "reply_to", "message_id", "type", "app_id")

short = st.text(max_size=20).map(lambda text: text.encode("utf-8", "replace").decode())
# text of other clients that is no UTF-8 is decoded with surrogates
odd = st.binary(max_size=10).map(lambda data: data.decode("utf-8", "surrogateescape"))
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**64 - 1).map(Timestamp),
    st.floats(allow_nan=False, allow_infinity=False),
    st.decimals(0, 9999, places=2),
    st.binary(max_size=20),
    short,
    odd,
)
keys = st.one_of(short, st.sampled_from(["$timestamp", "$base64", "$table", "$", "x-region"]))
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3)
)
json_bodies = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
).map(lambda value: json.dumps(value).encode())
bodies = st.one_of(
    st.binary(max_size=50),
    short.map(str.encode),
    json_bodies,
    st.sampled_from([b'{"a":1,"a":2}', b'{"a": 1}', b'"\\ud800"', b"NaN", b"1E400", b'"x"', b"[" * 5000]),
)


def delivered(body: bytes, said: dict[str, Any], key: str = "orders", exchange: str = "") -> Delivery:
    return Delivery(
        Source(cast(Ledger, None), "orders", Codecs()),
        1,
        exchange=exchange,
        routing_key=key,
        redelivered=False,
        header=properties.encode(said, len(body)),
        body=body,
    )


@st.composite
def messages(draw: st.DrawFn) -> tuple[bytes, dict[str, Any], str, str]:
    said: dict[str, Any] = draw(
        st.fixed_dictionaries(
            {},
            optional={
                **dict.fromkeys(TEXTS, st.one_of(short, odd)),
                "priority": st.integers(0, 255),
                "timestamp": st.integers(0, 2**64 - 1),
                "headers": st.dictionaries(keys, values, min_size=1, max_size=4),
            },
        )
    )
    if draw(st.booleans()):
        said["content_type"] = "application/json"
    return draw(bodies), said, draw(short), draw(odd)


@given(messages())
@example((b'"text"', {"content_type": "application/json"}, "", ""))
@example((b"", {"headers": {"t": {"$table": {"$timestamp": 1}}}}, "", ""))
@example((b"x", {"headers": {"d": Decimal("1.50"), "n": None}}, "", ""))
def test_a_message_comes_back_from_its_line_as_it_was(message: tuple[bytes, dict[str, Any], str, str]):
    body, said, key, exchange = message
    line = of_delivery(delivered(body, said, key, exchange))
    found = to_message(line)

    assert b"\n" not in line
    assert line.startswith(ENVELOPE_START)
    assert (found.body, found.routing_key, found.exchange) == (body, key, exchange)
    again = {name: value for name, value in found.properties.items() if name != "persistent"}
    assert again.pop("headers", {}) == said.get("headers", {})
    assert _kinds(found.properties.get("headers")) == _kinds(said.get("headers", {}))
    assert again == {name: value for name, value in said.items() if name != "headers"}


def _kinds(value: Any) -> Any:
    """Types, too, must be the same: a timestamp is not a number, true is not 1."""
    if isinstance(value, dict):
        return {key: _kinds(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_kinds(item) for item in value]
    return type(value)


@given(messages())
def test_a_message_that_failed_is_the_same_when_it_is_read_from_its_line(
    message: tuple[bytes, dict[str, Any], str, str],
):
    body, said, key, exchange = message
    sent = Message(body, key, exchange, properties=cast(Any, said))
    found = to_message(of_message(sent, status="nacked", reason="a queue is full"))

    assert (found.body, found.routing_key, found.exchange) == (body, key, exchange)
    assert {**found.properties, "headers": found.properties["headers"]} == {"headers": {}, **said}


def test_expiration_and_delivery_mode_are_taken_along():
    line = of_delivery(delivered(b"x", {"expiration": "60000", "delivery_mode": 2}))
    found = to_message(line).properties
    assert (found["expiration_ms"], found["persistent"]) == (60_000, True)
    assert to_message(of_delivery(delivered(b"x", {}))).properties["persistent"] is False


def test_a_body_of_json_is_readable_json():
    line = of_delivery(delivered(b'{"id":1}', {"content_type": "application/json"}))
    assert json.loads(line)["body"] == {"id": 1}


def test_what_belonged_to_the_publish_before_is_written_and_not_read():
    headers = {"x-producer": "p", "x-seq": 7, "x-republished": True, "x-delivery-count": 2, "region": "eu"}
    line = of_delivery(delivered(b"x", {"headers": headers}))
    assert json.loads(line)["headers"] == headers
    assert to_message(line).properties["headers"] == {"region": "eu"}


def test_headers_that_are_nested_too_deep_are_an_error_and_no_crash():
    nested: Any = "end"
    for _ in range(5000):
        nested = [nested]
    with pytest.raises(BadEnvelope, match="nested too deep"):
        of_delivery(delivered(b"x", {"headers": {"deep": nested}}))


def test_properties_that_can_not_be_read_are_an_error():
    broken = delivered(b"x", {})
    broken.header = b"\0" * 5
    with pytest.raises(BadEnvelope, match="properties can't be read"):
        of_delivery(broken)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[]", "an envelope must be a JSON object"),
        (b"{}", "the envelope has no body"),
        (b'{"body": 1, "rooting_key": ""}', "unknown field in the envelope: rooting_key"),
        (b'{"body": 1, "message_id": 7}', "message_id must be text, not 7"),
        (b'{"body": 1, "priority": "7"}', 'priority must be a whole number, not "7"'),
        (b'{"body": 1, "priority": true}', "priority must be a whole number, not true"),
        (b'{"body": 1, "persistent": 1}', "persistent must be true or false"),
        (b'{"body": 1, "headers": []}', "headers must be an object"),
        (b'{"body": 1, "exchange": null}', "exchange must be text"),
        (b'{"body": 1, "headers": {"a": {"$date": 1}}}', "unknown type \\$date"),
        (b'{"body": 1, "headers": {"a": {"$timestamp": "x"}}}', "seconds since 1970"),
        (b'{"body": 1, "headers": {"a": {"$decimal": "x"}}}', "a number as text"),
        (b'{"body": 1, "headers": {"a": {"$base64": "="}}}', "not base64"),
        (b'{"body": 1, "headers": {"a": {"$table": 1}}}', "must be an object"),
        (b'{"body": 1, "body_encoding": "text"}', "must be text"),
        (b'{"body": "%%", "body_encoding": "base64"}', "not base64"),
        (b'{"body": "x", "body_encoding": "hex"}', "text, json or base64"),
        (b'{"body": "\\ud800"}', "not valid Unicode"),
        (b'{"body": NaN}', "JSON has no NaN"),
        (b'{"body": [1e400]}', "can't be written as JSON"),
        (b'{"body": ' + b"[" * 100_000, "not JSON"),
    ],
)
def test_a_line_that_is_no_message_is_an_error_that_says_why(line: bytes, why: str):
    with pytest.raises(BadEnvelope, match=why):
        to_message(line)
