"""Settings made over HTTP while clients are connected: users, limits, virtual hosts."""

from tests.differential.play import Play
from tests.differential.script import Peer

ALL = {"configure": ".*", "write": ".*", "read": ".*"}


def _add_ann(play: Play) -> None:
    play.http("PUT", "/api/users/{ann}", {"password": "x", "tags": ""})
    play.http("PUT", "/api/permissions/{vhost}/{ann}", ALL)


def _opening(play: Play, user: str = "guest", *, password: str = "guest", vhost: str | None = None) -> Peer:
    """A connection whose connection.open is answered in the transcript."""
    peer = play.socket()
    peer.start()
    with play.silence():
        peer.start_ok(response=f"\0{user}\0{password}")
        peer.tune_ok()
        peer.channel(0).events.clear()
        peer.open(vhost)
    if not peer.is_open:
        # Servers close the socket a little later than they say so.
        peer.read_until(lambda: False)
    play.settle()
    return peer


def _as_ann(play: Play, *, vhost: str | None = None) -> Peer:
    return _opening(play, play.http.own("ann"), password="x", vhost=vhost)


def a_user_is_made_and_deleted_while_connected(play: Play) -> None:
    _add_ann(play)
    peer = play.connect(response=f"\0{play.http.own('ann')}\0x")
    peer.channel(1).open().queue_declare("q")
    play.http("DELETE", "/api/users/{ann}")
    play.settle()


def a_virtual_host_with_a_limit_of_connections(play: Play) -> None:
    play.http("PUT", "/api/vhosts/{v}")
    vhost = play.http.own("v")
    limit = "/api/vhost-limits/{v}/max-connections"
    play.http("PUT", limit, {"value": 1})
    first = _opening(play, vhost=vhost)
    _opening(play, vhost=vhost)
    first.channel(0).connection_close(200, "", 0, 0)
    _opening(play, vhost=vhost)
    play.http("PUT", limit, {"value": 0})
    _opening(play, vhost=vhost)
    play.http("PUT", limit, {"value": -1})
    _opening(play, vhost=vhost)
    play.http("DELETE", limit)
    _opening(play, vhost=vhost)


def a_user_with_a_limit_of_connections(play: Play) -> None:
    _add_ann(play)
    limit = "/api/user-limits/{ann}/max-connections"
    play.http("PUT", limit, {"value": 1})
    first = _as_ann(play)
    _as_ann(play)
    first.channel(0).connection_close(200, "", 0, 0)
    _as_ann(play)
    play.http("PUT", limit, {"value": 0})
    _as_ann(play)
    play.http("PUT", limit, {"value": -7})
    _as_ann(play)


def of_two_limits_of_connections_the_one_of_the_virtual_host_is_told(play: Play) -> None:
    _add_ann(play)
    play.http("PUT", "/api/vhosts/{v}")
    play.http("PUT", "/api/user-limits/{ann}/max-connections", {"value": 0})
    play.http("PUT", "/api/vhost-limits/{v}/max-connections", {"value": 0})
    _as_ann(play, vhost=play.http.own("v"))
    _as_ann(play, vhost=play.http.own("missing"))


def a_user_with_a_limit_of_channels(play: Play) -> None:
    _add_ann(play)
    first, second = _as_ann(play), _as_ann(play)
    for number in (1, 2, 3):
        first.channel(number).channel_open()
    limit = "/api/user-limits/{ann}/max-channels"
    play.http("PUT", limit, {"value": 2})
    first.channel(1).exchange_declare("amq.direct", passive=True)
    first.channel(1).channel_close(200, "", 0, 0)
    first.channel(2).channel_close(200, "", 0, 0)
    second.channel(1).channel_open()
    second.channel(2).channel_open()
    play.http("PUT", limit, {"value": 0})
    first.channel(1).channel_open()


def a_virtual_host_with_a_limit_of_queues(play: Play) -> None:
    play.http("PUT", "/api/vhosts/{v}")
    limit = "/api/vhost-limits/{v}/max-queues"
    play.http("PUT", limit, {"value": 2})
    channel = _opening(play, vhost=play.http.own("v")).channel(1)
    with play.silence():
        play.owners.clear()
    wanted = (
        {"queue": "a", "durable": True},
        {"queue": "b", "exclusive": True},
        {"queue": "a", "durable": True},
        {"queue": "a", "passive": True},
        {"queue": "c"},
        {"queue": "", "exclusive": True},
        {"queue": "c", "passive": True},
        {"queue": "s", "durable": True, "arguments": {"x-queue-type": "stream"}},
        {"queue": "amq.mine"},
        {"queue": "c", "arguments": {"x-expires": -1}},
        {"queue": "c", "arguments": {"x-dead-letter-routing-key": "a"}},
        {"queue": "a"},
    )
    for declaration in wanted:
        channel.is_open or channel.channel_open()
        channel.queue_declare(**declaration)
    play.http("PUT", limit, {"value": 1})
    channel.channel_open()
    channel.queue_declare("b", exclusive=True)
    channel.queue_delete("b")
    channel.queue_declare("b")
    channel.channel_open()
    channel.queue_delete("a")
    channel.queue_declare("b")


def limits_that_are_wrong(play: Play) -> None:
    _add_ann(play)
    play.http("PUT", "/api/vhosts/{v}")
    for path in ("/api/vhost-limits/{v}", "/api/user-limits/{ann}"):
        for value in ("x", 2.5, True, None):
            play.http("PUT", f"{path}/max-connections", {"value": value})
            play.http("PUT", f"{path}/max-foo", {"value": value})
        play.http("PUT", f"{path}/max-connections", {})
        play.http("DELETE", f"{path}/max-foo")
        play.http("DELETE", f"{path}/max-connections")
    play.http("PUT", "/api/vhost-limits/{v}/max-channels", {"value": 1})
    play.http("PUT", "/api/user-limits/{ann}/max-queues", {"value": 1})
    for path in ("/api/vhost-limits/{missing}", "/api/user-limits/{missing}"):
        play.http("PUT", f"{path}/max-connections", {"value": 1})
        play.http("GET", path)


def virtual_hosts_are_made_changed_and_deleted(play: Play) -> None:
    path = "/api/vhosts/{v}"
    play.http("GET", path)
    play.http("DELETE", path)
    play.http("PUT", path, {"description": "d", "tags": "a,b", "tracing": True})
    play.http("PUT", path, {"tracing": "yes"})
    play.http("PUT", path)
    play.http("GET", f"{path}/permissions")
    play.http("GET", "/api/permissions/{v}/guest")
    play.http("POST", f"{path}/start/nowhere")
    play.http("DELETE", path)
    play.http("GET", path)
    play.http("GET", f"{path}/permissions")


def a_virtual_host_is_deleted_under_its_clients(play: Play) -> None:
    play.http("PUT", "/api/vhosts/{v}")
    vhost = play.http.own("v")
    peer = _opening(play, vhost=vhost)
    channel = peer.channel(1)
    channel.channel_open()
    channel.queue_declare("q", durable=True)
    channel.queue_declare("mine", exclusive=True)
    channel.confirm_select()
    channel.publish("1", key="q", delivery_mode=2)
    channel.basic_get("q")
    play.http("DELETE", "/api/vhosts/{v}")
    play.settle()
    _opening(play, vhost=vhost)


def a_virtual_host_that_is_made_again_is_empty(play: Play) -> None:
    _add_ann(play)
    play.http("PUT", "/api/vhosts/{v}")
    vhost = play.http.own("v")
    play.http("PUT", "/api/permissions/{v}/{ann}", ALL, stays=True)
    play.http("PUT", "/api/policies/{v}/p", {"pattern": ".*", "definition": {"max-length": 1}}, stays=True)
    play.http("PUT", "/api/vhost-limits/{v}/max-queues", {"value": 1}, stays=True)
    channel = _as_ann(play, vhost=vhost).channel(1)
    channel.channel_open()
    channel.queue_declare("q", durable=True)
    channel.exchange_declare("x", "fanout", durable=True)
    play.http("DELETE", "/api/vhosts/{v}")
    play.settle()
    play.http("PUT", "/api/vhosts/{v}")
    play.http("GET", "/api/permissions/{v}/{ann}")
    play.http("GET", "/api/policies/{v}/p")
    _as_ann(play, vhost=vhost)
    for name in ("q", "x"):
        channel = _opening(play, vhost=vhost).channel(1)
        channel.channel_open()
        if name == "q":
            channel.queue_declare(name, passive=True)
        else:
            channel.exchange_declare(name, passive=True)
