"""Flight asks the broker who may do what in every call, and again while it reads if rights have changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pyarrow as pa
import pytest
from pyarrow import flight

from leveret.amqp.properties import encode
from leveret.broker.access import administration
from leveret.broker.access.passwords import hash_password
from leveret.flight import actions, schemas, tickets
from leveret.flight.tickets import PieceTicket, ReadTicket, StageDescriptor, pack_ranges
from leveret.testing.broker import Broker
from tests.fronts.flight.flight_client import Bulk, refusal

pytestmark = pytest.mark.real

ALL = {"configure": ".*", "write": ".*", "read": ".*"}
PICTURE = "a" * 32
MESSAGES, BODY_BYTES = 48, 2 << 20
"""More than gRPC keeps on its way to a client that does not read."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("rights") / "data", flight=True) as broker:
        yield broker


@pytest.fixture(scope="module")
def queue(broker: Broker) -> str:
    """A queue that takes some time to read."""
    connection = pika.BlockingConnection(pika.URLParameters(broker.url + "?heartbeat=0"))
    channel = connection.channel()
    channel.queue_declare("large", durable=True)
    channel.confirm_delivery()
    for _ in range(MESSAGES):
        channel.basic_publish("", "large", bytes(BODY_BYTES), pika.BasicProperties(delivery_mode=2))
    connection.close()
    return "large"


@pytest.fixture
def ann(broker: Broker) -> Bulk:
    """An administrator who has logged in."""
    change(broker, "put_user", "ann", password_hash=hash_password(b"secret", b"salt"), tags=["administrator"])
    change(broker, "permit", "/", "ann", **ALL)
    assert broker.endpoint is not None
    ann = Bulk(broker.endpoint.port, "ann", "secret")
    assert isinstance(ann.ask(actions.Address("/", [])), actions.Done)
    return ann


def change(broker: Broker, what: str, *arguments: Any, **options: Any) -> None:
    """As the HTTP API does it: on the broker's thread, in a turn."""

    def in_a_turn() -> None:
        broker.server.turns.begin()
        getattr(administration, what)(broker.server.broker, *arguments, **options)

    broker.call(in_a_turn)


def whole(ann: Bulk, queue: str) -> ReadTicket:
    looked = ann.ask(actions.Look("/", queue))
    return ReadTicket("/", queue, looked.log_id, pack_ranges([(0, MESSAGES)]))


def begun(ann: Bulk, ticket: ReadTicket | PieceTicket) -> Iterator[Any]:
    """What the broker sends for a ticket; the first batch has come when this returns."""
    reader = ann.client.do_get(flight.Ticket(tickets.encode(ticket)), ann.options)
    next(reader)
    return reader


def test_a_changed_password_ends_flight_logins_at_once(broker, ann):
    change(broker, "put_user", "ann", password_hash=hash_password(b"new", b"salt"), tags=[])
    with pytest.raises(flight.FlightUnauthenticatedError, match="login of user 'ann' was refused"):
        ann.ask(actions.Address("/", []))
    assert Bulk(broker.endpoint.port, "ann", "new").ask(actions.Address("/", [])) == actions.Done()


def test_a_deleted_user_is_out_of_flight_at_once(broker, ann):
    change(broker, "delete_users", ["ann"])
    with pytest.raises(flight.FlightUnauthenticatedError):
        ann.ask(actions.Address("/", []))


def test_reading_ends_when_the_right_to_read_is_taken_away(broker, ann, queue):
    reading = begun(ann, whole(ann, queue))
    change(broker, "permit", "/", "ann", configure=".*", write=".*", read="^other$")
    assert ann.ask(actions.Look("/", queue)).code == 403
    with pytest.raises(flight.FlightServerError) as refused:
        list(reading)
    assert refusal(refused.value).text == "access to queue 'large' in vhost '/' refused for user 'ann'"


def test_reading_goes_on_when_others_lose_rights_or_the_password_changes(broker, ann, queue):
    change(broker, "put_user", "bob", password_hash=hash_password(b"b", b"salt"), tags=[])
    reading = begun(ann, whole(ann, queue))
    change(broker, "delete_users", ["bob"])
    change(broker, "put_user", "ann", password_hash=hash_password(b"new", b"salt"), tags=["administrator"])
    with pytest.raises(flight.FlightUnauthenticatedError):
        ann.ask(actions.Look("/", queue))
    assert sum(chunk.data.num_rows for chunk in reading) > 0


def test_writing_ends_when_the_right_to_write_is_taken_away(broker, ann, queue):
    descriptor = StageDescriptor("/", "writer", 0, "stage", timeout_s=60.0)
    command = flight.FlightDescriptor.for_command(tickets.encode(descriptor))
    writer, _ = ann.client.do_put(command, schemas.WRITE, ann.options)
    row = (b"", queue.encode(), encode({"delivery_mode": 2}, 1), b"1")
    rows = pa.record_batch([pa.array([each], pa.binary()) for each in row], schema=schemas.WRITE)
    writer.write_batch(rows)
    change(broker, "permit", "/", "ann", configure=".*", write="^other$", read=".*")
    with pytest.raises(flight.FlightServerError) as refused, writer:
        writer.write_batch(rows)
    assert (
        refusal(refused.value).text == "access to exchange 'amq.default' in vhost '/' refused for user 'ann'"
    )


def test_a_picture_is_not_shown_to_one_who_is_no_administrator_any_more(broker, ann, queue, tmp_path: Path):
    taken = ann.ask(actions.TakePicture(PICTURE))
    assert isinstance(taken, actions.Taken)
    change(broker, "put_user", "ann", password_hash=None, tags=["monitoring"])
    with pytest.raises(flight.FlightServerError) as refused:
        ann.read(PieceTicket(PICTURE, "published", 1, 0))
    sentence = "an audit needs the tag 'administrator', which user 'ann' does not have"
    assert refusal(refused.value).text == sentence
