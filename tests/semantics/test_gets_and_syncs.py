"""A `basic.get` beyond the durable mark of its queue: it is answered when the mark is on disk, and not
before.

Nothing at or above the mark is handed out before the mark is moved, which takes a sync. The broker's own
thread never syncs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from pamqp import commands

from leveret.storage.store import Store
from leveret.testing.broker import Broker
from leveret.testing.clock import VirtualClock
from leveret.testing.disk import Operation
from tests.processes import WAIT_S
from tests.semantics.client import Channel

MARK_AHEAD = 4
COUNT = 3 * MARK_AHEAD
TEXTS = [f"message {number}" for number in range(COUNT)]
GET = commands.Basic.Get(queue="q")


@pytest.fixture(autouse=True)
def small_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leveret.storage.cursor.MARK_AHEAD", MARK_AHEAD)


@pytest.fixture
def syncing_threads(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of the threads that have synced the store."""
    names: set[str] = set()
    sync = Store.sync

    def noted(store: Store) -> int:
        names.add(threading.current_thread().name)
        return sync(store)

    monkeypatch.setattr(Store, "sync", noted)
    return names


class Held:
    """A disk that syncs nothing until it is released."""

    def __init__(self, broker: Broker) -> None:
        self._released = threading.Event()
        assert broker.disk is not None
        broker.disk.before = self._before

    def _before(self, operation: Operation) -> None:
        if operation.kind == "sync":
            self._released.wait(WAIT_S)

    def release(self) -> None:
        self._released.set()


@pytest.fixture
def hold(broker: Broker) -> Iterator[Callable[[], Held]]:
    """`hold()` holds up every sync; all are released when the test is over."""
    made: list[Held] = []

    def hold() -> Held:
        made.append(Held(broker))
        return made[-1]

    yield hold
    for held in made:
        held.release()


def fill(channel: Channel, **arguments: object) -> None:
    """All messages are in the queue and on disk, and the mark allows the first few."""
    channel.declare("q", arguments=arguments)
    channel.confirm_select().publish_confirmed("q", *TEXTS)


def use_up_the_mark(channel: Channel) -> int:
    """Get messages until one waits; return how many have come."""
    count = 0
    while True:
        channel.send(GET)
        other = channel.client.channel()
        other.quiet()
        other.close()
        if not channel.answers:
            return count
        channel.answer(commands.Basic.GetOk)
        count += 1


def texts(channel: Channel, count: int) -> list[str]:
    return [channel.answer(commands.Basic.GetOk).text for _ in range(count)]


def test_gets_empty_a_queue_and_the_broker_syncs_on_a_thread_for_that(
    channel: Channel, open_channel: Callable[[], Channel], syncing_threads: set[str]
) -> None:
    fill(channel)
    assert open_channel().get_all("q") == TEXTS
    assert syncing_threads == {"leveret-sync"}


def test_a_get_that_waits_holds_up_no_other_channel(
    channel: Channel, open_channel: Callable[[], Channel], hold: Callable[[], Held]
) -> None:
    fill(channel)
    getter = open_channel()
    held = hold()
    count = use_up_the_mark(getter)
    assert count < COUNT
    assert open_channel().declare("other", durable=False).message_count == 0
    held.release()
    assert texts(getter, 1) == [TEXTS[count]]


def test_answers_behind_a_get_that_waits_keep_their_order_and_tags_ascend(
    channel: Channel, open_channel: Callable[[], Channel], hold: Callable[[], Held]
) -> None:
    fill(channel)
    channel.declare("other", durable=False)
    channel.publish("other", "from another queue")
    getter = open_channel()
    held = hold()
    count = use_up_the_mark(getter)
    getter.send(commands.Basic.Qos(prefetch_count=1))
    getter.send(commands.Basic.Get(queue="other"), GET)
    held.release()
    got = getter.answer(commands.Basic.GetOk)
    assert (got.text, got.tag) == (TEXTS[count], count + 1)
    getter.answer(commands.Basic.QosOk)
    got = getter.answer(commands.Basic.GetOk)
    assert (got.text, got.tag) == ("from another queue", count + 2)
    got = getter.answer(commands.Basic.GetOk)
    assert (got.text, got.tag) == (TEXTS[count + 1], count + 3)


def test_a_get_that_waits_finds_nothing_when_the_queue_is_emptied_meanwhile(
    channel: Channel, open_channel: Callable[[], Channel], hold: Callable[[], Held]
) -> None:
    fill(channel)
    getter = open_channel()
    held = hold()
    count = use_up_the_mark(getter)
    assert channel.purge("q") == COUNT - count
    held.release()
    getter.answer(commands.Basic.GetEmpty)


def test_a_get_that_waits_finds_nothing_when_the_queue_is_deleted_meanwhile(
    channel: Channel, open_channel: Callable[[], Channel], hold: Callable[[], Held]
) -> None:
    fill(channel)
    getter = open_channel()
    held = hold()
    use_up_the_mark(getter)
    channel.send(commands.Queue.Delete(queue="q"))
    channel.client.channel().quiet()
    held.release()
    getter.answer(commands.Basic.GetEmpty)
    channel.answer(commands.Queue.DeleteOk)


@pytest.mark.parametrize("politely", [True, False])
def test_a_channel_that_ends_while_its_get_waits_takes_no_message(
    channel: Channel,
    open_channel: Callable[[], Channel],
    broker: Broker,
    hold: Callable[[], Held],
    politely: bool,
) -> None:
    fill(channel)
    getter = open_channel()
    held = hold()
    count = use_up_the_mark(getter)
    if politely:
        other = getter.client.channel()
        getter.send(commands.Channel.Close(200, "", 0, 0))
        other.quiet()
        held.release()
        getter.answer(commands.Basic.GetEmpty)
        getter.answer(commands.Channel.CloseOk)
    else:
        getter.client.vanish()
        broker.wait_until(lambda: len(broker.server.broker.sessions) == 1, "the connection is gone")
        held.release()
    broker.wait_until_depth("q", COUNT)
    again = open_channel()
    found = [again.get("q") for _ in range(COUNT)]
    assert [got.text for got in found if got is not None] == TEXTS
    assert [got.redelivered for got in found if got is not None] == [True] * count + [False] * (COUNT - count)


def test_on_a_full_disk_a_get_waits_for_room_and_does_not_say_that_the_queue_is_empty(
    channel: Channel, open_channel: Callable[[], Channel], broker: Broker
) -> None:
    fill(channel)
    getter = open_channel()
    broker.faults.full_disk()
    count = use_up_the_mark(getter)
    assert count < COUNT
    channel.client.own.next(commands.Connection.Blocked)
    getter.client.channel().quiet()
    assert not getter.answers
    broker.faults.heal_disk()
    assert texts(getter, 1) == [TEXTS[count]]
    assert getter.get_all("q") == TEXTS[count + 1 :]


def test_a_get_is_not_given_what_has_expired_while_it_waited(
    channel: Channel, open_channel: Callable[[], Channel], clock: VirtualClock, hold: Callable[[], Held]
) -> None:
    fill(channel, **{"x-message-ttl": 1000})
    getter = open_channel()
    held = hold()
    use_up_the_mark(getter)
    clock.advance(2)
    held.release()
    getter.answer(commands.Basic.GetEmpty)
