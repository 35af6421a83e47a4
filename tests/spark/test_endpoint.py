"""Which broker it is: found over AMQP, and a Leveret is never taken for something else."""

import pickle
import threading

import pytest

from leveret.flight import actions
from leveret.spark import endpoint
from leveret.spark.endpoint import Endpoint, find
from leveret.spark.errors import BrokerAway, BrokerRefused
from leveret.spark.flight_calls import Calls
from leveret.spark.options import SourceOptions
from leveret.testing.broker import Broker


def options(url: str, **given: str) -> SourceOptions:
    return SourceOptions.parse({"url": url, "queue": "q", "brokerTimeout": "5s", **given})


def test_a_leveret_says_where_its_flight_endpoint_is(leveret):
    found = find(options(leveret.url))
    assert (found.product, found.location) == ("Leveret", f"grpc+tcp://127.0.0.1:{leveret.endpoint.port}")
    assert "guest" not in repr(found)


def test_behind_a_mapped_port_the_user_says_where_flight_is(leveret):
    found = find(options(leveret.url, flightUrl="grpc+tcp://gate:443"))
    assert found.location == "grpc+tcp://gate:443"


@pytest.mark.needs_rabbitmq
def test_a_rabbitmq_is_served_over_amqp(rabbitmq):
    found = find(options(rabbitmq.url))
    assert (found.product, found.is_leveret) == ("RabbitMQ", False)


def test_the_first_url_that_answers_is_used(leveret):
    found = find(options(f"amqp://guest:guest@127.0.0.1:1/,{leveret.url}"))
    assert found.is_leveret


def test_the_login_is_that_of_the_url_that_answered(leveret):
    found = pickle.loads(pickle.dumps(find(options(f"amqp://first:s3cret@127.0.0.1:1/,{leveret.url}"))))
    assert (found.login.user, found.login.password) == ("guest", "guest")
    with Calls(found) as calls, pytest.raises(BrokerRefused, match="no queue 'q'"):
        calls.ask(actions.Snapshot("/", "q"), actions.Planned)
    for secret in ("s3cret", "guest"):
        assert secret not in repr(found)


def test_the_login_goes_along_when_the_broker_is_found_at_another_of_the_urls():
    urls = "amqp://a:x@h1/,amqp://b:y@h2/,amqp://c:z@[::1]/,amqp://d:w@h2:5673/"
    found = Endpoint(options(urls), "Leveret", "grpc+tcp://h1:1")
    assert found.login.user == "a"
    assert found.at("grpc+tcp://h2:1").login.user == "b"
    assert found.at("grpc+tls://[::1]:1").login.user == "c"
    assert found.at("grpc+tcp://gate:443").login.user == "a"
    assert Endpoint(options(urls), "Leveret", "grpc+tcp://h2:1", 3).at("grpc+tcp://h2:2").login.user == "d"


@pytest.mark.real
def test_a_leveret_without_flight_is_refused_and_not_read_in_another_way(monkeypatch):
    monkeypatch.setattr(endpoint, "_LOOK_AGAIN_S", 30.0)
    with (
        Broker() as broker,
        pytest.raises(BrokerAway, match=r"offered no Flight endpoint for 0.3 s \(start it"),
    ):
        find(options(broker.url, brokerTimeout="300ms"))


def test_a_broker_that_hangs_up_at_once_is_asked_again(leveret, monkeypatch):
    """It was killed when it had just opened the connection."""
    opened = endpoint.BlockingConnection.open
    left = [True, True]

    def open_and_lose(connection: endpoint.BlockingConnection, timeout_s: float) -> None:
        opened(connection, timeout_s)
        if left and left.pop():
            connection.run(connection.connection.close())

    monkeypatch.setattr(endpoint.BlockingConnection, "open", open_and_lose)
    assert find(options(leveret.url)).is_leveret
    assert left == []
    left += [True] * 100
    monkeypatch.setattr(endpoint, "_LOOK_AGAIN_S", 30.0)
    with pytest.raises(BrokerAway, match="has closed the connection at once"):
        find(options(leveret.url, brokerTimeout="300ms"))


@pytest.mark.real
def test_a_leveret_whose_flight_endpoint_still_starts_is_waited_for():
    with Broker() as broker:

        def advertise() -> None:
            broker.server.broker.advertised.update(flight_port=7777, flight_tls=False)

        timer = threading.Timer(0.3, lambda: broker.call(advertise))
        timer.start()
        try:
            assert find(options(broker.url)).location == "grpc+tcp://127.0.0.1:7777"
        finally:
            timer.join()


def test_a_login_that_is_refused_is_not_tried_for_long(leveret):
    with pytest.raises(BrokerRefused, match="check url, user, password and vhost"):
        find(options(leveret.url, password="wrong"))
