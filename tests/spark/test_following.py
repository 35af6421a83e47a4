"""Followers of RabbitMQ's streams: what they have in hand is bounded in bytes, and so is what they give."""

from collections.abc import Callable

import pytest

from leveret.client.delivery import Delivery
from leveret.spark import following
from leveret.spark.consuming import connected
from leveret.spark.following import Follower
from leveret.spark.streams import StreamBatchReader
from tests.spark.spooling import wait_until
from tests.spark.test_streams import append, declare, options, rows_of

pytestmark = pytest.mark.needs_rabbitmq

LARGE = [f"{number:03d}" + "x" * 20_000 for number in range(100)]
IN_HAND_BYTES_MAX = 100_000


@pytest.fixture
def stream(rabbitmq, fresh: Callable[..., str]) -> str:
    """A hundred large messages, in segments so small that offsets are left out between them."""
    name = fresh("stream")
    declare(rabbitmq.url, name, x_stream_max_segment_size_bytes=200_000)
    append(rabbitmq.url, name, LARGE, window=1)
    return name


@pytest.fixture
def in_hand(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes were in hand whenever something came, with a bound that is soon reached."""
    monkeypatch.setattr(following, "_IN_HAND_BYTES_MAX", IN_HAND_BYTES_MAX)
    monkeypatch.setattr(following, "CHUNK_BYTES", 50_000)
    found: list[int] = []
    deliver = following._Run._deliver

    def watched(run: following._Run, deliveries: list[Delivery]) -> None:
        deliver(run, deliveries)
        found.append(sum(len(delivery.body) for delivery in run.ready))

    monkeypatch.setattr(following._Run, "_deliver", watched)
    return found


def test_what_is_in_hand_is_bounded_in_bytes(rabbitmq, stream, in_hand):
    found: list[Delivery] = []
    with Follower(options(rabbitmq.url, stream), 0) as follower:
        while len(found) < len(LARGE):
            found += follower.take(1, 1)
    assert [delivery.body.decode() for delivery in found] == LARGE
    assert IN_HAND_BYTES_MAX < max(in_hand) < len(LARGE) * 20_000 / 2


def test_no_more_is_given_at_once_than_a_record_batch_may_hold(rabbitmq, stream, in_hand):
    chosen = options(rabbitmq.url, stream)
    reader = StreamBatchReader(chosen)
    chunks = [chunk for partition in reader.partitions() for chunk in reader.read(partition)]
    assert [body.decode() for chunk in chunks for body in chunk["body"].to_pylist()] == LARGE
    assert max(chunk.num_rows for chunk in chunks) == 2


def test_a_message_that_is_larger_than_that_comes_alone(rabbitmq, stream, in_hand, monkeypatch):
    monkeypatch.setattr(following, "CHUNK_BYTES", 1_000)
    with Follower(options(rabbitmq.url, stream), 0) as follower:
        for number in range(3):
            assert [delivery.body.decode() for delivery in follower.take(10, 5)] == [LARGE[number]]


def test_offsets_that_are_left_out_are_looked_into_while_enough_is_in_hand(rabbitmq, stream, in_hand):
    chosen = options(rabbitmq.url, stream)
    reader = StreamBatchReader(chosen)
    found = rows_of(reader, reader.partitions(), chosen)
    assert [body for _, body in found] == LARGE
    assert found[-1][0] > len(LARGE)
    assert max(in_hand) > IN_HAND_BYTES_MAX


def test_a_connection_can_be_used_after_a_follower_that_had_enough(rabbitmq, stream, in_hand):
    chosen = options(rabbitmq.url, stream)
    connection = connected(chosen, "tests")
    session = connection.connection.session
    with Follower(chosen, "first", connection=connection) as follower:
        (first,) = follower.take(1, 5)
        wait_until(lambda: max(in_hand) > IN_HAND_BYTES_MAX, "enough is in hand")
    with Follower(chosen, "first", connection=connection) as another:
        assert another.take(1, 5)[0].body == first.body
    assert connection.connection.session is session
    connection.close()
