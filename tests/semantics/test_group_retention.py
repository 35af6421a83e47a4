"""Streams are kept by age and size whoever has read them: what retention takes, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from leveret.storage.journal import Entry, Kind, Outcome
from leveret.testing.broker import Broker
from leveret.testing.clock import VirtualClock
from tests.semantics.client import Channel
from tests.semantics.grouping import Watched, join, numbered, offsets, publish, received, stream

OPEN = Callable[..., Channel]
SMALL_FILES = {"x-stream-max-segment-size-bytes": 1000}
BODY = "x" * 400


def checkpoint(broker: Broker) -> None:
    """Two, as the server makes them when the first one shows that something can go."""
    for _ in range(2):
        broker.call(broker.server.broker.store.checkpoint)
        broker.call(broker.server.broker.checkpointed)


def published(channel: Channel, broker: Broker, count: int, files: int = 1) -> None:
    """So many messages, in so many files of equal numbers."""
    for _ in range(files):
        publish(channel, *[BODY] * (count // files))
        checkpoint(broker)


def there(channel: Channel, open_channel: OPEN) -> list[int]:
    """What a plain reader finds."""
    reader = open_channel()
    reader.qos(1000)
    reader.consume("s", arguments={"x-stream-offset": "first"})
    found = offsets(reader.quiet())
    reader.close()
    return found


def test_what_is_too_old_goes_whether_it_was_read_or_not(
    channel: Channel, open_channel: OPEN, broker: Broker, clock: VirtualClock, billing: Watched
) -> None:
    stream(channel, **{"x-max-age": "60s"})
    member = join(open_channel(), prefetch=2)
    published(channel, broker, 4)
    member.deliveries(2)
    member.ack(2, multiple=True)
    assert offsets(member.quiet()) == [2, 3]
    member.ack(3)
    member.close()
    clock.advance(30)
    published(channel, broker, 2)
    clock.advance(31)
    checkpoint(broker)
    assert there(channel, open_channel) == [4, 5]
    assert (billing.watermark(), billing.lag()) == (4, 2)
    assert channel.count("s") == 2


def test_what_is_too_old_goes_also_while_it_is_in_memory_only(
    channel: Channel, broker: Broker, clock: VirtualClock
) -> None:
    stream(channel, **{"x-max-age": "60s"})
    publish(channel, "a")
    for _ in range(20):
        clock.advance(10)
    broker.wait_until_depth("s", 0)


def test_what_is_too_much_goes_from_the_front(
    channel: Channel, open_channel: OPEN, broker: Broker, billing: Watched
) -> None:
    stream(channel, **{"x-max-length-bytes": 4000, **SMALL_FILES})
    join(open_channel()).close()
    published(channel, broker, 30, files=15)
    checkpoint(broker)
    left = there(channel, open_channel)
    assert 4 <= len(left) <= 12
    assert left == list(range(30 - len(left), 30))
    assert (billing.watermark(), billing.lag()) == (left[0], len(left))


def test_what_retention_takes_from_a_group_is_settled_visibly(
    channel: Channel, open_channel: OPEN, broker: Broker, clock: VirtualClock, billing: Watched
) -> None:
    stream(channel, **{"x-max-age": "60s"})
    join(open_channel()).close()
    published(channel, broker, 3)
    clock.advance(61)
    checkpoint(broker)

    def read() -> list[Entry]:
        log = billing.vhost.groups.get("s", "billing").partitions["s"].cursor.journal
        return [Entry.of(record) for record in log.read([(log.first, log.next)])]

    settled = [entry for entry in broker.call(read) if entry.kind is Kind.SETTLED]
    assert [(each.ranges, each.outcome) for each in settled] == [([(0, 3)], Outcome.RETENTION)]


@pytest.mark.parametrize("mode", ["concurrent", "orderly"])
def test_what_is_in_flight_is_left_to_its_member(
    channel: Channel, open_channel: OPEN, broker: Broker, clock: VirtualClock, billing: Watched, mode: str
) -> None:
    stream(channel, **{"x-max-age": "60s"})
    published(channel, broker, 3)
    member = join(open_channel(), prefetch=1, mode=mode, consume_timeout=0, delays="5s")
    member.delivery()
    clock.advance(61)
    checkpoint(broker)
    assert (billing.in_flight(), billing.lag(), billing.watermark()) == (1, 1, 0)
    member.nack(1)
    member.quiet()
    clock.advance(5)
    again = member.delivery()
    assert (again.headers["x-stream-offset"], again.body) == (0, BODY.encode())
    member.ack(again.tag)
    assert member.quiet() == []
    assert billing.lag() == 0
    checkpoint(broker)
    checkpoint(broker)
    assert broker.call(lambda: billing.vhost.queues["s"].log.segments) == ()


def test_what_was_sent_back_is_kept_until_it_is_settled(
    channel: Channel, open_channel: OPEN, broker: Broker, clock: VirtualClock, billing: Watched
) -> None:
    stream(channel, **{"x-max-age": "60s"})
    published(channel, broker, 3)
    member = join(open_channel(), delays="1h")
    member.deliveries(3)
    member.ack(1)
    member.nack(2)
    member.ack(3)
    member.quiet()
    for _ in range(3):
        clock.advance(1200)
        checkpoint(broker)
    assert there(channel, open_channel) == []
    assert offsets(join(open_channel(), group="new").quiet()) == []
    again = member.delivery()
    assert (again.headers["x-stream-offset"], again.body) == (1, BODY.encode())
    billing.change(paused=True)
    member.close()
    checkpoint(broker)
    assert billing.lag() == 1, "ready again, and was sent back once"
    billing.change(paused=False)
    assert received(join(open_channel()), 1) == [1]


def test_what_was_sent_back_is_kept_also_through_a_crash(
    channel: Channel, open_channel: OPEN, broker: Broker, clock: VirtualClock
) -> None:
    stream(channel, **{"x-max-age": "60s"})
    published(channel, broker, 3)
    member = join(open_channel(), delays="1h")
    member.deliveries(3)
    member.nack(2)
    member.quiet()
    checkpoint(broker)
    broker.crash()
    clock.advance(1800)
    broker.start()
    checkpoint(broker)
    clock.advance(1800)
    assert offsets(join(open_channel()).quiet()) == [1]


def test_a_group_that_begins_after_retention_does_not_see_what_others_hold(
    channel: Channel, open_channel: OPEN, broker: Broker, clock: VirtualClock, billing: Watched
) -> None:
    stream(channel, **{"x-max-age": "60s"})
    published(channel, broker, 3)
    holder = join(open_channel(), prefetch=1, consume_timeout=0)
    holder.delivery()
    clock.advance(61)
    checkpoint(broker)
    publish(channel, "new")
    late = join(open_channel(), group="late")
    assert received(late, 1) == [3]
    billing.seek(0)
    assert received(holder, 1) == [3]


def test_a_segment_that_one_group_holds_does_not_keep_others_behind(
    channel: Channel, open_channel: OPEN, broker: Broker, billing: Watched
) -> None:
    stream(channel, **{"x-max-length-bytes": 2000, **SMALL_FILES})
    published(channel, broker, 2)
    holder = join(open_channel(), prefetch=1)
    holder.delivery()
    slow = Watched(broker, group="slow")
    join(open_channel(), group="slow").close()
    published(channel, broker, 20, files=10)
    checkpoint(broker)
    assert slow.watermark() > 10
    assert billing.watermark() == 0
    holder.ack(1)
    assert holder.delivery().headers["x-stream-offset"] > 10


def test_retention_survives_a_restart(
    channel: Channel, open_channel: OPEN, broker: Broker, clock: VirtualClock, billing: Watched
) -> None:
    stream(channel, **{"x-max-age": "60s"})
    join(open_channel()).close()
    published(channel, broker, 3)
    broker.restart()
    clock.advance(61)
    checkpoint(broker)
    assert there(channel, open_channel) == []
    assert billing.lag() == 0
    broker.crash()
    broker.start()
    assert (billing.lag(), there(channel, open_channel)) == (0, [])


def test_numbers_go_on_when_everything_is_gone(
    channel: Channel, open_channel: OPEN, broker: Broker, clock: VirtualClock
) -> None:
    stream(channel, **{"x-max-age": "60s"})
    published(channel, broker, 3)
    clock.advance(61)
    checkpoint(broker)
    broker.restart()
    publish(open_channel(), *numbered(2))
    assert offsets(join(open_channel()).quiet()) == [3, 4]
