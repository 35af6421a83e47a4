"""Acks, nacks and rejects that arrive in one read do what they would have done one by one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from random import Random
from struct import pack

import pytest

from tests.semantics.client import Channel, ClosedByBroker

Settlement = Callable[[Channel], None]
OPEN = Callable[..., Channel]
DEAD = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
HELD = 40


def script(random: Random) -> list[Settlement]:
    """Mostly of tags that are outstanding, in no order; now and then a mistake."""
    tags = list(range(1, HELD + 1))
    random.shuffle(tags)
    steps: list[Settlement] = []
    while tags and len(steps) < HELD:
        kind = random.choices(("ack", "nack", "reject", "multiple", "again"), (20, 8, 8, 0.5, 0.3))[0]
        for tag in [tags.pop() for _ in range(min(len(tags), random.randrange(1, 8)))]:
            steps.append(step(kind, tag))
    return steps


def step(kind: str, tag: int) -> Settlement:
    match kind:
        case "ack":
            return lambda channel: channel.ack(tag)
        case "nack":
            return lambda channel: channel.nack(tag)
        case "reject":
            return lambda channel: channel.reject(tag, requeue=False)
        case "multiple":
            return lambda channel: channel.ack(tag, multiple=True)
        case _:
            return lambda channel: (channel.ack(tag), channel.ack(tag))[0]


def outcome(open_channel: OPEN, steps: list[Settlement], *, together: bool) -> object:
    """What the client was told, and what the queues hold afterwards."""
    channel, holder = open_channel(), open_channel()
    for queue in ("q", "dead"):
        channel.delete(queue)
    channel.declare("q", arguments=DEAD)
    channel.declare("dead")
    with channel.client.together():
        for number in range(HELD):
            channel.publish("q", str(number))
    channel.quiet()
    for _ in range(HELD):
        holder.get("q")
    with holder.client.together() if together else nullcontext():
        for each in steps:
            each(holder)
    try:
        holder.quiet()
        told = "nothing"
    except ClosedByBroker as error:
        told = str(error)
    return told, channel.get_all("q"), channel.get_all("dead")


@pytest.mark.parametrize("tags", [(1, (1 << 64) - 1), ((1 << 64) - 1, (1 << 64) - 3), (1, 0), (0, 0)])
def test_the_strangest_tags_among_others_are_unknown_and_no_more(
    open_channel: OPEN, tags: tuple[int, int]
) -> None:
    channel, holder = open_channel(), open_channel()
    channel.declare("q")
    channel.publish("q")
    holder.get("q")
    with holder.client.together():
        for tag in tags:
            holder.client.send(pack(">BHIHHQBB", 1, holder.number, 13, 60, 80, tag, 0, 0xCE))
    unknown = next(tag for tag in tags if tag != 1)
    assert holder.error().text == f"PRECONDITION_FAILED - unknown delivery tag {unknown}"
    assert channel.count("q") == (1 not in tags)


@pytest.mark.histories(sample=6, full=25)
def test_one_read_does_what_many_reads_do(open_channel: OPEN, seed: int) -> None:
    steps = script(Random(seed))
    one_by_one = outcome(open_channel, steps, together=False)
    assert outcome(open_channel, steps, together=True) == one_by_one
