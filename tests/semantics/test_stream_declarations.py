"""Streams: how they are declared, what is refused and with which words, and what is compared.

Texts and their order are RabbitMQ 3.10's. Where its own check crashes, Leveret says what the check was about.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.semantics.client import Channel, ClosedByBroker
from tests.semantics.grouping import STREAM

OF_QUEUE = "for queue 's' in vhost '/'"


def refusal(channel: Channel, name: str = "s", **options: Any) -> tuple[int, str]:
    """Code and text, without the code's name, with which a declaration is refused."""
    with pytest.raises(ClosedByBroker) as caught:
        channel.declare(name, **options)
    return caught.value.code, caught.value.text.partition(" - ")[2]


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ({"durable": False}, "non-durable"),
        ({"exclusive": True}, "exclusive-owner"),
        ({"auto_delete": True}, "auto-delete"),
        ({"durable": False, "exclusive": True}, "exclusive-owner"),
        ({"durable": False, "exclusive": True, "auto_delete": True}, "auto-delete"),
    ],
)
def test_a_stream_is_durable_and_for_all(channel: Channel, flags: dict[str, bool], name: str) -> None:
    refused = refusal(channel, arguments=STREAM, **flags)
    assert refused == (406, f"invalid property '{name}' {OF_QUEUE}")


@pytest.mark.parametrize("more", [{}, {"x-max-age": "nonsense"}, {"x-max-length": 5}])
def test_a_stream_has_a_name(channel: Channel, more: dict[str, Any]) -> None:
    refused = refusal(channel, "", durable=False, arguments={**STREAM, **more})
    assert refused == (406, "Cannot declare a server-named queue for type rabbit_stream_queue")


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        *[("x-max-age", each) for each in ("1Y", "1M", "1D", "1h", "1m", "1s", "10000Y", "01D")],
        ("x-max-length-bytes", 0),
        ("x-stream-max-segment-size-bytes", 0),
        ("x-stream-max-segment-size-bytes", 3_000_000_000),
        ("x-initial-cluster-size", 7),
        *[("x-queue-leader-locator", each) for each in ("client-local", "balanced", "random")],
        ("x-unheard-of", "anything"),
    ],
)
def test_a_stream_takes_its_arguments(channel: Channel, argument: str, value: Any) -> None:
    for _ in range(2):
        assert channel.declare("s", arguments={**STREAM, argument: value}).message_count == 0


@pytest.mark.parametrize(
    ("argument", "value", "wrong"),
    [
        *[("x-max-age", each, "invalid_max_age") for each in ("5", "5X", "1d", "0s", "1.5h", "1h2m")],
        *[("x-max-age", each, "invalid_max_age") for each in ("abc", "-1D", "", " 1D", "1D\n", "²D")],
        ("x-max-age", 5, "{unacceptable_type,signedint}"),
        ("x-max-age", True, "{unacceptable_type,bool}"),
        ("x-max-age", None, "{unacceptable_type,void}"),
        ("x-max-length-bytes", -1, "{value_negative,-1}"),
        ("x-max-length-bytes", "a", '"expected integer, got longstr"'),
        ("x-stream-max-segment-size-bytes", -1, "{value_negative,-1}"),
        ("x-stream-max-segment-size-bytes", "1000", '"expected integer, got longstr"'),
        ("x-initial-cluster-size", 0, "{value_zero,0}"),
        ("x-initial-cluster-size", "a", '"expected integer, got longstr"'),
        ("x-queue-leader-locator", "bad", "invalid_queue_locator_arg"),
        ("x-queue-leader-locator", 1, "{unacceptable_type,signedint}"),
    ],
)
def test_a_bad_argument_of_a_stream_is_refused(
    channel: Channel, argument: str, value: Any, wrong: str
) -> None:
    refused = refusal(channel, arguments={**STREAM, argument: value})
    assert refused == (406, f"invalid arg '{argument}' {OF_QUEUE}: {wrong}")


@pytest.mark.parametrize(
    "argument",
    [
        "x-message-ttl",
        "x-expires",
        "x-max-length",
        "x-overflow",
        "x-dead-letter-exchange",
        "x-dead-letter-routing-key",
        "x-max-priority",
        "x-single-active-consumer",
        "x-delivery-limit",
        "x-queue-mode",
    ],
)
def test_an_argument_of_other_queues_is_refused_on_a_stream(channel: Channel, argument: str) -> None:
    refused = refusal(channel, arguments={**STREAM, argument: "a"})
    assert refused == (406, f"invalid arg '{argument}' {OF_QUEUE} of queue type rabbit_stream_queue")


def test_arguments_are_looked_at_in_one_order(open_channel: Callable[..., Channel]) -> None:
    """Values, then arguments of other types, then the flags, then the size of a segment."""
    wrong: dict[str, Any] = {
        "x-max-length-bytes": -1,
        "x-max-age": "a",
        "x-initial-cluster-size": 0,
        "x-queue-leader-locator": "bad",
        "x-max-length": 5,
        "x-stream-max-segment-size-bytes": 3_000_000_001,
    }
    for complained_of in list(wrong)[:-1]:
        text = refusal(open_channel(), durable=False, arguments={**STREAM, **wrong})[1]
        assert text.startswith(f"invalid arg '{complained_of}'")
        del wrong[complained_of]
    assert "'non-durable'" in refusal(open_channel(), durable=False, arguments=STREAM | wrong)[1]
    too_large = refusal(open_channel(), arguments=STREAM | wrong)
    assert too_large == (406, "Exceeded max value for x-stream-max-segment-size-bytes")


@pytest.mark.parametrize(
    ("again", "text"),
    [
        ({"x-max-age": "24h"}, "'x-max-age' {}: received '24h' but current is '1D'"),
        (
            {"x-max-age": None},
            "'x-max-age' {}: received none but current is the value '1D' of type 'longstr'",
        ),
        (
            {"x-max-length-bytes": None},
            "'x-max-length-bytes' {}: received none but current is the value '1000000' of type 'signedint'",
        ),
        (
            {"x-queue-type": None},
            "'x-queue-type' {}: received none but current is the value 'stream' of type 'longstr'",
        ),
        (
            {"x-initial-cluster-size": 3},
            "'x-initial-cluster-size' {}: received the value '3' of type 'signedint' but current is none",
        ),
        (
            {"x-queue-type": "classic", "x-max-length-bytes": 5, "x-max-age": "1s"},
            "'x-max-length-bytes' {}: received '5' but current is '1000000'",
        ),
    ],
)
def test_a_stream_is_declared_again_as_it_was(channel: Channel, again: dict[str, Any], text: str) -> None:
    arguments = {**STREAM, "x-max-age": "1D", "x-max-length-bytes": 1_000_000}
    channel.declare("s", arguments=arguments)
    channel.declare("s", arguments=arguments)
    changed = {name: value for name, value in (arguments | again).items() if value is not None}
    refused = refusal(channel, arguments=changed)
    assert refused == (406, f"inequivalent arg {text.format(OF_QUEUE)}")
