import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from leveret.amqp import methods, properties
from leveret.amqp.tables import Timestamp, Value
from leveret.broker.limits import Limits
from leveret.client.codecs import Codecs
from leveret.client.errors import ConversionError
from leveret.client.message import Envelope, Envelopes, Message, Properties
from leveret.testing.broker import Broker
from tests.client.publishers import bodies, publishing, taken

Fresh = Callable[..., str]

ALL: Properties = {
    "headers": {"one": 1, "two": [1, "x", None, True], "three": {"deep": {"er": 1.5}}, "ü": "ü"},
    "content_type": "text/x-own",
    "content_encoding": "rot13",
    "persistent": False,
    "priority": 9,
    "correlation_id": "correlation",
    "reply_to": "replies",
    "expiration_ms": 60_000,
    "message_id": "mine",
    "timestamp": 1_700_000_000,
    "type": "kind",
    "user_id": "guest",
    "app_id": "app",
}


def made(
    body: Any = b"body",
    said: Properties | None = None,
    *,
    seq: int = 1,
    envelopes: Envelopes | None = None,
    key: str = "key",
) -> Envelope:
    envelopes = envelopes or Envelopes("me", Codecs(), hook=None)
    return envelopes.make(body, key, "ex", mandatory=True, seq=seq, given=said or {})


def read(envelope: Envelope) -> Mapping[str, Value]:
    """The properties, of a header that is as it should be."""
    assert properties.body_size(envelope.header) == len(envelope.body)
    properties.peek(envelope.header)
    return properties.decode(envelope.header)


def test_a_message_says_who_sent_it_and_as_what_number() -> None:
    found = read(made(seq=255))
    assert found["headers"] == {"x-producer": "me", "x-seq": 255}
    assert found["message_id"] == "me-00000000000000ff"
    assert found["delivery_mode"] == 2


def test_bytes_have_no_content_type_unless_one_is_given() -> None:
    assert "content_type" not in read(made())
    assert read(made(said={"content_type": "image/png"}))["content_type"] == "image/png"


@pytest.mark.parametrize(
    ("body", "content_type", "encoded"),
    [
        ({"id": 1}, "application/json", b'{"id":1}'),
        ([1, 2], "application/json", b"[1,2]"),
        (None, "application/json", b"null"),
        ("tëxt", "text/plain", "tëxt".encode()),
        (bytearray(b"x"), "application/octet-stream", b"x"),
        (memoryview(b"x"), "application/octet-stream", b"x"),
    ],
)
def test_other_values_are_encoded_and_say_how(body: Any, content_type: str, encoded: bytes) -> None:
    envelope = made(body)
    assert envelope.body == encoded
    assert read(envelope)["content_type"] == content_type


def test_the_method_says_where_to() -> None:
    publish = methods.decode(made().method)
    assert (publish.exchange, publish.routing_key, publish.mandatory) == ("ex", "key", True)


def test_all_properties_are_passed_on() -> None:
    found = read(made(said=ALL))
    assert found.pop("headers") == {**ALL["headers"], "x-producer": "me", "x-seq": 1}
    assert found == {
        "content_type": "text/x-own",
        "content_encoding": "rot13",
        "delivery_mode": 1,
        "priority": 9,
        "correlation_id": "correlation",
        "reply_to": "replies",
        "expiration": "60000",
        "message_id": "mine",
        "timestamp": Timestamp(1_700_000_000),
        "type": "kind",
        "user_id": "guest",
        "app_id": "app",
    }


SHARED = (
    "content_type",
    "content_encoding",
    "persistent",
    "priority",
    "reply_to",
    "expiration_ms",
    "type",
    "app_id",
)


@pytest.mark.parametrize("name", SHARED)
def test_the_quick_way_and_the_long_way_say_the_same(name: str) -> None:
    said: Properties = {name: ALL[name]}  # type: ignore[literal-required,misc]
    envelopes = Envelopes("me", Codecs(), hook=None)
    for seq in (1, 2, 2**63 - 1):
        quick = made(said=said, seq=seq, envelopes=envelopes)
        long = made(said={**said, "headers": {}}, seq=seq, envelopes=envelopes)
        assert read(quick) == read(long)


def test_messages_in_a_row_differ_in_size_sequence_and_id_alone() -> None:
    envelopes = Envelopes("me", Codecs(), hook=None)
    for seq, body in enumerate((b"", b"x", b"x" * 100_000), 1):
        found = read(made(body, seq=seq, envelopes=envelopes))
        assert found["headers"] == {"x-producer": "me", "x-seq": seq}
        assert found["message_id"] == f"me-{seq:016x}"


def test_text_that_looks_like_the_template_does_not_confuse_it() -> None:
    text = bytes(range(1, 17)).decode()
    for name in ("app_id", "type", "reply_to", "content_type"):
        found = read(made(said={name: text}, seq=7))  # type: ignore[misc]
        assert found[name] == text
        assert found["message_id"] == "me-0000000000000007"


def test_many_kinds_of_messages_do_not_fill_the_memory() -> None:
    envelopes = Envelopes("me", Codecs(), hook=None)
    for number in range(3000):
        envelope = made(said={"type": f"t{number}"}, key=f"k{number}", envelopes=envelopes)
        assert read(envelope)["type"] == f"t{number}"
        assert methods.decode(envelope.method).routing_key == f"k{number}"
    assert len(envelopes._templates) <= 1024
    assert len(envelopes._methods) <= 1024


def test_a_sender_cannot_pass_off_a_message_as_sent_again() -> None:
    """Forwarded headers are those of another message."""
    forwarded: dict[str, Value] = {"x-republished": True, "x-producer": "other", "x-seq": 99, "mine": 1}
    found = read(made(said={"headers": forwarded}))
    assert found["headers"] == {"mine": 1, "x-producer": "me", "x-seq": 1}
    assert forwarded["x-seq"] == 99


def test_a_hook_may_add_headers() -> None:
    def hook(headers: dict[str, Value]) -> None:
        headers["traceparent"] = "00-abc"

    envelopes = Envelopes("me", Codecs(), hook=hook)
    given: dict[str, Value] = {"a": 1}
    found = read(made(said={"headers": given}, envelopes=envelopes))
    assert found["headers"] == {"a": 1, "x-producer": "me", "x-seq": 1, "traceparent": "00-abc"}
    assert given == {"a": 1}
    assert "traceparent" in read(made(envelopes=envelopes))["headers"]


@pytest.mark.parametrize("key", ["k" * 255, "ü" * 127, "", "#.*", "\N{SNOWMAN}"])
def test_a_routing_key_has_up_to_255_bytes(key: str) -> None:
    assert methods.decode(made(key=key).method).routing_key == key


@pytest.mark.parametrize(
    "said",
    [
        {"priority": 256},
        {"priority": -1},
        {"message_id": "x" * 256},
        {"correlation_id": "x" * 256},
        {"type": "ü" * 128},
        {"timestamp": -1},
        {"headers": {"x": object()}},
        {"headers": {"k" * 256: 1}},
        {"headers": {1: 1}},
        {"headers": {"x": 2**64}},
        {"reply_to": 3},
    ],
)
def test_what_amqp_can_not_say_is_a_value_error(said: Properties) -> None:
    with pytest.raises(ValueError, match=r"."):
        made(said=said)


def test_a_routing_key_of_256_bytes_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="255"):
        made(key="k" * 256)


@pytest.mark.parametrize("name", ["delivery_mode", "priorty", "expiration", "cluster_id"])
@pytest.mark.parametrize("more", [{}, {"headers": {}}, {"priority": 1}])
def test_a_property_that_does_not_exist_is_a_mistake_of_the_caller(name: str, more: Properties) -> None:
    with pytest.raises(TypeError, match=name):
        made(said={**more, name: 1})  # type: ignore[typeddict-unknown-key]


def test_numbers_of_all_sizes_are_headers() -> None:
    numbers = {f"n{n}": n for n in (0, -1, 127, 128, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63))}
    assert read(made(said={"headers": {**numbers, "f": 1.5, "t": Timestamp(5), "b": b"\xff"}}))[
        "headers"
    ] == {
        **numbers,
        "f": 1.5,
        "t": Timestamp(5),
        "b": b"\xff",
        "x-producer": "me",
        "x-seq": 1,
    }


# through brokers


KEYS = ["k" * 200, "ü" * 100, "\N{SNOWMAN}.#.*", "with space", "UPPER"]


@pytest.mark.parametrize("name", KEYS)
def test_routing_keys_of_all_kinds(amqp_url: str, fresh: Fresh, name: str) -> None:
    async def work() -> None:
        queue = (name + fresh())[-120:] if len(name.encode()) < 120 else name
        async with publishing(amqp_url, queue) as publisher:
            assert (await publisher.publish(b"x", queue)).confirmed
            assert (await bodies(publisher, queue))[-1] == b"x"
            with pytest.raises(ValueError, match="255"):
                await publisher.publish(b"", "k" * 256)

    asyncio.run(work())


def test_all_properties_come_out_as_they_went_in(amqp_url: str, fresh: Fresh) -> None:
    headers: dict[str, Value] = {
        "text": "ü",
        "numbers": [1, -1, 2**40, 1.5],
        "nothing": None,
        "truth": True,
        "table": {"deep": {"deeper": [{"deepest": 1}]}},
        "time": Timestamp(1_700_000_000),
        "bytes": b"\x00\xff",
    }
    said: dict[str, Any] = {
        "content_type": "text/x-own",
        "content_encoding": "rot13",
        "priority": 9,
        "correlation_id": "correlation",
        "reply_to": "replies",
        "message_id": "mine",
        "timestamp": 1_700_000_000,
        "type": "kind",
        "user_id": "guest",
        "app_id": "app",
    }

    async def work() -> None:
        queue = fresh()
        async with publishing(amqp_url, queue, producer="me", first_seq=1) as publisher:
            receipt = await publisher.publish(
                b"x", queue, headers=headers, persistent=False, expiration_ms=600_000, **said
            )
            assert receipt.confirmed
            assert (receipt.message_id, receipt.correlation_id) == ("mine", "correlation")
            ((found, _),) = await taken(publisher.connection, queue)
            assert found.pop("headers") == {**headers, "x-producer": "me", "x-seq": 1}
            assert found == {**said, "delivery_mode": 1, "expiration": "600000"}

    asyncio.run(work())


FRAME = 131_072 - 8


@pytest.mark.parametrize("size", [0, 1, FRAME - 1, FRAME, FRAME + 1, 2 * FRAME, 2 * FRAME + 1, 10 << 20])
def test_bodies_of_all_sizes(amqp_url: str, fresh: Fresh, size: int) -> None:
    async def work() -> None:
        queue = fresh()
        body = (bytes(range(256)) * (size // 256 + 1))[:size]
        async with publishing(amqp_url, queue) as publisher:
            receipts = await publisher.publish_many([Message(body, queue), Message(b"after", queue)])
            assert all(receipt.confirmed for receipt in receipts)
            assert await bodies(publisher, queue) == [body, b"after"]

    asyncio.run(work())


@pytest.fixture(scope="module")
def small_frames() -> Iterator[Broker]:
    with Broker(limits=Limits(frame_max=4096)) as broker:
        yield broker


@pytest.mark.real
@pytest.mark.parametrize("size", [4087, 4088, 4089, 3 * 4088, 100_000])
def test_bodies_in_frames_as_small_as_they_may_be(small_frames: Broker, size: int) -> None:
    async def work() -> None:
        async with publishing(small_frames.url, "q") as publisher:
            assert (await publisher.publish(b"x" * size, "q")).confirmed
            assert await bodies(publisher, "q") == [b"x" * size]

    asyncio.run(work())


@pytest.mark.real
def test_properties_that_fit_no_frame_are_refused_before_they_do_harm(small_frames: Broker) -> None:
    async def work() -> None:
        async with publishing(small_frames.url, "q") as publisher:
            await publisher.publish(b"", "q")
            with pytest.raises(ValueError, match="a frame holds"):
                await publisher.publish(b"", "q", headers={"large": "x" * 5000})
            assert (await publisher.publish(b"", "q", headers={"small": "x" * 3000})).confirmed
            assert publisher.connection.sessions == 1
            await bodies(publisher, "q")

    asyncio.run(work())


def test_what_can_not_be_said_is_refused_and_takes_no_place(leveret_broker: Broker) -> None:
    async def work() -> None:
        async with publishing(leveret_broker.url, "q", window=1) as publisher:
            with pytest.raises(ConversionError):
                await publisher.publish(object(), "q")
            with pytest.raises(ValueError, match=r"priority"):
                await publisher.publish(b"", "q", priority=256)
            with pytest.raises(TypeError, match="priorty"):
                await publisher.publish(b"", "q", priorty=1)  # type: ignore[call-arg]
            for seq in (-1, 2**63, 2**64):
                with pytest.raises(ValueError, match=r"."):
                    await publisher.publish(b"", "q", seq=seq)
            receipt = await publisher.publish(b"", "q")
            assert (receipt.confirmed, receipt.seq) == (True, 1)

    asyncio.run(work())


def test_sequences_may_be_given_and_go_on_from_there(leveret_broker: Broker) -> None:
    async def work() -> None:
        async with publishing(leveret_broker.url, "q", producer="me", first_seq=100) as publisher:
            receipts = [await publisher.publish(b"", "q", seq=seq) for seq in (None, 200, None, 50, None)]
            assert [receipt.seq for receipt in receipts] == [100, 200, 201, 50, 202]
            found = await taken(publisher.connection, "q")
            assert [said["headers"]["x-seq"] for said, _ in found] == [100, 200, 201, 50, 202]

    asyncio.run(work())
