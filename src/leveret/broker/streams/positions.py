"""Where a reader of a stream begins: `x-stream-offset` in all its forms, and where groups start or are sent.

    "first" | "last" | "next" | an offset | a point in time | how long ago ("1h", "7D")

`last` is the last message there is (RabbitMQ begins with the last chunk, which is the last message or some
before it), and `next` what comes from now on: rows too that are there and not committed yet. So does a time
after them. An offset below the first means the first; one above the end is waited for.
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
    """A word, or `offset`, `time` (microseconds) or `ago` (likewise) with a number."""

    kind: str
    value: int = 0

    def in_(self, stream: Readable) -> int:
        """The offset at which a reader of this stream begins."""
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
    """What `x-stream-offset` says; RabbitMQ's text where it makes no sense."""
    value = arguments.get("x-stream-offset", "next")
    found = parse(value)
    if found is None:
        raise PreconditionFailed(
            f"invalid arg 'x-stream-offset' for queue '{queue}' in vhost '{vhost}': "
            f"{{invalid_stream_offset_arg,{{{type_name(value)},{as_term(value)}}}}}"
        )
    return found


def parse(value: Value) -> Position | None:
    """None for what is no position."""
    if isinstance(value, Timestamp):
        return Position("time", 1_000_000 * value)
    if isinstance(value, int) and is_integer(value):
        return Position("offset", value)
    if isinstance(value, str) and value in WORDS:
        return Position(value)
    ago_us = duration_us(value)
    return None if ago_us is None else Position("ago", ago_us)
