"""Acks on their way: whatever the order, each tag is settled once, and none before it is done.

The ledger is tried against a broker of thirty lines that knows what is outstanding and refuses, as real ones
do, whatever it does not know; then both real brokers see it with several workers.
"""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from leveret.client import Delivery, Settled
from leveret.client.acks import Ledger
from leveret.client.codecs import Codecs
from leveret.client.delivery import Source
from leveret.client.errors import ConnectionLost
from tests.client.listening import Notes, application, connection_of, fill, on_a_loop, ready

Fresh = Callable[..., str]
ACK, NACK = 80, 120


class ModelSession:
    """Reads what the ledger sends as a broker would."""

    def __init__(self) -> None:
        self.outstanding: set[int] = set()
        self.acked: list[int] = []
        self.nacked: list[tuple[int, bool]] = []
        self.frames = 0

    def deliver(self, tag: int) -> None:
        self.outstanding.add(tag)

    def send(self, data: bytes) -> None:
        while data:
            kind, channel, size = struct.unpack_from(">BHI", data)
            payload, end, data = data[7 : 7 + size], data[7 + size], data[8 + size :]
            assert (kind, channel, end) == (1, 3, 0xCE)
            class_id, method, tag, bits = struct.unpack(">HHQB", payload)
            assert class_id == 60
            self.frames += 1
            if method == ACK:
                self.acked += self._covered(tag, multiple=bool(bits & 1))
            else:
                assert method == NACK
                self.nacked += [
                    (each, bool(bits & 2)) for each in self._covered(tag, multiple=bool(bits & 1))
                ]

    def _covered(self, tag: int, *, multiple: bool) -> list[int]:
        found = sorted(each for each in self.outstanding if each <= tag) if multiple else [tag]
        assert found, f"unknown delivery tag {tag}"
        assert self.outstanding.issuperset(found), f"unknown delivery tag {tag}"
        self.outstanding.difference_update(found)
        return found


class ModelChannel:
    def __init__(self) -> None:
        self.session = ModelSession()
        self.number = 3
        self.error: Exception | None = None
        self.open = True

    def end(self) -> None:
        self.error = ConnectionLost("gone")
        self.open = False


def ledger_on(channel: ModelChannel, stale: Callable[[Delivery], None] = lambda _: None) -> Ledger:
    return Ledger(channel, stale=stale)  # type: ignore[arg-type]


def delivery(ledger: Ledger, tag: int) -> Delivery:
    ledger.channel.session.deliver(tag)  # type: ignore[attr-defined]
    ledger.add(tag)
    source = Source(ledger, "q", Codecs())
    return Delivery(source, tag, exchange="", routing_key="q", redelivered=False, header=bytes(14), body=b"")


steps = st.lists(
    st.one_of(
        st.tuples(st.just("deliver"), st.integers(1, 8)),
        st.tuples(st.sampled_from(["ack", "nack", "reject", "otherwise", "twice"]), st.integers(0, 200)),
        st.tuples(st.just("turn"), st.just(0)),
    ),
    max_size=120,
)


@given(steps)
def test_every_tag_is_settled_once_as_told_and_none_before_it_is_done(history: list[tuple[str, int]]) -> None:
    async def run() -> None:
        channel = ModelChannel()
        ledger, session = ledger_on(channel), channel.session
        in_hand: list[Delivery] = []
        done: list[Delivery] = []
        told: dict[int, str] = {}
        tag = 0
        for what, number in history:
            if what == "deliver":
                in_hand += [delivery(ledger, tag + n + 1) for n in range(number)]
                tag += number
            elif what == "turn":
                await asyncio.sleep(0)
            elif what == "twice":
                if done:
                    again = done[number % len(done)]
                    assert ledger.ack(again) is Settled.TWICE
                    assert ledger.nack(again, requeue=True) is Settled.TWICE
            elif in_hand:
                one = in_hand.pop(number % len(in_hand))
                told[one.tag] = what
                done.append(one)
                settle(ledger, session, one, what)
            done_tags = set(told)
            assert done_tags.issuperset(session.acked)
            assert done_tags.issuperset(tag for tag, _ in session.nacked)
        await asyncio.sleep(0)
        assert ledger._open == {each.tag for each in in_hand}  # nothing is kept for ever
        assert not ledger._acked
        assert session.outstanding == {each.tag for each in in_hand}
        assert sorted(session.acked) == sorted(tag for tag, what in told.items() if what == "ack")
        assert sorted(session.nacked) == sorted(
            (tag, what == "nack") for tag, what in told.items() if what in ("nack", "reject")
        )

    asyncio.run(run())


def settle(ledger: Ledger, session: ModelSession, one: Delivery, what: str) -> None:
    if what == "ack":
        assert ledger.ack(one) is Settled.SENT
    elif what == "otherwise":
        assert ledger.settled_otherwise(one) is Settled.SENT
        session.outstanding.discard(one.tag)  # the requeue with a delay, sent at once
    else:
        assert ledger.nack(one, requeue=what == "nack") is Settled.SENT


@on_a_loop
async def test_acks_of_one_turn_in_order_leave_as_one_frame() -> None:
    channel = ModelChannel()
    ledger = ledger_on(channel)
    deliveries = [delivery(ledger, tag) for tag in range(1, 1001)]
    for one in reversed(deliveries):
        ledger.ack(one)
    await asyncio.sleep(0)
    assert channel.session.frames == 1
    assert channel.session.acked == list(range(1, 1001))


@on_a_loop
async def test_what_is_done_above_a_hole_is_acked_by_itself_and_the_hole_later() -> None:
    channel = ModelChannel()
    ledger, session = ledger_on(channel), channel.session
    one, two, three, four = (delivery(ledger, tag) for tag in range(1, 5))
    for each in (one, three, four):
        ledger.ack(each)
    await asyncio.sleep(0)
    assert (session.acked, session.outstanding) == ([1, 3, 4], {2})
    ledger.ack(two)
    await asyncio.sleep(0)
    assert session.acked == [1, 3, 4, 2]
    frames = session.frames
    for tag in range(5, 105):
        ledger.ack(delivery(ledger, tag))
    await asyncio.sleep(0)
    assert session.frames == frames + 1  # no hole any more: all of them in one


@on_a_loop
async def test_a_nack_leaves_at_once_and_no_ack_covers_it_again() -> None:
    channel = ModelChannel()
    ledger, session = ledger_on(channel), channel.session
    one, two, three = (delivery(ledger, tag) for tag in range(1, 4))
    ledger.ack(one)
    ledger.nack(two, requeue=True)
    ledger.ack(three)
    await asyncio.sleep(0)
    assert (session.acked, session.nacked) == ([1, 3], [(2, True)])


@on_a_loop
async def test_what_is_settled_after_the_end_is_stale_and_nothing_is_written() -> None:
    channel, stale = ModelChannel(), Notes()
    ledger = ledger_on(channel, stale.append)
    one, two, three = (delivery(ledger, tag) for tag in range(1, 4))
    ledger.ack(one)
    channel.end()
    assert await two.ack() is Settled.STALE
    assert await three.nack() is Settled.STALE
    assert await three.reject() is Settled.TWICE
    await asyncio.sleep(0)
    assert channel.session.frames == 0
    assert stale == [two, three]


@on_a_loop
async def test_many_workers_settle_in_any_order_and_the_channel_stays(amqp_url: str, fresh: Fresh) -> None:
    queue, chance = fresh(), random.Random(20260101)
    app = application(amqp_url, queue)
    calls = Notes()

    @app.listener(queue, concurrency=16, prefetch=64)
    async def take(message: Delivery) -> None:
        for _ in range(chance.randrange(5)):
            await asyncio.sleep(0)
        calls.append(message.body)
        if not message.redelivered and chance.random() < 0.1:
            raise RuntimeError("again, please")

    async with app:
        await fill(app.publisher, queue, [b"%d" % n for n in range(3000)])
        await calls.until(lambda notes: app.listeners[0].counters.acked == 3000, "3000 acks")
        assert connection_of(app).sessions == 1
        assert app.listeners[0].counters.stale == 0
    assert len(set(calls)) == 3000
    assert await ready(amqp_url, queue) == 0


@on_a_loop
async def test_threads_settle_in_any_order_and_the_channel_stays(amqp_url: str, fresh: Fresh) -> None:
    queue = fresh()
    app = application(amqp_url, queue)
    calls = Notes()

    @app.listener(queue, concurrency=8, prefetch=32)
    def take(message: Delivery) -> None:
        calls.append(message.body)

    async with app:
        await fill(app.publisher, queue, [b"%d" % n for n in range(1000)])
        await calls.reach(1000)
    assert len(calls) == len(set(calls)) == 1000
    assert await ready(amqp_url, queue) == 0


@on_a_loop
async def test_nothing_is_acked_that_is_in_hand_while_all_the_others_are(amqp_url: str, fresh: Fresh) -> None:
    """The first message is never done; a crash of the consumer gives back that one, and nothing else."""
    queue = fresh()
    app = application(amqp_url, queue, grace_s=0)
    calls: Any = Notes()

    @app.listener(queue, concurrency=2, prefetch=10)
    async def take(body: bytes) -> None:
        if body == b"0":
            await asyncio.Event().wait()
        calls.append(body)

    async with app:
        await fill(app.publisher, queue, [b"%d" % n for n in range(200)])
        await calls.reach(199)
    assert await ready(amqp_url, queue) == 1
