"""Topologies: what is refused at once, what comes to be, and what is said when a broker has it otherwise."""

import asyncio
import contextlib
import logging
import pickle
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pika
import pytest
from pamqp import commands

from leveret.amqp import methods
from leveret.client.connection import Connection
from leveret.client.endpoint import Endpoint
from leveret.client.errors import ChannelClosed, ConnectionLost, Difference, QueueLocked, TopologyMismatch
from leveret.client.session import Session
from leveret.client.topology import Binding, Exchange, Queue, Topology, dead_letter_pair
from leveret.testing.broker import Broker
from tests.processes import WAIT_S

Name = Callable[..., str]
Part = Exchange | Queue | Binding


def run(body: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(body(), WAIT_S)

    asyncio.run(bounded())


@contextlib.asynccontextmanager
async def session_on(url: str) -> AsyncIterator[Session]:
    session = await Session.connect(Endpoint.parse(url))
    try:
        yield session
    finally:
        await session.close()


def open_channels(session: Session) -> int:
    return len(session._channels)


@contextlib.contextmanager
def pika_on(url: str):
    """An ordinary client, to look at what has come to be."""
    with contextlib.closing(pika.BlockingConnection(pika.URLParameters(url))) as connection:
        yield connection.channel()


# --- what is refused at once -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Queue(""), "needs a name"),
        (lambda: Queue("amq.mine"), "reserved for the broker"),
        (lambda: Queue("x" * 256), "at most 255 bytes"),
        (lambda: Queue("ü" * 128), "at most 255 bytes"),
        (lambda: Queue("a\nb"), "line ends"),
        (lambda: Queue(7), "a str"),
        (lambda: Queue("q", durable="yes"), "durable is True or False, not 'yes'"),
        (lambda: Queue("q", max_length="5"), "max_length is a whole number"),
        (lambda: Queue("q", max_length=-1), "max_length is a whole number from 0"),
        (lambda: Queue("q", max_length=True), "max_length is a whole number"),
        (lambda: Queue("q", max_priority=256), "from 1 to 255"),
        (lambda: Queue("q", expires_ms=0), "expires_ms is a whole number from 1"),
        (lambda: Queue("q", message_ttl_ms=2**50), "message_ttl_ms"),
        (lambda: Queue("q", overflow="explode"), "one of drop-head"),
        (lambda: Queue("q", type="lazy"), "one of classic"),
        (lambda: Queue("q", dedup=1), "dedup is True or False"),
        (lambda: Queue("q", retry_multiplier=0.5), "at least 1"),
        (lambda: Queue("q", dead_letter_key="k"), "without a dead_letter_exchange"),
        (lambda: Queue("q", type="quorum", durable=False), "a quorum queue must be durable"),
        (lambda: Queue("q", exclusive=True, arguments={"x-queue-type": "quorum"}), "a quorum queue must be"),
        (lambda: Queue("q", arguments={"x": object()}), "can't be sent"),
        (lambda: Queue("q", arguments={5: 5}), "can't be sent"),
        (lambda: Queue("q", arguments={"x": 2**64}), "can't be sent"),
        (lambda: Queue("q", arguments=5), "can't be sent"),
        (lambda: Queue("q", max_length=5, arguments={"x-max-length": 5}), "x-max-length is given twice"),
        (lambda: Exchange(""), "always exists"),
        (lambda: Exchange("amq.mine"), "reserved for the broker"),
        (lambda: Exchange("x", "dircet"), "one of direct, fanout"),
        (lambda: Exchange("x", alternate="y", arguments={"alternate-exchange": "y"}), "given twice"),
        (lambda: Exchange("x", internal=None), "internal is True or False"),
        (lambda: Binding("", "q"), "the default exchange"),
        (lambda: Binding("x", "", to_exchange=True), "the default exchange"),
        (lambda: Binding("x", ""), "name of the queue is missing"),
        (lambda: Binding("x", "q", "k" * 256), "key is a str of at most 255 bytes"),
        (lambda: Binding("x", "q", arguments={"x": {1, 2}}), "can't be sent"),
        (lambda: Topology(on_mismatch="shrug"), "'error' or 'ignore'"),
        (lambda: Topology(Queue("q"), Queue("q", durable=False)), "two ways: durable is True and False"),
        (lambda: Topology(Queue("q")) + Queue("q", max_length=1), "max_length is None and 1"),
        (
            lambda: Topology(Queue("q", arguments={"x": 1}), Queue("q", arguments={"x": True})),
            "arguments is {'x': 1} and {'x': True}",
        ),
        (lambda: dead_letter_pair(Queue("q", dead_letter_exchange="")), "always exists"),
        (lambda: dead_letter_pair(Queue("q", dead_letter_exchange="x"), exchange="y"), "give one of them"),
    ],
)
def test_a_declaration_that_can_not_be_is_refused_where_it_is_made(make, text):
    with pytest.raises(ValueError, match=text):
        make()


def test_only_parts_make_a_topology():
    with pytest.raises(TypeError, match="made of Exchange, Queue, Binding and Topology, not 'orders'"):
        Topology("orders")


def test_each_named_argument_is_sent_as_what_it_stands_for():
    queue = Queue(
        "q",
        type="classic",
        message_ttl_ms=1,
        expires_ms=2,
        max_length=3,
        max_length_bytes=4,
        overflow="reject-publish",
        dead_letter_exchange="",
        dead_letter_key="k",
        max_priority=5,
        single_active_consumer=True,
        delivery_limit=0,
        retry_delay_ms=7,
        retry_multiplier=1.5,
        retry_delay_max_ms=8,
        consumer_timeout_ms=9,
        consumer_timeout_action="retry",
        dedup=True,
        dedup_window=10,
        arguments={"x-mine": [1]},
    )
    assert queue.table == {
        "x-queue-type": "classic",
        "x-message-ttl": 1,
        "x-expires": 2,
        "x-max-length": 3,
        "x-max-length-bytes": 4,
        "x-overflow": "reject-publish",
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "k",
        "x-max-priority": 5,
        "x-single-active-consumer": True,
        "x-delivery-limit": 0,
        "x-retry-delay-ms": 7,
        "x-retry-multiplier": 1.5,
        "x-retry-delay-max-ms": 8,
        "x-consumer-timeout": 9,
        "x-consumer-timeout-action": "retry",
        "x-dedup": True,
        "x-dedup-window": 10,
        "x-mine": [1],
    }
    assert Queue("q").table == {}
    assert Exchange("x", alternate="y", arguments={"a": 1}).table == {"a": 1, "alternate-exchange": "y"}


def test_a_declaration_does_not_change_with_what_it_was_made_of():
    arguments: dict[str, Any] = {"x-list": [1]}
    queue = Queue("q", arguments=arguments)
    before = methods.encode(queue.method())
    arguments["x-list"].append(2)
    arguments["x-more"] = 1
    assert methods.encode(queue.method()) == before
    assert replace(queue, durable=False).table == {"x-list": [1]}


@pytest.mark.parametrize("part", [Queue("q", arguments={"x": [1]}), Exchange("x"), Binding("x", "q")])
def test_parts_are_values_that_can_be_compared_hashed_and_sent_to_other_processes(part: Part):
    copy = pickle.loads(pickle.dumps(part))
    assert copy == part
    assert hash(copy) == hash(part)
    assert methods.encode(copy.method()) == methods.encode(part.method())


def test_what_is_declared_twice_in_the_same_way_is_declared_once_and_in_the_right_order():
    binding, queue, exchange = Binding("x", "q", "k"), Queue("q"), Exchange("x")
    topology = Topology(binding, queue, Topology(exchange, queue)) + Topology(binding) + Queue("r")
    assert topology.parts == (exchange, queue, Queue("r"), binding)
    assert eval(repr(topology)).parts == topology.parts


def test_the_order_of_arguments_means_nothing():
    one, other = Queue("q", arguments={"a": 1, "b": 2}), Queue("q", arguments={"b": 2, "a": 1})
    assert Topology(one, other).parts == (one,)


def test_a_sum_ignores_differences_only_if_both_do():
    strict, lenient = Topology(Queue("a")), Topology(Queue("b"), on_mismatch="ignore")
    assert (strict + lenient).on_mismatch == (lenient + strict).on_mismatch == "error"
    assert (lenient + lenient).on_mismatch == (lenient + Queue("c")).on_mismatch == "ignore"


def test_a_dead_letter_pair_has_names_that_can_be_guessed_or_given():
    assert dead_letter_pair("orders").parts == (
        Exchange("orders.dlx"),
        Queue("orders", dead_letter_exchange="orders.dlx", dead_letter_key="orders"),
        Queue("orders.dead"),
        Binding("orders.dlx", "orders.dead", "orders"),
    )
    given = Queue("q", max_length=5, durable=False, dead_letter_exchange="x")
    assert dead_letter_pair(given, dead="d", key="k").parts == (
        Exchange("x", durable=False),
        replace(given, dead_letter_key="k"),
        Queue("d", durable=False),
        Binding("x", "d", "k"),
    )
    keeps = Queue("d", max_length=5)
    assert keeps in dead_letter_pair(Queue("q", type="quorum"), dead=keeps).parts
    assert Queue("q.dead", type="quorum") in dead_letter_pair(Queue("q", type="quorum")).parts


# --- what comes to be ------------------------------------------------------------------------------------


def test_a_topology_comes_to_be_and_applying_it_again_changes_nothing(amqp_url, fresh: Name):
    names = {what: fresh(what) for what in ("in", "out", "rest", "one", "two", "unrouted")}
    topology = Topology(
        Binding(names["in"], names["out"], "order.*", to_exchange=True),
        Binding(names["out"], names["one"], arguments={"x-match": "any", "colour": "red"}),
        Binding(names["in"], names["two"], "order.*"),
        Binding(names["rest"], names["unrouted"]),
        *(Queue(names[what]) for what in ("one", "two", "unrouted")),
        Exchange(names["in"], "topic", alternate=names["rest"]),
        Exchange(names["out"], "headers", internal=True),
        Exchange(names["rest"], "fanout", durable=False, auto_delete=True),
    )

    async def body() -> None:
        for _ in range(2):
            async with session_on(amqp_url) as session:
                assert await topology.apply(session.open_channel) == ()
                assert await topology.apply(session.open_channel) == ()
                assert open_channels(session) == 0

    run(body)
    with pika_on(amqp_url) as channel:
        red = pika.BasicProperties(headers={"colour": "red"})
        channel.basic_publish(names["in"], "order.new", b"red", red)
        channel.basic_publish(names["in"], "order.new", b"plain")
        channel.basic_publish(names["in"], "other", b"other")
        held = {
            what: [channel.basic_get(names[what], auto_ack=True)[2] for _ in range(2)]
            for what in ("one", "two", "unrouted")
        }
    assert held == {"one": [b"red", None], "two": [b"red", b"plain"], "unrouted": [b"other", None]}


def test_what_a_pair_s_queue_rejects_is_kept_by_the_other(amqp_url, fresh: Name):
    name = fresh("orders")

    async def body() -> None:
        async with session_on(amqp_url) as session:
            await dead_letter_pair(name).apply(session.open_channel)

    run(body)
    with pika_on(amqp_url) as channel:
        channel.basic_publish("", name, b"poison")
        method, _, _ = channel.basic_get(name)
        channel.basic_reject(method.delivery_tag, requeue=False)
        for method, _, dead in channel.consume(f"{name}.dead", inactivity_timeout=WAIT_S):
            assert dead == b"poison"
            channel.basic_ack(method.delivery_tag)
            break


@pytest.mark.real
def test_the_topology_of_the_guide_comes_to_be():
    page = (Path(__file__).parents[2] / "docs" / "guide" / "topology.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    exec(page.split("```python\n")[1].split("```")[0], names)

    async def body(broker: Broker) -> None:
        async with session_on(broker.url) as session:
            assert await names["topology"].apply(session.open_channel) == ()

    with Broker() as broker:
        run(lambda: body(broker))
        with pika_on(broker.url) as channel:
            channel.basic_publish("shop", "order.new", b"")
            channel.basic_publish("shop", "payment.new", b"")
        broker.wait_until_depth("orders", 1)
        broker.wait_until_depth("unrouted", 1)


@pytest.mark.real
def test_each_new_session_of_a_connection_gets_its_topology():
    async def body(broker: Broker) -> None:
        topology = Topology(Queue("gone.after.a.restart", durable=False))
        async with Connection(broker.url, topology=topology) as connection:
            await asyncio.to_thread(broker.restart)
            session = await connection.connected(WAIT_S)
            channel = await session.open_channel()
            await channel.call(Queue("gone.after.a.restart").method(passive=True))

    with Broker() as broker:
        run(lambda: body(broker))


OF_LEVERET = {"retry_delay_ms": 5, "retry_multiplier": 1.5, "consumer_timeout_ms": 5_000, "dedup": True}


def test_rabbitmq_takes_the_arguments_that_only_leveret_has(amqp_url, fresh: Name):
    async def body() -> None:
        async with session_on(amqp_url) as session:
            await Topology(
                Queue(fresh(), **OF_LEVERET),
                Queue(fresh(), type="quorum", delivery_limit=3, **OF_LEVERET),
            ).apply(session.open_channel)

    run(body)


# --- what exists otherwise -------------------------------------------------------------------------------

# What exists, what is declared, and the difference to be shown: argument, declared value, existing value.
DIFFERENT: list[tuple[Exchange | Queue, Exchange | Queue, str]] = [
    (Queue("q"), Queue("q", durable=False), "durable false true"),
    (Queue("q"), Queue("q", auto_delete=True), "auto_delete true false"),
    (Queue("q"), Queue("q", exclusive=True), "exclusive true false"),
    (Queue("q"), Queue("q", max_length=5), "x-max-length 5 none"),
    (Queue("q", max_length=10), Queue("q"), "x-max-length none 10"),
    (Queue("q", max_length=10), Queue("q", max_length=5), "x-max-length 5 10"),
    (
        Queue("q", overflow="drop-head"),
        Queue("q", overflow="reject-publish"),
        "x-overflow reject-publish drop-head",
    ),
    (Queue("q", single_active_consumer=True), Queue("q"), "x-single-active-consumer none true"),
    (
        Queue("q", dead_letter_exchange=""),
        Queue("q", dead_letter_exchange="it's"),
        "x-dead-letter-exchange it's ",
    ),
    (Queue("q"), Queue("q", type="quorum"), "x-queue-type quorum none"),
    (Queue("q", type="classic"), Queue("q", type="quorum"), "x-queue-type quorum classic"),
    (Exchange("x"), Exchange("x", "topic"), "type topic direct"),
    (Exchange("x"), Exchange("x", durable=False), "durable false true"),
    (Exchange("x"), Exchange("x", auto_delete=True), "auto_delete true false"),
    (Exchange("x"), Exchange("x", internal=True), "internal true false"),
    (Exchange("x"), Exchange("x", alternate="a"), "alternate-exchange a none"),
    (Exchange("x", alternate="a"), Exchange("x", alternate="b"), "alternate-exchange b a"),
]
ONLY_OURS = [
    (Queue("q"), Queue("q", retry_delay_ms=5), "x-retry-delay-ms 5 none"),
    (Queue("q", dedup=True), Queue("q"), "x-dedup none true"),
    (Queue("q", retry_multiplier=2), Queue("q", retry_multiplier=2.0), "x-retry-multiplier 2.0 2"),
]


async def shown_difference(url: str, first: Part, second: Part) -> Difference:
    async with session_on(url) as session:
        await Topology(first).apply(session.open_channel)
        with pytest.raises(TopologyMismatch) as caught:
            await Topology(second).apply(session.open_channel)
        (difference,) = caught.value.differences
        assert str(difference) in str(caught.value)
        assert "on_mismatch='ignore'" in caught.value.hint
        assert not caught.value.retryable
        assert await Topology(second, on_mismatch="ignore").apply(session.open_channel) == (difference,)
        assert open_channels(session) == 0
    return difference


@pytest.mark.parametrize(("first", "second", "shown"), DIFFERENT)
def test_a_mismatch_shows_the_difference(amqp_url, fresh: Name, first, second, shown):
    name = fresh()
    first, second = replace(first, name=name), replace(second, name=name)

    async def body() -> None:
        difference = await shown_difference(amqp_url, first, second)
        assert difference == Difference(str(second), *shown.split(" "))

    run(body)


@pytest.mark.parametrize(("first", "second", "shown"), ONLY_OURS)
def test_a_mismatch_of_what_only_leveret_has_shows_the_difference(leveret_broker, first, second, shown):
    async def body() -> None:
        difference = await shown_difference(leveret_broker.url, first, second)
        assert difference == Difference(str(second), *shown.split(" "))

    run(body)


def test_a_mismatch_is_shown_even_if_the_text_of_the_broker_is_cut_off(amqp_url, fresh: Name):
    name = fresh().ljust(255, "x")

    async def body() -> None:
        difference = await shown_difference(amqp_url, Queue(name, max_length=10), Queue(name, max_length=5))
        assert difference == Difference(f"queue '{name}'", "x-max-length", "5", "something else")

    run(body)


def test_all_mismatches_are_shown_together_and_nothing_is_bound(amqp_url, fresh: Name):
    one, two, new, exchange = fresh("one"), fresh("two"), fresh("new"), fresh("x")

    async def body() -> None:
        async with session_on(amqp_url) as session:
            await Topology(Queue(one), Queue(two), Exchange(exchange)).apply(session.open_channel)
            with pytest.raises(TopologyMismatch) as caught:
                await Topology(
                    Queue(one, max_length=1),
                    Queue(two, max_length=2),
                    Queue(new),
                    Exchange(exchange, "fanout"),
                    Binding(exchange, new),
                ).apply(session.open_channel)
            shown = [(each.what, each.argument) for each in caught.value.differences]
            assert shown == [
                (f"exchange '{exchange}'", "type"),
                (f"queue '{one}'", "x-max-length"),
                (f"queue '{two}'", "x-max-length"),
            ]
            assert open_channels(session) == 0

    run(body)
    with pika_on(amqp_url) as channel:
        channel.basic_publish(exchange, "", b"to nobody")
        assert channel.basic_get(new) == (None, None, None)


def test_ignored_mismatches_are_logged_once_and_the_rest_comes_to_be(amqp_url, fresh: Name, caplog):
    old, new = fresh("old"), fresh("new")
    lenient = Topology(
        Queue(old, max_length=5), Queue(new), Binding("amq.topic", new, new), on_mismatch="ignore"
    )

    async def body() -> None:
        async with session_on(amqp_url) as session:
            await Topology(Queue(old)).apply(session.open_channel)
            for _ in range(3):
                (difference,) = await lenient.apply(session.open_channel)
                assert difference == Difference(f"queue '{old}'", "x-max-length", "5", "none")

    with caplog.at_level(logging.WARNING, "leveret.client"):
        run(body)
    assert [record.getMessage() for record in caplog.records] == [
        f"used as it is: queue '{old}': x-max-length is declared as 5, but it is none"
    ]
    with pika_on(amqp_url) as channel:
        channel.basic_publish("amq.topic", new, b"bound")
        assert channel.basic_get(new, auto_ack=True)[2] == b"bound"


# --- what is refused for other reasons -------------------------------------------------------------------


@pytest.mark.parametrize("on_mismatch", ["error", "ignore"])
def test_a_queue_of_another_connection_alone_is_locked_until_that_ends(amqp_url, fresh: Name, on_mismatch):
    topology = Topology(Queue(fresh(), exclusive=True), on_mismatch=on_mismatch)

    async def body() -> None:
        async with session_on(amqp_url) as session:
            async with session_on(amqp_url) as other:
                await topology.apply(other.open_channel)
                with pytest.raises(QueueLocked, match="exclusive to another connection") as caught:
                    await topology.apply(session.open_channel)
                assert caught.value.retryable
                assert open_channels(session) == 0
            assert await topology.apply(session.open_channel) == ()

    run(body)


def test_an_exchange_type_that_the_broker_does_not_know_is_shown_as_such(amqp_url, fresh: Name):
    topology = Topology(Exchange(fresh(), "x-unheard-of"), on_mismatch="ignore")

    async def body() -> None:
        async with session_on(amqp_url) as session:
            with pytest.raises(TopologyMismatch, match="unknown to the broker") as caught:
                await topology.apply(session.open_channel)
            assert "plugin" in caught.value.hint
            assert isinstance(caught.value.__cause__, ConnectionLost)

    run(body)


@pytest.mark.parametrize(
    ("make", "code", "text"),
    [
        (lambda n: Binding("amq.topic", n), 404, "binding of queue '{}' to exchange 'amq.topic' with key ''"),
        (lambda n: Binding(n, n, "k", to_exchange=True), 404, "binding of exchange '{}' to exchange '{}'"),
        (lambda n: Queue(n, arguments={"x-max-length": "five"}), 406, "queue '{}' was refused"),
        (lambda n: Exchange(n, arguments={"alternate-exchange": 5}), 406, "exchange '{}' was refused"),
    ],
)
@pytest.mark.parametrize("on_mismatch", ["error", "ignore"])
def test_whatever_else_is_refused_is_told_with_its_part(amqp_url, fresh: Name, make, code, text, on_mismatch):
    name = fresh()

    async def body() -> None:
        async with session_on(amqp_url) as session:
            with pytest.raises(ChannelClosed) as caught:
                await Topology(make(name), on_mismatch=on_mismatch).apply(session.open_channel)
            assert caught.value.sentence.startswith(text.format(name, name))
            assert caught.value.code == code
            assert str(code) in caught.value.sentence
            assert caught.value.text in caught.value.sentence
            assert open_channels(session) == 0

    run(body)


def test_a_connection_that_ends_meanwhile_is_told_as_such(leveret_broker):
    async def body() -> None:
        async with session_on(leveret_broker.url) as session:
            leveret_broker.stop()
            with pytest.raises(ConnectionLost):
                await Topology(Queue("q")).apply(session.open_channel)

    run(body)


class SilentChannel:
    """A channel to a broker that has stopped answering."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def call(self, method: methods.Method) -> methods.Method:
        self.asked.append(methods.name(method))
        return await asyncio.get_running_loop().create_future()

    async def close(self) -> None:
        await self.call(commands.Channel.Close(200, "", 0, 0))


def test_who_gives_up_waiting_does_not_wait_for_a_goodbye():
    channel = SilentChannel()

    async def open_channel() -> Any:
        return channel

    async def body() -> None:
        applying = asyncio.create_task(Topology(Queue("q")).apply(open_channel))
        while not channel.asked:
            await asyncio.sleep(0)
        applying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await applying
        assert channel.asked == ["queue.declare"]

    run(body)


@pytest.mark.needs_rabbitmq
def test_rabbitmq_refuses_a_delivery_limit_of_a_classic_queue(rabbitmq, fresh: Name):
    async def body() -> None:
        async with session_on(rabbitmq.url) as session:
            with pytest.raises(ChannelClosed, match="invalid arg 'x-delivery-limit'"):
                await Topology(Queue(fresh(), delivery_limit=3)).apply(session.open_channel)

    run(body)
