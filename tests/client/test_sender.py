import asyncio

import pytest
from pamqp import commands

from leveret.amqp import properties
from leveret.amqp.events import Settlement
from leveret.amqp.frames import BODY
from leveret.amqp.scanner import ACK, NACK
from leveret.client import sender as module
from leveret.client.backoff import Backoff
from leveret.client.errors import ChannelClosed, ConnectionBlocked, MessageReturned, NotConnected
from leveret.client.receipt import Receipt, Status
from tests.amqp.session import frames_in, method_of
from tests.client.paper import CUT, Stage, played, statuses

# onto the wire


def returned_of(receipt: Receipt) -> commands.Basic.Return:
    place = {"exchange": receipt.exchange, "routing_key": receipt.routing_key}
    found = method_of(commands.Basic.Return, reply_code=312, reply_text="NO_ROUTE", **place)
    assert isinstance(found, commands.Basic.Return)
    return found


def test_messages_wait_until_their_exchange_is_known_and_stay_in_order() -> None:
    async def work(stage: Stage) -> None:
        receipts = stage.send("", "x", "", "x", "y")
        await asyncio.sleep(0)
        assert await stage.wrote() == [(seq, False) for seq in (1, 2, 3, 4, 5)]
        assert stage.session.asked == ["x", "y"]
        stage.confirm(5, multiple=True)
        assert statuses(receipts) == ["confirmed"] * 5
        stage.send("x", "y")
        await stage.settle_down()
        assert stage.session.asked == ["x", "y"]

    played(work)


def test_what_goes_to_a_missing_exchange_is_not_sent_at_all() -> None:
    async def work(stage: Stage) -> None:
        stage.session.missing = {"missing", "gone"}
        receipts = stage.send("", "missing", "", "gone", "missing", "")
        assert await stage.wrote() == [(1, False), (3, False), (6, False)]
        stage.confirm(3, multiple=True)
        nacked = "nacked"
        assert statuses(receipts) == ["confirmed", nacked, "confirmed", nacked, nacked, "confirmed"]
        assert receipts[1].reason == "404 NOT_FOUND - no exchange 'missing' in vhost '/'"
        assert isinstance(receipts[1].cause, ChannelClosed)
        assert receipts[1].cause.code == 404
        assert [receipt.attempts for receipt in receipts] == [1, 0, 1, 0, 0, 1]
        assert len(stage.session.publishing) == 1

    played(work)


def test_an_exchange_that_was_missing_may_come_later() -> None:
    async def work(stage: Stage) -> None:
        stage.session.missing = {"x"}
        (first,) = stage.send("x")
        assert (await first).nacked
        stage.session.missing = set()
        (second,) = stage.send("x")
        assert await stage.wrote() == [(2, False)]
        stage.confirm(1)
        assert second.confirmed

    played(work)


def test_an_exchange_may_be_gone_after_a_reconnect() -> None:
    async def work(stage: Stage) -> None:
        await stage.ready("x")
        stage.connection.lose()
        receipts = stage.send("x", "x")
        stage.connection.come_back()
        stage.session.missing = {"x"}
        assert await stage.wrote() == []
        assert statuses(receipts) == ["nacked"] * 2

    played(work)


def test_nothing_is_written_while_the_socket_takes_nothing() -> None:
    async def work(stage: Stage) -> None:
        await stage.ready()
        stage.session.writable = False
        receipts = stage.send("", "")
        assert await stage.wrote() == []
        (late,) = stage.send("", timeout_s=0.03)
        assert isinstance((await late).cause, ConnectionBlocked)
        stage.session.writable = True
        for notice in stage.session.on_writable:
            notice()
        assert await stage.wrote() == [(2, False), (3, False)]
        stage.confirm(2, 3)
        assert statuses(receipts) == ["confirmed"] * 2

    played(work)


def test_large_bodies_are_cut_into_frames() -> None:
    async def work(stage: Stage) -> None:
        await stage.ready()
        receipt = stage.publisher.send(b"x" * 9000)
        await stage.settle_down()
        sizes = [len(payload) for kind, _, payload in frames_in(stage.session._sent) if kind == BODY]
        assert sizes == [4088, 4088, 824]
        stage.confirm(2)
        assert (await receipt).confirmed

    played(work)


# when a session ends


def test_what_was_on_the_wire_is_sent_again_in_order_and_says_so() -> None:
    async def work(stage: Stage) -> None:
        await stage.ready("", "x")
        receipts = stage.send("", "x", "", "")
        await stage.settle_down()
        first = {written.seq: written for written in stage.session.written()}
        stage.confirm(4)  # the second of them
        stage.connection.lose()
        receipts += stage.send("", "x")
        stage.connection.come_back()
        await stage.settle_down()
        again = stage.session.written()
        stage.confirm(5, multiple=True)
        assert [(written.seq, written.again) for written in again] == [
            *((3, True), (5, True), (6, True)),
            *((7, False), (8, False)),
        ]
        assert [written.message_id for written in again[:3]] == [first[seq].message_id for seq in (3, 5, 6)]
        assert statuses(receipts) == ["confirmed"] * 6
        assert [receipt.attempts for receipt in receipts] == [2, 1, 2, 2, 1, 1]
        assert all(receipt.cause is None for receipt in receipts)

    played(work)


def test_a_message_is_sent_again_as_often_as_it_takes() -> None:
    async def work(stage: Stage) -> None:
        (receipt,) = stage.send("")
        assert await stage.wrote() == [(1, False)]
        for attempts in (2, 3, 4):
            stage.connection.lose()
            await stage.settle_down()
            assert receipt.cause is CUT
            stage.connection.come_back()
            assert await stage.wrote() == [(1, True)]
            assert receipt.attempts == attempts
        stage.confirm(1)
        assert receipt.confirmed

    played(work)


def test_a_deadline_holds_over_all_attempts() -> None:
    async def work(stage: Stage) -> None:
        (cut_off,) = stage.send("", timeout_s=0.05)
        await stage.settle_down()
        stage.connection.lose()
        (unsent,) = stage.send("", timeout_s=0.05)
        await asyncio.gather(cut_off, unsent)
        assert (cut_off.status, cut_off.attempts, cut_off.cause) == (Status.LOST, 1, CUT)
        assert (unsent.status, unsent.attempts) == (Status.LOST, 0)
        assert isinstance(unsent.cause, NotConnected)
        stage.connection.come_back()
        assert await stage.wrote() == []

    played(work)


def test_a_refusal_of_what_was_cut_off_before_proves_nothing() -> None:
    async def work(stage: Stage) -> None:
        await stage.ready()
        (receipt,) = stage.send("")
        await stage.settle_down()
        stage.connection.lose()
        stage.connection.come_back()
        await stage.settle_down()
        (new,) = stage.send("")
        stage.confirm(1, kind=NACK)
        await stage.settle_down()
        stage.confirm(2, kind=NACK)
        assert statuses([receipt, new]) == ["lost", "nacked"]
        assert receipt.reason

    played(work)


def test_a_return_from_before_a_cut_does_not_count_afterwards() -> None:
    """By then somebody may have bound a queue."""

    async def work(stage: Stage) -> None:
        (receipt,) = stage.send("")
        await stage.settle_down()
        header = receipt.header
        returned = returned_of(receipt)
        stage.channel.take_content(returned, header, b"x")
        assert receipt.returned
        stage.connection.lose()
        assert not receipt.returned
        stage.connection.come_back()
        await stage.settle_down()
        stage.confirm(1)
        assert receipt.confirmed

    played(work)


def test_a_return_that_is_nobodys_is_ignored() -> None:
    async def work(stage: Stage) -> None:
        (receipt,) = stage.send("")
        await stage.settle_down()
        returned = returned_of(receipt)
        for said in ({}, {"headers": {}}, {"headers": {"x-seq": "text"}}, {"headers": {"x-seq": 99}}):
            stage.channel.take_content(returned, properties.encode(said, 0), b"")
        stage.channel.take_content(returned, b"nonsense", b"")
        stage.confirm(1)
        assert receipt.confirmed

    played(work)


def test_what_was_returned_is_returned_although_its_confirm_never_comes() -> None:
    async def work(stage: Stage) -> None:
        (receipt,) = stage.send("", timeout_s=0.05)
        await stage.settle_down()
        returned = returned_of(receipt)
        stage.channel.take_content(returned, receipt.header, b"x")
        await receipt
        assert (receipt.status, receipt.returned, receipt.lost) == (Status.RETURNED, True, False)
        with pytest.raises(MessageReturned, match="312 NO_ROUTE"):
            receipt.check()
        counters = stage.publisher.counters
        assert (counters.returned, counters.lost) == (1, 0)

    played(work)


def test_what_was_cut_off_and_then_returned_is_lost_and_nothing_else() -> None:
    """The first time somebody may have taken it."""

    async def work(stage: Stage) -> None:
        (receipt,) = stage.send("", timeout_s=0.1)
        await stage.settle_down()
        stage.connection.lose()
        stage.connection.come_back()
        await stage.settle_down()
        returned = returned_of(receipt)
        stage.channel.take_content(returned, receipt.header, b"x")
        await receipt
        assert (receipt.status, receipt.returned, receipt.reply_code) == (Status.LOST, False, 0)
        counters = stage.publisher.counters
        assert (counters.returned, counters.lost) == (0, 1)

    played(work)


# when the broker closes the channel


def test_one_to_an_exchange_that_is_gone_is_refused_and_the_others_are_sent_again() -> None:
    async def work(stage: Stage) -> None:
        await stage.ready("", "x")
        before, culprit, after = stage.send("", "x", "")
        assert await stage.wrote() == [(3, False), (4, False), (5, False)]
        stage.session.missing = {"x"}
        stage.refuse_exchange("x")
        assert culprit.nacked
        assert culprit.reason == "404 NOT_FOUND - no exchange 'x' in vhost '/'"
        assert await stage.wrote() == [(3, True), (5, False)]
        stage.confirm(1, 2)
        assert statuses([before, culprit, after]) == ["confirmed", "nacked", "confirmed"]
        assert [receipt.attempts for receipt in (before, culprit, after)] == [2, 1, 2]

    played(work)


def test_exchanges_that_are_gone_are_found_one_after_another() -> None:
    async def work(stage: Stage) -> None:
        await stage.ready("", "a", "b")
        receipts = stage.send("a", "", "b", "")
        await stage.settle_down()
        stage.session.missing = {"a", "b"}
        stage.session.written()
        stage.refuse_exchange("a")
        assert await stage.wrote() == [(5, False), (7, False)], "the broker is asked again about b"
        stage.confirm(2, multiple=True)
        assert statuses(receipts) == ["nacked", "confirmed", "nacked", "confirmed"]
        assert [receipt.attempts for receipt in receipts] == [1, 2, 1, 2]

    played(work)


def test_of_an_exchange_that_was_there_only_the_last_is_known_not_to_be_stored() -> None:
    async def work(stage: Stage) -> None:
        await stage.ready("", "x")
        receipts = stage.send("x", "", "x", "", "x", "")
        assert len(await stage.wrote()) == 6
        stage.refuse_exchange("x")
        assert statuses(receipts) == ["lost", "pending", "lost", "pending", "nacked", "pending"]
        assert all("404" in str(receipts[number].cause) for number in (0, 2, 4))
        assert await stage.wrote() == [(4, True), (6, True), (8, False)]
        stage.confirm(3, multiple=True)
        (alone,) = stage.send("x")
        assert await stage.wrote() == [(9, False)], "somebody declared it again"
        stage.refuse_exchange("x")
        assert alone.nacked

    played(work)


def test_when_nobody_can_tell_who_it_was_each_is_sent_alone() -> None:
    async def work(stage: Stage) -> None:
        await stage.ready()
        receipts = stage.send("", "", "", "", "")
        await stage.settle_down()
        stage.session.written()
        stage.close_channel(406, "PRECONDITION_FAILED - it is no good")
        await stage.confirm_alone((2, True), (3, True), (4, True), (5, True), (6, True), bad=(3, 5))
        assert statuses(receipts) == ["confirmed", "nacked", "confirmed", "nacked", "confirmed"]
        assert receipts[1].reason == "406 PRECONDITION_FAILED - it is no good"
        stage.send("", "")
        assert len(await stage.wrote()) == 2, "afterwards it is as it was before"

    played(work)


def test_what_is_published_meanwhile_keeps_its_place() -> None:
    async def work(stage: Stage) -> None:
        await stage.ready()
        receipts = stage.send("", "", "")
        await stage.settle_down()
        stage.session.written()
        stage.close_channel(406, "PRECONDITION_FAILED - it is no good")
        receipts += stage.send("", "")
        order: list[int] = []
        tag = 0
        while len(order) < 5:
            written = await stage.wrote()
            order += [seq for seq, _ in written]
            tag += len(written)
            stage.confirm(tag, multiple=True)
        assert order == [2, 3, 4, 5, 6]
        assert statuses(receipts) == ["confirmed"] * 5

    played(work)


@pytest.mark.parametrize(
    "text",
    [
        "ACCESS_REFUSED - access to exchange 'amq.default' in vhost '/' refused for user 'guest'",
        "ACCESS_REFUSED - access to exchange 'another' in vhost '/' refused for user 'guest'",
        "ACCESS_REFUSED - access to topic 'key' in exchange 'another' in vhost '/' refused for user 'guest'",
        "",
    ],
)
def test_one_that_is_alone_is_to_blame_whatever_the_broker_says(text: str) -> None:
    async def work(stage: Stage) -> None:
        (receipt,) = stage.send("")
        assert await stage.wrote() == [(1, False)]
        stage.close_channel(403, text)
        assert receipt.nacked
        assert receipt.reason == f"403 {text}"
        assert await stage.wrote() == []

    played(work)


def test_when_the_one_to_blame_was_given_up_before_nobody_else_is_blamed() -> None:
    async def work(stage: Stage) -> None:
        await stage.ready("", "x")
        (culprit,) = stage.send("x", timeout_s=0.03)
        (innocent,) = stage.send("")
        await stage.settle_down()
        await culprit
        stage.session.written()
        stage.close_channel(406, "PRECONDITION_FAILED - it is no good")
        assert not innocent.done
        assert await stage.wrote() == [(4, True)]
        stage.confirm(1)
        assert innocent.confirmed

    played(work)


def test_a_channel_that_is_closed_with_nothing_on_it_is_replaced() -> None:
    async def work(stage: Stage) -> None:
        await stage.ready()
        stage.close_channel(541, "INTERNAL_ERROR")
        await stage.settle_down()
        assert len(stage.session.publishing) == 2
        (receipt,) = stage.send("")
        await stage.settle_down()
        stage.confirm(1)
        assert receipt.confirmed

    played(work)


def test_many_to_an_exchange_that_was_there_are_sorted_out_quickly() -> None:
    """A list of culprits that is searched for each message would take minutes."""

    async def work(stage: Stage) -> None:
        await stage.ready("", "x")
        receipts = stage.send(*(["x", ""] * 15_000))
        await stage.settle_down()
        stage.refuse_exchange("x")
        assert sum(receipt.lost for receipt in receipts) == 14_999
        assert sum(receipt.nacked for receipt in receipts) == 1

    played(work, window=40_000)


# channels


def test_a_sender_has_one_channel_however_often_it_is_attached() -> None:
    async def work(stage: Stage) -> None:
        await stage.ready()
        receipts = stage.send("", "")
        await stage.settle_down()
        sender = stage.connection._tenants[0]
        stage.connection.attach(sender)
        stage.connection.attach(sender)
        await stage.settle_down()
        assert [channel.number for channel in stage.session.channels if channel.error is None] == [1]
        stage.session.channels[0].on_settled(Settlement(1, ACK, 2, 3, False))
        assert statuses(receipts) == ["confirmed"] * 2

    played(work)


def test_a_publisher_that_is_closed_while_its_channel_opens_leaves_none_open() -> None:
    async def run() -> None:
        stage = Stage()
        await stage.publisher.close()
        await stage.settle_down()
        assert all(channel.error is not None for channel in stage.session.channels)
        assert stage.session.on_writable == []

    asyncio.run(run())


def test_a_channel_that_only_ever_nacks_after_a_reconnect_is_given_up_for_another() -> None:
    """RabbitMQ 3.10: one that is opened while a quorum queue elects its leader nacks for ever."""

    async def work(stage: Stage) -> None:
        await stage.ready()
        stage.connection.lose()
        stage.connection.come_back()
        await stage.settle_down()
        for tag in range(1, 100):
            (receipt,) = stage.send("")
            await asyncio.sleep(0.02)
            await stage.settle_down()
            if len(stage.session.publishing) == 2:
                break
            stage.confirm(tag, kind=NACK)
            assert receipt.nacked
        stage.confirm(1)
        assert receipt.confirmed
        assert receipt.attempts == 1

    played(work)


def test_a_channel_that_only_ever_nacked_from_the_beginning_is_kept() -> None:
    """The queue is full, and everything that it says is meant."""

    async def work(stage: Stage) -> None:
        for tag in range(1, 40):
            (receipt,) = stage.send("")
            await stage.settle_down()
            stage.confirm(tag, kind=NACK)
            assert receipt.nacked
            await asyncio.sleep(0.02)
        assert len(stage.session.publishing) == 1

    played(work)


def test_a_channel_at_rest_is_given_up_although_its_last_confirm_never_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise nothing would ever be sent again."""
    monkeypatch.setattr(module, "_RENEWALS", Backoff(initial_s=0.01, multiplier=1.0, max_s=0.01, jitter=0.0))

    async def work(stage: Stage) -> None:
        await stage.ready()
        stage.connection.lose()
        stage.connection.come_back()
        await stage.settle_down()
        refused, unheard = *stage.send(""), *stage.send("", timeout_s=0.1)
        await stage.settle_down()
        stage.confirm(1, kind=NACK)
        await unheard
        assert statuses([refused, unheard]) == ["nacked", "lost"]
        (receipt,) = stage.send("")
        await stage.settle_down()
        assert len(stage.session.publishing) == 2
        stage.confirm(1)
        assert receipt.confirmed

    played(work)
