"""The differential check: what is changed behind the broker's back is named by the audit, and nothing else.

Without Spark, so that there can be many; the same through the command and Spark is in tests/spark.
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
from tests.audit.reckoning import Reckoned, reckon_directory
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
    """A copy that a test may change."""
    return Path(shutil.copytree(getattr(sample, request.param), tmp_path / "data"))


def test_an_honest_broker_has_lost_and_doubled_nothing(data: Path) -> None:
    found = reckon_directory(data)
    assert (found.lost, found.doubled, found.damage) == ([], [], [])
    orders = found.of("orders")
    assert len(orders) == MESSAGES + 1
    assert all(row["confirmed"] and row["published"] for row in orders.values())
    assert Counter(row["outcome"] for row in orders.values()) == {
        "acked": CONSUMED - len(REJECTED),
        "dead lettered": len(REJECTED),
        None: MESSAGES + 1 - CONSUMED,
    }
    assert [offset for offset, row in orders.items() if row["deliveries"] == 2] == [*REQUEUED]
    assert [row["why"] for row in found.of("brief").values()] == ["expired"] * sample_data.EXPIRED
    assert len(found.of("dead")) == len(REJECTED) + sample_data.EXPIRED
    assert found.returned == {"checked": sample_data.RETURNED}


def test_a_message_that_was_held_when_the_broker_was_killed_is_in_flight(sample: SampleData) -> None:
    row = reckon_directory(sample.killed).of("orders")[sample.held]
    assert row["state"] == "in flight"
    assert row["delivered_to"].endswith(" holder")
    row = reckon_directory(sample.stopped).of("orders")[sample.held]
    assert (row["state"], row["returns"]) == ("ready", 1)


def test_after_a_kill_in_the_middle_of_things_everything_is_accounted_for(tmp_path: Path) -> None:
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
        threads = [threading.Thread(target=each, args=(server.url,)) for each in (publish, consume)]
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
    for found in (killed, restarted):
        assert (found.lost, found.doubled) == ([], [])
        assert len(found.of("q")) >= confirmed
    rows = [row for _, row in sorted(restarted.of("q").items())]
    assert all(row["persistent"] for row in rows)
    known = [row["confirmed"] is not None for row in rows]
    assert known == sorted(known, reverse=True)  # since when is not known of the last ones alone


Edit = Callable[[Tampering], None]
LOST: dict[str, Edit] = {
    "removed": lambda it: it.remove("orders", WAITING),
    "damaged": lambda it: it.damage("orders", body_of(WAITING).encode()),
    "removed and never delivered": lambda it: it.remove("orders", MESSAGES - 1),
}
DOUBLED: dict[str, Edit] = {
    "settled twice": lambda it: it.settle("orders", DONE, Outcome.ACKED, b"somebody"),
    "settled thrice": lambda it: [it.settle("orders", DONE, Outcome.ACKED, b"c") for _ in "ab"] and None,
    "in the log twice": lambda it: it.double("orders", DONE + CONSUMED),
}


@pytest.mark.parametrize("edit", LOST)
def test_a_confirmed_message_that_is_gone_is_named(data: Path, edit: str) -> None:
    LOST[edit](Tampering(data))
    found = reckon_directory(data)
    offset = MESSAGES - 1 if "never" in edit else WAITING
    assert found.lost == [("orders", offset)]
    assert found.doubled == []
    assert bool(found.damage) == (edit == "damaged")


@pytest.mark.parametrize("edit", DOUBLED)
def test_a_message_that_is_there_twice_is_named(data: Path, edit: str) -> None:
    DOUBLED[edit](Tampering(data))
    found = reckon_directory(data)
    offset = DONE + CONSUMED if "log" in edit else DONE
    assert (found.lost, found.doubled) == ([], [("orders", offset)])


def test_one_lost_and_one_doubled_are_told_apart(data: Path) -> None:
    it = Tampering(data)
    it.remove("orders", WAITING)
    it.settle("orders", DONE, Outcome.ACKED, b"somebody")
    found = reckon_directory(data)
    assert (found.lost, found.doubled) == ([("orders", WAITING)], [("orders", DONE)])


def test_a_settlement_that_is_gone_makes_a_message_lost(data: Path) -> None:
    """It was delivered, the log has let go of it, and nobody says that it is done."""
    Tampering(data).forget("orders", Kind.SETTLED, DONE)
    assert reckon_directory(data).lost == [("orders", DONE)]


def test_a_second_settlement_otherwise_than_as_done_doubles_nothing(data: Path) -> None:
    Tampering(data).settle("orders", DONE, Outcome.REJECTED, b"somebody")
    assert reckon_directory(data).doubled == []


def test_with_a_file_that_is_gone_all_that_waited_in_it_is_lost(data: Path) -> None:
    Tampering(data).remove_segment("orders")
    found = reckon_directory(data)
    assert found.damage
    offsets = {offset for queue, offset in found.lost if queue == "orders"}
    assert offsets >= set(range(CONSUMED + 1, MESSAGES))
    assert not offsets & set(range(CONSUMED))


def test_where_nobody_audits_what_is_gone_was_never_promised(data: Path) -> None:
    Tampering(data).remove("plain", 1)
    found = reckon_directory(data)
    assert found.lost == []
    assert [row["state"] for row in found.of("plain").values()] == ["ready"]


def test_what_the_audit_finds_it_finds_again(data: Path) -> None:
    def found() -> Reckoned:
        return reckon_directory(data)

    Tampering(data).remove("orders", WAITING)
    assert found() == found()
