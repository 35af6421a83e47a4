"""Far more than the limit at once: a turn of the broker drops its share, and others have theirs in between.

The tests count turns instead of time; where there must be none in between, they take them themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from random import Random

import pytest

from leveret.amqp.properties import encode
from leveret.broker.queues import overflow
from leveret.broker.queues.queue import Queue
from leveret.broker.sessions import settling
from leveret.broker.sessions.settlement import Tags, Verdict
from leveret.flight import actions
from leveret.storage.errors import WriteFailed
from leveret.storage.log import Log
from leveret.storage.offset_set import Range
from leveret.storage.records import PERSISTENT, Message, Record
from leveret.testing.broker import Broker
from tests.fronts.flight.bulk_requests import Asking
from tests.semantics.client import Channel

DEAD_LETTERS = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
BYTES_PER_MESSAGE = 16 << 10
SHARE = 8
LIMIT = 3


@pytest.fixture(autouse=True)
def share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small, so that few messages are many."""
    monkeypatch.setattr(overflow, "TURN_MESSAGES_MAX", SHARE, raising=False)


def declare(channel: Channel, **arguments: object) -> None:
    channel.declare("dead")
    channel.declare("q", arguments={**DEAD_LETTERS, **(arguments or {"x-max-length": LIMIT})})


def found(broker: Broker, name: str = "q") -> Queue:
    return broker.server.broker.vhosts["/"].queue(name)


def made(text: str, priority: int = 0) -> Message:
    header = encode({"delivery_mode": 2}, len(text))
    return Message(b"", b"q", header, text.encode(), PERSISTENT, priority)


def many(texts: Iterable[str]) -> list[Message]:
    return [made(text) for text in texts]


def numbers(start: int, stop: int) -> list[str]:
    return [str(each) for each in range(start, stop)]


def turns(broker: Broker, *published: Sequence[Message]) -> list[int]:
    """A turn for each of these, then as many as there are; how many messages are in the queue after each."""

    def take() -> list[int]:
        lengths = [turn(broker, messages) for messages in published]
        while broker.server.broker.has_more:
            lengths.append(turn(broker))
        return lengths

    return broker.call(take)


def turn(broker: Broker, messages: Sequence[Message] = ()) -> int:
    """One turn, on the broker's thread, in which these are published."""
    inner = broker.server.broker
    inner.begin_turn()
    if messages:
        found(broker).append(messages)
    inner.end_turn()
    return found(broker).ready


def watched(broker: Broker) -> list[int]:
    """Grows by the length of the queue after each turn of the server."""
    lengths: list[int] = []
    broker.call(lambda: broker.server.turns.watchers.append(lambda: lengths.append(found(broker).ready)))
    return lengths


def dropped(lengths: Sequence[int]) -> list[int]:
    return [before - after for before, after in pairwise(lengths)]


def texts(broker: Broker, name: str) -> list[str]:
    """What a queue holds, in the order of delivery."""

    def read() -> list[str]:
        queue = found(broker, name)
        return [each.body.decode() for each in queue.log.read(list(queue.cursor.progress.ready_ranges()))]

    return broker.call(read)


def test_a_turn_drops_its_share_and_the_next_ones_the_rest(channel: Channel, broker: Broker) -> None:
    declare(channel)
    published = numbers(0, 3 * SHARE + 1 + LIMIT)
    lengths = turns(broker, many(published))
    assert lengths == [LIMIT + 2 * SHARE + 1, LIMIT + SHARE + 1, LIMIT + 1, LIMIT]
    assert texts(broker, "q") == published[-LIMIT:]
    dead = [channel.get("dead", no_ack=True) for _ in published[:-LIMIT]]
    assert [each.text for each in dead] == published[:-LIMIT]
    assert {each.headers["x-death"][0]["reason"] for each in dead} == {"maxlen"}
    assert channel.get("dead") is None


def test_what_is_published_in_a_turn_is_normally_gone_with_it(
    channel: Channel, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    declare(channel)
    assert turns(broker, many(numbers(0, LIMIT)), many(numbers(0, 2000))) == [LIMIT, LIMIT]


def test_without_dead_letters_it_is_the_same(channel: Channel, broker: Broker) -> None:
    channel.declare("q", arguments={"x-max-length": LIMIT})
    assert turns(broker, many(numbers(0, LIMIT + SHARE + 1))) == [LIMIT + 1, LIMIT]


@pytest.mark.histories(sample=5, full=5)
def test_bytes_over_the_limit_go_in_shares_and_not_one_message_too_many(
    channel: Channel, broker: Broker, seed: int
) -> None:
    random = Random(seed)
    published = ["x" * random.choice([0, 0, 1, 2, 5, 30]) for _ in range(20 * SHARE)]
    limit = random.randrange(1, 30)
    declare(channel, **{"x-max-length-bytes": limit})
    left = list(published)
    while sum(map(len, left)) > limit:
        del left[0]
    lengths = [len(published), *turns(broker, many(published))]
    assert set(dropped(lengths)[:-1]) == {SHARE}
    assert texts(broker, "q") == left
    assert texts(broker, "dead") == published[: len(published) - len(left)]


def test_an_empty_message_behind_the_last_that_must_go_stays(channel: Channel, broker: Broker) -> None:
    declare(channel, **{"x-max-length-bytes": 4})
    assert turns(broker, many(["a", "bb", "", "cccc"])) == [2]
    assert texts(broker, "q") == ["", "cccc"]


def test_nothing_is_tried_again_and_again_where_only_what_is_delayed_is_too_much(
    channel: Channel, broker: Broker
) -> None:
    declare(channel, **{"x-max-length-bytes": 2, "x-retry-delay-ms": 1000})
    for _ in range(2):
        channel.publish("q", "xx")
        channel.get("q")
    channel.nack(2, multiple=True)
    channel.quiet()
    assert turns(broker, many(["y"])) == [0]


def test_with_both_limits_the_one_that_is_reached_first_counts(channel: Channel, broker: Broker) -> None:
    declare(channel, **{"x-max-length": 2 * SHARE, "x-max-length-bytes": 5})
    assert turns(broker, many("x" * 5 * SHARE)) == [4 * SHARE, 3 * SHARE, 2 * SHARE, SHARE, 5]
    assert broker.depth("dead") == 5 * SHARE - 5


def test_of_large_messages_fewer_are_copied_in_a_turn(channel: Channel, broker: Broker) -> None:
    declare(channel)
    large = "x" * 2 * BYTES_PER_MESSAGE
    assert turns(broker, many([large] * (LIMIT + SHARE))) == [LIMIT + SHARE // 2, LIMIT]


def test_one_that_is_larger_than_the_share_goes_by_itself(channel: Channel, broker: Broker) -> None:
    declare(channel)
    larger = "x" * 2 * SHARE * BYTES_PER_MESSAGE
    assert turns(broker, many([larger] * (LIMIT + 2))) == [LIMIT + 1, LIMIT]


def test_with_priorities_they_go_in_the_order_of_delivery(channel: Channel, broker: Broker) -> None:
    declare(channel, **{"x-max-length": LIMIT, "x-max-priority": 2})
    published = [made(str(number), number % 3) for number in range(3 * SHARE + LIMIT)]
    assert turns(broker, published) == [LIMIT + 2 * SHARE, LIMIT + SHARE, LIMIT]
    expected = [each.body.decode() for each in sorted(published, key=lambda message: -message.priority)]
    assert texts(broker, "dead") == expected[:-LIMIT]
    assert texts(broker, "q") == expected[-LIMIT:]


def test_what_goes_back_in_one_turn_is_dropped_in_shares_however_many_give_it_back(
    channel: Channel, broker: Broker
) -> None:
    declare(channel)

    def give_back() -> int:
        queue = found(broker)
        queue.append(many(numbers(0, 3 * SHARE)))
        taken = [queue.deliverer.take(1, who=b"")[1][0].offset for _ in range(3 * SHARE)]
        for offset in taken:
            queue.deliverer.requeue([(offset, offset + 1)])
        return turn(broker)

    assert broker.call(give_back) == 2 * SHARE
    broker.call(broker.server.turns.begin)
    broker.wait_until_depth("q", LIMIT)
    assert sorted(map(int, texts(broker, "dead") + texts(broker, "q"))) == list(range(3 * SHARE))


def test_a_queue_that_is_published_to_without_end_does_not_grow(channel: Channel, broker: Broker) -> None:
    declare(channel)
    each = 5 * SHARE
    published = [numbers(start, start + each) for start in range(0, 20 * each, each)]
    assert max(turns(broker, *map(many, published))) <= LIMIT + each
    assert texts(broker, "q") == published[-1][-LIMIT:]
    assert texts(broker, "dead") == numbers(0, 20 * each - LIMIT)


def test_a_queue_that_gets_large_messages_without_end_does_not_grow(channel: Channel, broker: Broker) -> None:
    declare(channel)
    large = [made("x" * 2 * BYTES_PER_MESSAGE)] * 2 * SHARE
    assert max(turns(broker, *[large] * 10)) <= LIMIT + 2 * SHARE


def test_bodies_are_read_when_they_are_dropped_and_not_to_find_out_how_many(
    channel: Channel, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every other one came back: each is a range of its own."""
    declare(channel)
    read: list[int] = []
    log_read = Log.read

    def counted(log: Log, ranges: Sequence[Range]) -> list[Record]:
        records = log_read(log, ranges)
        read.append(sum(len(record.body) for record in records))
        return records

    def give_back() -> tuple[int, int]:
        queue = found(broker)
        queue.append([made("x" * 4 * BYTES_PER_MESSAGE)] * 100)
        taken = [each.offset for each in queue.deliverer.take(100, who=b"")[1]]
        monkeypatch.setattr(Log, "read", counted)
        queue.deliverer.requeue([(offset, offset + 1) for offset in taken[::2]])
        return turn(broker), sum(read)

    assert broker.call(give_back) == (50 - SHARE // 4, SHARE * BYTES_PER_MESSAGE)


def test_a_consumer_with_credit_has_its_chance_before_each_turn_drops_more(
    channel: Channel, broker: Broker
) -> None:
    declare(channel)
    channel.qos(1)
    channel.consume("q")

    def between() -> None:
        turn(broker, many(numbers(0, 3 * SHARE)))
        (consumer,) = found(broker).consumers
        settling.settle(consumer.channel, [Tags(1, 1)], Verdict.ACK)
        broker.server.turns.begin()

    broker.call(between)
    assert channel.texts(2) == ["0", str(SHARE + 1)]


def test_others_are_served_while_rows_are_dropped_that_were_committed_at_once(
    channel: Channel, broker: Broker
) -> None:
    declare(channel)
    asking = Asking(broker)
    rows = [text.encode() for text in numbers(0, 20 * SHARE)]
    assert asking.stage(0, rows, key="q") == actions.Done()
    lengths = watched(broker)
    assert asking(actions.Commit("/", "writer", 0, ["task"])).messages == len(rows)
    broker.wait_until_depth("q", LIMIT)
    assert max(lengths) > 10 * SHARE
    assert max(dropped(lengths)) == SHARE
    assert texts(broker, "dead") == numbers(0, 20 * SHARE - LIMIT)
    assert texts(broker, "q") == numbers(20 * SHARE - LIMIT, 20 * SHARE)


def test_a_full_disk_in_between_is_waited_for(channel: Channel, broker: Broker) -> None:
    declare(channel)
    inner = broker.server.broker

    def fill_up() -> tuple[int, int, bool]:
        length = turn(broker, many(numbers(0, 4 * SHARE)))
        broker.faults.full_disk()
        with pytest.raises(WriteFailed):
            inner.store.sync()
        found = length, turn(broker), inner.has_more
        broker.server.turns.begin()
        return found

    assert broker.call(fill_up) == (3 * SHARE, 3 * SHARE, False)
    broker.wait_until(lambda: inner.blocked is not None, "the disk is known to be full")
    assert broker.depth("dead") == SHARE
    lengths = watched(broker)
    broker.faults.heal_disk()
    broker.wait_until_depth("q", LIMIT)
    assert max(dropped([3 * SHARE, *lengths])) == SHARE
    assert texts(broker, "dead") == numbers(0, 4 * SHARE - LIMIT)
    assert texts(broker, "q") == numbers(4 * SHARE - LIMIT, 4 * SHARE)


@pytest.mark.parametrize("limit", [{"x-max-length": LIMIT}, {"x-max-length-bytes": LIMIT}])
def test_nothing_more_is_dropped_of_a_queue_that_is_purged_in_between(
    channel: Channel, broker: Broker, limit: dict[str, int]
) -> None:
    declare(channel, **limit)

    def purge() -> int:
        turn(broker, many("x" * 4 * SHARE))
        return found(broker).purge(who=b"")

    assert broker.call(lambda: (purge(), turn(broker), broker.server.broker.has_more)) == (
        3 * SHARE,
        0,
        False,
    )
    assert broker.depth("dead") == SHARE
    assert turns(broker, many("x" * (LIMIT + SHARE + 1))) == [LIMIT + 1, LIMIT]


def test_a_queue_that_is_deleted_in_between_is_left_alone(channel: Channel, broker: Broker) -> None:
    declare(channel)

    def delete() -> bool:
        turn(broker, many(numbers(0, 4 * SHARE)))
        inner = broker.server.broker
        inner.vhosts["/"].delete_queue(found(broker))
        inner.end_turn()
        return inner.has_more

    assert not broker.call(delete)
    assert texts(broker, "dead") == numbers(0, SHARE)


@pytest.mark.parametrize("limit", [{"x-max-length": LIMIT}, {"x-max-length-bytes": LIMIT}])
def test_a_broker_that_begins_again_in_between_goes_on(
    channel: Channel, broker: Broker, limit: dict[str, int]
) -> None:
    declare(channel, **limit)
    published = [chr(ord("A") + number) for number in range(5 * SHARE)]

    def begin() -> int:
        length = turn(broker, many(published))
        broker.server.broker.store.sync()
        broker.server.turns.abandon()
        return length

    assert broker.call(begin) == 4 * SHARE
    broker.crash()
    broker.start()
    broker.wait_until_depth("q", LIMIT)
    assert texts(broker, "q") == published[-LIMIT:]
    assert texts(broker, "dead") == published[:-LIMIT]
