"""Queues with deadlines, and the consumers that were cancelled for missing one."""

from __future__ import annotations

from pamqp import commands

from tests.semantics.client import Channel, Got

HALF_AN_HOUR_S = 30 * 60
DEAD_LETTERS = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


def declare(
    channel: Channel, action: str | None = None, timeout_ms: int | None = 1000, **more: object
) -> None:
    """The queue `q`, and the queue `dead` for its dead letters."""
    arguments = dict(more)
    if action is not None:
        arguments["x-consumer-timeout-action"] = action
    if timeout_ms is not None:
        arguments["x-consumer-timeout"] = timeout_ms
    channel.declare("dead")
    channel.declare("q", arguments=arguments)


def cancels(found: list[Got]) -> list[str]:
    """Return the tags of cancelled consumers."""
    return [each.method.consumer_tag for each in found if isinstance(each.method, commands.Basic.Cancel)]
