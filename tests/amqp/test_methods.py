"""Methods: all of pamqp's vocabulary both ways, pamqp's own bytes, RabbitMQ's answers to malformed ones."""

import struct
from typing import Any

import pytest
from pamqp import commands
from pamqp.commands import Basic, Channel, Connection, Exchange, Queue

from leveret.amqp import methods
from leveret.amqp.errors import AmqpError, FrameError, NotImplemented_, SyntaxError_
from leveret.amqp.methods import Method

SAMPLES: dict[str, Any] = {
    "octet": 0xFE,
    "short": 0xFFFE,
    "long": 0xFFFF_FFFE,
    "longlong": 2**64 - 2,
    "shortstr": "ü\udcff" + "x" * 252,
    "longstr": "grüß" * 100,
    "table": {"a": [1, {"b": None}]},
    "bit": True,
}
OPAQUE = {"response", "new_secret"}
ALL = list(commands.INDEX_MAPPING.values())


def sample(kind: type[Method]) -> Method:
    """A method with every argument set, to the ends of their ranges where there are any."""
    method = kind.__new__(kind)
    for attribute in kind.attributes():
        value = b"\0\xff\xfe" if attribute in OPAQUE else SAMPLES[kind.amqp_type(attribute)]
        setattr(method, attribute, value)
    return method


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.name)
def test_every_method_comes_back_as_it_was(kind: type[Method]) -> None:
    method = sample(kind)
    decoded = methods.decode(methods.encode(method))
    assert type(decoded) is kind
    assert dict(decoded) == dict(method)


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.name)
def test_every_truncation_and_every_trailing_byte_is_refused(kind: type[Method]) -> None:
    payload = methods.encode(sample(kind))
    for size in range(len(payload)):
        with pytest.raises(FrameError):
            methods.decode(payload[:size])
    with pytest.raises(FrameError, match="cannot decode <<") as refused:
        methods.decode(payload + b"\0")
    assert refused.value.method == divmod(kind.index, 65536)


PLAIN = [
    Connection.TuneOk(2047, 131072, 60),
    Connection.StartOk({"capabilities": {"basic.nack": True}, "product": "test"}, "PLAIN", "\0u\0p", "en_US"),
    Connection.Close(320, "CONNECTION_FORCED - bye", 0, 0),
    Channel.OpenOk(),
    Channel.Flow(True),
    Exchange.Declare(0, "logs", "topic", durable=True, internal=True, arguments={"alternate-exchange": "x"}),
    Queue.Declare(0, "q", False, True, False, True, False, {"x-queue-mode": "lazy"}),
    Queue.DeclareOk("q", 7, 1),
    Basic.Qos(0, 10, True),
    Basic.Publish(0, "logs", "a.b", True, False),
    Basic.Deliver("tag", 2**40, True, "logs", "a.b"),
    Basic.Nack(2**40, False, True),
]


@pytest.mark.parametrize("method", PLAIN, ids=lambda method: method.name)
def test_the_bytes_are_those_of_pamqp_where_pamqp_can(method: Method) -> None:
    payload = struct.pack(">I", method.index) + method.marshal()
    assert methods.encode(method) == payload
    decoded = methods.decode(payload)
    for attribute, value in method:
        expected = value.encode() if attribute == "response" and isinstance(value, str) else value
        assert getattr(decoded, attribute) == expected


def test_bits_share_an_octet_and_unused_ones_are_ignored() -> None:
    payload = methods.encode(
        Queue.Declare(queue="q", passive=True, exclusive=True, nowait=True, arguments={})
    )
    assert payload == b"\0\x32\0\x0a\0\0\1q\x15\0\0\0\0"
    declared = methods.decode(payload.replace(b"\x15", b"\xe2"))
    assert isinstance(declared, Queue.Declare)
    assert (declared.passive, declared.durable, declared.exclusive) == (False, True, False)
    assert (declared.auto_delete, declared.nowait) == (False, False)


def test_names_that_pamqp_refuses_pass_both_ways() -> None:
    name = "any: name/with {all} of ASCII, " + "ü" * 100
    with pytest.raises(ValueError, match="Invalid value for queue"):
        Queue.DeclareOk(name, 0, 0)
    answer = methods.make(Queue.DeclareOk, queue=name, message_count=1, consumer_count=2)
    decoded = methods.decode(methods.encode(answer))
    assert isinstance(decoded, Queue.DeclareOk)
    assert (decoded.queue, decoded.message_count, decoded.consumer_count) == (name, 1, 2)
    raw = b"\0\x3c\0\x1e\2\xff\xfe\0"
    assert methods.encode(methods.decode(raw)) == raw


def test_a_method_is_made_of_all_its_arguments_and_no_others() -> None:
    assert isinstance(methods.make(Channel.CloseOk), Channel.CloseOk)
    for wrong in ({}, {"consumer_tag": "t", "nowait": False, "more": 1}):
        with pytest.raises(TypeError, match=r"Basic\.Cancel takes consumer_tag, nowait"):
            methods.make(Basic.Cancel, **wrong)
    with pytest.raises(TypeError, match=r"Tx\.Select takes no arguments"):
        methods.make(commands.Tx.Select, nowait=True)


def test_a_frame_has_type_channel_size_and_end() -> None:
    assert methods.frame(258, Basic.Cancel("t", True)) == b"\1\1\2\0\0\0\7\0\x3c\0\x1e\1t\1\xce"


def test_ids_and_names_are_spelt_as_in_the_specification() -> None:
    assert methods.ids(Basic.Publish()) == (60, 40)
    assert methods.name(Channel.Open()) == "channel.open"
    assert methods.name(Basic.ConsumeOk()) == "basic.consume-ok"
    assert methods.name(Basic.GetEmpty()) == "basic.get-empty"
    assert methods.name(Connection.UpdateSecretOk()) == "connection.update-secret-ok"


def failure(payload: bytes) -> AmqpError:
    with pytest.raises(AmqpError) as raised:
        methods.decode(payload)
    return raised.value


@pytest.mark.parametrize("ids", [(60, 999), (61, 10), (0, 0), (0xFFFF, 0xFFFF)])
def test_a_method_nobody_knows_is_not_implemented(ids: tuple[int, int]) -> None:
    error = failure(struct.pack(">HH", *ids) + b"anything")
    assert isinstance(error, NotImplemented_)
    assert error.method == ids
    assert error.sentence == f"unknown method {ids[1]} of class {ids[0]}"


def test_a_payload_without_ids_is_answered_as_by_rabbitmq() -> None:
    assert failure(b"\0\x3c").reply_text == "FRAME_ERROR - type 1, all octets = <<0,60>>: unknown_frame"
    assert failure(b"").reply_text == "FRAME_ERROR - type 1, all octets = <<>>: unknown_frame"


def test_arguments_too_many_or_too_few_are_answered_as_by_rabbitmq() -> None:
    qos = b"\0\x3c\0\x0a\0\0\0\0\0\1\0"
    assert failure(qos + b"xx").reply_text == "FRAME_ERROR - cannot decode <<0,0,0,0,0,1,0,120,120>>"
    assert failure(qos[:-2]).reply_text == "FRAME_ERROR - cannot decode <<0,0,0,0,0>>"
    assert failure(qos[:-2]).method == (60, 10)
    assert len(failure(qos + bytes(100_000)).reply_text) == 255


DECLARE = b"\0\x32\0\x0a\0\0\1q\0"


def test_a_table_longer_than_its_frame_is_a_frame_error() -> None:
    error = failure(DECLARE + b"\0\0\0\4\1aV")
    assert isinstance(error, FrameError)
    assert error.method == (50, 10)


def test_a_malformed_table_is_a_syntax_error_that_names_its_method() -> None:
    error = failure(DECLARE + b"\0\0\0\3\1aZ")
    assert isinstance(error, SyntaxError_)
    assert error.method == (50, 10)


@pytest.mark.parametrize(
    "method",
    [
        Basic.Ack(2**64),
        Basic.Ack(-1),
        Queue.DeclareOk("q" * 256, 0, 0),
        Queue.DeclareOk("q", 2**32, 0),
        Exchange.Declare(arguments={"a": 2**64}),
        Connection.Secure(None),
        Connection.Blocked(5),  # type: ignore[arg-type]
    ],
)
def test_arguments_that_do_not_fit_are_value_errors(method: Method) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the messages differ, the type is the contract
        methods.encode(method)


def test_a_value_error_names_the_method_and_the_argument() -> None:
    with pytest.raises(ValueError, match=r"basic\.ack can't be encoded: delivery_tag: "):
        methods.encode(Basic.Ack(2**64))
