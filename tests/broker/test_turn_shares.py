"""How much of what a connection asks for is done in one turn: less when others ask, and never all of it."""

import pytest
from pamqp import commands

from leveret.broker.broker import Broker
from leveret.broker.sessions.turn_shares import SHARED_COST, Demand
from tests.amqp.session import Core, Session, channel_open, handshake, published, sent

OPEN = handshake() + channel_open(1)
QUEUES = 50


@pytest.fixture
def core() -> Core:
    return Core()


@pytest.fixture
def greedy(core: Core) -> Session:
    session = core.session(prefix=OPEN)
    for kind in ("fanout", "headers"):
        session.feed(sent(1, commands.Exchange.Declare, exchange=kind, exchange_type=kind))
    for number in range(QUEUES):
        session.feed(sent(1, commands.Queue.Declare, queue=f"q{number}"))
        for exchange in ("fanout", "headers"):
            session.feed(sent(1, commands.Queue.Bind, queue=f"q{number}", exchange=exchange))
    core.pass_time(1.0)
    return session


def messages_in(broker: Broker, queue: str) -> int:
    return broker.vhosts["/"].queues[queue].log.next


@pytest.mark.parametrize("exchange", ["fanout", "headers"])
def test_a_publish_to_many_queues_counts_once_for_each(core: Core, greedy: Session, exchange: str) -> None:
    greedy.feed_once(published(1, b"x", exchange=exchange) * 1000)
    assert 1 <= messages_in(core.broker, "q0") < 100
    while greedy.connection.backlog:
        greedy.feed_once(b"")
    assert messages_in(core.broker, "q0") == messages_in(core.broker, f"q{QUEUES - 1}") == 1000


def test_a_publisher_alone_has_the_turn_for_itself(core: Core, greedy: Session) -> None:
    greedy.feed_once(published(1, b"x", key="q0") * 1000)
    assert messages_in(core.broker, "q0") == 1000


def test_turns_are_small_while_others_ask(core: Core, greedy: Session) -> None:
    other = core.session(prefix=OPEN)
    other.feed(sent(1, commands.Confirm.Select) + published(1, b"x", key="q1"))
    greedy.feed_once(published(1, b"x", key="q0") * 1000)
    assert messages_in(core.broker, "q0") < 200
    greedy.feed(b"")
    core.pass_time(1.0)
    greedy.feed_once(published(1, b"x", key="q2") * 1000)
    assert messages_in(core.broker, "q2") == 1000, "the other has asked for nothing for a while"


def test_a_publisher_without_confirms_waits_for_nothing(core: Core, greedy: Session) -> None:
    other = core.session(prefix=OPEN)
    core.pass_time(1.0)
    for key in ("q1", "q2"):
        other.feed_once(published(1, b"x", key=key) * 1000)
        greedy.feed_once(published(1, b"x", key="q0") * 1000)
        assert messages_in(core.broker, key) == 1000
    assert messages_in(core.broker, "q0") == 2000


def test_each_of_two_that_wait_has_small_turns(core: Core, greedy: Session) -> None:
    other = core.session(prefix=OPEN)
    for session in (other, greedy):
        session.feed(sent(1, commands.Confirm.Select))
    other.feed(published(1, b"x", key="q1"))
    greedy.feed(published(1, b"x", key="q0"))
    for session, key in ((greedy, "q2"), (other, "q3")):
        session.feed_once(published(1, b"x", key=key) * 1000)
        assert messages_in(core.broker, key) < 200


def test_who_has_left_does_not_ask(core: Core, greedy: Session) -> None:
    other = core.session(prefix=OPEN)
    other.feed(sent(1, commands.Confirm.Select) + published(1, b"x", key="q1"))
    other.feed(sent(0, commands.Connection.Close))
    core.pass_time(1.0)
    greedy.feed_once(published(1, b"x", key="q0") * 1000)
    assert messages_in(core.broker, "q0") == 1000


def test_who_only_settles_does_not_ask(core: Core, greedy: Session) -> None:
    consumer = core.session(prefix=OPEN)
    consumer.feed(sent(1, commands.Basic.Consume, queue="q0", consumer_tag="c"))
    greedy.feed(published(1, b"x", key="q0"))
    core.pass_time(1.0)
    greedy.feed(published(1, b"x", key="q0"))
    consumer.feed(sent(1, commands.Basic.Ack, delivery_tag=1))
    greedy.feed_once(published(1, b"x", key="q1") * 1000)
    assert messages_in(core.broker, "q1") == 1000


def test_acks_do_not_make_the_reads_of_others_small(core: Core, greedy: Session) -> None:
    shares = core.broker.shares
    waiting, consumer = object(), object()
    shares.of(waiting, Demand.ANSWER, now_us=core.broker.turn_us)
    assert shares.of(consumer, Demand.SETTLEMENT, now_us=core.broker.turn_us) == SHARED_COST
    assert not shares.are_small(core.broker.turn_us)
    shares.of(consumer, Demand.WORK, now_us=core.broker.turn_us)
    assert shares.are_small(core.broker.turn_us)


def test_finding_where_a_publish_goes_counts_too(core: Core, greedy: Session) -> None:
    greedy.feed_once(b"".join(published(1, b"x", key=f"q{number % 2}.{number}") for number in range(1000)))
    assert len(greedy.connection.backlog) > 500
