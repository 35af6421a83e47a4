"""What a ticket shows: what a snapshot would show now, whoever has written the ticket."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pyarrow import flight

from leveret.amqp.properties import encode
from leveret.flight import actions
from leveret.flight.bounds import RANGES_MAX
from leveret.flight.tickets import ReadTicket, StageDescriptor, pack_ranges
from leveret.testing.broker import Broker
from tests.fronts.flight.flight_client import Bulk, refusal

pytestmark = pytest.mark.real

HEADER = encode({"delivery_mode": 2}, 5)
names = (f"v{number}" for number in count())


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("flight") / "data", flight=True) as broker:
        yield broker


@pytest.fixture(scope="module")
def channel(broker: Broker) -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(pika.URLParameters(broker.url + "?heartbeat=0"))
    channel = connection.channel()
    channel.confirm_delivery()
    yield channel
    connection.close()


@pytest.fixture
def bulk(broker: Broker) -> Bulk:
    return Bulk(broker.endpoint.port)


@pytest.fixture(params=["classic", "stream"])
def queue(request: pytest.FixtureRequest, channel: BlockingChannel) -> str:
    """A new queue or stream with ten messages."""
    name = next(names)
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": request.param})
    publish(channel, name, range(10))
    return name


def publish(channel: BlockingChannel, queue: str, numbers: range) -> None:
    for number in numbers:
        channel.basic_publish("", queue, b"%d" % number, pika.BasicProperties(delivery_mode=2))


def log_id(broker: Broker, queue: str) -> int:
    return broker.server.broker.vhosts["/"].queues[queue].log.id


def shown(broker: Broker, bulk: Bulk, queue: str, *ranges: tuple[int, int]) -> list[bytes]:
    """What a ticket for these offsets shows to one who takes what there is."""
    ticket = ReadTicket("/", queue, log_id(broker, queue), pack_ranges(ranges), exact=False)
    return bulk.read(ticket).column("body").to_pylist()


def stage(bulk: Bulk, queue: str, *bodies: bytes) -> None:
    rows = [(b"", queue.encode(), HEADER, body) for body in bodies]
    bulk.write(StageDescriptor("/", f"w-{queue}", 0, "task", 60.0), rows)


def test_rows_that_are_not_committed_are_not_shown(
    broker: Broker, bulk: Bulk, channel: BlockingChannel, queue: str
) -> None:
    stage(bulk, queue, b"hidden", b"too")
    assert shown(broker, bulk, queue, (0, 12)) == [b"%d" % number for number in range(10)]
    with pytest.raises(flight.FlightServerError) as caught:
        bulk.read(ReadTicket("/", queue, log_id(broker, queue), pack_ranges([(10, 12)])))
    refused = refusal(caught.value)
    assert (refused.code, refused.kind) == (404, "gone")
    assert "their batch is not committed" in refused.hint

    bulk.ask(actions.Commit("/", f"w-{queue}", 0, ["task"]))
    assert shown(broker, bulk, queue, (10, 12)) == [b"hidden", b"too"]


def test_rows_that_were_aborted_are_never_shown(
    broker: Broker, bulk: Bulk, channel: BlockingChannel, queue: str
) -> None:
    stage(bulk, queue, b"aborted")
    broker.call(broker.server.broker.store.checkpoint)
    bulk.ask(actions.Abort("/", f"w-{queue}", 0, ["task"]))
    publish(channel, queue, range(11, 12))
    assert shown(broker, bulk, queue, (9, 12)) == [b"9", b"11"]


def test_messages_that_are_settled_are_not_shown(
    broker: Broker, bulk: Bulk, channel: BlockingChannel
) -> None:
    queue = next(names)
    channel.queue_declare(queue, durable=True)
    publish(channel, queue, range(10))
    broker.call(broker.server.broker.store.checkpoint)  # they are in a file, and stay there
    for acked in (True, False, True):
        method, _, _ = channel.basic_get(queue)
        if acked:
            channel.basic_ack(method.delivery_tag)
    broker.wait_until_depth(queue, 7)
    assert shown(broker, bulk, queue, (0, 4), (6, 7)) == [b"1", b"3", b"6"]
    with pytest.raises(
        flight.FlightServerError, match=f"2 messages of queue '{queue}' in vhost '/' are gone"
    ):
        bulk.read(ReadTicket("/", queue, log_id(broker, queue), pack_ranges([(0, 4)])))


def test_what_a_query_has_leased_is_shown_until_it_is_settled(
    broker: Broker, bulk: Bulk, channel: BlockingChannel
) -> None:
    queue = next(names)
    channel.queue_declare(queue, durable=True)
    publish(channel, queue, range(10))
    epoch = bulk.ask(actions.Open("/", queue, "nightly", 60.0)).epoch
    bulk.ask(actions.Lease("/", queue, "nightly", epoch, 0, max_messages=4))
    assert len(shown(broker, bulk, queue, (0, 10))) == 10
    bulk.ask(actions.Lease("/", queue, "nightly", epoch, 1, settle_only=True))
    assert len(shown(broker, bulk, queue, (0, 10))) == 6


def test_of_a_stream_nothing_is_shown_behind_rows_that_may_still_come(
    broker: Broker, bulk: Bulk, channel: BlockingChannel
) -> None:
    """Otherwise a reader would be past them when they are committed."""
    queue = next(names)
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "stream"})
    publish(channel, queue, range(3))
    stage(bulk, queue, b"undecided")
    publish(channel, queue, range(4, 6))
    assert shown(broker, bulk, queue, (0, 6)) == [b"0", b"1", b"2"]
    covered = bulk.ask(actions.Cover("/", queue, False, "", 0, {queue: (0, 6)}))
    assert [part.messages for part in covered.parts] == [3]
    bulk.ask(actions.Commit("/", f"w-{queue}", 0, ["task"]))
    assert shown(broker, bulk, queue, (0, 6)) == [b"0", b"1", b"2", b"undecided", b"4", b"5"]


def test_many_holes_are_left_out_one_by_one(broker: Broker, bulk: Bulk, channel: BlockingChannel) -> None:
    """Offsets that are far from each other, and far more than one chunk of the broker's sets."""
    queue = next(names)
    channel.queue_declare(queue, durable=True)
    rows = [(b"", queue.encode(), HEADER, b"%d" % number) for number in range(70_000)]
    for start in range(0, 70_000, 10_000):
        part = StageDescriptor("/", f"w-{queue}", 0, f"t{start}", 60.0)
        bulk.write(part, rows[start : start + 10_000])
    bulk.ask(actions.Commit("/", f"w-{queue}", 0, [f"t{start}" for start in range(0, 70_000, 10_000)]))
    epoch = bulk.ask(actions.Open("/", queue, "nightly", 60.0)).epoch
    bulk.ask(actions.Lease("/", queue, "nightly", epoch, 0))
    odd = [(number, number + 1) for number in range(1, 32_000, 2)]
    for start in range(0, len(odd), RANGES_MAX):
        bulk.ask(actions.Reject("/", queue, "nightly", pack_ranges(odd[start : start + RANGES_MAX])))
    found = shown(broker, bulk, queue, (0, 40), (31_990, 32_006), (69_990, 70_000))
    expected = [*range(0, 40, 2), *range(31_990, 32_000, 2), *range(32_000, 32_006), *range(69_990, 70_000)]
    assert found == [b"%d" % number for number in expected]
