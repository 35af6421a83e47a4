"""What waits for the disk, and what becomes of it. There is no broker here: the store is two numbers."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field

import pytest

from leveret.broker.counters import Counters
from leveret.broker.histograms import Histogram
from leveret.broker.ledger import Ledger, Owed
from leveret.broker.sessions.confirms import Confirms
from leveret.storage.errors import StorageFull
from leveret.storage.offset_set import Range

FULL = StorageFull("wal/1", OSError(errno.ENOSPC, "No space left on device"))


@dataclass
class Disk:
    """What the ledger sees of the store: `change` is not safe before `sync`."""

    ticket: int = 0
    safe_ticket: int = 0
    unsynced_bytes: int = 0
    checkpoint_due: bool = False

    def change(self) -> int:
        self.ticket += 1
        return self.ticket

    def sync(self) -> None:
        self.safe_ticket = self.ticket


@dataclass
class Definitions:
    committed: int = 0


@dataclass(eq=False)
class Queue:
    durable: bool = True


@dataclass
class Bench:
    disk: Disk = field(default_factory=Disk)
    definitions: Definitions = field(default_factory=Definitions)

    def __post_init__(self) -> None:
        self.ledger: Ledger[Queue, str] = Ledger(self.disk, self.definitions)

    def channel(self, *, confirms: bool = True) -> Channel:
        return Channel(self, confirms=confirms)

    def publish(self, channel: Channel, count: int, *, durable: bool = True) -> None:
        channel.owed.published(count, durable=durable)

    def end_turn(self) -> None:
        self.ledger.seal(None)
        self.ledger.release()

    def sync(self) -> list[str]:
        self.disk.sync()
        stalled = self.ledger.synced()
        self.ledger.release()
        return stalled


class Channel:
    """A channel and its outlet; `said` is what its client has been told."""

    def __init__(self, bench: Bench, *, confirms: bool) -> None:
        self.closed = False
        self.counters = Counters()
        self.is_gone = False
        self.said: list[str] = []
        self.nacked: list[tuple[str, int]] = []
        self.quiet = 0
        self.failed = ""
        self.outlet = self
        self.owed = Owed(bench.ledger, self)
        if confirms:
            self.owed.confirms = Confirms()

    def answer(self, data: bytes) -> None:
        self.said.append(data.decode())

    def confirm(self, last: int, *, nack: bool, multiple: bool) -> None:
        self.said.append(f"{'nack' if nack else 'ack'} {last}{' and before' if multiple else ''}")

    def all_answered(self) -> None:
        self.quiet += 1

    def note_nack(self, reason: str, count: int) -> None:
        self.nacked.append((reason, count))

    def fail_session(self, sentence: str) -> None:
        self.failed = sentence


class Undone:
    def __init__(self) -> None:
        self.found: list[tuple[Queue, Range]] = []

    def __call__(self, published: object) -> None:
        assert isinstance(published, list)
        self.found += published


@pytest.fixture
def bench() -> Bench:
    return Bench()


class TestConfirms:
    def test_publishes_of_a_turn_are_confirmed_together_when_they_are_synced(self, bench: Bench) -> None:
        channel = bench.channel()
        bench.publish(channel, 2)
        bench.publish(channel, 1)
        bench.disk.change()
        bench.end_turn()
        assert (channel.said, bench.ledger.wants_sync) == ([], True)
        bench.sync()
        assert (channel.said, bench.ledger.wants_sync) == (["ack 3 and before"], False)

    def test_publishes_that_no_queue_keeps_are_confirmed_at_the_end_of_the_turn(self, bench: Bench) -> None:
        channel = bench.channel()
        bench.disk.change()
        bench.publish(channel, 1, durable=False)
        bench.end_turn()
        assert channel.said == ["ack 1"]
        assert not bench.ledger.wants_sync

    def test_one_publish_that_must_be_synced_holds_up_the_others_of_its_turn(self, bench: Bench) -> None:
        channel = bench.channel()
        bench.disk.change()
        bench.publish(channel, 1, durable=True)
        bench.publish(channel, 1, durable=False)
        bench.end_turn()
        assert channel.said == []

    def test_publishes_that_are_not_taken_in_are_nacked_with_the_reason(self, bench: Bench) -> None:
        channel = bench.channel()
        bench.publish(channel, 2)
        bench.ledger.seal(FULL)
        bench.ledger.release()
        assert channel.said == ["nack 2 and before"]
        assert channel.nacked == [(str(FULL), 2)]

    def test_a_confirm_keeps_its_place_behind_one_that_waits(self, bench: Bench) -> None:
        channel = bench.channel()
        bench.disk.change()
        bench.publish(channel, 1)
        bench.end_turn()
        bench.publish(channel, 1, durable=False)
        bench.end_turn()
        channel.owed.refuse(1)
        bench.end_turn()
        assert channel.said == []
        bench.sync()
        assert channel.said == ["ack 2 and before", "nack 3"]

    def test_a_channel_that_has_ended_is_owed_nothing(self, bench: Bench) -> None:
        channel = bench.channel()
        bench.disk.change()
        bench.publish(channel, 1)
        bench.end_turn()
        bench.publish(channel, 1)
        bench.ledger.forget(channel.owed)
        assert not bench.ledger.wants_sync
        bench.end_turn()
        bench.sync()
        assert channel.said == []


class TestARoundThatCanNotBeWritten:
    def test_its_publishes_are_undone_and_nacked(self, bench: Bench) -> None:
        one, other, queue, undone = bench.channel(), bench.channel(), Queue(), Undone()
        bench.disk.change()
        for channel, count in ((one, 2), (other, 3)):
            bench.publish(channel, count)
        bench.ledger.appended(queue, 10, [(one, 2), (other, 3)])
        bench.end_turn()
        bench.ledger.write_failed(FULL, undone)
        bench.ledger.release()
        assert undone.found == [(queue, (10, 12)), (queue, (12, 15))]
        assert (one.said, other.said) == (["nack 2 and before"], ["nack 3 and before"])
        assert one.nacked == [(str(FULL), 2)]
        bench.ledger.write_failed(FULL, undone)
        assert len(undone.found) == 2, "nothing is undone twice"

    def test_what_was_synced_before_is_neither_undone_nor_nacked(self, bench: Bench) -> None:
        channel, queue, undone = bench.channel(), Queue(), Undone()
        for start in (0, 1):
            bench.disk.change()
            bench.publish(channel, 1)
            bench.ledger.appended(queue, start, [(channel, 1)])
            bench.ledger.seal(None)
        bench.disk.safe_ticket = 1
        bench.ledger.write_failed(FULL, undone)
        bench.ledger.release()
        assert undone.found == [(queue, (1, 2))]
        assert channel.said == ["ack 1", "nack 2"]

    @pytest.mark.parametrize(("durable", "confirms"), [(False, True), (True, False)])
    def test_what_nobody_was_promised_is_not_undone(
        self, bench: Bench, durable: bool, confirms: bool
    ) -> None:
        channel, undone = bench.channel(confirms=confirms), Undone()
        bench.disk.change()
        bench.ledger.appended(Queue(durable=durable), 0, [(channel, 2)])
        bench.ledger.write_failed(FULL, undone)
        assert undone.found == []

    def test_answers_and_what_can_not_be_undone_wait_until_writing_works(self, bench: Bench) -> None:
        channel = bench.channel()
        ticket = bench.disk.change()
        channel.owed.expect(1, ticket, done=True)
        channel.owed.answer(b"commit-ok", ticket=ticket)
        bench.ledger.write_failed(FULL, Undone())
        bench.ledger.release()
        assert channel.said == []
        assert bench.ledger.wants_sync
        bench.sync()
        assert channel.said == ["commit-ok", "ack 1"]


class TestAnswers:
    def test_an_answer_that_waits_for_nothing_is_sent_at_once(self, bench: Bench) -> None:
        channel = bench.channel()
        channel.owed.answer(b"qos-ok")
        assert channel.said == ["qos-ok"]

    def test_an_answer_waits_for_its_definition_and_its_ticket(self, bench: Bench) -> None:
        channel = bench.channel()
        channel.owed.answer(b"declare-ok", defined=1, ticket=bench.disk.change())
        bench.sync()
        assert channel.said == []
        bench.definitions.committed = 1
        bench.end_turn()
        assert channel.said == ["declare-ok"]

    def test_answers_keep_the_order_of_the_requests(self, bench: Bench) -> None:
        channel = bench.channel()
        channel.owed.answer(b"commit-ok", ticket=bench.disk.change())
        channel.owed.answer(b"qos-ok")
        assert channel.owed.has_answers
        assert (channel.said, channel.quiet) == ([], 0)
        bench.sync()
        assert (channel.said, channel.quiet) == (["commit-ok", "qos-ok"], 1)
        assert not channel.owed.has_answers

    def test_answers_of_a_channel_that_is_gone_are_dropped(self, bench: Bench) -> None:
        channel = bench.channel()
        channel.owed.answer(b"commit-ok", ticket=bench.disk.change())
        channel.closed = channel.is_gone = True
        bench.sync()
        assert channel.said == []
        assert not bench.ledger.waiting

    def test_a_closed_channel_still_gets_its_last_words(self, bench: Bench) -> None:
        channel = bench.channel()
        channel.owed.answer(b"commit-ok", ticket=bench.disk.change())
        channel.closed = True
        bench.ledger.forget(channel.owed)
        channel.owed.answer(b"close-ok")
        bench.sync()
        assert channel.said == ["commit-ok", "close-ok"]

    def test_the_ledger_knows_who_waits_for_a_definition_that_is_refused(self, bench: Bench) -> None:
        one, other = bench.channel(), bench.channel()
        one.owed.await_definition(1)
        other.owed.answer(b"declare-ok", defined=2)
        assert bench.ledger.waiting_for_definition({2, 3}) == [other]
        bench.definitions.committed = 1
        one.owed.await_definition(1)
        bench.end_turn()
        assert one.said == [""]


class TestLateAnswers:
    """Answers that are made when they can be."""

    def attempt(self, *results: bytes | None) -> tuple[list[bytes | None], object]:
        left = list(results)
        return left, lambda: left.pop(0)

    def test_an_answer_that_can_be_made_is_sent_at_once(self, bench: Bench) -> None:
        channel = bench.channel()
        channel.owed.answer_with(lambda: b"get-ok")
        assert channel.said == ["get-ok"]

    def test_one_that_can_not_be_made_is_tried_again_after_the_sync(self, bench: Bench) -> None:
        channel, left = bench.channel(), [None, None, b"get-ok"]
        bench.disk.change()
        channel.owed.answer_with(lambda: left.pop(0))
        bench.end_turn()
        assert (len(left), bench.ledger.wants_sync) == (2, True)
        bench.disk.sync()
        bench.disk.change()  # by the attempt that follows, or by others
        bench.end_turn()
        assert (channel.said, len(left), bench.ledger.wants_sync) == ([], 1, True)
        bench.sync()
        assert channel.said == ["get-ok"]

    def test_later_answers_come_behind_it_and_later_attempts_are_not_made_before_it(
        self, bench: Bench
    ) -> None:
        channel, left, made = bench.channel(), [None, b"first"], []

        def second() -> bytes:
            made.append("second")
            return b"second"

        bench.disk.change()
        channel.owed.answer_with(lambda: left.pop(0))
        channel.owed.answer(b"qos-ok")
        channel.owed.answer_with(second)
        bench.end_turn()
        assert (channel.said, made) == ([], [])
        bench.sync()
        assert channel.said == ["first", "qos-ok", "second"]
        channel.owed.answer_with(second)
        assert channel.said[-1] == "second", "nothing waits any more"

    def test_an_attempt_is_made_at_once_behind_an_answer_that_waits(self, bench: Bench) -> None:
        channel, made = bench.channel(), []

        def attempt() -> bytes:
            made.append("now")
            return b"get-ok"

        channel.owed.answer(b"commit-ok", ticket=bench.disk.change())
        channel.owed.answer_with(attempt)
        assert (made, channel.said) == (["now"], [])
        bench.sync()
        assert channel.said == ["commit-ok", "get-ok"]


class TestOthersThatWait:
    def test_a_callback_is_called_when_all_that_came_before_it_is_synced(self, bench: Bench) -> None:
        called: list[str] = []
        bench.disk.change()
        bench.ledger.when_durable(lambda: called.append("first"))
        assert bench.ledger.wants_sync
        bench.disk.sync()
        bench.disk.change()
        bench.ledger.when_durable(lambda: called.append("second"))
        bench.end_turn()
        assert called == ["first"]
        bench.sync()
        assert called == ["first", "second"]

    def test_a_callback_with_nothing_to_wait_for_is_called_at_the_end_of_the_turn(self, bench: Bench) -> None:
        called: list[str] = []
        bench.ledger.when_durable(lambda: called.append("now"))
        assert (called, bench.ledger.wants_sync) == ([], False)
        bench.end_turn()
        assert called == ["now"]

    def test_a_stalled_source_is_given_back_by_the_sync(self, bench: Bench) -> None:
        bench.disk.change()
        bench.ledger.stall("q")
        assert (bench.ledger.is_stalled("q"), bench.ledger.wants_sync) == (True, True)
        assert bench.sync() == ["q"]
        assert not bench.ledger.is_stalled("q")

    def test_a_publisher_that_has_sent_its_share_goes_on_after_the_next_sync(self, bench: Bench) -> None:
        called: list[str] = []
        bench.ledger.after_sync(lambda: called.append("go on"))
        assert bench.ledger.wants_sync, "also when a checkpoint has synced everything meanwhile"
        bench.end_turn()
        assert called == []
        bench.sync()
        bench.sync()
        assert called == ["go on"]

    def test_what_nobody_waits_for_is_synced_later(self, bench: Bench) -> None:
        assert not bench.ledger.wants_sync_later
        bench.disk.change()
        bench.disk.unsynced_bytes = 1
        assert (bench.ledger.wants_sync, bench.ledger.wants_sync_later) == (False, True)
        bench.disk.unsynced_bytes, bench.disk.checkpoint_due = 0, True
        assert bench.ledger.wants_sync_later


def test_the_latency_of_acked_publishes_is_observed_from_their_turn_on() -> None:
    latency_us, now_us = Histogram([10, 20, 30]), [0]
    bench = Bench()
    bench.ledger = Ledger(bench.disk, bench.definitions, clock=lambda: now_us[0], latency_us=latency_us)
    channel, nacked = bench.channel(), bench.channel()
    for turn_us, count in ((0, 3), (15, 2)):
        now_us[0] = bench.ledger.turn_us = turn_us
        bench.disk.change()
        bench.publish(channel, count)
        bench.end_turn()
    nacked.owed.refuse(7)
    now_us[0] = 20
    assert latency_us.view().counts == (0, 0, 0, 0)
    bench.sync()
    assert channel.said == ["ack 5 and before"]
    assert latency_us.view() == ((10, 20, 30), (2, 3, 0, 0), 2 * 5 + 3 * 20)
