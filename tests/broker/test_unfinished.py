"""Publishes whose content has not come: when they are refused, and what the broker knows of them."""

import pytest
from pamqp import commands

from leveret.amqp.frames import BODY, HEADER, METHOD, frame
from leveret.broker.definitions import PermissionRow
from leveret.broker.limits import Limits
from leveret.broker.queries.row_routing import RowOptions
from leveret.broker.queries.staged_batch_notes import StageName
from leveret.broker.queries.staged_batches import Stages
from tests.amqp.session import (
    Core,
    Session,
    channel_open,
    content,
    handshake,
    header_of,
    methods_in,
    names_in,
    published,
    sent,
)

CHANNELS = range(1, 17)


@pytest.fixture
def core() -> Core:
    return Core(limits=Limits(unfinished_max_bytes=1 << 20))


@pytest.fixture
def publisher(core: Core) -> Session:
    return core.session(
        prefix=handshake() + channel_open(*CHANNELS) + sent(1, commands.Queue.Declare, queue="q")
    )


def publish(channel: int, *, exchange: str = "", key: str = "q", immediate: bool = False) -> bytes:
    return sent(channel, commands.Basic.Publish, exchange=exchange, routing_key=key, immediate=immediate)


def begun(channel: int, size: int, **arguments: object) -> bytes:
    """A publish of which all but the last 10 bytes have come."""
    header = header_of(size)
    return publish(channel, **arguments) + content(channel, header, bytes(size - 10))  # type: ignore[arg-type]


def without_rights(core: Core) -> Session:
    """A session of a user who may write nowhere."""
    core.broker.accounts.permit(PermissionRow("/", "guest", "", "", ""))
    return core.session(prefix=handshake() + channel_open(*CHANNELS))


def test_a_publish_without_the_right_to_write_is_refused_before_its_content(core: Core) -> None:
    session = without_rights(core)
    (answer,) = methods_in(session.feed(publish(3, exchange="amq.direct")))
    channel, close = answer
    assert (channel, close.reply_code, close.class_id, close.method_id) == (3, 403, 60, 40)
    assert (
        close.reply_text
        == "ACCESS_REFUSED - access to exchange 'amq.direct' in vhost '/' refused for user 'guest'"
    )


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        (publish(1, exchange="missing"), "channel.close 404"),
        (publish(1, immediate=True), "connection.close 540"),
        (sent(1, commands.Basic.Return, reply_code=312), "connection.close 503"),
        (publish(99), "connection.close 504"),
    ],
)
def test_a_publish_that_can_not_be_is_refused_before_its_content(
    publisher: Session, method: bytes, answer: str
) -> None:
    assert names_in(publisher.feed(method)) == [answer]


def test_the_content_of_a_refused_publish_is_ignored_and_not_kept(core: Core, publisher: Session) -> None:
    publisher.feed(publish(1, exchange="missing"))
    assert publisher.feed(frame(HEADER, 1, header_of(100_000))) == b""
    assert publisher.feed(frame(BODY, 1, bytes(90_000))) == b""
    assert core.broker.buffered_bytes == 0
    assert publisher.feed(frame(BODY, 1, bytes(10_000))) == b""
    assert publisher.feed(begun(1, 100_000)) == b"", "the channel is closed: the next one is ignored as well"
    assert core.broker.buffered_bytes == 0


def test_a_channel_is_used_again_after_its_refused_publish(publisher: Session) -> None:
    publisher.feed(publish(1, exchange="missing"))
    publisher.feed(content(1, header_of(20_000), bytes(20_000)))
    answer = publisher.feed(
        sent(1, commands.Channel.CloseOk) + channel_open(1) + sent(1, commands.Confirm.Select)
    )
    assert names_in(answer) == ["channel.open-ok", "confirm.select-ok"]
    assert names_in(publisher.feed(published(1, bytes(20_000)))) == ["basic.ack"]


def test_a_user_without_rights_makes_the_broker_keep_nothing(core: Core) -> None:
    session = without_rights(core)
    for channel in CHANNELS:
        session.feed(begun(channel, 500_000, exchange="amq.direct"))
    assert core.broker.buffered_bytes == 0


def test_the_sum_of_all_connections_is_known(core: Core, publisher: Session) -> None:
    other = core.session(prefix=handshake() + channel_open(1))
    publisher.feed(begun(1, 100_000))
    publisher.feed(begun(2, 200_000))
    other.feed(begun(1, 300_000))
    assert 600_000 - 30 <= core.broker.buffered_bytes < 620_000
    publisher.feed(frame(BODY, 2, bytes(10)))
    assert 400_000 - 20 <= core.broker.buffered_bytes < 415_000
    publisher.connection.unsent_bytes = 50_000
    publisher.feed(frame(BODY, 1, bytes(10)))
    assert 350_000 - 10 <= core.broker.buffered_bytes < 360_000
    other.lose()
    assert core.broker.buffered_bytes == 50_000
    publisher.lose()
    assert core.broker.buffered_bytes == 0


def test_messages_that_wait_for_their_turn_are_counted(core: Core, publisher: Session) -> None:
    publisher.connection.out_bytes = 1 << 30  # the peer does not read its answers
    publisher.connection.receive(publisher.connection.scanner.feed(published(1, bytes(100_000))))
    assert publisher.connection.backlog
    assert 100_000 <= core.broker.buffered_bytes < 101_000


def test_a_connection_that_keeps_too_much_is_told_so_on_the_channel_that_is_too_much(
    core: Core, publisher: Session
) -> None:
    answers = [methods_in(publisher.feed(begun(channel, 100_000))) for channel in CHANNELS]
    refused = [answer for answers_on_channel in answers for answer in answers_on_channel]
    channel, close = refused[0]
    assert (channel, close.reply_code, close.class_id, close.method_id) == (11, 311, 60, 40)
    assert close.reply_text.startswith("CONTENT_TOO_LARGE - unfinished messages of this connection take 10")
    assert close.reply_text.endswith(
        "bytes, more than the limit of 1048576: finish some before you begin others"
    )
    assert core.broker.buffered_bytes <= 1 << 20
    publisher.feed(frame(BODY, 1, bytes(10)))
    assert core.broker.vhosts["/"].queue("q").ready == 1


def test_the_bound_holds_for_each_connection(core: Core, publisher: Session) -> None:
    other = core.session(prefix=handshake() + channel_open(1))
    publisher.feed(begun(1, 900_000))
    assert other.feed(begun(1, 900_000)) == b""


def test_a_connection_publishes_as_soon_as_a_method_of_its_says_so(core: Core) -> None:
    core.broker.set_alarm("memory", on=True)
    session = core.session(prefix=handshake() + channel_open(1))
    assert names_in(session.feed(publish(1))) == ["connection.blocked"]
    assert session.connection.fills_memory


def test_a_request_for_a_requeue_is_no_publish_unless_it_is_large(core: Core) -> None:
    session = core.session(prefix=handshake() + channel_open(1))
    session.feed(begun(1, 1000, key="amq.leveret.requeue"))
    assert not session.connection.fills_memory
    session.feed(frame(BODY, 1, bytes(10)) + sent(1, commands.Channel.CloseOk) + channel_open(1))
    session.feed(begun(1, 600_000, key="amq.leveret.requeue"))
    assert session.connection.fills_memory


def test_what_a_closed_connection_has_begun_is_not_kept(core: Core, publisher: Session) -> None:
    publisher.feed(begun(1, 100_000))
    publisher.feed(frame(METHOD, 0, b"\0\x0a\0\x28\0\0"))  # a second connection.open
    publisher.feed(frame(BODY, 1, b"12345") + begun(2, 100_000))
    assert core.broker.buffered_bytes == 0


def test_rows_of_an_uncommitted_batch_are_known_memory_until_they_are_in_a_file(
    core: Core, publisher: Session
) -> None:
    before = core.broker.memory_bytes
    rows = [(b"", b"q", header_of(50_000), bytes(50_000))] * 4
    options = RowOptions(
        core.broker.accounts.users["guest"], mandatory=True, unroutable=None, timeout_us=1_000_000
    )
    stages = Stages(core.broker.vhosts["/"])
    stages.write(StageName("query", 0, "stage"), rows, options)
    publisher.feed(begun(1, 100_000))
    assert 300_000 - 10 <= core.broker.memory_bytes - before < 310_000
    core.store.checkpoint()
    assert core.broker.memory_bytes < 110_000
