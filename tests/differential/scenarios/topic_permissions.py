"""Topic permissions: which routing keys a user may publish and bind with; and the tag `impersonator`.

A channel of RabbitMQ remembers permissions, so every attempt after a change is made on a new channel.
"""

from tests.differential.channel import Channel
from tests.differential.play import Play

ALL = {"configure": ".*", "write": ".*", "read": ".*"}
ANN = "/api/topic-permissions/{vhost}/{ann}"


def _channel(play: Play, number: int = 1) -> Channel:
    """A channel of the user ann, in confirm mode."""
    if not play.peers:
        play.connect(response=f"\0{play.http.own('ann')}\0x")
    channel = play.peers[0].channel(number)
    if not channel.is_open:
        channel.open()
        channel.confirm_select()
    return channel


def _with_ann(play: Play, tags: str = "") -> None:
    play.http("PUT", "/api/users/{ann}", {"password": "x", "tags": tags})
    play.http("PUT", "/api/permissions/{vhost}/{ann}", ALL)


def _permit(play: Play, exchange: str, write: str = ".*", read: str = ".*") -> None:
    play.http("PUT", ANN, {"exchange": exchange, "write": write, "read": read})


def _declared(play: Play) -> None:
    channel = _channel(play)
    for exchange, kind in (("t", "topic"), ("t2", "topic"), ("d", "direct"), ("f", "fanout")):
        channel.exchange_declare(exchange, kind)
    channel.queue_declare("q")


def publishing_with_topic_permissions(play: Play) -> None:
    _with_ann(play)
    _permit(play, "t", write="^own\\.")
    _permit(play, "amq.topic", write="")
    for exchange in ("", "d", "f"):
        _permit(play, exchange, write="^never$", read="^never$")
    _declared(play)
    attempts = (
        ("t", "own.key"),
        ("t", "other.key"),
        ("t", "not.own.key"),
        ("t", ""),
        ("t2", "other.key"),
        ("amq.topic", ""),
        ("amq.topic", "key"),
        ("d", "key"),
        ("f", "key"),
        ("", "q"),
        ("missing", "key"),
    )
    for exchange, key in attempts:
        _channel(play).publish("text", exchange, key)
    _channel(play).publish("mandatory", "t", "other.key", mandatory=True)
    _channel(play).publish("mandatory", "t", "own.key", mandatory=True)


def copies_need_no_topic_permission(play: Play) -> None:
    _with_ann(play)
    _permit(play, "t", write="^own$")
    _declared(play)
    channel = _channel(play)
    channel.queue_bind("q", "t", "other")
    channel.publish("copied", "t", "own", headers={"CC": ["other"]})
    channel.publish("copied in secret", "t", "own", headers={"BCC": ["other"]})
    channel.publish("refused", "t", "other", headers={"CC": ["own"]})


def binding_with_topic_permissions(play: Play) -> None:
    _with_ann(play)
    _permit(play, "t", read="^own\\.")
    _permit(play, "d", read="^never$")
    _permit(play, "f", read="^never$")
    _declared(play)
    for exchange, key in (("t", "own.*"), ("t", "#"), ("t2", "#"), ("d", "key"), ("missing", "key")):
        _channel(play).queue_bind("q", exchange, key)
        _channel(play).queue_unbind("q", exchange, key)
    _channel(play).queue_bind("missing", "t", "#")
    for destination, source, key in (("f", "t", "own.#"), ("f", "t", "#"), ("t", "f", "#"), ("f", "no", "#")):
        _channel(play).exchange_bind(destination, source, key)
        _channel(play).exchange_unbind(destination, source, key)
    channel = _channel(play)
    channel.queue_declare("")
    channel.queue_bind("", "t", "")


def variables_in_topic_permissions(play: Play) -> None:
    _with_ann(play)
    name = play.http.own("ann")
    _permit(play, "t", write="^{username}\\.{username}$", read="^{vhost}\\.{client_id}$")
    _declared(play)
    for key in (f"{name}.{name}", "{username}.{username}", "bob.bob"):
        _channel(play).publish("text", "t", key)
    _channel(play).queue_bind("q", "t", "{vhost}.{client_id}")
    _permit(play, "t2", write="^{vhost}$")
    for key in (play.vhost, "{vhost}"):
        channel = _channel(play, 2)
        with play.silence():
            channel.publish("text", "t2", key)
        play.tell(f"the channel that has published is open: {channel.is_open}")


def topic_permissions_that_change(play: Play) -> None:
    _with_ann(play)
    _declared(play)
    _channel(play, 2).publish("before", "t", "key")
    _permit(play, "t", write="^none$", read="^none$")
    _channel(play, 3).publish("refused", "t", "key")
    _channel(play, 4).queue_bind("q", "t", "key")
    _permit(play, "t2")
    _channel(play, 5).publish("still refused", "t", "key")
    play.http("DELETE", ANN)
    _channel(play, 6).publish("after", "t", "key")
    play.http("DELETE", ANN)


def topic_permissions_outlive_the_exchange_and_other_permissions(play: Play) -> None:
    _with_ann(play)
    _declared(play)
    _permit(play, "t", write="^none$")
    _channel(play).exchange_delete("t")
    play.http("GET", ANN)
    play.http("DELETE", "/api/permissions/{vhost}/{ann}")
    play.http("GET", ANN)
    play.http("PUT", "/api/permissions/{vhost}/{ann}", ALL)
    _channel(play, 2).exchange_declare("t", "topic")
    _channel(play, 2).publish("refused", "t", "key")


def topic_permissions_that_are_wrong(play: Play) -> None:
    _with_ann(play)
    rights = {"exchange": "t", "write": "", "read": ""}
    for name in rights:
        play.http("PUT", ANN, {key: value for key, value in rights.items() if key != name})
    play.http("PUT", ANN, {})
    play.http("GET", ANN)
    play.http("DELETE", ANN)
    for path in ("{missing}/{ann}", "{vhost}/{missing}"):
        for method, body in (("PUT", rights), ("GET", None), ("DELETE", None)):
            if (method, path) != ("DELETE", "{missing}/{ann}"):
                play.http(method, f"/api/topic-permissions/{path}", body)


def messages_of_an_impersonator(play: Play) -> None:
    for tags in ("administrator,management", "impersonator"):
        _with_ann(play, tags)
        _declared(play)
        play.peers[0].drop()
        play.peers.clear()
        for user in ("guest", "nobody", play.http.own("ann")):
            _channel(play).publish("text", "", "q", user_id=user)


def users_and_their_hashes(play: Play) -> None:
    hashed = "YWJjZCUocPu+lAjLXU4Se7RFyins8lJaz+A5gv/b19IpfqUF"
    path = "/api/users/{ann}"
    for body in (
        {"password": "x"},
        {"password": "x", "password_hash": "", "tags": ""},
        {"password_hash": hashed, "tags": ""},
        {"password_hash": hashed, "tags": "", "hashing_algorithm": "rabbit_password_hashing_sha512"},
        {"password_hash": "", "tags": "impersonator,policymaker"},
    ):
        play.http("PUT", path, body)
    play.http("GET", "/api/users/{ann}/permissions")
    play.http("GET", "/api/users/{missing}/permissions")
    play.http("POST", "/api/users/bulk-delete", {})
    play.http("POST", "/api/users/bulk-delete", {"users": []})


def parameters_over_http(play: Play) -> None:
    bounds = "/api/parameters/operator_policy/{vhost}/bounds"
    value = {"pattern": "^nothing$", "definition": {"max-length": 1}, "priority": 0}
    for body in ({}, {"value": value}, {"value": value}, {"value": 5}):
        play.http("PUT", bounds, body)
    for component in ("policy", "federation-upstream", "shovel"):
        path = f"/api/parameters/{component}"
        play.http("GET", path)
        play.http("GET", f"{path}/{{vhost}}")
        play.http("GET", f"{path}/{{missing}}")
        play.http("GET", f"{path}/{{vhost}}/n")
        play.http("PUT", f"{path}/{{vhost}}/n", {"value": value})
        play.http("DELETE", f"{path}/{{vhost}}/n")
    play.http("GET", bounds)
    play.http("DELETE", bounds, stays=True)
    play.http("GET", bounds)
    shared = "/api/global-parameters/{shared}"
    for body in ({}, {"value": None}, {"value": [1]}):
        play.http("PUT", shared, body)
    for method in ("GET", "DELETE", "GET", "DELETE"):
        play.http(method, shared)
