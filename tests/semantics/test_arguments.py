"""Arguments of queues, exchanges and consumers that change nothing, or that are for streams only."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands

from tests.semantics.client import Channel

QUORUM = {"x-queue-type": "quorum"}
WITHOUT_EFFECT = [
    ({}, "x-queue-mode", "lazy", "default"),
    ({}, "x-queue-version", 2, 1),
    ({}, "x-queue-master-locator", "min-masters", "random"),
    (QUORUM, "x-dead-letter-strategy", "at-least-once", "at-most-once"),
    (QUORUM, "x-max-in-memory-length", 1, 2),
    (QUORUM, "x-max-in-memory-bytes", 1, 2),
    (QUORUM, "x-queue-leader-locator", "balanced", "client-local"),
    (QUORUM, "x-quorum-initial-group-size", 3, 5),
]
OF_STREAMS = [
    {"x-max-age": "1h"},
    {"x-stream-max-segment-size-bytes": 1000},
    {"x-initial-cluster-size": 3},
]


# accepted without effect


@pytest.mark.parametrize(("needs", "argument", "value", "other"), WITHOUT_EFFECT)
def test_an_argument_without_effect_is_kept_and_compared_and_changes_nothing(
    channel: Channel, needs: dict[str, Any], argument: str, value: object, other: object
) -> None:
    channel.declare("q", arguments=needs | {argument: value})
    for text in "abc":
        channel.publish("q", text)
    assert channel.get_all("q") == ["a", "b", "c"]
    channel.declare("q", arguments=needs | {argument: value})
    channel.send(commands.Queue.Declare(queue="q", durable=True, arguments=needs | {argument: other}))
    error = channel.error()
    assert error.code == 406
    assert f"inequivalent arg '{argument}'" in error.text


def test_an_unheard_of_argument_of_a_queue_is_let_through_and_not_compared(channel: Channel) -> None:
    channel.declare("q", arguments={"x-unheard-of": 1})
    channel.declare("q", arguments={"x-unheard-of": "two"})
    channel.publish("q", "a")
    assert channel.get_all("q") == ["a"]


def test_an_unheard_of_argument_of_an_exchange_is_let_through_and_not_compared(channel: Channel) -> None:
    channel.exchange("x", "fanout", arguments={"x-unheard-of": 1})
    channel.exchange("x", "fanout", arguments={"x-unheard-of": "two"})
    channel.declare("q")
    channel.bind("q", "x")
    channel.publish("", "a", exchange="x")
    assert channel.get_all("q") == ["a"]


@pytest.mark.parametrize(
    "arguments",
    [{"x-credit": {"credit": 1, "drain": False}}, {"x-cancel-on-ha-failover": True}, {"x-unheard-of": 5}],
)
def test_a_consumers_argument_without_effect_changes_nothing(
    channel: Channel, arguments: dict[str, Any]
) -> None:
    channel.declare("q")
    for text in "abc":
        channel.publish("q", text)
    channel.consume("q", arguments=arguments)
    assert channel.texts(3) == ["a", "b", "c"]


# refused


@pytest.mark.parametrize("arguments", OF_STREAMS)
def test_arguments_of_streams_are_refused_on_other_queues(
    channel: Channel, arguments: dict[str, Any]
) -> None:
    channel.send(commands.Queue.Declare(queue="q", durable=True, arguments=arguments))
    error = channel.error()
    assert error.code == 406
    assert error.text.startswith("PRECONDITION_FAILED - invalid arg")


def test_a_stream_offset_is_refused_on_other_queues(channel: Channel) -> None:
    channel.declare("q")
    channel.send(commands.Basic.Consume(queue="q", arguments={"x-stream-offset": "first"}))
    error = channel.error()
    assert error.code == 406
    assert "invalid arg 'x-stream-offset'" in error.text
