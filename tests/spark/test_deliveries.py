"""Deliveries as record batches: whatever a message holds is carried on, in as many batches as are wanted."""

import pytest

from leveret.amqp import properties
from leveret.amqp.tables import Value
from leveret.client.codecs import Codecs
from leveret.client.delivery import Delivery, Source
from leveret.spark import deliveries
from leveret.spark.deliveries import chunks_of


def delivery(body: bytes = b"a", *, redelivered: bool = False, **headers: Value) -> Delivery:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    header = properties.encode({"headers": named}, len(body))
    return Delivery(
        Source(None, "q", Codecs()),
        1,
        exchange="",
        routing_key="q",
        redelivered=redelivered,
        header=header,
        body=body,
    )


@pytest.mark.parametrize(
    ("said", "counted"),
    [(3, 3), (2**31 - 1, 2**31 - 1), (2**31, 2**31 - 1), (5_000_000_000, 2**31 - 1), (-3, 0)],
)
def test_a_delivery_count_fits_into_its_column(said, counted):
    (chunk,) = chunks_of([delivery(x_delivery_count=said)], 0, at_least=1)
    assert chunk.column("delivery_count").to_pylist() == [counted]


@pytest.mark.parametrize("said", ["often", True, None, [1]])
def test_a_delivery_count_that_is_no_number_is_ignored(said):
    messages = [delivery(x_delivery_count=said), delivery(redelivered=True, x_delivery_count=said)]
    (chunk,) = chunks_of(messages, 0, at_least=1)
    assert chunk.column("delivery_count").to_pylist() == [0, 1]


@pytest.mark.parametrize(("count", "at_least"), [(17, 16), (16, 16), (5, 16), (100, 7), (1, 1)])
def test_there_are_as_many_record_batches_as_are_wanted(count, at_least):
    chunks = chunks_of([delivery(b"%d" % number) for number in range(count)], 10, at_least=at_least)
    assert len(chunks) == min(count, at_least)
    assert [offset for chunk in chunks for offset in chunk["offset"].to_pylist()] == [*range(10, 10 + count)]
    assert [int(body) for chunk in chunks for body in chunk["body"].to_pylist()] == [*range(count)]
    sizes = {chunk.num_rows for chunk in chunks}
    assert max(sizes) - min(sizes) <= 1


def test_record_batches_are_bounded_in_messages_and_bytes(monkeypatch):
    monkeypatch.setattr(deliveries, "_CHUNK_MESSAGES", 10)
    monkeypatch.setattr(deliveries, "CHUNK_BYTES", 1000)
    small = chunks_of([delivery() for _ in range(25)], 0, at_least=1)
    assert [chunk.num_rows for chunk in small] == [8, 8, 9]
    large = chunks_of([delivery(b"x" * 600) for _ in range(5)], 0, at_least=1)
    assert [chunk.num_rows for chunk in large] == [2, 2, 1]
