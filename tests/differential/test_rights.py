"""What follows at once when an administrator changes a user: RabbitMQ and Leveret, test by test.

One place differs on purpose (decision 35): a running consumer that loses the right to read is cancelled by
Leveret, and goes on in RabbitMQ. A channel of RabbitMQ may also use rights for a while that are gone, because
it remembers them; so these tests look at channels that were opened afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Protocol

import pytest

from leveret.broker.access import administration
from leveret.broker.access.passwords import hash_password
from leveret.broker.broker import Broker as Inner
from leveret.testing.broker import Broker
from tests.rabbitmq.node import RabbitMQ
from tests.semantics.client import Channel, Client, ClosedByBroker, Got

pytestmark = [pytest.mark.real, pytest.mark.needs_rabbitmq]


class Place(Protocol):
    """A broker with the user `name`, whose password is `secret`."""

    port: int
    vhost: str
    name: str

    def permit(self, configure: str, write: str, read: str) -> None: ...

    def forbid(self) -> None: ...

    def set_password(self, password: str) -> None: ...

    def delete(self) -> None: ...


class OnRabbitMQ:
    def __init__(self, server: RabbitMQ) -> None:
        self._server = server
        self.port, self.vhost, self.name = server.port, server.vhost, f"ann-{server.vhost.strip('/')}"
        with suppress(RuntimeError):
            self.delete()
        server.rabbitmqctl("add_user", self.name, "secret")

    def permit(self, configure: str, write: str, read: str) -> None:
        where = ("-p", self.vhost, self.name)
        self._server.rabbitmqctl("set_permissions", *where, configure, write, read)

    def forbid(self) -> None:
        self._server.rabbitmqctl("clear_permissions", "-p", self.vhost, self.name)

    def set_password(self, password: str) -> None:
        self._server.rabbitmqctl("change_password", self.name, password)

    def delete(self) -> None:
        self._server.rabbitmqctl("delete_user", self.name)


class OnLeveret:
    vhost, name = "/", "ann"

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.port = broker.port
        self.set_password("secret")

    def _do(self, change: Callable[[Inner], Any]) -> None:
        def in_a_turn() -> None:
            self._broker.server.turns.begin()
            change(self._broker.server.broker)

        self._broker.call(in_a_turn)

    def permit(self, configure: str, write: str, read: str) -> None:
        rights = {"configure": configure, "write": write, "read": read}
        self._do(lambda broker: administration.permit(broker, "/", "ann", **rights))

    def forbid(self) -> None:
        self._do(lambda broker: administration.forbid(broker, "/", "ann"))

    def set_password(self, password: str) -> None:
        hashed = hash_password(password.encode(), b"salt")
        self._do(lambda broker: administration.put_user(broker, "ann", password_hash=hashed, tags=[]))

    def delete(self) -> None:
        self._do(lambda broker: administration.delete_users(broker, ["ann"]))


@pytest.fixture(params=["rabbitmq", "leveret"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    if request.param == "rabbitmq":
        place = OnRabbitMQ(request.getfixturevalue("rabbitmq"))
        yield place
        with suppress(RuntimeError):
            place.delete()
    else:
        with Broker() as broker:
            yield OnLeveret(broker)


def connect(place: Place, password: str = "secret", *, name: str | None = None) -> Client:
    return Client(place.port, user=name or place.name, password=password, vhost=place.vhost)


@pytest.fixture
def ann(place: Place) -> Channel:
    """A channel with a consumer of the queue `q`, of a user who may do everything."""
    place.permit(".*", ".*", ".*")
    channel = connect(place).channel()
    channel.declare("q", auto_delete=True)
    channel.consume("q", no_ack=True)
    return channel


@pytest.fixture
def guest(place: Place) -> Channel:
    return connect(place, "guest", name="guest").channel().confirm_select()


def refusal(do: Callable[[], Any]) -> tuple[int, str]:
    with pytest.raises(ClosedByBroker) as refused:
        do()
    return refused.value.code, refused.value.text.partition(" - ")[0]


def test_a_changed_password_closes_nothing_and_lets_nobody_in_with_the_old_one(place, ann, guest):
    place.set_password("new")
    guest.publish_confirmed("q", "1")
    assert ann.delivery().text == "1"
    ann.client.channel().confirm_select().publish_confirmed("q", "2")
    assert refusal(lambda: connect(place)) == (403, "ACCESS_REFUSED")
    connect(place, "new").close()


def test_a_deleted_user_is_disconnected(place, ann):
    place.delete()
    error = ann.error()
    assert (error.code, error.text.partition(" - ")[0]) == (320, "CONNECTION_FORCED")
    assert refusal(lambda: connect(place)) == (403, "ACCESS_REFUSED")


def test_one_who_may_nothing_in_a_virtual_host_stays_connected_and_can_not_come_again(place, ann):
    place.forbid()
    channel = ann.client.channel().confirm_select()
    assert refusal(lambda: channel.publish_confirmed("q", "1")) == (403, "ACCESS_REFUSED")
    assert refusal(lambda: ann.client.channel().declare("other")) == (403, "ACCESS_REFUSED")
    assert refusal(lambda: connect(place)) == (530, "NOT_ALLOWED")


def test_a_consumer_that_may_not_read_any_more_goes_on_in_rabbitmq_and_is_cancelled_by_leveret(
    place, ann, guest
):
    place.permit(".*", ".*", "^other$")
    guest.publish("q", "1")
    kinds = [got.method.name for got in arrived(ann)]
    assert kinds == (["Basic.Cancel"] if isinstance(place, OnLeveret) else ["Basic.Deliver"])
    assert refusal(lambda: ann.client.channel().consume("q", "again")) == (403, "ACCESS_REFUSED")


def arrived(channel: Channel) -> list[Got]:
    """What the broker says first of its own accord, with all that has come by then."""
    channel.client.read_until(lambda: channel.inbox)
    return list(channel.inbox)
