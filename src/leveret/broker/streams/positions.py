"""Positions in a stream: `x-stream-offset` in all its forms, and where groups start or move to.

    "first" | "last" | "next" | an offset | a point in time | how long ago ("1h", "7D")

`last` is the last message of the stream (RabbitMQ begins with the last chunk, so possibly some messages
before it). `next` begins with messages that become readable from now on, including rows that are stored but
not committed yet; so does a time after the last message. An offset below the first one means the first; a
reader waits for an offset above the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from leveret.broker.canonical import Timestamp, Value
from leveret.broker.errors import PreconditionFailed
from leveret.broker.queues.argument_checks import duration_us
from leveret.broker.queues.erlang_terms import as_term, is_integer, type_name
from leveret.broker.streams.readable import Readable

WORDS = ("first", "last", "next")


class Position(NamedTuple):
    """One of `WORDS`, or `offset`, `time` (microseconds) or `ago` (microseconds) with a number."""

    kind: str
    value: int = 0

    def offset_in(self, stream: Readable) -> int:
        """Return the offset at which a reader of this stream begins."""
        log, now_us = stream.log, stream.broker.now_us()
        match self.kind:
            case "first":
                return log.first
            case "last":
                return stream.decided() if stream.last is None else stream.last
            case "next":
                return stream.decided()
            case "offset":
                return max(log.first, self.value)
        since_us = now_us - self.value if self.kind == "ago" else self.value
        return min(log.first_at(since_us), stream.decided())


def of_consumer(arguments: Mapping[str, Value], *, queue: str, vhost: str) -> Position:
    """Return the position in `x-stream-offset`; raise with RabbitMQ's text if it is invalid."""
    value = arguments.get("x-stream-offset", "next")
    position = parse(value)
    if position is None:
        raise PreconditionFailed(
            f"invalid arg 'x-stream-offset' for queue '{queue}' in vhost '{vhost}': "
            f"{{invalid_stream_offset_arg,{{{type_name(value)},{as_term(value)}}}}}"
        )
    return position


def parse(value: Value) -> Position | None:
    """Return the position that a value stands for, or None."""
    if isinstance(value, Timestamp):
        return Position("time", 1_000_000 * value)
    if isinstance(value, int) and is_integer(value):
        return Position("offset", value)
    if isinstance(value, str) and value in WORDS:
        return Position(value)
    ago_us = duration_us(value)
    return None if ago_us is None else Position("ago", ago_us)
