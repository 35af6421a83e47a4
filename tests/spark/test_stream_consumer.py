"""Followers of RabbitMQ's streams: what they have in hand and give is bounded in bytes, what comes late is
waited for, and times become offsets."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from leveret.client.delivery import Delivery
from leveret.client.session import Session
from leveret.spark import stream_consumer
from leveret.spark.queue_consumer import connected
from leveret.spark.stream_consumer import Follower, StreamEnds
from leveret.spark.streams import StreamBatchReader
from tests.client.proxy import CHANNEL_OPEN_OK, Proxy, Where
from tests.spark.spooling import ready, wait_until
from tests.spark.test_streams import append, bodies, declare, options, rows_of, second_after_now

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
    monkeypatch.setattr(stream_consumer, "_READY_BYTES_MAX", IN_HAND_BYTES_MAX)
    monkeypatch.setattr(stream_consumer, "CHUNK_BYTES", 50_000)
    found: list[int] = []
    deliver = stream_consumer._Run._deliver

    def watched(run: stream_consumer._Run, deliveries: list[Delivery]) -> None:
        deliver(run, deliveries)
        found.append(sum(len(delivery.body) for delivery in run.ready))

    monkeypatch.setattr(stream_consumer._Run, "_deliver", watched)
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
    monkeypatch.setattr(stream_consumer, "CHUNK_BYTES", 1_000)
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


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_wire_that_is_cut_while_the_broker_is_asked_costs_nothing(rabbitmq, stream, number):
    with Proxy(rabbitmq.url) as proxy:
        ends = StreamEnds(options(proxy.url, stream))
        fault = proxy.plan(CHANNEL_OPEN_OK, number, Where.BEFORE)
        try:
            ends.open()
            assert ends.first() == 0
            assert ends.stop() > len(LARGE)
        finally:
            ends.close()
        assert fault.wait()


# times


@pytest.fixture
def halves(rabbitmq, fresh: Callable[..., str]) -> tuple[str, datetime]:
    """Twenty messages that the broker counts, and where in time their halves meet."""
    name = fresh("stream")
    declare(rabbitmq.url, name)
    append(rabbitmq.url, name, bodies(10))
    between = second_after_now()
    append(rabbitmq.url, name, bodies(10, 10))
    wait_until(lambda: ready(rabbitmq.url, name) == 20, "all are counted")
    return name, between


@pytest.fixture
def ends(rabbitmq, halves):
    found = StreamEnds(options(rabbitmq.url, halves[0]))
    found.open()
    yield found
    found.close()


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """From now on messages come so many seconds later than they do."""
    deliver = stream_consumer._Run._deliver

    def come_late(late_s: float) -> None:
        def later(run: stream_consumer._Run, deliveries: list[Delivery]) -> None:
            asyncio.get_running_loop().call_later(late_s, deliver, run, deliveries)

        monkeypatch.setattr(stream_consumer._Run, "_deliver", later)

    return come_late


def test_the_time_to_wait_begins_when_the_consumer_does(rabbitmq, halves, monkeypatch):
    begin = stream_consumer.Intake._start_consuming

    async def begin_late(intake: stream_consumer.Intake, session: Session) -> None:
        await asyncio.sleep(2.5)
        await begin(intake, session)

    monkeypatch.setattr(stream_consumer.Intake, "_start_consuming", begin_late)
    with Follower(options(rabbitmq.url, halves[0]), 0) as follower:
        assert follower.take(20, 2) != []


def test_a_time_is_found_although_its_first_message_comes_late(ends, halves, late):
    late(1.5)
    assert ends.at(halves[1]) == 10


@pytest.mark.parametrize("instant", [datetime(1960, 1, 1, tzinfo=UTC), datetime.min.replace(tzinfo=UTC)])
def test_a_time_before_all_that_amqp_can_say_is_the_beginning(ends, instant):
    assert ends.at(instant) == 0


@pytest.mark.parametrize("instant", [datetime.now(UTC) + timedelta(days=1), datetime.max.replace(tzinfo=UTC)])
def test_a_time_later_than_everything_is_the_end(ends, instant, monkeypatch):
    take = Follower.take

    def take_soon(follower: Follower, max_messages: int, wait_s: float) -> list[Delivery]:
        return take(follower, max_messages, 1.0 if follower._where == instant else wait_s)

    monkeypatch.setattr(Follower, "take", take_soon)
    monkeypatch.setattr(stream_consumer, "_QUIET_S", 0.5)
    assert ends.at(instant) == 20
