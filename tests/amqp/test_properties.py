"""Content headers: every combination of flags, pamqp's own bytes, headers rewritten, payloads refused."""

from itertools import combinations

import pytest
from pamqp import commands
from pamqp.header import ContentHeader

from leveret.amqp import properties
from leveret.amqp.errors import SyntaxError_
from leveret.amqp.properties import Peek, body_size, decode, encode, headers_of, peek, with_headers
from leveret.amqp.tables import Timestamp, Value, encode_table

EVERY: dict[str, Value] = {
    "content_type": "text/plain",
    "content_encoding": "utf-8",
    "headers": {"a": 1, "nested": {"b": [None]}},
    "delivery_mode": 2,
    "priority": 255,
    "correlation_id": "ü",
    "reply_to": "amq.rabbitmq.reply-to",
    "expiration": "60000",
    "message_id": "\udcff",
    "timestamp": Timestamp(2**64 - 1),
    "type": "t" * 255,
    "user_id": "guest",
    "app_id": "",
    "cluster_id": "c",
}
# pamqp makes a datetime of a timestamp, wants valid UTF-8, and leaves empty strings out.
PAMQP_DOES_OTHERWISE = {"timestamp", "message_id", "app_id"}
NOTHING = Peek(delivery_mode=None, priority=0, expiration=None, user_id=None, headers=None)
HEAD = b"\0\x3c\0\0" + bytes(8)


def test_all_properties_come_back_as_they_were() -> None:
    header = encode(EVERY, 5)
    assert header[12:14] == b"\xff\xfc"
    assert decode(header) == EVERY
    assert list(decode(header)) == list(EVERY)
    assert isinstance(decode(header)["timestamp"], Timestamp)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 13])
def test_any_properties_together_come_back_as_they_were(size: int) -> None:
    for names in combinations(EVERY, size):
        chosen = {name: EVERY[name] for name in names}
        header = encode(chosen, 5)
        assert decode(header) == chosen
        assert peek(header).persistent == ("delivery_mode" in names)
        assert headers_of(header) == chosen.get("headers", {})


@pytest.mark.parametrize("name", EVERY)
def test_a_property_that_is_none_is_left_out(name: str) -> None:
    assert decode(encode({**EVERY, name: None}, 5)).keys() == EVERY.keys() - {name}


def test_pamqp_reads_and_writes_the_same_bytes() -> None:
    common = {name: value for name, value in EVERY.items() if name not in PAMQP_DOES_OTHERWISE}
    headers: dict[str, Value] = {"a": "b", "c": [True, None]}
    header = encode({**common, "headers": headers}, 5)
    ours = {"message_type" if name == "type" else name: value for name, value in decode(header).items()}
    pamqps = ContentHeader(0, 5, commands.Basic.Properties())
    for name, value in ours.items():
        setattr(pamqps.properties, name, value)
    assert pamqps.marshal() == header
    theirs = ContentHeader()
    theirs.unmarshal(header)
    assert theirs.body_size == 5
    assert {name: getattr(theirs.properties, name) for name in ours} == ours


def test_a_peek_tells_what_the_broker_acts_on() -> None:
    header = encode(EVERY, 5)
    seen = peek(header)
    assert seen[:4] == (2, 255, b"60000", b"guest")
    assert seen.headers is not None
    start, stop = seen.headers
    assert header[start - 4 : stop] == encode_table({"a": 1, "nested": {"b": [None]}})
    assert headers_of(header) == EVERY["headers"]


@pytest.mark.parametrize(
    "name", sorted(EVERY.keys() - {"headers", "delivery_mode", "priority", "expiration", "user_id"})
)
def test_a_peek_passes_over_what_the_broker_does_not_act_on(name: str) -> None:
    assert peek(encode({name: EVERY[name]}, 5)) == NOTHING
    assert peek(encode({"delivery_mode": 2, name: EVERY[name]}, 5)) == NOTHING._replace(delivery_mode=2)


def test_only_delivery_mode_2_is_persistent() -> None:
    for mode in range(256):
        assert peek(encode({"delivery_mode": mode}, 5)).persistent == (mode == 2)
        assert peek(encode({"delivery_mode": mode, "type": ""}, 5)).persistent == (mode == 2)
    assert peek(encode({}, 5)) == NOTHING


def test_the_headers_table_is_not_looked_into_until_somebody_asks() -> None:
    header = HEAD + b"\x20\0" + b"\0\0\0\3\1aZ"
    assert peek(header).headers == (18, 21)
    for ask in (headers_of, decode, lambda payload: with_headers(payload, {"b": 1})):
        with pytest.raises(SyntaxError_, match="unknown type 90"):
            ask(header)


def test_the_two_lowest_flags_are_ignored_as_by_rabbitmq() -> None:
    for low in range(4):
        assert decode(HEAD + bytes((0x10, low, 2))) == {"delivery_mode": 2}
        with pytest.raises(SyntaxError_):
            peek(HEAD + bytes((0x10, low, 0, 0, 2)))  # no second word of flags is read


def test_every_truncation_and_every_trailing_byte_is_refused() -> None:
    everything = encode(EVERY, 5)
    each = [encode({name: value}, 5) for name, value in EVERY.items()]
    for header in (everything, *each, encode({}, 0)):
        for read in (peek, decode, headers_of):
            for size in range(len(header)):
                with pytest.raises(SyntaxError_, match="content header"):
                    read(header[:size])
            with pytest.raises(SyntaxError_, match="content header"):
                read(header + b"\0")


def test_the_body_size_has_64_bits() -> None:
    assert body_size(encode(EVERY, 2**64 - 1)) == 2**64 - 1
    assert body_size(encode({}, 0)) == 0
    with pytest.raises(SyntaxError_):
        body_size(encode({}, 0)[:-1])


@pytest.mark.parametrize(
    "wrong",
    [
        {"no_such_property": 1},
        {"type": "t" * 256},
        {"type": b"bytes"},
        {"priority": 256},
        {"priority": "1"},
        {"timestamp": -1},
        {"timestamp": None, "headers": [1]},
        {"headers": {"a": 2**64}},
    ],
)
def test_properties_that_do_not_fit_are_value_errors(wrong: dict[str, Value]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the messages differ, the type is the contract
        encode(wrong, 5)


def test_new_headers_go_to_the_end_and_the_others_keep_their_bytes() -> None:
    odd = b"\1ab\xff" + b"\2\xff\xfeV" + b"\1zI\0\0\0\1"  # types that this package reads but does not write
    header = HEAD + b"\x30\0" + len(odd).to_bytes(4, "big") + odd + b"\2"
    changed = with_headers(header, {"new": None})
    assert changed == HEAD + b"\x30\0" + (len(odd) + 5).to_bytes(4, "big") + odd + b"\3newV" + b"\2"
    assert with_headers(header, {}) == header


def test_changed_and_removed_headers_lose_their_old_entries_all_of_them() -> None:
    odd = b"\1aB\1" + b"\1bB\2" + b"\1aB\3" + b"\1cB\4"
    header = HEAD + b"\x20\0" + len(odd).to_bytes(4, "big") + odd
    changed = with_headers(header, {"a": "new"}, remove=["b", "unknown"])
    assert headers_of(changed) == {"c": 4, "a": "new"}
    assert changed.count(b"\1a") == 1
    assert decode(with_headers(header, {}, remove={"a", "b", "c"})) == {"headers": {}}


def test_headers_come_into_being_when_there_is_something_to_set() -> None:
    bare = encode({"content_type": "a/b", "delivery_mode": 2}, 7)
    assert with_headers(bare, {}, remove=["a"]) == bare
    changed = with_headers(bare, {"x-death": [{"count": 1}]})
    assert decode(changed) == {
        "content_type": "a/b",
        "headers": {"x-death": [{"count": 1}]},
        "delivery_mode": 2,
    }
    assert body_size(changed) == 7


def test_the_expiration_can_be_dropped_with_its_flag() -> None:
    header = encode(EVERY, 5)
    rest = {name: value for name, value in EVERY.items() if name != "expiration"}
    assert with_headers(header, {}, drop_expiration=True) == encode(rest, 5)
    assert with_headers(encode(rest, 5), {}, drop_expiration=True) == encode(rest, 5)


def test_a_rewritten_payload_has_no_flag_without_a_property() -> None:
    assert with_headers(HEAD + b"\x10\3\2", {"a": True}) == HEAD + b"\x30\0" + b"\0\0\0\4\1at\1" + b"\2"


def test_the_flags_are_those_of_the_specification() -> None:
    flags = [getattr(properties, name.upper()) for name in EVERY]
    assert flags == [0x8000 >> place for place in range(14)]
    assert flags == [commands.Basic.Properties.flags[name] for name in commands.Basic.Properties.attributes()]


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"content_type": "text/plain"},
        {"content_encoding": "gzip"},
        {"content_type": "a", "content_encoding": "b", "headers": {"x": 1}, "message_id": "m"},
        {"message_id": "m"},
    ],
)
def test_content_type_and_encoding_are_read_without_the_rest(said):
    header = properties.encode(said, 3)
    assert properties.content_of(header) == (said.get("content_type"), said.get("content_encoding"))


@pytest.mark.parametrize("kept", [0, 12, 13, 14, 17])
def test_content_type_of_a_header_that_is_cut_off_is_a_syntax_error(kept):
    header = properties.encode({"content_type": "text/plain"}, 3)[:kept]
    with pytest.raises(SyntaxError_):
        properties.content_of(header)
