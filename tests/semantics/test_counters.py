"""What the broker counts: one test for each figure, with exact numbers on every object that has it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from leveret.broker.counters import FIGURES, Churn, Counters
from leveret.broker.views import exchanges, overview, queues
from leveret.testing.broker import Broker
from leveret.testing.clock import VirtualClock
from tests.semantics.client import Channel, Client
from tests.semantics.clients_seen import channels_of, connections_of
from tests.semantics.grouping import Joined


class Counted:
    """`counted.queue("q")` are the figures of a queue that are not zero, but bytes, packets and copies."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def queue(self, name: str = "q") -> dict[str, int]:
        return self._of(lambda: queues.one_queue(self._core, "/", name))

    def exchange(self, name: str = "") -> dict[str, int]:
        return self._of(lambda: exchanges.one_exchange(self._core, "/", name))

    def channels(self) -> list[dict[str, int]]:
        found = self._broker.call(lambda: channels_of(self._core))
        return [_figures(each.counters) for each in found]

    def connections(self) -> list[dict[str, int]]:
        """Those that have counted least come first."""
        found = self._broker.call(lambda: connections_of(self._core))
        return sorted((_figures(each.counters) for each in found), key=len)

    def total(self) -> dict[str, int]:
        return self._of(lambda: overview.totals(self._core))

    def everywhere(self) -> list[dict[str, int]]:
        """On the only channel, on its connection, and in total."""
        (channel,), (connection,) = self.channels(), self.connections()
        return [channel, connection, self.total()]

    def routed(self, exchange: str | None = None) -> int:
        """Copies by an exchange, or in total."""
        if exchange is None:
            return self._broker.call(lambda: overview.totals(self._core)).counters.routed
        found = self._broker.call(lambda: exchanges.one_exchange(self._core, "/", exchange))
        return found.counters.routed

    @property
    def _core(self) -> object:
        return self._broker.server.broker

    def _of(self, find: Callable[[], object]) -> dict[str, int]:
        return _figures(self._broker.call(find).counters)


def _figures(counters: Counters) -> dict[str, int]:
    figures = {
        name: getattr(counters, name)
        for name in FIGURES
        if not name.startswith(("bytes", "octets", "packets", "routed"))
    }
    return {name: value for name, value in figures.items() if value}


@pytest.fixture
def counted(broker: Broker) -> Counted:
    return Counted(broker)


@pytest.fixture
def q(channel: Channel) -> Channel:
    """A channel, and the queue `q`."""
    channel.declare("q")
    return channel


def publish(channel: Channel, count: int, *, key: str = "q", **options: object) -> None:
    with channel.client.together():
        for number in range(count):
            channel.publish(key, f"{number:03}", **options)
    channel.quiet()


def test_published_counts_on_channel_and_exchange_and_in_each_queue(q: Channel, counted: Counted) -> None:
    q.declare("other")
    q.exchange("x")
    q.bind("q", "x")
    q.bind("other", "x")
    publish(q, 3, key="", exchange="x")
    publish(q, 2)
    assert counted.everywhere() == [{"published": 5}] * 3
    assert counted.exchange("x") == {"published": 3}
    assert counted.exchange("") == {"published": 2}
    assert (counted.queue("q"), counted.queue("other")) == ({"published": 5}, {"published": 3})


def test_a_publish_in_a_transaction_is_in_the_queue_when_it_commits(q: Channel, counted: Counted) -> None:
    q.tx_select()
    publish(q, 2)
    assert counted.everywhere() == [{"published": 2}] * 3
    assert counted.queue() == {}
    q.tx_commit()
    assert counted.queue() == {"published": 2}


def test_confirmed_counts_acks_and_not_nacks(channel: Channel, counted: Counted) -> None:
    channel.declare("q", arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    channel.confirm_select()
    with channel.client.together():
        for _ in range(5):
            channel.publish("q")
    assert channel.confirmed(5) == {"ack": 2, "nack": 3}
    assert counted.everywhere() == [{"published": 5, "expecting_confirms": 5, "confirmed": 2}] * 3
    assert counted.queue() == {"published": 2}


def test_returned_counts_what_no_queue_takes(q: Channel, counted: Counted) -> None:
    publish(q, 2, key="nowhere", mandatory=True)
    publish(q, 1, key="nowhere")
    assert counted.everywhere() == [{"published": 3, "returned": 2, "unroutable": 1}] * 3
    assert counted.exchange("") == {"published": 3, "returned": 2, "unroutable": 1}


def test_unroutable_counts_in_transactions_when_they_commit(q: Channel, counted: Counted) -> None:
    q.tx_select()
    publish(q, 2, key="nowhere")
    publish(q, 1, key="nowhere", mandatory=True)
    assert counted.everywhere() == [{"published": 3}] * 3
    q.tx_commit()
    assert counted.everywhere() == [{"published": 3, "returned": 1, "unroutable": 2}] * 3


def test_delivered_counts_what_consumers_are_to_ack(q: Channel, counted: Counted) -> None:
    q.consume("q")
    publish(q, 4)
    assert counted.everywhere() == [{"published": 4, "delivered": 4}] * 3
    assert counted.queue() == {"published": 4, "delivered": 4}


def test_delivered_auto_ack_counts_what_is_settled_with_its_delivery(q: Channel, counted: Counted) -> None:
    q.consume("q", no_ack=True)
    publish(q, 4)
    assert counted.everywhere() == [{"published": 4, "delivered_auto_ack": 4}] * 3
    assert counted.queue() == {"published": 4, "delivered_auto_ack": 4}


def test_got_counts_basic_get_with_and_without_acks(q: Channel, counted: Counted) -> None:
    publish(q, 3)
    q.get("q")
    q.get("q", no_ack=True)
    q.get("q", no_ack=True)
    assert q.get("q") is None
    assert counted.everywhere() == [{"published": 3, "got": 1, "got_auto_ack": 2, "got_empty": 1}] * 3
    assert counted.queue() == {"published": 3, "got": 1, "got_auto_ack": 2, "got_empty": 1}


def test_acked_counts_messages_and_not_frames(q: Channel, counted: Counted) -> None:
    publish(q, 5)
    q.consume("q")
    q.deliveries(5)
    q.ack(1)
    q.ack(4, multiple=True)
    q.quiet()
    assert counted.everywhere() == [{"published": 5, "delivered": 5, "acked": 4}] * 3
    assert counted.queue() == {"published": 5, "delivered": 5, "acked": 4}


def test_an_ack_in_a_transaction_counts_when_it_commits(q: Channel, counted: Counted) -> None:
    publish(q, 1)
    q.tx_select()
    q.ack(q.get("q").tag)
    q.quiet()
    assert counted.queue() == {"published": 1, "got": 1}
    q.tx_commit()
    assert counted.queue() == {"published": 1, "got": 1, "acked": 1}


def test_nacked_counts_what_clients_give_back_and_requeued_all_that_is(q: Channel, counted: Counted) -> None:
    publish(q, 3)
    for _ in range(3):
        q.get("q")
    q.nack(2, multiple=True)
    q.quiet()
    of_client = {"published": 3, "got": 3, "nacked": 2}
    assert counted.everywhere() == [of_client, of_client, of_client | {"requeued": 2}]
    q.close()
    assert counted.queue() == of_client | {"requeued": 3}
    assert counted.total() == of_client | {"requeued": 3}


def test_redelivered_counts_deliveries_with_the_flag(q: Channel, counted: Counted) -> None:
    publish(q, 2)
    q.nack(q.get("q").tag)
    q.consume("q")
    assert [each.redelivered for each in q.deliveries(2)] == [True, False]
    q.nack(2)
    q.delivery()
    assert counted.queue() == {
        "published": 2,
        "got": 1,
        "delivered": 3,
        "redelivered": 2,
        "nacked": 2,
        "requeued": 2,
    }
    assert counted.channels()[0]["redelivered"] == 2


def test_rejected_counts_what_clients_do_not_want(q: Channel, counted: Counted) -> None:
    publish(q, 3)
    for _ in range(3):
        q.get("q")
    q.nack(2, multiple=True, requeue=False)
    q.reject(3, requeue=False)
    q.quiet()
    assert counted.everywhere() == [{"published": 3, "got": 3, "rejected": 3}] * 3
    assert counted.queue() == {"published": 3, "got": 3, "rejected": 3}


def test_expired_counts_by_the_ttl(channel: Channel, clock: VirtualClock, counted: Counted) -> None:
    channel.declare("q", arguments={"x-message-ttl": 1000})
    publish(channel, 3)
    clock.advance(2)
    assert channel.count("q") == 0
    assert counted.queue() == {"published": 3, "expired": 3}
    assert counted.total() == {"published": 3, "expired": 3}


def test_dropped_counts_by_the_length_and_by_the_returns(channel: Channel, counted: Counted) -> None:
    channel.declare("q", arguments={"x-max-length": 2})
    publish(channel, 5)
    assert counted.queue() == {"published": 5, "dropped": 3}
    channel.declare("limited", arguments={"x-queue-type": "quorum", "x-delivery-limit": 0})
    publish(channel, 1, key="limited")
    channel.nack(channel.get("limited").tag)
    channel.quiet()
    assert counted.queue("limited") == {"published": 1, "got": 1, "nacked": 1, "dropped": 1}
    assert counted.total()["dropped"] == 4


def test_dead_lettered_counts_what_left_a_copy(channel: Channel, counted: Counted) -> None:
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    channel.declare("dead")
    channel.declare("q", arguments={"x-max-length": 1, **letters})
    publish(channel, 3)
    channel.reject(channel.get("q").tag, requeue=False)
    channel.quiet()
    expected = {"published": 3, "got": 1, "dropped": 2, "rejected": 1, "dead_lettered": 3}
    assert counted.queue() == expected
    assert counted.queue("dead") == {"published": 3}
    assert counted.total() == expected
    channel.delete("dead")
    channel.declare("none", arguments={"x-max-length": 1, **letters})
    publish(channel, 2, key="none")
    assert counted.queue("none") == {"published": 2, "dropped": 1}


def test_bytes_of_a_queue_count_in_and_out(q: Channel, broker: Broker) -> None:
    size = len("000") + 15  # a body, and a content header that has nothing but a delivery mode
    publish(q, 2)

    def counters() -> Counters:
        found = queues.one_queue(broker.server.broker, "/", "q")
        assert found is not None
        return found.counters

    assert broker.call(counters).bytes_in == 2 * (len("q") + size)
    assert broker.call(counters).bytes_out == 0
    q.get("q")
    assert broker.call(counters).bytes_out == size
    q.consume("q", no_ack=True)
    q.delivery()
    assert broker.call(counters).bytes_out == 2 * size


def test_bytes_of_a_channel_its_connection_and_an_exchange_are_headers_and_bodies(
    q: Channel, connect: Callable[..., Client], broker: Broker
) -> None:
    core = broker.server.broker
    size = len("000") + 15
    publish(q, 4)
    q.get("q")
    q.get("q", no_ack=True)
    q.consume("q")
    for _ in range(2):
        q.delivery()

    def moved() -> list[tuple[int, int]]:
        found = [
            *channels_of(core),
            *connections_of(core),
            exchanges.one_exchange(core, "/", ""),
            overview.totals(core),
        ]
        return [(each.counters.bytes_in, each.counters.bytes_out) for each in found]

    assert broker.call(moved) == [(4 * size, 4 * size)] * 2 + [(4 * size, 0), (4 * size, 4 * size)]


def test_bytes_of_a_stream_go_out_to_its_readers(channel: Channel, broker: Broker) -> None:
    core = broker.server.broker
    channel.declare("s", arguments={"x-queue-type": "stream"})
    publish(channel, 2, key="s")
    channel.qos(10)
    channel.consume("s", arguments={"x-stream-offset": "first"})
    sent = 0
    for _ in range(2):
        sent += len(channel.delivery().body)
    stream = broker.call(lambda: queues.one_queue(core, "/", "s")).counters
    reader = broker.call(lambda: channels_of(core))[0].counters
    assert stream.bytes_out == reader.bytes_out > sent


def test_bytes_of_a_direct_reply_are_counted_on_both_channels(
    q: Channel, connect: Callable[..., Client], broker: Broker
) -> None:
    core = broker.server.broker
    q.consume("amq.rabbitmq.reply-to", no_ack=True)
    q.publish("q", b"ask", reply_to="amq.rabbitmq.reply-to")
    answering = connect().channel()
    answering.publish(answering.get("q", no_ack=True).properties["reply_to"], b"answer")
    assert q.delivery().body == b"answer"
    found = [view.counters for view in broker.call(lambda: channels_of(core))]
    (asked,) = [counters for counters in found if counters.delivered_auto_ack]
    (answered,) = [counters for counters in found if counters.got_auto_ack]
    assert asked.bytes_out == answered.bytes_in == len("answer") + 15


def test_octets_of_a_connection_are_those_of_its_socket(q: Channel, broker: Broker) -> None:
    def counters() -> Counters:
        return connections_of(broker.server.broker)[0].counters

    before = broker.call(counters)
    with q.client.together() as sent:
        q.publish("q", b"x" * 1000)
    q.get("q", no_ack=True)
    after = broker.call(counters)
    basic_get = 8 + 4 + 2 + 2 + 1
    assert after.octets_in - before.octets_in == len(b"".join(sent)) + basic_get
    get_ok = 8 + 4 + 9 + 1 + 2 + 4
    assert after.octets_out - before.octets_out == get_ok + (8 + 15) + (8 + 1000)
    assert broker.call(lambda: overview.totals(broker.server.broker)).counters.octets_in == after.octets_in


def test_a_connection_and_the_broker_keep_what_channels_and_connections_counted_that_are_gone(
    q: Channel, connect: Callable[..., Client], counted: Counted
) -> None:
    other = connect()
    first, second = other.channel(), other.channel()
    publish(first, 2)
    publish(second, 3)
    first.close()
    assert counted.connections() == [{}, {"published": 5}]
    other.close()
    assert counted.connections() == [{}]
    assert counted.total() == {"published": 5}


def test_a_channel_counts_for_itself(q: Channel, counted: Counted) -> None:
    other = q.client.channel()
    publish(q, 2)
    publish(other, 1)
    assert counted.channels() == [{"published": 2}, {"published": 1}]
    assert counted.connections() == [{"published": 3}]


def test_a_stream_counts_for_its_readers_and_groups(joined: Joined, counted: Counted) -> None:
    member = joined(3)
    member.ack(member.deliveries(3)[-1].tag, multiple=True)
    member.quiet()
    assert counted.queue("s") == {"published": 3, "delivered": 3, "acked": 3}
    member.qos(10)
    member.consume("s", "reader", arguments={"x-stream-offset": "first"})
    member.deliveries(3)
    assert counted.queue("s") == {"published": 3, "delivered": 6, "acked": 3}


def test_churn_counts_connections_channels_and_queues_that_begin_and_end(
    q: Channel, broker: Broker, counted: Counted
) -> None:
    def churn() -> Churn:
        return broker.call(lambda: overview.totals(broker.server.broker).churn)

    assert churn() == Churn(connections_opened=1, channels_opened=1, queues_declared=1, queues_created=1)
    q.declare("q")
    q.declare("q", passive=True)
    q.declare("mine", durable=False, exclusive=True)
    assert (churn().queues_declared, churn().queues_created) == (3, 2)
    q.client.close()
    broker.wait_until(lambda: not broker.server.broker.sessions, "the connection is gone")
    assert churn() == Churn(1, 1, 1, 1, queues_declared=3, queues_created=2, queues_deleted=1)


def test_routed_counts_the_copies_that_go_to_queues(q: Channel, counted: Counted) -> None:
    q.declare("other")
    q.exchange("x")
    q.bind("q", "x")
    q.bind("other", "x")
    publish(q, 3, key="", exchange="x")
    publish(q, 2)
    publish(q, 1, key="nowhere")
    assert (counted.routed("x"), counted.routed(""), counted.routed()) == (6, 2, 8)
    q.tx_select()
    publish(q, 1, key="", exchange="x")
    assert counted.routed("x") == 6
    q.tx_commit()
    assert (counted.routed("x"), counted.routed()) == (8, 10)
