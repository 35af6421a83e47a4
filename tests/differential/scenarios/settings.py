"""Settings made over HTTP while clients are connected: users, limits, virtual hosts."""

from tests.differential.play import Play


def a_user_is_made_and_deleted_while_connected(play: Play) -> None:
    play.http("PUT", "/api/users/{ann}", {"password": "x", "tags": ""})
    play.http("PUT", "/api/permissions/{vhost}/{ann}", {"configure": ".*", "write": ".*", "read": ".*"})
    peer = play.connect(response=f"\0{play.http.own('ann')}\0x")
    peer.channel(1).open().queue_declare("q")
    play.http("DELETE", "/api/users/{ann}")
    play.settle()
