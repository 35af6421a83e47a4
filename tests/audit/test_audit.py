"""The differential check: the audit names each change that was made without the broker, and nothing else.

The audits run without Spark, which is quicker; tests/spark has audits through the command and Spark.
"""

import shutil
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pika
import pytest
from pika.exceptions import AMQPError

from leveret.storage.journal import Kind, Outcome
from tests.audit import sample_data
from tests.audit.reckoning import reckon_directory
from tests.audit.sample_data import CONSUMED, MESSAGES, REJECTED, REQUEUED, SampleData, body_of
from tests.audit.tampering import Tampering
from tests.e2e.serving import Serving
from tests.processes import WAIT_S
from tests.semantics.client import Client

pytestmark = pytest.mark.real

WAITING = CONSUMED + 321
"""A confirmed message that is in the log."""
DONE = 11
KILLED_AFTER = 500


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> SampleData:
    return sample_data.make(tmp_path_factory.mktemp("sample"))


@pytest.fixture(params=["killed", "stopped"])
def data(request: pytest.FixtureRequest, sample: SampleData, tmp_path: Path) -> Path:
    """A copy of the sample data that a test may change."""
    return Path(shutil.copytree(getattr(sample, request.param), tmp_path / "data"))


def test_in_unchanged_data_nothing_is_lost_or_doubled(data: Path) -> None:
    audit = reckon_directory(data)
    assert (audit.lost, audit.doubled, audit.damage) == ([], [], [])
    orders = audit.of("orders")
    assert len(orders) == MESSAGES + 1
    assert all(row["confirmed"] and row["published"] for row in orders.values())
    assert Counter(row["outcome"] for row in orders.values()) == {
        "acked": CONSUMED - len(REJECTED),
        "dead lettered": len(REJECTED),
        None: MESSAGES + 1 - CONSUMED,
    }
    assert [offset for offset, row in orders.items() if row["deliveries"] == 2] == [*REQUEUED]
    assert [row["why"] for row in audit.of("brief").values()] == ["expired"] * sample_data.EXPIRED
    assert len(audit.of("dead")) == len(REJECTED) + sample_data.EXPIRED
    assert audit.returned == {"checked": sample_data.RETURNED}


def test_a_message_in_flight_when_the_broker_was_killed_is_in_flight(sample: SampleData) -> None:
    row = reckon_directory(sample.killed).of("orders")[sample.held]
    assert row["state"] == "in flight"
    assert row["delivered_to"].endswith(" holder")
    row = reckon_directory(sample.stopped).of("orders")[sample.held]
    assert (row["state"], row["returns"]) == ("ready", 1)


def test_after_a_kill_during_publishes_and_acks_every_message_is_accounted_for(tmp_path: Path) -> None:
    confirmed = 0
    enough = threading.Event()

    def publish(url: str) -> None:
        nonlocal confirmed
        with suppress(AMQPError), closing(pika.BlockingConnection(pika.URLParameters(url))) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            while True:
                channel.basic_publish("", "q", b"m", pika.BasicProperties(delivery_mode=2))
                confirmed += 1
                if confirmed == KILLED_AFTER:
                    enough.set()

    def consume(url: str) -> None:
        with suppress(AMQPError), closing(pika.BlockingConnection(pika.URLParameters(url))) as connection:
            channel = connection.channel()
            for method, _, _ in channel.consume("q"):
                channel.basic_ack(method.delivery_tag)

    with Serving(tmp_path / "data") as server:
        Client(server.port).channel().declare("q", arguments=sample_data.AUDITED)
        threads = [threading.Thread(target=work, args=(server.url,)) for work in (publish, consume)]
        for thread in threads:
            thread.start()
        assert enough.wait(WAIT_S)
        server.kill()
        for thread in threads:
            thread.join(WAIT_S)
    killed = reckon_directory(tmp_path / "data")
    with Serving(tmp_path / "data") as server:
        assert server.terminate() == 0
    restarted = reckon_directory(tmp_path / "data")
    for audit in (killed, restarted):
        assert (audit.lost, audit.doubled) == ([], [])
        assert len(audit.of("q")) >= confirmed
    rows = [row for _, row in sorted(restarted.of("q").items())]
    assert all(row["persistent"] for row in rows)
    # the time of the confirm is unknown only for the last messages
    known = [row["confirmed"] is not None for row in rows]
    assert known == sorted(known, reverse=True)


Edit = Callable[[Tampering], None]
LOST: dict[str, Edit] = {
    "removed": lambda tampering: tampering.remove("orders", WAITING),
    "damaged": lambda tampering: tampering.damage("orders", body_of(WAITING).encode()),
    "removed and never delivered": lambda tampering: tampering.remove("orders", MESSAGES - 1),
}
DOUBLED: dict[str, Edit] = {
    "settled twice": lambda tampering: tampering.settle("orders", DONE, Outcome.ACKED, b"somebody"),
    "settled thrice": lambda tampering: (
        [tampering.settle("orders", DONE, Outcome.ACKED, b"c") for _ in "ab"] and None
    ),
    "in the log twice": lambda tampering: tampering.double("orders", DONE + CONSUMED),
}


@pytest.mark.parametrize("edit", LOST)
def test_a_confirmed_message_without_a_record_is_lost(data: Path, edit: str) -> None:
    LOST[edit](Tampering(data))
    audit = reckon_directory(data)
    offset = MESSAGES - 1 if "never" in edit else WAITING
    assert audit.lost == [("orders", offset)]
    assert audit.doubled == []
    assert bool(audit.damage) == (edit == "damaged")


@pytest.mark.parametrize("edit", DOUBLED)
def test_a_message_that_is_settled_or_stored_twice_is_doubled(data: Path, edit: str) -> None:
    DOUBLED[edit](Tampering(data))
    audit = reckon_directory(data)
    offset = DONE + CONSUMED if "log" in edit else DONE
    assert (audit.lost, audit.doubled) == ([], [("orders", offset)])


def test_a_lost_and_a_doubled_message_are_distinguished(data: Path) -> None:
    tampering = Tampering(data)
    tampering.remove("orders", WAITING)
    tampering.settle("orders", DONE, Outcome.ACKED, b"somebody")
    audit = reckon_directory(data)
    assert (audit.lost, audit.doubled) == ([("orders", WAITING)], [("orders", DONE)])


def test_a_missing_settlement_makes_a_message_lost(data: Path) -> None:
    """The message was delivered and deleted from the log, and no journal entry settles it."""
    Tampering(data).forget("orders", Kind.SETTLED, DONE)
    assert reckon_directory(data).lost == [("orders", DONE)]


def test_a_second_settlement_with_another_outcome_doubles_nothing(data: Path) -> None:
    Tampering(data).settle("orders", DONE, Outcome.REJECTED, b"somebody")
    assert reckon_directory(data).doubled == []


def test_when_a_segment_is_missing_its_ready_messages_are_lost(data: Path) -> None:
    Tampering(data).remove_segment("orders")
    audit = reckon_directory(data)
    assert audit.damage
    offsets = {offset for queue, offset in audit.lost if queue == "orders"}
    assert offsets >= set(range(CONSUMED + 1, MESSAGES))
    assert not offsets & set(range(CONSUMED))


def test_without_an_audit_window_a_missing_message_is_not_lost(data: Path) -> None:
    Tampering(data).remove("plain", 1)
    audit = reckon_directory(data)
    assert audit.lost == []
    assert [row["state"] for row in audit.of("plain").values()] == ["ready"]


def test_a_second_audit_has_equal_results(data: Path) -> None:
    Tampering(data).remove("orders", WAITING)
    assert reckon_directory(data) == reckon_directory(data)
