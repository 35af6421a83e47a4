"""The scripted client's own encoding: it must be right where it means to be, or it would judge wrongly."""

import pytest
from pamqp import commands, header

from tests.differential import wire
from tests.differential.channel import ranges
from tests.differential.deviations import replaced

CLIENT_METHODS = (
    "connection_start_ok",
    "connection_tune_ok",
    "connection_open",
    "exchange_declare",
    "exchange_unbind",
    "queue_declare",
    "queue_delete",
    "basic_consume",
    "basic_publish",
    "basic_nack",
    "basic_recover",
    "tx_commit",
    "confirm_select",
)


@pytest.mark.parametrize("name", CLIENT_METHODS)
def test_a_method_is_encoded_as_pamqp_encodes_it(name):
    method = wire.method_class(name)
    payload = wire.method_payload(method, {})
    assert payload[4:] == method().marshal()


def test_a_method_is_read_as_it_was_written():
    values = {"queue": "q", "durable": True, "nowait": True, "arguments": {"a": "b", "n": None, "l": [True]}}
    read = wire.read_method(wire.method_payload(wire.method_class("queue_declare"), values))
    assert read.name == "queue.declare"
    assert {name: read.arguments[name] for name in values} == values
    assert not read.arguments["exclusive"]


def test_properties_are_read_by_pamqp_and_by_us():
    properties = {"content_type": "text/plain", "priority": 3, "message_id": "m", "headers": {"k": "v"}}
    payload = wire.header_payload(5, properties)
    theirs = header.ContentHeader()
    theirs.unmarshal(payload)
    assert theirs.body_size == 5
    assert all(getattr(theirs.properties, name) == value for name, value in properties.items())
    assert wire.read_header(payload) == (5, properties)


@pytest.mark.parametrize("kind", wire.FIELD_NUMBERS)
def test_a_number_keeps_its_type(kind):
    value = wire.Typed(kind, 5)
    assert wire.Reader(wire.table({"k": value})).table() == {"k": value}


def test_frames_are_found_however_they_are_cut():
    raw = wire.frame_bytes(wire.METHOD, 7, b"payload") + wire.frame_bytes(wire.HEARTBEAT, 0, b"")
    buffer, found = bytearray(), []
    for byte in raw:
        buffer.append(byte)
        found += wire.frames_in(buffer)
    assert [(frame.kind, frame.channel, frame.payload) for frame in found] == [
        (1, 7, b"payload"),
        (8, 0, b""),
    ]


def test_every_method_of_a_server_has_a_name():
    assert wire.wire_name(commands.Connection.UpdateSecretOk) == "connection.update-secret-ok"
    assert wire.wire_name(commands.Basic.GetEmpty) == "basic.get-empty"


def test_tags_are_told_as_ranges():
    assert ranges([3, 1, 2, 7]) == "1-3 7"
    assert ranges([]) == "none"


def test_a_deviation_that_does_not_occur_is_noticed():
    assert replaced(["a", "b", "c"], ["b"], ["x", "y"]) == ["a", "x", "y", "c"]
    with pytest.raises(ValueError, match="does not say"):
        replaced(["a", "b"], ["c"], [])
