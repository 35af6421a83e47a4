"""Rows about one chunk in, a row for each message out: each rule by itself. Histories: `test_histories`."""

from __future__ import annotations

from dataclasses import fields
from itertools import count
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from leveret.audit import accounting
from leveret.audit.accounting import MESSAGES, Rows, account
from leveret.audit.evidence import AuditedLog, Reader
from leveret.storage.journal import Kind, Outcome, Promise
from leveret.storage.message_events import CHUNK, SCHEMA, Event, folded

LOG = AuditedLog(1, "/", "orders", (Reader(2, "", True), Reader(3, "billing", True)))
OWN, GROUP = 2, 3
numbers = count(1)


def told(event: int, start: int, stop: int | None = None, **fields: Any) -> dict[str, Any]:
    """A row of the own reader's journal, behind those before it."""
    stop = start + 1 if stop is None else stop
    row = dict.fromkeys(SCHEMA.names, 0) | {"log": 1, "reader": OWN, "who": "", "why": "", "time_us": 9}
    row["count"] = 1
    return row | {"number": next(numbers), "event": event, "start": start, "stop": stop} | fields


def published(start: int, stop: int | None = None, **fields: Any) -> dict[str, Any]:
    return told(Event.PUBLISHED, start, stop, **{"reader": 0, "code": 1, "time_us": 5, "why": "x"} | fields)


def synced(start: int, stop: int | None = None, **fields: Any) -> dict[str, Any]:
    return told(Kind.SYNCED, start, stop, **{"other_us": 5, "time_us": 7, "why": "x"} | fields)


def acked(start: int, stop: int | None = None, **fields: Any) -> dict[str, Any]:
    return told(Kind.SETTLED, start, stop, **{"code": Outcome.ACKED, "who": "c"} | fields)


def standing(start: int, stop: int | None = None, **fields: Any) -> dict[str, Any]:
    return told(Event.STANDING, start, stop, **{"number": (1 << 63) - 1} | fields)


def held(start: int, stop: int | None = None, **fields: Any) -> dict[str, Any]:
    return told(Event.HELD, start, stop, **{"number": (1 << 63) - 1} | fields)


def messages(*rows: dict[str, Any], reader: str = "", log: AuditedLog = LOG) -> dict[int, dict[str, Any]]:
    table = account(pa.Table.from_pylist(list(rows), SCHEMA), log)
    assert table.schema == MESSAGES
    return {row["offset"]: row for row in table.to_pylist() if row["reader"] == reader}


def only(*rows: dict[str, Any], reader: str = "") -> dict[str, Any]:
    (row,) = messages(*rows, reader=reader).values()
    return row


class TestStates:
    def test_what_is_there_and_not_taken_is_ready(self):
        row = only(published(4), synced(4))
        assert (row["state"], row["persistent"], row["exchange"], row["copies"]) == ("ready", True, "x", 1)
        assert (row["vhost"], row["queue"], row["offset"]) == ("/", "orders", 4)

    def test_what_the_cursor_says_is_in_flight_is(self):
        row = only(published(4), synced(4), told(Kind.DELIVERED, 4, who="c"), held(4))
        assert (row["state"], row["delivered_to"], row["deliveries"]) == ("in flight", "c", 1)

    def test_what_was_delivered_to_several_went_to_the_one_that_is_named_for_it(self):
        both = told(Kind.DELIVERED, 4, 6)
        found = messages(published(4, 6), both, told(Event.NAMED, 4, who="a"), told(Event.NAMED, 5, who="b"))
        assert [(row["delivered_to"], row["deliveries"]) for row in found.values()] == [("a", 1), ("b", 1)]

    def test_a_later_delivery_to_one_counts_more_than_an_earlier_name(self):
        row = only(
            published(4),
            told(Kind.DELIVERED, 4),
            told(Event.NAMED, 4, who="a"),
            told(Kind.RETURNED, 4),
            told(Kind.DELIVERED, 4, who="b"),
        )
        assert (row["delivered_to"], row["deliveries"]) == ("b", 2)

    def test_what_is_settled_is_settled_whether_the_log_has_it_or_not(self):
        for there in ([], [published(4)]):
            row = only(*there, synced(4), told(Kind.DELIVERED, 4), acked(4), standing(4))
            assert (row["state"], row["outcome"], row["settled_by"], row["done"]) == (
                "settled",
                "acked",
                "c",
                1,
            )

    @pytest.mark.parametrize("rows", [[], [told(Kind.DELIVERED, 4), held(4)]])
    def test_what_was_confirmed_and_is_neither_settled_nor_there_is_lost(self, rows):
        assert only(synced(4), *rows)["state"] == "lost"

    @pytest.mark.parametrize("outcome", [Outcome.RESTART, Outcome.DAMAGED])
    def test_what_was_confirmed_and_given_up_by_the_store_is_lost(self, outcome):
        row = only(synced(4), told(Kind.SETTLED, 4, code=outcome), standing(4))
        assert row["state"] == "lost"

    def test_what_was_delivered_and_never_promised_is_not_lost(self):
        row = only(told(Kind.DELIVERED, 4), told(Kind.SETTLED, 4, code=Outcome.RESTART), standing(4))
        assert (row["state"], row["outcome"], row["persistent"]) == ("settled", "restart", False)
        assert only(told(Kind.DELIVERED, 4))["state"] == "gone"

    def test_what_was_settled_before_anybody_remembers_is_settled(self):
        row = only(published(4), standing(0, 10))
        assert (row["state"], row["outcome"]) == ("settled", "before the window")

    @pytest.mark.parametrize("outcome", [Outcome.RESTART, Outcome.SKIPPED])
    def test_offsets_that_no_message_ever_had_are_no_messages(self, outcome):
        assert messages(told(Kind.SETTLED, 0, 50, code=outcome), standing(0, 50)) == {}

    def test_a_group_loses_nothing(self):
        assert messages(synced(4), reader="billing") == {}
        row = only(told(Kind.DELIVERED, 4, reader=GROUP), reader="billing")
        assert row["state"] == "gone"


class TestDoubles:
    def test_what_is_settled_as_done_twice_is_counted_twice(self):
        assert only(synced(4), acked(4), acked(4), standing(4))["done"] == 2

    def test_what_is_in_the_log_twice_has_two_copies(self):
        assert only(published(4), published(4))["copies"] == 2

    def test_what_was_recalled_may_be_done_again(self):
        row = only(published(4), acked(4), told(Kind.RECALLED, 4), acked(4), standing(4))
        assert row["done"] == 1

    def test_what_a_seek_leads_back_to_may_be_done_again(self):
        row = only(published(4), acked(4), told(Kind.SOUGHT, 0, 9), acked(4), standing(4))
        assert row["done"] == 1


class TestTimes:
    def test_the_first_and_the_last_delivery_are_told(self):
        rows = [told(Kind.DELIVERED, 4, time_us=time, who=f"c{time}") for time in (20, 10, 30)]
        row = only(published(4), *rows)
        assert [row[name].timestamp() * 1e6 for name in ("first_delivered", "last_delivered")] == [20, 30]
        assert (row["deliveries"], row["delivered_to"]) == (3, "c30")

    def test_what_is_noted_twice_counts_from_the_first_time(self):
        row = only(synced(4, time_us=7), acked(4), synced(4, time_us=70, other_us=0), standing(4))
        assert row["confirmed"].timestamp() * 1e6 == 7
        assert row["exchange"] == "x"

    def test_of_what_came_and_went_nobody_knows_when_and_through_what(self):
        row = only(acked(4), synced(4, other_us=0, why="", code=Promise.FOUND_SAFE), standing(4))
        assert (row["published"], row["exchange"], row["persistent"]) == (None, None, True)

    def test_of_what_a_restart_found_safe_nobody_knows_since_when(self):
        row = only(synced(4, code=Promise.FOUND_SAFE))
        assert (row["confirmed"], row["persistent"], row["state"]) == (None, True, "lost")

    def test_rows_in_any_order_tell_the_same(self):
        rows = [
            published(0, 9),
            synced(0, 9),
            told(Kind.DELIVERED, 0, 5),
            told(Kind.RETURNED, 0, 2, code=1),
            acked(2, 5),
            told(Kind.SOUGHT, 3, 9),
            told(Kind.DELIVERED, 3, 4),
            standing(2, 3),
            held(3, 4),
        ]
        assert messages(*rows) == messages(*reversed(rows))

    def test_a_missed_deadline_counts_whatever_came_of_it(self):
        missed = told(Kind.MISSED, 4, who="c")
        row = only(published(4), missed, told(Kind.RETURNED, 4, code=1), told(Kind.RETURNED, 4, code=1))
        assert (row["returns"], row["late"]) == (2, 1)
        row = only(published(4), missed, missed, acked(4, code=Outcome.DEAD_LETTERED))
        assert (row["returns"], row["late"]) == (0, 2)

    def test_what_was_taken_and_not_sent_was_not_delivered(self):
        over = [told(Kind.WITHHELD, 4), told(Kind.SETTLED, 4, code=Outcome.EXPIRED)]
        row = only(published(4), told(Kind.DELIVERED, 4, who="c"), *over)
        assert (row["deliveries"], row["first_delivered"], row["delivered_to"]) == (0, None, None)
        assert (row["state"], row["outcome"]) == ("settled", "expired")
        once = [told(Kind.DELIVERED, 4, who="a"), told(Kind.RETURNED, 4)]
        row = only(published(4), *once, told(Kind.DELIVERED, 4, who="b"), *over)
        assert (row["deliveries"], row["returns"]) == (1, 1)
        assert row["first_delivered"] is not None

    def test_nothing_is_promised_of_what_is_transient_but_it_is_known(self):
        row = only(synced(4, code=Promise.NONE))
        assert (row["state"], row["confirmed"], row["exchange"]) == ("gone", None, "x")
        assert row["published"] is not None


class TestReaders:
    def test_a_group_has_to_do_with_what_it_has_not_left_behind(self):
        rows = [
            published(0, 10),
            told(Kind.STARTED, 0, 3, reader=GROUP),
            acked(4, reader=GROUP),
            standing(0, 3, reader=GROUP),
            standing(4, reader=GROUP),
        ]
        found = messages(*rows, reader="billing")
        assert list(found) == [3, 4, 5, 6, 7, 8, 9]
        assert (found[3]["state"], found[4]["state"]) == ("ready", "settled")
        assert len(messages(*rows)) == 10

    def test_what_a_group_skips_is_told_and_what_lies_before_its_beginning_is_not(self):
        rows = [
            published(0, 10),
            told(Kind.STARTED, 0, 3, reader=GROUP),
            told(Event.PASSED, 0, 8, reader=GROUP, who="ops"),
            standing(0, 8, reader=GROUP),
        ]
        found = messages(*rows, reader="billing")
        assert {offset: row["outcome"] for offset, row in found.items()} == {
            **dict.fromkeys(range(3, 8), "skipped"),
            8: None,
            9: None,
        }
        assert found[3]["settled_by"] == "ops"

    def test_who_hides_what_he_has_published_has_not_received_it(self):
        row = only(published(4), told(Kind.LEASED, 4, who="stage q 7"), told(Kind.RELEASED, 4), synced(4))
        assert (row["deliveries"], row["delivered_to"], row["state"]) == (0, None, "ready")
        row = only(published(4), told(Kind.LEASED, 4, who="query q"), held(4))
        assert (row["deliveries"], row["delivered_to"]) == (1, "query q")

    @pytest.mark.parametrize("reader", ["", "billing"])
    def test_what_an_aborted_batch_had_written_was_never_published(self, reader):
        rows = [
            published(4, 8),
            synced(4, 8),
            told(Kind.LEASED, 5, 7, who="stage q 7"),
            told(Kind.SETTLED, 5, 7, code=Outcome.DROPPED, who="stage"),
            told(Kind.SETTLED, 5, 7, code=Outcome.DROPPED, reader=GROUP),
            standing(5, 7),
        ]
        assert list(messages(*rows, reader=reader)) == [4, 7]

    def test_what_was_dropped_to_keep_a_limit_was_published(self):
        row = only(published(4), synced(4), told(Kind.SETTLED, 4, code=Outcome.DROPPED), standing(4))
        assert (row["state"], row["outcome"]) == ("settled", "dropped")

    def test_a_log_without_readers_has_no_messages_to_tell_of(self):
        log = AuditedLog(1, "/", "orders", ())
        assert messages(published(4), log=log) == {}


def test_offsets_count_from_the_chunk_they_are_in():
    base = 3 * CHUNK
    rows = [
        {**each, "chunk": 3}
        for each in (published(base, base + 2), synced(base, base + 2), acked(base), standing(base))
    ]
    assert {offset: row["state"] for offset, row in messages(*rows).items()} == {
        base: "settled",
        base + 1: "ready",
    }


@pytest.mark.histories(sample=4, full=4)
def test_what_is_worked_through_in_portions_comes_out_the_same(monkeypatch, seed):
    random = Random(seed)
    rows = [published(0, 40), synced(0, 30), synced(10, 40)]
    for number in range(60):
        start = random.randrange(39)
        stop = random.randint(start + 1, 40)
        kind = random.choice((Kind.DELIVERED, Kind.RETURNED, Kind.SETTLED, Event.NAMED))
        who = f"c{number % 5}"
        rows.append(told(kind, start, stop, time_us=10 + number, who=who, code=1 + number % 4))
    whole = messages(*rows)
    for most in (1, 7, 64):
        monkeypatch.setattr(accounting, "_OFFSETS_AT_ONCE_MAX", most)
        assert messages(*rows) == whole


OFTEN = (Kind.DELIVERED, Kind.LEASED, Kind.RETURNED, Kind.RELEASED, Kind.MISSED, Event.NAMED)
RARELY = (Kind.SETTLED, Kind.WITHHELD, Kind.SOUGHT, Kind.RECALLED)


@pytest.mark.histories(sample=6, full=40)
def test_what_is_told_in_fewer_rows_is_the_same(seed):
    """Few places, names and reasons, so that most things happen again and again."""
    random = Random(seed)
    rows = [published(0, 4), synced(0, 3)]
    for number in range(600):
        start = random.randrange(3)
        rows.append(
            told(
                random.choice(OFTEN if random.random() < 0.95 else RARELY),
                start,
                random.randint(start + 1, 3),
                time_us=10 + number,
                code=random.choice((1, 1, 4)),
                who=random.choice(("", "c", "d")),
                why=random.choice(("", "", "x")),
            )
        )
    fewer = in_fewer(rows[2:])
    assert len(fewer) < len(rows) - 2
    assert messages(*rows[:2], *fewer) == messages(*rows)


def in_fewer(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    texts = sorted({row[name] for row in rows for name in ("who", "why")})
    columns = {
        name: np.array([texts.index(row[name]) if name in ("who", "why") else row[name] for row in rows])
        for name in SCHEMA.names
        if name != "count"
    }
    found = folded(columns)
    return [
        {
            name: texts[value] if name in ("who", "why") else value
            for name, value in zip(found, row, strict=True)
        }
        for row in zip(*(column.tolist() for column in found.values()), strict=True)
    ]


def test_a_loop_without_end_has_few_rows():
    rows = [
        told(kind, 4, time_us=time_us, who="c", code=1)
        for time_us in range(1, 20_001, 2)
        for kind in (Kind.DELIVERED, Kind.RETURNED)
    ]
    fewer = in_fewer(rows)
    assert len(fewer) == 4
    row = only(published(4), synced(4), *fewer)
    assert (row["deliveries"], row["returns"]) == (10_000, 10_000)
    assert [row[name].timestamp() * 1e6 for name in ("first_delivered", "last_delivered")] == [1, 19_999]


def test_no_portion_is_larger_than_it_may_be(monkeypatch):
    monkeypatch.setattr(accounting, "_OFFSETS_AT_ONCE_MAX", 10)
    start = np.zeros(8, np.int64)
    stop = np.array([3, 3, 3, 3, 25, 1, 9, 2])
    rows = Rows(*(start if each.name == "start" else stop for each in fields(Rows)))
    assert [part.stop.tolist() for part in rows.portions()] == [[3, 3, 3], [3], [25], [1, 9], [2]]
