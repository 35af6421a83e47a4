"""What a group or a topic can't be is an error when it is written down, before anything is consumed."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from typing import Any

import pytest

from leveret.amqp.tables import Timestamp
from leveret.client import App, Batch, Binding, ClientError, Exchange, Queue, partition, topic
from leveret.client.membership import Membership


async def take(body: bytes) -> None: ...


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"mode": "chaotic"}, "'concurrent' or 'orderly', not 'chaotic'"),
        ({"mode": "query"}, "'concurrent' or 'orderly', not 'query'"),
        ({"group": ""}, "1 to 200 printable bytes; this is ''"),
        ({"group": "a\nb"}, "1 to 200 printable bytes"),
        ({"group": "ü" * 101}, "1 to 200 printable bytes"),
        ({"group": 7}, "1 to 200 printable bytes; this is 7"),
        ({"max_span": 0}, "max_span is a whole number of at least 1, not 0"),
        ({"max_span": -5}, "max_span is a whole number of at least 1, not -5"),
        ({"max_span": 2.5}, "max_span is a whole number of at least 1, not 2.5"),
        ({"max_span": True}, "max_span is a whole number of at least 1, not True"),
        ({"consume_timeout_s": -1}, "consume_timeout_s is a number of seconds, from 0 to ten years, not -1"),
        ({"consume_timeout_s": math.inf}, "consume_timeout_s is a number of seconds"),
        ({"consume_timeout_s": math.nan}, "consume_timeout_s is a number of seconds"),
        ({"consume_timeout_s": "2s"}, "consume_timeout_s is a number of seconds"),
        ({"max_reconsume": -2}, "max_reconsume is a whole number of at least -1, not -2"),
        ({"delays": ""}, "delays is empty; a group needs at least one delay"),
        ({"delays": []}, "delays is empty; a group needs at least one delay"),
        ({"delays": "1s -5s"}, "delays contains '-5s'; a delay is a time like 500ms, 10s, 1m or 2h"),
        ({"delays": "1s 5"}, "delays contains '5'"),
        ({"delays": [1, -5]}, "each of delays is a number of seconds, from 0 to ten years, not -5"),
        ({"delays": [None]}, "each of delays is a number of seconds"),
        ({"delays": 5}, "delays is a list of seconds, or a text like '10s 30s 1m', not 5"),
        ({"first_level": 0}, "first_level is a whole number of at least 1, not 0"),
        (
            {"start": "somewhere"},
            "start is 'somewhere'; it is 'first', 'last', an offset, a datetime, or how",
        ),
        ({"start": "0h"}, "start is '0h'"),
        ({"start": -1}, "start is -1"),
        ({"start": True}, "start is True"),
        ({"start": datetime(2026, 1, 1)}, "without a time zone"),
        ({"mode": "orderly", "max_span": 10}, "max_span and consume_timeout_s are for mode='concurrent'"),
        ({"mode": "orderly", "consume_timeout_s": 1}, "max_span and consume_timeout_s are for"),
        ({"mode": "orderly", "batch": Batch(2)}, "one message of a partition at a time: no batches"),
        ({"ack": "none"}, "ack is 'auto' or 'manual', not 'none'"),
        ({"ack": "perhaps"}, "ack is 'auto', 'manual' or 'none'"),
        ({"concurrency": 0}, "prefetch and concurrency must be at least 1"),
        ({"prefetch": 0}, "prefetch and concurrency must be at least 1"),
        ({"prefetch": 70_000}, "prefetch must be from 1 to 65535"),
        ({"batch": Batch(20), "prefetch": 10}, "never full with a prefetch of 10"),
        ({"timeout_s": 0}, "must be above 0"),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_would_be_right(
    wrong: dict[str, Any], sentence: str
) -> None:
    app = App()
    with pytest.raises(ValueError, match=re.escape(sentence)):
        app.group_listener("orders", **{"group": "billing", **wrong})(take)
    assert not app._registered


def test_a_handler_by_hand_is_async_in_a_group_too() -> None:
    with pytest.raises(TypeError, match="needs an async def"):
        App().group_listener("orders", group="billing", ack="manual")(lambda body: None)


def test_group_listeners_are_registered_before_the_start() -> None:
    app = App()
    app._running = True
    with pytest.raises(ClientError, match="the application runs"):
        app.group_listener("orders", group="billing")


def test_what_is_not_given_is_not_sent() -> None:
    assert Membership("billing").arguments() == {
        "x-group": "billing",
        "x-group-start": "first",
    }


def test_everything_that_is_given_is_sent_in_the_brokers_words() -> None:
    member = Membership(
        "billing",
        mode="concurrent",
        start="7D",
        max_span=10,
        consume_timeout_s=0.0001,
        max_reconsume=-1,
        delays="500ms 1s 2m 3h 1d",
        first_level=2,
    )
    assert member.arguments() == {
        "x-group": "billing",
        "x-group-mode": "concurrent",
        "x-group-start": "7D",
        "x-group-max-span": 10,
        "x-group-consume-timeout": 1,  # not 0, which would mean never
        "x-group-max-reconsume": -1,
        "x-group-delays": [500, 1000, 120_000, 10_800_000, 86_400_000],
        "x-group-first-level": 2,
    }
    assert Membership("b", consume_timeout_s=0).arguments()["x-group-consume-timeout"] == 0
    assert Membership("b", delays=(0.07, 2)).arguments()["x-group-delays"] == [70, 2000]


def test_a_point_in_time_is_sent_as_one() -> None:
    found = Membership("b", start=datetime(2026, 1, 1, tzinfo=UTC)).arguments()["x-group-start"]
    assert isinstance(found, Timestamp)
    assert found == 1_767_225_600


@pytest.mark.parametrize(("limit", "attempts"), [(None, 17), (0, 1), (3, 4), (-1, None)])
def test_attempts_are_one_more_than_the_times_it_comes_again(limit: int | None, attempts: int | None) -> None:
    assert Membership("b", max_reconsume=limit).attempts_max == attempts


# topics


def test_a_topic_is_an_exchange_with_streams_bound_to_it() -> None:
    parts = topic("orders", partitions=2, max_age="7D", max_bytes=10**9).parts
    streams = [
        Queue(name, type="stream", max_length_bytes=10**9, arguments={"x-max-age": "7D"})
        for name in ("orders-0", "orders-1")
    ]
    bindings = [Binding("orders", each.name, "1") for each in streams]
    assert parts == (Exchange("orders", "x-consistent-hash"), *streams, *bindings)


@pytest.mark.parametrize("count", [0, -1, 1025, True])
def test_a_topic_has_some_partitions_and_not_too_many(count: int) -> None:
    with pytest.raises(ValueError, match="a topic has 1 to 1024 partitions"):
        topic("orders", partitions=count)


@pytest.mark.parametrize("number", [-1, 1024, True])
def test_a_partition_has_a_number_that_topics_have(number: int) -> None:
    assert partition("orders", 0) == "orders-0"
    with pytest.raises(ValueError, match="a partition is a number from 0 to 1023"):
        partition("orders", number)
