"""The handshake in all its variants, tuning, and how connections end.

RabbitMQ makes a client that failed to log in wait for three seconds, so failures are played side by side.
"""

from tests.differential import wire
from tests.differential.play import Play
from tests.differential.script import HEADER, Peer

AMQPLAIN = wire.table({"LOGIN": "guest", "PASSWORD": "guest"})[4:]
PROTOCOL_HEADERS = (
    b"AMQP\x00\x00\x09\x02",
    b"AMQP\x00\x00\x08\x00",
    b"AMQP\x01\x01\x00\x0a",
    b"AMQP\x00\x01\x00\x00",
    b"AMQP\x03\x01\x00\x00",
    b"HTTP/1.1",
)


def _started(play: Play) -> Peer:
    peer = play.socket()
    peer.start()
    peer.channel(0).events.clear()
    return peer


def _tuned(play: Play) -> Peer:
    peer = _started(play)
    peer.start_ok()
    peer.channel(0).events.clear()
    return peer


def a_whole_handshake(play: Play) -> None:
    peer = play.socket()
    peer.start()
    play.settle()
    peer.start_ok()
    play.settle()
    peer.tune_ok()
    peer.open()
    play.settle()
    peer.channel(1).channel_open()
    peer.channel(0).connection_close(200, "bye", 0, 0)


def wrong_protocol_headers(play: Play) -> None:
    for header in PROTOCOL_HEADERS:
        peer = play.socket()
        peer.send(header, f"{peer.name} > {header!r}")
    for peer in play.peers:
        peer.read_until(lambda peer=peer: peer.ended)
    play.settle()


def protocol_headers_of_older_versions(play: Play) -> None:
    for header in (b"AMQP\x01\x01\x00\x09", b"AMQP\x01\x01\x08\x00"):
        peer = play.socket()
        peer.send(header, f"{peer.name} > {header!r}")
        peer.read_until(lambda peer=peer: peer.channel(0).count_of("connection.start"))
        peer.channel(0).events = [
            event.partition(" server_properties")[0] for event in peer.channel(0).events
        ]
    play.settle()


def a_protocol_header_in_two_pieces(play: Play) -> None:
    peer = play.socket()
    peer.send(HEADER[:3], None)
    peer.send(HEADER[3:], None)
    peer.read_until(lambda: peer.channel(0).events)
    peer.channel(0).events.clear()
    peer.start_ok()
    play.settle()


def logging_in_with_amqplain(play: Play) -> None:
    peer = play.connect(mechanism="AMQPLAIN", response=AMQPLAIN)
    peer.channel(1).open().queue_declare("q")


def failing_logins(play: Play) -> None:
    without = {"authentication_failure_close": False}
    attempts = (
        {"response": b"\x00guest\x00wrong"},
        {"response": b"\x00guest\x00wrong", "capabilities": without},
        {"response": b"\x00nobody\x00guest", "capabilities": {}},
        {"response": b"\x00nobody\x00guest"},
        {"mechanism": "AMQPLAIN", "response": wire.table({"LOGIN": "guest", "PASSWORD": "wrong"})[4:]},
        {"response": b"not plain at all"},
        {"mechanism": "AMQPLAIN", "response": wire.table({"LOGIN": "guest"})[4:]},
        {"mechanism": "NO-SUCH-THING"},
    )
    for attempt in attempts:
        peer = _started(play)
        method = wire.method_class("connection_start_ok")
        capabilities = attempt.get("capabilities", {"authentication_failure_close": True})
        values = {key: value for key, value in attempt.items() if key != "capabilities"}
        properties = {"capabilities": capabilities}
        defaults = {"response": b"\x00guest\x00guest"}
        peer.channel(0).send_method(method, {"client_properties": properties} | defaults | values)
    for peer in play.peers:
        peer.read_until(lambda peer=peer: peer.ended)
    play.settle()


def tuning_wrongly_and_breaking_what_was_agreed(play: Play) -> None:
    for channel_max, frame_max in (
        (2048, 131_072),
        (2047, 131_073),
        (2047, 4095),
        (65535, 131_072),
        (0, 131_072),
        (2047, 0),
    ):
        peer = _tuned(play)
        peer.tune_ok(channel_max, frame_max)
        peer.channel(0).send_method(wire.method_class("connection_open"), {"virtual_host": "/"})
    for waits in (True, False):
        peer = _tuned(play)
        peer.tune_ok(10, 4096, 0)
        peer.channel(0).send_method(wire.method_class("connection_open"), {"virtual_host": "/"})
        if waits:
            peer.await_answer()
        peer.channel(1).frame(wire.BODY, b"x" * 4097, told="a body frame larger than was agreed")
    for peer in play.peers:
        peer.read_until(lambda peer=peer: peer.ended)
    play.settle()


def unknown_virtual_hosts(play: Play) -> None:
    for vhost in ("nowhere", "", "it's"):
        peer = _tuned(play)
        peer.tune_ok()
        peer.channel(0).send_method(wire.method_class("connection_open"), {"virtual_host": vhost})
    for peer in play.peers:
        peer.read_until(lambda peer=peer: peer.ended)
    play.settle()


def the_wrong_method_during_the_handshake(play: Play) -> None:
    peer = _started(play)
    peer.channel(0).send_method(wire.method_class("connection_tune_ok"), {})
    peer = _started(play)
    peer.channel(0).send_method(wire.method_class("connection_open"), {})
    peer = _started(play)
    peer.channel(1).send_method(wire.method_class("channel_open"), {})
    peer = _tuned(play)
    peer.channel(0).send_method(wire.method_class("connection_start_ok"), {})
    peer = _tuned(play)
    peer.tune_ok()
    peer.channel(1).send_method(wire.method_class("channel_open"), {})
    peer = _started(play)
    peer.channel(0).frame(wire.METHOD, b"\x00\x0a\x03\x09")
    peer = _started(play)
    peer.channel(0).frame(wire.HEADER, b"")
    peer = _started(play)
    peer.channel(0).send_method(wire.method_class("connection_close"), {"reply_code": 200})
    for peer in play.peers:
        peer.read_until(lambda peer=peer: peer.ended)
    play.settle()


def tuning_small_frames(play: Play) -> None:
    peer = _tuned(play)
    peer.tune_ok(10, 4096, 0)
    peer.open()
    play.settle()
    channel = peer.channel(1)
    channel.open()
    channel.queue_declare("q")
    channel.publish(b"x" * 10_000, key="q")
    channel.basic_get("q", no_ack=True)


def more_channels_than_agreed(play: Play) -> None:
    peer = _tuned(play)
    peer.tune_ok(2, 131_072, 0)
    peer.open()
    peer.channel(1).channel_open()
    peer.channel(2).channel_open()
    peer.channel(3).channel_open()


def a_channel_number_above_channel_max(play: Play) -> None:
    peer = _tuned(play)
    peer.tune_ok(2, 131_072, 0)
    peer.open()
    peer.channel(7).channel_open()


def frames_ahead_of_their_answers(play: Play) -> None:
    """A client in a hurry sends everything after start-ok without waiting for answers."""
    peer = _tuned(play)
    with play.at_once():
        peer.tune_ok()
        peer.channel(0).send_method(wire.method_class("connection_open"), {"virtual_host": play.vhost})
        peer.channel(1).send_method(wire.method_class("channel_open"), {})
        peer.channel(1).send_method(wire.method_class("queue_declare"), {"queue": "q"})
    peer.read_until(lambda: peer.channel(1).count_of("queue.declare-ok"))
    peer.is_open = peer.was_open = True
    play.settle()


def closing_with_a_reason(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q", exclusive=True)
    play.peers[0].channel(0).connection_close(320, "going down", 0, 0)


def frames_after_the_clients_close_are_ignored(play: Play) -> None:
    channel = play.channel()
    peer = play.peers[0]
    with play.at_once():
        peer.channel(0).connection_close(200, "bye", 0, 0)
        channel.queue_declare("q")


def frames_before_close_ok_are_ignored(play: Play) -> None:
    peer = play.connect()
    peer.answers_close = False
    channel = peer.channel(1).open()
    channel.basic_qos(1, 1)
    channel.queue_declare("q")
    peer.channel(2).channel_open()
    peer.channel(0).connection_close_ok()
    peer.read_until(lambda: peer.ended)
    play.settle()


def a_close_crossing_the_servers_close(play: Play) -> None:
    peer = play.connect()
    peer.answers_close = False
    channel = peer.channel(1).open()
    channel.basic_qos(1, 1)
    peer.channel(0).connection_close(200, "bye", 0, 0)
    peer.channel(0).connection_close_ok()
    peer.read_until(lambda: peer.ended)
    play.settle()


def a_close_ok_nobody_asked_for(play: Play) -> None:
    play.connect().channel(0).connection_close_ok()


def updating_the_secret(play: Play) -> None:
    peer = play.connect()
    peer.channel(0).connection_update_secret("guest", "because")


def the_server_methods_of_the_handshake(play: Play) -> None:
    play.connect().channel(0).connection_tune(1, 4096, 0)


def blocked_from_a_client(play: Play) -> None:
    play.connect().channel(0).connection_blocked("me")


def a_dropped_connection_gives_back_what_it_held(play: Play) -> None:
    holder, other = play.connect(), play.connect()
    first, second = holder.channel(1).open(), other.channel(1).open()
    first.queue_declare("q")
    for body in "abc":
        first.publish(body, key="q")
    first.basic_consume("q", "c")
    holder.drop()
    play.await_count("q", 3)
    for _ in range(3):
        second.basic_get("q", no_ack=True)


def a_closed_connection_gives_back_what_it_held(play: Play) -> None:
    holder, other = play.connect(), play.connect()
    first, second = holder.channel(1).open(), other.channel(1).open()
    first.queue_declare("q")
    for body in "abc":
        first.publish(body, key="q")
    first.basic_get("q")
    first.basic_get("q")
    holder.channel(0).connection_close(200, "bye", 0, 0)
    for _ in range(4):
        second.basic_get("q", no_ack=True)
