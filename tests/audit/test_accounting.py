"""The rules by which rows about one chunk become messages, one by one; `test_histories` combines them."""

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


def event(kind: int, start: int, stop: int | None = None, **fields: Any) -> dict[str, Any]:
    """Return the next row of the journal of the queue's own reader."""
    stop = start + 1 if stop is None else stop
    row = dict.fromkeys(SCHEMA.names, 0) | {"log": 1, "reader": OWN, "who": "", "why": "", "time_us": 9}
    row["count"] = 1
    return row | {"number": next(numbers), "event": kind, "start": start, "stop": stop} | fields


def published(start: int, stop: int | None = None, **fields: Any) -> dict[str, Any]:
    return event(Event.PUBLISHED, start, stop, **{"reader": 0, "code": 1, "time_us": 5, "why": "x"} | fields)


def synced(start: int, stop: int | None = None, **fields: Any) -> dict[str, Any]:
    return event(Kind.SYNCED, start, stop, **{"other_us": 5, "time_us": 7, "why": "x"} | fields)


def acked(start: int, stop: int | None = None, **fields: Any) -> dict[str, Any]:
    return event(Kind.SETTLED, start, stop, **{"code": Outcome.ACKED, "who": "c"} | fields)


def standing(start: int, stop: int | None = None, **fields: Any) -> dict[str, Any]:
    return event(Event.STANDING, start, stop, **{"number": (1 << 63) - 1} | fields)


def held(start: int, stop: int | None = None, **fields: Any) -> dict[str, Any]:
    return event(Event.HELD, start, stop, **{"number": (1 << 63) - 1} | fields)


def messages(*rows: dict[str, Any], reader: str = "", log: AuditedLog = LOG) -> dict[int, dict[str, Any]]:
    table = account(pa.Table.from_pylist(list(rows), SCHEMA), log)
    assert table.schema == MESSAGES
    return {row["offset"]: row for row in table.to_pylist() if row["reader"] == reader}


def only(*rows: dict[str, Any], reader: str = "") -> dict[str, Any]:
    (row,) = messages(*rows, reader=reader).values()
    return row


class TestStates:
    def test_a_stored_message_that_was_not_taken_is_ready(self):
        row = only(published(4), synced(4))
        assert (row["state"], row["persistent"], row["exchange"], row["copies"]) == ("ready", True, "x", 1)
        assert (row["vhost"], row["queue"], row["offset"]) == ("/", "orders", 4)

    def test_a_message_in_flight_for_the_cursor_is_in_flight(self):
        row = only(published(4), synced(4), event(Kind.DELIVERED, 4, who="c"), held(4))
        assert (row["state"], row["delivered_to"], row["deliveries"]) == ("in flight", "c", 1)

    def test_a_run_delivered_to_several_consumers_has_their_names_in_entries_of_its_own(self):
        both = event(Kind.DELIVERED, 4, 6)
        accounted = messages(
            published(4, 6), both, event(Event.NAMED, 4, who="a"), event(Event.NAMED, 5, who="b")
        )
        assert [(row["delivered_to"], row["deliveries"]) for row in accounted.values()] == [
            ("a", 1),
            ("b", 1),
        ]

    def test_a_later_delivery_replaces_an_earlier_name(self):
        row = only(
            published(4),
            event(Kind.DELIVERED, 4),
            event(Event.NAMED, 4, who="a"),
            event(Kind.RETURNED, 4),
            event(Kind.DELIVERED, 4, who="b"),
        )
        assert (row["delivered_to"], row["deliveries"]) == ("b", 2)

    def test_a_settled_message_is_settled_whether_the_log_has_it_or_not(self):
        for stored in ([], [published(4)]):
            row = only(*stored, synced(4), event(Kind.DELIVERED, 4), acked(4), standing(4))
            assert (row["state"], row["outcome"], row["settled_by"], row["done"]) == (
                "settled",
                "acked",
                "c",
                1,
            )

    @pytest.mark.parametrize("rows", [[], [event(Kind.DELIVERED, 4), held(4)]])
    def test_a_confirmed_message_that_is_neither_settled_nor_stored_is_lost(self, rows):
        assert only(synced(4), *rows)["state"] == "lost"

    @pytest.mark.parametrize("outcome", [Outcome.RESTART, Outcome.DAMAGED])
    def test_a_confirmed_message_that_the_store_gave_up_is_lost(self, outcome):
        row = only(synced(4), event(Kind.SETTLED, 4, code=outcome), standing(4))
        assert row["state"] == "lost"

    def test_a_delivered_message_that_was_never_confirmed_is_not_lost(self):
        row = only(event(Kind.DELIVERED, 4), event(Kind.SETTLED, 4, code=Outcome.RESTART), standing(4))
        assert (row["state"], row["outcome"], row["persistent"]) == ("settled", "restart", False)
        assert only(event(Kind.DELIVERED, 4))["state"] == "gone"

    def test_a_message_settled_before_the_window_is_settled(self):
        row = only(published(4), standing(0, 10))
        assert (row["state"], row["outcome"]) == ("settled", "before the window")

    @pytest.mark.parametrize("outcome", [Outcome.RESTART, Outcome.SKIPPED])
    def test_offsets_without_a_message_are_no_messages(self, outcome):
        assert messages(event(Kind.SETTLED, 0, 50, code=outcome), standing(0, 50)) == {}

    def test_a_group_loses_nothing(self):
        assert messages(synced(4), reader="billing") == {}
        row = only(event(Kind.DELIVERED, 4, reader=GROUP), reader="billing")
        assert row["state"] == "gone"


class TestDoubles:
    def test_two_acks_count_as_two(self):
        assert only(synced(4), acked(4), acked(4), standing(4))["done"] == 2

    def test_a_message_twice_in_the_log_has_two_copies(self):
        assert only(published(4), published(4))["copies"] == 2

    def test_after_a_recall_an_ack_counts_once(self):
        row = only(published(4), acked(4), event(Kind.RECALLED, 4), acked(4), standing(4))
        assert row["done"] == 1

    def test_after_a_seek_back_an_ack_counts_once(self):
        row = only(published(4), acked(4), event(Kind.SOUGHT, 0, 9), acked(4), standing(4))
        assert row["done"] == 1


class TestTimes:
    def test_the_first_and_the_last_delivery_have_times(self):
        rows = [event(Kind.DELIVERED, 4, time_us=time, who=f"c{time}") for time in (20, 10, 30)]
        row = only(published(4), *rows)
        assert [row[name].timestamp() * 1e6 for name in ("first_delivered", "last_delivered")] == [20, 30]
        assert (row["deliveries"], row["delivered_to"]) == (3, "c30")

    def test_a_message_noted_twice_is_confirmed_at_the_first_time(self):
        row = only(synced(4, time_us=7), acked(4), synced(4, time_us=70, other_us=0), standing(4))
        assert row["confirmed"].timestamp() * 1e6 == 7
        assert row["exchange"] == "x"

    def test_a_message_settled_before_its_sync_has_no_time_and_no_exchange(self):
        row = only(acked(4), synced(4, other_us=0, why="", code=Promise.FOUND_SAFE), standing(4))
        assert (row["published"], row["exchange"], row["persistent"]) == (None, None, True)

    def test_a_message_that_a_restart_found_has_no_time_of_its_confirm(self):
        row = only(synced(4, code=Promise.FOUND_SAFE))
        assert (row["confirmed"], row["persistent"], row["state"]) == (None, True, "lost")

    def test_the_order_of_the_rows_does_not_matter(self):
        rows = [
            published(0, 9),
            synced(0, 9),
            event(Kind.DELIVERED, 0, 5),
            event(Kind.RETURNED, 0, 2, code=1),
            acked(2, 5),
            event(Kind.SOUGHT, 3, 9),
            event(Kind.DELIVERED, 3, 4),
            standing(2, 3),
            held(3, 4),
        ]
        assert messages(*rows) == messages(*reversed(rows))

    def test_a_missed_deadline_counts_with_and_without_a_return(self):
        missed = event(Kind.MISSED, 4, who="c")
        row = only(published(4), missed, event(Kind.RETURNED, 4, code=1), event(Kind.RETURNED, 4, code=1))
        assert (row["returns"], row["late"]) == (2, 1)
        row = only(published(4), missed, missed, acked(4, code=Outcome.DEAD_LETTERED))
        assert (row["returns"], row["late"]) == (0, 2)

    def test_a_delivery_that_was_not_sent_does_not_count(self):
        over = [event(Kind.WITHHELD, 4), event(Kind.SETTLED, 4, code=Outcome.EXPIRED)]
        row = only(published(4), event(Kind.DELIVERED, 4, who="c"), *over)
        assert (row["deliveries"], row["first_delivered"], row["delivered_to"]) == (0, None, None)
        assert (row["state"], row["outcome"]) == ("settled", "expired")
        once = [event(Kind.DELIVERED, 4, who="a"), event(Kind.RETURNED, 4)]
        row = only(published(4), *once, event(Kind.DELIVERED, 4, who="b"), *over)
        assert (row["deliveries"], row["returns"]) == (1, 1)
        assert row["first_delivered"] is not None

    def test_a_transient_message_is_known_and_never_confirmed(self):
        row = only(synced(4, code=Promise.NONE))
        assert (row["state"], row["confirmed"], row["exchange"]) == ("gone", None, "x")
        assert row["published"] is not None


class TestReaders:
    def test_a_group_has_the_messages_from_its_start_on(self):
        rows = [
            published(0, 10),
            event(Kind.STARTED, 0, 3, reader=GROUP),
            acked(4, reader=GROUP),
            standing(0, 3, reader=GROUP),
            standing(4, reader=GROUP),
        ]
        accounted = messages(*rows, reader="billing")
        assert list(accounted) == [3, 4, 5, 6, 7, 8, 9]
        assert (accounted[3]["state"], accounted[4]["state"]) == ("ready", "settled")
        assert len(messages(*rows)) == 10

    def test_a_group_has_skipped_messages_and_none_before_its_start(self):
        rows = [
            published(0, 10),
            event(Kind.STARTED, 0, 3, reader=GROUP),
            event(Event.PASSED, 0, 8, reader=GROUP, who="ops"),
            standing(0, 8, reader=GROUP),
        ]
        accounted = messages(*rows, reader="billing")
        assert {offset: row["outcome"] for offset, row in accounted.items()} == {
            **dict.fromkeys(range(3, 8), "skipped"),
            8: None,
            9: None,
        }
        assert accounted[3]["settled_by"] == "ops"

    def test_a_stage_that_hides_its_rows_is_no_delivery(self):
        row = only(published(4), event(Kind.LEASED, 4, who="stage q 7"), event(Kind.RELEASED, 4), synced(4))
        assert (row["deliveries"], row["delivered_to"], row["state"]) == (0, None, "ready")
        row = only(published(4), event(Kind.LEASED, 4, who="query q"), held(4))
        assert (row["deliveries"], row["delivered_to"]) == (1, "query q")

    @pytest.mark.parametrize("reader", ["", "billing"])
    def test_messages_of_an_aborted_batch_were_never_published(self, reader):
        rows = [
            published(4, 8),
            synced(4, 8),
            event(Kind.LEASED, 5, 7, who="stage q 7"),
            event(Kind.SETTLED, 5, 7, code=Outcome.DROPPED, who="stage"),
            event(Kind.SETTLED, 5, 7, code=Outcome.DROPPED, reader=GROUP),
            standing(5, 7),
        ]
        assert list(messages(*rows, reader=reader)) == [4, 7]

    def test_messages_dropped_to_keep_a_limit_were_published(self):
        row = only(published(4), synced(4), event(Kind.SETTLED, 4, code=Outcome.DROPPED), standing(4))
        assert (row["state"], row["outcome"]) == ("settled", "dropped")

    def test_a_log_without_readers_has_no_rows(self):
        log = AuditedLog(1, "/", "orders", ())
        assert messages(published(4), log=log) == {}


def test_offsets_count_from_the_chunk_they_are_in():
    base = 3 * CHUNK
    rows = [
        {**row, "chunk": 3}
        for row in (published(base, base + 2), synced(base, base + 2), acked(base), standing(base))
    ]
    assert {offset: row["state"] for offset, row in messages(*rows).items()} == {
        base: "settled",
        base + 1: "ready",
    }


@pytest.mark.histories(sample=4, full=4)
def test_the_size_of_portions_does_not_matter(monkeypatch, seed):
    random = Random(seed)
    rows = [published(0, 40), synced(0, 30), synced(10, 40)]
    for number in range(60):
        start = random.randrange(39)
        stop = random.randint(start + 1, 40)
        kind = random.choice((Kind.DELIVERED, Kind.RETURNED, Kind.SETTLED, Event.NAMED))
        who = f"c{number % 5}"
        rows.append(event(kind, start, stop, time_us=10 + number, who=who, code=1 + number % 4))
    whole = messages(*rows)
    for most in (1, 7, 64):
        monkeypatch.setattr(accounting, "_OFFSETS_AT_ONCE_MAX", most)
        assert messages(*rows) == whole


OFTEN = (Kind.DELIVERED, Kind.LEASED, Kind.RETURNED, Kind.RELEASED, Kind.MISSED, Event.NAMED)
RARELY = (Kind.SETTLED, Kind.WITHHELD, Kind.SOUGHT, Kind.RECALLED)


@pytest.mark.histories(sample=6, full=40)
def test_folded_rows_have_equal_results(seed):
    """Few offsets, names and reasons, so that most events repeat."""
    random = Random(seed)
    rows = [published(0, 4), synced(0, 3)]
    for number in range(600):
        start = random.randrange(3)
        rows.append(
            event(
                random.choice(OFTEN if random.random() < 0.95 else RARELY),
                start,
                random.randint(start + 1, 3),
                time_us=10 + number,
                code=random.choice((1, 1, 4)),
                who=random.choice(("", "c", "d")),
                why=random.choice(("", "", "x")),
            )
        )
    fewer = fold(rows[2:])
    assert len(fewer) < len(rows) - 2
    assert messages(*rows[:2], *fewer) == messages(*rows)


def fold(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    texts = sorted({row[name] for row in rows for name in ("who", "why")})
    columns = {
        name: np.array([texts.index(row[name]) if name in ("who", "why") else row[name] for row in rows])
        for name in SCHEMA.names
        if name != "count"
    }
    folded_columns = folded(columns)
    return [
        {
            name: texts[value] if name in ("who", "why") else value
            for name, value in zip(folded_columns, row, strict=True)
        }
        for row in zip(*(column.tolist() for column in folded_columns.values()), strict=True)
    ]


def test_a_long_redelivery_loop_has_few_rows():
    rows = [
        event(kind, 4, time_us=time_us, who="c", code=1)
        for time_us in range(1, 20_001, 2)
        for kind in (Kind.DELIVERED, Kind.RETURNED)
    ]
    fewer = fold(rows)
    assert len(fewer) == 4
    row = only(published(4), synced(4), *fewer)
    assert (row["deliveries"], row["returns"]) == (10_000, 10_000)
    assert [row[name].timestamp() * 1e6 for name in ("first_delivered", "last_delivered")] == [1, 19_999]


def test_no_portion_is_larger_than_the_limit(monkeypatch):
    monkeypatch.setattr(accounting, "_OFFSETS_AT_ONCE_MAX", 10)
    start = np.zeros(8, np.int64)
    stop = np.array([3, 3, 3, 3, 25, 1, 9, 2])
    rows = Rows(*(start if field.name == "start" else stop for field in fields(Rows)))
    assert [part.stop.tolist() for part in rows.portions()] == [[3, 3, 3], [3], [25], [1, 9], [2]]
