"""Confirms of one channel: every publish exactly once, never before its ticket, in few confirms."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from leveret.broker.sessions.confirms import Confirm, Confirms


def read(confirms: list[Confirm]) -> list[tuple[str, int, bool]]:
    return [("Nack" if nack else "Ack", last, multiple) for last, nack, multiple in confirms]


def test_nothing_is_acked_before_its_ticket_is_safe() -> None:
    confirms = Confirms()
    confirms.expect(3, 5)
    assert (confirms.release(4), len(confirms)) == ([], 3)
    assert read(confirms.release(5)) == [("Ack", 3, True)]
    assert (confirms.release(9), len(confirms)) == ([], 0)


def test_what_waits_for_nothing_is_acked_at_once() -> None:
    confirms = Confirms()
    confirms.expect(1, 0)
    assert read(confirms.release(0)) == [("Ack", 1, False)]


def test_tickets_that_became_safe_together_are_one_confirm() -> None:
    confirms = Confirms()
    for ticket in (1, 2, 3):
        confirms.expect(2, ticket)
    assert read(confirms.release(2)) == [("Ack", 4, True)]
    assert read(confirms.release(3)) == [("Ack", 6, True)]


def test_a_nack_stands_between_acks() -> None:
    confirms = Confirms()
    confirms.expect(2, 1)
    confirms.refuse(1)
    confirms.expect(1, 1)
    confirms.refuse(2)
    assert read(confirms.release(1)) == [
        ("Ack", 2, True),
        ("Nack", 3, False),
        ("Ack", 4, False),
        ("Nack", 6, True),
    ]


def test_a_failed_round_nacks_what_waits_for_it_and_nothing_else() -> None:
    confirms = Confirms()
    confirms.expect(2, 1)
    confirms.expect(3, 2)
    confirms.expect(1, 0)
    assert confirms.fail(1) == 3
    assert read(confirms.release(1)) == [("Ack", 2, True), ("Nack", 5, True), ("Ack", 6, False)]
    assert confirms.fail(1) == 0


def test_a_failed_round_does_not_nack_what_can_not_be_undone() -> None:
    confirms = Confirms()
    confirms.expect(2, 2)
    confirms.expect(1, 2, done=True)
    confirms.expect(1, 2)
    assert confirms.fail(1) == 3
    assert read(confirms.release(1)) == [("Nack", 2, True)]
    assert confirms.fail(1) == 0
    assert read(confirms.release(2)) == [("Ack", 3, False), ("Nack", 4, False)]


steps = st.one_of(
    st.tuples(st.just("transient"), st.integers(1, 5)),
    st.tuples(st.just("persistent"), st.integers(1, 5)),
    st.tuples(st.just("refuse"), st.integers(1, 5)),
    st.tuples(st.just("sync"), st.integers(0, 3)),
    st.tuples(st.just("fail"), st.just(0)),
)


@given(st.lists(steps, max_size=60))
def test_every_publish_is_acked_or_nacked_exactly_once(script: list[tuple[str, int]]) -> None:
    confirms = Confirms()
    safe = ticket = sent = 0
    owed: dict[int, tuple[int, bool]] = {}
    """By number: the ticket, and whether a nack is due."""
    outcome: dict[int, str] = {}

    def pay() -> None:
        for name, last, multiple in read(confirms.release(safe)):
            numbers = [each for each in range(1, last + 1) if each not in outcome] if multiple else [last]
            assert len(numbers) > 1 or not multiple
            for number in numbers:
                assert number not in outcome
                wanted, nack = owed[number]
                assert name == ("Nack" if nack else "Ack")
                assert nack or wanted <= safe, "acked before the sync"
                outcome[number] = name

    for name, amount in script:
        if name == "sync":
            safe = min(ticket, safe + amount)
        elif name == "fail":
            failed = [number for number, (wanted, nack) in owed.items() if wanted > safe and not nack]
            assert confirms.fail(safe) == len(failed)
            for number in failed:
                owed[number] = (0, True)
        else:
            if name == "persistent":
                ticket += 1
            for _ in range(amount):
                sent += 1
                owed[sent] = (ticket if name == "persistent" else 0, name == "refuse")
            if name == "refuse":
                confirms.refuse(amount)
            else:
                confirms.expect(amount, ticket if name == "persistent" else 0)
        pay()
        assert len(confirms) == sent - len(outcome)
        assert sorted(outcome) == list(range(1, len(outcome) + 1)), "in the order of the publishes"
    safe = ticket
    pay()
    assert sorted(outcome) == list(range(1, sent + 1))
    assert confirms.last == sent
