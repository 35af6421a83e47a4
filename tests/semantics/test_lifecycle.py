"""Connections: handshake, errors that end them, heartbeats, back-pressure notices, graceful stop."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pika
import pytest
from pamqp import commands, frame, heartbeat
from pika.exceptions import ConnectionClosedByBroker

from leveret.amqp import frames, methods, properties
from leveret.broker.views.overview import totals
from leveret.fronts.amqp.connection import Connection
from leveret.server import socket as server_socket
from leveret.testing.broker import Broker
from leveret.testing.clock import VirtualClock
from leveret.testing.disk import Operation
from tests.processes import WAIT_S
from tests.semantics.client import CAPABILITIES, Channel, Client, ClosedByBroker, Lost

# the handshake


def raw(broker: Broker) -> socket.socket:
    return socket.create_connection(("127.0.0.1", broker.port), timeout=WAIT_S)


@pytest.mark.parametrize(
    "header", [b"AMQP\x00\x00\x09\x02", b"AMQP\x01\x01\x00\x0a", b"GET / HT", b"\x00" * 8]
)
def test_a_wrong_protocol_header_is_answered_with_the_right_one(broker: Broker, header: bytes) -> None:
    with raw(broker) as client:
        client.sendall(header)
        answer = b""
        with contextlib.suppress(ConnectionError):
            while data := client.recv(100):
                answer += data
    assert answer == b"AMQP\x00\x00\x09\x01"


def test_the_broker_says_what_it_is(connect: Callable[..., Client]) -> None:
    client = connect()
    properties = client.start.server_properties
    assert properties["product"] == "Leveret"
    assert properties["version"] == "3.10.8"
    assert {"leveret_version", "platform", "information", "cluster_name"} <= properties.keys()
    assert properties["capabilities"] == dict.fromkeys(
        (
            "publisher_confirms",
            "exchange_exchange_bindings",
            "basic.nack",
            "consumer_cancel_notify",
            "connection.blocked",
            "consumer_priorities",
            "authentication_failure_close",
            "per_consumer_qos",
            "direct_reply_to",
            "delayed_requeue",
            "begun_marks",
            "publisher_dedup",
            "consumer_groups",
            "queue_peek",
        ),
        True,
    )
    assert client.start.mechanisms.split() == ["PLAIN", "AMQPLAIN"]
    assert client.start.locales == "en_US"
    assert (client.tune.channel_max, client.tune.frame_max, client.tune.heartbeat) == (2047, 131_072, 60)


def test_a_wrong_password_is_refused_in_words(connect: Callable[..., Client]) -> None:
    with pytest.raises(ClosedByBroker) as error:
        connect(password="wrong")
    assert error.value.code == 403
    assert error.value.text == (
        "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details see the broker "
        "logfile."
    )


def test_a_client_that_would_not_understand_is_dropped(connect: Callable[..., Client]) -> None:
    capabilities = {**CAPABILITIES, "authentication_failure_close": False}
    with pytest.raises(Lost):
        connect(password="wrong", capabilities=capabilities)


def test_an_unknown_vhost_is_refused(connect: Callable[..., Client]) -> None:
    with pytest.raises(ClosedByBroker) as error:
        connect(vhost="nowhere")
    assert (error.value.code, error.value.text) == (530, "NOT_ALLOWED - vhost nowhere not found")


def test_guest_comes_from_loopback_only(broker: Broker) -> None:
    def log_in(loopback: bool) -> Connection:
        connection = Connection(broker.server.broker, peer="somewhere", loopback=loopback)
        start_ok = commands.Connection.StartOk(
            client_properties={"capabilities": CAPABILITIES}, mechanism="PLAIN", response="\0guest\0guest"
        )
        for data in (b"AMQP\x00\x00\x09\x01", frame.marshal(start_ok, 0)):
            connection.receive(connection.scanner.feed(data))
        return connection

    here = broker.call(lambda: log_in(True))
    broker.wait_until(lambda: not here.awaits_login, "the password is checked")
    assert frame.unmarshal(here.out[-1])[2].name == "Connection.Tune"
    elsewhere = broker.call(lambda: log_in(False))
    assert frame.unmarshal(elsewhere.out[-1])[2].reply_code == 403
    broker.call(here.lost)
    broker.call(elsewhere.lost)


def test_a_handshake_that_does_not_end_is_cut_off(monkeypatch: pytest.MonkeyPatch, broker: Broker) -> None:
    assert server_socket.HANDSHAKE_S == 10
    monkeypatch.setattr(server_socket, "HANDSHAKE_S", 0.05)
    with raw(broker) as client:
        client.sendall(b"AMQP\x00\x00\x09\x01")
        with contextlib.suppress(ConnectionError):
            while client.recv(1000):
                pass
    broker.wait_until(lambda: not broker.server.turns.sockets, "no socket is left")


# errors that end a connection


@pytest.mark.parametrize(
    ("mistake", "code", "text"),
    [
        (
            lambda client: client.channels[1].send(commands.Channel.Open()),
            504,
            "CHANNEL_ERROR - second 'channel.open' seen",
        ),
        (
            lambda client: client.send(frame.marshal(commands.Basic.Ack(delivery_tag=1), 9)),
            504,
            "CHANNEL_ERROR - expected 'channel.open'",
        ),
        (
            lambda client: client.channels[1].send(commands.Channel.Flow(active=False)),
            540,
            "NOT_IMPLEMENTED - active=false",
        ),
    ],
)
def test_a_protocol_error_ends_the_connection_and_requeues_what_it_held(
    connect: Callable[..., Client], broker: Broker, mistake: Callable[[Client], None], code: int, text: str
) -> None:
    client = connect()
    channel = client.channel()
    channel.declare("q")
    channel.publish("q", "a")
    channel.get("q")
    mistake(client)
    error = channel.error()
    assert (error.code, error.text) == (code, text)
    assert broker.depth("q") == 1


def test_credit_is_a_method_that_nobody_knows(channel: Channel) -> None:
    basic_credit = b"\x00\x3c\x00\xc8\x01c\x00\x00\x00\x01\x00"  # class 60, method 200: tag, credit, drain
    channel.client.send(b"\x01\x00\x01" + len(basic_credit).to_bytes(4, "big") + basic_credit + b"\xce")
    assert channel.error().code == 540


def test_a_channel_error_leaves_the_others_alone(channel: Channel) -> None:
    other = channel.client.channel()
    channel.send(commands.Queue.Declare(queue="missing", passive=True))
    assert (channel.error().code, channel.error().text) == (
        404,
        "NOT_FOUND - no queue 'missing' in vhost '/'",
    )
    other.declare("q")
    channel.client.channels.pop(channel.number)
    assert other.count("q") == 0


def test_a_client_may_leave_a_message_unfinished_when_its_channel_was_closed(channel: Channel) -> None:
    publish = methods.make(
        commands.Basic.Publish, ticket=0, exchange="nowhere", routing_key="", mandatory=False, immediate=False
    )
    with channel.client.together():
        channel.publish("", "x", exchange="nowhere")
        channel.client.send(methods.frame(channel.number, publish))
        channel.client.send(frames.frame(frames.HEADER, channel.number, properties.encode({}, 100)))
    assert channel.error().code == 404  # and the client has answered it with close-ok
    assert channel.client.channel().declare("q").queue == "q"


def test_one_channel_too_many(connect: Callable[..., Client]) -> None:
    client = connect()
    opens = b"".join(frame.marshal(commands.Channel.Open(), number) for number in range(1, 2049))
    for number in range(1, 2049):
        client.channels[number] = Channel(client, number)
    client.send(opens)
    client.read_until(lambda: client.closed)
    assert client.closed is not None
    assert client.closed.code == 530
    assert client.closed.text == (
        "NOT_ALLOWED - number of channels opened (2047) has reached the negotiated channel_max (2047)"
    )


# heartbeats, on the real clock


def test_a_silent_peer_is_dropped_and_what_it_held_is_requeued(
    connect: Callable[..., Client], open_channel: Callable[[], Channel], broker: Broker
) -> None:
    silent = connect(heartbeat_s=1).channel()
    silent.declare("q")
    silent.publish("q", "a")
    silent.get("q")
    began_s = time.monotonic()
    silent.client.read_to_the_end()
    print(f"noticed after {time.monotonic() - began_s:.2f} s of two intervals of 1 s")
    assert silent.client.heartbeats >= 2, "the broker sent heartbeats meanwhile"
    broker.wait_until_depth("q", 1)
    got = open_channel().get("q")
    assert (got.text, got.redelivered) == ("a", True)


@pytest.mark.usefixtures("errors_expected")
def test_a_peer_that_neither_reads_nor_sends_is_dead_however_much_it_has_not_read(
    connect: Callable[..., Client], broker: Broker
) -> None:
    publisher = connect().channel()
    publisher.declare("q")
    for _ in range(24):
        publisher.publish("q", b"x" * 1_000_000)
    broker.wait_until_depth("q", 24)
    silent = connect(heartbeat_s=1).channel()
    silent.send(commands.Basic.Consume(queue="q", consumer_tag="c"))
    broker.wait_until(lambda: broker.server.broker.vhosts["/"].queue("q").unacked > 0, "it holds something")
    broker.wait_until_depth("q", 24)


def test_a_peer_that_sends_heartbeats_is_alive(connect: Callable[..., Client]) -> None:
    quiet = connect(heartbeat_s=1)
    quiet.channel()
    while quiet.heartbeats < 6:  # three intervals: a silent peer would be gone after two
        before = quiet.heartbeats
        quiet.read_until(lambda before=before: quiet.heartbeats > before)
        quiet.send(frame.marshal(heartbeat.Heartbeat(), 0))
    assert quiet.channel().quiet() == []


def test_a_peer_is_not_silent_because_the_broker_could_not_hear(
    connect: Callable[..., Client], broker: Broker
) -> None:
    client = connect(heartbeat_s=1)
    client.channel()
    broker.call(lambda: time.sleep(2.5))  # as on a machine that was suspended
    assert client.channel().quiet() == []


def test_a_silent_peer_is_dropped_by_a_broker_that_is_always_late(
    connect: Callable[..., Client], broker: Broker
) -> None:
    connect(heartbeat_s=1).channel()
    lates = 0
    while broker.call(lambda: broker.server.turns.sockets):
        broker.call(lambda: time.sleep(1.1))
        lates += 1
        assert lates < 12, "it lives on"


def test_without_heartbeats_none_are_sent(connect: Callable[..., Client], broker: Broker) -> None:
    client = connect(heartbeat_s=0)
    client.channel()

    def beating() -> bool:
        return any(socket._heartbeat is not None for socket in broker.server.turns.sockets.values())  # type: ignore[attr-defined]

    assert not broker.call(beating)


# blocked


def test_publishers_are_told_when_the_broker_is_short_of_something(
    connect: Callable[..., Client], broker: Broker
) -> None:
    publisher, consumer, later = connect(), connect(), connect()
    channel = publisher.channel()
    channel.declare("q")
    channel.publish("q", "a")
    channel.quiet()
    receiving = consumer.channel()
    receiving.consume("q")
    receiving.delivery()
    broker.set_alarm("memory", on=True)
    assert publisher.own.next(commands.Connection.Blocked).method.reason == "low on memory"
    publishing = later.channel()
    publishing.publish("q", "b")
    assert later.own.next(commands.Connection.Blocked).method.reason == "low on memory"
    receiving.ack(1)
    receiving.quiet()
    assert not consumer.own.inbox, "consumers go on, and are not told"
    channel.publish("q", "held back")
    assert [each.text for each in receiving.quiet()] in ([], ["b"])
    broker.set_alarm("memory", on=False)
    publisher.own.next(commands.Connection.Unblocked)
    channel.quiet()
    assert broker.call(lambda: totals(broker.server.broker).counters.published) == 3


def test_a_publisher_that_is_faster_than_the_disk_is_not_read_from(channel: Channel, broker: Broker) -> None:
    channel.declare("q")
    channel.confirm_select()
    channel.publish_confirmed("q", "warm")
    waiting, go = threading.Event(), threading.Event()

    def before(operation: Operation) -> None:
        if operation.kind == "sync":
            waiting.set()
            assert go.wait(WAIT_S)

    assert broker.disk is not None
    broker.disk.before = before
    broker.call(lambda: setattr(broker.server.turns, "sync_share_bytes", 1 << 40))
    with channel.client.together() as sent:
        channel.publish("q", b"x" * 100_000)
    (one,) = sent
    count = 700
    channel.client.socket.settimeout(60)
    sending = threading.Thread(target=channel.client.socket.sendall, args=(one * (count - 1),))
    sending.start()
    try:
        broker.wait_until(lambda: broker.server.turns.held_back, "publishers are held back")
        unsynced = broker.call(lambda: broker.server.broker.store.unsynced_bytes)
        taken = broker.depth("q")
    finally:
        broker.disk.before = None
        go.set()
    assert unsynced < 48 << 20
    assert taken < count, "the rest of 70 MB has not been read"
    assert channel.confirmed(count) == {"ack": count, "nack": 0}
    sending.join(WAIT_S)
    assert broker.depth("q") == count + 1


# the end


def test_a_graceful_stop_says_goodbye(channel: Channel, broker: Broker) -> None:
    stopping = threading.Thread(target=broker.stop)
    stopping.start()
    error = channel.error()
    stopping.join(WAIT_S)
    assert (error.code, error.text) == (
        320,
        "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'",
    )
    channel.client.read_to_the_end()


# pika logs the close as an error
@pytest.mark.usefixtures("errors_expected")
def test_a_broker_that_stops_tells_its_clients(broker: Broker) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    broker.stop()
    with pytest.raises(ConnectionClosedByBroker, match="CONNECTION_FORCED") as caught:
        connection.process_data_events(time_limit=10)
    assert caught.value.reply_code == 320


@pytest.fixture
def patient(clock: VirtualClock) -> Iterator[Broker]:
    """A broker that waits for its clients when it stops."""
    with Broker(clock=clock, goodbye_s=20.0) as broker:
        yield broker


def test_a_graceful_stop_confirms_first_what_it_has_taken(patient: Broker) -> None:
    broker, channel = patient, Client(patient.port).channel()
    channel.declare("q")
    channel.confirm_select()
    channel.publish_confirmed("q", "warm")
    waiting, go = threading.Event(), threading.Event()

    def before(operation: Operation) -> None:
        if operation.kind == "sync":
            waiting.set()
            assert go.wait(WAIT_S)

    assert broker.disk is not None
    broker.disk.before = before
    channel.publish("q", "a")
    assert waiting.wait(WAIT_S)
    stopping = threading.Thread(target=broker.stop)
    stopping.start()
    broker.disk.before = None
    go.set()
    assert channel.confirmed(1) == {"ack": 1, "nack": 0}
    assert channel.error().code == 320
    stopping.join(WAIT_S)
    broker.start()
    again = Client(broker.port).channel()
    assert again.get_all("q") == ["warm", "a"]
    again.client.close()


def test_a_graceful_stop_keeps_persistent_messages_that_nobody_waited_for(
    channel: Channel, open_channel: Callable[[], Channel], broker: Broker
) -> None:
    channel.declare("q")
    channel.publish("q", "a")
    channel.quiet()
    broker.restart()
    assert open_channel().get_all("q") == ["a"]


def test_after_a_stop_nothing_listens(broker: Broker) -> None:
    port = broker.port
    broker.stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=1)
    broker.start()


def test_a_failed_sync_ends_the_broker(channel: Channel, broker: Broker, errors_expected: None) -> None:
    channel.declare("q")
    channel.confirm_select()
    channel.publish_confirmed("q", "a")
    broker.faults.failing_sync()
    channel.publish("q", "b")
    with contextlib.suppress(Lost):
        channel.client.read_until(lambda: False)
    assert not channel.inbox, "neither acked nor nacked"
    assert broker.server.failure is not None


def test_update_secret_is_answered(channel: Channel) -> None:
    channel.client.own.call(
        commands.Connection.UpdateSecret("new", "rotation"), commands.Connection.UpdateSecretOk
    )


def closed(client: Client) -> Client:
    """Close a connection, and leave its socket open."""
    client.own.call(commands.Connection.Close(200, "", 0, 0), commands.Connection.CloseOk)
    return client


def test_what_a_client_writes_after_close_ok_is_read_and_discarded(connect: Callable[..., Client]) -> None:
    """amqplib goes on writing what it has in its buffers; with an error there its close never ends."""
    client = closed(connect())
    client.socket.sendall(bytes(4 << 20))
    client.socket.shutdown(socket.SHUT_WR)
    assert client.socket.recv(1) == b""


def test_a_client_that_keeps_its_socket_after_close_ok_is_cut_off(
    connect: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_socket, "_CLOSE_S", 0.0)
    assert closed(connect()).socket.recv(1) == b""


def test_publishers_held_back_after_close_ok_are_still_read(
    connect: Callable[..., Client], broker: Broker
) -> None:
    client = connect()
    client.channel().publish("nowhere")
    closed(client)
    broker.call(lambda: [each.hold_back(True) for each in broker.server.turns.sockets.values()])
    client.socket.sendall(bytes(4 << 20))
    client.socket.shutdown(socket.SHUT_WR)
    assert client.socket.recv(1) == b""
