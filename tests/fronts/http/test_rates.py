"""Rates and samples in JSON, with RabbitMQ's names."""

import pytest
from starlette.requests import Request

from leveret.broker.counters import FIGURES, Counters
from leveret.broker.history import History
from leveret.fronts.http.errors import Problem
from leveret.fronts.http.rates import (
    OF_CHANNEL,
    OF_EXCHANGE,
    OF_QUEUE,
    Range,
    Ranges,
    message_stats,
    ranges_of,
)

S = 1_000_000


def asked(query: str) -> Ranges:
    return ranges_of(Request({"type": "http", "query_string": query.encode(), "headers": []}), now_us=10 * S)


def counted(**figures: int) -> Counters:
    """Counters that stood at zero 5 s before."""
    counters = Counters(**figures, history=History(FIGURES))
    counters.history.record(5 * S, [0] * len(FIGURES))
    counters.history.record(10 * S, [getattr(counters, name) for name in FIGURES])
    return counters


def test_only_groups_in_which_something_happened_are_shown():
    assert message_stats(counted(), OF_CHANNEL, None) == {}
    assert message_stats(counted(published=10), OF_QUEUE, None) == {
        "publish": 10,
        "publish_details": {"rate": 2.0},
    }
    assert len(message_stats(counted(acked=1), OF_QUEUE, None)) == 2 * 8


def test_deliver_get_is_the_sum_of_all_ways_to_get_a_message():
    counters = counted(delivered=1, delivered_auto_ack=2, got=3, got_auto_ack=4)
    stats = message_stats(counters, OF_CHANNEL, None)
    assert (stats["deliver_get"], stats["deliver_get_details"]) == (10, {"rate": 2.0})


def test_an_exchange_tells_what_goes_in_and_out():
    stats = message_stats(counted(published=5, routed=10), OF_EXCHANGE, None)
    assert stats == {
        "publish_in": 5,
        "publish_in_details": {"rate": 1.0},
        "publish_out": 10,
        "publish_out_details": {"rate": 2.0},
    }


def test_samples_are_shown_on_request():
    stats = message_stats(counted(published=10), OF_QUEUE, Range(10, 5, 10 * S))
    assert stats["publish_details"] == {
        "rate": 2.0,
        "samples": [
            {"sample": 10, "timestamp": 10_000},
            {"sample": 0, "timestamp": 5_000},
            {"sample": 0, "timestamp": 0},
        ],
        "avg_rate": 1.0,
        "avg": 10 / 3,
    }


def test_a_query_asks_for_samples_of_each_kind():
    assert asked("") == Ranges()
    assert asked("lengths_age=60&lengths_incr=5") == Ranges(lengths=Range(60, 5, 10 * S))
    assert asked("msg_rates_age=60").msg_rates is None
    assert asked("msg_rates_age=x&msg_rates_incr=5").msg_rates is None


@pytest.mark.parametrize(("age", "incr"), [(60, 0), (0, 5), (-60, 5), (5010, 10)])
def test_ranges_without_samples_or_with_too_many_are_refused(age: int, incr: int):
    with pytest.raises(Problem) as refused:
        asked(f"data_rates_age={age}&data_rates_incr={incr}")
    assert refused.value.status_code == 400
    assert refused.value.detail == f"Invalid range parameters: age {age}, incr {incr}"
