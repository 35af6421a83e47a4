"""kombu's tour with py-amqp under it: what Celery and others build on.

Owns what a user of kombu relies on: its entities, `ensure`, `ConsumerMixin`, and py-amqp's exceptions.
What Celery makes of it is in `test_celery.py`.
"""

import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from queue import Empty
from queue import Queue as Inbox
from typing import Any

import pytest
from amqp.exceptions import (
    AccessRefused,
    ConsumerCancelled,
    MessageNacked,
    NotAllowed,
    NotFound,
    PreconditionFailed,
    ResourceLocked,
)
from kombu import Connection, Consumer, Exchange, Message, Producer, Queue, binding
from kombu.mixins import ConsumerMixin

from tests.interop.kombu_client import (
    CONFIRMED,
    Fresh,
    consume,
    payloads,
    publish,
    ready,
    receive,
    redelivered,
)
from tests.interop.wire import WAIT_S, Proxy


@pytest.fixture
def connection(amqp_url: str) -> Iterator[Connection]:
    with Connection(amqp_url, transport_options=CONFIRMED) as opened:
        yield opened


@pytest.fixture
def channel(connection: Connection) -> Any:
    return connection.default_channel


@pytest.fixture
def queue(channel: Any, fresh: Fresh) -> Queue:
    declared = Queue(fresh("queue"), durable=True, channel=channel)
    declared.declare()
    return declared


# -- routing and publishing -----------------------------------------------------------------------

ROUTES: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any] | None]] = [
    # type, binding, a publish that matches, one that does not (None: everything matches)
    ("direct", {"routing_key": "a"}, {"routing_key": "a"}, {"routing_key": "b"}),
    ("fanout", {}, {"routing_key": "anything"}, None),
    ("topic", {"routing_key": "#.c"}, {"routing_key": "a.b.c"}, {"routing_key": "a.b"}),
    (
        "headers",
        {"arguments": {"x-match": "all", "size": 5, "colour": "red"}},
        {"headers": {"colour": "red", "size": 5}},
        {"headers": {"colour": "red"}},
    ),
]


@pytest.mark.parametrize(("kind", "bound", "matches", "misses"), ROUTES)
def test_an_exchange_routes_what_its_binding_matches_and_returns_the_rest(
    channel: Any, fresh: Fresh, kind: str, bound: Any, matches: Any, misses: Any
) -> None:
    source = Exchange(fresh("source"), kind, channel=channel)
    source.declare()
    queue = Queue(fresh("queue"), bindings=[binding(source, **bound)], exclusive=True, channel=channel)
    queue.declare()
    returned: list[Any] = []
    producer = Producer(channel, source, on_return=lambda *returning: returned.append(returning))
    producer.publish("routed", mandatory=True, **matches)
    assert (ready(channel, queue), returned) == (1, [])
    if misses is not None:
        producer.publish("back", mandatory=True, **misses)
        assert (ready(channel, queue), len(returned)) == (1, 1)
    queue.unbind_from(source, **bound)
    producer.publish("back", mandatory=True, **matches)
    error, exchange, _, message = returned[-1]
    assert (error.reply_code, error.reply_text, exchange) == (312, "NO_ROUTE", source.name)
    assert message.body == "back"
    source.delete()


def test_an_exchange_bound_to_another_passes_its_messages_on(
    channel: Any, queue: Queue, fresh: Fresh
) -> None:
    source, target = (Exchange(fresh("exchange"), "fanout", channel=channel) for _ in range(2))
    source.declare()
    target.declare()
    target.bind_to(source)
    queue.bind_to(target)
    Producer(channel, source).publish("passed on", mandatory=True)
    assert queue.get(no_ack=True).payload == "passed on"


def test_a_full_queue_that_rejects_publishes_gives_a_nack(channel: Any, fresh: Fresh) -> None:
    arguments = {"x-overflow": "reject-publish"}
    full = Queue(fresh("full"), max_length=1, queue_arguments=arguments, exclusive=True, channel=channel)
    full.declare()
    publish(channel, full, "fits")
    with pytest.raises(MessageNacked):
        publish(channel, full, "does not")
    assert ready(channel, full) == 1


# -- settling -------------------------------------------------------------------------------------


def test_prefetch_holds_back_what_is_not_acknowledged_yet(
    connection: Connection, channel: Any, queue: Queue
) -> None:
    publish(channel, queue, "1", "2", "3", "4")
    consumer, inbox = consume(channel, queue, 2, prefetch_count=2)
    assert ready(channel, queue) == 2
    inbox[0].ack()
    receive(connection, inbox, 3)
    assert ready(channel, queue) == 1
    inbox[2].ack(multiple=True)
    receive(connection, inbox, 4)
    assert payloads(inbox) == ["1", "2", "3", "4"]
    assert [message.delivery_tag for message in inbox] == [1, 2, 3, 4]
    assert redelivered(inbox) == [False] * 4
    consumer.cancel()


def test_a_wider_global_prefetch_reaches_a_consumer_that_runs(
    connection: Connection, channel: Any, queue: Queue
) -> None:
    publish(channel, queue, "1", "2", "3")
    channel.basic_qos(0, 1, True)
    _, inbox = consume(channel, queue, 1)
    assert ready(channel, queue) == 2
    channel.basic_qos(0, 3, True)
    receive(connection, inbox, 3)


def test_requeued_messages_come_back_in_their_old_places_marked_redelivered(
    channel: Any, queue: Queue
) -> None:
    publish(channel, queue, "1", "2", "3", "4")
    consumer, first = consume(channel, queue, 4)
    consumer.cancel()
    first[0].ack()
    first[3].requeue()
    first[2].reject(requeue=True)
    channel.basic_reject(first[1].delivery_tag, requeue=True)
    _, second = consume(channel, queue, 3)
    assert payloads(second) == ["2", "3", "4"]
    assert redelivered(second) == [True, True, True]
    channel.basic_recover(requeue=True)
    receive(channel.connection.client, second, 6)
    assert payloads(second[3:]) == ["2", "3", "4"]


def test_a_rejected_message_is_dead_lettered(channel: Any, queue: Queue, fresh: Fresh) -> None:
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue.name}
    source = Queue(fresh("source"), queue_arguments=arguments, exclusive=True, channel=channel)
    source.declare()
    publish(channel, source, "poison")
    source.get().reject()
    _, (dead,) = consume(channel, queue, 1)
    (death,) = dead.headers["x-death"]
    assert (dead.payload, death["queue"], death["reason"]) == ("poison", source.name, "rejected")


def test_get_takes_one_message_or_none(channel: Any, queue: Queue) -> None:
    assert queue.get() is None
    publish(channel, queue, "1", "2")
    first = queue.get()
    assert (first.payload, first.delivery_info["message_count"]) == ("1", 1)
    first.requeue()
    again = queue.get()
    assert (again.payload, again.delivery_info["redelivered"]) == ("1", True)
    again.ack()
    assert queue.purge() == 1


def test_a_simple_queue_is_read_in_order_until_it_is_empty(connection: Connection, fresh: Fresh) -> None:
    with connection.SimpleQueue(fresh("simple")) as simple:
        for number in range(5):
            simple.put({"number": number})
        assert simple.qsize() == 5
        for number in range(5):
            message = simple.get(timeout=WAIT_S)
            assert message.payload == {"number": number}
            message.ack()
        with pytest.raises(Empty):
            simple.get(block=False)


def test_a_transaction_is_seen_after_its_commit_only(amqp_url: str, channel: Any, queue: Queue) -> None:
    with Connection(amqp_url) as plain:
        tx = plain.default_channel
        tx.tx_select()
        publish(tx, queue, "rolled back")
        tx.tx_rollback()
        publish(tx, queue, "committed")
        assert ready(channel, queue) == 0
        tx.tx_commit()
        assert queue.get(no_ack=True).payload == "committed"
        assert queue.get() is None


# -- errors ---------------------------------------------------------------------------------------


def ack_what_was_never_delivered(channel: Any, queue: Queue) -> None:
    channel.basic_ack(100)
    ready(channel, queue)


def publish_to_missing(channel: Any, _queue: Queue) -> None:
    Producer(channel).publish("lost", exchange="missing")


def delete_while_in_use(channel: Any, queue: Queue) -> None:
    Consumer(channel, [queue], on_message=print).consume()
    queue.delete(if_unused=True)


def declare_differently(channel: Any, queue: Queue) -> None:
    Queue(queue.name, durable=False, channel=channel).declare()


def bind_to_the_default_exchange(channel: Any, queue: Queue) -> None:
    queue.bind_to(Exchange("", channel=channel), "")


ERRORS: list[tuple[Callable[[Any, Queue], object], type[Exception], str]] = [
    (lambda ch, _: Queue("missing", channel=ch).queue_declare(passive=True), NotFound, "no queue 'missing'"),
    (lambda ch, _: Exchange("missing", passive=True, channel=ch).declare(), NotFound, "no exchange 'miss"),
    (publish_to_missing, NotFound, "no exchange 'missing' in vhost '/'"),
    (declare_differently, PreconditionFailed, "inequivalent arg 'durable'"),
    (ack_what_was_never_delivered, PreconditionFailed, "unknown delivery tag 100"),
    (delete_while_in_use, PreconditionFailed, "in use"),
    (lambda ch, _: Queue("amq.mine", channel=ch).declare(), AccessRefused, "reserved prefix 'amq.*'"),
    (bind_to_the_default_exchange, AccessRefused, "operation not permitted on the default exchange"),
]


@pytest.mark.parametrize(("mistake", "error", "text"), ERRORS)
def test_a_mistake_closes_the_channel_and_the_connection_goes_on(
    connection: Connection, queue: Queue, mistake: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error) as caught:
        mistake(queue.channel, queue)
    assert text in caught.value.reply_text
    again = queue(connection.channel())
    publish(again.channel, again, "goes on")
    assert again.get(no_ack=True).payload == "goes on"


def test_a_wrong_password_and_a_missing_vhost_are_told_apart(amqp_url: str) -> None:
    wrong = Connection(amqp_url.replace("guest:guest", "guest:wrong"))
    with pytest.raises(AccessRefused, match="ACCESS_REFUSED - Login was refused"):
        wrong.connect()
    with pytest.raises(NotAllowed, match="vhost missing not found"):
        Connection(amqp_url, virtual_host="missing").connect()


# -- queues and content ---------------------------------------------------------------------------


def delete_elsewhere(url: str, queue: Queue) -> None:
    with Connection(url) as other:
        queue(other.default_channel).delete()


def test_a_deleted_queue_cancels_its_consumers(amqp_url: str, connection: Connection, queue: Queue) -> None:
    cancelled: list[str] = []
    queue.consume(consumer_tag="told", callback=print, on_cancel=cancelled.append)
    delete_elsewhere(amqp_url, queue)
    deadline = time.monotonic() + WAIT_S
    while not cancelled:
        connection.drain_events(timeout=deadline - time.monotonic())
    assert cancelled == ["told"]


def test_a_consumer_that_can_not_be_told_of_its_deleted_queue_raises(
    amqp_url: str, connection: Connection, queue: Queue
) -> None:
    Consumer(queue.channel, [queue], on_message=print).consume()
    delete_elsewhere(amqp_url, queue)
    with pytest.raises(ConsumerCancelled) as caught:
        connection.drain_events(timeout=WAIT_S)
    assert isinstance(caught.value, connection.recoverable_connection_errors)


def test_queues_are_named_locked_and_deleted_with_their_owner_or_last_consumer(
    amqp_url: str, connection: Connection, fresh: Fresh
) -> None:
    with Connection(amqp_url) as owner:
        mine = Queue("", exclusive=True, channel=owner.default_channel)
        mine.declare()
        assert mine.name.startswith("amq.gen-")
        with pytest.raises(ResourceLocked, match="cannot obtain exclusive access to locked queue"):
            ready(connection.channel(), mine)
        passing = Queue(fresh("passing"), auto_delete=True, channel=owner.default_channel)
        with Consumer(owner.default_channel, [passing], on_message=print):
            assert ready(connection.channel(), passing) == 0
        with pytest.raises(NotFound):
            ready(connection.channel(), passing)
    with pytest.raises(NotFound):
        ready(connection.channel(), mine)


def test_headers_of_every_type_come_back_as_they_were(channel: Any, queue: Queue) -> None:
    moment = datetime(2024, 2, 29, 12, 30, 15, tzinfo=UTC).replace(tzinfo=None)
    headers = {
        "text": "häuser 🐇",
        "bool": True,
        "int": -5,
        "long": 2**40,
        "double": 2.5e100,
        "decimal": Decimal("-3.14159"),
        "time": moment,
        "table": {"nested": {"deep": [1, "two", {"three": 3}]}},
        "array": ["a", 1, None, [True]],
        "void": None,
    }
    properties = {"message_id": "message", "type": "type", "timestamp": 1_700_000_000, "app_id": "app"}
    Producer(channel).publish("all", routing_key=queue.name, headers=headers, priority=7, **properties)
    received = queue.get(no_ack=True)
    assert received.headers == headers
    expected = {**properties, "priority": 7, "delivery_mode": 2}
    assert {key: received.properties[key] for key in expected} == expected


@pytest.mark.parametrize("size_bytes", [0, 1, 131064, 131065, 1 << 20])
def test_a_body_of_any_size_comes_back_as_it_was(channel: Any, queue: Queue, size_bytes: int) -> None:
    body = (bytes(range(256)) * (size_bytes // 256 + 1))[:size_bytes]
    Producer(channel).publish(body, routing_key=queue.name, content_type="application/data")
    _, (received,) = consume(channel, queue, 1)
    assert (received.body or b"") == body  # py-amqp has a str for nothing


def test_json_pickle_and_compressed_bodies_are_decoded_again(channel: Any, queue: Queue) -> None:
    producer = Producer(channel, routing_key=queue.name)
    value = {"numbers": list(range(50)), "text": "häuser"}
    producer.publish(value, serializer="json", compression="zlib")
    producer.publish(value, serializer="pickle")
    _, received = consume(channel, queue, 2, accept=["json", "pickle"])
    assert [message.decode() for message in received] == [value, value]


# -- the wire -------------------------------------------------------------------------------------


def test_heartbeats_go_both_ways_and_keep_an_idle_connection(proxy: Proxy) -> None:
    deadline = time.monotonic() + WAIT_S
    with Connection(proxy.url, heartbeat=1) as connection:
        connection.connect()
        while min(proxy.heartbeats.values()) < 3:
            assert time.monotonic() < deadline
            connection.heartbeat_check()
            try:
                connection.drain_events(timeout=0.2)
            except TimeoutError:
                continue
        connection.channel()


def test_a_retried_publish_reconnects_after_a_cut(proxy: Proxy, channel: Any, queue: Queue) -> None:
    with Connection(proxy.url, transport_options=CONFIRMED) as cuttable:
        producer = cuttable.Producer()
        errors: list[Exception] = []
        policy = {"max_retries": 5, "interval_start": 0, "errback": lambda error, _: errors.append(error)}
        for number in ("1", "2", "3"):
            producer.publish(number, routing_key=queue.name, retry=True, retry_policy=policy)
            proxy.cut()
    assert len(errors) == 2
    assert payloads(consume(channel, queue, 3)[1]) == ["1", "2", "3"]


class Worker(ConsumerMixin):
    """Keeps what it is given without acknowledging it."""

    def __init__(self, connection: Connection, queue: Queue) -> None:
        self.connection, self.queue = connection, queue
        self.inbox: Inbox[Message] = Inbox()

    def get_consumers(self, consumer: Any, _channel: Any) -> list[Consumer]:
        return [consumer([self.queue], on_message=self.inbox.put, prefetch_count=2)]

    def take(self, count: int) -> list[Message]:
        return [self.inbox.get(timeout=WAIT_S) for _ in range(count)]


def test_a_consumer_mixin_reconnects_and_gets_what_it_had_not_acknowledged(
    proxy: Proxy, channel: Any, queue: Queue
) -> None:
    publish(channel, queue, "1", "2", "3")
    worker = Worker(Connection(proxy.url), queue)
    running = threading.Thread(target=worker.run)
    running.start()
    try:
        first = worker.take(2)
        proxy.cut()
        again = worker.take(2)
    finally:
        worker.should_stop = True
        running.join(WAIT_S)
    assert payloads(first) == payloads(again) == ["1", "2"]
    assert (redelivered(first), redelivered(again)) == ([False, False], [True, True])
    assert not running.is_alive()
