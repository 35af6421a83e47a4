"""What stands for a message, with an id or without; and what is expected to come once more."""

import pytest

from leveret.amqp import properties
from leveret.amqp.tables import Value
from leveret.client.codecs import Codecs
from leveret.client.delivery import Delivery, Source
from leveret.spark.seen_ids import Returning, digest, digest_without_id

WINDOW_S = 3600.0


def header(**said: Value) -> bytes:
    return properties.encode(said, 1)


def delivery(
    body: bytes = b"a", *, exchange: str = "", routing_key: str = "q", header: bytes = header()
) -> Delivery:
    source = Source(None, "q", Codecs())
    return Delivery(
        source, 1, exchange=exchange, routing_key=routing_key, redelivered=False, header=header, body=body
    )


def test_what_stands_for_a_message_stays_as_it_was():
    """It is in files."""
    assert digest("order-1", b"body").hex() == "861d4d365dd64652af6ba0cc7e5e9898"
    assert digest("x" * 65_535, b"body").hex() == "54c7d617d71849dee39f7d337a68f370"


def test_an_id_of_any_length_stands_for_a_message():
    long = "x" * 65_536
    assert len(digest(long, b"body")) == 16
    assert len({digest(long, b"a"), digest(long, b"b"), digest(long + "y", b"a")}) == 3


@pytest.mark.parametrize("counted", ["x-delivery-count", "x-acquired-count"])
def test_what_brokers_count_does_not_stand_for_a_message(counted):
    plain, other = delivery(), delivery(header=header(headers={counted: 1}))
    assert digest_without_id(plain) == digest_without_id(other)


@pytest.mark.parametrize(
    "other",
    [
        delivery(b"b"),
        delivery(exchange="e"),
        delivery(routing_key="k"),
        delivery(header=header(priority=1)),
        delivery(header=header(headers={"other": 1})),
    ],
    ids=["body", "exchange", "routing key", "property", "header"],
)
def test_without_an_id_everything_else_stands_for_a_message(other):
    assert digest_without_id(other) != digest_without_id(delivery())


def test_headers_stand_for_a_message_in_any_order():
    one = delivery(header=header(headers={"a": 1, "b": 2}))
    other = delivery(header=header(headers={"b": 2, "x-delivery-count": 3, "a": 1}))
    assert digest_without_id(one) == digest_without_id(other)


def test_properties_that_can_not_be_read_stand_for_a_message_as_they_are():
    first, same, other = (digest_without_id(delivery(header=header)) for header in (b"a", b"a", b"b"))
    assert first == same != other


def test_what_is_expected_once_is_expected_no_second_time():
    returning = Returning(WINDOW_S)
    returning.add(b"m", 3)
    assert returning.take(b"other") is None
    assert returning.take(b"m") == 3
    assert returning.take(b"m") is None


def test_messages_that_are_alike_are_counted():
    returning = Returning(WINDOW_S)
    for batch in (1, 2, 2):
        returning.add(b"same", batch)
    assert sorted(returning.take(b"same") for _ in range(3)) == [1, 2, 2]
    assert returning.take(b"same") is None


def test_what_has_not_come_back_in_the_window_after_its_batch_is_not_expected_any_more():
    returning = Returning(WINDOW_S)
    for said, batch in ((b"a", 1), (b"b", 2), (b"c", 3)):
        returning.add(said, batch)
    returning.settled(1, 0.0)
    returning.settled(2, 100.0)
    returning.settled(2, WINDOW_S)
    assert returning.take(b"a") is None
    assert returning.take(b"b") == 2
    assert returning.take(b"c") == 3
