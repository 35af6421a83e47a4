import asyncio

import pytest
from pamqp import commands

from leveret.amqp import properties
from leveret.amqp.events import Settlement
from leveret.amqp.frames import BODY
from leveret.amqp.scanner import ACK, NACK
from leveret.client import sender as module
from leveret.client.backoff import Backoff
from leveret.client.errors import ChannelClosed, ConnectionBlocked, NotConnected
from leveret.client.message import Message
from leveret.client.receipt import MessageLost, MessageReturned, Receipt, Status
from tests.amqp.session import frames_in, method_of
from tests.client.scripted_broker import CUT, ScriptedPublisher, played, statuses
from tests.processes import WAIT_S

# onto the wire


def returned_of(receipt: Receipt) -> commands.Basic.Return:
    place = {"exchange": receipt.exchange, "routing_key": receipt.routing_key}
    found = method_of(commands.Basic.Return, reply_code=312, reply_text="NO_ROUTE", **place)
    assert isinstance(found, commands.Basic.Return)
    return found


def test_messages_wait_until_their_exchange_is_known_and_stay_in_order() -> None:
    async def work(scripted: ScriptedPublisher) -> None:
        receipts = scripted.send("", "x", "", "x", "y")
        await asyncio.sleep(0)
        assert await scripted.wrote() == [(seq, False) for seq in (1, 2, 3, 4, 5)]
        assert scripted.session.asked == ["x", "y"]
        scripted.confirm(5, multiple=True)
        assert statuses(receipts) == ["confirmed"] * 5
        scripted.send("x", "y")
        await scripted.settle_down()
        assert scripted.session.asked == ["x", "y"]

    played(work)


def test_what_goes_to_a_missing_exchange_is_not_sent_at_all() -> None:
    async def work(scripted: ScriptedPublisher) -> None:
        scripted.session.missing = {"missing", "gone"}
        receipts = scripted.send("", "missing", "", "gone", "missing", "")
        assert await scripted.wrote() == [(1, False), (3, False), (6, False)]
        scripted.confirm(3, multiple=True)
        nacked = "nacked"
        assert statuses(receipts) == ["confirmed", nacked, "confirmed", nacked, nacked, "confirmed"]
        assert receipts[1].reason == "404 NOT_FOUND - no exchange 'missing' in vhost '/'"
        assert isinstance(receipts[1].cause, ChannelClosed)
        assert receipts[1].cause.code == 404
        assert [receipt.attempts for receipt in receipts] == [1, 0, 1, 0, 0, 1]
        assert len(scripted.session.publishing) == 1

    played(work)


def test_an_exchange_that_was_missing_may_come_later() -> None:
    async def work(scripted: ScriptedPublisher) -> None:
        scripted.session.missing = {"x"}
        (first,) = scripted.send("x")
        assert (await first).nacked
        scripted.session.missing = set()
        (second,) = scripted.send("x")
        assert await scripted.wrote() == [(2, False)]
        scripted.confirm(1)
        assert second.confirmed

    played(work)


def test_an_exchange_may_be_gone_after_a_reconnect() -> None:
    async def work(scripted: ScriptedPublisher) -> None:
        await scripted.ready("x")
        scripted.connection.lose()
        receipts = scripted.send("x", "x")
        scripted.connection.come_back()
        scripted.session.missing = {"x"}
        assert await scripted.wrote() == []
        assert statuses(receipts) == ["nacked"] * 2

    played(work)


def test_nothing_is_written_while_the_socket_takes_nothing() -> None:
    async def work(scripted: ScriptedPublisher) -> None:
        await scripted.ready()
        scripted.session.writable = False
        receipts = scripted.send("", "")
        assert await scripted.wrote() == []
        (late,) = scripted.send("", timeout_s=0.03)
        assert isinstance((await late).cause, ConnectionBlocked)
        scripted.session.writable = True
        for notice in scripted.session.on_writable:
            notice()
        assert await scripted.wrote() == [(2, False), (3, False)]
        scripted.confirm(2, 3)
        assert statuses(receipts) == ["confirmed"] * 2

    played(work)


def test_large_bodies_are_cut_into_frames() -> None:
    async def work(scripted: ScriptedPublisher) -> None:
        await scripted.ready()
        receipt = scripted.publisher.send(b"x" * 9000)
        await scripted.settle_down()
        sizes = [len(payload) for kind, _, payload in frames_in(scripted.session._sent) if kind == BODY]
        assert sizes == [4088, 4088, 824]
        scripted.confirm(2)
        assert (await receipt).confirmed

    played(work)


# when a session ends


def test_what_was_on_the_wire_is_sent_again_in_order_and_says_so() -> None:
    async def work(scripted: ScriptedPublisher) -> None:
        await scripted.ready("", "x")
        receipts = scripted.send("", "x", "", "")
        await scripted.settle_down()
        first = {written.seq: written for written in scripted.session.written()}
        scripted.confirm(4)  # the second of them
        scripted.connection.lose()
        receipts += scripted.send("", "x")
        scripted.connection.come_back()
        await scripted.settle_down()
        again = scripted.session.written()
        scripted.confirm(5, multiple=True)
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
    async def work(scripted: ScriptedPublisher) -> None:
        (receipt,) = scripted.send("")
        assert await scripted.wrote() == [(1, False)]
        for attempts in (2, 3, 4):
            scripted.connection.lose()
            await scripted.settle_down()
            assert receipt.cause is CUT
            scripted.connection.come_back()
            assert await scripted.wrote() == [(1, True)]
            assert receipt.attempts == attempts
        scripted.confirm(1)
        assert receipt.confirmed

    played(work)


def test_a_deadline_holds_over_all_attempts() -> None:
    async def work(scripted: ScriptedPublisher) -> None:
        (cut_off,) = scripted.send("", timeout_s=0.05)
        await scripted.settle_down()
        scripted.connection.lose()
        (unsent,) = scripted.send("", timeout_s=0.05)
        await asyncio.gather(cut_off, unsent)
        assert (cut_off.status, cut_off.attempts, cut_off.cause) == (Status.LOST, 1, CUT)
        assert (unsent.status, unsent.attempts) == (Status.LOST, 0)
        assert isinstance(unsent.cause, NotConnected)
        scripted.connection.come_back()
        assert await scripted.wrote() == []

    played(work)


def test_a_refusal_of_what_was_cut_off_before_proves_nothing() -> None:
    async def work(scripted: ScriptedPublisher) -> None:
        await scripted.ready()
        (receipt,) = scripted.send("")
        await scripted.settle_down()
        scripted.connection.lose()
        scripted.connection.come_back()
        await scripted.settle_down()
        (new,) = scripted.send("")
        scripted.confirm(1, kind=NACK)
        await scripted.settle_down()
        scripted.confirm(2, kind=NACK)
        assert statuses([receipt, new]) == ["lost", "nacked"]
        assert receipt.reason

    played(work)


def test_a_return_from_before_a_cut_does_not_count_afterwards() -> None:
    """By then somebody may have bound a queue."""

    async def work(scripted: ScriptedPublisher) -> None:
        (receipt,) = scripted.send("")
        await scripted.settle_down()
        header = receipt.header
        returned = returned_of(receipt)
        scripted.channel.take_content(returned, header, b"x")
        assert receipt.returned
        scripted.connection.lose()
        assert not receipt.returned
        scripted.connection.come_back()
        await scripted.settle_down()
        scripted.confirm(1)
        assert receipt.confirmed

    played(work)


def test_a_return_that_is_nobodys_is_ignored() -> None:
    async def work(scripted: ScriptedPublisher) -> None:
        (receipt,) = scripted.send("")
        await scripted.settle_down()
        returned = returned_of(receipt)
        for said in ({}, {"headers": {}}, {"headers": {"x-seq": "text"}}, {"headers": {"x-seq": 99}}):
            scripted.channel.take_content(returned, properties.encode(said, 0), b"")
        scripted.channel.take_content(returned, b"nonsense", b"")
        scripted.confirm(1)
        assert receipt.confirmed

    played(work)


def test_what_was_returned_is_returned_although_its_confirm_never_comes() -> None:
    async def work(scripted: ScriptedPublisher) -> None:
        (receipt,) = scripted.send("", timeout_s=0.05)
        await scripted.settle_down()
        returned = returned_of(receipt)
        scripted.channel.take_content(returned, receipt.header, b"x")
        await receipt
        assert (receipt.status, receipt.returned, receipt.lost) == (Status.RETURNED, True, False)
        with pytest.raises(MessageReturned, match="312 NO_ROUTE"):
            receipt.check()
        counters = scripted.publisher.counters
        assert (counters.returned, counters.lost) == (1, 0)

    played(work)


@pytest.mark.parametrize("is_confirmed", [True, False])
def test_a_message_with_an_unknown_attempt_that_is_then_returned_is_lost(is_confirmed: bool) -> None:
    """The first time a queue may have taken it."""

    async def work(scripted: ScriptedPublisher) -> None:
        (receipt,) = scripted.send("", timeout_s=WAIT_S if is_confirmed else 0.1)
        await scripted.settle_down()
        scripted.connection.lose()
        scripted.connection.come_back()
        await scripted.settle_down()
        scripted.channel.take_content(returned_of(receipt), receipt.header, b"x")
        assert (receipt.returned, receipt.reply_code) == (False, 312)
        if is_confirmed:
            scripted.confirm(1)
        await receipt
        assert (receipt.status, receipt.returned) == (Status.LOST, False)
        assert (receipt.reply_code, receipt.reply_text) == (312, "NO_ROUTE")
        with pytest.raises(MessageLost, match=r"may be stored from an earlier attempt.*312 NO_ROUTE"):
            receipt.check()
        counters = scripted.publisher.counters
        assert (counters.returned, counters.lost) == (0, 1)

    played(work)


def test_a_message_that_was_returned_before_a_cut_and_again_after_it_is_returned() -> None:
    """Neither attempt stored it, so it is not marked as published again either."""

    async def work(scripted: ScriptedPublisher) -> None:
        (receipt,) = scripted.send("")
        assert await scripted.wrote() == [(1, False)]
        scripted.channel.take_content(returned_of(receipt), receipt.header, b"x")
        scripted.connection.lose()
        scripted.connection.come_back()
        assert await scripted.wrote() == [(1, False)]
        scripted.channel.take_content(returned_of(receipt), receipt.header, b"x")
        scripted.confirm(1)
        assert (receipt.status, receipt.attempts, receipt.cause) == (Status.RETURNED, 2, None)

    played(work)


def test_a_message_that_is_lost_because_of_a_return_leaves_no_doubt_about_its_channel() -> None:
    """Its confirm came: a channel error afterwards is about the message that is still on the wire."""

    async def work(scripted: ScriptedPublisher) -> None:
        (first,) = scripted.send("")
        await scripted.settle_down()
        scripted.connection.lose()
        scripted.connection.come_back()
        await scripted.settle_down()
        (second,) = scripted.send("")
        await scripted.settle_down()
        scripted.channel.take_content(returned_of(first), first.header, b"x")
        scripted.confirm(1)
        scripted.close_channel(406, "PRECONDITION_FAILED - it is no good")
        await scripted.settle_down()
        assert statuses([first, second]) == ["lost", "nacked"]

    played(work)


# when the broker closes the channel


def test_one_to_an_exchange_that_is_gone_is_refused_and_the_others_are_sent_again() -> None:
    async def work(scripted: ScriptedPublisher) -> None:
        await scripted.ready("", "x")
        before, culprit, after = scripted.send("", "x", "")
        assert await scripted.wrote() == [(3, False), (4, False), (5, False)]
        scripted.session.missing = {"x"}
        scripted.refuse_exchange("x")
        assert culprit.nacked
        assert culprit.reason == "404 NOT_FOUND - no exchange 'x' in vhost '/'"
        assert await scripted.wrote() == [(3, True), (5, False)]
        scripted.confirm(1, 2)
        assert statuses([before, culprit, after]) == ["confirmed", "nacked", "confirmed"]
        assert [receipt.attempts for receipt in (before, culprit, after)] == [2, 1, 2]

    played(work)


def test_exchanges_that_are_gone_are_found_one_after_another() -> None:
    async def work(scripted: ScriptedPublisher) -> None:
        await scripted.ready("", "a", "b")
        receipts = scripted.send("a", "", "b", "")
        await scripted.settle_down()
        scripted.session.missing = {"a", "b"}
        scripted.session.written()
        scripted.refuse_exchange("a")
        assert await scripted.wrote() == [(5, False), (7, False)], "the broker is asked again about b"
        scripted.confirm(2, multiple=True)
        assert statuses(receipts) == ["nacked", "confirmed", "nacked", "confirmed"]
        assert [receipt.attempts for receipt in receipts] == [1, 2, 1, 2]

    played(work)


def test_of_publishes_to_a_deleted_exchange_only_the_last_is_certainly_not_stored() -> None:
    async def work(scripted: ScriptedPublisher) -> None:
        await scripted.ready("", "x")
        receipts = scripted.send("x", "", "x", "", "x", "")
        assert len(await scripted.wrote()) == 6
        scripted.session.missing = {"x"}
        scripted.refuse_exchange("x")
        assert await scripted.wrote() == [(4, True), (6, True), (8, False)]
        assert statuses(receipts) == ["lost", "pending", "lost", "pending", "nacked", "pending"]
        assert all("404" in str(receipts[number].cause) for number in (0, 2, 4))
        scripted.session.missing = set()
        scripted.confirm(3, multiple=True)
        (alone,) = scripted.send("x")
        assert await scripted.wrote() == [(9, False)], "somebody declared it again"
        scripted.refuse_exchange("x")
        assert alone.nacked

    played(work)


def test_publishes_before_the_culprit_are_confirmed_if_their_exchange_is_declared_again() -> None:
    async def work(scripted: ScriptedPublisher) -> None:
        await scripted.ready("", "x")
        receipts = scripted.send("x", "", "x", "")
        await scripted.settle_down()
        scripted.session.written()
        scripted.refuse_exchange("x")
        assert await scripted.wrote() == [(3, True), (4, True), (6, False)]
        scripted.confirm(3, multiple=True)
        assert statuses(receipts) == ["confirmed", "confirmed", "nacked", "confirmed"]

    played(work)


def test_a_message_that_was_accepted_before_another_was_refused_is_never_nacked() -> None:
    async def work(scripted: ScriptedPublisher) -> None:
        await scripted.ready("", "x")
        accepted, culprit = scripted.send("", "x")
        await scripted.settle_down()
        scripted.refuse_exchange("x")
        await scripted.settle_down()
        scripted.close_channel(406, "PRECONDITION_FAILED - the limit is lower now")
        assert statuses([accepted, culprit]) == ["lost", "nacked"]

    played(work)


def test_when_nobody_can_tell_who_it_was_each_is_sent_alone() -> None:
    async def work(scripted: ScriptedPublisher) -> None:
        await scripted.ready()
        receipts = scripted.send("", "", "", "", "")
        await scripted.settle_down()
        scripted.session.written()
        scripted.close_channel(406, "PRECONDITION_FAILED - it is no good")
        await scripted.confirm_alone((2, True), (3, True), (4, True), (5, True), (6, True), bad=(3, 5))
        assert statuses(receipts) == ["confirmed", "nacked", "confirmed", "nacked", "confirmed"]
        assert receipts[1].reason == "406 PRECONDITION_FAILED - it is no good"
        scripted.send("", "")
        assert len(await scripted.wrote()) == 2, "afterwards it is as it was before"

    played(work)


def test_what_is_published_meanwhile_keeps_its_place() -> None:
    async def work(scripted: ScriptedPublisher) -> None:
        await scripted.ready()
        receipts = scripted.send("", "", "")
        await scripted.settle_down()
        scripted.session.written()
        scripted.close_channel(406, "PRECONDITION_FAILED - it is no good")
        receipts += scripted.send("", "")
        order: list[int] = []
        tag = 0
        while len(order) < 5:
            written = await scripted.wrote()
            order += [seq for seq, _ in written]
            tag += len(written)
            scripted.confirm(tag, multiple=True)
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
    async def work(scripted: ScriptedPublisher) -> None:
        (receipt,) = scripted.send("")
        assert await scripted.wrote() == [(1, False)]
        scripted.close_channel(403, text)
        assert receipt.nacked
        assert receipt.reason == f"403 {text}"
        assert await scripted.wrote() == []

    played(work)


def test_when_the_one_to_blame_was_given_up_before_nobody_else_is_blamed() -> None:
    async def work(scripted: ScriptedPublisher) -> None:
        await scripted.ready("", "x")
        (culprit,) = scripted.send("x", timeout_s=0.03)
        (innocent,) = scripted.send("")
        await scripted.settle_down()
        await culprit
        scripted.session.written()
        scripted.close_channel(406, "PRECONDITION_FAILED - it is no good")
        assert not innocent.done
        assert await scripted.wrote() == [(4, True)]
        scripted.confirm(1)
        assert innocent.confirmed

    played(work)


def test_a_channel_that_is_closed_with_nothing_on_it_is_replaced() -> None:
    async def work(scripted: ScriptedPublisher) -> None:
        await scripted.ready()
        scripted.close_channel(541, "INTERNAL_ERROR")
        await scripted.settle_down()
        assert len(scripted.session.publishing) == 2
        (receipt,) = scripted.send("")
        await scripted.settle_down()
        scripted.confirm(1)
        assert receipt.confirmed

    played(work)


def test_many_to_an_exchange_that_was_there_are_sorted_out_quickly() -> None:
    """A list of culprits that is searched for each message would take minutes."""

    async def work(scripted: ScriptedPublisher) -> None:
        await scripted.ready("", "x")
        receipts = scripted.send(*(["x", ""] * 15_000))
        await scripted.settle_down()
        scripted.session.missing = {"x"}
        scripted.refuse_exchange("x")
        await scripted.settle_down()
        assert sum(receipt.lost for receipt in receipts) == 14_999
        assert sum(receipt.nacked for receipt in receipts) == 1

    played(work, window=40_000)


# channels


def test_a_sender_has_one_channel_however_often_it_is_attached() -> None:
    async def work(scripted: ScriptedPublisher) -> None:
        await scripted.ready()
        receipts = scripted.send("", "")
        await scripted.settle_down()
        sender = scripted.connection._tenants[0]
        scripted.connection.attach(sender)
        scripted.connection.attach(sender)
        await scripted.settle_down()
        assert [channel.number for channel in scripted.session.channels if channel.error is None] == [1]
        scripted.session.channels[0].on_settled(Settlement(1, ACK, 2, 3, False))
        assert statuses(receipts) == ["confirmed"] * 2

    played(work)


def test_a_publisher_that_is_closed_while_its_channel_opens_leaves_none_open() -> None:
    async def run() -> None:
        scripted = ScriptedPublisher()
        await scripted.publisher.close()
        await scripted.settle_down()
        assert all(channel.error is not None for channel in scripted.session.channels)
        assert scripted.session.on_writable == []

    asyncio.run(run())


def test_a_channel_that_only_ever_nacks_after_a_reconnect_is_given_up_for_another() -> None:
    """RabbitMQ 3.10: one that is opened while a quorum queue elects its leader nacks for ever."""

    async def work(scripted: ScriptedPublisher) -> None:
        await scripted.ready()
        scripted.connection.lose()
        scripted.connection.come_back()
        await scripted.settle_down()
        for tag in range(1, 100):
            (receipt,) = scripted.send("")
            await asyncio.sleep(0.02)
            await scripted.settle_down()
            if len(scripted.session.publishing) == 2:
                break
            scripted.confirm(tag, kind=NACK)
            assert receipt.nacked
        scripted.confirm(1)
        assert receipt.confirmed
        assert receipt.attempts == 1

    played(work)


def test_a_channel_that_only_ever_nacked_from_the_beginning_is_kept() -> None:
    """The queue is full, and everything that it says is meant."""

    async def work(scripted: ScriptedPublisher) -> None:
        for tag in range(1, 40):
            (receipt,) = scripted.send("")
            await scripted.settle_down()
            scripted.confirm(tag, kind=NACK)
            assert receipt.nacked
            await asyncio.sleep(0.02)
        assert len(scripted.session.publishing) == 1

    played(work)


def test_a_channel_at_rest_is_given_up_although_its_last_confirm_never_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise nothing would ever be sent again."""
    monkeypatch.setattr(module, "_RENEWALS", Backoff(initial_s=0.01, multiplier=1.0, max_s=0.01, jitter=0.0))

    async def work(scripted: ScriptedPublisher) -> None:
        await scripted.ready()
        scripted.connection.lose()
        scripted.connection.come_back()
        await scripted.settle_down()
        refused, unheard = *scripted.send(""), *scripted.send("", timeout_s=0.1)
        await scripted.settle_down()
        scripted.confirm(1, kind=NACK)
        await unheard
        assert statuses([refused, unheard]) == ["nacked", "lost"]
        (receipt,) = scripted.send("")
        await scripted.settle_down()
        assert len(scripted.session.publishing) == 2
        scripted.confirm(1)
        assert receipt.confirmed

    played(work)


@pytest.mark.parametrize("way", ["publish", "publish_many"])
def test_the_latency_of_a_receipt_includes_the_wait_for_the_window(way: str) -> None:
    async def work(scripted: ScriptedPublisher) -> None:
        loop, late_s = asyncio.get_running_loop(), [0.0]
        real = loop.time
        loop.time = lambda: real() + late_s[0]  # type: ignore[method-assign]
        scripted.send("")
        publisher = scripted.publisher
        second = publisher.publish(b"x") if way == "publish" else publisher.publish_many([Message(b"x")])
        waiting = asyncio.create_task(second)  # type: ignore[arg-type]
        await scripted.settle_down()
        late_s[0] = 5.0
        scripted.confirm(1)
        await scripted.settle_down()
        scripted.confirm(2)
        found = await waiting
        receipt = found if isinstance(found, Receipt) else found[0]
        assert receipt.confirmed
        assert receipt.latency_s is not None
        assert receipt.latency_s >= 5.0

    played(work, window=1)
