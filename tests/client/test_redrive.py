"""Bringing messages back, on Leveret and on RabbitMQ: what happens in between, each is in one of the two."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from leveret.client import (
    App,
    ChannelClosed,
    ClientError,
    Connection,
    Delivery,
    MessageNacked,
    MessageReturned,
    Park,
    Publisher,
    Queue,
    Retry,
    Topology,
)
from leveret.client.redrive import Redriven, redrive
from leveret.testing.broker import Broker
from tests.cli.queues import bodies, channel, declare, depth, put, take_all, wait_until_depth
from tests.client.listening import QUICK, WAIT_S, on_a_loop
from tests.client.proxy import ACK, CONFIRM, PUBLISH, Kind, Proxy, Where

Fresh = Callable[[str], str]


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def parked(url: str, home: str, fresh: Fresh, count: int) -> str:
    """A parking place with so many messages of the queue `home`."""
    parking = declare(url, fresh("parked"))
    headers = {"x-original-queue": home, "x-exception-type": "E", "x-attempts": 3, "kept": "yes"}
    put(url, parking, *numbers(count), headers=headers, delivery_mode=2)
    return parking


async def redriven(url: str, source: str, **options: Any) -> Redriven:
    async with Connection(url, backoff=QUICK) as connection:
        return await redrive(connection, source, **options)


def number_of(delivery: Delivery) -> int:
    return int(delivery.body)


# --- where to --------------------------------------------------------------------------------------------


@on_a_loop
async def test_messages_go_back_to_where_they_came_from_without_the_traces_of_their_failures(
    amqp_url: str, fresh: Fresh
):
    home, parking = declare(amqp_url, fresh("home")), declare(amqp_url, fresh("parked"))
    headers = {
        "x-original-queue": home,
        "x-exception-type": "builtins.ValueError",
        "x-exception-message": "no",
        "x-exception-stacktrace": "...",
        "x-failed-attempts": 3,
        "x-attempts": 3,
        "x-producer": "somebody",
        "x-seq": 17,
        "region": "eu",
    }
    said = {"content_type": "text/plain", "priority": 3, "correlation_id": "c", "reply_to": "r", "type": "t"}
    said |= {"message_id": "m", "timestamp": 1_700_000_000, "app_id": "a", "delivery_mode": 2}
    put(amqp_url, parking, b"a", b"b", headers=headers, **said)
    assert await redriven(amqp_url, parking) == Redriven(found=2, moved=2, kept=0)
    found = take_all(amqp_url, home)
    assert [kept.body for kept in found] == [b"a", b"b"]
    for kept in found:
        own = {name: value for name, value in kept.properties.headers.items() if name not in headers}
        assert own == {}
        assert kept.properties.headers["region"] == "eu"
        assert kept.properties.headers["x-producer"] != "somebody"
        assert kept.properties.headers.keys() == {"region", "x-producer", "x-seq"}
        assert {name: getattr(kept.properties, name) for name in said} == said
    assert depth(amqp_url, parking) == 0


@on_a_loop
async def test_dead_letters_that_were_tried_again_go_back_to_their_queue_and_not_to_where_they_waited(
    amqp_url: str, fresh: Fresh
):
    home, dead = fresh("home"), fresh("dead")
    queue = Queue(home, dead_letter_exchange="", dead_letter_key=dead)
    app = App(amqp_url, topology=Topology(queue, Queue(dead)), backoff=QUICK)

    @app.listener(home, retry=Retry(3, initial_s=0.01))
    async def take(body: bytes) -> None:
        raise RuntimeError("not now")

    async with app:
        (await app.publisher.publish(b"x", home)).check()
        await asyncio.to_thread(wait_until_depth, amqp_url, dead, 1)
    assert await redriven(amqp_url, dead) == Redriven(found=1, moved=1, kept=0)
    assert bodies(amqp_url, home) == [b"x"]


@on_a_loop
async def test_dead_letters_go_back_to_the_queue_they_died_in(amqp_url: str, fresh: Fresh):
    dead = declare(amqp_url, fresh("dead"))
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    home = declare(amqp_url, fresh("home"), numbers(5), **arguments)
    with channel(amqp_url) as opened:
        for _ in range(5):
            method, _, _ = opened.basic_get(home)
            opened.basic_reject(method.delivery_tag, requeue=False)
    wait_until_depth(amqp_url, dead, 5)
    assert await redriven(amqp_url, dead) == Redriven(found=5, moved=5, kept=0)
    found = take_all(amqp_url, home)
    assert [kept.body for kept in found] == numbers(5)
    assert not any("death" in name for kept in found for name in kept.properties.headers)


@on_a_loop
async def test_what_nobody_knows_the_origin_of_stays_unless_it_is_said_where_to(amqp_url: str, fresh: Fresh):
    source = declare(amqp_url, fresh("source"), numbers(3))
    assert await redriven(amqp_url, source) == Redriven(found=3, moved=0, kept=3)
    wait_until_depth(amqp_url, source, 3)
    to = declare(amqp_url, fresh("to"))
    assert await redriven(amqp_url, source, to=to) == Redriven(found=3, moved=3, kept=0)
    assert (bodies(amqp_url, to), depth(amqp_url, source)) == (numbers(3), 0)


@on_a_loop
async def test_only_what_was_there_at_the_start_is_moved(amqp_url: str, fresh: Fresh):
    source = declare(amqp_url, fresh("circle"), numbers(250))
    assert await redriven(amqp_url, source, to=source) == Redriven(found=250, moved=250, kept=0)
    assert bodies(amqp_url, source) == numbers(250)


@on_a_loop
async def test_an_empty_queue_is_no_error(amqp_url: str, fresh: Fresh):
    source = declare(amqp_url, fresh("empty"))
    assert await redriven(amqp_url, source, to=source) == Redriven()


# --- which, how many, how fast ---------------------------------------------------------------------------


@on_a_loop
async def test_what_the_filter_leaves_out_stays_in_its_order(amqp_url: str, fresh: Fresh):
    home = declare(amqp_url, fresh("home"))
    parking = parked(amqp_url, home, fresh, 250)
    result = await redriven(amqp_url, parking, where=lambda message: number_of(message) % 3 == 0)
    assert result == Redriven(found=250, moved=84, kept=166)
    wait_until_depth(amqp_url, parking, 166)
    assert bodies(amqp_url, home) == numbers(250)[::3]
    assert bodies(amqp_url, parking) == [body for at, body in enumerate(numbers(250)) if at % 3]


@pytest.mark.parametrize("fails_at", [0, 50, 150])
def test_a_filter_that_raises_ends_it_and_nothing_is_lost(amqp_url: str, fresh: Fresh, fails_at: int):
    home = declare(amqp_url, fresh("home"))
    parking = parked(amqp_url, home, fresh, 200)

    def where(message: Delivery) -> bool:
        if number_of(message) == fails_at:
            raise LookupError("the filter is broken")
        return True

    with pytest.raises(LookupError, match="the filter is broken"):
        asyncio.run(redriven(amqp_url, parking, where=where))
    moved = bodies(amqp_url, home)
    wait_until_depth(amqp_url, parking, 200 - len(moved))
    assert moved + bodies(amqp_url, parking) == numbers(200)


@pytest.mark.parametrize("limit", [0, 1, 100, 101, 1000])
def test_no_more_than_the_limit_are_moved(amqp_url: str, fresh: Fresh, limit: int):
    home = declare(amqp_url, fresh("home"))
    parking = parked(amqp_url, home, fresh, 120)
    result = asyncio.run(redriven(amqp_url, parking, limit=limit))
    assert result == Redriven(found=120, moved=min(limit, 120), kept=0)
    wait_until_depth(amqp_url, parking, 120 - result.moved)
    assert (bodies(amqp_url, home), bodies(amqp_url, parking)) == (
        numbers(120)[:limit],
        numbers(120)[limit:],
    )


@on_a_loop
async def test_the_limit_counts_what_is_moved_and_not_what_is_looked_at(amqp_url: str, fresh: Fresh):
    home = declare(amqp_url, fresh("home"))
    parking = parked(amqp_url, home, fresh, 250)
    result = await redriven(amqp_url, parking, limit=2, where=lambda message: number_of(message) >= 200)
    assert (result.moved, bodies(amqp_url, home)) == (2, [b"200", b"201"])
    wait_until_depth(amqp_url, parking, 248)


@on_a_loop
async def test_a_rate_makes_the_rounds_small(leveret_broker: Broker, fresh: Fresh):
    url = leveret_broker.url
    home = declare(url, fresh("home"))
    parking = parked(url, home, fresh, 30)
    moved: list[int] = []
    result = await redriven(
        url, parking, rate_per_s=40, on_progress=lambda progress: moved.append(progress.moved)
    )
    assert result.moved == 30
    assert moved == [20, 30], "no more at a time than half a second's"


@pytest.mark.parametrize("rate", [0, -1.0])
def test_a_rate_that_moves_nothing_is_refused(rate: float):
    with pytest.raises(ValueError, match="above 0"):
        asyncio.run(redrive(Connection("amqp://127.0.0.1:1/"), "q", rate_per_s=rate))


@on_a_loop
async def test_progress_is_told_and_adds_up(amqp_url: str, fresh: Fresh):
    home = declare(amqp_url, fresh("home"))
    parking = parked(amqp_url, home, fresh, 250)
    told: list[tuple[int, int, int]] = []
    await redriven(
        amqp_url,
        parking,
        where=lambda message: number_of(message) % 2 == 0,
        on_progress=lambda progress: told.append((progress.found, progress.moved, progress.kept)),
    )
    assert told == [(250, 50, 50), (250, 100, 100), (250, 125, 125)]


@on_a_loop
async def test_whoever_is_told_of_the_progress_may_end_it(amqp_url: str, fresh: Fresh):
    home = declare(amqp_url, fresh("home"))
    parking = parked(amqp_url, home, fresh, 250)

    def stop(progress: Redriven) -> None:
        raise InterruptedError("enough")

    with pytest.raises(InterruptedError):
        await redriven(amqp_url, parking, on_progress=stop)
    wait_until_depth(amqp_url, parking, 150)
    assert bodies(amqp_url, home) + bodies(amqp_url, parking) == numbers(250)


# --- trouble ---------------------------------------------------------------------------------------------


@on_a_loop
async def test_a_source_that_is_not_there_is_said_and_the_connection_goes_on(amqp_url: str, fresh: Fresh):
    source = declare(amqp_url, fresh("source"), numbers(1))
    async with Connection(amqp_url) as connection:
        with pytest.raises(ChannelClosed, match="404"):
            await redrive(connection, "no-such-queue")
        assert (await redrive(connection, source, to=source)).moved == 1
        assert connection.sessions == 1


@on_a_loop
async def test_a_destination_that_is_not_there_is_said_and_nothing_is_lost(amqp_url: str, fresh: Fresh):
    parking = parked(amqp_url, "gone", fresh, 3)
    with pytest.raises(MessageReturned, match="312"):
        await redriven(amqp_url, parking)
    wait_until_depth(amqp_url, parking, 3)
    assert bodies(amqp_url, parking) == numbers(3)


@on_a_loop
async def test_of_a_round_that_fails_in_part_the_rest_is_moved_and_counted(amqp_url: str, fresh: Fresh):
    home, gone = declare(amqp_url, fresh("home")), "gone"
    parking = declare(amqp_url, fresh("parked"))
    for number in range(10):
        put(amqp_url, parking, b"%d" % number, headers={"x-original-queue": gone if number == 4 else home})
    told: list[int] = []
    with pytest.raises(MessageReturned):
        await redriven(amqp_url, parking, on_progress=lambda progress: told.append(progress.moved))
    assert told == [9]
    wait_until_depth(amqp_url, parking, 1)
    assert (bodies(amqp_url, parking), len(bodies(amqp_url, home))) == ([b"4"], 9)


@on_a_loop
async def test_a_destination_that_is_full_takes_what_it_can_and_nothing_is_there_twice(
    amqp_url: str, fresh: Fresh
):
    full = declare(amqp_url, fresh("full"), **{"x-max-length": 5, "x-overflow": "reject-publish"})
    parking = parked(amqp_url, full, fresh, 300)
    told: list[int] = []
    with pytest.raises(MessageNacked):
        await redriven(amqp_url, parking, on_progress=lambda progress: told.append(progress.moved))
    moved = bodies(amqp_url, full)
    assert told[-1] == len(moved)
    wait_until_depth(amqp_url, parking, 300 - len(moved))
    assert sorted(moved + bodies(amqp_url, parking), key=int) == numbers(300)


@pytest.mark.sample(every=5)
@pytest.mark.parametrize("kind", [PUBLISH, CONFIRM, ACK], ids=["publish", "confirm", "ack"])
@pytest.mark.parametrize("where", list(Where))
def test_a_cut_in_the_middle_leaves_each_message_in_one_of_the_two_at_least(
    amqp_url: str, fresh: Fresh, kind: Kind, where: Where
):
    home = declare(amqp_url, fresh("home"))
    parking = parked(amqp_url, home, fresh, 250)

    async def main() -> None:
        with Proxy(amqp_url) as proxy:
            fault = proxy.plan(kind, 2 if kind is not PUBLISH else 130, where)
            try:
                result = await redriven(proxy.url, parking)
            except ClientError:
                assert fault.wait()
            else:
                assert result.moved == 250

    asyncio.run(asyncio.wait_for(main(), 4 * WAIT_S))
    moved = bodies(amqp_url, home)
    wait_until_depth(amqp_url, parking, 250 - len(set(moved)), at_least=True)
    left = bodies(amqp_url, parking)
    assert set(moved) | set(left) == set(numbers(250))


@on_a_loop
async def test_what_is_still_in_the_source_is_not_called_moved(leveret_broker: Broker, fresh: Fresh):
    url = leveret_broker.url
    home = declare(url, fresh("home"))
    parking = parked(url, home, fresh, 3)
    leveret_broker.faults.drop_connection_at_ack(1)
    told: list[int] = []
    with pytest.raises(ClientError):
        await redriven(url, parking, on_progress=lambda progress: told.append(progress.moved))
    assert told == [0]
    wait_until_depth(url, parking, 3)
    assert depth(url, home) == 3


@on_a_loop
async def test_two_at_once_share_the_work(amqp_url: str, fresh: Fresh):
    home = declare(amqp_url, fresh("home"))
    parking = parked(amqp_url, home, fresh, 500)
    first, second = await asyncio.gather(redriven(amqp_url, parking), redriven(amqp_url, parking))
    assert first.moved + second.moved == 500
    assert sorted(bodies(amqp_url, home), key=int) == numbers(500)
    assert depth(amqp_url, parking) == 0


@on_a_loop
async def test_whoever_cancels_it_loses_nothing(amqp_url: str, fresh: Fresh):
    home = declare(amqp_url, fresh("home"))
    parking = parked(amqp_url, home, fresh, 500)
    begun = asyncio.Event()
    moving = asyncio.create_task(redriven(amqp_url, parking, on_progress=lambda _: begun.set()))
    await begun.wait()
    moving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await moving
    moved = bodies(amqp_url, home)
    wait_until_depth(amqp_url, parking, 500 - len(set(moved)), at_least=True)
    assert set(moved) | set(bodies(amqp_url, parking)) == set(numbers(500))


# --- the whole story -------------------------------------------------------------------------------------


@on_a_loop
async def test_parked_mended_and_redriven_every_message_is_processed_once(amqp_url: str, fresh: Fresh):
    queue = fresh("orders")
    app = App(amqp_url, topology=Topology(Queue(queue), Queue(f"{queue}.parked")), backoff=QUICK)
    done: list[int] = []
    all_done = asyncio.Event()
    attempts: list[int] = []
    broken = True

    @app.listener(queue, retry=Retry(2, initial_s=0.001, stateful=False), recoverer=Park())
    async def take(order: dict[str, int], delivery: Delivery) -> None:
        if broken and order["id"] % 2:
            raise ValueError("odd orders fail")
        done.append(order["id"])
        attempts.append(delivery.attempt)
        if len(done) == 20:
            all_done.set()

    async with app:
        for number in range(20):
            (await app.publisher.publish({"id": number}, queue)).check()
        await asyncio.to_thread(wait_until_depth, amqp_url, f"{queue}.parked", 10)
        broken = False
        async with Connection(amqp_url) as connection:
            result = await redrive(connection, f"{queue}.parked", rate_per_s=1000)
        assert (result.found, result.moved, result.kept) == (10, 10, 0)
        async with asyncio.timeout(WAIT_S):
            await all_done.wait()
    assert sorted(done) == list(range(20))
    assert set(attempts) == {1}, "it starts anew"
    assert (depth(amqp_url, queue), depth(amqp_url, f"{queue}.parked")) == (0, 0)


@on_a_loop
async def test_a_queue_that_stores_a_sequence_once_takes_a_message_that_comes_back(leveret_broker: Broker):
    url = leveret_broker.url
    home, parking = declare(url, "home", **{"x-dedup": True}), declare(url, "parked")
    async with Connection(url) as connection:
        async with Publisher(connection) as publisher:
            (await publisher.publish(b"1", home)).check()
        (first,) = take_all(url, home)
        headers = {**first.properties.headers, "x-original-queue": home}
        put(url, parking, b"1", headers=headers, message_id=first.properties.message_id)
        assert (await redrive(connection, parking)).moved == 1
    assert bodies(url, home) == [b"1"]
