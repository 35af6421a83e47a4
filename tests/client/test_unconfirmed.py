import random

import pytest

from leveret.amqp.events import Settlement
from leveret.amqp.scanner import ACK
from leveret.client.receipt import Receipt, Status
from leveret.client.unconfirmed import Unconfirmed


def receipt(seq: int) -> Receipt:
    return Receipt(
        seq,
        b"",
        b"",
        b"",
        exchange="",
        routing_key="",
        message_id=str(seq),
        correlation_id=None,
        started_s=0.0,
        deadline_s=0.0,
        callback=None,
    )


def ack(first: int, last: int | None = None, *, multiple: bool = False) -> Settlement:
    return Settlement(1, ACK, first, first if last is None else last, multiple)


class Wire:
    """What was sent, and what its settling found, by sequence."""

    def __init__(self, count: int, first_seq: int = 1) -> None:
        self.unconfirmed = Unconfirmed()
        self.receipts = [receipt(first_seq + n) for n in range(count)]
        for each in self.receipts:
            self.unconfirmed.add(each)

    def settle(self, event: Settlement) -> list[int]:
        found = self.unconfirmed.settled(event)
        for each in found:
            each.resolve(Status.CONFIRMED, 0.0)
        self.unconfirmed.trim()
        return [each.seq for each in found]

    @property
    def left(self) -> list[int]:
        return [each.seq for each in self.unconfirmed]


def test_a_confirm_takes_the_oldest() -> None:
    wire = Wire(3)
    assert wire.settle(ack(1)) == [1]
    assert wire.settle(ack(2)) == [2]
    assert wire.left == [3]
    assert len(wire.unconfirmed) == 1


def test_a_run_of_confirms_takes_as_many() -> None:
    wire = Wire(5)
    assert wire.settle(ack(1, 3)) == [1, 2, 3]
    assert wire.settle(ack(4, 5)) == [4, 5]
    assert len(wire.unconfirmed) == 0


def test_a_multiple_confirm_takes_all_up_to_it() -> None:
    wire = Wire(5)
    assert wire.settle(ack(3, multiple=True)) == [1, 2, 3]
    assert wire.settle(ack(5, multiple=True)) == [4, 5]


def test_a_multiple_confirm_of_tag_0_takes_all() -> None:
    wire = Wire(3)
    assert wire.settle(ack(0, multiple=True)) == [1, 2, 3]


def test_confirms_may_come_in_any_order() -> None:
    wire = Wire(5)
    assert wire.settle(ack(3)) == [3]
    assert wire.left == [1, 2, 4, 5]
    assert wire.settle(ack(5)) == [5]
    assert wire.settle(ack(1)) == [1]
    assert wire.settle(ack(4, multiple=True)) == [2, 4]
    assert wire.left == []
    assert len(wire.unconfirmed) == 0


def test_a_run_that_begins_before_the_head_and_one_that_ends_behind_the_last() -> None:
    wire = Wire(4)
    wire.settle(ack(1, 2))
    assert wire.settle(ack(1, 3)) == [3]
    assert wire.settle(ack(4, 9)) == [4]


@pytest.mark.parametrize("event", [ack(1), ack(1, multiple=True), ack(9), ack(9, multiple=True)])
def test_a_confirm_of_what_is_settled_or_was_never_sent_finds_nothing(event: Settlement) -> None:
    wire = Wire(1)
    wire.settle(ack(1))
    assert wire.settle(event) == []


def test_what_was_given_up_is_not_found_again() -> None:
    wire = Wire(3)
    wire.receipts[1].resolve(Status.LOST, 0.0)
    assert wire.left == [1, 3]
    assert wire.settle(ack(3, multiple=True)) == [1, 3]


def test_what_was_given_up_at_the_head_is_forgotten_and_tags_still_fit() -> None:
    wire = Wire(3)
    wire.receipts[0].resolve(Status.LOST, 0.0)
    wire.unconfirmed.trim()
    assert len(wire.unconfirmed) == 2
    assert wire.settle(ack(1)) == []
    assert wire.settle(ack(2)) == [2]
    assert wire.settle(ack(3)) == [3]


def test_tags_start_anew_on_the_next_channel() -> None:
    wire = Wire(3)
    wire.settle(ack(1))
    assert [each.seq for each in wire.unconfirmed.take_all()] == [2, 3]
    assert len(wire.unconfirmed) == 0
    for each in wire.receipts[1:]:
        wire.unconfirmed.add(each)
    assert wire.settle(ack(1)) == [2]
    assert wire.settle(ack(2)) == [3]


def test_a_return_is_found_by_its_sequence() -> None:
    wire = Wire(5, first_seq=100)
    for seq in (101, 103, 104, 100):
        found = wire.unconfirmed.returned(seq)
        assert found is not None
        assert found.seq == seq
    assert wire.unconfirmed.returned(7) is None
    assert Unconfirmed().returned(1) is None


def test_returns_with_one_sequence_belong_to_one_message_each() -> None:
    unconfirmed, twins = Unconfirmed(), [receipt(5), receipt(5)]
    for each in twins:
        unconfirmed.add(each)
    assert unconfirmed.returned(5) is twins[0]
    assert unconfirmed.returned(5) is twins[1]


def test_returns_are_found_after_the_head_has_moved() -> None:
    wire = Wire(10)
    assert wire.unconfirmed.returned(8) is wire.receipts[7]
    wire.settle(ack(9, multiple=True))
    assert wire.unconfirmed.returned(10) is wire.receipts[9]


@pytest.mark.histories(sample=6, full=20)
def test_whatever_comes_each_is_found_once(seed: int) -> None:
    """Against the plain way: a dictionary of tags."""
    chance = random.Random(seed)
    unconfirmed = Unconfirmed()
    model: dict[int, Receipt] = {}
    sent = 0
    for _ in range(300):
        if chance.random() < 0.5:
            sent += 1
            model[sent] = receipt(sent)
            unconfirmed.add(model[sent])
        elif chance.random() < 0.1 and model:
            tag = chance.choice(list(model))
            model.pop(tag).resolve(Status.LOST, 0.0)
            unconfirmed.trim()
        elif sent:
            first = chance.randint(1, sent)
            multiple = chance.random() < 0.3
            last = first if multiple else chance.randint(first, min(first + 3, sent))
            tags = [tag for tag in model if tag <= last and (multiple or tag >= first)]
            expected = [model.pop(tag) for tag in tags]
            found = unconfirmed.settled(ack(first, last, multiple=multiple))
            assert found == expected
            for each in found:
                each.resolve(Status.CONFIRMED, 0.0)
            unconfirmed.trim()
        assert list(unconfirmed) == list(model.values())


def test_of_one_sequence_to_two_places_the_one_is_returned_that_went_there() -> None:
    unconfirmed = Unconfirmed()
    here, there = receipt(17), receipt(17)
    here.routing_key, there.routing_key = "orders", "missing"
    for each in (here, there):
        unconfirmed.add(each)
    assert unconfirmed.returned(17, "", "missing") is there
    assert unconfirmed.returned(17, "", "elsewhere") is None


def test_all_of_a_large_window_may_be_returned() -> None:
    wire = Wire(20_000)
    found = [wire.unconfirmed.returned(each.seq) for each in wire.receipts]
    assert found == wire.receipts
    assert wire.settle(ack(20_000, multiple=True)) == [each.seq for each in wire.receipts]
